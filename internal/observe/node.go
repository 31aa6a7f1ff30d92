package observe

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// controlPlaneLabel is how a node of the control plane is known.
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	// initializedLabel is how Karpenter marks a node that once was ready.
	initializedLabel = "karpenter.sh/initialized"
)

// Node returns the facts that everybody's tools write into a Node object. What
// this system itself put there (taints, treatments, memories) and what others
// say against treating the node (vetoes) it leaves out.
func Node(n *corev1.Node) triage.Node {
	_, controlPlane := n.Labels[controlPlaneLabel]
	facts := triage.Node{
		Name:         n.Name,
		UID:          string(n.UID),
		Zone:         n.Labels[corev1.LabelTopologyZone],
		Labels:       n.Labels,
		Created:      n.CreationTimestamp.Time,
		ControlPlane: controlPlane,
		Initialized:  n.Labels[initializedLabel] == "true",
		Conditions:   make([]triage.Condition, 0, len(n.Status.Conditions)),
	}
	for _, c := range n.Status.Conditions {
		facts.Conditions = append(facts.Conditions, triage.Condition{
			Type: string(c.Type), Status: status(c.Status), Reason: c.Reason, Transition: c.LastTransitionTime.Time,
		})
	}
	return facts
}

// status reads a condition's status. The API server takes any text; what is
// neither True nor False says nothing.
func status(s corev1.ConditionStatus) triage.Status {
	switch s {
	case corev1.ConditionTrue:
		return triage.True
	case corev1.ConditionFalse:
		return triage.False
	default:
		return triage.Unknown
	}
}
