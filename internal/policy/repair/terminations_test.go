package repair

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/triage"
)

// makeUnhealthy makes node a of a pool due, beside b and c and with a bound of one.
func (h *nodePoolFixture) makeUnhealthy(also ...string) {
	h.T.Helper()
	h.pool("default", ofAtMost("1"))
	h.launches("default", "a", "b", "c")
	h.breaks(corev1.ConditionTrue, append([]string{"a"}, also...)...)
	h.advance(10 * time.Minute)
}

// isMarked reports whether the claim of a node has a mark in the API.
func (h *nodePoolFixture) isMarked(node string) bool {
	_, is := h.api.claims["claim-"+node].Annotations[ownership.MarkAnnotation]
	return is
}

// named returns the stored ledger entry of a node.
func (h *nodePoolFixture) named(node string) ledger.Entry {
	for _, e := range h.api.page {
		switch is := e.(type) {
		case ledger.ObjectWrite:
			if is.Node == node {
				return e
			}
		case ledger.DeletedNode:
			if is.Node == node {
				return e
			}
		}
	}
	return nil
}

// The provider of a pool follows from its node class, also when the node class changes.
func TestPoolsHaveTheTolerationsOfTheirProvider(t *testing.T) {
	const group = "cloud.example.com"
	of := func(group string) func(*repairblock.Pool) {
		return func(p *repairblock.Pool) { p.Spec.Template.Spec.NodeClassRef.Group = group }
	}
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"), of(group))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a")
		isDue := func(after time.Duration) {
			t.Helper()
			if is := h.finding(policykind.Repair, "a"); !is.Eligible.Equal(time.Now().Add(after)) {
				t.Errorf("it is due at %s, want in %s", is.Eligible, after)
			}
		}
		isDue(time.Minute)
		h.pool("default", ofAtMost("1"), of("another.example.com"))
		isDue(10 * time.Minute)
	}, func(c *Config) {
		stated, _ := c.Statements.Latest()
		stated.ByNodeClass = map[string][]dialect.RepairStatement{group: {{Type: broken, Status: "True", Toleration: "1m"}}}
	})
}

func TestAnUnhealthyNodeIsTerminatedAfterItsToleration(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10*time.Minute - time.Second)
		h.WantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.Pending || !is.Eligible.Equal(time.Now().Add(time.Second)) {
			t.Errorf("what is said of it before: %v", is)
		}
		h.advance(time.Second)
		if sent := h.Startable(); len(sent) > 0 {
			t.Errorf("%d tasks are started that the ledger does not name", len(sent))
		}
		h.terminates("a")
		h.goes("a")
		if h.taken("default") != 1 {
			t.Errorf("%d slots are taken by a node that is gone", h.taken("default"))
		}
		h.writeSnapshot()
		if e, is := h.named("a").(ledger.DeletedNode); !is {
			t.Errorf("the ledger names %+v", e)
		}
		h.runRound()
		h.breaks(corev1.ConditionTrue, "b")
		h.advance(10 * time.Minute)
		h.WantNoTask("b")
		h.launches("default", "d")
		h.WantTask("b", nodeclaim.TerminateClaim)
	})
}

// What a task did is reported once, also if the answer of the API server was lost.
func TestATerminationWithoutAnAnswerIsReported(t *testing.T) {
	const arrived, lost = true, false
	for name, test := range map[string]struct {
		attempts []how
		recovers bool
		event    treat.EventReason
	}{
		"the deletion arrived":                        {[]how{{second: treat.Unknown, unanswered: arrived}}, false, treat.NodeRepaired},
		"the second deletion arrived":                 {[]how{{second: treat.Unknown, unanswered: lost}, {second: treat.Unknown, unanswered: arrived}}, false, treat.NodeRepaired},
		"the second deletion was answered":            {[]how{{second: treat.Unknown, unanswered: lost}, {}}, false, treat.NodeRepaired},
		"the mark arrived, the deletion was answered": {[]how{{first: treat.Unknown, unanswered: arrived}, {}}, false, treat.NodeRepaired},
		"the removal of the mark arrived":             {[]how{{second: treat.Busy}, {first: treat.Unknown, unanswered: arrived}}, true, treat.TerminationCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.makeUnhealthy()
				h.WantTask("a", nodeclaim.TerminateClaim)
				h.writeSnapshot()
				for i, answer := range test.attempts {
					testkit.Same(t, h.CountEvents(treat.NodeRepaired)+h.CountEvents(treat.TerminationCancelled), 0, "Events before attempt %d", i)
					if i > 0 && test.recovers {
						h.breaks(corev1.ConditionFalse, "a")
					}
					h.advance(time.Minute)
					h.runs("a", answer)
				}
				testkit.Same(t, h.CountEvents(test.event), 1, "Events")
				if test.event == treat.NodeRepaired {
					h.goes("a")
				}
				h.advance(time.Hour)
				testkit.Same(t, h.CountEvents(treat.NodeRepaired)+h.CountEvents(treat.TerminationCancelled), 1, "Events in the end")
			})
		})
	}
	for name, test := range map[string]struct {
		first     how
		cancelled int
		meanwhile func(h *nodePoolFixture) // before another client deletes the claim
	}{
		"the mark arrived, and another client deletes the claim": {how{first: treat.Unknown, unanswered: arrived}, 0, func(*nodePoolFixture) {}},
		"the deletion did not arrive before its termination was cancelled": {how{second: treat.Unknown, unanswered: lost}, 1, func(h *nodePoolFixture) {
			h.breaks(corev1.ConditionFalse, "a")
			h.advance(time.Minute)
			h.runs("a", how{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.makeUnhealthy()
				h.WantTask("a", nodeclaim.TerminateClaim)
				h.writeSnapshot()
				h.runs("a", test.first)
				test.meanwhile(h)
				h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
				h.deliver()
				testkit.Same(t, h.CountEvents(treat.TerminationCancelled), test.cancelled, "Events about the cancellation")
				testkit.Same(t, h.CountEvents(treat.NodeRepaired), 0, "Events about a deletion")
			})
		})
	}
}

// A drain that hangs ends when the policy is changed to Forceful.
func TestAChangeToForcefulEndsADrain(t *testing.T) {
	for _, answer := range []how{{}, {first: treat.Unknown, unanswered: true}} {
		withNodePools(t, func(h *nodePoolFixture) {
			block := ofAtMost("1")
			block.Termination = v1alpha1.Graceful
			h.pool("default", block)
			h.launches("default", "a", "b")
			h.breaks(corev1.ConditionTrue, "a")
			h.advance(10 * time.Minute)
			h.terminates("a")
			h.api.changeNode("a", func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }) // as Karpenter does
			h.deliver()
			h.advance(time.Hour)
			h.WantNoTask("a")
			block = ofAtMost("1")
			block.Termination = v1alpha1.Forceful
			block.Windows = []v1alpha1.Window{{Schedule: "0 12 * * *", Duration: "1h"}}
			h.pool("default", block)
			h.runRound()
			h.WantNoTask("a")
			h.advance(time.Until(time.Date(2000, time.January, 1, 12, 0, 0, 0, time.UTC)))
			h.advance(time.Minute)
			h.WantTask("a", nodeclaim.ForceTermination)
			h.runs("a", answer)
			testkit.Same(t, h.api.claims["claim-a"].Annotations[karpenter.TerminationTimestampAnnotation], treat.Deadline(time.Now()), "the deadline of the claim")
			h.WantNoTask("a")
			if last := h.Events[len(h.Events)-1]; last.EventReason != treat.NodeRepaired || !strings.Contains(last.Message, "Ending the drain of NodeClaim claim-a by force") {
				t.Errorf("the last Event is %+v", last)
			}
		})
	}
}

// A NodeClaim that another client deletes keeps every treatment from its node. If the guardrails do not
// respect that, it keeps only terminations, which would delete the NodeClaim again.
func TestGuardrailsDecideAboutDeletedNodeClaims(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		block := ofAtMost("1")
		block.Termination = v1alpha1.Graceful
		h.pool("default", block)
		h.launches("default", "a", "b", "c")
		check := triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "check"}
		testkit.Must(t, h.Core().SetRule(time.Now(), triage.Rule{
			ID: check, Stage: policykind.StageRemediate, When: triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}}, Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate}}},
		}))
		h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(time.Hour)
		wants := func(repair, remediation triage.Code) {
			t.Helper()
			testkit.Same(t, h.finding(policykind.Repair, "a").Code, repair, "the repair")
			testkit.Same(t, h.finding(policykind.NodeHealthCheck, "a").Code, remediation, "the remediation")
		}
		wants(triage.Vetoed, triage.Vetoed)
		h.SetRespect(time.Now(), &dialect.Respect{})
		wants(triage.Vetoed, triage.Treating)
		h.SetRespect(time.Now(), &dialect.Respect{DeletingMachines: true})
		wants(triage.Vetoed, triage.Vetoed)
	})
}

// The Lease of a maintenance tool keeps a node from being terminated, unless the guardrails do not
// respect maintenance.
func TestGuardrailsDecideAboutLeases(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		lease := nodelease.Take(nil, h.Node("a").Object, "drainer", 24*time.Hour, time.Now())
		lease.ResourceVersion = "1"
		testkit.Must(t, h.leases.Update(lease))
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(time.Hour)
		for _, respect := range []*dialect.Respect{nil, {Maintenance: true}} {
			h.SetRespect(time.Now(), respect)
			h.runRound()
			h.WantNoTask("a")
			if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "drainer holds the node's Lease") {
				t.Errorf("with %+v the finding is %v", respect, is)
			}
		}
		h.SetRespect(time.Now(), &dialect.Respect{})
		h.runRound()
		h.WantTask("a", nodeclaim.TerminateClaim)
	})
}

// A policy that terminates by force also ends drains that other clients began, as many at once as
// its bound allows.
func TestDrainsOfOthersAreEndedByForce(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		block := ofAtMost("1")
		block.Termination = v1alpha1.Graceful
		h.pool("default", block)
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "a", "b")
		for _, name := range []string{"a", "b"} {
			h.api.changeClaim("claim-"+name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
		}
		h.deliver()
		h.advance(10 * time.Minute)
		h.WantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "NodeClaim claim-a is being deleted") {
			t.Errorf("what is said of it: %v", is)
		}
		windowed := ofAtMost("1")
		windowed.Windows = []v1alpha1.Window{{Schedule: "0 12 * * *", Duration: "1h"}}
		h.pool("default", windowed)
		h.WantNoTask("a")
		h.pool("default", ofAtMost("1"))
		h.WantTask("a", nodeclaim.ForceTermination)
		h.WantNoTask("b")
		h.runs("a", how{})
		testkit.Same(t, h.api.claims["claim-a"].Annotations[karpenter.TerminationTimestampAnnotation], treat.Deadline(time.Now()), "the deadline of the claim")
		if last := h.Events[len(h.Events)-1]; last.EventReason != treat.NodeRepaired || !strings.Contains(last.Message, "another client has deleted it") || h.isMarked("a") {
			t.Errorf("the last Event is %+v", last)
		}
		h.deliver()
		h.advance(time.Hour)
		h.WantNoTask("a")
		h.WantNoTask("b")
		// A repair does not begin beside it either.
		h.breaks(corev1.ConditionTrue, "c")
		h.advance(time.Hour)
		h.WantNoTask("c")
		if is := h.finding(policykind.Repair, "c"); is.Code != triage.NotAllowed || !strings.Contains(is.String(), "1 nodes of NodePool default that other clients delete are not drained any longer") {
			t.Errorf("what is said of it: %v", is)
		}
		h.breaks(corev1.ConditionFalse, "c")
		h.goes("a")
		h.advance(time.Hour)
		h.WantTask("b", nodeclaim.ForceTermination)
		h.api.changeNode("b", func(n *corev1.Node) { n.Annotations = map[string]string{karpenter.OurDoNotRepairAnnotation: "true"} })
		h.deliver()
		h.WantNoTask("b")
	})
}

// obstacle keeps repairs of node a from starting, until it ends.
type obstacle struct{ begins, ends func(*nodePoolFixture) }

var (
	tooMany = obstacle{func(h *nodePoolFixture) {
		block := ofAtMost("1")
		block.UnhealthyThreshold = new(intstr.FromInt32(1))
		h.pool("default", block)
		h.breaks(corev1.ConditionTrue, "b")
	}, func(h *nodePoolFixture) { h.breaks(corev1.ConditionFalse, "b") }}
	correlated = obstacle{func(h *nodePoolFixture) {
		failure := &triage.CorrelatedFailure{MinNodes: 1, Window: time.Minute, Labels: []string{"rack"}}
		testkit.Must(h.T, h.Core().SetRails(time.Now(), triage.Rails{CorrelatedFailure: failure}))
		h.api.changeNode("a", func(n *corev1.Node) { n.Labels["rack"] = "1" })
		h.deliver()
	}, func(h *nodePoolFixture) { testkit.Must(h.T, h.Core().SetRails(time.Now(), triage.Rails{})) }}
	cordoned = obstacle{func(h *nodePoolFixture) {
		h.SetRespect(time.Now(), new(dialect.RespectAll()))
		h.api.changeNode("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		h.deliver()
	}, func(h *nodePoolFixture) {
		h.api.changeNode("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		h.deliver()
	}}
)

// To end the drain of another client by force is a new repair, which waits as other repairs do.
// Karpenter taints a node that it drains: that does not count as its work on the node.
func TestDrainsOfOthersWaitAsRepairsDo(t *testing.T) {
	for name, waits := range map[string]obstacle{"too many nodes are unhealthy": tooMany, "the failure is correlated": correlated, "a user cordons the node": cordoned} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.pool("default", ofAtMost("1"))
				h.launches("default", "a", "b", "c")
				h.breaks(corev1.ConditionTrue, "a")
				h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
				h.api.changeNode("a", func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
				})
				waits.begins(h)
				h.advance(10 * time.Minute)
				h.WantNoTask("a")
				waits.ends(h)
				h.advance(time.Minute)
				h.WantTask("a", nodeclaim.ForceTermination)
			})
		})
	}
}

// Every result of each write has a defined next step.
func TestTerminationByWriteResult(t *testing.T) {
	for name, test := range map[string]struct {
		goes              how
		isMarked, deleted bool
		next              string      // once a retry is allowed
		code              triage.Code // of the finding meanwhile
		again             bool        // the ledger still names it
	}{
		"both are made":                      {how{}, true, true, nothing, triage.Treating, true},
		"the mark is stale":                  {how{first: treat.Stale}, false, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the mark was throttled":             {how{first: treat.Busy}, false, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the mark is refused":                {how{first: treat.Refused}, false, false, nodeclaim.TerminateClaim, triage.Retrying, false},
		"the mark is lost":                   {how{first: treat.Unknown}, false, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the answer to the mark is lost":     {how{first: treat.Unknown, unanswered: true}, true, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the deletion was throttled":         {how{second: treat.Busy}, true, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the deletion is refused":            {how{second: treat.Refused}, true, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the deletion is lost":               {how{second: treat.Unknown}, true, false, nodeclaim.TerminateClaim, triage.Treating, true},
		"the answer to the deletion is lost": {how{second: treat.Unknown, unanswered: true}, true, true, nothing, triage.Treating, true},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.makeUnhealthy("b")
				h.writeSnapshot()
				h.runs("a", test.goes)
				if h.isMarked("a") != test.isMarked || (h.api.claims["claim-a"].DeletionTimestamp != nil) != test.deleted {
					t.Errorf("the claim is marked %t, deleted %v", h.isMarked("a"), h.api.claims["claim-a"].DeletionTimestamp)
				}
				if is := h.finding(policykind.Repair, "a"); is.Code != test.code {
					t.Errorf("what is said of it: %v", is)
				}
				if is := h.FindNodeTasks("a").HasSlot(); is != test.again {
					t.Errorf("its slot is kept in the ledger: %t", is)
				}
				if code := h.finding(policykind.Repair, "b").Code; test.again && code != triage.CapFull {
					t.Errorf("another node waits for %s", code)
				}
				if !test.again { // b may go instead
					return
				}
				for range 20 { // as often as it is delayed
					if e, due := h.Next("a"); e == nil && !due.IsZero() {
						h.advance(max(time.Millisecond, time.Until(due)))
					}
				}
				if test.next == nothing {
					h.WantNoTask("a")
				} else {
					h.WantTask("a", test.next)
					h.writeSnapshot()
					h.runs("a", how{})
				}
				if got := h.api.deleted; !slices.Equal(got, []string{"a"}) {
					t.Errorf("deleted: %v", got)
				}
			})
		})
	}
}

// If a write is refused, the next node of the pool that waits for the bound goes.
func TestARefusedMarkFreesTheSlotForAnotherNode(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy("b")
		h.writeSnapshot()
		h.runs("a", how{first: treat.Refused})
		h.terminates("b")
		told := 0
		for _, event := range h.Events {
			if event.EventReason == treat.RepairBlocked && strings.Contains(event.Message, "the NodeClaim could not be deleted") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("the refusal is reported %d times", told)
		}
	})
}

func TestATerminationIsCancelled(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(h *nodePoolFixture)
		code    triage.Code
	}{
		"the node recovers": {func(h *nodePoolFixture) { h.breaks(corev1.ConditionFalse, "a") }, triage.Recovered},
		"the block goes":    {func(h *nodePoolFixture) { h.pool("default", nil) }, triage.RuleGone},
		"the pool goes":     {func(h *nodePoolFixture) { h.noPool("default") }, triage.RuleGone},
		"another governs it": {func(h *nodePoolFixture) {
			h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.NodePool = "default" })
			h.pool("default", nil)
		}, triage.RuleGone},
		"a user forbids it on the claim": {func(h *nodePoolFixture) {
			h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, karpenter.OurDoNotRepairAnnotation, "")
			})
			h.deliver()
		}, triage.Vetoed},
		"a user forbids it on the pool": {func(h *nodePoolFixture) {
			h.pool("default", ofAtMost("1"), func(p *repairblock.Pool) {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, karpenter.DoNotRepairAnnotation, "true")
			})
		}, triage.Vetoed},
		"Karpenter begins with it": {func(h *nodePoolFixture) {
			h.api.changeClaim("claim-a", sets(karpenter.DisruptionReason, karpenter.Unhealthy, metav1.ConditionTrue))
			h.deliver()
		}, triage.Vetoed},
		"the block is switched off": {func(h *nodePoolFixture) {
			block := ofAtMost("1")
			block.Enabled = new(false)
			h.pool("default", block)
		}, triage.Vetoed},
		"the window closes": {func(h *nodePoolFixture) {
			block := ofAtMost("1")
			block.Windows = []v1alpha1.Window{{Schedule: "0 12 * * *", Duration: "1h"}}
			h.pool("default", block)
		}, triage.Vetoed},
		"too many nodes are unhealthy": {func(h *nodePoolFixture) {
			tooMany.begins(h)
			h.advance(engine.FirstRefusedRetry)
		}, triage.Vetoed},
		"the failure is correlated": {func(h *nodePoolFixture) {
			correlated.begins(h)
			h.advance(engine.FirstRefusedRetry)
		}, triage.Vetoed},
		"the budget is used up": {func(h *nodePoolFixture) {
			h.pool("default", ofAtMost("1"), func(p *repairblock.Pool) {
				p.Spec.Disruption.Budgets = []karpenter.Budget{{Nodes: "1"}}
			})
			h.api.changeClaim("claim-b", sets(karpenter.DisruptionReason, "Drifted", metav1.ConditionTrue))
			h.deliver()
			h.advance(engine.FirstRefusedRetry) // the deletion would be tried again
		}, triage.Vetoed},
		"it is in another pool": {func(h *nodePoolFixture) {
			h.api.changeNode("a", func(n *corev1.Node) { n.Labels[karpenter.NodePoolLabel] = "other" })
			h.deliver()
		}, triage.Deselected},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.makeUnhealthy()
				h.writeSnapshot()
				h.runs("a", how{second: treat.Refused})
				test.happens(h)
				if e := h.WantTask("a", nodeclaim.CancelTermination); e.Reason.Code != test.code || claimWork(e).Mark.NodeUID != "uid-of-a" {
					t.Errorf("the termination is cancelled because of %v: %+v", e.Reason, claimWork(e).Mark)
				}
				h.runs("a", how{first: treat.Unknown})
				if !h.isMarked("a") || !h.FindNodeTasks("a").HasSlot() {
					t.Error("its slot is free before the termination is cancelled")
				}
				h.advance(engine.LastRetry)
				h.runs("a", how{})
				if h.isMarked("a") || h.FindNodeTasks("a") != nil && h.FindNodeTasks("a").HasSlot() || slices.ContainsFunc(h.Core().Grants(), func(g triage.Grant) bool { return g.Rule == poolRuleID("default") }) {
					t.Errorf("afterwards: marked %t, %+v, %+v", h.isMarked("a"), h.FindNodeTasks("a"), h.Core().Grants())
				}
				told := slices.IndexFunc(h.Events, func(event treat.Event) bool { return event.EventReason == treat.TerminationCancelled })
				if told < 0 {
					t.Error("there is no Event about the cancelled termination")
				}
			})
		})
	}
}

func TestACordonCancelsATermination(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy()
		h.writeSnapshot()
		h.runs("a", how{second: treat.Refused})
		cordoned.begins(h)
		h.advance(engine.FirstRefusedRetry)
		testkit.Contains(t, h.WantTask("a", nodeclaim.CancelTermination).Reason.String(), "held by respect.cordons of Guardrails", "the reason")
	})
}

func TestADeletionCannotBeCancelled(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy("b")
		h.terminates("a")
		h.breaks(corev1.ConditionFalse, "a")
		h.WantNoTask("a")
		h.pool("default", nil)
		h.WantNoTask("a")
		h.pool("default", ofAtMost("1"))
		h.WantNoTask("a")
		if h.taken("default") != 1 {
			t.Errorf("%d slots are taken", h.taken("default"))
		}
		h.WantNoTask("b")
	})
}

func TestANodeThatIsGoneBeforeTheTaskResult(t *testing.T) {
	for name, test := range map[string]func(h *nodePoolFixture, r *engine.TaskResult){
		"with its claim": func(h *nodePoolFixture, r *engine.TaskResult) {
			h.api.carryOut(r, how{})
			h.goes("a")
		},
		"before anything was sent": func(h *nodePoolFixture, r *engine.TaskResult) {
			h.api.removeNode("a")
			h.deliver()
			h.api.carryOut(r, how{})
		},
		"and is made anew": func(h *nodePoolFixture, r *engine.TaskResult) {
			h.api.carryOut(r, how{})
			h.goes("a")
			h.api.launch("a", "default", unready, func(n *corev1.Node, c *karpenter.NodeClaim) {
				n.UID, c.UID, c.Name = "another", "another", "another-claim"
				n.Spec.ProviderID, c.Status.ProviderID = "kwok://another", "kwok://another"
			})
			h.deliver()
		},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.makeUnhealthy("b")
				h.writeSnapshot()
				r := h.begins("a")
				test(h, r)
				h.Finish(r)
				h.deliver()
				if h.taken("default") != 1 {
					t.Errorf("%d slots are taken", h.taken("default"))
				}
				h.WantNoTask("b")
				h.writeSnapshot()
				if e, is := h.named("a").(ledger.DeletedNode); !is {
					t.Errorf("the ledger names %+v", e)
				}
				if h.runRound(); h.FindNodeTasks("a") != nil && h.FindNodeTasks("a").HasSlot() {
					t.Errorf("and it is kept on the ledger: %+v", h.FindNodeTasks("a").Slot())
				}
			})
		})
	}
}

// A claim whose node was created again still has the mark for the earlier node.
func TestAMarkForAnEarlierNodeIsRemoved(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy()
		h.writeSnapshot()
		h.runs("a", how{second: treat.Refused})
		h.api.changeNode("a", func(n *corev1.Node) { n.UID = "another" })
		h.deliver()
		h.advance(time.Hour)
		h.WantTask("a", nodeclaim.CancelTermination)
		h.runs("a", how{})
		if h.isMarked("a") {
			t.Error("the mark is still there")
		}
	})
}

// A veto may be on the node, its claim or its pool, and may come and go.
func TestVetoes(t *testing.T) {
	for _, annotation := range []string{karpenter.DoNotRepairAnnotation, karpenter.OurDoNotRepairAnnotation} {
		for name, set := range map[string]func(h *nodePoolFixture, value map[string]string){
			"the node": func(h *nodePoolFixture, value map[string]string) {
				h.api.changeNode("a", func(n *corev1.Node) { n.Annotations = value })
				h.deliver()
			},
			"NodeClaim claim-a": func(h *nodePoolFixture, value map[string]string) {
				h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { c.Annotations = value })
				h.deliver()
			},
			"NodePool default": func(h *nodePoolFixture, value map[string]string) {
				h.pool("default", ofAtMost("1"), func(p *repairblock.Pool) { p.Annotations = value })
			},
		} {
			t.Run(name+" has "+annotation, func(t *testing.T) {
				withNodePools(t, func(h *nodePoolFixture) {
					h.T = t
					h.makeUnhealthy()
					h.WantTask("a", nodeclaim.TerminateClaim)
					set(h, map[string]string{annotation: "true"})
					h.WantNoTask("a")
					if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), name+" is annotated "+annotation) {
						t.Errorf("what is said of it: %v", is)
					}
					set(h, nil)
					h.WantTask("a", nodeclaim.TerminateClaim)
				})
			})
		}
	}
	for name, test := range map[string]struct {
		change func(*karpenter.NodeClaim)
		words  string
	}{
		"Karpenter is about to":          {sets(karpenter.DisruptionReason, karpenter.Unhealthy, metav1.ConditionTrue), "NodeClaim claim-a is about to be deleted by Karpenter: Unhealthy"},
		"Karpenter restarts its machine": {sets(karpenter.Rebooting, "", metav1.ConditionTrue), "NodeClaim claim-a is being rebooted by Karpenter"},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.makeUnhealthy()
				h.api.changeClaim("claim-a", test.change)
				h.deliver()
				h.WantNoTask("a")
				if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), test.words) {
					t.Errorf("what is said of it: %v", is)
				}
			})
		})
	}
}

// The Event names the deadline of a drain, if there is one.
func TestTheDeadlineOfADrainIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		mode   v1alpha1.Termination
		grace  string
		ending string
	}{
		"by force":                {"", "", "by force, without draining its pods"},
		"gracefully":              {v1alpha1.Graceful, "", "gracefully, its pods are drained first"},
		"gracefully, for a while": {v1alpha1.Graceful, "5m", "gracefully, its pods are drained first, and those that are left at 2000-01-01T00:15:00Z are ended by force"},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				spec := ofAtMost("1")
				spec.Termination, spec.TerminationGracePeriod = test.mode, test.grace
				h.pool("default", spec)
				h.launches("default", "a", "b")
				h.breaks(corev1.ConditionTrue, "a")
				h.advance(10 * time.Minute)
				h.terminates("a")
				if told := h.Events[len(h.Events)-1]; told.EventReason != treat.NodeRepaired || told.Message != "Deleting NodeClaim claim-a "+test.ending {
					t.Errorf("what is Events: %s", told.Message)
				}
			})
		})
	}
}

// A new leader that reads an entry for a deleted claim and node would wait for a
// replacement that has existed for long.
func TestAnEndedTerminationLeavesTheLedger(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy()
		h.terminates("a")
		h.launches("default", "d") // before the old node is gone
		h.goes("a")
		h.runRound()
		if e := h.named("a"); e == nil {
			t.Fatal("the ledger has no entry for node a, so the test proves nothing")
		}
		h.writeSnapshot()
		if e := h.named("a"); e != nil || h.taken("default") != 0 {
			t.Errorf("the ledger names %+v, and %d slots are taken", e, h.taken("default"))
		}
		if entries, due := h.Snapshot(); entries != nil || !due.IsZero() {
			t.Errorf("another snapshot is due: %v, due %s", entries, due)
		}
	})
}

// The next leader knows a deleted node and its pool only from the ledger, even if the
// policy has been replaced.
func TestASlotStaysInItsPoolWithoutNodeAndPolicy(t *testing.T) {
	for name, isNamed := range map[string]bool{"the page names the termination": false, "the page names the node that has gone": true} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				oneAtATime := func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = *ofAtMost("1") }
				h.pool("default", nil)
				h.policy("before", forPool("default"), oneAtATime)
				h.launches("default", "a", "b")
				h.breaks(corev1.ConditionTrue, "a", "b")
				h.advance(10 * time.Minute)
				h.terminates("a")
				h.goes("a")
				if isNamed {
					h.writeSnapshot()
				}
				if isGone := len(enginetest.EntriesOf[ledger.DeletedNode](h.api.page)) > 0; isGone != isNamed {
					t.Fatalf("the ledger is %+v", h.api.page)
				}
				h.noPolicy("before")
				h.policy("after", forPool("default"), oneAtATime)
				for leader, h := range map[string]*nodePoolFixture{"the same": h, "a successor": h.successor()} {
					h.WantNoTask("b")
					if is := h.finding(policykind.Repair, "b"); is.Code != triage.CapFull {
						t.Errorf("%s says of the other: %v", leader, is)
					}
				}
			})
		})
	}
}
