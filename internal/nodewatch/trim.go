package nodewatch

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// read are the annotations that somebody reads.
var read = [...]string{
	ownership.Annotation, remediation.ConfirmedAnnotation, karpenter.DoNotRepairAnnotation, karpenter.OurDoNotRepairAnnotation,
}

// Trim keeps of a node what is decided by and written back: no images, no
// managed fields, no messages. A real node has 15 KB, of which 2 are left.
func Trim(n *corev1.Node) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp, Labels: n.Labels,
		},
		Spec: corev1.NodeSpec{ProviderID: n.Spec.ProviderID, Taints: n.Spec.Taints},
	}
	for _, key := range read {
		if note, ok := n.Annotations[key]; ok {
			if slim.Annotations == nil {
				slim.Annotations = map[string]string{}
			}
			slim.Annotations[key] = note
		}
	}
	if len(n.Status.Conditions) > 0 {
		slim.Status.Conditions = make([]corev1.NodeCondition, len(n.Status.Conditions))
	}
	for i, c := range n.Status.Conditions {
		slim.Status.Conditions[i] = corev1.NodeCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
		}
	}
	return slim
}
