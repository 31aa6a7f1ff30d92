package controller

import (
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
