package match_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/resourcestack/autohealer/internal/probe/match"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestScan(t *testing.T) {
	set := match.NewSet(compile(t, `task \w+ blocked`), compile(t, `\d+`), compile(t, `blocked for`), compile(t, `(?i)oops`), compile(t, `one|two`))
	testkit.Same(t, set.Always(), []int{1}, "always: only the second")
	for _, test := range []struct {
		name string
		text string
		want []string // line:pattern
	}{
		{"passes over what has none", "all is well\nno task is\n", nil},
		{"finds one", "x\ntask a blocked\n", []string{"1:0"}},
		{"finds two in a line", "task a blocked for\n", []string{"0:0", "0:2"}},
		{"finds either case", "OOPS\noops\noO\noopſ\n", []string{"0:3", "1:3", "3:3"}},
		{"finds the first and the last bytes", "one\ntwo", []string{"0:4", "1:4"}},
		{"looks within lines", "on\ne\nt\nwo\n", nil},
		{"takes any bytes", "\xff\x00one\x80\n", []string{"0:4"}},
		{"takes little", "on", nil},
		{"takes nothing", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			line, from, last := 0, 0, 0
			set.Scan([]byte(test.text), func(at, pattern int) {
				testkit.Check(t, at >= last, "found offset %d after %d", at, last)
				last = at
				for ; from < at; from++ {
					if test.text[from] == '\n' {
						line++
					}
				}
				if hit := fmt.Sprintf("%d:%d", line, pattern); !slices.Contains(got, hit) {
					got = append(got, hit)
				}
			})
			slices.Sort(got)
			testkit.Same(t, got, test.want, "the matches")
		})
	}
}

func TestOffsetsNeverDecrease(t *testing.T) {
	var places []int
	setOf(t, []string{`abc`, `aabc: XYZ`}).Scan([]byte("aabc: XYZ\n"), func(at, _ int) { places = append(places, at) })
	testkit.Check(t, len(places) == 2 && slices.IsSorted(places), "found at %v, want two places in order", places)
}

func TestScanWithoutPatterns(t *testing.T) {
	match.NewSet().Scan([]byte("text"), func(int, int) { t.Error("found something") })
}

// The distance that a scan can skip depends on the shortest literal.
func TestUserPatternsHaveLongLiterals(t *testing.T) {
	for _, pattern := range kernelMonitor {
		literals, _ := compile(t, pattern).Literal()
		testkit.Check(t, len(literals) == 1 && len(literals[0]) >= 13, "%q needs %q, want one of 13 bytes or more", pattern, literals)
	}
	for _, id := range setOf(t, reference).Always() {
		testkit.Same(t, reference[id], `\d{3,}`, "the pattern that is tried on every line")
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	text := kernelLog(1, 1000)
	set, found := setOf(t, kernelMonitor), 0
	n := testing.AllocsPerRun(10, func() { set.Scan(text, func(int, int) { found++ }) })
	testkit.Check(t, n == 0, "a scan allocates %v times", n)
	testkit.Check(t, found == 0, "found %d candidates where there are none", found)
}
