package karpenter

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ErrTwoClaims is why a node is left alone that two claims say is theirs.
var ErrTwoClaims = errors.New("two NodeClaims have the provider ID of this node")

// ClaimOf returns the claim of a node among some: the one with its provider ID.
// It is nil if there is none, and so is that of a node without a provider ID.
// Which of two claims the machine belongs to nobody can tell, nor does Karpenter.
func ClaimOf(node *corev1.Node, claims ...*NodeClaim) (*NodeClaim, error) {
	if node.Spec.ProviderID == "" {
		return nil, nil
	}
	var found *NodeClaim
	for _, claim := range claims {
		switch {
		case claim.Status.ProviderID != node.Spec.ProviderID:
		case found != nil:
			return nil, ErrTwoClaims
		default:
			found = claim
		}
	}
	return found, nil
}

// StartupTaints returns the taints on a node that say it is not ready for work yet:
// those that its claim wants at startup, by key and effect as Karpenter compares
// them, and the one that Karpenter has on every node before it puts those there.
// The claim may be nil.
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

// IsInitialized says whether a node is or ever was ready for work: Karpenter says
// so on the Node or its claim, where it stays, or it is Ready now without startup
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
