package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Of the two watches one is always ahead, and it may be either.
func TestTheWatchesOfNodesAndClaimsMayTellInAnyOrder(t *testing.T) {
	for name, order := range map[string][]string{"claims first": {"claims", "nodes"}, "nodes first": {"nodes", "claims"}} {
		t.Run(name, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.pool("default", ofAtMost("1"))
				for _, node := range []string{"a", "b"} {
					h.world.launch(node, "default")
				}
				for _, watch := range order {
					h.hears(watch)
				}
				h.breaks(corev1.ConditionTrue, "a", "b")
				h.passes(10 * time.Minute)
				h.terminates("a")
				h.world.removeNode("a")
				h.world.removeClaim("claim-a")
				for _, watch := range order {
					h.hears(watch)
					if h.rests("b"); h.taken("default") != 1 {
						t.Errorf("%d places are taken after the watch of %s has told", h.taken("default"), watch)
					}
				}
				h.turns()
				h.world.launch("c", "default")
				for _, watch := range order {
					h.hears(watch)
				}
				h.wants("b", terminateClaim)
			})
		})
	}
}

// Between two looks a claim may be marked, deleted and gone, and the report may come later
// than all of it.
func TestAClaimThatIsGoneBeforeAnybodySawItsMark(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.passes(10 * time.Minute)
		h.turns()
		r := h.begins("a")
		h.world.carryOut(r, how{})
		h.world.removeClaim("claim-a")
		h.hears()
		h.handleTaskResult(r)
		h.goesOn()
		if h.rests("b"); h.taken("default") != 1 || h.treatments["a"].granted.Object == "" {
			t.Errorf("%d places are taken, and the page names %+v", h.taken("default"), h.treatments["a"].granted)
		}
	})
}

// A claim that is gone takes its node along, as a rule. Nobody waits for the exception
// for ever.
func TestANodeThatStaysWithoutItsClaimKeepsItsPlaceForAWhile(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.passes(10 * time.Minute)
		h.terminates("a")
		h.world.removeClaim("claim-a")
		h.hears()
		heir := h.heir()
		for who, h := range map[string]*hall{"the same": h, "an heir": heir} {
			h.rests("a")
			h.rests("b")
			if h.taken("default") != 1 {
				t.Errorf("%s: %d places are taken", who, h.taken("default"))
			}
		}
		pass(triage.ReplacementWait - time.Second)
		for who, h := range map[string]*hall{"the same": h, "an heir": heir} {
			if due := h.goesOn(); due.After(time.Now().Add(time.Second)) {
				t.Errorf("%s: the next look is at %v", who, due)
			}
			h.rests("b")
		}
		pass(time.Second)
		for _, h := range []*hall{h, heir} {
			h.goesOn()
			h.wants("b", terminateClaim)
			if is := h.finding(triage.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "no NodeClaim has its provider ID") {
				t.Errorf("what is said of it: %v", is)
			}
		}
	})
}

// A kubelet that comes back under another name leaves a node that nobody reports for. To
// delete the machine for it would take the healthy one away.
func TestAMachineWithTwoNodesIsLeftAlone(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(10 * time.Minute)
		h.wants("a", terminateClaim)
		renamed := h.world.nodes["a"].DeepCopy()
		renamed.Name, renamed.UID = "renamed", "uid-of-renamed"
		renamed.Status.Conditions[1].Status = corev1.ConditionFalse
		h.world.storeNode(renamed)
		h.hears()
		h.rests("a")
		if is := h.finding(triage.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "nodes a and renamed have one provider ID, kwok://a") {
			t.Errorf("what is said of it: %v", is)
		}
		h.world.removeNode("renamed")
		h.hears()
		h.wants("a", terminateClaim)
	})
}

func TestTwoClaimsWithOneProviderIDAreLeftAlone(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		second := h.world.claims["claim-a"].DeepCopy()
		second.Name, second.UID = "second", "uid-of-second"
		h.world.storeClaim(second)
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(10 * time.Minute)
		h.rests("a")
		if is := h.finding(triage.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "NodeClaims claim-a and second have one provider ID, kwok://a") {
			t.Errorf("what is said of it: %v", is)
		}
		h.world.changeClaim("second", func(c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://other" })
		h.hears()
		h.terminates("a")
		h.world.changeClaim("second", func(c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://a" })
		h.hears()
		if h.taken("default") != 1 {
			t.Error("what is under way is forgotten since there is another claim")
		}
	})
}

// The provider ID of a claim comes with its machine, and that of a node with its kubelet.
func TestAClaimFindsItsNodeWhenItHasAProviderID(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "b", "c")
		h.world.launch("a", "default", func(n *corev1.Node, c *karpenter.NodeClaim) { c.Status.ProviderID, n.Spec.ProviderID = "", "" })
		h.hears()
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(10 * time.Minute)
		h.rests("a")
		h.world.changeNode("a", func(n *corev1.Node) { n.Spec.ProviderID = "kwok://a" })
		h.hears()
		h.rests("a")
		h.world.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://a" })
		h.hears()
		h.wants("a", terminateClaim)
		h.world.removeClaim("claim-a")
		h.hears()
		h.rests("a")
		c := &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-a", UID: "another", Labels: h.world.nodes["a"].Labels}, Status: karpenter.NodeClaimStatus{ProviderID: "kwok://a"}}
		h.world.storeClaim(c)
		h.hears()
		h.terminates("a")
	})
}

// A mark that somebody has spoiled is told of once, however often its claim is written.
func TestAnUnreadableMarkIsToldOnce(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		spoil := func(text string) {
			h.world.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.Annotations = map[string]string{ownership.MarkAnnotation: text} })
			h.hears()
			for range 3 { // Karpenter writes on
				h.world.changeClaim("claim-a", sets("Drifted", "", metav1.ConditionTrue))
				h.hears()
			}
		}
		spoil("{")
		if n := h.lines("mark unreadable"); n != 1 {
			t.Errorf("it is told %d times:\n%s", n, &h.log)
		}
		spoil("[")
		if n := h.lines("mark unreadable"); n != 2 {
			t.Errorf("with the next one it is told %d times:\n%s", n, &h.log)
		}
		if n := h.heir().lines("mark unreadable"); n != 1 {
			t.Errorf("an heir tells it %d times", n)
		}
	})
}
