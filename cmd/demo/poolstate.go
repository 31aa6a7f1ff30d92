package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
)

// poolKind is the kind of Karpenter's node pools.
const poolKind = "NodePool"

// nodesOf returns the nodes of a pool that are not being deleted, sorted, and how many of
// them are Ready.
func (s *state) nodesOf(pool string) (names []string, ready int) {
	for name, node := range s.nodes {
		if node.Labels[karpenter.NodePoolLabel] != pool || node.DeletionTimestamp != nil {
			continue
		}
		names = append(names, name)
		if statusOf(node, corev1.NodeReady) == corev1.ConditionTrue {
			ready++
		}
	}
	slices.Sort(names)
	return names, ready
}

// claimsOf returns the claims of a pool, including those being deleted, sorted.
func (s *state) claimsOf(pool string) (names []string) {
	for name, claim := range s.claims {
		if poolOf(claim) == pool {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func poolOf(claim *karpenter.NodeClaim) string { return claim.Labels[karpenter.NodePoolLabel] }

// kwokNodeName matches the node names of Karpenter's kwok provider: the name of the claim
// and a long suffix.
var kwokNodeName = regexp.MustCompile(`^kwok-([a-z]+-[a-z0-9]{5})-[a-z0-9-]+$`)

// displayName returns the printed name of a node. Nodes of Karpenter have the name of their
// claim.
func displayName(node string) string { return kwokNodeName.ReplaceAllString(node, "$1") }

// deadline describes how long the pods of a deleted claim may still run.
func deadline(claim *karpenter.NodeClaim) string {
	text := claim.Annotations[karpenter.TerminationTimestampAnnotation]
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil: // no deadline
		return ""
	case at.After(claim.DeletionTimestamp.Time):
		return ", its pods have time until " + text
	}
	return ", its pods have no time left"
}

// policySummary describes the status of a repair policy.
func policySummary(policy *v1alpha1.RepairPolicy) string {
	status := policy.Status
	noun := "nodes"
	if status.Nodes == 1 {
		noun = "node"
	}
	return fmt.Sprintf("%d %s, %d unhealthy, %d in repair, %d held", status.Nodes, noun, status.Unhealthy, status.Repairing, status.Held)
}

// poolReady expects this number of nodes, all Ready, with a claim for each.
func poolReady(pool string, want int) expectation {
	return func(s *state) string {
		if nodes, ready := s.nodesOf(pool); len(nodes) != want || ready != want || len(s.claimsOf(pool)) != want {
			return fmt.Sprintf("NodePool %s has %d nodes, %d of them Ready, and %d claims, want %d of each", pool, len(nodes), ready, len(s.claimsOf(pool)), want)
		}
		return ""
	}
}

// poolUnready expects one node, which is not Ready, and its claim.
func poolUnready(pool string) expectation {
	return func(s *state) string {
		nodes, _ := s.nodesOf(pool)
		if len(nodes) != 1 || len(s.claimsOf(pool)) != 1 || statusOf(s.nodes[nodes[0]], corev1.NodeReady) != corev1.ConditionFalse {
			return fmt.Sprintf("NodePool %s has the nodes [%s] and %d claims, want one node, not Ready", pool, joinNames(nodes), len(s.claimsOf(pool)))
		}
		return ""
	}
}

// nodesGone expects that the nodes do not exist.
func nodesGone(nodes ...string) expectation {
	return func(s *state) string {
		for _, name := range nodes {
			if s.nodes[name] != nil {
				return "node " + name + " still exists"
			}
		}
		return ""
	}
}

// eventSeenTimes expects Events with a reason about at least this number of nodes. On a
// busy machine there may be more.
func eventSeenTimes(reason string, want int) expectation {
	return func(s *state) string {
		var about []string
		for w := range s.events {
			if w.reason == reason {
				about = append(about, w.about)
			}
		}
		if slices.Sort(about); len(about) < want {
			return fmt.Sprintf("Events with reason %s are about [%s], want at least %d nodes", reason, strings.Join(about, ", "), want)
		}
		return ""
	}
}

// policyIdle expects a repair policy without unhealthy nodes.
func policyIdle(name string) expectation {
	return func(s *state) string {
		if policy := s.policies[name]; policy == nil || policy.Status.Unhealthy+policy.Status.Repairing > 0 {
			return "RepairPolicy " + name + " has nodes that are unhealthy or in repair"
		}
		return ""
	}
}

// policyNodes expects a repair policy that applies to this number of nodes.
func policyNodes(name string, nodes int32) expectation {
	return func(s *state) string {
		policy := s.policies[name]
		if policy == nil || policy.Status.Nodes != nodes {
			return fmt.Sprintf("RepairPolicy %s does not apply to %d nodes", name, nodes)
		}
		return ""
	}
}
