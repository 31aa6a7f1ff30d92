package controller

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/record"
)

// trimNode keeps of a node what is decided by and written back: no images, no
// managed fields, no messages. A real node has 15 KB, of which 2 are left.
func trimNode(n *corev1.Node) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, Labels: n.Labels,
		},
		Spec: corev1.NodeSpec{Taints: n.Spec.Taints},
	}
	if note, ok := n.Annotations[record.Annotation]; ok {
		slim.Annotations = map[string]string{record.Annotation: note}
	}
	slim.Status.Conditions = make([]corev1.NodeCondition, len(n.Status.Conditions))
	for i, c := range n.Status.Conditions {
		slim.Status.Conditions[i] = corev1.NodeCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
		}
	}
	return slim
}

// sameNode says whether two versions of a node differ in nothing that is kept.
func sameNode(a, b *corev1.Node) bool {
	return a.UID == b.UID && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, sameTaint) &&
		slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, sameCondition)
}

func sameTaint(a, b corev1.Taint) bool {
	return a.MatchTaint(&b) && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

// trimSet keeps all of a set but what other tools note on it.
func trimSet(s *v1alpha1.ConditionSet) *v1alpha1.ConditionSet {
	slim := *s
	slim.ManagedFields, slim.Annotations = nil, nil
	return &slim
}

// trimList trims what is large, in place.
func trimList(list client.ObjectList) {
	if nodes, ok := list.(*corev1.NodeList); ok {
		for i := range nodes.Items {
			nodes.Items[i] = *trimNode(&nodes.Items[i])
		}
	}
}
