package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestMeaning tests the effects of sets. All parts share one cluster and one controller;
// each has its own scope.
func TestMeaning(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newFixture(t)
	controller := w.scope(t, "all").start(install.Options{})
	for _, part := range []part{
		{"the seed applies as written", "seed", testSeed},
		{"all conditions must match", "and", testAllConditions},
		{"only the highest effect is placed", "highest", testHighestEffect},
		{"a set that fell back still supersedes", "declared", testFallbackSupersedes},
		{"an Unknown condition keeps existing taints", "unknown", testUnknownKeeps},
		{"a silent agent does not count as Unknown", "silent", testSilentAgent},
		{"a condition must last for its duration", "duration", testDuration},
		{"a bound holds NoExecute back", "bounds", testBounds},
		{"the longest waiting goes first", "turns", testTurns},
		{"NoExecute waits for a window", "window", testWindow},
		{"a bound grows with the nodes that join", "joining", testJoining},
		{"the control plane gets no NoExecute", "control-plane", testControlPlane},
		{"a dry run places nothing", "dry", testDryRun},
		{"a paused set places nothing new", "paused", testPaused},
		{"an invalid set says why", "invalid", testInvalid},
		{"taints of other writers are left alone", "foreign", testForeign},
		{"another writer's taint in place of ours is replaced when it is removed", "served", testServedByOthers},
		{"a taint that a user removed is placed again through the ledger", "byhand", testRemovedByHand},
		{"a record that cannot be read removes nothing", "corrupt", testCorruptRecord},
		{"taints without a record count against the bound", "unrecorded", testLostRecords},
		{"status, Events and columns show what happens", "observe", testObservability},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			part.test(subscope)
			subscope.judge(history.Config{}, history.Counts{Placements: 1})
			subscope.deleteNodes()
		})
	}
	t.Run("a changed set changes its taints", func(t *testing.T) { testChanges(w.scope(t, "up"), nil) })
	t.Run("a set that is changed while the controller is down changes its taints", func(t *testing.T) { testChanges(w.scope(t, "down"), controller) })
	t.Run("a restart does not restart the clock", func(t *testing.T) { testClockSurvives(w.scope(t, "clock"), controller) })
	t.Run("metrics count the writes", func(t *testing.T) { testMetrics(w.scope(t, "metrics"), controller) })
}

func effect(e corev1.TaintEffect) func(*v1alpha1.ConditionSetSpec) {
	return func(s *v1alpha1.ConditionSetSpec) { s.Effect = e }
}

// evict makes a set ask for NoExecute on this number of nodes.
func evict(most intstr.IntOrString) func(*v1alpha1.ConditionSetSpec) {
	return func(s *v1alpha1.ConditionSetSpec) { s.Effect, s.MaxUnhealthy = corev1.TaintEffectNoExecute, &most }
}

var everyone = intstr.FromString("100%")

// on makes a set ask for these conditions to be True.
func on(conditions ...string) func(*v1alpha1.ConditionSetSpec) {
	return func(s *v1alpha1.ConditionSetSpec) {
		s.Conditions = map[string]v1alpha1.SetCondition{}
		for _, condition := range conditions {
			s.Conditions[condition] = stand
		}
	}
}

func testSeed(w *scope) {
	const seed = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata:
  name: SCOPE-1
spec:
  type: KubeletContainerRuntimeUnhealthy
  effect: NoExecute
  taintKey: node.stakater.com/KubeletContainerRuntimeUnhealthy
  conditions:
    KubeletUnhealthy:
      status: true
    ContainerRuntimeUnhealthy:
      status: unknown
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata:
  name: SCOPE-2
spec:
  type: KernelDeadlock
  effect: NoExecute
  taintKey: node.stakater.com/KernelDeadlock
  conditions:
    KernelDeadlock:
      status: true
`
	testkit.Value(w.KubectlApply(w.t.Context(), strings.ReplaceAll(seed, "SCOPE", w.name))).Must(w.t)
	w.createNodes(testbed.Nodes{Count: 4})
	w.setCondition(w.node(1), "KubeletUnhealthy", corev1.ConditionTrue)
	w.setCondition(w.node(1), "ContainerRuntimeUnhealthy", corev1.ConditionUnknown)
	w.setCondition(w.node(2), "KernelDeadlock", corev1.ConditionTrue)
	w.has(w.node(1), noExecute("node.stakater.com/KubeletContainerRuntimeUnhealthy"))
	w.has(w.node(2), noExecute("node.stakater.com/KernelDeadlock"))
}

func testAllConditions(w *scope) {
	w.createSet("both", func(s *v1alpha1.ConditionSetSpec) {
		s.Conditions = map[string]v1alpha1.SetCondition{"Slow": stand, "Deaf": {Status: "Unknown"}, "Fresh": {Status: "False"}}
	})
	w.createNodes(testbed.Nodes{Count: 5, Conditions: []corev1.NodeCondition{{Type: "Fresh", Status: corev1.ConditionFalse}}})
	w.setCondition(w.node(1), "Slow", corev1.ConditionTrue) // and Deaf is missing
	w.setCondition(w.node(2), "Deaf", corev1.ConditionUnknown)
	w.setCondition(w.node(3), "Slow", corev1.ConditionTrue)
	w.setCondition(w.node(3), "Deaf", corev1.ConditionTrue)
	w.setCondition(w.node(4), "Slow", corev1.ConditionFalse)
	w.setCondition(w.node(4), "Deaf", corev1.ConditionUnknown)
	w.setCondition(w.node(5), "Slow", corev1.ConditionTrue)
	w.setCondition(w.node(5), "Deaf", corev1.ConditionUnknown)
	w.has(w.node(5), noSchedule(w.key("both")))
	for _, number := range []int{1, 2, 3, 4} {
		w.hasNow(w.node(number))
	}
	w.hasStatus("both", saysOf(w.node(1), "Partial", "2 of 3 conditions are met"))

	w.setCondition(w.node(5), "Slow", corev1.ConditionFalse)
	w.has(w.node(5))
}

func testHighestEffect(w *scope) {
	node := w.createNodes(testbed.Nodes{Count: 1})[0]
	w.createSet("low", on("Low"), effect(corev1.TaintEffectPreferNoSchedule))
	w.createSet("mid", on("Mid"))
	w.createSet("one", on("High"), evict(everyone))
	w.createSet("two", on("High"), evict(everyone))

	w.setCondition(node, "Low", corev1.ConditionTrue)
	w.has(node, preferNoSchedule(w.key("low")))
	w.setCondition(node, "Mid", corev1.ConditionTrue)
	w.has(node, noSchedule(w.key("mid")))
	w.hasStatus("low", saysOf(node, "Superseded", "superseded by ConditionSet/"+w.name+"-mid (NoSchedule)"))
	w.setCondition(node, "High", corev1.ConditionTrue)
	w.has(node, noExecute(w.key("one")), noExecute(w.key("two")))
	for _, name := range []string{"low", "mid"} {
		status := w.hasStatus(name, saysOf(node, "Superseded", "superseded by ConditionSet/"+w.name+"-one (NoExecute)"))
		if status.Superseded != 1 || status.Matched != 1 || status.Tainted != 0 {
			w.t.Errorf("status of %s counts %d matched, %d tainted, %d superseded", name, status.Matched, status.Tainted, status.Superseded)
		}
	}

	w.setCondition(node, "High", corev1.ConditionFalse)
	w.has(node, noSchedule(w.key("mid")))
	w.setCondition(node, "Mid", corev1.ConditionFalse)
	w.has(node, preferNoSchedule(w.key("low")))
	w.setCondition(node, "Low", corev1.ConditionFalse)
	w.has(node)
}

// The declared effect counts, and not the fallback.
func testFallbackSupersedes(w *scope) {
	node := w.createNodes(testbed.Nodes{Count: 1})[0]
	w.createSet("weak")
	w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	w.has(node, noSchedule(w.key("weak")))
	w.createSet("bound", evict(intstr.FromInt32(0)))
	w.has(node, noSchedule(w.key("bound")))
	w.hasStatus("weak", saysOf(node, "Superseded", "superseded by ConditionSet/"+w.name+"-bound (NoExecute)"))
	w.deleteSet("bound")
	w.has(node, noSchedule(w.key("weak")))
}

func testUnknownKeeps(w *scope) {
	w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(1)))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(1), noExecute(w.key("set")))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(2), noSchedule(w.key("set")))

	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionUnknown)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionUnknown)
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionUnknown)
	w.hasStatus("set", saysOf(w.node(3), "Unclear"))
	w.hasStatus("set", saysOf(w.node(1), "Tainted", "stays while its condition is Unknown"))
	w.hasNow(w.node(1), noExecute(w.key("set")))
	w.hasNow(w.node(2), noSchedule(w.key("set")))
	w.hasNow(w.node(3))

	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(1))
	w.has(w.node(2), noExecute(w.key("set"))) // it is next
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(2))
}

// A broken DaemonSet must not evict a cluster.
func testSilentAgent(w *scope) {
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("unknown", func(s *v1alpha1.ConditionSetSpec) {
		s.Conditions = map[string]v1alpha1.SetCondition{"Unhealthy": {Status: "Unknown"}}
	})
	w.createSet("even-silent", func(s *v1alpha1.ConditionSetSpec) {
		s.Conditions = map[string]v1alpha1.SetCondition{"Unhealthy": {Status: "Unknown", EvenSilent: true}}
	})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionUnknown, because("AgentSilent"))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionUnknown, because("NotObserved"))
	w.has(w.node(2), noSchedule(w.key("unknown")), noSchedule(w.key("even-silent")))
	w.has(w.node(1), noSchedule(w.key("even-silent")))

	// The agent of an unhealthy node becomes silent: existing taints stay.
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionUnknown, because("AgentSilent"))
	w.hasStatus("unknown", saysOf(w.node(2), "Tainted", "stays while its condition is Unknown"))
	w.hasNow(w.node(2), noSchedule(w.key("unknown")), noSchedule(w.key("even-silent")))
}

func testDuration(w *scope) {
	const short = 2 * time.Second
	lasting := func(d string) func(*v1alpha1.ConditionSetSpec) {
		return func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["Unhealthy"] = v1alpha1.SetCondition{Status: "True", Duration: d}
		}
	}
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("short", lasting(short.String()))
	w.createSet("long", lasting("1h"), effect(corev1.TaintEffectNoExecute))
	w.hasStatus("long", isAccepted(metav1.ConditionTrue, "Followed"))
	begin := time.Now()
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(1), noSchedule(w.key("short")))
	// The taint has whole seconds, the recorded history is exact.
	if waited := time.Since(begin); waited < short {
		w.t.Errorf("the taint was placed after %s, before its duration of %s", waited, short)
	}
	w.hasNow(w.node(2))
	w.hasStatus("long", saysOf(w.node(1), "Pending", "eligible at "))

	w.editSet("long", lasting("1ms")) // its clock has run since
	w.has(w.node(1), noExecute(w.key("long")))
}

func testClockSurvives(w *scope, controller *install.Controller) {
	hours := func(n int) func(*v1alpha1.ConditionSetSpec) {
		return func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["Unhealthy"] = v1alpha1.SetCondition{Status: "True", Duration: (time.Duration(n) * time.Hour).String()}
		}
	}
	two := time.Now().Add(-2 * time.Hour)
	w.createSet("set", hours(3))
	w.createNodes(testbed.Nodes{Count: 2, Conditions: []corev1.NodeCondition{
		{Type: "Unhealthy", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(two)},
	}})
	w.hasStatus("set", saysOf(w.node(2), "Pending"))
	// The first node's own timestamp moves. Now only the controller knows since when the
	// node has been unhealthy.
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionUnknown)
	w.hasStatus("set", saysOf(w.node(1), "Unclear"))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.hasStatus("set", saysOf(w.node(1), "Pending", "since "+two.UTC().Format(time.RFC3339)))
	w.eventually("a note on "+w.node(1), func() error { return w.remembers(w.t.Context(), w.node(1)) })

	testkit.Must(w.t, controller.Restart(w.t.Context()))
	w.editSet("set", hours(1))
	w.has(w.node(1), noSchedule(w.key("set")))
	w.has(w.node(2), noSchedule(w.key("set")))
	w.judge(history.Config{}, history.Counts{Placements: 2})
	w.deleteNodes()
}

// testPaused pauses a set by annotation. Its taints stay until the node recovers.
func testPaused(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	annotate := func(annotation string) {
		w.kubectl("", "annotate", "--overwrite", "conditionset", w.name+"-set", annotation)
	}
	w.createSet("set", evict(everyone))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.has(nodes[0], noExecute(w.key("set")))
	annotate(v1alpha1.PausedAnnotation + "=Anna looks at it")
	status := w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Paused"))
	testkit.Same(w.t, status.Mode, v1alpha1.Paused, "the mode")
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.hasStatus("set", saysOf(nodes[1], "OnHold", "nothing new starts: paused by annotation: Anna looks at it"))
	w.has(nodes[0], noExecute(w.key("set")))
	w.has(nodes[1])
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.has(nodes[0])
	annotate(v1alpha1.PausedAnnotation + "-")
	w.has(nodes[1], noExecute(w.key("set")))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
}

func testDryRun(w *scope) {
	dry := func(dry bool) func(*v1alpha1.ConditionSetSpec) {
		return func(s *v1alpha1.ConditionSetSpec) { s.DryRun = dry }
	}
	node := w.createNodes(testbed.Nodes{Count: 1})[0]
	w.createSet("weak")
	w.createSet("set", evict(everyone), dry(true))
	w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "DryRun"))
	status := w.hasStatus("set", saysOf(node, "DryRun", "dry run, would place taint "+noExecute(w.key("set"))))
	if status.Matched != 1 || status.Tainted != 0 {
		w.t.Errorf("the status counts %d matched and %d tainted, want 1 and 0", status.Matched, status.Tainted)
	}
	w.has(node, noSchedule(w.key("weak"))) // the dry run does not supersede it

	w.editSet("set", dry(false))
	w.has(node, noExecute(w.key("set")))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	w.editSet("set", dry(true))
	w.has(node, noSchedule(w.key("weak")))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "DryRun"))
}

func testInvalid(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	node := nodes[0]
	w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	w.createSet("good", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromString("100%")) })
	w.has(node, noSchedule(w.key("good")))
	// The schema accepts these values, but the controller cannot apply them.
	endless := strings.Repeat("x", 254) + "/mine"
	badSets := []struct {
		name, path string
		change     func(*v1alpha1.ConditionSetSpec)
	}{
		{"endless", "spec.taintKey", func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = endless }},
		{"late", "spec.conditions[Unhealthy].duration", func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["Unhealthy"] = v1alpha1.SetCondition{Status: "True", Duration: "99999999h"}
		}},
		{"maybe", "spec.conditions[Unhealthy].status", func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["Unhealthy"] = v1alpha1.SetCondition{Status: "perhaps"}
		}},
		{"choosy", "spec.selector.matchExpressions[0].operator", func(s *v1alpha1.ConditionSetSpec) {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pool", Operator: "Resembles", Values: []string{"a"}}}
		}},
	}
	for _, bad := range badSets {
		w.createSet(bad.name, bad.change)
	}
	for _, bad := range badSets {
		w.hasStatus(bad.name, isAccepted(metav1.ConditionFalse, "Invalid", bad.path))
	}
	w.hasNow(node, noSchedule(w.key("good")))

	// The accepted version of a set that becomes invalid stays in force, until it is fixed.
	w.editSet("good", func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = endless })
	w.hasStatus("good", isAccepted(metav1.ConditionFalse, "Invalid", "spec.taintKey", "at most 253 characters", "the last accepted version stays in force"))
	w.hasNow(node, noSchedule(w.key("good")))
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.has(nodes[1], noSchedule(w.key("good")))
	w.editSet("good", func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = w.key("other") })
	w.has(node, noSchedule(w.key("other")))
	w.hasStatus("good", isAccepted(metav1.ConditionTrue, "Followed"))
}
