package triage_test

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A zone fails, and the next process leads before a treatment is due. It has not seen the nodes
// ready, and holds their treatments nevertheless, because they failed long after their creation.
// Nodes that fail soon after their creation may still be starting: they count when they are due.
func TestACorrelatedFailureOutlivesALeader(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, of := range map[string]struct {
		age  time.Duration // of the nodes when the first failed
		want triage.Code
	}{
		"old nodes": {15 * time.Minute, triage.CorrelatedFailed},
		"new nodes": {14 * time.Minute, triage.Treating},
	} {
		t.Run(name, func(t *testing.T) {
			core := triage.New()
			testkit.Must(t, core.SetRails(now, triage.Rails{CorrelatedFailure: &triage.CorrelatedFailure{
				Threshold: triage.Limit{Number: 50, Percent: true}, MinNodes: 3, Window: 5 * time.Minute, Labels: []string{"zone"},
			}}))
			testkit.Must(t, core.SetRule(now, triage.Rule{
				ID: triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "a"}, Stage: policykind.StageRemediate, When: triage.When{Signals: []triage.Signal{{Condition: triage.Ready, Status: triage.False, For: time.Minute}}},
				Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate}}},
			}))
			for i, node := range []string{"a", "b", "c"} {
				failed := now.Add(time.Duration(i-3) * 10 * time.Second)
				core.Observe(now, triage.Node{
					Name: node, UID: node, Created: now.Add(-30 * time.Second).Add(-of.age), Labels: map[string]string{"zone": "x"},
					Conditions: []triage.Condition{{Type: triage.Ready, Status: triage.False, Transition: failed}},
				})
			}
			core.Loaded(now)
			core.Advance(now.Add(30 * time.Second)) // the first is due
			plan, _ := core.Plan("a")
			testkit.Same(t, plan.Findings[0].Code, of.want, "what the core says of the first node")
		})
	}
}
