package repair

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/triage"
)

// An entry that has ended is removed from the ledger, because the next leader would keep a
// slot for it. The tests of terminations cover entries of machines.
func TestAnEndedEntryLeavesTheLedger(t *testing.T) {
	t.Run("the remediation of a plain node", func(t *testing.T) {
		withStaticNodes(t, func(h *nodePoolFixture) {
			h.remediates("quick")
			h.breaks(corev1.ConditionTrue, "a")
			h.advance(10 * time.Minute)
			h.begun("a")
			if h.named("a") == nil {
				t.Fatal("the ledger does not name it")
			}
			if h.writeSnapshot(); h.named("a") != nil {
				t.Errorf("the ledger is %+v", h.api.page)
			}
		})
	})
	t.Run("a cancelled launch failure", func(t *testing.T) {
		withNodePools(t, func(h *nodePoolFixture) {
			h.pool("bad", nil)
			h.launches("bad", "x", "y", "z")
			h.lapse("bad", "a")
			h.writeSnapshot()
			h.runs("a", how{second: treat.Refused})
			h.api.page = slices.DeleteFunc(h.api.page, func(e ledger.Entry) bool { _, is := e.(ledger.ObjectWrite); return is })
			h = h.successor(timed) // which reads the rest from the mark
			h.writeSnapshot()
			h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
			h.deliver()
			h.advance(time.Minute)
			if e := enginetest.EntriesOf[ledger.LaunchFailures](h.api.page); len(e) != 1 || e[0].Failed != 1 {
				t.Fatalf("the ledger is %+v", h.api.page)
			}
			h.runs("a", how{})
			if h.writeSnapshot(); len(h.api.page) != 0 {
				t.Errorf("the ledger is %+v", h.api.page)
			}
		}, timed)
	})
}

// The number by which a successor recognizes a replacement changes when a ready node replaces
// another node. The ledger is written for that alone.
func TestTheLedgerHasTheCurrentNumberOfReadyNodes(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("2"))
		h.launches("default", "a", "b", "c", "x", "y")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.terminates("a")
		h.breaks(corev1.ConditionTrue, "b")
		h.advance(10 * time.Minute)
		h.terminates("b")
		h.goes("b")
		h.writeSnapshot()
		needed := func() int {
			entries := enginetest.EntriesOf[ledger.DeletedNode](h.api.page)
			if len(entries) != 1 || entries[0].Node != "b" {
				t.Fatalf("the ledger is %+v", h.api.page)
			}
			return entries[0].ReadyNeeded
		}
		before := needed()
		h.launches("default", "d") // replaces a, which is the older and still there
		if h.writeSnapshot(); needed() != before+1 {
			t.Errorf("%d nodes are needed before, and %d after a node has replaced another one", before, needed())
		}
	})
}

// An unreadable mark is not overwritten: another version may have written it and may be
// about to delete the claim.
func TestAnUnknownMarkKeepsTheNode(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, ownership.MarkAnnotation, `{"version":7,"rule":"Rightsizing/x","node":"a","nodeUID":"uid-of-a","since":"2026-11-15T12:00:00Z"}`)
		})
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.WantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "remove it to have the node repaired") {
			t.Errorf("it is reported that %v", is)
		}
		if got := enginetest.Value(t, h.Metrics, "autohealer_unknown_stored", "mark"); got != 1 {
			t.Errorf("%v unknown marks are counted", got)
		}
		h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { delete(c.Annotations, ownership.MarkAnnotation) })
		h.deliver()
		h.WantTask("a", nodeclaim.TerminateClaim)
		if got := enginetest.Value(t, h.Metrics, "autohealer_unknown_stored", "mark"); got != 0 {
			t.Errorf("%v unknown marks are counted when there is none", got)
		}
	})
}
