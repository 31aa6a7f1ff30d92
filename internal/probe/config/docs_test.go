package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// docs is the folder of the documentation.
const docs = "../../../docs/"

// readPages returns the text of pages of the documentation.
func readPages(t *testing.T, names ...string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range names {
		text.Write(testkit.Value(os.ReadFile(docs + name)).Must(t))
	}
	return text.String()
}

// jsonBlocks returns the examples of a page. A block may be indented.
func jsonBlocks(page string) (blocks []string) {
	for _, rest := range strings.Split(page, "```json\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		blocks = append(blocks, block)
	}
	return blocks
}

// kindOfExample returns the kind of an example, and false for an example of a part of a file.
func kindOfExample(t *testing.T, example string) (Kind, bool) {
	t.Helper()
	root := testkit.Value(parseObject([]byte(example))).Must(t)
	kind, _ := kindOf((&reader{}).section("", "the top", root))
	return kind, kind != ""
}

// The pages on each kind of files contain every field, and their examples are valid.
func TestThePagesOnFilesAreComplete(t *testing.T) {
	for _, test := range []struct {
		page, text string
		read       func(top *section)
		fields     int
	}{
		{"reference/agent-logs.md", `{"conditions": [{}], "rules": [{}], "nodeSelector": ""}`, func(top *section) { logMonitor(top); nodeSelector(top) }, 25},
		{"reference/agent-plugins.md", `{"conditions": [{}], "rules": [{}]}`, func(top *section) { pluginMonitor(top) }, 15},
		{"reference/agent-checks.md", `{"conditions": [{}], "rules": [{}]}`, func(top *section) { checkMonitor(top) }, 20},
		{"reference/machine-metrics.md", `{"cpu": {"metricsConfigs": {"a": {}}}}`, func(top *section) { statsMonitor(top) }, 10},
	} {
		t.Run(test.page, func(t *testing.T) {
			names := []string{test.page, "reference/agent-configuration.md"}
			if test.page == "reference/agent-checks.md" {
				names = append(names, "reference/agent-plugins.md") // for the fields that both have
			}
			pages := readPages(t, names...)
			root := testkit.Value(parseObject([]byte(test.text))).Must(t)
			r := &reader{}
			test.read(r.section("", "the top", root))
			asked := map[string]bool{}
			for _, s := range r.sections {
				for _, name := range s.asked {
					asked[name] = true
				}
			}
			testkit.Check(t, len(asked) >= test.fields, "%d fields: this test does not look at all of them", len(asked))
			for name := range asked {
				if !strings.Contains(pages, "`"+name+"`") && !strings.Contains(pages, "."+name+"`") {
					t.Errorf("%s is not on the pages", name)
				}
			}
			testkit.Check(t, len(jsonBlocks(readPages(t, test.page))) != 0, "the page has no example")
		})
	}
}

// The examples of all pages and the example files are valid.
func TestDocumentedExamplesAreValid(t *testing.T) {
	examples := map[string]int{}
	check := func(name, text string) {
		kind, whole := kindOfExample(t, text)
		if !whole {
			return
		}
		examples[name]++
		_, warnings, err := Parse("example", kind, []byte(text))
		testkit.Check(t, err == nil && len(warnings) == 0, "%s: %s\n%v, warnings %q", name, text, err, warnings)
	}
	pages := []string{
		"reference/agent-configuration.md", "reference/agent-logs.md", "reference/agent-plugins.md", "reference/agent-checks.md",
		"reference/machine-metrics.md", "reference/problem-sources.md", "how-to/add-checks.md", "how-to/report-problems.md",
	}
	for _, page := range pages {
		for _, example := range jsonBlocks(readPages(t, page)) {
			check(page, example)
		}
	}
	paths, err := filepath.Glob("../../../examples/agent/*.json")
	testkit.Require(t, err == nil && len(paths) >= 3, "there are %d example files (%v)", len(paths), err)
	for _, path := range paths {
		check(path, string(testkit.Value(os.ReadFile(path)).Must(t)))
	}
	for _, name := range append(pages, paths...) {
		testkit.Check(t, examples[name] > 0, "%s has no example", name)
	}
}

// The page about checks contains every check and every setting.
func TestThePageAboutChecksIsComplete(t *testing.T) {
	page := readPages(t, "reference/agent-checks.md")
	root := testkit.Value(parseObject([]byte(`{}`))).Must(t)
	s := (&reader{}).section("settings", "settings", root)
	checkSettings(s, "")
	for _, name := range append(Checks(), s.asked...) {
		testkit.Contains(t, page, "| `"+name+"` |", "the page has %s", name)
	}
}

// The page on the files of the image contains every shipped file.
func TestThePageOnFilesHasEveryShippedFile(t *testing.T) {
	page := readPages(t, "reference/agent-files.md")
	paths, err := filepath.Glob("../../../config/*.json")
	testkit.Require(t, err == nil && len(paths) != 0, "no files: %v", err)
	for _, path := range paths {
		first := regexp.MustCompile("(?m)^\\|[^|]*`" + filepath.Base(path) + "`[^|]*\\|")
		testkit.Check(t, first.MatchString(page), "%s is not on the page", filepath.Base(path))
	}
}

// The page on problem sources contains every field of sources.
func TestThePageOnProblemSourcesIsComplete(t *testing.T) {
	page := readPages(t, "reference/problem-sources.md")
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
			testkit.Check(t, strings.Contains(page, field) || name == "sources", "%s is not on the page", field)
		}
	}
	testkit.Check(t, seen >= 12, "saw %d fields: this test does not look at them", seen)
}
