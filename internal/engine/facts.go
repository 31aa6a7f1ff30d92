package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Reobserve passes the current facts of nodes to the core and reconciles their
// treatments. The core takes all nodes together, so that the longest-waiting node goes
// first instead of the first in the list.
func (l *Engine) Reobserve(now time.Time, nodes ...string) {
	if len(nodes) == 0 {
		return
	}
	facts := make([]triage.Node, 0, len(nodes))
	for _, node := range nodes {
		if state := l.nodeStates[node]; state != nil {
			known, _ := observe.Node(state.Object) // an unreadable record has been reported
			l.addFacts(now, state, &known)
			facts = append(facts, known)
		}
	}
	l.core.Observe(now, facts...)
	for _, node := range nodes {
		l.tasks.reconcile(now, node)
	}
}

// ReobserveControlPlane reobserves all control-plane nodes.
func (l *Engine) ReobserveControlPlane(now time.Time) {
	var plane []string
	for name, state := range l.nodeStates {
		if remediation.IsControlPlane(state.Object) {
			plane = append(plane, name)
		}
	}
	slices.Sort(plane)
	l.Reobserve(now, plane...)
}

// NodeDeletedMessage says why a node that is being deleted is not treated.
const NodeDeletedMessage = "the node is being deleted"

// addFacts adds the facts that are not on the node object.
func (l *Engine) addFacts(now time.Time, state *Node, facts *triage.Node) {
	if state.Object.DeletionTimestamp != nil {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: NodeDeletedMessage})
	}
	l.addAttempts(state, facts)
	for p := range implementing[FactSource](l.policies) {
		p.AddFacts(now, state, facts)
	}
	for _, t := range l.tasks.treatments {
		t.AddFacts(now, state, facts)
	}
	l.addProtection(state, facts)
	for p := range implementing[Vetoer](l.policies) {
		p.AddVetoes(now, state, facts)
	}
}

// ReobserveTreated reobserves all nodes that have [NodeTasks].
func (l *Engine) ReobserveTreated(now time.Time) {
	l.Reobserve(now, slices.Sorted(maps.Keys(l.tasks.byNode))...)
}
