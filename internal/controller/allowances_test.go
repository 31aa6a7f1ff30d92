package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// timed has nodes of all pools have ten minutes to become ready.
func timed(cfg *RepairConfig) { cfg.ReadyTimeout = 10 * time.Minute }

func TestABudgetHoldsRepairsBack(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: "1"}))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.passes(10 * time.Minute)
		h.terminates("a")
		h.rests("b")
		if is := h.finding(triage.Repair, "b"); is.Code != triage.NotAllowed || !strings.Contains(is.String(), "NodePool default's disruption budget 1 allows 1, and 1 is being disrupted") {
			t.Errorf("what is said of b: %v", is)
		}
		h.goes("a")
		h.turns()
		h.wants("b", terminateClaim) // the claim is gone, and the bound leaves room
	})
}

// Somebody else's disruption counts, and when it is over that is noticed.
func TestABudgetCountsWhatKarpenterDoes(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: "1"}))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(9 * time.Minute)
		h.world.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionTrue))
		h.hears()
		h.passes(time.Minute)
		h.rests("a")
		h.world.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionFalse))
		h.hears()
		h.wants("a", terminateClaim)
		// And once more just before it goes.
		h.turns()
		h.world.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionTrue))
		h.hears()
		if sent := h.sends(); len(sent) > 0 {
			t.Errorf("%d are sent beside what Karpenter does", len(sent))
		}
		if b := h.treatments["a"]; b != nil && b.granted.Object != "" {
			t.Errorf("its place on the page is kept: %+v", b.granted)
		}
	})
}

// The time of a budget comes and goes by the clock alone. Nobody asks meanwhile.
func TestABudgetWithAScheduleChangesAtItsTime(t *testing.T) {
	openHall(t, func(h *hall) { // where it is midnight in 2000
		noon := "0 12 * * *"
		h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: "0", Schedule: &noon, Duration: "1h"}))
		h.launches("default", "a", "b", "c")
		h.passes(11*time.Hour + 55*time.Minute)
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(10 * time.Minute)
		h.rests("a")
		due := h.goesOn()
		if want := time.Date(2000, 1, 1, 13, 0, 0, 0, time.UTC); !due.Equal(want) {
			t.Errorf("the next look is at %v, want %v", due, want)
		}
		h.passes(time.Until(due))
		h.wants("a", terminateClaim)
	})
}

// lapse launches a node that does not become ready, and lets its time pass.
func (h *hall) lapse(pool string, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.world.launch(name, pool, unready)
	}
	h.hears()
	h.passes(10 * time.Minute)
}

func (h *hall) timeouts(pool string) triage.Population {
	counts, _ := h.core.Population(timeoutRule(pool))
	return counts
}

func TestAPoolWhoseNodesDoNotBecomeReadyIsHeld(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("bad", ofAtMost("5"))
		h.pool("good", nil)
		h.launches("good", "g1", "g2")
		for i := range maxLaunchFailures {
			name := fmt.Sprintf("a%d", i)
			if i == maxLaunchFailures-1 {
				h.world.launch("b", "bad", unready)
			}
			h.lapse("bad", name)
			h.terminates(name)
			h.goes(name)
			h.turns()
		}
		told := func() (n int) {
			for _, word := range h.events {
				if word.EventReason == treat.PoolHeld {
					n++
				}
			}
			return n
		}
		if told() != 1 {
			t.Errorf("it is told %d times that the pool is held", told())
		}
		h.rests("b")
		if is := h.finding(triage.ReadyTimeout, "b"); is.Code != triage.NotAllowed || !strings.Contains(is.String(), "NodePool bad is held: 3 nodes in a row have not become ready") {
			t.Errorf("what is said of the next: %v", is)
		}
		h.passes(time.Second)
		if n := testutil.ToFloat64(h.cfg.Metrics.poolHeld.WithLabelValues("bad")); n != 1 {
			t.Errorf("held is %v", n)
		}
		h.world.launch("g3", "good", unready, func(n *corev1.Node, _ *karpenter.NodeClaim) {
			n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		})
		h.hears()
		h.terminates("g3")
		heir := h.heir(timed)
		for who, h := range map[string]*hall{"the same": h, "an heir": heir} {
			if n := h.repairs.counts["bad"].failures.failed; n != maxLaunchFailures {
				t.Errorf("%s counts %d tries", who, n)
			}
			h.rests("b")
		}
		if due := h.goesOn(); !due.After(time.Now()) || h.repairs.counts["bad"].due.IsZero() {
			t.Fatalf("the next look is at %v", due)
		}
		h.passes(time.Until(h.repairs.counts["bad"].due))
		h.terminates("b")
		h.goes("b")
		h.turns()
		h.passes(time.Hour)
		// One that becomes ready ends it.
		h.launches("bad", "c")
		if h.repairs.counts["bad"].isHeld() || told() != 2 {
			t.Errorf("afterwards: %+v, told %d times", h.repairs.counts["bad"].failures, told())
		}
		h.lapse("bad", "d")
		h.wants("d", terminateClaim)
	}, timed)
}

// madeOf has the nodes of a pool be made of something.
func madeOf(hash string) func(*repairblock.Pool) {
	return func(p *repairblock.Pool) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, karpenter.HashAnnotation, hash)
	}
}

// holds has a pool be held.
func (h *hall) holds(pool string) {
	h.t.Helper()
	h.pool(pool, ofAtMost("5"), madeOf("1"))
	for i := range maxLaunchFailures {
		name := fmt.Sprintf("a%d", i)
		h.lapse(pool, name)
		h.terminates(name)
		h.goes(name)
		h.turns()
	}
	if !h.repairs.counts[pool].isHeld() {
		h.t.Fatalf("the pool is not held: %+v", h.repairs.counts[pool].failures)
	}
}

// lapsed is how a machine is launched whose time to become ready is over.
func lapsed(n *corev1.Node, c *karpenter.NodeClaim) {
	unready(n, c)
	n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
}

// releases returns the words with which it is told that a pool is held no more.
func (h *hall) releases() (words []string) {
	for _, word := range h.events {
		if word.EventReason == treat.PoolReleased {
			words = append(words, word.Message)
		}
	}
	return words
}

// A hold that has ended stays so, whoever leads, and however long after: what has ended
// it may be gone by then.
func TestAHoldThatHasEndedIsNotInherited(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(h *hall)
		words   string
	}{
		"a node becomes ready": {func(h *hall) {
			h.launches("bad", "good")
			h.turns()
			h.goes("good")
		}, "NodePool bad is held no more: NodeClaim claim-good has become ready"},
		"the template changes": {func(h *hall) {
			h.pool("bad", ofAtMost("5"), madeOf("2"))
		}, "NodePool bad is held no more: its template has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.t = t
				h.holds("bad")
				h.passes(2 * triage.ReplacementWait) // nobody keeps a place any more
				h.turns()
				test.happens(h)
				if got := h.releases(); !slices.Equal(got, []string{test.words}) {
					t.Errorf("it is told: %q", got)
				}
				h.turns()
				if entries, due := h.nextSnapshot(time.Now()); entries != nil || !due.IsZero() {
					t.Errorf("another page is to be written: %v, due %s", entries, due)
				}
				heir := h.heir(timed)
				h.world.launch("z", "bad", lapsed)
				for who, h := range map[string]*hall{"the same": h, "an heir": heir} {
					h.hears()
					if is := h.repairs.counts["bad"]; is.failures.failed != 0 {
						t.Errorf("%s counts %+v", who, is.failures)
					}
					h.wants("z", terminateClaim)
				}
				if got := heir.releases(); len(got) > 0 {
					t.Errorf("an heir tells it once more: %q", got)
				}
			}, timed)
		})
	}
}

// What ends a hold is noticed by an heir that did not see it happen.
func TestAnHeirNoticesWhatEndsAHold(t *testing.T) {
	for name, test := range map[string]struct {
		happens   func(h *hall) // while nobody leads
		afterward func(heir *hall)
		released  string
	}{
		"nothing": {},
		"a node becomes ready": {happens: func(h *hall) { h.world.launch("good", "bad") },
			released: "NodePool bad is held no more: NodeClaim claim-good has become ready"},
		"the template changes": {happens: func(h *hall) { h.remake("bad", madeOf("2")) },
			released: "NodePool bad is held no more: its template has changed"},
		"the template changes, and the pool is known later": {
			happens:   func(h *hall) { delete(h.repairs.pools, "bad") },
			afterward: func(heir *hall) { heir.pool("bad", ofAtMost("5"), madeOf("2")) },
			released:  "NodePool bad is held no more: its template has changed",
		},
		"something else of the pool changes": {happens: func(h *hall) {
			h.remake("bad", budgets(karpenter.Budget{Nodes: "5"}))
		}},
		"nobody has said what its nodes are made of": {
			happens:   func(h *hall) { h.remake("bad", madeOf("")) },
			afterward: func(heir *hall) { heir.pool("bad", ofAtMost("5"), madeOf("1")) },
		},
		"the page is one of before templates were named": {happens: func(h *hall) {
			for i := range h.world.page {
				h.world.page[i].Template = ""
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.t = t
				h.holds("bad")
				h.world.launch("z", "bad", lapsed)
				h.hears()
				h.rests("z")
				if test.happens != nil {
					test.happens(h)
				}
				heir := h.heir(timed)
				if test.afterward != nil {
					test.afterward(heir)
				}
				var want []string
				if test.released != "" {
					want = append(want, test.released)
				}
				if got := heir.releases(); !slices.Equal(got, want) {
					t.Errorf("it is told: %q, want %q", got, want)
				}
				if is := heir.repairs.counts["bad"]; is.isHeld() != (want == nil) {
					t.Errorf("the heir counts %+v", is.failures)
				}
				heir.turns()
				if want != nil {
					heir.wants("z", terminateClaim)
					return
				}
				heir.rests("z")
				for _, e := range heir.world.page {
					if e.Tries > 0 && e.Template != "1" {
						t.Errorf("the page says %+v", e)
					}
				}
			}, timed)
		})
	}
}

// remake changes a pool behind the back of the hall.
func (h *hall) remake(name string, change func(*repairblock.Pool)) {
	is := *h.repairs.pools[name]
	is.NodePool = is.DeepCopy()
	change(&is)
	h.repairs.pools[name] = &is
}

// A page that could not be written is written later, with what has ended meanwhile.
func TestTheEndOfAHoldOutlastsAPageThatFails(t *testing.T) {
	openHall(t, func(h *hall) {
		h.holds("bad")
		h.passes(2 * triage.ReplacementWait)
		h.turns()
		h.pool("bad", ofAtMost("5"), madeOf("2"))
		h.turnsNot()
		if !slices.ContainsFunc(h.world.page, func(e ledger.Entry) bool { return e.Tries > 0 }) {
			t.Fatal("the page has been written")
		}
		h.passes(time.Minute)
		h.turns()
		if slices.ContainsFunc(h.world.page, func(e ledger.Entry) bool { return e.Tries > 0 }) {
			t.Errorf("the page is %+v", h.world.page)
		}
	}, timed)
}

// turnsNot has the next page fail.
func (h *hall) turnsNot() {
	h.t.Helper()
	if entries, _ := h.nextSnapshot(time.Now()); entries == nil {
		h.t.Fatal("no page is to be written")
	}
	h.ledger.busy = true
	must(h.t, h.snapshotStored(errBroken))
	h.goesOn()
}

// A claim that changes before it is marked is asked for again, and a refusal is no try.
func TestATryIsCountedOnce(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("bad", nil)
		h.launches("bad", "x", "y", "z")
		h.lapse("bad", "a")
		tries := func() int { return h.repairs.counts["bad"].failures.failed }
		for range 5 {
			h.turns()
			h.world.changeClaim("claim-a", func(*karpenter.NodeClaim) {})
			h.runs("a", how{})
		}
		if tries() != 0 {
			t.Errorf("%d tries are counted before any was made", tries())
		}
		heir := h.heir(timed)
		if n := heir.repairs.counts["bad"].failures.failed; n != 0 {
			t.Errorf("an heir counts %d", n)
		}
		h.turns()
		if e := h.world.page[len(h.world.page)-1]; e.Tries != 1 {
			t.Errorf("the page says %+v", e)
		}
		h.runs("a", how{second: treat.Refused})
		if tries() != 1 {
			t.Errorf("%d tries are counted", tries())
		}
		if n := h.heir(timed).repairs.counts["bad"].failures.failed; n != 1 {
			t.Errorf("an heir counts %d", n)
		}
		h.world.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.hears()
		h.passes(time.Minute)
		h.runs("a", how{}) // spared
		if tries() != 0 || h.isMarked("a") {
			t.Errorf("%d tries are counted, and it is marked %t", tries(), h.isMarked("a"))
		}
	}, timed)
}

// The two rules of a pool share their bound.
func TestARepairAndATimeoutShareThePool(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.world.launch("c", "default", unready)
		h.hears()
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(10 * time.Minute)
		h.turns()
		both := h.sends()
		if len(both) != 1 {
			t.Fatalf("%d are sent", len(both))
		}
		for node := range both {
			h.runs(node, how{})
		}
		if h.taken("default") != 1 || h.timeouts("default").Pooled != 1 {
			t.Errorf("%d and %d are taken", h.taken("default"), h.timeouts("default").Pooled)
		}
		h.turns()
		if sent := h.sends(); len(sent) > 0 {
			t.Errorf("%d are sent beside it", len(sent))
		}
	}, timed)
}

// What is counted step by step is what one would count who looks at everything.
// A claim gives up the provider ID that it shares with another. The node has started by
// what the other one says, and the other one is counted anew.
func TestAClaimIsCountedAnewWhenAnotherGivesUpItsProviderID(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("p", nil)
		h.world.launch("a", "p", unready)
		h.world.launch("b", "p")
		names := func(claim, id string) {
			h.world.changeClaim(claim, func(c *karpenter.NodeClaim) { c.Status.ProviderID = id })
			h.hears()
		}
		names("claim-b", "kwok://a")
		h.world.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.hears()
		names("claim-a", "")
		if starting := h.repairs.counts["p"].starting; !h.nodeStates["a"].started || starting != 0 {
			t.Errorf("the node has started: %v, and %d count as starting", h.nodeStates["a"].started, starting)
		}
	}, timed)
}

func TestHeadcountsAreWhatARecountSays(t *testing.T) {
	pools := []string{"p", "q"}
	changes := 0
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rt, func(t *testing.T) {
			t.Helper()
			h := newHall(t, timed)
			s := &history{hall: h, rt: rt, out: map[string]*taskResult{}, hits: &hits{}}
			for _, pool := range pools {
				h.pool(pool, ofAtMost("100%"))
			}
			for i := range rapid.IntRange(5, 60).Draw(rt, "acts") {
				anyOf := func() string { return some(rt, h.world.nodes, func(*corev1.Node) bool { return true }) }
				anyClaim := func() string {
					return some(rt, h.world.claims, func(*karpenter.NodeClaim) bool { return true })
				}
				switch rapid.SampledFrom([]string{"launch", "launch", "unready", "sicken", "sicken", "pool", "id", "disrupt", "reboot", "deleting", "terminating", "drop node", "drop claim", "hear", "hear nodes", "hear claims", "pass", "work", "work", "recover"}).Draw(rt, "act") {
				case "launch":
					h.world.launch(fmt.Sprint("n", i), rapid.SampledFrom(pools).Draw(rt, "pool"))
				case "unready":
					h.world.launch(fmt.Sprint("n", i), rapid.SampledFrom(pools).Draw(rt, "pool"), unready)
				case "sicken":
					if name := anyOf(); name != "" {
						h.world.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionTrue })
					}
				case "pool":
					if name := anyClaim(); name != "" {
						h.world.changeClaim(name, func(c *karpenter.NodeClaim) {
							c.Labels = map[string]string{karpenter.NodePoolLabel: rapid.SampledFrom(pools).Draw(rt, "pool")}
						})
					}
				case "id":
					if name := anyClaim(); name != "" {
						h.world.changeClaim(name, func(c *karpenter.NodeClaim) {
							c.Status.ProviderID = rapid.SampledFrom([]string{"", "kwok://n0", "kwok://n1", "kwok://n2"}).Draw(rt, "id")
						})
					}
				case "disrupt":
					if name := anyClaim(); name != "" {
						h.world.changeClaim(name, sets(karpenter.DisruptionReason, "Drifted", rapid.SampledFrom([]metav1.ConditionStatus{"True", "False"}).Draw(rt, "status")))
					}
				case "reboot":
					if name := anyClaim(); name != "" {
						h.world.changeClaim(name, sets(karpenter.Rebooting, "", rapid.SampledFrom([]metav1.ConditionStatus{"True", "False"}).Draw(rt, "status")))
					}
				case "deleting":
					if name := anyClaim(); name != "" {
						h.world.changeClaim(name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
					}
				case "terminating":
					if name := anyClaim(); name != "" {
						h.world.changeClaim(name, sets(karpenter.InstanceTerminating, "", metav1.ConditionTrue))
					}
				case "drop node":
					if name := anyOf(); name != "" {
						h.world.removeNode(name)
					}
				case "drop claim":
					if name := anyClaim(); name != "" {
						h.world.removeClaim(name)
					}
				case "hear":
					h.hears()
				case "hear nodes":
					h.hears("nodes")
				case "hear claims":
					h.hears("claims")
				case "pass":
					h.passes(4 * time.Minute)
				case "work":
					h.turns()
					if node := some(rt, h.sends(), func(*task) bool { return true }); node != "" {
						h.runs(node, how{second: rapid.SampledFrom([]treat.Result{treat.Made, treat.Refused}).Draw(rt, "second")})
					}
				case "recover":
					if name := anyOf(); name != "" {
						h.world.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
						h.hears()
					}
				}
				changes += s.recount()
			}
		})
	})
	t.Logf("%d times somebody was going", changes)
	if changes == 0 {
		t.Error("nobody ever went: that proves nothing")
	}
}

// recount counts all claims that the loop knows anew, and says how many are going.
func (s *history) recount() (going int) {
	want := map[string]claimCounts{}
	for _, c := range s.nodeClaims.byName {
		if slices.ContainsFunc(c.Status.Conditions, func(row metav1.Condition) bool {
			return row.Type == "InstanceTerminating" && row.Status == "True"
		}) {
			continue
		}
		is := claimCounts{claims: 1}
		isGoing := c.DeletionTimestamp != nil || c.ended || c.Annotations["autohealer.resourcestack.com/repair"] != ""
		for _, row := range c.Status.Conditions {
			isGoing = isGoing || (row.Type == "DisruptionReason" || row.Type == "Rebooting") && row.Status == "True"
		}
		isInitialised := slices.ContainsFunc(c.Status.Conditions, func(row metav1.Condition) bool {
			return row.Type == "Rebooting" && row.Status == "True"
		})
		for _, p := range s.nodeStates {
			if c.Status.ProviderID == "" || p.node.Spec.ProviderID != c.Status.ProviderID {
				continue
			}
			isInitialised = isInitialised || p.node.Labels["karpenter.sh/initialized"] == "true"
			if !p.started {
				is.starting = 1
			}
			plan, _ := s.core.Plan(p.node.Name)
			if t := plan.Treatment; t != nil && (t.Rule.Kind == triage.Repair || t.Rule.Kind == triage.ReadyTimeout) {
				isGoing = true
				if t.Rule.Kind == triage.ReadyTimeout && c.Annotations["autohealer.resourcestack.com/repair"] == "" {
					is.trying = 1
				}
			}
		}
		if isGoing {
			is.going = 1
		}
		if isInitialised {
			is.initialised, is.disrupted = 1, is.going
		}
		sum := want[c.Labels["karpenter.sh/nodepool"]]
		sum.add(is, 1)
		want[c.Labels["karpenter.sh/nodepool"]] = sum
		going += is.going
	}
	got := map[string]claimCounts{}
	for name, count := range s.repairs.counts {
		if count.claimCounts != (claimCounts{}) {
			got[name] = count.claimCounts
		}
	}
	maps.DeleteFunc(want, func(_ string, is claimCounts) bool { return is == claimCounts{} })
	if !maps.Equal(got, want) {
		s.fails("counted: %+v, a recount says %+v", got, want)
	}
	return going
}

// What a machine adds to the counts of its pool, as Karpenter 1.15 counts for the reason
// Unhealthy, and as the ready timeout does.
func TestWhatAMachineAddsToItsPool(t *testing.T) {
	is := func(kind string) func(*corev1.Node, *karpenter.NodeClaim) {
		return func(_ *corev1.Node, c *karpenter.NodeClaim) { sets(kind, "", metav1.ConditionTrue)(c) }
	}
	deleted := func(_ *corev1.Node, c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) }
	sick := func(n *corev1.Node, _ *karpenter.NodeClaim) {
		n.Status.Conditions[0].Status = corev1.ConditionFalse
	}
	nodeless := func(_ *corev1.Node, c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://elsewhere" }
	type machine []func(*corev1.Node, *karpenter.NodeClaim)
	for name, test := range map[string]struct {
		machine machine
		want    claimCounts
	}{
		"at work":                             {nil, claimCounts{initialised: 1, claims: 1}},
		"sick, and does not block itself":     {machine{sick}, claimCounts{initialised: 1, claims: 1}},
		"never ready":                         {machine{unready}, claimCounts{claims: 1, starting: 1}},
		"never ready, and deleted":            {machine{unready, deleted}, claimCounts{claims: 1, going: 1, starting: 1}},
		"without a node":                      {machine{nodeless}, claimCounts{claims: 1}},
		"deleted":                             {machine{deleted}, claimCounts{initialised: 1, disrupted: 1, claims: 1, going: 1}},
		"chosen by Karpenter":                 {machine{is(karpenter.DisruptionReason)}, claimCounts{initialised: 1, disrupted: 1, claims: 1, going: 1}},
		"restarted by Karpenter":              {machine{unready, is(karpenter.Rebooting)}, claimCounts{initialised: 1, disrupted: 1, claims: 1, going: 1, starting: 1}},
		"restarted, and its node is not back": {machine{nodeless, is(karpenter.Rebooting)}, claimCounts{initialised: 1, disrupted: 1, claims: 1, going: 1}},
		"its machine is going":                {machine{deleted, is(karpenter.InstanceTerminating)}, claimCounts{}},
	} {
		t.Run(name, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.pool("default", nil)
				h.world.launch("a", "default", test.machine...)
				h.hears()
				if got := h.repairs.counts["default"].claimCounts; got != test.want {
					t.Errorf("it adds %+v, want %+v", got, test.want)
				}
			})
		})
	}
}

// Karpenter's budgets are of the nodes that were in service once. Of nodes that never were
// there would be none among them, so the ready timeout counts all claims.
func TestTheReadyTimeoutCountsAllClaims(t *testing.T) {
	for _, test := range []struct {
		budget string
		// how many of 10 claims, 5 of which are in service, may be repaired, and how many
		// replaced that do not become ready, where one of the latter goes already
		repairs, timeouts int
	}{
		{"1", 1, 0},
		{"2", 2, 1},
		{"20%", 1, 1},
		{"10%", 1, 0},
		{"40%", 2, 3},
		{"100%", 5, 9},
	} {
		t.Run(test.budget, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: test.budget}))
				h.launches("default", "a", "b", "c", "d", "e")
				for _, name := range []string{"v", "w", "x", "y", "z"} {
					h.world.launch(name, "default", unready)
				}
				h.world.changeClaim("claim-v", func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
				h.hears()
				for rule, want := range map[triage.RuleID]int{poolRuleID("default"): test.repairs, timeoutRule("default"): test.timeouts} {
					allowed, _ := h.disruptionAllowance(time.Now(), rule, "default", h.repairs.counts["default"])
					if allowed == nil || allowed.Places != want {
						t.Errorf("%s may begin %+v, want %d", rule, allowed, want)
					}
				}
			}, timed)
		})
	}
}

// A round that brings nothing new leaves nothing to be done at once.
func TestARoundWithoutNewsIsFollowedByRest(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", ofAtMost("1"), budgets(karpenter.Budget{Nodes: "1"}))
		h.pool("bad", nil)
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a", "b", "c")
		h.lapse("bad", "x", "y")
		h.turns()
		for node := range h.sends() {
			h.runs(node, how{})
		}
		h.turns()
		for range 3 {
			h.goesOn()
		}
		if due := h.goesOn(); !due.IsZero() && !due.After(time.Now()) {
			t.Errorf("the next round is due at %v, and it is %v", due, time.Now())
		}
		for name, count := range h.repairs.counts {
			if count.dirty {
				t.Errorf("pool %s is to be told of still", name)
			}
		}
	}, timed)
}

// A pool that is held must not be emptied by its own repair block.
func TestARepairIsNotForNodesThatWereNeverReady(t *testing.T) {
	openHall(t, func(h *hall) {
		block := ofAtMost("100%")
		block.Policies = append(block.Policies, v1alpha1.ConditionRepair{ConditionType: "Ready", ConditionStatus: "False", Toleration: "1s"})
		h.pool("default", block)
		h.launches("default", "a", "b")
		h.world.launch("c", "default", unready)
		h.hears()
		h.passes(time.Minute)
		h.rests("c")
		if is := h.nodeStates["c"].assigned; is.repairedBy != "" || is.timedBy != "default" {
			t.Errorf("it is governed by %+v", is)
		}
		// Once it is ready for work, it is for the block as any other.
		h.world.changeNode("c", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.hears()
		if is := h.nodeStates["c"].assigned; is.repairedBy == "" {
			t.Errorf("it is governed by %+v", is)
		}
		h.world.changeNode("c", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
		h.hears()
		h.passes(2 * time.Second)
		h.wants("c", terminateClaim)
	}, timed)
}

// What replaces a node is counted when it becomes ready, and not before.
func TestAReplacementThatTakesItsTimeFreesThePlace(t *testing.T) {
	openHall(t, func(h *hall) {
		h.sicken("b")
		h.terminates("a")
		h.goes("a")
		h.turns()
		h.world.launch("d", "default", unready)
		h.hears()
		h.rests("b")
		h.world.changeNode("d", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.hears()
		h.wants("b", terminateClaim)
	}, timed)
}

// Where nothing is in service, a share protects nothing; a number still bounds, and so
// does what cannot be read.
func TestBudgetsOfAPoolWithNothingInService(t *testing.T) {
	for name, test := range map[string]struct {
		budgets []karpenter.Budget
		goes    bool
	}{
		"a share":                      {[]karpenter.Budget{{Nodes: "10%"}}, true},
		"none that is written":         {nil, true},
		"nobody":                       {[]karpenter.Budget{{Nodes: "0"}}, false},
		"a share of nothing":           {[]karpenter.Budget{{Nodes: "0%"}}, false},
		"one that nobody can read":     {[]karpenter.Budget{{Unreadable: "odd"}}, false},
		"a share at odd times":         {[]karpenter.Budget{{Nodes: "10%", Schedule: new("at noon"), Duration: "1h"}}, false},
		"a share for an odd time":      {[]karpenter.Budget{{Nodes: "10%", Schedule: new("0 12 * * *"), Duration: "long"}}, false},
		"a share at another time":      {[]karpenter.Budget{{Nodes: "10%", Schedule: new("0 12 * * *"), Duration: "1h"}}, true},
		"a share of what":              {[]karpenter.Budget{{Nodes: "ten%"}}, false},
		"a number beside a share":      {[]karpenter.Budget{{Nodes: "10%"}, {Nodes: "1"}}, true},
		"a share beside nobody at all": {[]karpenter.Budget{{Nodes: "10%"}, {Nodes: "0"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			openHall(t, func(h *hall) {
				h.t = t
				h.pool("default", ofAtMost("100%"), func(p *repairblock.Pool) { p.Spec.Disruption.Budgets = test.budgets })
				h.world.launch("a", "default", unready)
				h.hears()
				h.breaks(corev1.ConditionTrue, "a")
				h.passes(10 * time.Minute)
				if !test.goes {
					h.rests("a")
					return
				}
				h.wants("a", terminateClaim)
			})
		})
	}
}

// A policy that is switched off switches the timeout off for its nodes, too.
func TestASwitchedOffSelectorIsHeardByTheTimeout(t *testing.T) {
	openHall(t, func(h *hall) {
		h.pool("default", nil)
		h.policy("p", func(p *v1alpha1.RepairPolicy) {
			p.Spec.Selector = &metav1.LabelSelector{}
			p.Spec.Repair.Enabled = new(false)
		})
		h.launches("default", "x")
		h.lapse("default", "a")
		h.rests("a")
	}, timed)
}
