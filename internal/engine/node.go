package engine

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Node is a node, and what the engine knows about it.
type Node struct {
	Object     *corev1.Node
	observedAt time.Time // when this version arrived
	arrivedAt  time.Time // when the latest version arrived, heartbeats included

	Taints   []triage.Taint // our taints on the node
	findings []triage.Reason
	Reported map[triage.RuleID]Report // what policies have reported last about a finding

	firstFindings map[triage.RuleID]firstFinding

	unreadable      bool   // the ownership record cannot be read
	pauseProblem    string // why the pause of the node cannot be read, empty if it can
	attemptsProblem string // why its attempts cannot be read, empty if they can
	unknownEntries  int    // entries and fields of the record that this version does not know
}

// Report is what a policy has reported last about a finding for a node.
type Report struct {
	Code    triage.Code
	Message string // the cause, without numbers
}

// NoteReported records what a policy has reported about a finding.
func (state *Node) NoteReported(rule triage.RuleID, is Report) {
	if state.Reported == nil {
		state.Reported = map[triage.RuleID]Report{}
	}
	state.Reported[rule] = is
}

// maxFirstIDs limits the Events of a node that flaps and keeps its finding.
const maxFirstIDs = 64

// firstFinding is the first finding of a rule that was published for a node.
type firstFinding struct {
	code triage.Code // 0 after a different one
	ids  []string    // of its Events
}

// isFirstFinding reports whether the Event describes the first finding of the rule for the
// node, and is published for the first time.
func (state *Node) isFirstFinding(id string, finding triage.Reason) bool {
	first, isKnown := state.firstFindings[finding.Rule]
	isFirst := !isKnown || first.code == finding.Code && !slices.Contains(first.ids, id)
	first.code = map[bool]triage.Code{true: finding.Code}[isFirst]
	first.ids = append(first.ids, id)
	if !isFirst || len(first.ids) > maxFirstIDs {
		first.ids = nil
	}
	if state.firstFindings == nil {
		state.firstFindings = map[triage.RuleID]firstFinding{}
	}
	state.firstFindings[finding.Rule] = first
	return isFirst
}

// setNode stores a newer version of a node.
func (l *Engine) setNode(state *Node, node *corev1.Node, at time.Time) {
	before := state.Object
	state.Object, state.observedAt = node, at
	l.nodeWriter.NodeChanged(state, before)
}

// isNamedBy reports whether the entry is about this node.
func (state *Node) isNamedBy(e ledger.NodeWrite) bool {
	return state != nil && string(state.Object.UID) == e.UID
}

// DueSince returns since when a write is due that the current version of the node asks for.
func (state *Node) DueSince(now time.Time) time.Time {
	if now.Sub(state.observedAt) > time.Second { // due by time, not by a change
		return now
	}
	return state.observedAt
}

// Finding returns the finding of a rule for the node.
func (state *Node) Finding(rule triage.RuleID) (finding triage.Reason, is bool) {
	if at := slices.IndexFunc(state.findings, func(f triage.Reason) bool { return f.Rule == rule }); at >= 0 {
		return state.findings[at], true
	}
	return triage.Reason{}, false
}

// TaintEffect returns the effect of the rule's taint on the node, 0 for none.
func (state *Node) TaintEffect(rule triage.RuleID) (effect triage.Effect) {
	if state == nil {
		return 0
	}
	for _, t := range state.Taints {
		if t.Rule == rule {
			effect = max(effect, t.Effect)
		}
	}
	return effect
}

// Reconcile compares a node with its plan, and queues what differs.
func (l *Engine) Reconcile(now time.Time, state *Node) {
	plan, ok := l.Plan(state)
	if !ok {
		return
	}
	l.noteFindings(now, state, plan.Findings)
	maps.DeleteFunc(state.Reported, func(rule triage.RuleID, _ Report) bool { // a reason that returns is reported again
		return !slices.ContainsFunc(plan.Findings, func(is triage.Reason) bool { return is.Rule == rule })
	})
	for p := range implementing[PlanReader](l.policies) {
		p.Planned(state, plan)
	}
	l.tasks.ensure(now, state, plan)
	l.nodeWriter.Reconcile(now, state, plan)
}

// IsOverBound reports whether a rule has more slots taken than its bound allows now.
func (l *Engine) IsOverBound(rule triage.RuleID) bool {
	counts, ok := l.core.Population(rule)
	return ok && counts.Cap >= 0 && counts.Pooled > counts.Cap
}

func unreadableRecordMessage(err error) string {
	return "the ownership record on this node cannot be read, so Autohealer treats no taint on it as its own (" + err.Error() + "); " +
		"remove the annotation " + ownership.Annotation + " and all unwanted taints"
}
