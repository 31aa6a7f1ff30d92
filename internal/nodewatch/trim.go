package nodewatch

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// keptAnnotations are the annotations that Autohealer reads.
var keptAnnotations = [...]string{
	ownership.Annotation, nodepause.Annotation, attempts.Annotation, remediation.ConfirmedAnnotation, karpenter.DoNotRepairAnnotation, karpenter.OurDoNotRepairAnnotation,
}

// Trim keeps the fields of a node that Autohealer reads or writes back, without images,
// managed fields and messages. A real node has 15 KB, of which 2 KB remain.
func Trim(n *corev1.Node) *corev1.Node {
	trimmed := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp, Labels: n.Labels,
		},
		Spec: corev1.NodeSpec{ProviderID: n.Spec.ProviderID, Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable},
	}
	trimmed.Status.NodeInfo.OSImage = n.Status.NodeInfo.OSImage
	for _, key := range keptAnnotations {
		if value, ok := n.Annotations[key]; ok {
			if trimmed.Annotations == nil {
				trimmed.Annotations = map[string]string{}
			}
			trimmed.Annotations[key] = value
		}
	}
	if len(n.Status.Conditions) > 0 {
		trimmed.Status.Conditions = make([]corev1.NodeCondition, len(n.Status.Conditions))
	}
	for i, c := range n.Status.Conditions {
		trimmed.Status.Conditions[i] = corev1.NodeCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
		}
	}
	return trimmed
}
