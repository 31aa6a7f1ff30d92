package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// root is the repository.
const root = "../.."

// block is a block of commands on a page.
type block struct {
	page   string // from the root of the repository
	line   int    // of the fence
	under  string // the anchor of its heading
	script string
	exempt string // the reason why it is not run
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// pagesBelow returns the Markdown files in a folder, or the file.
func pagesBelow(tb testing.TB, paths ...string) (pages []string) {
	tb.Helper()
	for _, path := range paths {
		testkit.Must(tb, filepath.WalkDir(filepath.Join(root, path), func(found string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && filepath.Ext(found) == ".md" {
				page, err := filepath.Rel(root, found)
				pages = append(pages, page)
				return err
			}
			return err
		}))
	}
	return pages
}

// commandPages returns the pages whose commands run. The pages of docs/contributing/design have
// dates: they are not changed when the product changes.
func commandPages(tb testing.TB) []string {
	tb.Helper()
	return slices.DeleteFunc(pagesBelow(tb, "docs", "README.md", "examples"), func(page string) bool {
		return strings.HasPrefix(page, "docs/contributing/design/")
	})
}

func read(tb testing.TB, page string) string {
	tb.Helper()
	return string(testkit.Value(os.ReadFile(filepath.Join(root, page))).Must(tb))
}

var (
	fence  = regexp.MustCompile("^( *)```([a-z]*)$")
	marker = regexp.MustCompile(`^ *<!-- not run: (.+) -->$`)
)

// blocks returns the command blocks of a page. A marker must stand directly before a block. Every
// block has a language, because commands without one would not run.
func blocks(page, text string) (found []block, err error) {
	var errs []error
	var open *block
	var inside bool
	indent, reason, under := "", "", ""
	for i, line := range strings.Split(text, "\n") {
		at := fmt.Sprintf("%s:%d", page, i+1)
		fenced := fence.FindStringSubmatch(line)
		switch {
		case inside && fenced != nil && fenced[2] == "":
			if open != nil {
				found = append(found, *open)
			}
			inside, open = false, nil
		case open != nil:
			open.script += strings.TrimPrefix(line, indent) + "\n"
		case inside:
		case fenced != nil:
			inside, indent = true, fenced[1]
			switch fenced[2] {
			case "sh":
				open = &block{page: page, line: i + 1, under: under, exempt: reason}
				reason = ""
			case "":
				errs = append(errs, fmt.Errorf("%s: the block has no language, write sh for commands or text", at))
			}
		case strings.Contains(line, "<!-- not run"):
			if match := marker.FindStringSubmatch(line); match != nil {
				reason = match[1]
			} else {
				errs = append(errs, fmt.Errorf("%s: the marker is not of the form <!-- not run: reason -->", at))
			}
			continue
		default:
			if match := heading.FindStringSubmatch(line); match != nil {
				under = slug(match[1])
			}
		}
		if reason != "" {
			errs = append(errs, fmt.Errorf("%s: no sh block follows the marker <!-- not run: %s -->", at, reason))
			reason = ""
		}
	}
	if inside || reason != "" {
		errs = append(errs, fmt.Errorf("%s: a block or a marker at the end is not complete", page))
	}
	return found, errors.Join(errs...)
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	const page = "# A b\n<!-- not run: needs a cloud -->\n```sh\nx\n```\n1. b\n\n   ```sh\n   y\n     z\n   ```\n```text\n```sh\n```\n"
	got := testkit.Value(blocks("p.md", page)).Must(t)
	testkit.Same(t, got, []block{{"p.md", 3, "a-b", "x\n", "needs a cloud"}, {"p.md", 8, "a-b", "y\n  z\n", ""}}, "the blocks")
	for text, want := range map[string]string{
		"<!-- not run: because -->\n\n```sh\nx\n```": "p.md:2: no sh block follows",
		"<!-- not run: because -->\n```text\nx\n```": "p.md:2: no sh block follows",
		"<!-- not run -->\n```sh\nx\n```":            "is not of the form",
		"```sh\nx":                                   "is not complete",
		"```text\nx\n```\n\n```\nmake x\n```":        "p.md:5: the block has no language",
		"a\n<!-- not run: because -->":               "is not complete",
	} {
		_, err := blocks("p.md", text)
		testkit.Fails(t, err, want)
	}
}

// linkPages are the pages whose links are checked.
var linkPages = []string{"docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/karpenter/README.md", "internal/triage/testdata/README.md"}

var (
	link      = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	inline    = regexp.MustCompile("`+[^`]*`+")
	shownLink = regexp.MustCompile(`\[([^\]]*)\]\([^()]*\)`)
	heading   = regexp.MustCompile(`^#{1,6} +(.+?) *#*$`)
	htmlID    = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// prose returns the lines of a page outside of fenced blocks. Others are empty.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	inside := false
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside, lines[i] = !inside, ""
		} else if inside {
			lines[i] = ""
		}
	}
	return lines
}

// anchors returns the anchors that GitHub makes from the headings of a page.
func anchors(text string) map[string]bool {
	found, seen := map[string]bool{}, map[string]int{}
	for _, line := range prose(text) {
		for _, id := range htmlID.FindAllStringSubmatch(line, -1) {
			found[id[1]] = true
		}
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		anchor := slug(match[1])
		seen[anchor]++
		if n := seen[anchor] - 1; n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		found[anchor] = true
	}
	return found
}

// slug returns the anchor of a heading, as GitHub makes it.
func slug(title string) string {
	title = shownLink.ReplaceAllString(title, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	got := anchors("# A `b`: the [c](d.md), e_f-g?\n## Same\n```sh\n# not a heading\n```\n## Same\n<a id=\"x\"></a>")
	testkit.Same(t, got, map[string]bool{"a-b-the-c-e_f-g": true, "same": true, "same-1": true, "x": true}, "the anchors")
}

func TestLinks(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, page := range pagesBelow(t, linkPages...) {
		for i, line := range prose(read(t, page)) {
			for _, match := range link.FindAllStringSubmatch(inline.ReplaceAllString(line, "`"), -1) {
				if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
					continue
				}
				checked++
				if err := leads(page, match[1]); err != nil {
					t.Errorf("%s:%d: the link %s: %v", page, i+1, match[1], err)
				}
			}
		}
	}
	t.Logf("%d links checked", checked)
	testkit.Check(t, checked > 500, "only %d links were checked", checked)
}

// leads returns why a link on a page leads nowhere.
func leads(page, target string) error {
	path, anchor, hasAnchor := strings.Cut(target, "#")
	file := filepath.Join(root, page)
	if path != "" {
		file = filepath.Join(root, filepath.Dir(page), path)
	}
	if inside, err := filepath.Rel(root, file); err != nil || strings.HasPrefix(inside, "..") {
		return errors.New("it leaves the repository")
	}
	if _, err := os.Stat(file); err != nil {
		return errors.New("the file does not exist")
	}
	if !hasAnchor {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !anchors(string(text))[anchor] {
		return errors.New("the page has no such heading")
	}
	return nil
}

// generated matches the pages that are generated, which may be long.
var generated = regexp.MustCompile(`^docs/reference/(conditions|crds[^/]*|flags|metrics|events)\.md$`)

func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	const most = 1500
	for _, page := range pagesBelow(t, linkPages...) {
		// Versions add to the changelog.
		if words := len(strings.Fields(read(t, page))); words > most && !generated.MatchString(page) && page != "CHANGELOG.md" {
			t.Errorf("%s has %d words, more than %d: divide it", page, words, most)
		}
	}
}
