package spelling

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
)

func TestAMistakeIsADistanceOfOne(t *testing.T) {
	saw := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[abc]{0,5}`)
		first, second := name.Draw(t, "a"), name.Draw(t, "b")
		want := false
		slips(first, func(slip string) { want = want || slip == second && slip != first })
		saw[want]++
		a, b := []rune(first), []rune(second)
		if got := isSlip(a, b); got != want {
			t.Fatalf("%q and %q: one slip apart is %v, want %v", first, second, got, want)
		}
		if isSwap(a, b) && (!want || !slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))) {
			t.Fatalf("%q and %q are not swapped", first, second)
		}
	})
	t.Logf("saw %d pairs one slip apart and %d others", saw[true], saw[false])
	if saw[true] == 0 || saw[false] == 0 {
		t.Error("one kind of pairs was never tried")
	}
}

// If two types of the catalog were close, a misspelling of the first could mean the second.
func TestNoTwoTypesAreClose(t *testing.T) {
	conditions := catalog.Conditions()
	for i, a := range conditions {
		for _, b := range conditions[:i] {
			if d := distance(spell(a.Type).letters, spell(b.Type).letters, 2); d <= 2 {
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
