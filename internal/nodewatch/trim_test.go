package nodewatch

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
)

func TestTrimKeepsOnlyUsedFields(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"}, DeletionTimestamp: new(metav1.Unix(100, 0)),
			Annotations: map[string]string{
				ownership.Annotation: "note", remediation.ConfirmedAnnotation: "", "other": "long text",
				karpenter.DoNotRepairAnnotation: "true", karpenter.OurDoNotRepairAnnotation: "",
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute"}}, PodCIDR: "10.0.0.0/24", ProviderID: "kwok://n"},
		Status: corev1.NodeStatus{
			Images:     []corev1.ContainerImage{{Names: []string{"image"}}},
			Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "KubeletReady", Message: "long text", LastHeartbeatTime: metav1.Now()}},
		},
	}
	slim := Trim(node)
	if slim.Name != "n" || slim.UID != "u" || slim.ResourceVersion != "7" || slim.Labels["l"] != "v" || slim.DeletionTimestamp == nil || slim.Spec.ProviderID != "kwok://n" ||
		slim.Annotations[ownership.Annotation] != "note" || !slices.Equal(slim.Spec.Taints, node.Spec.Taints) ||
		slim.Status.Conditions[0].Reason != "KubeletReady" {
		t.Errorf("a used field is missing: %+v", slim)
	}
	if len(slim.ManagedFields)+len(slim.Status.Images) > 0 || len(slim.Annotations) != 4 || slim.Spec.PodCIDR != "" ||
		slim.Status.Conditions[0].Message != "" || !slim.Status.Conditions[0].LastHeartbeatTime.IsZero() {
		t.Errorf("an unused field is kept: %+v", slim)
	}
	for _, annotation := range []string{karpenter.DoNotRepairAnnotation, karpenter.OurDoNotRepairAnnotation} {
		only := node.DeepCopy()
		only.Annotations = map[string]string{annotation: node.Annotations[annotation]}
		if by, is := karpenter.DoNotRepair(Trim(only).Annotations); !is || by != annotation {
			t.Errorf("the annotation %s is missing", annotation)
		}
	}
	if trimmed := Trim(slim); trimmed.ResourceVersion != slim.ResourceVersion || len(trimmed.Status.Conditions) != 1 {
		t.Error("trimming twice changes the node")
	}
}
