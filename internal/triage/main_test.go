package triage_test

import (
	"flag"
	"os"
	"testing"
)

// fewHistories are made of each kind under the race detector. It makes them several
// times as dear, and has little to find: a core is used by one at a time, and the test
// of those who may ask at once makes none. Without it there are as many as rapid makes.
const fewHistories = "10"

func TestMain(m *testing.M) {
	if raced {
		// The command line is read later, and wins.
		if err := flag.Set("rapid.checks", fewHistories); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// requireSeen fails a test whose histories lack what they are for. A few of them may
// lack it, so that it is asked of all of them, in the run without the race detector.
func requireSeen(t *testing.T, saw map[string]int, wanted []string) {
	t.Helper()
	for _, what := range wanted {
		if saw[what] == 0 && !raced {
			t.Errorf("no %s in any history: the histories do not test what they are for", what)
		}
	}
}
