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

// poolKind is what Karpenter calls a pool of nodes.
const poolKind = "NodePool"

// nodesOf returns the nodes that a pool has and keeps, sorted, and how many of them are
// Ready.
func (s *sight) nodesOf(pool string) (names []string, ready int) {
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

// claimsOf returns the claims of a pool, those on their way out among them, sorted.
func (s *sight) claimsOf(pool string) (names []string) {
	for name, claim := range s.claims {
		if poolOf(claim) == pool {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func poolOf(claim *karpenter.NodeClaim) string { return claim.Labels[karpenter.NodePoolLabel] }

// machineName is how the kwok provider of Karpenter names a node: after its claim, and
// at length.
var machineName = regexp.MustCompile(`^kwok-([a-z]+-[a-z0-9]{5})-[a-z0-9-]+$`)

// called is how lines name a node, one of Karpenter's after its claim alone.
func called(node string) string { return machineName.ReplaceAllString(node, "$1") }

// deadline tells how long the pods of a machine have that is being deleted.
func deadline(claim *karpenter.NodeClaim) string {
	text := claim.Annotations[karpenter.TerminationTimestampAnnotation]
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil: // there is none
		return ""
	case at.After(claim.DeletionTimestamp.Time):
		return ", its pods have time until " + text
	}
	return ", its pods have no time left"
}

// tally tells what has come of a repair policy, as its status has it.
func tally(policy *v1alpha1.RepairPolicy) string {
	status := policy.Status
	noun := "nodes"
	if status.Nodes == 1 {
		noun = "node"
	}
	return fmt.Sprintf("%d %s, %d sick, %d in repair, %d held", status.Nodes, noun, status.Sick, status.Repairing, status.Held)
}

// staffed looks for a pool with so many nodes, all of them Ready, and a claim for each.
func staffed(pool string, want int) look {
	return func(s *sight) string {
		if nodes, ready := s.nodesOf(pool); len(nodes) != want || ready != want || len(s.claimsOf(pool)) != want {
			return fmt.Sprintf("NodePool %s has %d nodes, %d of them Ready, and %d claims, want %d of each", pool, len(nodes), ready, len(s.claimsOf(pool)), want)
		}
		return ""
	}
}

// unready looks for a pool with one node, which is not Ready, and its claim.
func unready(pool string) look {
	return func(s *sight) string {
		nodes, _ := s.nodesOf(pool)
		if len(nodes) != 1 || len(s.claimsOf(pool)) != 1 || statusOf(s.nodes[nodes[0]], corev1.NodeReady) != corev1.ConditionFalse {
			return fmt.Sprintf("NodePool %s has the nodes [%s] and %d claims, want one that is not Ready", pool, list(nodes), len(s.claimsOf(pool)))
		}
		return ""
	}
}

// away looks for nodes that are gone.
func away(nodes ...string) look {
	return func(s *sight) string {
		for _, name := range nodes {
			if s.nodes[name] != nil {
				return "node " + name + " is there"
			}
		}
		return ""
	}
}

// toldOf looks for an Event with a reason about so many of the nodes that a pool has or
// had. On a busy machine there may be more by the time that somebody looks.
func toldOf(reason string, want int) look {
	return func(s *sight) string {
		var about []string
		for w := range s.words {
			if w.reason == reason {
				about = append(about, w.about)
			}
		}
		if slices.Sort(about); len(about) < want {
			return fmt.Sprintf("Events have said %s of [%s], want it of %d at least", reason, strings.Join(about, ", "), want)
		}
		return ""
	}
}

// calm looks for a repair policy that has nothing to do.
func calm(name string) look {
	return func(s *sight) string {
		if policy := s.policies[name]; policy == nil || policy.Status.Sick+policy.Status.Repairing > 0 {
			return "RepairPolicy " + name + " has nodes that are sick or in repair"
		}
		return ""
	}
}

// governed looks for a repair policy that is followed, with so many nodes.
func governed(name string, nodes int32) look {
	return func(s *sight) string {
		policy := s.policies[name]
		if policy == nil || policy.Status.Nodes != nodes {
			return fmt.Sprintf("RepairPolicy %s does not govern %d nodes", name, nodes)
		}
		return ""
	}
}
