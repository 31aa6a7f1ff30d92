package explore

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// These checks say what the conditions of a quiet cluster ask for, in the plainest way. They
// share no code with the core.

// checkQuiet checks a cluster in which nothing happens any more.
func (c *cluster) checkQuiet() *Violation {
	for _, rule := range quietRules {
		if message := rule.check(c); message != "" {
			return &Violation{Invariant: rule.name, Message: message}
		}
	}
	return nil
}

func checkRuns(c *cluster) string {
	if len(c.live()) == 0 {
		return "all replicas have ended"
	}
	return ""
}

// nodeUIDOf returns the UID of the node that a remediation object is for.
func nodeUIDOf(object client.Object) types.UID {
	return types.UID(object.GetAnnotations()[remediation.NodeUIDAnnotation])
}

// isControlPlane reports whether a node of the scenario is a control-plane node.
func (c *cluster) isControlPlane(node string) bool {
	return slices.ContainsFunc(c.scenario.Nodes, func(n Node) bool { return n.Name == node && n.ControlPlane })
}

// wantedSets returns the sets that place a taint on a node: those that match, with the
// strongest effect.
func (c *cluster) wantedSets(node *corev1.Node) (sets []Set) {
	strongest := corev1.TaintEffectNoSchedule
	for _, set := range c.scenario.Sets {
		if isTrue(node, set.Condition) && set.Effect == corev1.TaintEffectNoExecute {
			strongest = set.Effect
		}
	}
	for _, set := range c.scenario.Sets {
		if isTrue(node, set.Condition) && set.Effect == strongest {
			sets = append(sets, set)
		}
	}
	return sets
}

// effectsOf returns the effects of a set's taints on a node.
func effectsOf(node *corev1.Node, set Set) (effects []corev1.TaintEffect) {
	for _, t := range node.Spec.Taints {
		if t.Key == set.key() && t.Value == "" {
			effects = append(effects, t.Effect)
		}
	}
	return effects
}

// checkTaints checks the taints of every set: NoExecute on as many matching nodes as the cap
// allows, NoSchedule on the others, and none on nodes that do not match.
func checkTaints(c *cluster) string {
	for _, set := range c.scenario.Sets {
		strong, room := 0, set.Max
		var weak []string
		for _, node := range c.nodes() {
			isWanted := slices.Contains(c.wantedSets(node), set)
			if hasTaint(node, set.key(), othersValue) { // it serves, and counts under the cap
				room--
				continue
			}
			effects := effectsOf(node, set)
			switch {
			case !isWanted && len(effects) == 0:
			case !isWanted && c.mode() != v1alpha1.Enforce && isTrue(node, set.Condition): // a stronger taint may not take its place
			case !isWanted:
				return fmt.Sprintf("%s has %s:%v and does not match", node.Name, set.key(), effects)
			case len(effects) == 0 && (isFull(c.closed(), c.scenario.Rails.Unschedulable) || c.mode() != v1alpha1.Enforce || c.isLast(node)):
			case len(effects) != 1:
				return fmt.Sprintf("%s matches %s and has the taints %v", node.Name, set.Name, effects)
			case effects[0] == corev1.TaintEffectNoExecute:
				strong++
			case !c.isControlPlane(node.Name) && !c.isHeld(node):
				weak = append(weak, node.Name)
			}
		}
		if set.Effect == corev1.TaintEffectNoExecute && len(weak) > 0 && strong < room {
			return fmt.Sprintf("%s have NoSchedule of %s, although only %d of %d have NoExecute", strings.Join(weak, ", "), set.Name, strong, set.Max)
		}
	}
	return ""
}

// checkRemediations checks the remediation objects: none for a healthy node, one for every
// unhealthy node while the gate is open, and one control-plane node at a time.
func checkRemediations(c *cluster) string {
	for _, check := range c.scenario.Checks {
		var unhealthy, untreated []string
		planeTreated := false
		for _, node := range c.nodes() {
			object := c.model.objects[rebootOf(node.Name)]
			isOurs := object != nil && object.GetOwnerReferences()[0].Name == check.Name
			if isTrue(node, check.Condition) {
				unhealthy = append(unhealthy, node.Name)
				if object == nil && !c.isHeld(node) && !c.isGivenUp(node) {
					untreated = append(untreated, node.Name)
				}
			} else if isOurs {
				return node.Name + " is healthy and has a remediation"
			}
			if isOurs && nodeUIDOf(object) != node.UID {
				return "a remediation exists for an earlier node " + node.Name
			}
			planeTreated = planeTreated || object != nil && c.isControlPlane(node.Name)
		}
		if len(unhealthy) > check.MaxUnhealthy {
			continue // what began earlier stays
		}
		for _, node := range untreated {
			if !c.isControlPlane(node) || !planeTreated {
				return fmt.Sprintf("%s is unhealthy and has no remediation, although only %s are unhealthy", node, strings.Join(unhealthy, ", "))
			}
		}
	}
	return ""
}

// checkLedgerIsEmpty checks that no entry of a rule is left. Those of the pace and of attempts have no rule.
func checkLedgerIsEmpty(c *cluster) string {
	_, entries := c.ledgerEntries()
	if entries = slices.DeleteFunc(entries, func(e storedEntry) bool { return len(e.Rule) == 0 }); len(entries) > 0 {
		return fmt.Sprintf("the ledger still has %+v", entries)
	}
	return ""
}

// checkLeases checks that the controller holds the Leases of the nodes in treatment, and no
// others. A remediation that was told to stop has none.
func checkLeases(c *cluster) string {
	for _, node := range c.nodes() {
		isHeld := c.model.objects[objectKey{"Lease", nodelease.Namespace, nodelease.NameOf(node.Name)}] != nil
		isTreated := false
		if object := c.model.objects[rebootOf(node.Name)]; object != nil {
			_, isOver := object.GetAnnotations()[remediation.TimedOutAnnotation]
			isTreated = !isOver
		}
		if isHeld != isTreated {
			return fmt.Sprintf("the Lease of %s exists: %t, its remediation may work: %t", node.Name, isHeld, isTreated)
		}
	}
	return ""
}
