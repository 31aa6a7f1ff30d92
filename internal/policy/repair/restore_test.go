package repair

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// A new leader resumes a termination from the ledger in every state.
func TestATerminationIsRestoredInEveryState(t *testing.T) {
	mark := func(h *nodePoolFixture) { h.api.carryOut(h.begins("a"), how{first: treat.Unknown, unanswered: true}) }
	both := func(h *nodePoolFixture) { h.api.carryOut(h.begins("a"), how{}) }
	for name, test := range map[string]struct {
		happens func(h *nodePoolFixture)
		next    string // for node a
		taken   int
	}{
		"nothing was sent": {func(*nodePoolFixture) {}, nodeclaim.TerminateClaim, 1},
		"nothing was sent, and the claim is another version": {func(h *nodePoolFixture) {
			h.api.changeClaim("claim-a", func(*karpenter.NodeClaim) {})
		}, nodeclaim.TerminateClaim, 1},
		"nothing was sent, and the node has recovered": {func(h *nodePoolFixture) {
			h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
		}, nothing, 1}, // the mark may still arrive
		"another version, and the node has recovered": {func(h *nodePoolFixture) {
			h.api.changeClaim("claim-a", func(*karpenter.NodeClaim) {})
			h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
		}, nothing, 0},
		"marked": {mark, nodeclaim.TerminateClaim, 1},
		"marked, and the node has recovered": {func(h *nodePoolFixture) {
			mark(h)
			h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
		}, nodeclaim.CancelTermination, 1},
		"deleted": {both, nothing, 1},
		"deleted, and the claim is gone": {func(h *nodePoolFixture) {
			both(h)
			h.api.removeClaim("claim-a")
		}, nothing, 1},
		"deleted, and the node is gone": {func(h *nodePoolFixture) {
			both(h)
			h.api.removeNode("a")
		}, nothing, 1},
		"deleted, and both are gone": {func(h *nodePoolFixture) {
			both(h)
			h.api.removeNode("a")
			h.api.removeClaim("claim-a")
		}, nothing, 1},
		"deleted, and another node has the name": {func(h *nodePoolFixture) {
			both(h)
			h.api.removeNode("a")
			h.api.removeClaim("claim-a")
			h.api.launch("a", "default", unready, func(n *corev1.Node, c *karpenter.NodeClaim) {
				n.UID, c.Name, c.UID = "another", "another", "another"
				n.Spec.ProviderID, c.Status.ProviderID = "kwok://another", "kwok://another"
			})
		}, nothing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.makeUnhealthy("b")
				h.writeSnapshot()
				page := slices.Clone(h.api.page)
				test.happens(h)
				successor := h.successor()
				next := nothing
				if e, _ := successor.Next("a"); e != nil {
					next = e.Kind
				}
				if next != test.next {
					t.Errorf("task %q is next, want %q; the log:\n%s", next, test.next, &successor.Log)
				}
				isTaken := slices.ContainsFunc(successor.Core().Grants(), func(g triage.Grant) bool { return g.Node == "a" && g.UID == "uid-of-a" })
				if isTaken != (test.taken > 0) {
					t.Errorf("it is in repair: %t: %+v", isTaken, successor.Core().Grants())
				}
				if successor.taken("default") != 1 { // by a, or by b instead
					t.Errorf("%d slots are taken", successor.taken("default"))
				}
				// And another leader takes over before this one has written anything.
				again := successor.successor()
				if again.api.page = page; again.taken("default") != 1 {
					t.Errorf("%d slots are taken after another change", again.taken("default"))
				}
			})
		})
	}
}

// A replacement that became ready while no controller was running frees the slot. A node
// that is not ready does not.
func TestASuccessorRecognizesAReplacement(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Node, *karpenter.NodeClaim)
		taken  int
	}{
		"ready":     {func(*corev1.Node, *karpenter.NodeClaim) {}, 0},
		"not ready": {unready, 1},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.makeUnhealthy()
				h.terminates("a")
				h.goes("a")
				h.writeSnapshot()
				enginetest.Pass(time.Minute)
				h.api.launch("d", "default", test.change)
				testkit.Same(t, h.successor().taken("default"), test.taken, "slots taken")
			})
		})
	}
}

// A successor publishes the first Event about a finding again under the same name, so that the
// API server stores it once. Nodes have different names, and a finding that returns is stored
// again.
func TestASuccessorRepeatsNoEvent(t *testing.T) {
	published := func(h *nodePoolFixture) (events []treat.Event) {
		for _, e := range h.Events {
			if e.EventReason.IsFinding() {
				events = append(events, treat.Event{ID: e.ID, MayExist: e.MayExist})
			}
		}
		return events
	}
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a", "b")
		events := published(h)
		testkit.Require(t, len(events) == 2 && events[0].ID != events[1].ID && events[0].MayExist && events[1].MayExist, "the Events are %+v", events)
		testkit.Equal(t, "Events of a successor", events, published(h.successor()))
		h.advance(10 * time.Minute) // a is terminated, b has to wait
		h.terminates("a")
		after := published(h)[2:]
		testkit.Require(t, len(after) == 1 && after[0].ID != "" && !after[0].MayExist, "the Events after the toleration are %+v", after)
		successor := published(h.successor())
		testkit.Check(t, len(successor) == 1 && successor[0].ID == after[0].ID && successor[0].MayExist, "the Events of a successor are %+v, want %+v", successor, after)
	})
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a")
		h.pool("default", nil)
		h.pool("default", ofAtMost("1"))
		again := published(h)
		testkit.Check(t, len(again) == 2 && again[0].ID == again[1].ID && !again[1].MayExist, "the Events of a finding that returns are %+v", again)
	})
}

// A second successor still uses the time of the deletion, not the time of its own start.
func TestTheTimeOfARemovalIsRestored(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy()
		h.terminates("a")
		h.goes("a")
		gone := time.Now()
		h.writeSnapshot()
		for range 3 {
			enginetest.Pass(4 * time.Minute)
			h = h.successor()
			h.writeSnapshot()
			if all := h.Core().AwaitingReplacement(); len(all) != 1 || !all[0].Gone.Equal(gone) {
				t.Errorf("the departures are %+v, and it went at %v", all, gone)
			}
		}
	})
}

// A NodeClaim or a policy that a new leader cannot see may have a repair that counts. An API server
// that starts denies access for a while, and a missing right does not stop the leader for ever.
func TestANewLeaderWaitsForUnreadableKinds(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "", enginetest.ErrBroken)
	for name, deny := range map[string]func(h *nodePoolFixture, err error){
		"NodeClaims":     func(h *nodePoolFixture, err error) { h.claims.SetAvailability(err) },
		"RepairPolicies": func(h *nodePoolFixture, err error) { h.policies.SetAvailability(err) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, isAllowedSoon := range []bool{true, false} {
				enginetest.Run(t, func(c *enginetest.Fixture) {
					h := nodePoolFixtureIn(c.T, &fakeAPI{})
					deny(h, forbidden)
					h.runRound()
					h.advance(watch.BriefOutage - 1)
					testkit.Check(t, !h.IsLoaded(), "the new leader does not wait")
					if isAllowedSoon {
						deny(h, nil)
						h.runRound()
					} else {
						h.advance(1)
					}
					testkit.Check(t, h.IsLoaded(), "the new leader waits, allowed: %t", isAllowedSoon)
				})
			}
		})
	}
}
