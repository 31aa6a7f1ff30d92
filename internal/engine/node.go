package engine

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// writesAtOnce and writesPerSecond bound the writes to one flapping node.
	writesAtOnce    = 10
	writesPerSecond = 1
)

// Node is a node, and what the engine knows about it.
type Node struct {
	Object     *corev1.Node
	observedAt time.Time // when this version arrived
	gone       bool

	Taints   []triage.Taint // our taints on the node
	findings []triage.Reason
	Reported map[triage.RuleID]Report // what policies have reported last about a finding

	unreadable     bool // the ownership record cannot be read
	unknownEntries int  // entries and fields of the record that this version does not know

	taintWrite
}

// taintWrite is the progress of the next write of taints to a node.
type taintWrite struct {
	stage queueStage
	// granted is the slot that the ledger names for the node; requested is the slot requested
	// in its next snapshot.
	granted, requested grantedSlot
	// sentFor is the node version that an unfinished taint write names, empty for none.
	// unansweredFor is the same for a write whose answer never came.
	sentFor, unansweredFor string

	dueSince  time.Time     // since when a taint is missing
	notBefore time.Time     // earliest time of the next write
	writeRate *rate.Limiter // limits writes; nil before the first
	needsRead bool          // the node must be read before any write

	failure          Failure // of the last write
	refusals         int     // recent rejections by the API server
	refusedAt        time.Time
	refusalsReported map[triage.RuleID]reportedRefusal
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

// setNode stores a newer version of the node. A write that names an older version has
// either succeeded already or never will.
func (state *Node) setNode(node *corev1.Node, at time.Time) {
	if state.Object != nil && state.Object.UID != node.UID {
		state.granted, state.failure, state.notBefore, state.needsRead, state.dueSince = grantedSlot{}, Failure{}, time.Time{}, false, time.Time{}
		state.refusals, state.refusalsReported = 0, nil
	}
	state.Object, state.observedAt = node, at
	if state.sentFor != node.ResourceVersion {
		state.sentFor, state.unansweredFor = "", ""
	}
	if state.granted.version != node.ResourceVersion {
		state.granted = grantedSlot{}
	}
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

// noteNotWritten records that the last write failed for certain. An earlier write with the
// same version may still succeed if its answer was lost.
func (state *Node) noteNotWritten() { state.sentFor = state.unansweredFor }

// mayWrite reports whether the rate limit of the node allows a write, and delays it if
// not.
func (state *Node) mayWrite(now time.Time) bool {
	if state.writeRate == nil {
		state.writeRate = rate.NewLimiter(writesPerSecond, writesAtOnce)
	}
	if state.writeRate.AllowN(now, 1) {
		return true
	}
	state.notBefore = now.Add(time.Second / writesPerSecond)
	return false
}

// Reconcile queues a node if its plan differs from the node.
func (l *Engine) Reconcile(now time.Time, state *Node) {
	plan, ok := l.planOf(state)
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
	if state.stage != idle {
		return // checked again before the write
	}
	change, releases := l.taints.nextChange(state, plan, now)
	switch {
	case change != nil || state.needsRead:
		if change != nil && len(change.Placed) > 0 && state.dueSince.IsZero() {
			state.dueSince = state.observedAt
			if now.Sub(state.observedAt) > time.Second { // due by time, not by a change
				state.dueSince = now
			}
		}
		state.stage = queued
		l.taints.queue.push(state)
	default:
		state.dueSince = time.Time{}
		if state.sentFor == "" {
			state.granted = grantedSlot{}
		}
		l.clearFailure(now, state)
		l.taints.freeSlots(now, state, releases)
	}
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
