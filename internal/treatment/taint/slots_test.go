package taint

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// version returns a version of a node with a UID.
func version(name, version string) *corev1.Node {
	node := enginetest.Named(name, version)
	node.UID = "u"
	return node
}

// The entry of a taint that was placed leaves the ledger within TidyAfter: it does not
// mislead the next leader.
func TestTheEntryOfATaintLeavesTheLedger(t *testing.T) {
	open(t, func(c *fixture) {
		c.Restore([]ledger.Entry{ledger.NodeWrite{Slot: ledger.Slot{Rule: ownership.Rule(setRule("set")), Node: "a", UID: "u"}, ResourceVersion: "1"}})
		c.deliver(version("a", "1"))
		if entries, due := c.Snapshot(); entries != nil || !due.IsZero() {
			t.Fatalf("while it may be placed, the ledger is %+v, due %v", entries, due)
		}
		c.deliver(version("a", "2"))
		for range 3 { // every round asks
			if entries, due := c.Snapshot(); entries != nil || time.Until(due) <= 0 {
				t.Fatalf("the ledger is %+v, due %v", entries, due)
			}
			enginetest.Pass(engine.TidyAfter / 4)
		}
		enginetest.Pass(engine.TidyAfter / 4)
		if entries, _ := c.Snapshot(); entries == nil || len(entries) != 0 {
			t.Errorf("the ledger is %+v", entries)
		}
	})
}

// NoExecute taints are written only after the ledger has stored the slots of all their
// rules. Until then their problem is that of the ledger.
func TestATaintWaitsForTheLedger(t *testing.T) {
	open(t, func(c *fixture) {
		rules := []triage.RuleID{setRule("a"), setRule("b")}
		for _, rule := range rules {
			testkit.Must(t, c.Core().SetRule(time.Now(), triage.Rule{
				ID:       rule,
				Stage:    "Toy",
				When:     triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
				Response: triage.Response{Taint: &triage.TaintResponse{Key: rule.Name, Effect: triage.NoExecute}},
			}))
		}
		node := version("a", "1")
		node.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		wr := c.deliver(node)
		problem := func() string {
			_, delay := c.taints.Problem(wr.node, rules[0])
			return delay
		}
		c.taints.Start(t.Context(), time.Now())
		if entries, _ := c.Snapshot(); len(entries) != len(rules) || wr.progress != engine.AwaitingLedger || problem() != "" {
			t.Fatalf("the write is in progress %d, the snapshot is %+v, the problem %q", wr.progress, entries, problem())
		}
		testkit.Must(t, c.Stored(apierrors.NewRequestEntityTooLargeError("for a test")))
		if !strings.Contains(problem(), "not written yet: ") || !strings.Contains(problem(), "too large") || wr.progress != engine.AwaitingLedger {
			t.Errorf("the write is in progress %d, and its problem is %q", wr.progress, problem())
		}
		enginetest.Pass(engine.LastRetry)
		if entries, _ := c.Snapshot(); len(entries) != len(rules) {
			t.Fatalf("the next snapshot is %+v", entries)
		}
		testkit.Must(t, c.Stored(nil))
		if wr.progress != engine.Queued || problem() != "" || !wr.granted.covers(&treat.Change{Node: version("a", "1"), Takes: rules}) {
			t.Errorf("the write is in progress %d with %+v, and its problem is %q", wr.progress, wr.granted, problem())
		}
	})
}

// While the rails limit how many nodes are closed, a taint that is weaker than NoExecute waits
// for the ledger as well. The next leader counts the node as closed until the write can no
// longer arrive.
func TestATaintThatClosesANodeWaitsForTheLedger(t *testing.T) {
	rule := triage.Rule{
		ID:       setRule("disk"),
		Stage:    "Toy",
		When:     triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "disk", Effect: triage.NoSchedule}},
	}
	one := triage.Rails{Unschedulable: &triage.Limit{Number: 1}}
	broken := func(name string) *corev1.Node {
		node := version(name, "1")
		node.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		return node
	}
	var stored []ledger.Entry
	open(t, func(c *fixture) {
		testkit.Must(t, c.Core().SetRails(time.Now(), one))
		testkit.Must(t, c.Core().SetRule(time.Now(), rule))
		wr := c.deliver(broken("a"))
		c.taints.Start(t.Context(), time.Now())
		stored, _ = c.Snapshot()
		want := ledger.NodeWrite{Slot: engine.SlotOf(rule.ID, wr.node.Object), ResourceVersion: "1", Closes: true}
		if len(stored) != 1 || stored[0] != ledger.Entry(want) || wr.progress != engine.AwaitingLedger {
			t.Fatalf("the write is in progress %d, the snapshot is %+v", wr.progress, stored)
		}
		testkit.Must(t, c.Stored(nil))
		if wr.progress != engine.Queued {
			t.Errorf("the write is in progress %d", wr.progress)
		}
	})
	open(t, func(c *fixture) {
		testkit.Must(t, c.Core().SetRails(time.Now(), one))
		testkit.Must(t, c.Core().SetRule(time.Now(), rule))
		c.Restore(stored)
		healthy := version("a", "1")
		testkit.Must(t, c.NodeInbox().Update(healthy))
		other := c.deliver(broken("b"))
		plan := func() triage.Plan { return testkit.Value(c.planOf("b")).Must(t) }
		if p := plan(); len(p.Taints) != 0 || p.Reason.Code != triage.MaxUnschedulable || other.progress != engine.Idle {
			t.Fatalf("while the write to a may arrive, the plan of b is %+v", p)
		}
		c.deliver(version("a", "2"))
		c.taints.Start(t.Context(), time.Now())
		if p := plan(); len(p.Taints) != 1 {
			t.Errorf("when the write to a cannot arrive any more, the plan of b is %+v", p)
		}
	})
}
