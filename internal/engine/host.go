package engine

import (
	"context"
	"iter"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Host is what the engine offers to policies. All methods except Post are for the
// goroutine of the engine.
type Host interface {
	Core() *triage.Core
	// Node returns a node, nil if it does not exist. Nodes returns all of them.
	Node(name string) *Node
	Nodes() iter.Seq2[string, *Node]
	// IsLoaded reports whether the engine has taken in everything that existed when this
	// replica became the leader.
	IsLoaded() bool
	Statuses() *status.Writer
	PolicyMetrics() *PolicyMetrics
	// CurrentReason returns the current finding of the rule for the node, because the
	// numbers in a stored reason may be outdated.
	CurrentReason(node string, reason triage.Reason) triage.Reason
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

// TreatmentHost is what the engine offers to treatments, and to policies that know
// treatments. All methods are for the goroutine of the engine, except IsUnchanged,
// IsProtected, Writer and Logger.
type TreatmentHost interface {
	Host
	// NodeTasks returns the tasks of a node name, created if necessary. FindNodeTasks returns nil if
	// there is none.
	NodeTasks(node string) *NodeTasks
	FindNodeTasks(node string) *NodeTasks
	// Reobserve passes the current facts of nodes to the core and reconciles their
	// treatments. ReobserveControlPlane does so for all control-plane nodes,
	// ReobserveTreated for all nodes that have NodeTasks.
	Reobserve(now time.Time, nodes ...string)
	ReobserveControlPlane(now time.Time)
	ReobserveTreated(now time.Time)
	// ReconcileWoken carries out all decisions that the core has made meanwhile.
	ReconcileWoken(now time.Time)
	// NodeRead takes in a newer version of a node that was written or read directly.
	NodeRead(now time.Time, node *corev1.Node)
	// ReleaseSlot frees the slot of a rule on a node. If a write for the slot may still
	// succeed, it returns until when and frees nothing.
	ReleaseSlot(now time.Time, nodeTasks *NodeTasks, rule triage.RuleID) (due time.Time)
	// Respect returns which work of others keeps treatments from starting, nil for the rules of each
	// policy. SetRespect sets it.
	Respect() *dialect.Respect
	SetRespect(now time.Time, respect *dialect.Respect)
	// IsOverBound reports whether a rule has more slots taken than its bound allows now.
	IsOverBound(rule triage.RuleID) bool
	// LedgerNames reports whether the stored ledger names a deleted node that keeps its
	// slot. LedgerLacks reports whether a deleted node keeps its slot and the ledger does
	// not name it yet; the engine reconciles the node when it does.
	LedgerNames(slot ledger.Slot) bool
	LedgerLacks(node string, isNode func(ledger.Slot) bool) bool
	// RewriteLedger requests a new snapshot, because a policy's own entries have changed.
	RewriteLedger()
	// ControlPlaneSlots yields the slots of control-plane nodes that the ledger names.
	// UnknownUntil returns until when a write of a newer version may treat a control-plane
	// node.
	ControlPlaneSlots() iter.Seq[ledger.ObjectWrite]
	UnknownUntil() time.Time
	// MarkStatusStale marks the status of a rule's policy as stale.
	MarkStatusStale(now time.Time, rule triage.RuleID)
	// Explain appends to a message what delays the treatments of a node.
	Explain(node, message string) string
	// PublishEvent publishes an Event about a rule, a node and related objects.
	PublishEvent(rule triage.RuleID, node *corev1.Node, what treat.EventReason, reason triage.Reason, message string, related ...*corev1.ObjectReference)
	// Event publishes an Event about other objects.
	Event(event treat.Event)
	// CountUnknown changes the number of stored fields of a format that this version does
	// not know.
	CountUnknown(format string, change int)
	// RetryDelay returns the randomized delay before the next try of a failed write, and
	// RefusalDelay the delay after a write that the API server rejected.
	RetryDelay(tries int) time.Duration
	RefusalDelay(refusals int) time.Duration
	// IsUnchanged reports whether the node of a task is unchanged in everything that matters. A task that
	// begins a treatment does not ask: the engine has checked the node before Run ([StartChecks]).
	IsUnchanged(ctx context.Context, r *TaskResult) (bool, error)
	// IsProtected reports whether a pod protects the node of a task from the first step of a treatment.
	IsProtected(ctx context.Context, r *TaskResult) (bool, error)
	Writer() *treat.Writer
	Logger() *slog.Logger
}

// NodeTasks returns the tasks of a node name, created if necessary.
func (l *Engine) NodeTasks(node string) *NodeTasks { return l.tasks.getOrCreate(node) }

// FindNodeTasks returns the tasks of a node name, nil for none.
func (l *Engine) FindNodeTasks(node string) *NodeTasks { return l.tasks.byNode[node] }

// LedgerNames reports whether the stored ledger names a deleted node.
func (l *Engine) LedgerNames(slot ledger.Slot) bool {
	_, is := l.ledger.replacements.inLedger[slot]
	return is
}

// ControlPlaneSlots yields the slots of control-plane nodes that the ledger names.
func (l *Engine) ControlPlaneSlots() iter.Seq[ledger.ObjectWrite] {
	return func(yield func(ledger.ObjectWrite) bool) {
		for _, t := range l.ledger.withSlots {
			if s, is := t.(taskSlot); is && s.nodeTasks.Slot().ControlPlane && !yield(s.nodeTasks.Slot()) {
				return
			}
		}
	}
}

// UnknownUntil returns until when a write of a newer version may treat a control-plane node.
func (l *Engine) UnknownUntil() time.Time { return l.ledger.unknownUntil }

// RewriteLedger requests a new snapshot of the ledger.
func (l *Engine) RewriteLedger() { l.ledger.isOutdated = true }

// NodeRead takes in a newer version of a node that a task has written or read.
func (l *Engine) NodeRead(now time.Time, node *corev1.Node) {
	if state := l.nodeStates[node.Name]; state != nil && older(state.Object, node) {
		l.core.Observe(now, l.upsertNode(node, now))
	}
}

// Writer returns the writer of requests.
func (l *Engine) Writer() *treat.Writer { return l.write }

// Event publishes an Event.
func (l *Engine) Event(event treat.Event) {
	event.Reason.Detail = conditionDetail(event.Node, event.Reason)
	l.cfg.Event(event)
}

// CountUnknown changes the number of stored fields that this version does not know.
func (l *Engine) CountUnknown(format string, change int) {
	l.cfg.Metrics.addUnknownEntries(format, change)
}

// Go runs work in another goroutine until stop is called or the engine ends. The engine
// must be running.
func (l *Engine) Go(work func(context.Context)) (stop context.CancelFunc) { return l.startWatch(work) }

// Logger returns the log.
func (l *Engine) Logger() *slog.Logger { return l.cfg.Logger }

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

// PolicyMetrics returns the metrics that all policies have.
func (l *Engine) PolicyMetrics() *PolicyMetrics { return l.cfg.Metrics.Policies }

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
