package controller

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

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
