package match_test

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/probe/match"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// reference holds patterns that users write: those of node-problem-detector, and some in
// other styles.
var reference = append([]string{
	`.*([1-9]\d{2,}) (Currently unreadable.*sectors|Offline uncorrectable sectors).*`,
	`Display server \S+ crash in \S+`,
	`Error trying v2 registry: failed to register layer: rename /var/lib/docker/image/(.+) /var/lib/docker/image/(.+): directory not empty.*`,
	`OCI runtime start failed: container process is already dead: unknown`,
	`Process \d+ \(\S+\) crashed in .*`,
	`Process \d+ \(\S+\) of user \d+ encountered an uncaught \S+ exception`,
	`Remounting filesystem read-only`,
	`Started (Kubernetes kubelet|kubelet.service|kubelet.service - Kubernetes kubelet|kubelet.service - .*).`,
	`Starting (Docker Application Container Engine|docker.service|docker.service - Docker Application Container Engine)...`,
	`Starting (containerd container runtime|containerd.service|containerd.service - containerd container runtime)...`,
	`System encountered a fatal error in \S+`,
	`System encountered a non-fatal error in \S+`,
	`returned error: readlink /var/lib/docker/overlay2.*: invalid argument.*`,
	// These are from this project.
	`(?i)kernel panic|oops: \d+`,
	`(?i)task \S+ is stuck`,
	`NMI`,
	`\d{3,}`,
	`watchdog: BUG: soft lockup - CPU#\d+ stuck for \d+s!.*\n.*Call Trace:`,
	`(?s)Call Trace:.*do_exit`,
	`[Ee]rror -?\d+$`,
	`link is (not )?(up|down)`,
}, kernelMonitor...)

// tally counts what a test has covered, so that a test without coverage fails.
type tally struct {
	hits     int // all matches
	scanned  int // matches on lines that a scan has returned
	crossing int // matches that contain a newline
	near     int // misses on lines with a literal
	misses   int // misses on lines without a literal
}

func (n *tally) check(t *testing.T) {
	t.Helper()
	t.Logf("%d hits (%d by their literals, %d over several lines), %d misses that have the literals and %d that have not", n.hits, n.scanned, n.crossing, n.near, n.misses)
	testkit.Check(t, n.hits != 0 && n.scanned != 0 && n.crossing != 0 && n.near != 0 && n.misses != 0, "this test looks at too little")
}

// oracle is the straightforward implementation of a pattern.
type oracle func(text []byte) (begin int, ok bool)

// compare tries the patterns on every line with some lines before it, and compares that
// with trying them only where a scan of the log points. In the log every line starts with
// a timestamp, as in a file. The timestamp is not part of the matched text.
func compare(t rapid.TB, seen *tally, patterns []*match.Pattern, plain []oracle, lines []string, buffer int) (hits []int) {
	set := match.NewSet(patterns...)

	var log []byte
	for _, line := range lines {
		log = append(log, "Jan  2 kernel: "+line+"\n"...)
	}
	type place struct{ line, pattern int }
	told := map[place]bool{}
	last := 0
	set.Scan(log, func(at, pattern int) {
		if at < last { // not with testkit: these loops run often, and each call would allocate
			t.Fatalf("found offset %d after %d", at, last)
		}
		last = at
		told[place{bytes.Count(log[:at], []byte("\n")), pattern}] = true
	})
	for _, pattern := range set.Always() {
		for line := range lines {
			told[place{line, pattern}] = true
		}
	}

	hits = make([]int, len(patterns))
	for newest := range lines {
		oldest := max(0, newest-buffer+1)
		text := []byte(strings.Join(lines[oldest:newest+1], "\n"))
		for i, p := range patterns {
			candidate := told[place{newest, i}]
			for line := oldest; line < newest && p.CrossesLines(); line++ {
				candidate = candidate || told[place{line, i}]
			}
			var begin int
			var ok bool
			if candidate {
				begin, ok = p.Match(text)
			}
			needs, pointed := p.Literal()
			wantBegin, want := plain[i](text)
			if ok != want || begin != wantBegin {
				t.Fatalf("%q (needs %q) in %q: found %v at %d, but the oracle found %v at %d", p, needs, text, ok, begin, want, wantBegin)
			}
			switch {
			case ok:
				hits[i]++
				seen.hits++
				if pointed {
					seen.scanned++
				}
				if bytes.Contains(text[begin:], []byte("\n")) {
					seen.crossing++
				}
			case candidate:
				seen.near++
			default:
				seen.misses++
			}
		}
	}
	return hits
}

// corrupted changes a text at random: a lot, or not at all.
func corrupted(t *rapid.T, text string) string {
	for range rapid.IntRange(0, 2).Draw(t, "accidents") {
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		switch rapid.SampledFrom([]string{"none", "cut", "cut off", "lose", "gain", "change", "odd", "upper", "lower", "part", "before", "after"}).Draw(t, "accident") {
		case "cut":
			text = text[:at]
		case "cut off":
			text = text[at:]
		case "lose":
			text = text[:at] + text[min(at+1, len(text)):]
		case "gain":
			text = text[:at] + rapid.SampledFrom([]string{" ", "x", "0", "k"}).Draw(t, "more") + text[at:]
		case "change":
			text = text[:at] + "x" + text[min(at+1, len(text)):]
		case "odd":
			text = text[:at] + rapid.SampledFrom([]string{"\xff", "\x00", "\xc5", "\xe2\x84", "\uFFFD", "\u017f", "\r"}).Draw(t, "odd") + text[at:]
		case "upper":
			text = strings.ToUpper(text)
		case "lower":
			text = strings.ToLower(text)
		case "part":
			text = text[:at] + "\n" + text[at:]
		case "before":
			text = "and " + text
		case "after":
			text += "."
		}
	}
	return text
}

// rounds is how often the properties are checked. Each round makes as many checks as rapid
// is configured for.
const rounds = 3

func TestRandomPatternsMatchLikeTheNaiveMatcher(t *testing.T) {
	var seen tally
	for range rounds {
		rapid.Check(t, func(t *rapid.T) {
			twins := make([]naivePattern, rapid.IntRange(1, 4).Draw(t, "patterns"))
			patterns, plain := make([]*match.Pattern, len(twins)), make([]oracle, len(twins))
			for i := range twins {
				twins[i] = anyRule(t)
				patterns[i], plain[i] = compile(t, twins[i].written), twins[i].match
			}
			lines := linesOf(t, func() string { return rapid.SampledFrom(twins).Draw(t, "which").example(t) })
			compare(t, &seen, patterns, plain, lines, rapid.IntRange(1, 4).Draw(t, "buffer"))
		})
	}
	seen.check(t)
}

func TestUserPatternsMatchLikeRegexp(t *testing.T) {
	patterns, plain, trees := make([]*match.Pattern, len(reference)), make([]oracle, len(reference)), make([]*syntax.Regexp, len(reference))
	for i, written := range reference {
		patterns[i], plain[i] = compile(t, written), byRegexp(regexp.MustCompile(`(?:`+written+`)\z`))
		trees[i] = testkit.Value(syntax.Parse(written, syntax.Perl)).Must(t)
	}

	var seen tally
	var asIs []string
	for _, tree := range trees {
		asIs = append(asIs, strings.Split(example(rand.New(rand.NewPCG(1, 6)), tree), "\n")...)
	}
	for i, hits := range compare(t, &seen, patterns, plain, asIs, 3) {
		if hits == 0 {
			t.Errorf("%q never matches", reference[i])
		}
	}
	for range rounds {
		rapid.Check(t, func(t *rapid.T) {
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 6))
			lines := linesOf(t, func() string { return example(r, rapid.SampledFrom(trees).Draw(t, "which")) })
			compare(t, &seen, patterns, plain, lines, rapid.IntRange(1, 4).Draw(t, "buffer"))
		})
	}
	seen.check(t)
}

func byRegexp(re *regexp.Regexp) oracle {
	return func(text []byte) (int, bool) {
		if found := re.FindIndex(text); found != nil {
			return found[0], true
		}
		return 0, false
	}
}

// linesOf mixes corrupted texts with other lines.
func linesOf(t *rapid.T, text func() string) []string {
	var all strings.Builder
	for range rapid.IntRange(1, 10).Draw(t, "texts") {
		all.WriteString(corrupted(t, text()))
		all.WriteString(rapid.SampledFrom([]string{"\n", "\n", "\n", " ", "", "\nall is well\n"}).Draw(t, "between"))
	}
	return strings.Split(all.String(), "\n")
}

// example returns a text that a pattern matches.
func example(r *rand.Rand, tree *syntax.Regexp) string {
	var text strings.Builder
	times := func(least, most int) string {
		for range least + r.IntN(most-least+1) {
			text.WriteString(example(r, tree.Sub[0]))
		}
		return text.String()
	}
	switch tree.Op {
	case syntax.OpLiteral:
		return string(tree.Rune)
	case syntax.OpCharClass:
		for {
			at := 2 * r.IntN(len(tree.Rune)/2)
			lowest, highest := tree.Rune[at], min(tree.Rune[at+1], tree.Rune[at]+90)
			if c := lowest + r.Int32N(highest-lowest+1); c != '\n' {
				return string(c)
			}
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return string([]rune("abc 0é/")[r.IntN(7)])
	case syntax.OpStar:
		return times(0, 3)
	case syntax.OpPlus:
		return times(1, 3)
	case syntax.OpQuest:
		return times(0, 1)
	case syntax.OpRepeat:
		most := tree.Max
		if most < 0 {
			most = tree.Min + 2
		}
		return times(tree.Min, most)
	case syntax.OpAlternate:
		return example(r, tree.Sub[r.IntN(len(tree.Sub))])
	case syntax.OpCapture, syntax.OpConcat:
		for _, part := range tree.Sub {
			text.WriteString(example(r, part))
		}
	}
	return text.String()
}

// FuzzCompileAndMatch tries any pattern on any text. Go's regexp does not match ^ at the
// start of every line, so patterns with ^ are only compiled and executed.
func FuzzCompileAndMatch(f *testing.F) {
	for i, pattern := range reference {
		tree := testkit.Value(syntax.Parse(pattern, syntax.Perl)).Must(f)
		f.Add(pattern, example(rand.New(rand.NewPCG(uint64(i), 6)), tree))
	}
	f.Add(`(?i)risk|\Qa.b`, "ri\u017f\u212a\nx\xff")
	f.Add(`(?m)^a$\n^b{2,3}`, "a\nbbb")
	f.Add(`a**`, "")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 200 || len(text) > 2000 {
			return // long patterns cost time and show nothing new
		}
		p, err := match.Compile(pattern)
		_, want := regexp.Compile(pattern)
		testkit.Require(t, (err == nil) == (want == nil), "%q: %v, but regexp says %v", pattern, err, want)
		if err != nil {
			return
		}
		tree := testkit.Value(syntax.Parse(pattern, syntax.Perl)).Must(t)
		plain := oracle(p.Match)
		if re, err := regexp.Compile(`(?:` + pattern + `)\z`); err == nil && !has(tree, syntax.OpBeginText) {
			plain = byRegexp(re)
		}
		compare(t, &tally{}, []*match.Pattern{p}, []oracle{plain}, strings.Split(text, "\n"), 3)
	})
}

func has(tree *syntax.Regexp, op syntax.Op) bool {
	return tree.Op == op || slices.ContainsFunc(tree.Sub, func(part *syntax.Regexp) bool { return has(part, op) })
}
