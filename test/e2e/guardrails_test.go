package e2e

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func testBounds(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 10})
	bounds := []struct {
		name string
		most *intstr.IntOrString
		want int
	}{
		{"default", nil, 4}, // 49% of 10, rounded down
		{"share", new(intstr.FromString("35%")), 3},
		{"tiny", new(intstr.FromString("1%")), 1},
		{"number", new(intstr.FromInt32(3)), 3},
		{"none", new(intstr.FromInt32(0)), 0},
		{"no-share", new(intstr.FromString("0%")), 0},
		{"all", &everyone, 10},
	}
	for _, bound := range bounds {
		w.createSet(bound.name, effect(corev1.TaintEffectNoExecute), func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = bound.most })
	}
	for _, node := range nodes {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	for _, bound := range bounds {
		w.counts(w.key(bound.name), bound.want, 10-bound.want)
		status := w.hasStatus(bound.name, func(s v1alpha1.ConditionSetStatus) error {
			if s.Selected != 10 || s.Matched != 10 || int(s.Tainted) != bound.want || int(s.HeldBack) != 10-bound.want || s.MaxTainted == nil || int(*s.MaxTainted) != bound.want {
				return fmt.Errorf("the status counts %d selected, %d matched, %d tainted, %d held back, at most %v", s.Selected, s.Matched, s.Tainted, s.HeldBack, s.MaxTainted)
			}
			return nil
		})
		held := hasCondition(v1alpha1.HeldBack, metav1.ConditionFalse, "NothingHeldBack")
		if bound.want < 10 {
			held = hasCondition(v1alpha1.HeldBack, metav1.ConditionTrue, "FellBack",
				fmt.Sprintf("NoSchedule instead of NoExecute: %d", 10-bound.want),
				fmt.Sprintf("%d placed or under way, at most %d of 10 selected nodes may have it", bound.want, bound.want))
		}
		if err := held(status); err != nil {
			w.t.Errorf("%s: %v", bound.name, err)
		}
	}
	w.tellsOf(w.name+"-number", "FellBack", "instead of NoExecute: 3 placed or under way, at most 3 of 10 selected nodes may have it")

	// A higher bound lets more taints in, and a lower bound removes none.
	w.editSet("number", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromInt32(5)) })
	w.counts(w.key("number"), 5, 5)
	w.editSet("number", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromInt32(1)) })
	w.hasStatus("number", func(s v1alpha1.ConditionSetStatus) error {
		if s.MaxTainted == nil || *s.MaxTainted != 1 {
			return fmt.Errorf("at most %v", s.MaxTainted)
		}
		return nil
	})
	w.counts(w.key("number"), 5, 5)
}

// testLostRecords removes the records that prove the controller's ownership of its taints.
// The taints still count against the bound, and the status tells users how to resolve it.
func testLostRecords(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 10})
	w.createSet("set", evict(intstr.FromString("40%")))
	w.makeUnhealthy(nodes)
	key := w.key("set")
	w.counts(key, 4, 6)
	// witness checks that the controller has seen the current state of all nodes, and that
	// the number of taints is unchanged.
	witness := func(name string, unclear int) {
		w.t.Helper()
		w.hasStatus("set", hasCondition(v1alpha1.OwnershipUnclear, metav1.ConditionTrue, "NoRecord", fmt.Sprintf(": %d (", unclear), "kubectl taint node "))
		w.createSet(name, evict(everyone))
		w.counts(w.key(name), 10, 0)
		w.counts(key, 4, 6)
	}
	var evicted []string
	for _, name := range nodes {
		node := testkit.Value(w.get(w.t.Context(), name)).Must(w.t)
		if slices.Contains(taintsOf(node), noExecute(key)) {
			evicted = append(evicted, name)
		}
	}
	for _, name := range evicted {
		w.byHand(name, func(n *corev1.Node) {
			for i := range n.Spec.Taints {
				if n.Spec.Taints[i].Key == key {
					n.Spec.Taints[i].Value = "theirs"
				}
			}
		})
	}
	witness("after-values", 4)
	w.tellsOf(evicted[0], "OwnershipUnclear", "ConditionSet "+w.name+"-set", "kubectl taint node "+evicted[0]+" "+noExecute(key)+"-")
	for _, name := range nodes {
		w.byHand(name, func(n *corev1.Node) { delete(n.Annotations, ownership.Annotation) })
	}
	witness("after-records", 10)
}

// The order in which nodes become unhealthy is not the order of their names.
func testTurns(w *scope) {
	w.createNodes(testbed.Nodes{Count: 6})
	w.createSet("set", evict(intstr.FromInt32(2)))
	order := []int{4, 6, 5, 1, 3, 2}
	for i, number := range order {
		w.setCondition(w.node(number), "Unhealthy", corev1.ConditionTrue)
		if i < 2 {
			w.has(w.node(number), noExecute(w.key("set")))
		} else {
			w.has(w.node(number), noSchedule(w.key("set")))
		}
	}
	for i, recovered := range order[:4] {
		w.setCondition(w.node(recovered), "Unhealthy", corev1.ConditionFalse)
		w.has(w.node(recovered))
		w.has(w.node(order[i+2]), noExecute(w.key("set")))
		for _, waiting := range order[i+3:] {
			w.hasNow(w.node(waiting), noSchedule(w.key("set")))
		}
	}
}

func testJoining(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	w.createSet("set", evict(intstr.FromString("25%")))
	for _, node := range nodes {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	w.counts(w.key("set"), 1, 3)
	w.createNodes(testbed.Nodes{Count: 8, First: 5})
	w.counts(w.key("set"), 3, 1)
}

func testControlPlane(w *scope) {
	const role = "node-role.kubernetes.io/control-plane"
	node := w.createNodes(testbed.Nodes{Count: 1, Labels: map[string]string{role: ""}})[0]
	w.createSet("spares", evict(everyone))
	w.createSet("by-label", evict(everyone), func(s *v1alpha1.ConditionSetSpec) { s.Selector.MatchLabels[role] = "" })
	w.createSet("by-presence", evict(everyone), func(s *v1alpha1.ConditionSetSpec) {
		s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: role, Operator: metav1.LabelSelectorOpExists}}
	})
	w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	w.has(node, noSchedule(w.key("spares")), noExecute(w.key("by-label")), noExecute(w.key("by-presence")))
	w.hasStatus("spares", saysOf(node, "FellBack", "control-plane nodes are not included"))
	w.tellsOf(node, "FellBack", "control-plane nodes are not included")

	// A node that joins the control plane later is treated the same.
	late := w.createNodes(testbed.Nodes{Count: 1, First: 2})[0]
	w.setCondition(late, "Unhealthy", corev1.ConditionTrue)
	w.has(late, noExecute(w.key("spares")))
	w.byHand(late, func(n *corev1.Node) { n.Labels[role] = "" })
	w.has(late, noSchedule(w.key("spares")), noExecute(w.key("by-label")), noExecute(w.key("by-presence")))
}
