package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// rewrite changes a node like a client that reads it and writes it back.
func (w *fixture) rewrite(ctx context.Context, name string, change func(*corev1.Node)) error {
	for {
		node := &corev1.Node{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return err
		}
		change(node)
		if err := w.api.Update(ctx, node); !apierrors.IsConflict(err) {
			return err
		}
	}
}

func (w *scope) byHand(name string, change func(*corev1.Node)) {
	w.t.Helper()
	testkit.Must(w.t, w.rewrite(w.t.Context(), name, change))
}

func (w *scope) relabel(name, subscope string) {
	w.t.Helper()
	w.byHand(name, func(n *corev1.Node) { n.Labels[scopeLabel] = subscope })
}

// loses removes a condition from a node.
func (w *scope) loses(name, condition string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": condition, "$patch": "delete"}}}})
	testkit.Must(w.t, err)
	node := &corev1.Node{}
	node.Name = name
	testkit.Must(w.t, w.api.Status().Patch(w.t.Context(), node, client.RawPatch(types.StrategicMergePatchType, patch)))
}

// remembers returns an error unless the record on a node has a clock.
func (w *scope) remembers(ctx context.Context, name string) error {
	node, err := w.get(ctx, name)
	if err != nil {
		return err
	}
	var note struct{ Memories []any }
	if err := json.Unmarshal([]byte(node.Annotations[recordAnnotation]), &note); err != nil {
		return fmt.Errorf("the note %q: %w", node.Annotations[recordAnnotation], err)
	}
	if len(note.Memories) == 0 {
		return errors.New("the record remembers nothing")
	}
	return nil
}

func testForeign(w *scope) {
	mine := corev1.Taint{Key: w.key("set"), Effect: corev1.TaintEffectNoExecute}
	valued := mine
	valued.Value = "theirs"
	weaker := mine
	weaker.Effect = corev1.TaintEffectPreferNoSchedule
	kubernetes := corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}

	w.createNodes(testbed.Nodes{Count: 7})
	w.createSet("set", evict(everyone))
	before := map[int][]corev1.Taint{1: {mine}, 2: {valued}, 3: {weaker}, 4: {kubernetes}}
	for number, taints := range before {
		w.byHand(w.node(number), func(n *corev1.Node) { n.Spec.Taints = taints })
	}
	for number := 1; number <= 7; number++ {
		w.setCondition(w.node(number), "Unhealthy", corev1.ConditionTrue)
	}
	ours := noExecute(w.key("set"))
	w.has(w.node(3), ours, preferNoSchedule(w.key("set")))
	w.has(w.node(4), ours, noExecute(kubernetes.Key))
	w.has(w.node(5), ours)
	w.has(w.node(6), ours)
	w.has(w.node(7), ours)
	// A taint that another writer puts in the place of ours is theirs, and so is a taint
	// next to it.
	w.byHand(w.node(5), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{mine} })
	w.byHand(w.node(6), func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, weaker) })
	for number := 1; number <= 7; number++ {
		w.setCondition(w.node(number), "Unhealthy", corev1.ConditionFalse)
	}
	w.has(w.node(7))
	w.has(w.node(6), preferNoSchedule(w.key("set")))
	w.has(w.node(4), noExecute(kubernetes.Key))
	w.has(w.node(3), preferNoSchedule(w.key("set")))
	w.hasNow(w.node(1), ours)
	w.hasNow(w.node(2), valued.ToString())
	w.hasNow(w.node(5), ours)
	for number, taints := range before { // exactly as before
		node := testkit.Value(w.get(w.t.Context(), w.node(number))).Must(w.t)
		if got := node.Spec.Taints; len(got) != 1 || got[0] != taints[0] {
			w.t.Errorf("taints of %s are %v, were %v", node.Name, got, taints)
		}
	}

	// A taint that another writer adds where ours was before is theirs, too.
	w.byHand(w.node(7), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{mine} })
	w.setCondition(w.node(7), "Unhealthy", corev1.ConditionTrue)
	w.setCondition(w.node(6), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(6), ours, preferNoSchedule(w.key("set")))
	w.setCondition(w.node(7), "Unhealthy", corev1.ConditionFalse)
	w.setCondition(w.node(6), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(6), preferNoSchedule(w.key("set")))
	w.hasNow(w.node(7), ours)
}

// Another writer's taint replaces ours while it exists. When it is removed, the controller
// places its own taint, or the fallback.
func testServedByOthers(w *scope) {
	theirs := []corev1.Taint{{Key: w.key("set"), Effect: corev1.TaintEffectNoExecute}}
	w.createNodes(testbed.Nodes{Count: 4})
	w.createSet("set", evict(intstr.FromInt32(1)))
	w.byHand(w.node(1), func(n *corev1.Node) { n.Spec.Taints = theirs })
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.hasStatus("set", saysOf(w.node(1), "Tainted", "the node already has the taint"))
	w.byHand(w.node(1), func(n *corev1.Node) { n.Spec.Taints = nil })
	w.has(w.node(1), noExecute(w.key("set")))

	// The bound is full now.
	w.byHand(w.node(2), func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: w.key("set"), Effect: corev1.TaintEffectNoSchedule}}
	})
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.hasStatus("set", saysOf(w.node(2), "FellBack", "the node already has this taint, set by another component"))
	w.byHand(w.node(2), func(n *corev1.Node) { n.Spec.Taints = nil })
	w.has(w.node(2), noSchedule(w.key("set")))
}

// A user removes our taint while its set asks for it. The controller places it again, which
// needs a slot like the first time: the ledger must name it.
func testRemovedByHand(w *scope) {
	w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(1)))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(1), noExecute(w.key("set")))
	w.byHand(w.node(1), func(n *corev1.Node) { n.Spec.Taints = nil })
	w.has(w.node(1), noExecute(w.key("set")))
	w.tellsOf(w.node(1), "Tainted", "another client had removed the taint, and it is placed again")

	// If another node waits, that node is next.
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(2), noSchedule(w.key("set")))
	w.byHand(w.node(1), func(n *corev1.Node) { n.Spec.Taints = nil })
	w.has(w.node(2), noExecute(w.key("set")))
	w.has(w.node(1), noSchedule(w.key("set")))
}

func testCorruptRecord(w *scope) {
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("set")
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(1), noSchedule(w.key("set")))
	w.byHand(w.node(1), func(n *corev1.Node) { n.Annotations[recordAnnotation] = `{"taints":[{"rule":` })
	w.tellsOf(w.node(1), "RecordUnreadable", "cannot be read", recordAnnotation)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.deleteSet("set")
	w.createSet("second", func(s *v1alpha1.ConditionSetSpec) { s.Conditions["Unhealthy"] = v1alpha1.SetCondition{Status: "False"} })
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(2), noSchedule(w.key("second")))
	w.has(w.node(1), noSchedule(w.key("set")), noSchedule(w.key("second")))

	// The controller notices when a user cleans up the record.
	w.byHand(w.node(1), func(n *corev1.Node) {
		delete(n.Annotations, recordAnnotation)
		n.Spec.Taints = nil
	})
	w.has(w.node(1), noSchedule(w.key("second")))
}
