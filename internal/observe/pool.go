package observe

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
)

// PoolOf returns the pool in which a provider replaces the node, empty if it is in none. The pools of
// Karpenter have their name only, those of other providers also their label. The ledger stores the
// result.
func PoolOf(node *corev1.Node) string {
	for _, key := range dialect.PoolLabels {
		switch name := node.Labels[key]; {
		case name == "":
		case key == karpenter.NodePoolLabel:
			return name
		default:
			return key + "=" + name
		}
	}
	return ""
}
