package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// noWebhook runs the controller without the webhook.
const noWebhook = "--webhooks=false"

// TestVetting writes sets that no webhook has seen.
func TestVetting(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newFixture(t)
	controller := w.scope(t, "all").start(install.Options{Args: []string{noWebhook}})
	for _, part := range []part{
		{"a harmful set is not applied", "hurts", testOverBound},
		{"of two duplicates the younger is not applied", "twice", testDuplicates},
		{"an annotation accepts a set that too many nodes match", "meant", testAcceptedImpact},
		{"a set that too many nodes matched is not applied when fewer do", "stays", testFallenImpact(controller)},
		{"a harmful change is not applied, a narrowing change is", "edits", testEditedImpact},
		{"a set that turns out to match healthy nodes is paused", "fans", testHeld(controller)},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			part.test(subscope)
			subscope.deleteNodes()
		})
	}
	t.Run("an edit without new taints while no controller leads", func(t *testing.T) { testEditedInAbsence(w.scope(t, "absent"), controller) })
	t.Run("a restart in a storm keeps what was accepted", func(t *testing.T) { testStormRestart(w.scope(t, "storm"), controller) })
}

// write creates a set without the annotation that accepts its impact.
func (w *scope) write(name string, changes ...func(*v1alpha1.ConditionSetSpec)) *v1alpha1.ConditionSet {
	w.t.Helper()
	set := w.newSet(name, changes...)
	testkit.Must(w.t, w.api.Create(w.t.Context(), set))
	return set
}

// awaitSeen waits until the controller has received the nodes of the scope and knows how many are
// unhealthy. It receives nodes and sets independently of each other, and judges a set by the nodes
// that it knows.
func (w *scope) awaitSeen(nodes, unhealthy int32) {
	w.t.Helper()
	w.createSet("observer", func(s *v1alpha1.ConditionSetSpec) { s.DryRun = true })
	w.hasStatus("observer", func(is v1alpha1.ConditionSetStatus) error {
		if is.Selected != nodes || is.Matched != unhealthy {
			return fmt.Errorf("the controller sees %d nodes, %d of them unhealthy, want %d and %d", is.Selected, is.Matched, nodes, unhealthy)
		}
		return nil
	})
	w.deleteSet("observer")
}

// accept adds the annotation that accepts the impact of a set.
func (w *scope) accept(name string) {
	w.t.Helper()
	w.annotate(name, "true")
}

func (w *scope) annotate(name, value string) {
	w.t.Helper()
	set := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name}}
	patch := `{"metadata":{"annotations":{"` + v1alpha1.AcceptImpactAnnotation + `":"` + value + `"}}}`
	testkit.Must(w.t, w.api.Patch(w.t.Context(), set, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// refusing returns a configuration of the checker with the sets that must not be applied.
func (w *scope) refusing(names ...string) history.Config {
	return history.Config{Refused: func(set string, _ int64) bool { return slices.Contains(names, strings.TrimPrefix(set, w.name+"-")) }}
}

func isRefused(reason string, says ...string) func(v1alpha1.ConditionSetStatus) error {
	return isAccepted(metav1.ConditionFalse, reason, says...)
}

var isFollowed = isAccepted(metav1.ConditionTrue, "Followed")

// deny has all nodes report that conditions are False.
func (w *scope) deny(nodes []string, conditions ...string) {
	w.t.Helper()
	for _, node := range nodes {
		for _, condition := range conditions {
			w.setCondition(node, condition, corev1.ConditionFalse)
		}
	}
}

// testHeld creates two sets before any node reports their conditions. One of them turns out
// to match healthy nodes.
func testHeld(controller *install.Controller) func(*scope) {
	const awaiting = "AwaitingReports"
	return func(w *scope) {
		nodes := w.createNodes(testbed.Nodes{Count: 13})
		w.write("trap", evict(almostHalf), func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions = map[string]v1alpha1.SetCondition{"FanBroken": {Status: "False"}}
		})
		w.write("good", evict(almostHalf), on("PumpBroken"))
		for _, name := range []string{"trap", "good"} {
			w.hasStatus(name, isAccepted(metav1.ConditionTrue, awaiting, "no node reports"))
		}
		w.setCondition(nodes[0], "PumpBroken", corev1.ConditionTrue)
		w.deny(nodes, "FanBroken")
		w.deny(nodes[1:], "PumpBroken")
		w.has(nodes[0], noExecute(w.key("good")))
		w.hasStatus("good", isFollowed)
		isHeld := isRefused("Held", "too few nodes reported FanBroken when the set was accepted", "of 13 selected nodes", v1alpha1.AcceptImpactAnnotation)
		w.hasStatus("trap", isHeld)
		w.tellsOf(w.name+"-trap", "Held", "held: ", "FanBroken")
		w.kill(controller)
		w.restart(controller.Part)
		// A later change shows that the controller had its chance.
		w.setCondition(nodes[1], "PumpBroken", corev1.ConditionTrue)
		w.has(nodes[1], noExecute(w.key("good")))
		w.hasStatus("trap", isHeld)
		if report := w.judge(w.refusing("trap"), history.Counts{Evictions: 2}); report.Fallbacks > 0 || report.Evictions > 2 {
			w.t.Errorf("a set that matches healthy nodes was applied: %+v", report)
		}
		w.accept("trap")
		w.counts(w.key("trap"), 6, 7)
		w.hasStatus("trap", isFollowed)
	}
}

func testOverBound(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	for _, node := range nodes {
		w.setCondition(node, "OutOfDisk", corev1.ConditionFalse)
	}
	w.makeUnhealthy(nodes[:3])
	w.awaitSeen(4, 3)
	badSets := []struct {
		name, reason string
		says         []string
		change       func(*v1alpha1.ConditionSetSpec)
	}{
		{"healthy", "HealthyStatus", []string{"spec.conditions[OutOfDisk].status", "4 of 4 selected nodes", "evict the pods of 4"}, func(s *v1alpha1.ConditionSetSpec) {
			evict(everyone)(s)
			s.Conditions = map[string]v1alpha1.SetCondition{"OutOfDisk": {Status: "False"}}
		}},
		{"misspelled", "NearMiss", []string{"spec.conditions[KubletUnhealthy]", "did you mean KubeletUnhealthy"}, on("KubletUnhealthy")},
		{"many", "Impact", []string{"3 of 4 selected nodes", nodes[0], v1alpha1.AcceptImpactAnnotation}, evict(almostHalf)},
		{"invalid", "Invalid", []string{"spec.conditions[Unhealthy].status"}, func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["Unhealthy"] = v1alpha1.SetCondition{Status: "perhaps"}
		}},
	}
	var names []string
	for _, bad := range badSets {
		w.write(bad.name, bad.change)
		names = append(names, bad.name)
	}
	for _, bad := range badSets {
		w.hasStatus(bad.name, isRefused(bad.reason, bad.says...))
		w.tellsOf(w.name+"-"+bad.name, "NotAccepted", "not accepted", bad.says[0])
	}
	// A later change shows that the controller had its chance.
	w.setCondition(nodes[0], "Worse", corev1.ConditionTrue)
	w.createSet("good", on("Worse"))
	w.has(nodes[0], noSchedule(w.key("good")))
	for _, node := range nodes[1:] {
		w.hasNow(node)
	}
	w.judge(w.refusing(names...), history.Counts{Placements: 1})
}

func testDuplicates(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.deny(nodes, "Unhealthy", "Worse")
	node := nodes[0]
	same := func(s *v1alpha1.ConditionSetSpec) { s.Type = "Twice" }
	older := w.write("z", same)
	w.hasStatus("z", isFollowed)
	w.eventually("another second", func() error {
		if time.Now().Unix() <= older.CreationTimestamp.Unix() {
			return errors.New("times of creation are whole seconds")
		}
		return nil
	})
	w.write("a", same, on("Worse"))
	w.write("b", func(s *v1alpha1.ConditionSetSpec) { s.Selector = older.Spec.Selector })
	w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	w.setCondition(node, "Worse", corev1.ConditionTrue)
	w.has(node, noSchedule(w.key("z")))
	w.hasStatus("a", isRefused("Duplicate", "spec.type", older.Name))
	w.hasStatus("b", isRefused("Duplicate", "spec.conditions", older.Name))
	w.hasNow(node, noSchedule(w.key("z")))
	w.judge(w.refusing("a", "b"), history.Counts{Placements: 1})

	w.deleteSet("z")
	w.has(node, noSchedule(w.key("a")), noSchedule(w.key("b")))
	w.hasStatus("a", isFollowed)
	w.hasStatus("b", isFollowed)
	w.judge(history.Config{}, history.Counts{Placements: 3, Removals: 1})
}

var half = intstr.FromString("50%")

func testAcceptedImpact(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 10})
	w.makeUnhealthy(nodes[:6])
	w.awaitSeen(10, 6)
	w.write("set", evict(half))
	w.hasStatus("set", isRefused("Impact", "6 of 10 selected nodes", "5 (50%)", v1alpha1.AcceptImpactAnnotation))
	w.counts(w.key("set"), 0, 0)
	w.judge(w.refusing("set"), history.Counts{})
	w.accept("set")
	w.counts(w.key("set"), 5, 1)
	w.hasStatus("set", isFollowed)
	w.judge(history.Config{}, history.Counts{Evictions: 5, Fallbacks: 1})
}

func testFallenImpact(controller *install.Controller) func(*scope) {
	return func(w *scope) {
		nodes := w.createNodes(healthyNodes(10))
		w.makeUnhealthy(nodes[:6])
		w.awaitSeen(10, 6)
		w.write("set", evict(half))
		w.hasStatus("set", isRefused("Impact", "6 of 10 selected nodes"))
		w.recover(nodes[:1])
		// Neither the leader nor its successor accepts the set for that reason. A later
		// change shows that they had their chance.
		for _, witness := range []string{"First", "Second"} {
			w.createSet(strings.ToLower(witness), on(witness))
			w.hasStatus(strings.ToLower(witness), isFollowed)
			w.hasStatus("set", isRefused("Impact", "6 of 10 selected nodes"))
			w.counts(w.key("set"), 0, 0)
			if witness == "First" {
				w.kill(controller)
				w.restart(controller.Part)
			}
		}
		w.judge(w.refusing("set"), history.Counts{})
		// A user has looked at it, and changes only the annotation.
		w.annotate("set", "again")
		w.counts(w.key("set"), 5, 0)
		w.hasStatus("set", isFollowed)
		w.makeUnhealthy(nodes[:1]) // this no longer prevents it from being applied
		w.counts(w.key("set"), 5, 1)
		w.judge(history.Config{}, history.Counts{Evictions: 5, Fallbacks: 1})
	}
}

// testEditedInAbsence changes a set during a storm, while no controller leads. The next controller knows of the previous version only what is on the nodes.
func testEditedInAbsence(w *scope, controller *install.Controller) {
	nodes := w.createNodes(testbed.Nodes{Count: 10})
	w.deny(nodes, "Unhealthy")
	w.write("set", evict(half))
	w.hasStatus("set", isFollowed)
	w.makeUnhealthy(nodes)
	w.counts(w.key("set"), 5, 5)
	w.kill(controller)
	w.editSet("set", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromString("40%")) })
	w.restart(controller.Part)
	w.hasStatus("set", isFollowed)
	w.counts(w.key("set"), 5, 5)
	report := w.judge(history.Config{}, history.Counts{Evictions: 5, Fallbacks: 5})
	if report.Removals > 0 {
		w.t.Errorf("%d taints were removed in the middle of a storm", report.Removals)
	}
	w.kill(controller)
	w.editSet("set", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromString("60%")) })
	w.restart(controller.Part)
	w.hasStatus("set", isRefused("Impact", "10 of 10 selected nodes"))
	w.deleteNodes()
}

func testEditedImpact(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	w.deny(nodes, "Rare", "Worse")
	w.write("set", on("Rare"))
	w.hasStatus("set", isFollowed)
	w.makeUnhealthy(nodes)
	w.awaitSeen(4, 4)
	w.editSet("set", on("Unhealthy"))
	w.hasStatus("set", isRefused("Impact", "4 of 4 selected nodes"))
	w.counts(w.key("set"), 0, 0)
	w.judge(history.Config{Refused: func(_ string, generation int64) bool { return generation == 2 }}, history.Counts{})

	w.write("other", on("Worse"))
	w.hasStatus("other", isFollowed)
	for _, node := range nodes {
		w.setCondition(node, "Worse", corev1.ConditionTrue)
	}
	w.counts(w.key("other"), 0, 4)
	w.editSet("other", effect(corev1.TaintEffectPreferNoSchedule))
	w.hasStatus("other", isFollowed)
	w.has(nodes[0], preferNoSchedule(w.key("other")))
	w.judge(w.refusing("set"), history.Counts{Placements: 8})
}

func testStormRestart(w *scope, controller *install.Controller) {
	nodes := w.createNodes(testbed.Nodes{Count: 10})
	w.deny(nodes, "Unhealthy")
	w.write("set", evict(half))
	w.hasStatus("set", isFollowed)
	w.makeUnhealthy(nodes)
	w.counts(w.key("set"), 5, 5)
	w.kill(controller)
	w.write("late", on("Unhealthy"))
	w.restart(controller.Part)
	w.hasStatus("late", isRefused("Impact", "10 of 10 selected nodes"))
	w.hasStatus("set", isFollowed)
	w.counts(w.key("set"), 5, 5)
	report := w.judge(w.refusing("late"), history.Counts{Evictions: 5, Fallbacks: 5})
	if report.Removals > 0 {
		w.t.Errorf("%d taints were removed in the middle of a storm", report.Removals)
	}
	w.deleteNodes()
}
