package observe

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// Taints and conditions with which other components announce their work on a node.
var (
	autoscalerTaints = []string{"ToBeDeletedByClusterAutoscaler"}
	// Karpenter before v1 used the second key.
	karpenterTaints = []string{"karpenter.sh/disrupted", "karpenter.sh/disruption"}
	// The Node Maintenance Operator of medik8s and, before, of KubeVirt places these.
	maintenanceTaints = []string{"medik8s.io/drain", "kubevirt.io/drain"}
	// Azure announces the maintenance of a machine with this condition.
	maintenanceConditions = []corev1.NodeConditionType{"VMEventScheduled"}
)

// WorkOfOthers says what others do with a node that keeps treatments from starting, as far as the
// guardrails respect it. isTreated says that a treatment of Autohealer is on the node: then its
// remediator may have cordoned the node, and Karpenter may disrupt the node because of it.
func WorkOfOthers(n *corev1.Node, respect dialect.Respect, isTreated bool) (reasons []string) {
	hold := func(field, what, ends string) {
		reasons = append(reasons, dialect.HeldByRespect(field, what, ends))
	}
	const taintIsGone = "the taint is gone"
	if respect.Cordons && n.Spec.Unschedulable && !isTreated {
		hold("cordons", "the node is cordoned", "it is uncordoned")
	}
	if key := taintAmong(n, autoscalerTaints); respect.ClusterAutoscaler && key != "" {
		hold("clusterAutoscaler", "the Cluster Autoscaler removes the node (taint "+key+")", taintIsGone)
	}
	if key := taintAmong(n, karpenterTaints); respect.Karpenter && key != "" && !isTreated {
		hold("karpenter", "Karpenter disrupts the node (taint "+key+")", taintIsGone)
	}
	if key := taintAmong(n, maintenanceTaints); respect.Maintenance && key != "" {
		hold("maintenance", "the node is in maintenance (taint "+key+")", taintIsGone)
	}
	for _, c := range n.Status.Conditions {
		if respect.Maintenance && c.Status == corev1.ConditionTrue && slices.Contains(maintenanceConditions, c.Type) {
			hold("maintenance", "maintenance of the node is announced (condition "+string(c.Type)+")", "the condition is not True")
		}
	}
	if respect.ExcludeLabel && n.Labels[remediation.ExcludeLabel] == remediation.ExcludeValue {
		hold("excludeLabel", "the node is labelled "+remediation.ExcludeLabel+"="+remediation.ExcludeValue, "the label is removed")
	}
	return reasons
}

// taintAmong returns the first of these keys that a taint of the node has, empty for none.
func taintAmong(n *corev1.Node, keys []string) string {
	if at := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(keys, t.Key) }); at >= 0 {
		return n.Spec.Taints[at].Key
	}
	return ""
}
