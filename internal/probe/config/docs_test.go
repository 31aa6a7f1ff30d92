package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The page for users contains every field, and its examples are valid.
func TestThePageForUsersIsComplete(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../../docs/agent-configuration.md")).Must(t)
	asked := map[string]bool{}
	for _, monitor := range []struct {
		text string
		read func(top *section)
	}{
		{`{"conditions": [{}], "rules": [{}], "nodeSelector": ""}`, func(top *section) { logMonitor(top); nodeSelector(top) }},
		{`{"conditions": [{}], "rules": [{}]}`, func(top *section) { pluginMonitor(top) }},
		{`{"conditions": [{}], "rules": [{}]}`, func(top *section) { checkMonitor(top) }},
		{`{"cpu": {"metricsConfigs": {"a": {}}}}`, func(top *section) { statsMonitor(top) }},
	} {
		root := testkit.Value(parseObject([]byte(monitor.text))).Must(t)
		r := &reader{}
		monitor.read(r.section("", "the top", root))
		for _, s := range r.sections {
			for _, name := range s.asked {
				asked[name] = true
			}
		}
	}
	t.Logf("saw %d fields", len(asked))
	testkit.Check(t, len(asked) >= 30, "there are more fields than that: this test does not look at them")
	for name := range asked {
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "."+name+"`") && !strings.Contains(string(page), `"`+name+`"`) {
			t.Errorf("%s is not on the page", name)
		}
	}
	examples := strings.Split(string(page), "```json\n")[1:]
	testkit.Check(t, len(examples) != 0, "the page has no examples")
	for _, example := range examples {
		text, _, _ := strings.Cut(example, "```")
		kind := SystemLog
		if strings.Contains(text, `"builtin"`) {
			kind = Check
		}
		_, warnings, err := Parse("example", kind, []byte(text))
		testkit.Check(t, err == nil && len(warnings) == 0, "%s\n%v, warnings %q", text, err, warnings)
	}
}

// The page about checks contains every check and every setting.
func TestThePageAboutChecksIsComplete(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../../docs/agent-checks.md")).Must(t)
	root := testkit.Value(parseObject([]byte(`{}`))).Must(t)
	s := (&reader{}).section("settings", "settings", root)
	checkSettings(s, "")
	for _, name := range append(Checks(), s.asked...) {
		testkit.Contains(t, string(page), "| `"+name+"` |", "the page has %s", name)
	}
}

// The page for users contains every shipped file.
func TestThePageForUsersHasEveryShippedFile(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../../docs/agent-configuration.md")).Must(t)
	paths, err := filepath.Glob("../../../config/*.json")
	testkit.Require(t, err == nil && len(paths) != 0, "no files: %v", err)
	for _, path := range paths {
		first := regexp.MustCompile("(?m)^\\|[^|]*`" + filepath.Base(path) + "`[^|]*\\|")
		testkit.Check(t, first.Match(page), "%s is not on the page", filepath.Base(path))
	}
}

// The page on problem reports contains every field of sources, and its example is valid.
func TestThePageOnProblemReportsIsComplete(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../../docs/problem-reports.md")).Must(t)
	root := testkit.Value(parseObject([]byte(`{"sources": [{}]}`))).Must(t)
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
			testkit.Check(t, strings.Contains(string(page), field) || name == "sources", "%s is not on the page", field)
		}
	}
	testkit.Check(t, seen >= 12, "saw %d fields: this test does not look at them", seen)
	examples := strings.Split(string(page), "```json\n")[1:]
	testkit.Check(t, len(examples) != 0, "the page has no examples")
	for _, example := range examples {
		text, _, _ := strings.Cut(example, "```")
		_, warnings, err := Parse("example", Problems, []byte(text))
		testkit.Check(t, err == nil && len(warnings) == 0, "%s\n%v, warnings %q", text, err, warnings)
	}
}
