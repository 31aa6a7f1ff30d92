package engine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestNodeFactsReceiveEveryNode(t *testing.T) {
	open(t, func(c *loopFixture) {
		c.cfg.NodeFacts = nodefacts.New()
		for _, name := range []string{"a", "b", "c"} {
			node := named(name, "1")
			node.Status.Conditions = []corev1.NodeCondition{{Type: "Disk", Status: corev1.ConditionTrue}}
			c.upsertNode(node, time.Now())
		}
		rule := triage.Rule{
			ID:       triage.RuleID{Kind: "Toy", Name: "set"},
			Stage:    "Toy",
			When:     triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
			Response: triage.Response{Taint: &triage.TaintResponse{Key: "disk", Effect: triage.NoSchedule}},
		}
		matches := func(want int) {
			t.Helper()
			if got, err := c.cfg.NodeFacts.Impact(rule); err != nil || got.Matching != want || got.Selected != want {
				t.Errorf("the node facts say %+v, %v; want %d nodes", got, err, want)
			}
		}
		matches(3)
		c.RemoveNode(time.Now(), c.nodeStates["a"])
		matches(2)
	})
}
