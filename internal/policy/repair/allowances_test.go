package repair

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
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/triage"
)

// timed gives nodes of all pools ten minutes to become Ready.
func timed(cfg *Config) { cfg.ReadyTimeout = 10 * time.Minute }

func TestADisruptionBudgetLimitsRepairs(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: "1"}))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.advance(10 * time.Minute)
		h.terminates("a")
		h.WantNoTask("b")
		if is := h.finding(policykind.Repair, "b"); is.Code != triage.NotAllowed || !strings.Contains(is.String(), "NodePool default's disruption budget 1 allows 1, and 1 is being disrupted") {
			t.Errorf("what is said of b: %v", is)
		}
		h.goes("a")
		h.writeSnapshot()
		h.WantTask("b", nodeclaim.TerminateClaim) // the claim is gone, and the bound leaves room
	})
}

// Disruptions by other components count, and their end is noticed.
func TestABudgetCountsKarpentersDisruptions(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: "1"}))
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(9 * time.Minute)
		h.api.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionTrue))
		h.deliver()
		h.advance(time.Minute)
		h.WantNoTask("a")
		h.api.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionFalse))
		h.deliver()
		h.WantTask("a", nodeclaim.TerminateClaim)
		// The budget is checked again just before the termination.
		h.writeSnapshot()
		h.api.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionTrue))
		h.deliver()
		if sent := h.Startable(); len(sent) > 0 {
			t.Errorf("%d are sent beside what Karpenter does", len(sent))
		}
		if treatments := h.FindNodeTasks("a"); treatments != nil && treatments.HasSlot() {
			t.Errorf("its slot in the ledger is kept: %+v", treatments.Slot())
		}
	})
}

// A budget with a schedule changes with time alone, without any other event.
func TestABudgetWithAScheduleChangesAtItsTime(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) { // where it is midnight in 2000
		noon := "0 12 * * *"
		h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: "0", Schedule: &noon, Duration: "1h"}))
		h.launches("default", "a", "b", "c")
		h.advance(11*time.Hour + 55*time.Minute)
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.WantNoTask("a")
		due := h.runRound()
		if want := time.Date(2000, 1, 1, 13, 0, 0, 0, time.UTC); !due.Equal(want) {
			t.Errorf("the next look is at %v, want %v", due, want)
		}
		h.advance(time.Until(due))
		h.WantTask("a", nodeclaim.TerminateClaim)
	})
}

// lapse launches nodes that do not become Ready, and lets their timeout pass.
func (h *nodePoolFixture) lapse(pool string, names ...string) {
	h.T.Helper()
	for _, name := range names {
		h.api.launch(name, pool, unready)
	}
	h.deliver()
	h.advance(10 * time.Minute)
}

func (h *nodePoolFixture) timeouts(pool string) triage.Population {
	counts, _ := h.Core().Population(timeoutRule(pool))
	return counts
}

func TestAPoolWhoseNodesDoNotBecomeReadyIsHeld(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("bad", ofAtMost("5"))
		h.pool("good", nil)
		h.launches("good", "g1", "g2")
		for i := range maxLaunchFailures {
			name := fmt.Sprintf("a%d", i)
			if i == maxLaunchFailures-1 {
				h.api.launch("b", "bad", unready)
			}
			h.lapse("bad", name)
			h.terminates(name)
			h.goes(name)
			h.writeSnapshot()
		}
		told := func() (n int) {
			for _, event := range h.Events {
				if event.EventReason == treat.PoolHeld {
					n++
				}
			}
			return n
		}
		if told() != 1 {
			t.Errorf("it is reported %d times that the pool is held", told())
		}
		h.WantNoTask("b")
		if is := h.finding(policykind.ReadyTimeout, "b"); is.Code != triage.NotAllowed || !strings.Contains(is.String(), "NodePool bad is held: 3 nodes in a row have not become ready") {
			t.Errorf("what is said of the next: %v", is)
		}
		h.advance(time.Second)
		if n := testutil.ToFloat64(h.repairs.metrics.poolHeld.WithLabelValues("ReadyTimeout", "bad", "bad")); n != 1 {
			t.Errorf("held is %v", n)
		}
		h.api.launch("g3", "good", unready, func(n *corev1.Node, _ *karpenter.NodeClaim) {
			n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		})
		h.deliver()
		h.terminates("g3")
		successor := h.successor(timed)
		for leader, h := range map[string]*nodePoolFixture{"the same": h, "a successor": successor} {
			if n := h.repairs.counts["bad"].failures.failed; n != maxLaunchFailures {
				t.Errorf("%s counts %d launch failures", leader, n)
			}
			h.WantNoTask("b")
		}
		if due := h.runRound(); !due.After(time.Now()) || h.repairs.counts["bad"].due.IsZero() {
			t.Fatalf("the next look is at %v", due)
		}
		h.advance(time.Until(h.repairs.counts["bad"].due))
		h.terminates("b")
		h.goes("b")
		h.writeSnapshot()
		h.advance(time.Hour)
		// A node that becomes Ready ends the hold.
		h.launches("bad", "c")
		if h.repairs.counts["bad"].isHeld() || told() != 2 {
			t.Errorf("afterwards: %+v, reported %d times", h.repairs.counts["bad"].failures, told())
		}
		h.lapse("bad", "d")
		h.WantTask("d", nodeclaim.TerminateClaim)
	}, timed)
}

// madeOf sets the template hash of a pool.
func madeOf(hash string) func(*repairblock.Pool) {
	return func(p *repairblock.Pool) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, karpenter.HashAnnotation, hash)
	}
}

// holds causes a hold of the pool.
func (h *nodePoolFixture) holds(pool string) {
	h.T.Helper()
	h.pool(pool, ofAtMost("5"), madeOf("1"))
	for i := range maxLaunchFailures {
		name := fmt.Sprintf("a%d", i)
		h.lapse(pool, name)
		h.terminates(name)
		h.goes(name)
		h.writeSnapshot()
	}
	if !h.repairs.counts[pool].isHeld() {
		h.T.Fatalf("the pool is not held: %+v", h.repairs.counts[pool].failures)
	}
}

// lapsed launches a node whose ready timeout has passed.
func lapsed(n *corev1.Node, c *karpenter.NodeClaim) {
	unready(n, c)
	n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
}

// releases returns the messages of PoolReleased Events.
func (h *nodePoolFixture) releases() (words []string) {
	for _, event := range h.Events {
		if event.EventReason == treat.PoolReleased {
			words = append(words, event.Message)
		}
	}
	return words
}

// A hold that has ended stays ended after a change of leader, even if its cause is gone
// by then.
func TestAHoldThatHasEndedIsNotRestored(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(h *nodePoolFixture)
		words   string
	}{
		"a node becomes ready": {func(h *nodePoolFixture) {
			h.launches("bad", "good")
			h.writeSnapshot()
			h.goes("good")
		}, "NodePool bad is released: NodeClaim claim-good has become ready"},
		"the template changes": {func(h *nodePoolFixture) {
			h.pool("bad", ofAtMost("5"), madeOf("2"))
		}, "NodePool bad is released: its template has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.holds("bad")
				h.advance(2 * triage.ReplacementWait) // all slots are free by now
				h.writeSnapshot()
				test.happens(h)
				if got := h.releases(); !slices.Equal(got, []string{test.words}) {
					t.Errorf("reported: %q", got)
				}
				h.writeSnapshot()
				if entries, due := h.Snapshot(); entries != nil || !due.IsZero() {
					t.Errorf("another snapshot is due: %v, due %s", entries, due)
				}
				successor := h.successor(timed)
				h.api.launch("z", "bad", lapsed)
				for leader, h := range map[string]*nodePoolFixture{"the same": h, "a successor": successor} {
					h.deliver()
					if is := h.repairs.counts["bad"]; is.failures.failed != 0 {
						t.Errorf("%s counts %+v", leader, is.failures)
					}
					h.WantTask("z", nodeclaim.TerminateClaim)
				}
				if got := successor.releases(); len(got) > 0 {
					t.Errorf("a successor tells it once more: %q", got)
				}
			}, timed)
		})
	}
}

// A new leader notices the end of a hold that it did not observe.
func TestANewLeaderNoticesTheEndOfAHold(t *testing.T) {
	for name, test := range map[string]struct {
		happens   func(h *nodePoolFixture) // while no controller leads
		afterward func(successor *nodePoolFixture)
		released  string
	}{
		"nothing": {},
		"a node becomes ready": {happens: func(h *nodePoolFixture) { h.api.launch("good", "bad") },
			released: "NodePool bad is released: NodeClaim claim-good has become ready"},
		"the template changes": {happens: func(h *nodePoolFixture) { h.remake("bad", madeOf("2")) },
			released: "NodePool bad is released: its template has changed"},
		"the template changes, and the pool is known later": {
			happens:   func(h *nodePoolFixture) { delete(h.repairs.pools, "bad") },
			afterward: func(successor *nodePoolFixture) { successor.pool("bad", ofAtMost("5"), madeOf("2")) },
			released:  "NodePool bad is released: its template has changed",
		},
		"something else of the pool changes": {happens: func(h *nodePoolFixture) {
			h.remake("bad", budgets(karpenter.Budget{Nodes: "5"}))
		}},
		"the template of the pool is unknown": {
			happens:   func(h *nodePoolFixture) { h.remake("bad", madeOf("")) },
			afterward: func(successor *nodePoolFixture) { successor.pool("bad", ofAtMost("5"), madeOf("1")) },
		},
		"the ledger has no templates": {happens: func(h *nodePoolFixture) {
			for i, e := range h.api.page {
				if failures, is := e.(ledger.LaunchFailures); is {
					failures.Template = ""
					h.api.page[i] = failures
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.holds("bad")
				h.api.launch("z", "bad", lapsed)
				h.deliver()
				h.WantNoTask("z")
				if test.happens != nil {
					test.happens(h)
				}
				successor := h.successor(timed)
				if test.afterward != nil {
					test.afterward(successor)
				}
				var want []string
				if test.released != "" {
					want = append(want, test.released)
				}
				if got := successor.releases(); !slices.Equal(got, want) {
					t.Errorf("reported: %q, want %q", got, want)
				}
				if is := successor.repairs.counts["bad"]; is.isHeld() != (want == nil) {
					t.Errorf("the successor counts %+v", is.failures)
				}
				successor.writeSnapshot()
				if want != nil {
					successor.WantTask("z", nodeclaim.TerminateClaim)
					return
				}
				successor.WantNoTask("z")
				for _, e := range enginetest.EntriesOf[ledger.LaunchFailures](successor.api.page) {
					testkit.Check(t, e.Template == "1", "the ledger says %+v", e)
				}
			}, timed)
		})
	}
}

// remake changes a pool without notifying the loop.
func (h *nodePoolFixture) remake(name string, change func(*repairblock.Pool)) {
	is := *h.repairs.pools[name]
	is.NodePool = is.DeepCopy()
	change(&is)
	h.repairs.pools[name] = &is
}

// A failed snapshot is written later, including what has ended meanwhile.
func TestTheEndOfAHoldSurvivesAFailedSnapshot(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.holds("bad")
		h.advance(2 * triage.ReplacementWait)
		h.writeSnapshot()
		h.pool("bad", ofAtMost("5"), madeOf("2"))
		h.failSnapshot()
		testkit.Require(t, len(enginetest.EntriesOf[ledger.LaunchFailures](h.api.page)) != 0, "the ledger has been written")
		h.advance(time.Minute)
		h.writeSnapshot()
		testkit.Check(t, len(enginetest.EntriesOf[ledger.LaunchFailures](h.api.page)) == 0, "the ledger is %+v", h.api.page)
	}, timed)
}

// failSnapshot makes the next snapshot fail.
func (h *nodePoolFixture) failSnapshot() {
	h.T.Helper()
	if entries, _ := h.Snapshot(); entries == nil {
		h.T.Fatal("no snapshot is due")
	}
	testkit.Must(h.T, h.Stored(enginetest.ErrBroken))
	h.runRound()
}

// A claim that changes before its mark is requested again, and a refusal is not a launch
// failure.
func TestALaunchFailureIsCountedOnce(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("bad", nil)
		h.launches("bad", "x", "y", "z")
		h.lapse("bad", "a")
		tries := func() int { return h.repairs.counts["bad"].failures.failed }
		for range 5 {
			h.writeSnapshot()
			h.api.changeClaim("claim-a", func(*karpenter.NodeClaim) {})
			h.runs("a", how{})
		}
		if tries() != 0 {
			t.Errorf("%d launch failures are counted before any was made", tries())
		}
		successor := h.successor(timed)
		if n := successor.repairs.counts["bad"].failures.failed; n != 0 {
			t.Errorf("a successor counts %d", n)
		}
		h.writeSnapshot()
		if e := enginetest.EntriesOf[ledger.LaunchFailures](h.api.page); len(e) != 1 || e[0].Failed != 1 {
			t.Errorf("the ledger says %+v", h.api.page)
		}
		h.runs("a", how{second: treat.Refused})
		if tries() != 1 {
			t.Errorf("%d launch failures are counted", tries())
		}
		if n := h.successor(timed).repairs.counts["bad"].failures.failed; n != 1 {
			t.Errorf("a successor counts %d", n)
		}
		h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.deliver()
		h.advance(time.Minute)
		h.runs("a", how{}) // the termination is cancelled
		if tries() != 0 || h.isMarked("a") {
			t.Errorf("%d launch failures are counted, and it is marked %t", tries(), h.isMarked("a"))
		}
	}, timed)
}

// Both rules of a pool share its bound.
func TestARepairAndATimeoutShareThePool(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.api.launch("c", "default", unready)
		h.deliver()
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.writeSnapshot()
		both := h.Startable()
		testkit.Require(t, len(both) == 1, "%d are sent", len(both))
		for node := range both {
			h.runs(node, how{})
		}
		if h.taken("default") != 1 || h.timeouts("default").Pooled != 1 {
			t.Errorf("%d and %d are taken", h.taken("default"), h.timeouts("default").Pooled)
		}
		h.writeSnapshot()
		if sent := h.Startable(); len(sent) > 0 {
			t.Errorf("%d are sent beside it", len(sent))
		}
	}, timed)
}

// A claim gives up the provider ID that it shares with another claim. The node has
// started according to the other claim, which must be counted again.
func TestAClaimIsRecountedWhenAnotherReleasesItsProviderID(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("p", nil)
		h.api.launch("a", "p", unready)
		h.api.launch("b", "p")
		names := func(claim, id string) {
			h.api.changeClaim(claim, func(c *karpenter.NodeClaim) { c.Status.ProviderID = id })
			h.deliver()
		}
		names("claim-b", "kwok://a")
		h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.deliver()
		names("claim-a", "")
		if starting := h.repairs.counts["p"].starting; !h.repairs.nodes["a"].started || starting != 0 {
			t.Errorf("the node has started: %v, and %d count as starting", h.repairs.nodes["a"].started, starting)
		}
	}, timed)
}

func TestPoolCountsEqualARecount(t *testing.T) {
	pools := []string{"p", "q"}
	changes := 0
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rt, func(t *testing.T) {
			t.Helper()
			h := newNodePoolFixture(t, timed)
			s := &history{nodePoolFixture: h, rt: rt, out: map[string]*engine.TaskResult{}, hits: &hits{}}
			for _, pool := range pools {
				h.pool(pool, ofAtMost("100%"))
			}
			for i := range rapid.IntRange(5, 60).Draw(rt, "acts") {
				anyOf := func() string { return some(rt, h.api.nodes, func(*corev1.Node) bool { return true }) }
				anyClaim := func() string {
					return some(rt, h.api.claims, func(*karpenter.NodeClaim) bool { return true })
				}
				switch rapid.SampledFrom([]string{"launch", "launch", "unready", "make unhealthy", "make unhealthy", "pool", "id", "disrupt", "reboot", "deleting", "terminating", "drop node", "drop claim", "hear", "hear nodes", "hear claims", "pass", "work", "work", "recover"}).Draw(rt, "act") {
				case "launch":
					h.api.launch(fmt.Sprint("n", i), rapid.SampledFrom(pools).Draw(rt, "pool"))
				case "unready":
					h.api.launch(fmt.Sprint("n", i), rapid.SampledFrom(pools).Draw(rt, "pool"), unready)
				case "make unhealthy":
					if name := anyOf(); name != "" {
						h.api.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionTrue })
					}
				case "pool":
					if name := anyClaim(); name != "" {
						h.api.changeClaim(name, func(c *karpenter.NodeClaim) {
							c.Labels = map[string]string{karpenter.NodePoolLabel: rapid.SampledFrom(pools).Draw(rt, "pool")}
						})
					}
				case "id":
					if name := anyClaim(); name != "" {
						h.api.changeClaim(name, func(c *karpenter.NodeClaim) {
							c.Status.ProviderID = rapid.SampledFrom([]string{"", "kwok://n0", "kwok://n1", "kwok://n2"}).Draw(rt, "id")
						})
					}
				case "disrupt":
					if name := anyClaim(); name != "" {
						h.api.changeClaim(name, sets(karpenter.DisruptionReason, "Drifted", rapid.SampledFrom([]metav1.ConditionStatus{"True", "False"}).Draw(rt, "status")))
					}
				case "reboot":
					if name := anyClaim(); name != "" {
						h.api.changeClaim(name, sets(karpenter.Rebooting, "", rapid.SampledFrom([]metav1.ConditionStatus{"True", "False"}).Draw(rt, "status")))
					}
				case "deleting":
					if name := anyClaim(); name != "" {
						h.api.changeClaim(name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
					}
				case "terminating":
					if name := anyClaim(); name != "" {
						h.api.changeClaim(name, sets(karpenter.InstanceTerminating, "", metav1.ConditionTrue))
					}
				case "drop node":
					if name := anyOf(); name != "" {
						h.api.removeNode(name)
					}
				case "drop claim":
					if name := anyClaim(); name != "" {
						h.api.removeClaim(name)
					}
				case "hear":
					h.deliver()
				case "hear nodes":
					h.deliver("nodes")
				case "hear claims":
					h.deliver("claims")
				case "pass":
					h.advance(4 * time.Minute)
				case "work":
					h.writeSnapshot()
					if node := some(rt, h.Startable(), func(*engine.Task) bool { return true }); node != "" {
						h.runs(node, how{second: rapid.SampledFrom([]treat.Outcome{treat.Made, treat.Refused}).Draw(rt, "second")})
					}
				case "recover":
					if name := anyOf(); name != "" {
						h.api.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
						h.deliver()
					}
				}
				changes += s.recount()
			}
		})
	})
	t.Logf("%d times a node was being removed", changes)
	testkit.Check(t, changes != 0, "no node was ever removed, so the test proves nothing")
}

// recount counts all known claims from scratch, and returns how many are terminating.
func (s *history) recount() (going int) {
	want := map[string]machineCounts{}
	for m := range s.repairs.machines.Machines() {
		c := m.(interface {
			metav1.Object
			Is(condition string) bool
			ProviderID() string
		})
		if c.Is("InstanceTerminating") {
			continue
		}
		is := machineCounts{machines: 1}
		isGoing := m.IsEnding() || c.GetAnnotations()["autohealer.resourcestack.com/repair"] != "" || c.Is("DisruptionReason") || c.Is("Rebooting")
		isInitialised := c.Is("Rebooting")
		for _, state := range s.Nodes() {
			if c.ProviderID() == "" || state.Object.Spec.ProviderID != c.ProviderID() {
				continue
			}
			isInitialised = isInitialised || state.Object.Labels["karpenter.sh/initialized"] == "true"
			if !s.repairs.nodeOf(state).started {
				is.starting = 1
			}
			plan, _ := s.Core().Plan(state.Object.Name)
			if planned := plan.Treatment; planned != nil && (planned.Rule.Kind == policykind.Repair || planned.Rule.Kind == policykind.ReadyTimeout) {
				isGoing = true
				if planned.Rule.Kind == policykind.ReadyTimeout && c.GetAnnotations()["autohealer.resourcestack.com/repair"] == "" {
					is.pendingFailures = 1
				}
			}
		}
		if isGoing {
			is.terminating = 1
		}
		if isInitialised {
			is.initialized, is.disrupted = 1, is.terminating
		}
		if m.IsForced() {
			is.forced = 1
		}
		sum := want[c.GetLabels()["karpenter.sh/nodepool"]]
		sum.add(is, 1)
		want[c.GetLabels()["karpenter.sh/nodepool"]] = sum
		going += is.terminating
	}
	got := map[string]machineCounts{}
	for name, count := range s.repairs.counts {
		if count.machineCounts != (machineCounts{}) {
			got[name] = count.machineCounts
		}
	}
	maps.DeleteFunc(want, func(_ string, is machineCounts) bool { return is == machineCounts{} })
	if !maps.Equal(got, want) {
		s.fails("counted: %+v, a recount says %+v", got, want)
	}
	return going
}

// A claim counts as in Karpenter 1.15 for the reason Unhealthy, and for the ready
// timeout.
func TestClaimCounts(t *testing.T) {
	is := func(kind string) func(*corev1.Node, *karpenter.NodeClaim) {
		return func(_ *corev1.Node, c *karpenter.NodeClaim) { sets(kind, "", metav1.ConditionTrue)(c) }
	}
	deleted := func(_ *corev1.Node, c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) }
	unhealthy := func(n *corev1.Node, _ *karpenter.NodeClaim) {
		n.Status.Conditions[0].Status = corev1.ConditionFalse
	}
	nodeless := func(_ *corev1.Node, c *karpenter.NodeClaim) { c.Status.ProviderID = "kwok://elsewhere" }
	type machine []func(*corev1.Node, *karpenter.NodeClaim)
	for name, test := range map[string]struct {
		machine machine
		want    machineCounts
	}{
		"at work":                              {nil, machineCounts{initialized: 1, machines: 1}},
		"unhealthy, and does not block itself": {machine{unhealthy}, machineCounts{initialized: 1, machines: 1}},
		"never ready":                          {machine{unready}, machineCounts{machines: 1, starting: 1}},
		"never ready, and deleted":             {machine{unready, deleted}, machineCounts{machines: 1, terminating: 1, starting: 1}},
		"without a node":                       {machine{nodeless}, machineCounts{machines: 1}},
		"deleted":                              {machine{deleted}, machineCounts{initialized: 1, disrupted: 1, machines: 1, terminating: 1}},
		"chosen by Karpenter":                  {machine{is(karpenter.DisruptionReason)}, machineCounts{initialized: 1, disrupted: 1, machines: 1, terminating: 1}},
		"restarted by Karpenter":               {machine{unready, is(karpenter.Rebooting)}, machineCounts{initialized: 1, disrupted: 1, machines: 1, terminating: 1, starting: 1}},
		"restarted, and its node is not back":  {machine{nodeless, is(karpenter.Rebooting)}, machineCounts{initialized: 1, disrupted: 1, machines: 1, terminating: 1}},
		"its machine is going":                 {machine{deleted, is(karpenter.InstanceTerminating)}, machineCounts{}},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.pool("default", nil)
				h.api.launch("a", "default", test.machine...)
				h.deliver()
				if got := h.repairs.counts["default"].machineCounts; got != test.want {
					t.Errorf("it adds %+v, want %+v", got, test.want)
				}
			})
		})
	}
}

// Karpenter's budgets count nodes that were in service once. Nodes that never started are
// not among them, so the ready timeout counts all claims.
func TestTheReadyTimeoutCountsAllClaims(t *testing.T) {
	for _, test := range []struct {
		budget string
		// Of 10 claims, 5 are in service. repairs is how many may be repaired, and
		// timeouts how many may be replaced by the ready timeout if one replacement is
		// already running.
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
			withNodePools(t, func(h *nodePoolFixture) {
				h.pool("default", ofAtMost("100%"), budgets(karpenter.Budget{Nodes: test.budget}))
				h.launches("default", "a", "b", "c", "d", "e")
				for _, name := range []string{"v", "w", "x", "y", "z"} {
					h.api.launch(name, "default", unready)
				}
				h.api.changeClaim("claim-v", func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
				h.deliver()
				for rule, want := range map[triage.RuleID]int{poolRuleID("default"): test.repairs, timeoutRule("default"): test.timeouts} {
					allowed, _ := h.repairs.disruptionAllowance(time.Now(), rule, "default", h.repairs.counts["default"])
					testkit.Check(t, allowed != nil && allowed.Remaining == want, "%s may begin %+v, want %d", rule, allowed, want)
				}
			}, timed)
		})
	}
}

// A round without changes leaves nothing due at once.
func TestARoundWithoutChangesLeavesNothingDue(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"), budgets(karpenter.Budget{Nodes: "1"}))
		h.pool("bad", nil)
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a", "b", "c")
		h.lapse("bad", "x", "y")
		h.writeSnapshot()
		for node := range h.Startable() {
			h.runs(node, how{})
		}
		h.writeSnapshot()
		for range 3 {
			h.runRound()
		}
		if due := h.runRound(); !due.IsZero() && !due.After(time.Now()) {
			t.Errorf("the next round is due at %v, and it is %v", due, time.Now())
		}
		for name, count := range h.repairs.counts {
			testkit.Check(t, !count.dirty, "pool %s still has to be reported", name)
		}
	}, timed)
}

// A repair block must not empty a pool whose replacement is paused.
func TestRepairRulesIgnoreNodesThatWereNeverReady(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		block := ofAtMost("100%")
		block.Policies = append(block.Policies, v1alpha1.ConditionRepair{ConditionType: "Ready", ConditionStatus: "False", Toleration: "1s"})
		h.pool("default", block)
		h.launches("default", "a", "b")
		h.api.launch("c", "default", unready)
		h.deliver()
		h.advance(time.Minute)
		h.WantNoTask("c")
		if is := h.repairs.nodes["c"].assigned; is.repairedBy != "" || is.timedBy != "default" {
			t.Errorf("the policies are %+v", is)
		}
		// Once the node is ready for work, the repair block applies to it.
		h.api.changeNode("c", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.deliver()
		if is := h.repairs.nodes["c"].assigned; is.repairedBy == "" {
			t.Errorf("the policies are %+v", is)
		}
		h.api.changeNode("c", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
		h.deliver()
		h.advance(2 * time.Second)
		h.WantTask("c", nodeclaim.TerminateClaim)
	}, timed)
}

// A replacement counts when it becomes Ready, not before.
func TestASlowReplacementFreesTheSlot(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy("b")
		h.terminates("a")
		h.goes("a")
		h.writeSnapshot()
		h.api.launch("d", "default", unready)
		h.deliver()
		h.WantNoTask("b")
		h.api.changeNode("d", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.deliver()
		h.WantTask("b", nodeclaim.TerminateClaim)
	}, timed)
}

// If no node is in service, a percentage protects nothing. An absolute number and an
// unreadable budget still limit.
func TestBudgetsOfAPoolWithNothingInService(t *testing.T) {
	for name, test := range map[string]struct {
		budgets []karpenter.Budget
		goes    bool
	}{
		"a share":                  {[]karpenter.Budget{{Nodes: "10%"}}, true},
		"none that is written":     {nil, true},
		"zero nodes":               {[]karpenter.Budget{{Nodes: "0"}}, false},
		"a share of nothing":       {[]karpenter.Budget{{Nodes: "0%"}}, false},
		"unreadable":               {[]karpenter.Budget{{Unreadable: "odd"}}, false},
		"a share at odd times":     {[]karpenter.Budget{{Nodes: "10%", Schedule: new("at noon"), Duration: "1h"}}, false},
		"a share for an odd time":  {[]karpenter.Budget{{Nodes: "10%", Schedule: new("0 12 * * *"), Duration: "long"}}, false},
		"a share at another time":  {[]karpenter.Budget{{Nodes: "10%", Schedule: new("0 12 * * *"), Duration: "1h"}}, true},
		"a share of what":          {[]karpenter.Budget{{Nodes: "ten%"}}, false},
		"a number beside a share":  {[]karpenter.Budget{{Nodes: "10%"}, {Nodes: "1"}}, true},
		"a percentage beside zero": {[]karpenter.Budget{{Nodes: "10%"}, {Nodes: "0"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.pool("default", ofAtMost("100%"), func(p *repairblock.Pool) { p.Spec.Disruption.Budgets = test.budgets })
				h.api.launch("a", "default", unready)
				h.deliver()
				h.breaks(corev1.ConditionTrue, "a")
				h.advance(10 * time.Minute)
				if !test.goes {
					h.WantNoTask("a")
					return
				}
				h.WantTask("a", nodeclaim.TerminateClaim)
			})
		})
	}
}

// A disabled policy also disables the ready timeout for its nodes.
func TestADisabledPolicyDisablesTheReadyTimeout(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", nil)
		h.policy("p", func(p *v1alpha1.RepairPolicy) {
			p.Spec.Selector = &metav1.LabelSelector{}
			p.Spec.Repair.Enabled = new(false)
		})
		h.launches("default", "x")
		h.lapse("default", "a")
		h.WantNoTask("a")
	}, timed)
}
