package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// What an heir makes of a termination that the page names, by how far it has come.
func TestATerminationIsInheritedInEveryState(t *testing.T) {
	mark := func(h *hall) { h.world.carryOut(h.begins("a"), how{first: treat.Unknown, unanswered: true}) }
	both := func(h *hall) { h.world.carryOut(h.begins("a"), how{}) }
	for name, test := range map[string]struct {
		happens func(h *hall)
		next    taskKind // about a
		taken   int
	}{
		"nothing was sent": {func(*hall) {}, terminateClaim, 1},
		"nothing was sent, and the claim is another version": {func(h *hall) {
			h.world.changeClaim("claim-a", func(*karpenter.NodeClaim) {})
		}, terminateClaim, 1},
		"nothing was sent, and the node has recovered": {func(h *hall) {
			h.world.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
		}, nothing, 1}, // it may be marked yet
		"another version, and the node has recovered": {func(h *hall) {
			h.world.changeClaim("claim-a", func(*karpenter.NodeClaim) {})
			h.world.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
		}, nothing, 0},
		"marked": {mark, terminateClaim, 1},
		"marked, and the node has recovered": {func(h *hall) {
			mark(h)
			h.world.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
		}, cancelTermination, 1},
		"deleted": {both, nothing, 1},
		"deleted, and the claim is gone": {func(h *hall) {
			both(h)
			h.world.removeClaim("claim-a")
		}, nothing, 1},
		"deleted, and the node is gone": {func(h *hall) {
			both(h)
			h.world.removeNode("a")
		}, nothing, 1},
		"deleted, and both are gone": {func(h *hall) {
			both(h)
			h.world.removeNode("a")
			h.world.removeClaim("claim-a")
		}, nothing, 1},
		"deleted, and another node has the name": {func(h *hall) {
			both(h)
			h.world.removeNode("a")
			h.world.removeClaim("claim-a")
			h.world.launch("a", "default", unready, func(n *corev1.Node, c *karpenter.NodeClaim) {
				n.UID, c.Name, c.UID = "another", "another", "another"
				n.Spec.ProviderID, c.Status.ProviderID = "kwok://another", "kwok://another"
			})
		}, nothing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.t = t
				h.sicken("b")
				h.turns()
				page := slices.Clone(h.world.page)
				test.happens(h)
				heir := h.heir()
				next := nothing
				if b := heir.treatments["a"]; b != nil {
					if e, _ := heir.nextTask(time.Now(), b); e != nil {
						next = e.kind
					}
				}
				if next != test.next {
					t.Errorf("errand %d is next, want %d; the log:\n%s", next, test.next, &heir.log)
				}
				isTaken := slices.ContainsFunc(heir.core.Grants(), func(g triage.Grant) bool { return g.Node == "a" && g.UID == "uid-of-a" })
				if isTaken != (test.taken > 0) {
					t.Errorf("it is in repair: %t: %+v", isTaken, heir.core.Grants())
				}
				if heir.taken("default") != 1 { // by a, or by b in its place
					t.Errorf("%d places are taken", heir.taken("default"))
				}
				// And whoever comes after the heir before it has written anything.
				again := heir.heir()
				if again.world.page = page; again.taken("default") != 1 {
					t.Errorf("%d places are taken after another change", again.taken("default"))
				}
			})
		})
	}
}

// An heir of an heir goes by the time at which the node went, and not by when it looked.
func TestTheTimeOfADepartureIsInherited(t *testing.T) {
	openHall(t, func(h *hall) {
		h.sicken()
		h.terminates("a")
		h.goes("a")
		gone := time.Now()
		h.turns()
		for range 3 {
			pass(4 * time.Minute)
			h = h.heir()
			h.turns()
			if all := h.core.Departures(); len(all) != 1 || all[0].Gone.Sub(gone) > clockSkew {
				t.Errorf("the departures are %+v, and it went at %v", all, gone)
			}
		}
	})
}
