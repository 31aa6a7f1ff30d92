package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// tainted expects a taint on these nodes and on no other.
func tainted(key string, effect corev1.TaintEffect, nodes ...string) expectation {
	want := slices.Sorted(slices.Values(nodes))
	return func(s *state) string {
		if have := s.nodesWithTaint(key, effect); !slices.Equal(have, want) {
			return fmt.Sprintf("taint %s:%s is on [%s], want it on [%s]", key, effect, joinNames(have), joinNames(want))
		}
		return ""
	}
}

// taintCounts expects these numbers of nodes with the taint of kernelSet, on any nodes.
func taintCounts(executed, scheduled int) expectation {
	return func(s *state) string {
		if e, n := s.nodesWithTaint(kernelKey, noExecute), s.nodesWithTaint(kernelKey, noSchedule); len(e) != executed || len(n) != scheduled {
			return fmt.Sprintf("taint %s is on [%s] as NoExecute and on [%s] as NoSchedule, want %d and %d nodes",
				kernelKey, joinNames(e), joinNames(n), executed, scheduled)
		}
		return ""
	}
}

// anyTainted expects at least one node with the NoExecute taint of kernelSet.
func anyTainted(s *state) string {
	if len(s.nodesWithTaint(kernelKey, noExecute)) == 0 {
		return "no node has taint " + kernelKey + ":NoExecute"
	}
	return ""
}

// onlyTaints expects these taints and no others.
func onlyTaints(want map[string]string) expectation {
	return func(s *state) string {
		have := map[string]string{}
		for name, node := range s.nodes {
			taints := make([]string, 0, len(node.Spec.Taints))
			for _, t := range node.Spec.Taints {
				taints = append(taints, t.ToString())
			}
			if len(taints) > 0 {
				have[name] = strings.Join(taints, ",")
			}
		}
		if !maps.Equal(have, want) {
			return fmt.Sprintf("taints are %v, want %v", have, want)
		}
		return ""
	}
}

// noRecords expects nodes without the controller's record.
func noRecords(s *state) string {
	for name, node := range s.nodes {
		if record, ok := node.Annotations[ownership.Annotation]; ok {
			return fmt.Sprintf("node %s still has the record %s", name, record)
		}
	}
	return ""
}

// podsRun expects this number of running pods, and none terminating.
func podsRun(want int) expectation {
	return func(s *state) string {
		if running, all := s.runningPods(); !all || running != want {
			return fmt.Sprintf("%d pods run of %d that exist, want %d", running, len(s.pods), want)
		}
		return ""
	}
}

// noPods expects nodes without pods.
func noPods(nodes ...string) expectation {
	return func(s *state) string {
		for _, node := range nodes {
			if n := len(s.podsOn(node)); n > 0 {
				return fmt.Sprintf("%d pods are on %s, want none", n, node)
			}
		}
		return ""
	}
}

// hasPods expects pods on a node.
func hasPods(node string) expectation {
	return func(s *state) string {
		if len(s.podsOn(node)) == 0 {
			return "no pod is on " + node
		}
		return ""
	}
}

// podsUnmoved expects that the nodes still have their earlier pods.
func podsUnmoved(had map[string][]types.UID, nodes ...string) expectation {
	return func(s *state) string {
		for _, node := range nodes {
			for _, pod := range had[node] {
				if now := s.pods[pod]; now == nil || !runs(now) {
					return "a pod of " + node + " moved"
				}
			}
		}
		return ""
	}
}

// eventSeen expects an Event with a reason about each of the nodes or policies.
func eventSeen(reason string, about ...string) expectation {
	return func(s *state) string {
		for _, name := range about {
			if s.events[eventKey{name, reason}] == 0 {
				return "no Event with reason " + reason + " about " + name
			}
		}
		return ""
	}
}

// readyStatus expects a status of the condition Ready.
func readyStatus(ready corev1.ConditionStatus, nodes ...string) expectation {
	return conditionIs(corev1.NodeReady, ready, nodes...)
}

// conditionIs expects a status of a condition on each node.
func conditionIs(kind corev1.NodeConditionType, want corev1.ConditionStatus, nodes ...string) expectation {
	return func(s *state) string {
		for _, name := range nodes {
			if is := statusOf(s.nodes[name], kind); is != want {
				return fmt.Sprintf("%s of %s is %q, want %s", kind, name, is, want)
			}
		}
		return ""
	}
}

func statusOf(node *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == kind {
				return c.Status
			}
		}
	}
	return ""
}

// inRemediation expects remediations of these nodes and of no other.
func inRemediation(nodes ...string) expectation {
	want := slices.Sorted(slices.Values(nodes))
	return func(s *state) string {
		if have := s.inTreatment(); !slices.Equal(have, want) {
			return fmt.Sprintf("remediations exist for [%s], want them for [%s]", joinNames(have), joinNames(want))
		}
		return ""
	}
}

// remediationTotal expects the number of remediations since the start, including deleted
// ones.
func remediationTotal(want int) expectation {
	return func(s *state) string {
		if s.remediationCount != want {
			return fmt.Sprintf("%d remediations were created, want %d", s.remediationCount, want)
		}
		return ""
	}
}

// checkStatus expects the counts of the health check, and that it is enabled.
func checkStatus(observed, healthy, treated int) expectation {
	phase := remediationv1alpha1.PhaseEnabled
	if treated > 0 {
		phase = remediationv1alpha1.PhaseRemediating
	}
	want := fmt.Sprintf("%s: %d of %d nodes healthy, %d in treatment", phase, healthy, observed, treated)
	return func(s *state) string {
		check := s.checks[kubeletCheck]
		if check == nil {
			return "NodeHealthCheck " + kubeletCheck + " is missing"
		}
		if is := checkSummary(check); is != want {
			return fmt.Sprintf("NodeHealthCheck %s has %q (%s), want %q", kubeletCheck, is, check.Status.Reason, want)
		}
		return ""
	}
}

// waits expects that the health check holds these nodes back for a reason.
func waits(reason triage.Code, nodes ...string) expectation {
	return func(s *state) string {
		check := s.checks[kubeletCheck]
		if check == nil {
			return "NodeHealthCheck " + kubeletCheck + " is missing"
		}
		for _, node := range nodes {
			if !listsUnhealthy(check, remediationv1alpha1.UnhealthyNode{Name: node, Reason: reason.String()}) {
				return fmt.Sprintf("NodeHealthCheck %s does not list %s with %s", kubeletCheck, node, reason)
			}
		}
		return ""
	}
}

// railsSay expects a text in the reason of the Guardrails, and how many nodes are closed to new
// pods.
func railsSay(closed int32, words string) expectation {
	return func(s *state) string {
		if s.guardrails == nil {
			return "the Guardrails are missing"
		}
		if is := railsSummary(s.guardrails); !strings.Contains(is, words) || s.guardrails.Status.Unschedulable != closed {
			return fmt.Sprintf("the Guardrails have %q and %d closed nodes, want %q and %d", is, s.guardrails.Status.Unschedulable, words, closed)
		}
		return ""
	}
}

// setCounts expects the counts of a ConditionSet.
func setCounts(name string, matched, tainted, heldBack int32) expectation {
	return func(s *state) string {
		set := s.sets[name]
		if set == nil {
			return "ConditionSet " + name + " is missing"
		}
		if st := set.Status; st.Matched != matched || st.Tainted != tainted || st.HeldBack != heldBack {
			return fmt.Sprintf("ConditionSet %s has %s, want %d matched, %d tainted, %d held back", name, setSummary(set), matched, tainted, heldBack)
		}
		return ""
	}
}

// heldBackMessage expects a text in the reason why a set holds nodes back.
func heldBackMessage(name, words string) expectation {
	return func(s *state) string {
		var message string
		if set := s.sets[name]; set != nil {
			if c := meta.FindStatusCondition(set.Status.Conditions, v1alpha1.HeldBack); c != nil {
				message = c.Message
			}
		}
		if !strings.Contains(message, words) {
			return fmt.Sprintf("ConditionSet %s: message of HeldBack is %q, want %q in it", name, message, words)
		}
		return ""
	}
}

// nodeListed expects a node with a reason in the status of a set.
func nodeListed(name, node, reason string) expectation {
	return func(s *state) string {
		if set := s.sets[name]; set == nil || !listsMatched(set, v1alpha1.MatchedNode{Name: node, Reason: reason}) {
			return fmt.Sprintf("ConditionSet %s does not list reason %s for %s", name, reason, node)
		}
		return ""
	}
}

// setAccepted expects an accepted set.
func setAccepted(name string) expectation {
	return func(s *state) string {
		if !accepted(s.sets[name]) {
			return "ConditionSet " + name + " is not accepted"
		}
		return ""
	}
}
