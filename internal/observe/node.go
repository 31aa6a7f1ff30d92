package observe

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// controlPlaneLabel marks control-plane nodes. Kubernetes before 1.24 used masterLabel,
	// and some distributions still set both.
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	masterLabel       = "node-role.kubernetes.io/master"
	// initializedLabel marks nodes that Karpenter has seen ready.
	initializedLabel = "karpenter.sh/initialized"
)

// Node returns the facts in a Node object, including which taints Autohealer placed. It
// omits facts that other objects hold: treatments, and vetoes except that of unreadable attempts.
//
// An error means that the ownership record cannot be read. The facts are still correct, but
// no taint counts as placed by Autohealer.
func Node(n *corev1.Node) (triage.Node, error) {
	_, controlPlane := n.Labels[controlPlaneLabel]
	_, master := n.Labels[masterLabel]
	facts := triage.Node{
		Name:         n.Name,
		UID:          string(n.UID),
		Zone:         n.Labels[corev1.LabelTopologyZone],
		Labels:       n.Labels,
		Created:      n.CreationTimestamp.Time,
		Image:        n.Status.NodeInfo.OSImage,
		ControlPlane: controlPlane || master,
		Initialized:  n.Labels[initializedLabel] == "true",
		Conditions:   make([]triage.Condition, 0, len(n.Status.Conditions)),
	}
	for _, c := range n.Status.Conditions {
		facts.Conditions = append(facts.Conditions, triage.Condition{
			Type: string(c.Type), Status: status(c.Status), Reason: c.Reason, Transition: c.LastTransitionTime.Time,
		})
	}
	pause, _ := nodepause.Read(n.Annotations)
	facts.Hold, facts.HoldUntil = pause.Message, pause.Until
	treated, unreadable := attempts.Read(n.Annotations)
	if unreadable != nil { // it may have been treated too often
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: unreadable.Error()})
	}
	for _, a := range treated.Attempts {
		facts.Attempts = append(facts.Attempts, Attempt(a))
	}
	record, err := ownership.Read(n.Annotations)
	facts.Closed, facts.Dedicated = closedByOthers(n, record)
	facts.Foreign = foreign(n.Spec.Taints, record)
	if err != nil {
		return facts, fmt.Errorf("node %s: %w", n.Name, err)
	}
	facts.Initialized = facts.Initialized || record.Initialized
	facts.Taints = taints(n.Spec.Taints, record)
	for _, m := range record.Starts {
		facts.Memories = append(facts.Memories, triage.Memory{
			Rule: triage.RuleID(m.Rule), Condition: m.Condition, Since: m.Since, Transition: m.Transition,
		})
	}
	return facts, nil
}

// Attempt returns the fact in an attempt of a node.
func Attempt(a attempts.Attempt) triage.Attempt {
	return triage.Attempt{Rule: triage.RuleID(a.Policy), Began: a.Began, Inherited: a.Node != ""}
}

// temporaryTaints are prefixes of taints that other components place for a while, and that
// keep ordinary pods away. All other taints dedicate a node to certain pods.
var temporaryTaints = []string{
	"node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", "ToBeDeletedByClusterAutoscaler",
}

// closedByOthers reports whether a node is closed to new pods for a while by a cordon or a
// taint of another component, and whether it is dedicated to certain pods.
func closedByOthers(n *corev1.Node, record ownership.Record) (isClosed, isDedicated bool) {
	isClosed = n.Spec.Unschedulable
	for _, t := range n.Spec.Taints {
		isTemporary := func(prefix string) bool { return strings.HasPrefix(t.Key, prefix) }
		switch {
		case t.Effect != corev1.TaintEffectNoSchedule && t.Effect != corev1.TaintEffectNoExecute || record.Owns(t):
		case slices.ContainsFunc(temporaryTaints, isTemporary):
			isClosed = true
		default:
			isDedicated = true
		}
	}
	return isClosed, isDedicated
}

// taints returns the taints that are both on the node and in the record, once for every
// rule.
func taints(onNode []corev1.Taint, record ownership.Record) []triage.Taint {
	var ours []triage.Taint
	for _, recorded := range record.Taints {
		effect, err := triage.ParseEffect(string(recorded.Effect))
		if err != nil {
			continue // no taint on a node has this effect
		}
		for _, t := range onNode {
			if recorded.Is(t) {
				ours = append(ours, triage.Taint{Rule: triage.RuleID(recorded.Rule), Key: recorded.Key, Effect: effect})
			}
		}
	}
	return ours
}

// foreign returns the keys of the NoExecute taints on the node that are not in the record.
func foreign(onNode []corev1.Taint, record ownership.Record) (keys []string) {
	for _, t := range onNode {
		if t.Effect == corev1.TaintEffectNoExecute && !record.Owns(t) {
			keys = append(keys, t.Key)
		}
	}
	return keys
}

// status parses the status of a condition. The API server accepts any text; values other
// than True and False mean Unknown.
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
