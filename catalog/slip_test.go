package catalog

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// distance returns the number of letters to add, remove, change or swap. It is the textbook
// algorithm with a full table.
func distance(a, b []rune) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			default:
				change := 1
				if a[i-1] == b[j-1] {
					change = 0
				}
				d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					d[i][j] = min(d[i][j], d[i-2][j-2]+1)
				}
			}
		}
	}
	return d[len(a)][len(b)]
}

func TestAMistakeIsADistanceOfOne(t *testing.T) {
	saw := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SliceOfN(rapid.SampledFrom([]rune("abc")), 0, 5)
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		want := distance(a, b) == 1
		saw[want]++
		if got := isSlip(a, b); got != want {
			t.Fatalf("%q and %q: one slip apart is %v, their distance is %d", string(a), string(b), got, distance(a, b))
		}
		if isSwap(a, b) && (!want || !slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))) {
			t.Fatalf("%q and %q are not swapped", string(a), string(b))
		}
	})
	t.Logf("saw %d pairs one slip apart and %d others", saw[true], saw[false])
	if saw[true] == 0 || saw[false] == 0 {
		t.Error("one kind of pairs was never tried")
	}
}

// If two types of the catalog were close, a misspelling of the first could mean the second.
func TestNoTwoTypesAreClose(t *testing.T) {
	for i, a := range conditions {
		for _, b := range conditions[:i] {
			if d := distance(spell(a.Type).letters, spell(b.Type).letters); d <= 2 {
				t.Errorf("%s and %s are only %d apart", a.Type, b.Type, d)
			}
		}
	}
}

func TestSplit(t *testing.T) {
	for name, want := range map[string]string{
		"":                          "",
		"Ready":                     "Ready",
		"ready":                     "ready",
		"KubeletUnhealthy":          "Kubelet Unhealthy",
		"NTPProblem":                "NTP Problem",
		"GPU0LinkDown":              "GPU 0 Link Down",
		"CorruptDockerOverlay2":     "Corrupt Docker Overlay 2",
		"kernel-dead_lock. x":       "kernel dead lock x",
		"OOM":                       "OOM",
		"__":                        "",
		"ÄtzendeGröße":              "Ätzende Größe",
		"ContainerRuntimeUnhealthy": "Container Runtime Unhealthy",
	} {
		if got := strings.Join(split(name), " "); got != want {
			t.Errorf("the words of %q are %q, want %q", name, got, want)
		}
	}
}
