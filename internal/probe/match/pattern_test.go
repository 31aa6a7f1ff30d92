package match_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/probe/match"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func compile(tb rapid.TB, pattern string) *match.Pattern {
	tb.Helper()
	p := testkit.Value(match.Compile(pattern)).Must(tb)
	return p
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		name    string
		pattern string
		text    string
		begin   int // -1 for no match
	}{
		{"ends where the text ends", `foo`, "a foo", 2},
		{"does not end before the text ends", `foo`, "a foo!", -1},
		{"ends no branch before the text ends", `foo|bar`, "foo, not ba", -1},
		{"does not end in a line before", `foo`, "foo\nbar", -1},
		{"anchors every branch", `foo|bar`, "foo\nbaz", -1},
		{"anchors every branch with its own dollar", `foo$|bar$`, "foo\nbar", 4},
		{"finds the last branch too", `foo|bar`, "baz\nbar", 4},
		{"takes the branch that reaches the end", `a|ab`, "xab", 1},
		{"begins at the start of a line", `^foo`, "bar\nfoo", 4},
		{"begins at the start of a line with a capital A", `\Afoo`, "bar\nfoo", 4},
		{"does not begin within a line", `^foo`, "bar\na foo", -1},
		{"knows the start of a line in a branch", `x|^foo`, "bar\nfoo", 4},
		{"knows the start of a line within a match", `one\n^two`, "one\ntwo", 0},
		{"leaves the dollar at the end of the text", `one$\ntwo`, "one\ntwo", -1},
		{"takes the end of a line where that is asked for", `(?m)one$\ntwo`, "one\ntwo", 0},
		{"does not let a dot cross lines", `one.*two`, "one\ntwo", -1},
		{"lets a dot cross lines where that is asked for", `(?s)one.*two`, "x\none\ntwo", 2},
		{"begins as early as it can", `a+`, "aaa", 0},
		{"folds case where that is asked for", `(?i)oops`, "kernel OopS", 7},
		{"takes the long s and the Kelvin sign for letters", `(?i)risk`, "ri\u017f\u212a", 0},
		{"matches nothing at the end", `a*`, "b\nb", 3},
		{"matches an empty text", ``, "", 0},
		{"takes odd bytes for the replacement character", `\x{FFFD}`, "a\xff", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			begin, ok := compile(t, test.pattern).Match([]byte(test.text))
			if !ok {
				begin = -1
			}
			testkit.Same(t, begin, test.begin, "%q in %q begins at", test.pattern, test.text)
		})
	}
}

func TestCompileNamesTheInvalidPattern(t *testing.T) {
	for _, pattern := range []string{`foo(`, `a{1001}`, `(?:a{500}){500}`, `\C`, "\xff", `x**`, `(?P<n`} {
		_, err := match.Compile(pattern)
		if err == nil {
			t.Errorf("%q: no error", pattern)
			continue
		}
		testkit.Check(t, strings.Contains(err.Error(), "error parsing regexp: ") && strings.HasPrefix(err.Error(), "reading pattern \""),
			"%q: %v", pattern, err)
	}
}

func TestCrossesLines(t *testing.T) {
	for pattern, crosses := range map[string]bool{
		`foo`: false, `fo.*o`: false, `[\S ]+`: false, `^foo$`: false, `(?m)^foo$`: false, `\bfoo\B`: false, `[[:alpha:]]`: false,
		`a\nb`: true, `a\s+b`: true, `\Wb`: true, `\D`: true, `[^a]`: true, `(?s).`: true, `(?s:.)|a`: true, `(a(b\n)?)*`: true, `[\x00-\x20]`: true,
	} {
		testkit.Same(t, compile(t, pattern).CrossesLines(), crosses, "%q crosses lines", pattern)
	}
}

func TestLiteral(t *testing.T) {
	for _, test := range []struct {
		pattern string
		want    []string
	}{
		{`foo`, []string{"foo"}},
		{`fo`, nil},
		{`\w+`, nil},
		{`foo|\d+`, nil},
		{`foobar|fo.*`, nil},
		{`kernel: .*`, []string{"kernel: "}},
		{`\d(a01|b02|c03|d04|e05|f06|g07|h08|i09)\d`, []string{"a01", "b02", "c03", "d04", "e05", "f06", "g07", "h08", "i09"}},
		{alternatives(64), strings.Split(alternatives(64), "|")},
		{alternatives(65), nil},
		{`(?i:foobar)|foob`, []string{"(?i)foobar", "foob"}},
		{`foobar|(?i:FOOB)`, []string{"(?i)foob"}},
		{`(foo)*`, nil},
		{`(foo)?`, nil},
		{`(foo)+`, []string{"foo"}},
		{`fo+bar`, []string{"obar"}},
		{`(ab){3}`, []string{"ababab"}},
		{`(ab){2,}`, []string{"abab"}},
		{`\bfoo$`, []string{"foo"}},
		{`one|.*two`, []string{"one", "two"}},
		{`colou?r`, []string{"colour", "color"}},
		{`x[12]y`, []string{"x1y", "x2y"}},
		{`number \d+ of`, []string{"number "}},
		{`one\ntwoand`, []string{"twoand"}},
		{`[\n]one`, []string{"one"}},
		{"one\uFFFDtwoand", []string{"twoand"}},
		{`(?i)Oops`, []string{"(?i)oops", "(?i)oop\u017f"}},
		{`[Oo]ops`, []string{"(?i)oops"}},
		{`(?i)été`, []string{"(?i)été", "(?i)étÉ", "(?i)Été", "(?i)ÉtÉ"}},
		{`kernel: .* oops`, []string{" oops"}},
		{`--------.*panic`, []string{"panic"}},
		{`Starting (docker|dockerd) now`, []string{"Starting docker now", "Starting dockerd now"}},
		{`Starting (docker.|dockerd.) now`, []string{"Starting docker"}},
		{`XFS .* Shutting down filesystem.?`, []string{" Shutting down filesystem"}},
		{`[^\x00-\x{10FFFF}]foo`, []string{"foo"}},
	} {
		got, ok := compile(t, test.pattern).Literal()
		slices.Sort(got)
		slices.Sort(test.want)
		testkit.Check(t, slices.Equal(got, test.want) && ok == (len(test.want) > 0), "%q needs %q (%v), want %q", test.pattern, got, ok, test.want)
	}
}

// alternatives returns a pattern with this many words.
func alternatives(count int) string {
	words := make([]string, count)
	for i := range words {
		words[i] = fmt.Sprintf("%c%02d", 'a'+i%26, i)
	}
	return strings.Join(words, "|")
}
