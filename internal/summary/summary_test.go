package summary_test

import (
	"maps"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/summary"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

var (
	since = time.Date(2026, 3, 1, 10, 32, 16, 0, time.UTC)
	due   = since.Add(5 * time.Minute)
)

// nodes counts one node per reason.
func nodes(selected int, reasons ...triage.Reason) *summary.Nodes {
	n := &summary.Nodes{Selected: selected}
	for i, reason := range reasons {
		n.Add("worker-"+string(rune('1'+i)), reason)
	}
	return n
}

func stored(_ string, reason triage.Reason) triage.Reason { return reason }

func TestEveryStateHasItsOwnWords(t *testing.T) {
	pending := triage.Reason{Code: triage.Pending, Condition: "Ready", Status: triage.False, Since: since, Eligible: due, Until: due}
	later := pending
	later.Eligible, later.Until = due.Add(time.Minute), due.Add(time.Minute)
	long := pending
	long.Eligible, long.Until = since.Add(48*time.Hour), since.Add(48*time.Hour)
	gate := triage.Reason{Code: triage.GateClosed, Condition: "Ready", Have: 4, Of: 7, Limit: 3, Eligible: due}
	missing := gate
	missing.Departed = 1
	capFull := triage.Reason{Code: triage.CapFull, Condition: "BadDisk", Have: 2, Of: 9, Limit: 2}
	veto := triage.Reason{Code: triage.Vetoed, Condition: "BadDisk", Other: "the node has the annotation karpenter.sh/do-not-disrupt"}
	for _, test := range []struct {
		want  string
		nodes *summary.Nodes
	}{
		{"no node is selected", nodes(0)},
		{"1 node, healthy", nodes(1)},
		{"7 nodes, all healthy", nodes(7)},
		{"4 of 7 nodes unhealthy, at most 3 allowed: no new remediation starts", nodes(7, gate, gate, gate, gate)},
		{"4 of 7 nodes unhealthy or not replaced yet, at most 3 allowed: no new remediation starts", nodes(6, missing)},
		{"1 node: all remediations tried, needs attention", nodes(7, triage.Reason{Code: triage.Exhausted})},
		{"2 nodes: all remediations tried, need attention; 1 node in treatment", nodes(7, triage.Reason{Code: triage.Treating}, triage.Reason{Code: triage.Exhausted}, triage.Reason{Code: triage.Exhausted})},
		{"1 node unhealthy, due 10:37:16", nodes(7, pending)},
		{"2 nodes unhealthy, the first due 10:37:16", nodes(7, later, pending)},
		{"1 node unhealthy, due 2026-03-03T10:32:16Z", nodes(7, long)},
		{"1 node due: 2 in treatment, at most 2 of 9 selected nodes may be", nodes(9, capFull)},
		{"2 nodes due; worker-1: not treated: the node has the annotation karpenter.sh/do-not-disrupt", nodes(9, veto, veto)},
		{"1 node healthy again, waits for confirmation", nodes(9, triage.Reason{Code: triage.Recovering, Since: since})},
		{"1 node healthy again, in treatment until 10:37:16", nodes(9, triage.Reason{Code: triage.Recovering, Since: since, Until: due})},
		{"1 node healthy again, being released", nodes(9, triage.Reason{Code: triage.Recovered})},
		{"1 node no longer selected, being released", nodes(9, triage.Reason{Code: triage.Deselected})},
		{"1 node due: could not be carried out, tried again at 2026-03-01T10:37:16Z", nodes(9, triage.Reason{Code: triage.Retrying, Condition: "Ready", Until: due})},
		{"dry run: 1 node would be tainted", nodes(9, triage.Reason{Code: triage.DryRun, Key: "example.com/k"})},
		{"dry run: 1 node would be treated", nodes(9, triage.Reason{Code: triage.DryRun, Steps: 1})},
		{
			"1 node with NoSchedule instead of NoExecute: at most 3 of 7 nodes may have NoExecute; 1 node tainted; 1 node with a stronger taint of another set",
			nodes(7, triage.Reason{Code: triage.Tainted}, triage.Reason{Code: triage.FellBack, Limit: 3, Of: 7}, triage.Reason{Code: triage.Superseded}),
		},
		{"1 node unclear: Ready is Unknown; 1 node with some of the conditions", nodes(7, triage.Reason{Code: triage.Partial}, triage.Reason{Code: triage.Unclear, Condition: "Ready"})},
		{"1 node gone and not replaced yet", &summary.Nodes{Selected: 6, Removed: 1}},
	} {
		testkit.Same(t, test.nodes.Sentence(stored), test.want, "the sentence")
	}
}

// A code without words would be missing from a sentence.
func TestNoCodeIsMissing(t *testing.T) {
	for code := triage.Treating; code < triage.Healthy; code++ {
		if got := nodes(3, triage.Reason{Code: code}).Sentence(stored); got == "3 nodes, all healthy" || got == "1 node due: "+code.String() {
			t.Errorf("%s has no words: %s", code, got)
		}
	}
}

func TestTheSentenceHasCurrentNumbers(t *testing.T) {
	n := nodes(7, triage.Reason{Code: triage.GateClosed, Have: 4, Of: 7, Limit: 3})
	current := func(_ string, reason triage.Reason) triage.Reason { reason.Have = 5; return reason }
	testkit.Same(t, n.Sentence(current), "5 of 7 nodes unhealthy, at most 3 allowed: no new remediation starts", "the sentence")
	changed := func(_ string, reason triage.Reason) triage.Reason {
		reason.Code, reason.Have = triage.Treating, 5
		return reason
	}
	testkit.Same(t, n.Sentence(changed), "5 of 7 nodes unhealthy, at most 3 allowed: no new remediation starts", "the sentence of a state that is about to end")
}

func TestStatesDoNotOverlap(t *testing.T) {
	n := nodes(5, triage.Reason{Code: triage.Treating}, triage.Reason{Code: triage.Pending}, triage.Reason{Code: triage.Deselected})
	n.Removed = 1
	other := nodes(2, triage.Reason{Code: triage.Pending})
	n.Merge(other)
	want := map[string]int{"Healthy": 4, "Treating": 1, "Pending": 2, "Deselected": 1, "Removed": 1}
	if got := n.States(); !maps.Equal(got, want) {
		t.Errorf("the states are %v, want %v", got, want)
	}
}
