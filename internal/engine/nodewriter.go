package engine

import (
	"context"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// NodeWriter makes node objects match their plans: it writes taints. The engine has one
// NodeWriter, because each write names the version of the node, and two writers would make
// each other's writes fail. The engine calls all methods from its own goroutine.
//
// Bounds depend on the writer: before a write that takes slots it calls RequestSlot and
// waits until the ledger has granted them. It asks for the plan again before it sends. It
// keeps the grant until the node has another version, because the write may arrive until
// then.
type NodeWriter interface {
	// NodeChanged tells that the node has a newer version, even if only its heartbeat has
	// changed. before is the previous version, nil for a new node.
	NodeChanged(n *Node, before *corev1.Node)
	// NodeGone tells that a node is gone.
	NodeGone(n *Node)
	// Reconcile queues a write if the node differs from its plan.
	Reconcile(now time.Time, n *Node, plan triage.Plan)
	// Start sends queued writes. A write that takes a slot waits for the ledger first.
	Start(ctx context.Context, now time.Time)
	// Due returns when to call Start again, zero for never.
	Due(now time.Time) time.Time
	// Waiting counts the nodes whose write waits for something else than the ledger.
	Waiting() int
	// Restore resumes a write that the previous leader may have sent. It may still succeed,
	// because the node has the version that the entry names.
	Restore(now time.Time, n *Node, e ledger.NodeWrite)
	// MayArrive reports whether the write of a ledger entry for this node may still arrive.
	MayArrive(n *Node, e ledger.NodeWrite) bool
	// MayTakeSlot reports whether a write that takes a slot may have been sent to the node and may
	// still arrive.
	MayTakeSlot(n *Node) bool
	// Failures yields the names of nodes whose write fails, with the last error.
	Failures() iter.Seq2[string, string]
	// ForgetCounters deletes the counters of a rule whose object is gone.
	ForgetCounters(rule triage.RuleID)
}

// WriterHost is what the engine offers to its NodeWriter.
type WriterHost interface {
	TreatmentHost
	// Reconcile compares a node with its plan and queues the difference.
	Reconcile(now time.Time, n *Node)
	// Plan returns the plan of a node.
	Plan(n *Node) (plan triage.Plan, ok bool)
	// CallOff abandons the decisions of a node that exceed the rails now, immediately before a taint
	// for them is written, and reports whether there were any.
	CallOff(now time.Time, node string) (calledOff bool)
	// RequestSlot asks for a slot in the next snapshot of the ledger. RestoreSlot tells that
	// the ledger names the slot already.
	RequestSlot(t SlotTaker)
	RestoreSlot(t SlotTaker)
	// LedgerFailure returns the last error of the ledger, empty for none.
	LedgerFailure() string
	// RemoveNode takes in that the API server does not have the node.
	RemoveNode(now time.Time, n *Node)
	// MarkStatusesStale marks the statuses of all policies with a finding for the node.
	MarkStatusesStale(now time.Time, n *Node)
	// About returns what an Event about a rule and a node names.
	About(rule triage.RuleID, node *corev1.Node) Subject
	// CountWrite counts a write by its result.
	CountWrite(resource string, result treat.Outcome)
	// LogsRetry and LogsRefusal report whether to log one more failing or refused write. In
	// an outage all writes fail alike, so the engine logs the first ones and counts the others.
	LogsRetry(now time.Time) bool
	LogsRefusal(now time.Time) bool
}

// SetNodeWriter sets the writer of nodes. It must be called before Run.
func (l *Engine) SetNodeWriter(w NodeWriter) { l.nodeWriter = w }

// Plan returns the plan of a node. It says that the node was ready for work only if a
// policy records that.
func (l *Engine) Plan(n *Node) (triage.Plan, bool) {
	plan, ok := l.core.Plan(n.Object.Name)
	if plan.Initialized {
		plan.Initialized = false
		for p := range implementing[StartRecorder](l.policies) {
			plan.Initialized = plan.Initialized || p.RecordsStart(n)
		}
	}
	return plan, ok
}

// RequestSlot asks for a slot in the next snapshot of the ledger.
func (l *Engine) RequestSlot(t SlotTaker) { l.ledger.queued = append(l.ledger.queued, t) }

// RestoreSlot tells that the ledger names a slot already.
func (l *Engine) RestoreSlot(t SlotTaker) { l.ledger.addWithSlot(t) }

// LedgerFailure returns the last error of the ledger, empty for none.
func (l *Engine) LedgerFailure() string { return l.ledger.failure.Text }

// CountWrite counts a write by its result.
func (l *Engine) CountWrite(resource string, result treat.Outcome) {
	l.cfg.Metrics.CountWrite(resource, result)
}

// LogsRetry reports whether to log one more failing write.
func (l *Engine) LogsRetry(now time.Time) bool { return l.failureLog.retries.allows(now) }

// LogsRefusal reports whether to log one more refused write.
func (l *Engine) LogsRefusal(now time.Time) bool { return l.failureLog.refusals.allows(now) }

// noNodeWriter writes nothing. It is for tests of other parts.
type noNodeWriter struct{}

func (noNodeWriter) NodeChanged(*Node, *corev1.Node)            {}
func (noNodeWriter) NodeGone(*Node)                             {}
func (noNodeWriter) Reconcile(time.Time, *Node, triage.Plan)    {}
func (noNodeWriter) Start(context.Context, time.Time)           {}
func (noNodeWriter) Due(time.Time) time.Time                    { return time.Time{} }
func (noNodeWriter) Waiting() int                               { return 0 }
func (noNodeWriter) Restore(time.Time, *Node, ledger.NodeWrite) {}
func (noNodeWriter) MayArrive(*Node, ledger.NodeWrite) bool     { return false }
func (noNodeWriter) MayTakeSlot(*Node) bool                     { return false }
func (noNodeWriter) Failures() iter.Seq2[string, string]        { return func(func(string, string) bool) {} }
func (noNodeWriter) ForgetCounters(triage.RuleID)               {}
