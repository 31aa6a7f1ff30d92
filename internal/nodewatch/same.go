package nodewatch

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Same reports whether two trimmed nodes differ only in their resourceVersion.
func Same(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp) && a.Spec.ProviderID == b.Spec.ProviderID && a.Spec.Unschedulable == b.Spec.Unschedulable &&
		a.Status.NodeInfo.OSImage == b.Status.NodeInfo.OSImage &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, sameTaint) &&
		(isSameSlice(a.Status.Conditions, b.Status.Conditions) || slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, sameCondition))
}

func sameTaint(a, b corev1.Taint) bool {
	return a.MatchTaint(&b) && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

// isSameSlice reports whether two lists are the same slice. Versions from one watch share it
// while the node does not change.
func isSameSlice(a, b []corev1.NodeCondition) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
