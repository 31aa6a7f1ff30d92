package config

import (
	"os"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The page on problem reports contains every field of sources, and its example is valid.
func TestThePageOnProblemReportsIsComplete(t *testing.T) {
	page, err := os.ReadFile("../../../docs/problem-reports.md")
	testkit.Must(t, err)
	root, err := parseObject([]byte(`{"sources": [{}]}`))
	testkit.Must(t, err)
	r := &reader{}
	problemSources(r.section("", "the top", root))
	seen := 0
	for _, s := range r.sections {
		for _, name := range s.asked {
			seen++
			field := "`" + name + "`"
			if s.path != "" {
				field = "`sources[]." + name + "`"
			}
			if !strings.Contains(string(page), field) && name != "sources" {
				t.Errorf("%s is not on the page", field)
			}
		}
	}
	if seen < 12 {
		t.Errorf("saw %d fields: this test does not look at them", seen)
	}
	examples := strings.Split(string(page), "```json\n")[1:]
	if len(examples) == 0 {
		t.Error("the page has no examples")
	}
	for _, example := range examples {
		text, _, _ := strings.Cut(example, "```")
		if _, warnings, err := Parse("example", Problems, []byte(text)); err != nil || len(warnings) > 0 {
			t.Errorf("%s\n%v, warnings %q", text, err, warnings)
		}
	}
}
