package repair

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Either of the two watches may be ahead.
func TestWatchesOfNodesAndClaimsInAnyOrder(t *testing.T) {
	for name, order := range map[string][]string{"claims first": {"claims", "nodes"}, "nodes first": {"nodes", "claims"}} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.pool("default", ofAtMost("1"))
				for _, node := range []string{"a", "b"} {
					h.api.launch(node, "default")
				}
				for _, watch := range order {
					h.deliver(watch)
				}
				h.breaks(corev1.ConditionTrue, "a", "b")
				h.advance(10 * time.Minute)
				h.terminates("a")
				h.api.removeNode("a")
				h.api.removeClaim("claim-a")
				for _, watch := range order {
					h.deliver(watch)
					if h.WantNoTask("b"); h.taken("default") != 1 {
						t.Errorf("%d slots are taken after the watch of %s has reported", h.taken("default"), watch)
					}
				}
				h.writeSnapshot()
				h.api.launch("c", "default")
				for _, watch := range order {
					h.deliver(watch)
				}
				h.WantTask("b", nodeclaim.TerminateClaim)
			})
		})
	}
}

// A claim may be marked, deleted and gone before the watch and the task report it.
func TestAClaimDeletedBeforeItsMarkWasSeen(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.advance(10 * time.Minute)
		h.writeSnapshot()
		r := h.begins("a")
		h.api.carryOut(r, how{})
		h.api.removeClaim("claim-a")
		h.deliver()
		h.Finish(r)
		h.runRound()
		if h.WantNoTask("b"); h.taken("default") != 1 || !h.FindNodeTasks("a").HasSlot() {
			t.Errorf("%d slots are taken, and the ledger names %+v", h.taken("default"), h.FindNodeTasks("a").Slot())
		}
	})
}

// The node of a deleted claim usually goes. The slot is freed after a while if it does
// not.
func TestANodeThatOutlivesItsClaimKeepsItsSlotForAWhile(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.advance(10 * time.Minute)
		h.terminates("a")
		h.api.removeClaim("claim-a")
		h.deliver()
		successor := h.successor()
		for leader, h := range map[string]*nodePoolFixture{"the same": h, "a successor": successor} {
			h.WantNoTask("a")
			h.WantNoTask("b")
			if h.taken("default") != 1 {
				t.Errorf("%s: %d slots are taken", leader, h.taken("default"))
			}
		}
		enginetest.Pass(triage.ReplacementWait - time.Second)
		for leader, h := range map[string]*nodePoolFixture{"the same": h, "a successor": successor} {
			if due := h.runRound(); due.After(time.Now().Add(time.Second)) {
				t.Errorf("%s: the next look is at %v", leader, due)
			}
			h.WantNoTask("b")
		}
		enginetest.Pass(time.Second)
		for _, h := range []*nodePoolFixture{h, successor} {
			h.runRound()
			h.WantTask("b", nodeclaim.TerminateClaim)
			if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "no NodeClaim has its provider ID") {
				t.Errorf("what is said of it: %v", is)
			}
		}
	})
}

// A kubelet that returns under another name leaves a stale Node. Deleting the claim for
// it would remove the healthy node.
func TestAClaimWithTwoNodesIsNotTerminated(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.WantTask("a", nodeclaim.TerminateClaim)
		renamed := h.api.nodes["a"].DeepCopy()
		renamed.Name, renamed.UID = "renamed", "uid-of-renamed"
		renamed.Status.Conditions[1].Status = corev1.ConditionFalse
		h.api.storeNode(renamed)
		h.deliver()
		h.WantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "nodes a and renamed have one provider ID, kwok://a") {
			t.Errorf("what is said of it: %v", is)
		}
		h.api.removeNode("renamed")
		h.deliver()
		h.WantTask("a", nodeclaim.TerminateClaim)
	})
}

func TestTwoClaimsWithOneProviderIDAreNotTerminated(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		second := h.api.claims["claim-a"].DeepCopy()
		second.Name, second.UID = "second", "uid-of-second"
		h.api.storeClaim(second)
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.WantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "NodeClaims claim-a and second have one provider ID, kwok://a") {
			t.Errorf("what is said of it: %v", is)
		}
		h.api.changeClaim("second", func(c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://other" })
		h.deliver()
		h.terminates("a")
		h.api.changeClaim("second", func(c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://a" })
		h.deliver()
		if h.taken("default") != 1 {
			t.Error("what is under way is forgotten since there is another claim")
		}
	})
}

// A claim gets its provider ID with its instance, and a node with its kubelet.
func TestAClaimFindsItsNodeWhenItHasAProviderID(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "b", "c")
		h.api.launch("a", "default", func(n *corev1.Node, c *karpenter.NodeClaim) { c.Status.ProviderID, n.Spec.ProviderID = "", "" })
		h.deliver()
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.WantNoTask("a")
		h.api.changeNode("a", func(n *corev1.Node) { n.Spec.ProviderID = "kwok://a" })
		h.deliver()
		h.WantNoTask("a")
		h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://a" })
		h.deliver()
		h.WantTask("a", nodeclaim.TerminateClaim)
		h.api.removeClaim("claim-a")
		h.deliver()
		h.WantNoTask("a")
		c := &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-a", UID: "another", Labels: h.api.nodes["a"].Labels}, Status: karpenter.NodeClaimStatus{ProviderID: "kwok://a"}}
		h.api.storeClaim(c)
		h.deliver()
		h.terminates("a")
	})
}

// An unreadable mark is logged once, however often its claim changes.
func TestAnUnreadableMarkIsLoggedOnce(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		spoil := func(text string) {
			h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.Annotations = map[string]string{ownership.MarkAnnotation: text} })
			h.deliver()
			for range 3 { // Karpenter changes the claim
				h.api.changeClaim("claim-a", sets("Drifted", "", metav1.ConditionTrue))
				h.deliver()
			}
		}
		spoil("{")
		if n := h.Lines("mark unreadable"); n != 1 {
			t.Errorf("it is reported %d times:\n%s", n, &h.Log)
		}
		spoil("[")
		if n := h.Lines("mark unreadable"); n != 2 {
			t.Errorf("with the next one it is reported %d times:\n%s", n, &h.Log)
		}
		if n := h.successor().Lines("mark unreadable"); n != 1 {
			t.Errorf("a successor tells it %d times", n)
		}
	})
}
