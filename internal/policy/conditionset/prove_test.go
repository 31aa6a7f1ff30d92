package conditionset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/validate"
)

// evicting sets NoExecute with the default bound: 6 of 13 nodes.
func evicting(s *v1alpha1.ConditionSet) { s.Spec.Effect = corev1.TaintEffectNoExecute }

func (c *fixture) begin() {
	c.t.Helper()
	c.loaded = true
	c.core.Loaded(time.Now())
	for i := range 13 {
		c.says(i, "Ready", corev1.ConditionTrue)
	}
}

// says makes a node report a condition in addition to its earlier ones.
func (c *fixture) says(i int, condition corev1.NodeConditionType, status corev1.ConditionStatus) {
	c.t.Helper()
	node := named(fmt.Sprintf("node-%d", i), "1")
	if state := c.nodes[node.Name]; state != nil {
		node = state.Object.DeepCopy()
	}
	rows := slices.DeleteFunc(node.Status.Conditions, func(row corev1.NodeCondition) bool { return row.Type == condition })
	rows = append(rows, corev1.NodeCondition{Type: condition, Status: status})
	node.Status.Conditions = rows
	c.upsertNode(node)
}

// judges runs the part of a round that handles sets, and returns when it is due again.
func (c *fixture) judges(sets ...*v1alpha1.ConditionSet) time.Time {
	c.t.Helper()
	c.vets(sets...)
	return c.proveSets(time.Now())
}

// tainted counts the nodes that are to have a taint.
func (c *fixture) tainted() (n int) {
	for name := range c.nodes {
		if plan, _ := c.core.Plan(name); len(plan.Taints) > 0 {
			n++
		}
	}
	return n
}

// accepted returns the Accepted condition of a set.
func (c *fixture) accepted(name string) metav1.Condition {
	counts, _ := c.core.Population(setRule(name))
	return c.statusOf(c.known[name], counts).Conditions[0]
}

func (c *fixture) wants(status metav1.ConditionStatus, reason string, tainted int, says ...string) {
	c.t.Helper()
	got := c.accepted("a")
	if got.Status != status || got.Reason != reason {
		c.t.Fatalf("accepted: %s (%s: %s), want %s (%s)", got.Status, got.Reason, got.Message, status, reason)
	}
	for _, part := range says {
		if !strings.Contains(got.Message, part) {
			c.t.Errorf("nothing of %q in %q", part, got.Message)
		}
	}
	if n := c.tainted(); n != tainted {
		c.t.Errorf("%d nodes are to have a taint, want %d", n, tainted)
	}
}

const yes, no = metav1.ConditionTrue, metav1.ConditionFalse

// All nodes start to report the set's condition, which is a status of healthy nodes.
func TestASetOfHealthyNodesIsHeld(t *testing.T) {
	for name, pause := range map[string]time.Duration{"at once": 0, "one by one": proveEvery, "in a slow rollout": reportsSettle - time.Second} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.begin()
				c.judges(setNamed("a", asking("FanBroken", "False"), evicting))
				c.wants(yes, reasonAwaitingReports, 0, "no node reports FanBroken")
				for i := range 13 {
					c.says(i, "FanBroken", corev1.ConditionFalse)
					c.judges()
					if n := c.tainted(); n > 0 {
						t.Fatalf("%d nodes are to have a taint after %d reports", n, i+1)
					}
					pass(pause)
				}
				pass(proveEvery)
				c.judges()
				c.wants(no, reasonHeld, 0, "too few nodes reported FanBroken when the set was accepted", "of 13 selected nodes", v1alpha1.AcceptImpactAnnotation, "taints on nodes stay")
				if plan, _ := c.core.Plan("node-3"); !strings.Contains(plan.Reason.String(), "would not be accepted now") {
					t.Errorf("the node says %s", plan.Reason)
				}
				// Neither fewer matching nodes nor time end the hold.
				for i := range 10 {
					c.says(i, "FanBroken", corev1.ConditionTrue)
				}
				pass(2 * reportsSettle)
				c.judges()
				c.wants(no, reasonHeld, 0)
				told := len(c.events)
				c.judges(setNamed("a", asking("FanBroken", "False"), evicting, func(s *v1alpha1.ConditionSet) { s.Annotations = accepting }))
				c.wants(yes, "Followed", 3)
				if len(c.events) != told+1 {
					t.Errorf("Events: %v", c.events)
				}
			})
		})
	}
}

// One canary reports the condition before the set is written, so admission sees one node
// only. Then all other nodes report the same.
func TestASetThatACanaryMatchesIsHeld(t *testing.T) {
	for name, status := range map[string]corev1.ConditionStatus{"the canary matches": "False", "the canary does not match": "True"} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.begin()
				c.says(0, "FanBroken", status)
				c.judges(setNamed("a", asking("FanBroken", "False"), evicting))
				if n := c.tainted(); n > 0 {
					t.Errorf("%d nodes are to have a taint when one reports", n)
				}
				for i := 1; i < 13; i++ {
					c.says(i, "FanBroken", corev1.ConditionFalse)
				}
				pass(proveEvery)
				c.judges()
				c.wants(no, reasonHeld, 0, "too few nodes reported FanBroken when the set was accepted", "of 13 selected nodes", v1alpha1.AcceptImpactAnnotation)
				if len(c.events) == 0 || !strings.Contains(c.events[len(c.events)-1].Failure, "held: ") {
					t.Errorf("Events: %+v", c.events)
				}
			})
		})
	}
}

// A proven set is edited while all nodes match. An edit that only narrows it is followed,
// as for any set.
func TestAnEditNarrowsAProvenSetDuringAStorm(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		for i := range 13 {
			c.says(i, "FanBroken", corev1.ConditionFalse)
		}
		c.judges(setNamed("a", asking("FanBroken", "True"), evicting))
		c.wants(yes, "Followed", 0)
		for i := range 13 {
			c.says(i, "FanBroken", corev1.ConditionTrue)
		}
		c.judges(setNamed("a", asking("FanBroken", "True"), evicting, func(s *v1alpha1.ConditionSet) {
			s.Generation, s.Spec.MaxUnhealthy = 2, new(intstr.FromInt32(1))
		}))
		c.wants(yes, "Followed", 13)
	})
}

// The selector selects no node, so nodes of other sets prove nothing.
func TestASetWithoutNodesIsNotProven(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		c.says(0, "FanBroken", corev1.ConditionFalse)
		c.judges(setNamed("a", asking("FanBroken", "False"), evicting, func(s *v1alpha1.ConditionSet) {
			s.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "new"}}
		}))
		c.wants(yes, reasonAwaitingReports, 0)
	})
}

// The set matches unhealthy nodes. It is followed as soon as enough nodes report that
// they are healthy.
func TestASetOfUnhealthyNodesIsProven(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		c.judges(setNamed("a", asking("FanBroken", "True"), evicting))
		c.says(0, "FanBroken", corev1.ConditionTrue)
		c.judges()
		c.wants(no, reasonAwaitingReports, 0, "1 of 13 selected nodes", "12 more may match once they report FanBroken", "maxUnhealthy allows 6 (49%)", v1alpha1.AcceptImpactAnnotation)
		for i := 1; i <= 7; i++ {
			pass(proveEvery)
			c.says(i, "FanBroken", corev1.ConditionFalse)
			c.judges()
			if n := c.tainted(); n != 0 && i < 7 {
				t.Errorf("%d nodes are to have a taint when %d report", n, i+1)
			}
		}
		c.wants(yes, "Followed", 1)
		if len(c.events) != 2 {
			t.Errorf("Events: %v", c.events)
		}
		for i := range 13 { // its bound is sufficient from now on
			c.says(i, "FanBroken", corev1.ConditionTrue)
		}
		c.judges()
		c.wants(yes, "Followed", 13)
	})
}

// Only unhealthy nodes report the condition. Each new report delays the taints until the
// reports have settled.
func TestAConditionThatOnlyUnhealthyNodesReport(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		c.judges(setNamed("a", asking("FanBroken", "True"), evicting))
		c.says(0, "FanBroken", corev1.ConditionTrue)
		due := c.judges()
		if wait := time.Until(due); wait <= 0 || wait > reportsSettle {
			t.Fatalf("the set is judged again in %s", wait)
		}
		pass(reportsSettle - time.Second)
		c.judges()
		c.wants(no, reasonAwaitingReports, 0)
		pass(time.Second)
		if due := c.judges(); !due.IsZero() {
			t.Errorf("nothing is waited for, until %s", due)
		}
		c.wants(yes, reasonAwaitingReports, 1)
		c.carries(c.nodes["node-0"].Object, "a", "example.com/a", corev1.TaintEffectNoExecute)
		// All other nodes report the same at once: existing taints stay.
		for i := 1; i < 13; i++ {
			c.says(i, "FanBroken", corev1.ConditionTrue)
		}
		pass(proveEvery)
		c.judges()
		c.wants(no, reasonHeld, 1, "13 of 13 selected nodes")
		// An edit that only narrows is accepted for a set in force, which this one is
		// not.
		c.judges(setNamed("a", asking("FanBroken", "True"), func(s *v1alpha1.ConditionSet) { s.Generation = 2 }))
		c.is("a", validate.Impact)
	})
}

// Two nodes have no agent, so the set is never proven. Nodes that get unhealthy after the
// reports have settled are what the set is for, even if they exceed its bound.
func TestASetThatWasReleasedIsNotHeldForUnhealthyNodes(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		for i := range 10 {
			c.says(i, "FanBroken", corev1.ConditionFalse)
		}
		c.judges(setNamed("a", asking("FanBroken", "True"), evicting, func(s *v1alpha1.ConditionSet) {
			bound := intstr.FromInt32(1)
			s.Spec.MaxUnhealthy = &bound
		}))
		pass(reportsSettle)
		c.judges()
		c.wants(yes, reasonAwaitingReports, 0, "when more than 1 further nodes begin to report")
		for i := range 2 {
			c.says(i, "FanBroken", corev1.ConditionTrue)
			pass(proveEvery)
			c.validation.toProve = true
			c.judges()
		}
		c.wants(yes, reasonAwaitingReports, 2)
		// One more node reports: the bound is for that many.
		c.says(10, "FanBroken", corev1.ConditionFalse)
		pass(proveEvery)
		c.judges()
		c.wants(yes, reasonAwaitingReports, 2)
	})
}

// An edit proves nothing.
func TestAnEditOfAnUnprovenSetIsUnproven(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		c.judges(setNamed("a", asking("FanBroken", "False"), evicting))
		c.says(0, "FanBroken", corev1.ConditionFalse)
		c.judges()
		pass(proveEvery)
		c.judges(setNamed("a", asking("FanBroken", "False"), func(s *v1alpha1.ConditionSet) { s.Generation = 2 }))
		c.wants(no, reasonAwaitingReports, 0)
	})
}

func TestWhatNeedsNoProof(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*v1alpha1.ConditionSet)
		tainted int
	}{
		"the catalogue knows the problem": {asking("KernelDeadlock", "True"), 1},
		"a problem is among the conditions": {func(s *v1alpha1.ConditionSet) {
			s.Spec.Conditions["KernelDeadlock"] = v1alpha1.SetCondition{Status: "True"}
		}, 1},
		"unknown is no healthy status":     {asking("FanBroken", "Unknown"), 0},
		"the user has accepted the impact": {func(s *v1alpha1.ConditionSet) { s.Annotations = accepting }, 1},
		"on dry run":                       {func(s *v1alpha1.ConditionSet) { s.Spec.DryRun = true }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.begin()
				c.judges(setNamed("a", asking("FanBroken", "False"), evicting, test.change))
				if got := c.accepted("a"); got.Status != yes || got.Reason == reasonAwaitingReports {
					t.Errorf("%s: %s", got.Reason, got.Message)
				}
				c.says(0, "FanBroken", corev1.ConditionFalse)
				c.says(0, "KernelDeadlock", corev1.ConditionTrue)
				c.judges()
				if n := c.tainted(); n != test.tainted {
					t.Errorf("%d nodes are to have a taint, want %d", n, test.tainted)
				}
			})
		})
	}
}

// The status tells a new leader what is still to be proven. Nodes started to report while
// no controller led.
func TestANewLeaderContinuesTheProof(t *testing.T) {
	told := func(status metav1.ConditionStatus, reason string) func(*v1alpha1.ConditionSet) {
		return func(s *v1alpha1.ConditionSet) {
			s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Accepted, Status: status, Reason: reason, Message: "as it was told", ObservedGeneration: 1}}
		}
	}
	for name, test := range map[string]struct {
		status  func(*v1alpha1.ConditionSet)
		reports int
		reason  string
		accepts metav1.ConditionStatus
		tainted int
	}{
		"one report":             {told(yes, reasonAwaitingReports), 1, reasonAwaitingReports, no, 0},
		"all report":             {told(yes, reasonAwaitingReports), 13, reasonHeld, no, 0},
		"it was held":            {told(no, reasonHeld), 1, reasonHeld, no, 0},
		"it was proven":          {told(yes, "Followed"), 13, "Followed", yes, 13},
		"there are no reports":   {told(yes, "Followed"), 0, reasonAwaitingReports, yes, 0},
		"the user has confirmed": {func(s *v1alpha1.ConditionSet) { told(no, reasonHeld)(s); s.Annotations = accepting }, 13, "Followed", yes, 13},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.upsert(time.Now(), setNamed("a", asking("FanBroken", "False"), evicting, test.status))
				c.validateDue(time.Now(), false)
				c.begin()
				c.loaded = false
				for i := range test.reports {
					c.says(i, "FanBroken", corev1.ConditionFalse)
				}
				c.judges()
				c.loaded = true
				c.core.Advance(time.Now())
				c.wants(test.accepts, test.reason, test.tainted)
			})
		})
	}
}

// A set in a ConfigMap has no status. A new leader holds it if admission would reject it
// now, unless it has placed taints.
func TestANewLeaderJudgesASetInAConfigMap(t *testing.T) {
	for name, test := range map[string]struct {
		reports int
		placed  bool
		reason  string
		tainted int
	}{
		"few report":                 {reports: 6, reason: reasonAwaitingReports},
		"few report, and it has ran": {reports: 6, placed: true, reason: reasonAwaitingReports, tainted: 6},
		"all report":                 {reports: 13, reason: reasonHeld},
		"all report, and it has ran": {reports: 13, placed: true, reason: reasonAwaitingReports, tainted: 13},
		"none report":                {reason: reasonAwaitingReports},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.begin()
				c.loaded = false
				for i := range test.reports {
					c.says(i, "FanBroken", corev1.ConditionFalse)
				}
				if test.placed {
					c.carries(c.nodes["node-0"].Object, "a", "example.com/a", corev1.TaintEffectNoExecute)
				}
				c.judges(setNamed("a", asking("FanBroken", "False"), evicting, acceptedBefore(1), func(s *v1alpha1.ConditionSet) {
					s.Namespace, s.OwnerReferences = "ns", []metav1.OwnerReference{{Name: "policies"}}
				}))
				c.loaded = true
				c.core.Advance(time.Now())
				if got := c.accepted("a"); got.Reason != test.reason {
					t.Errorf("%s: %s", got.Reason, got.Message)
				}
				if n := c.tainted(); n != test.tainted {
					t.Errorf("%d nodes are to have a taint, want %d", n, test.tainted)
				}
				for i := test.reports; i < 13; i++ { // the other nodes turn out to match as well
					c.says(i, "FanBroken", corev1.ConditionFalse)
				}
				pass(proveEvery)
				c.judges()
				if got := c.accepted("a"); test.reports < 13 && got.Reason != reasonHeld {
					t.Errorf("when all nodes report: %s: %s", got.Reason, got.Message)
				}
				if test.reason == reasonHeld && (len(c.events) != 1 || !strings.Contains(c.events[0].Failure, "annotate the ConfigMap")) {
					t.Errorf("Events: %+v", c.events)
				}
			})
		})
	}
}
