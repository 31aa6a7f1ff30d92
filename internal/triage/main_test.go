package triage_test

import (
	"flag"
	"os"
	"testing"
)

// raceChecks is the number of histories of each test under the race detector. They take
// several times as long there and find little, because a core is used by a single goroutine.
// Without the race detector the default of rapid applies.
const raceChecks = "10"

func TestMain(m *testing.M) {
	if raceEnabled {
		// The command line is parsed later and takes precedence.
		if err := flag.Set("rapid.checks", raceChecks); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// requireSeen fails a test whose histories lack required events. A few histories may lack
// them, so it checks all of them together, and only without the race detector.
func requireSeen(t *testing.T, saw map[string]int, wanted []string) {
	t.Helper()
	for _, what := range wanted {
		if saw[what] == 0 && !raceEnabled {
			t.Errorf("no %s in any history: the histories do not test what they are for", what)
		}
	}
}
