package engine

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// reobserve passes the current facts of nodes to the core and reconciles their
// treatments. The core takes all nodes together, so that the longest-waiting node goes
// first instead of the first in the list.
func (l *Engine) reobserve(now time.Time, nodes ...string) {
	if len(nodes) == 0 {
		return
	}
	facts := make([]triage.Node, 0, len(nodes))
	for _, node := range nodes {
		if state := l.nodeStates[node]; state != nil {
			known, _ := observe.Node(state.Object) // an unreadable record has been reported
			l.addTreatmentFacts(now, state, &known)
			facts = append(facts, known)
		}
	}
	l.core.Observe(now, facts...)
	for _, node := range nodes {
		l.tasks.reconcile(now, node)
	}
}

// reobserveControlPlane reobserves all control-plane nodes.
func (l *Engine) reobserveControlPlane(now time.Time) {
	var plane []string
	for name, state := range l.nodeStates {
		if remediation.IsControlPlane(state.Object) {
			plane = append(plane, name)
		}
	}
	slices.Sort(plane)
	l.reobserve(now, plane...)
}

// addTreatmentFacts adds the facts that are not on the node object: its treatments and
// the vetoes against treating it.
func (l *Engine) addTreatmentFacts(now time.Time, state *Node, facts *triage.Node) {
	defer l.remediations.noteReportedTreatments(state, facts)
	l.nodeClaims.addFacts(now, state, facts)
	l.remediations.addObjectFacts(state, facts)
	if l.checks.deferring {
		return
	}
	facts.Confirmed = isConfirmed(state.Object)
	veto := func(message string) {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Kind: triage.NodeHealthCheck, Reason: message})
	}
	if state.Object.Labels[remediation.ExcludeLabel] == remediation.ExcludeValue {
		veto("the node is labelled " + remediation.ExcludeLabel + "=" + remediation.ExcludeValue)
	}
	if facts.ControlPlane && l.remediations.unreadable != "" {
		veto("cannot determine whether another control-plane node is under remediation: " + l.remediations.unreadable)
	}
	if facts.ControlPlane && l.remediations.orphans.message != "" {
		veto("another control-plane node may be in treatment: " + l.remediations.orphans.message)
	}
	if message := l.remediations.foreignLease(now, state.Object.Name); message != "" {
		veto(message)
	}
}

// vetoTreatments blocks all treatments of a node.
func vetoTreatments(facts *triage.Node, message string) {
	facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: message})
}
