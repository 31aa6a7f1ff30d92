package history

import (
	"fmt"
	"testing"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// mostTold is how many violations a failing test prints: a storm that went
// wrong has thousands of the same.
const mostTold = 25

// Require fails a test whose history has a violation, or in which less happened
// than the test meant to look at: every number in atLeast is a lower bound. It
// returns the report.
func Require(tb testing.TB, recording testbed.Recording, cfg Config, atLeast Counts) Report {
	tb.Helper()
	report, err := Check(recording, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	for i, v := range report.Violations {
		if i == mostTold {
			tb.Errorf("history: and %d more", len(report.Violations)-mostTold)
			break
		}
		tb.Errorf("history: %s", v)
	}
	for _, missing := range report.short(atLeast) {
		tb.Errorf("history: %s", missing)
	}
	return report
}

// short says what there was less of than there should have been.
func (c Counts) short(atLeast Counts) []string {
	var missing []string
	for _, n := range []struct {
		what      string
		got, want int
	}{
		{"moments", c.Moments, max(1, atLeast.Moments)},
		{"writes", c.Writes, atLeast.Writes},
		{"placements", c.Placements, atLeast.Placements},
		{"placements of NoExecute", c.Evictions, atLeast.Evictions},
		{"fallbacks", c.Fallbacks, atLeast.Fallbacks},
		{"removals", c.Removals, atLeast.Removals},
		{"fences", c.Fences, atLeast.Fences},
		{"statuses", c.Statuses, atLeast.Statuses},
		{"unproved changes", c.Unproved, atLeast.Unproved},
	} {
		if n.got < n.want {
			missing = append(missing, fmt.Sprintf("%d %s, want at least %d", n.got, n.what, n.want))
		}
	}
	return missing
}
