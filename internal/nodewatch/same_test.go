package nodewatch

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestSameComparesAllTrimmedFields(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		added := metav1.Unix(100, 0)
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"}, Annotations: map[string]string{ownership.Annotation: "note"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute", TimeAdded: &added}}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "r", LastTransitionTime: added}}},
		}
		change(n)
		return Trim(n)
	}
	plain := node(func(*corev1.Node) {})
	later := metav1.Unix(101, 0)
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		same   bool
	}{
		"a new version":            {func(n *corev1.Node) { n.ResourceVersion = "8" }, true},
		"a heartbeat":              {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = later }, true},
		"another annotation":       {func(n *corev1.Node) { n.Annotations["other"] = "x" }, true},
		"a recreated node":         {func(n *corev1.Node) { n.UID = "v" }, false},
		"a deletion":               {func(n *corev1.Node) { n.DeletionTimestamp = &later }, false},
		"a provider's ID":          {func(n *corev1.Node) { n.Spec.ProviderID = "kwok://n" }, false},
		"a label":                  {func(n *corev1.Node) { n.Labels["l"] = "w" }, false},
		"the ownership annotation": {func(n *corev1.Node) { n.Annotations[ownership.Annotation] = "other" }, false},
		"a confirmation":           {func(n *corev1.Node) { n.Annotations[remediation.ConfirmedAnnotation] = "" }, false},
		"a cordon":                 {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"an image":                 {func(n *corev1.Node) { n.Status.NodeInfo.OSImage = "new" }, false},
		"a taint gone":             {func(n *corev1.Node) { n.Spec.Taints = nil }, false},
		"a taint's effect":         {func(n *corev1.Node) { n.Spec.Taints[0].Effect = "NoSchedule" }, false},
		"a taint's value":          {func(n *corev1.Node) { n.Spec.Taints[0].Value = "v" }, false},
		"a taint's time":           {func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = &later }, false},
		"a taint's time gone":      {func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = nil }, false},
		"a status":                 {func(n *corev1.Node) { n.Status.Conditions[0].Status = "False" }, false},
		"a reason":                 {func(n *corev1.Node) { n.Status.Conditions[0].Reason = "s" }, false},
		"a transition":             {func(n *corev1.Node) { n.Status.Conditions[0].LastTransitionTime = later }, false},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Same(t, Same(plain, node(test.change)), test.same, "same")
		})
	}
}

func TestTrimKeepsOnlyUsedFields(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"}, DeletionTimestamp: new(metav1.Unix(100, 0)),
			Annotations: map[string]string{
				ownership.Annotation: "note", nodepause.Annotation: "until=x", remediation.ConfirmedAnnotation: "", "other": "long text",
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
		slim.Annotations[ownership.Annotation] != "note" || slim.Annotations[nodepause.Annotation] != "until=x" || !slices.Equal(slim.Spec.Taints, node.Spec.Taints) ||
		slim.Status.Conditions[0].Reason != "KubeletReady" {
		t.Errorf("a used field is missing: %+v", slim)
	}
	if len(slim.ManagedFields)+len(slim.Status.Images) > 0 || len(slim.Annotations) != 5 || slim.Spec.PodCIDR != "" ||
		slim.Status.Conditions[0].Message != "" || !slim.Status.Conditions[0].LastHeartbeatTime.IsZero() {
		t.Errorf("an unused field is kept: %+v", slim)
	}
	for _, annotation := range []string{karpenter.DoNotRepairAnnotation, karpenter.OurDoNotRepairAnnotation} {
		only := node.DeepCopy()
		only.Annotations = map[string]string{annotation: node.Annotations[annotation]}
		by, is := karpenter.DoNotRepair(Trim(only).Annotations)
		testkit.Check(t, is && by == annotation, "the annotation %s is missing", annotation)
	}
	trimmed := Trim(slim)
	testkit.Check(t, trimmed.ResourceVersion == slim.ResourceVersion && len(trimmed.Status.Conditions) == 1, "trimming twice changes the node")
}
