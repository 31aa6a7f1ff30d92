package engine

import (
	"context"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Policy is a kind of policy that users write. The engine calls all methods except Watch
// from its own goroutine.
type Policy interface {
	// Watch lists and watches what the policy depends on, until ctx ends.
	Watch(ctx context.Context)
	// Ready reports whether everything is loaded that the first rules depend on.
	Ready(now time.Time) bool
	// Take takes in changes of the policy's objects, before the engine takes in nodes.
	Take(now time.Time)
	// NodeChanged tells about a new version of a node.
	NodeChanged(n *Node)
	// NodeGone tells about a node that is gone.
	NodeGone(n *Node)
	// Follow sets and removes rules, after the engine has taken in nodes. It returns when
	// it must run again, zero for never.
	Follow(ctx context.Context, now time.Time) (due time.Time)
	// Findings returns what a rule of this policy has found, by node, and the mark that the
	// status of its object is stale. Both are nil if the rule is not of this policy, or its
	// object is gone.
	Findings(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool)
	// WriteStatuses writes the statuses that have changed, and updates the gauges.
	WriteStatuses(ctx context.Context, now time.Time)
	// About returns the object that an Event about a rule of this policy names, and why the
	// rule is not followed although its object exists. Both are empty if there is nothing
	// to say.
	About(rule triage.RuleID) (object *corev1.ObjectReference, problem string)
	// KeepsTaints reports whether the taints of a rule stay as they are because the rule
	// cannot be read now. KeepsAnyTaints reports whether there may be such a rule.
	KeepsTaints(rule triage.RuleID) bool
	KeepsAnyTaints() bool
	// Size names and counts the objects of the policy, for the log.
	Size() (name string, objects int)
	// Stop tells that this replica no longer leads.
	Stop()
}

// Session is what the engine offers to policies. All methods except Post are for the
// goroutine of the engine.
type Session interface {
	Core() *triage.Core
	// Node returns a node, nil if it does not exist. Nodes returns all of them.
	Node(name string) *Node
	Nodes() iter.Seq2[string, *Node]
	// IsLoaded reports whether the engine has taken in everything that existed when this
	// replica became the leader.
	IsLoaded() bool
	Statuses() *status.Writer
	// CurrentReason returns the current finding of the rule for the node, because the
	// numbers in a stored reason may be outdated.
	CurrentReason(node string, reason triage.Reason) triage.Reason
	// TaintProblem returns why the taint of a rule is not on a node although it is planned:
	// the last refusal of the API server, and what delays the write. Each is empty for
	// nothing.
	TaintProblem(n *Node, rule triage.RuleID) (refusal, delay string)
	// Reconcile compares a node with its plan and queues the difference.
	Reconcile(now time.Time, n *Node)
	// Retire schedules the deletion of the counters of a rule whose object is gone, and
	// Revive cancels it.
	Retire(now time.Time, rule triage.RuleID)
	Revive(rule triage.RuleID)
	// Do runs a request in another goroutine and takes in its result in the goroutine of the
	// engine.
	Do(ctx context.Context, request func(context.Context) (handle func(now time.Time)))
	// Post calls handle in the goroutine of the engine, unless ctx or the engine ends first.
	Post(ctx context.Context, handle func(now time.Time))
}

// Core returns the triage core.
func (l *Engine) Core() *triage.Core { return l.core }

// Node returns a node, nil if it does not exist.
func (l *Engine) Node(name string) *Node { return l.nodeStates[name] }

// Nodes returns all nodes by name.
func (l *Engine) Nodes() iter.Seq2[string, *Node] {
	return func(yield func(string, *Node) bool) {
		for name, n := range l.nodeStates {
			if !yield(name, n) {
				return
			}
		}
	}
}

// IsLoaded reports whether the engine has taken in everything that existed when this
// replica became the leader.
func (l *Engine) IsLoaded() bool { return l.loaded }

// Statuses returns the writer of statuses.
func (l *Engine) Statuses() *status.Writer { return l.statuses }

// TaintProblem returns why the taint of a rule is not on a node although it is planned.
func (l *Engine) TaintProblem(n *Node, rule triage.RuleID) (refusal, delay string) {
	switch {
	case n.failure.Tries > 0:
		delay = "not written yet: " + n.failure.Text
	case n.stage == awaitingLedger && l.ledger.failure.Tries > 0:
		delay = "not written yet: " + l.ledger.failure.Text
	}
	return n.refusalsReported[rule].message, delay
}

// Do runs a request in another goroutine and takes in its result in the goroutine of the
// engine.
func (l *Engine) Do(ctx context.Context, request func(context.Context) (handle func(now time.Time))) {
	l.requests.Go(func() {
		limited, cancel := context.WithTimeout(ctx, WriteTimeout)
		defer cancel()
		l.Post(ctx, request(limited))
	})
}

// Post calls handle in the goroutine of the engine, unless ctx or the engine ends first.
func (l *Engine) Post(ctx context.Context, handle func(now time.Time)) {
	select {
	case l.posts <- handle:
	case <-l.stopped: // for example because another replica has claimed the ledger
	case <-ctx.Done():
	}
}

// isReady reports whether all policies are.
func (l *Engine) isReady(now time.Time) bool {
	for _, p := range l.policies {
		if !p.Ready(now) {
			return false
		}
	}
	return true
}

// about returns the object that an Event about a rule names.
func (l *Engine) about(rule triage.RuleID) (object *corev1.ObjectReference, problem string) {
	for _, p := range l.policies {
		if object, problem = p.About(rule); object != nil {
			return object, problem
		}
	}
	return nil, ""
}
