package nodewatch

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Same says whether two trimmed versions of a node differ in nothing but the
// version.
func Same(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp) && a.Spec.ProviderID == b.Spec.ProviderID &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, sameTaint) &&
		(share(a.Status.Conditions, b.Status.Conditions) || slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, sameCondition))
}

func sameTaint(a, b corev1.Taint) bool {
	return a.MatchTaint(&b) && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

// share says whether two lists are one: versions from one watch have theirs in
// common as long as nothing changes.
func share(a, b []corev1.NodeCondition) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
