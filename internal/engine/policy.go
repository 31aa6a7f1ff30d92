package engine

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Policy is a kind of policy that users write. In each round the engine calls Take, takes
// in nodes and treatments, calls SetRules, carries out the plans, and calls WriteStatuses.
// The engine calls all methods except Watch from its own goroutine. A policy may also
// implement [NodeFollower], [FactSource], [Vetoer], [PlanReader], [Limiter],
// [StartRecorder], [Recorder] or [CounterKeeper].
type Policy interface {
	// Watch lists and watches what the policy depends on, until ctx ends.
	Watch(ctx context.Context)
	// Ready reports whether everything is loaded that the first rules depend on. It may take
	// in what has arrived.
	Ready(now time.Time) bool
	// Take takes in changes of the policy's objects, before the engine takes in nodes.
	Take(now time.Time)
	// SetRules sets and removes rules, after the engine has taken in nodes. It returns when
	// it must run again, zero for never.
	SetRules(ctx context.Context, now time.Time) (due time.Time)
	// Findings returns what a rule of this policy has found, by node, and the mark that the
	// status of its object is stale. Both are nil if the rule is not of this policy, or its
	// object is gone.
	Findings(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool)
	// WriteStatuses writes the statuses that have changed, and updates the gauges.
	WriteStatuses(ctx context.Context, now time.Time)
	// About returns what an Event about a rule of this policy and a node names. The node may
	// be nil. It returns nothing if the rule is not of this policy, or its object is gone.
	About(rule triage.RuleID, node *corev1.Node) Subject
	// Size names and counts the objects of the policy, for the log.
	Size() (name string, objects int)
}

// Subject is what an Event about a rule names.
type Subject struct {
	Policy  *corev1.ObjectReference
	Related []*corev1.ObjectReference
	// Problem is why the rule is not followed although its object exists, empty for none.
	Problem string
}

// NodeFollower is a policy that depends on more of a node than its rules say.
type NodeFollower interface {
	// NodeChanged tells about a new version of a node, before its facts are passed to the
	// core. before is nil for a new node; after is nil for a node that is gone.
	NodeChanged(n *Node, before, after *corev1.Node)
}

// FactSource is a policy that adds facts to a node.
type FactSource interface {
	AddFacts(now time.Time, n *Node, facts *triage.Node)
}

// Vetoer is a policy that forbids its own treatments of a node. The engine reports the first
// veto only. Vetoes of treatments come first, because they say what exists on the node.
type Vetoer interface {
	AddVetoes(now time.Time, n *Node, facts *triage.Node)
}

// PlanReader is a policy that reports plans, or counts them.
type PlanReader interface {
	// Planned tells about the current plan of a node.
	Planned(n *Node, plan triage.Plan)
}

// Limiter is a policy that limits new treatments by more than the bound of a rule.
type Limiter interface {
	// UpdateAllowances tells the core how many more treatments may start, where that has
	// changed. It returns when time alone changes that, zero for never.
	UpdateAllowances(now time.Time) (due time.Time)
	// MayBegin reports whether a planned treatment may still begin. The engine asks before
	// the ledger stores the slot.
	MayBegin(now time.Time, rule triage.RuleID, node *corev1.Node) bool
}

// StartRecorder is a policy that remembers which nodes have been ready for work.
type StartRecorder interface {
	// RecordsStart reports whether to record on the node that it was ready for work.
	RecordsStart(n *Node) bool
}

// Recorder is a policy with entries of its own in the ledger.
type Recorder interface {
	// RestoreEntries takes in the entries of the previous leader.
	RestoreEntries(restored []ledger.Entry)
	// Entries returns the entries of the policy for a snapshot with the given entries.
	Entries(now time.Time, snapshot []ledger.Entry) []ledger.Entry
	// EntriesFor returns what the policy adds at most if entries are added to a snapshot.
	EntriesFor(now time.Time, entries []ledger.Entry) []ledger.Entry
	// HasEnded reports whether an entry in the stored snapshot would mislead the next leader.
	HasEnded(stored []ledger.Entry) bool
}

// CounterKeeper is a policy that counts treatments.
type CounterKeeper interface {
	// ForgetCounters deletes the counters of a rule whose object is gone. It reports whether
	// the rule is of this policy.
	ForgetCounters(rule triage.RuleID) bool
}

// implementing yields the elements that also implement an optional interface.
func implementing[Optional, T any](all []T) iter.Seq[Optional] {
	return func(yield func(Optional) bool) {
		for _, one := range all {
			if is, ok := any(one).(Optional); ok && !yield(is) {
				return
			}
		}
	}
}

// isReady reports whether everything is loaded. Treatments come last, because they watch
// what policies reference.
func (l *Engine) isReady(now time.Time) bool {
	if !l.nodeInbox.HasSynced() {
		return false
	}
	for _, p := range l.policies {
		if !p.Ready(now) {
			return false
		}
	}
	for _, t := range l.tasks.treatments {
		if !t.Ready(now) {
			return false
		}
	}
	return true
}

// About returns what an Event about a rule and a node names.
func (l *Engine) About(rule triage.RuleID, node *corev1.Node) Subject {
	for _, p := range l.policies {
		if s := p.About(rule, node); s.Policy != nil || len(s.Related) > 0 {
			return s
		}
	}
	return Subject{}
}

// PublishEvent publishes an Event about a rule, a node and related objects. The rule and
// the node may be gone.
func (l *Engine) PublishEvent(rule triage.RuleID, node *corev1.Node, what treat.EventReason, reason triage.Reason, message string, related ...*corev1.ObjectReference) {
	s := l.About(rule, node)
	for _, object := range related {
		if !slices.ContainsFunc(s.Related, func(other *corev1.ObjectReference) bool { return other.UID == object.UID }) {
			s.Related = append(s.Related, object)
		}
	}
	if node != nil || s.Policy != nil || len(s.Related) > 0 {
		id := l.eventID(node, what, reason, message)
		l.Event(treat.Event{Node: node, Policy: s.Policy, Related: s.Related, EventReason: what, Reason: reason, Message: message, ID: id, MayExist: l.mayBeReported(node, id, reason)})
	}
}

// eventID identifies an Event about a finding, which a new leader finds again. It names the
// transition of the condition and not the start of the clock, because that may depend on
// when a version arrived. It is empty for Events about writes.
func (l *Engine) eventID(node *corev1.Node, what treat.EventReason, finding triage.Reason, message string) string {
	if node == nil || !what.IsFinding() {
		return ""
	}
	transition := node.CreationTimestamp
	if c := conditionOf(node, finding); c != nil {
		transition = c.LastTransitionTime
	}
	return fmt.Sprintf("%s %d %s %s %s %s %d %s %s", node.UID, what, finding.Rule, finding.Code, finding.Condition, finding.Status, transition.Unix(), text.WithoutDigits(finding.Other), text.WithoutDigits(message))
}

// mayBeReported reports whether the previous leader may have published an Event: this process
// has published neither it nor another finding of the rule for the node.
func (l *Engine) mayBeReported(node *corev1.Node, id string, finding triage.Reason) bool {
	return id != "" && l.Node(node.Name) != nil && l.Node(node.Name).isFirstFinding(id, finding)
}

// conditionOf returns the condition that a finding names, nil if the node no longer has it in
// that status.
func conditionOf(node *corev1.Node, finding triage.Reason) *corev1.NodeCondition {
	for i, c := range node.Status.Conditions {
		if string(c.Type) == finding.Condition && string(c.Status) == finding.Status.String() {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// maxDetail is the maximum length of a condition's message in an Event.
const maxDetail = 256

// conditionDetail returns the reason and the message of the condition that a finding names,
// empty if the node no longer has the condition in that status.
func conditionDetail(node *corev1.Node, finding triage.Reason) string {
	if node == nil {
		return ""
	}
	c := conditionOf(node, finding)
	if c == nil {
		return ""
	}
	message := text.Shorten(strings.Join(strings.Fields(c.Message), " "), maxDetail, "...")
	return strings.Join(slices.DeleteFunc([]string{c.Reason, message}, func(s string) bool { return s == "" }), ": ")
}

// updateAllowances updates the allowances of all policies, and returns when the next
// change is due.
func (l *Engine) updateAllowances(now time.Time) (due time.Time) {
	for p := range implementing[Limiter](l.policies) {
		due = times.Earliest(due, p.UpdateAllowances(now))
	}
	return due
}

// mayBegin reports whether a treatment that takes a slot may still begin: a bound may have
// been lowered, or nodes may have gone.
func (l *Engine) mayBegin(now time.Time, rule triage.RuleID, node *corev1.Node) bool {
	if l.IsOverBound(rule) {
		return false
	}
	for p := range implementing[Limiter](l.policies) {
		if !p.MayBegin(now, rule, node) {
			return false
		}
	}
	return true
}
