package observe

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// controlPlaneLabel is how a node of the control plane is known, and
	// masterLabel how it was known until Kubernetes 1.24. Old clusters have the
	// one, and some distributions still set both.
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	masterLabel       = "node-role.kubernetes.io/master"
	// initializedLabel is how Karpenter marks a node that once was ready.
	initializedLabel = "karpenter.sh/initialized"
)

// Node returns the facts that stand in a Node object: what everybody's tools
// write there, and which of it this system put there itself. What stands
// elsewhere (treatments, and what others say against treating the node) it
// leaves out.
//
// The error tells of a record that cannot be read. The facts are right all the
// same, but nothing on the node counts as ours.
func Node(n *corev1.Node) (triage.Node, error) {
	_, controlPlane := n.Labels[controlPlaneLabel]
	_, master := n.Labels[masterLabel]
	facts := triage.Node{
		Name:         n.Name,
		UID:          string(n.UID),
		Zone:         n.Labels[corev1.LabelTopologyZone],
		Labels:       n.Labels,
		Created:      n.CreationTimestamp.Time,
		ControlPlane: controlPlane || master,
		Initialized:  n.Labels[initializedLabel] == "true",
		Conditions:   make([]triage.Condition, 0, len(n.Status.Conditions)),
	}
	for _, c := range n.Status.Conditions {
		facts.Conditions = append(facts.Conditions, triage.Condition{
			Type: string(c.Type), Status: status(c.Status), Reason: c.Reason, Transition: c.LastTransitionTime.Time,
		})
	}
	note, err := ownership.Read(n.Annotations)
	facts.Foreign = foreign(n.Spec.Taints, note)
	if err != nil {
		return facts, fmt.Errorf("node %s: %w", n.Name, err)
	}
	facts.Initialized = facts.Initialized || note.Initialized
	facts.Taints = taints(n.Spec.Taints, note)
	for _, m := range note.Starts {
		facts.Memories = append(facts.Memories, triage.Memory{
			Rule: triage.RuleID(m.Rule), Condition: m.Condition, Since: m.Since, Transition: m.Transition,
		})
	}
	return facts, nil
}

// taints returns the taints that are both on the node and on our note, once for
// every rule that has them.
func taints(onNode []corev1.Taint, note ownership.Record) []triage.Taint {
	var ours []triage.Taint
	for _, noted := range note.Taints {
		effect, err := triage.ParseEffect(string(noted.Effect))
		if err != nil {
			continue // no taint on a node has such an effect
		}
		for _, t := range onNode {
			if noted.Is(t) {
				ours = append(ours, triage.Taint{Rule: triage.RuleID(noted.Rule), Key: noted.Key, Effect: effect})
			}
		}
	}
	return ours
}

// foreign returns the keys of the NoExecute taints on the node that are not on our note.
func foreign(onNode []corev1.Taint, note ownership.Record) (keys []string) {
	for _, t := range onNode {
		if t.Effect == corev1.TaintEffectNoExecute && !note.Owns(t) {
			keys = append(keys, t.Key)
		}
	}
	return keys
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
