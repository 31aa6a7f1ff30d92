package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// StartupTaints returns the taints on a node that say that it is not initialized yet. These
// are the startup taints of its claim, compared by key and effect as Karpenter does, and
// the taint that Karpenter sets on every node before those. The claim may be nil.
func StartupTaints(node *corev1.Node, claim *NodeClaim) []corev1.Taint {
	var found []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if taint.Key == UnregisteredTaint && taint.Effect == corev1.TaintEffectNoExecute || claim.wants(taint) {
			found = append(found, taint)
		}
	}
	return found
}

func (c *NodeClaim) wants(taint corev1.Taint) bool {
	return c != nil && slices.ContainsFunc(c.Spec.StartupTaints, func(startup corev1.Taint) bool { return startup.MatchTaint(&taint) })
}

// IsInitialized reports whether a node is or ever was initialized. Karpenter records this
// permanently on the Node or its claim; otherwise the node must be Ready without startup
// taints. The claim may be nil.
func IsInitialized(node *corev1.Node, claim *NodeClaim) bool {
	if node.Labels[InitializedLabel] == "true" || claim != nil && claim.Is(Initialized) {
		return true
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(row corev1.NodeCondition) bool {
		return row.Type == corev1.NodeReady && row.Status == corev1.ConditionTrue
	})
	return ready && len(StartupTaints(node, claim)) == 0
}
