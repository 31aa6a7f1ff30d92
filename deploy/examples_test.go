package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

const examples = "../examples"

// otherExamples are the examples that a cluster with the chart alone cannot take, and the tests that
// read them.
var otherExamples = map[string]string{
	"agent/*.json":           "TestValidateAcceptsTheExamples in cmd/autohealer-agent",
	"agent/scratch-space.sh": "TestTheExamplePluginReportsAFullFilesystem in cmd/autohealer-agent",
	"disk-watch/*.go":        "main_test.go beside it",
	"nodepool.yaml":          "TestNodePools, because it needs Karpenter's CRD",
	"repair-statements.yaml": "takesStatements, because the controller reads it from a file",
	"values-*.yaml":          "takesValues, because Helm reads them",
}

// exampleObjects returns the files with objects for every cluster. It fails for a file that no test
// reads.
func exampleObjects(t *testing.T) (paths []string) {
	t.Helper()
	found := map[string]bool{}
	testkit.Must(t, filepath.WalkDir(examples, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := filepath.ToSlash(testkit.Value(filepath.Rel(examples, path)).Must(t))
		for pattern := range otherExamples {
			if testkit.Value(filepath.Match(pattern, name)).Must(t) {
				found[pattern] = true
				return nil
			}
		}
		isManifest := filepath.Ext(name) == ".yaml" && !strings.Contains(name, "/")
		testkit.Check(t, isManifest, "no test reads examples/%s: write one, and add the file to otherExamples", name)
		if isManifest {
			paths = append(paths, path)
		}
		return nil
	}))
	for pattern, test := range otherExamples {
		testkit.Check(t, found[pattern], "there is no examples/%s for %s", pattern, test)
	}
	return paths
}

func TestEveryExampleHasATest(t *testing.T) {
	paths := exampleObjects(t)
	testkit.Check(t, len(paths) >= 7, "there are %d files with objects: %v", len(paths), paths)
}

// takesExamples applies every example in a dry run. The API server checks it with the CRDs;
// internal/validate judges it as the webhook does. A template may be missing: the health check is
// then Disabled.
func (c cluster) takesExamples(t *testing.T) {
	for _, path := range exampleObjects(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c.takesInDryRun(t, path)
		})
	}
}

// takesValues does the same with what Helm renders from every example of values. The schema of the
// chart leaves the fields of the Guardrails to the API server. An example turns on the monitors, so
// the cluster must have their CRDs.
func (r release) takesValues(t *testing.T) {
	paths := testkit.Value(filepath.Glob(examples + "/values-*.yaml")).Must(t)
	testkit.Check(t, len(paths) >= 4, "there are %d examples of values", len(paths))
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			manifest := testkit.Value(r.helm(t, "template", "autohealer", "chart", "--namespace", namespace, "--no-hooks", "--values", path)).Must(t)
			r.takesInDryRun(t, file(t, manifest))
		})
	}
}

// takesInDryRun applies a manifest in a dry run.
func (c cluster) takesInDryRun(t *testing.T, path string) {
	t.Helper()
	text := testkit.Value(os.ReadFile(path)).Must(t)
	want := strings.Count("\n"+string(text), "\nkind: ")
	out := c.kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-f", path)
	if got := strings.Count(out, " (server dry run)\n"); got != want || want == 0 {
		t.Errorf("%d of %d objects were taken:\n%s", got, want, out)
	}
}
