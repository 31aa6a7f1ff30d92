package helpers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The image is built in a separate Go module, which cannot import this package.
func TestTheImageLinksEveryProgramAndNoOther(t *testing.T) {
	recipes, err := parser.ParseFile(token.NewFileSet(), "../../tools/images/recipes.go", nil, parser.SkipObjectResolution)
	testkit.Must(t, err)
	var linked []string
	ast.Inspect(recipes, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "helpers" {
			return true
		}
		for _, folder := range spec.Values[0].(*ast.CompositeLit).Elts {
			for _, program := range folder.(*ast.KeyValueExpr).Value.(*ast.CompositeLit).Elts {
				name, err := strconv.Unquote(program.(*ast.BasicLit).Value)
				if err != nil {
					t.Error(err)
				}
				linked = append(linked, name)
			}
		}
		return false
	})
	slices.Sort(linked)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(programs())), linked); diff != "" {
		t.Errorf("what the image links is not what there is (-is +links):\n%s", diff)
	}
}
