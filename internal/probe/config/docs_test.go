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
	page, err := os.ReadFile("../../../docs/agent-configuration.md")
	testkit.Must(t, err)
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
		root, err := parseObject([]byte(monitor.text))
		testkit.Must(t, err)
		r := &reader{}
		monitor.read(r.section("", "the top", root))
		for _, s := range r.sections {
			for _, name := range s.asked {
				asked[name] = true
			}
		}
	}
	t.Logf("saw %d fields", len(asked))
	if len(asked) < 30 {
		t.Error("there are more fields than that: this test does not look at them")
	}
	for name := range asked {
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "."+name+"`") && !strings.Contains(string(page), `"`+name+`"`) {
			t.Errorf("%s is not on the page", name)
		}
	}
	examples := strings.Split(string(page), "```json\n")[1:]
	if len(examples) == 0 {
		t.Error("the page has no examples")
	}
	for _, example := range examples {
		text, _, _ := strings.Cut(example, "```")
		kind := SystemLog
		if strings.Contains(text, `"builtin"`) {
			kind = Check
		}
		if _, warnings, err := Parse("example", kind, []byte(text)); err != nil || len(warnings) > 0 {
			t.Errorf("%s\n%v, warnings %q", text, err, warnings)
		}
	}
}

// The page about checks contains every check and every setting.
func TestThePageAboutChecksIsComplete(t *testing.T) {
	page, err := os.ReadFile("../../../docs/agent-checks.md")
	testkit.Must(t, err)
	root, err := parseObject([]byte(`{}`))
	testkit.Must(t, err)
	s := (&reader{}).section("settings", "settings", root)
	checkSettings(s, "")
	for _, name := range append(Checks(), s.asked...) {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("%s is not on the page", name)
		}
	}
}

// The page for users contains every shipped file.
func TestThePageForUsersHasEveryShippedFile(t *testing.T) {
	page, err := os.ReadFile("../../../docs/agent-configuration.md")
	testkit.Must(t, err)
	paths, err := filepath.Glob("../../../config/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, path := range paths {
		if first := regexp.MustCompile("(?m)^\\|[^|]*`" + filepath.Base(path) + "`[^|]*\\|"); !first.Match(page) {
			t.Errorf("%s is not on the page", filepath.Base(path))
		}
	}
}
