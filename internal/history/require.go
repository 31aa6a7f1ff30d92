package history

import (
	"fmt"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// maxPrinted is how many violations a failing test prints. A faulty storm has thousands of
// equal violations.
const maxPrinted = 25

// maxChanges is how many changes a failing test prints.
const maxChanges = 60

// Require fails a test if its history has a violation, or fewer changes than the test
// needs: every number in atLeast is a lower bound. For the first violation it prints the
// preceding changes. It returns the report.
func Require(tb testing.TB, recording testbed.Recording, cfg Config, atLeast Counts) Report {
	tb.Helper()
	report, err := Check(recording, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	for i, v := range report.Violations {
		if i == maxPrinted {
			tb.Errorf("history: and %d more", len(report.Violations)-maxPrinted)
			break
		}
		tb.Errorf("history: %s", v)
	}
	if len(report.Violations) > 0 {
		tb.Logf("history: what led to the first of them:\n%s", upTo(recording, report.Violations[0]))
	}
	for _, missing := range report.short(atLeast) {
		tb.Errorf("history: %s", missing)
	}
	return report
}

// upTo formats the last changes of the violation's objects before the violation.
func upTo(recording testbed.Recording, v Violation) string {
	var names []string
	for _, name := range []string{v.Node, v.Set, v.Check, v.Claim, v.Pool, v.Policy} {
		if name != "" {
			names = append(names, name)
		}
	}
	lines := strings.SplitAfter(Format(recording[:min(v.At.Index+1, len(recording))], names...), "\n")
	return strings.Join(lines[max(0, len(lines)-maxChanges):], "")
}

// short lists the counts that are too small.
func (c Counts) short(atLeast Counts) []string {
	var missing []string
	for _, n := range []struct {
		what      string
		got, want int
	}{
		{"moments", c.Changes, max(1, atLeast.Changes)},
		{"writes", c.Writes, atLeast.Writes},
		{"placements", c.Placements, atLeast.Placements},
		{"placements of NoExecute", c.Evictions, atLeast.Evictions},
		{"fallbacks", c.Fallbacks, atLeast.Fallbacks},
		{"removals", c.Removals, atLeast.Removals},
		{"fences", c.Fences, atLeast.Fences},
		{"statuses", c.Statuses, atLeast.Statuses},
		{"unproved changes", c.Unproved, atLeast.Unproved},
		{"remediation objects", c.Remediations, atLeast.Remediations},
		{"remediation objects of later steps", c.Escalations, atLeast.Escalations},
		{"deletions of remediation objects", c.Releases, atLeast.Releases},
		{"notes on remediation objects", c.Notes, atLeast.Notes},
		{"writes to Leases", c.Leases, atLeast.Leases},
		{"statuses of health checks", c.CheckStatuses, atLeast.CheckStatuses},
		{"confirmations taken", c.Confirmations, atLeast.Confirmations},
		{"marks on claims", c.Marks, atLeast.Marks},
		{"marks removed from claims", c.Unmarks, atLeast.Unmarks},
		{"drains of other clients ended by force", c.Forced, atLeast.Forced},
		{"deletions of claims", c.Terminations, atLeast.Terminations},
		{"statuses of repair policies", c.PolicyStatuses, atLeast.PolicyStatuses},
		{"repair blocks restored", c.Restores, atLeast.Restores},
		{"steps under Guardrails", c.Railed, atLeast.Railed},
		{"statuses of Guardrails", c.RailStatuses, atLeast.RailStatuses},
	} {
		if n.got < n.want {
			missing = append(missing, fmt.Sprintf("%d %s, want at least %d", n.got, n.what, n.want))
		}
	}
	return missing
}
