package budget

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
)

// CountNode says how a node with its claim goes into a budget for the reason
// Unhealthy: whether it is one of the total, and one of those that are being
// disrupted. Karpenter counts nodes that were ready for work once. One that is not
// ready now is not for that reason disrupted: a sick node must not block its own
// repair. The claim may be nil, and such a node is not Karpenter's.
func CountNode(node *corev1.Node, claim *karpenter.NodeClaim) (counts, disrupting bool) {
	if claim == nil || node.Labels[karpenter.InitializedLabel] != "true" && !claim.Is(karpenter.Rebooting) {
		return false, false
	}
	return CountClaim(claim)
}

// CountClaim says the same of a claim whether its node was ever ready or not, for
// whoever replaces nodes that never were: among the nodes that Karpenter counts
// there would be none of them. A claim whose machine is going has been paid for.
func CountClaim(claim *karpenter.NodeClaim) (counts, disrupting bool) {
	if claim.Is(karpenter.InstanceTerminating) {
		return false, false
	}
	_, disrupting = claim.Disrupted()
	return true, disrupting
}
