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
)

// tainted looks for a taint on these nodes and on no other.
func tainted(key string, effect corev1.TaintEffect, nodes ...string) look {
	want := slices.Sorted(slices.Values(nodes))
	return func(s *sight) string {
		if have := s.carriers(key, effect); !slices.Equal(have, want) {
			return fmt.Sprintf("taint %s:%s is on [%s], want it on [%s]", key, effect, list(have), list(want))
		}
		return ""
	}
}

// stormed looks for so many nodes with the kernel set's taint, whichever they are.
func stormed(executed, scheduled int) look {
	return func(s *sight) string {
		if e, n := s.carriers(kernelKey, noExecute), s.carriers(kernelKey, noSchedule); len(e) != executed || len(n) != scheduled {
			return fmt.Sprintf("taint %s is on [%s] as NoExecute and on [%s] as NoSchedule, want %d and %d nodes",
				kernelKey, list(e), list(n), executed, scheduled)
		}
		return ""
	}
}

// begun looks for any node with the kernel set's taint.
func begun(s *sight) string {
	if len(s.carriers(kernelKey, noExecute)) == 0 {
		return "no node has taint " + kernelKey + ":NoExecute"
	}
	return ""
}

// onlyTaints looks for nodes that have these taints and no others.
func onlyTaints(want map[string]string) look {
	return func(s *sight) string {
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

// noRecords looks for nodes without a note of the controller.
func noRecords(s *sight) string {
	for name, node := range s.nodes {
		if note, ok := node.Annotations[ownership.Annotation]; ok {
			return fmt.Sprintf("node %s still has the note %s", name, note)
		}
	}
	return ""
}

// podsRun looks for so many pods that run, and none on its way out.
func podsRun(want int) look {
	return func(s *sight) string {
		if running, all := s.resting(); !all || running != want {
			return fmt.Sprintf("%d pods run of %d that exist, want %d", running, len(s.pods), want)
		}
		return ""
	}
}

// empty looks for nodes without any pod.
func empty(nodes ...string) look {
	return func(s *sight) string {
		for _, node := range nodes {
			if n := len(s.podsOn(node)); n > 0 {
				return fmt.Sprintf("%d pods are on %s, want none", n, node)
			}
		}
		return ""
	}
}

// busy looks for pods on a node.
func busy(node string) look {
	return func(s *sight) string {
		if len(s.podsOn(node)) == 0 {
			return "no pod is on " + node
		}
		return ""
	}
}

// unmoved looks for nodes that still have the pods that they had.
func unmoved(had map[string][]types.UID, nodes ...string) look {
	return func(s *sight) string {
		for _, node := range nodes {
			for _, pod := range had[node] {
				if now := s.pods[pod]; now == nil || !runs(now) {
					return "a pod of " + node + " was moved"
				}
			}
		}
		return ""
	}
}

// told looks for an Event with a reason about each of the nodes, or policies.
func told(reason string, about ...string) look {
	return func(s *sight) string {
		for _, name := range about {
			if s.words[word{name, reason}] == 0 {
				return "no Event has said " + reason + " of " + name
			}
		}
		return ""
	}
}

// heard looks for what the heartbeats of nodes come to.
func heard(ready corev1.ConditionStatus, nodes ...string) look {
	return reported(corev1.NodeReady, ready, nodes...)
}

// reported looks for a condition of nodes.
func reported(kind corev1.NodeConditionType, want corev1.ConditionStatus, nodes ...string) look {
	return func(s *sight) string {
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

// treated looks for remediations of these nodes and of no other.
func treated(nodes ...string) look {
	want := slices.Sorted(slices.Values(nodes))
	return func(s *sight) string {
		if have := s.inTreatment(); !slices.Equal(have, want) {
			return fmt.Sprintf("remediations are there for [%s], want them for [%s]", list(have), list(want))
		}
		return ""
	}
}

// askedInAll looks for how often the remediator was ever asked, for however short a
// moment.
func askedInAll(want int) look {
	return func(s *sight) string {
		if s.asks != want {
			return fmt.Sprintf("the remediator was asked %d times, want %d", s.asks, want)
		}
		return ""
	}
}

// checked looks for the counts of the health check, while it is followed.
func checked(observed, healthy, treated int) look {
	phase := remediationv1alpha1.PhaseEnabled
	if treated > 0 {
		phase = remediationv1alpha1.PhaseRemediating
	}
	want := fmt.Sprintf("%s: %d of %d nodes healthy, %d in treatment", phase, healthy, observed, treated)
	return func(s *sight) string {
		check := s.checks[kubeletCheck]
		if check == nil {
			return "NodeHealthCheck " + kubeletCheck + " is missing"
		}
		if is := health(check); is != want {
			return fmt.Sprintf("NodeHealthCheck %s says %q (%s), want %q", kubeletCheck, is, check.Status.Reason, want)
		}
		return ""
	}
}

// held looks for nodes of which the health check says that they are too many.
func held(nodes ...string) look {
	return func(s *sight) string {
		check := s.checks[kubeletCheck]
		if check == nil {
			return "NodeHealthCheck " + kubeletCheck + " is missing"
		}
		for _, node := range nodes {
			if !names(check, remediationv1alpha1.UnhealthyNode{Name: node, Reason: "GateClosed"}) {
				return fmt.Sprintf("NodeHealthCheck %s does not say GateClosed of %s", kubeletCheck, node)
			}
		}
		return ""
	}
}

// counted looks for the counts of a set.
func counted(name string, matched, tainted, heldBack int32) look {
	return func(s *sight) string {
		set := s.sets[name]
		if set == nil {
			return "ConditionSet " + name + " is missing"
		}
		if st := set.Status; st.Matched != matched || st.Tainted != tainted || st.HeldBack != heldBack {
			return fmt.Sprintf("ConditionSet %s says %s, want %d matched, %d tainted, %d held back", name, counts(set), matched, tainted, heldBack)
		}
		return ""
	}
}

// explained looks for words in what a set says about why it holds back.
func explained(name, words string) look {
	return func(s *sight) string {
		var message string
		if set := s.sets[name]; set != nil {
			if c := meta.FindStatusCondition(set.Status.Conditions, v1alpha1.HeldBack); c != nil {
				message = c.Message
			}
		}
		if !strings.Contains(message, words) {
			return fmt.Sprintf("ConditionSet %s says about what it holds back: %q, want %q in it", name, message, words)
		}
		return ""
	}
}

// listed looks for what a set says about a node.
func listed(name, node, reason string) look {
	return func(s *sight) string {
		if set := s.sets[name]; set == nil || !lists(set, v1alpha1.MatchedNode{Name: node, Reason: reason}) {
			return fmt.Sprintf("ConditionSet %s does not say %s of %s", name, reason, node)
		}
		return ""
	}
}

// followed looks for a set that was accepted.
func followed(name string) look {
	return func(s *sight) string {
		if !accepted(s.sets[name]) {
			return "ConditionSet " + name + " is not accepted"
		}
		return ""
	}
}
