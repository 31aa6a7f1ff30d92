package taint

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// maxConcurrentWrites limits concurrent writes to nodes.
const maxConcurrentWrites = 24

// Writer writes the taints of all nodes. It implements [engine.NodeWriter].
type Writer struct {
	host     engine.WriterHost
	identity string // of this process
	metrics  *Metrics

	writes  map[*engine.Node]*nodeWrite // nodes that have needed a write
	queue   []*nodeWrite
	delayed []*nodeWrite // wait for a retry
	running int
}

// New returns a writer. The identity must be unique for every process.
func New(host engine.WriterHost, identity string, metrics *Metrics) *Writer {
	return &Writer{host: host, identity: identity, metrics: metrics, writes: map[*engine.Node]*nodeWrite{}}
}

// NodeChanged tells about a newer version of a node. A write that names an older version
// has either succeeded already or never will.
func (w *Writer) NodeChanged(n *engine.Node, before *corev1.Node) {
	if wr := w.writes[n]; wr != nil {
		wr.nodeChanged(before)
	}
}

// NodeGone forgets a node. The result of a write that runs is dropped.
func (w *Writer) NodeGone(n *engine.Node) {
	if wr := w.writes[n]; wr != nil {
		wr.gone = true
		delete(w.writes, n)
	}
}

// getOrCreate returns the write of a node, created if necessary.
func (w *Writer) getOrCreate(n *engine.Node) *nodeWrite {
	wr := w.writes[n]
	if wr == nil {
		wr = &nodeWrite{writer: w, node: n}
		w.writes[n] = wr
	}
	return wr
}

// Reconcile queues a node if it differs from its plan.
func (w *Writer) Reconcile(now time.Time, n *engine.Node, plan triage.Plan) {
	wr := w.writes[n]
	if wr == nil {
		wr = &nodeWrite{writer: w, node: n}
	}
	if wr.progress != engine.Running {
		wr.reportArrived(now)
	}
	if wr.progress != engine.Idle {
		return // checked again before the write
	}
	change := wr.nextChange(now, plan)
	if change == nil && !wr.needsRead {
		wr.dueSince = time.Time{}
		if wr.sentFor == "" {
			wr.granted = slotSet{}
		}
		wr.clearFailure(now)
		wr.freeSlots(now, plan)
		return
	}
	if change != nil && len(change.Placed) > 0 && wr.dueSince.IsZero() {
		wr.dueSince = n.DueSince(now)
	}
	w.writes[n] = wr
	wr.Proceed()
}

// Start starts queued writes, up to the limit of concurrent writes.
func (w *Writer) Start(ctx context.Context, now time.Time) {
	w.requeueDelayed(now)
	for tries := len(w.queue); tries > 0 && w.running < maxConcurrentWrites; tries-- {
		next := w.queue[0]
		w.queue[0], w.queue = nil, w.queue[1:]
		next.progress = engine.Idle
		switch {
		case next.gone:
		case now.Before(next.notBefore):
			next.delay()
		case next.needsRead:
			next.send(ctx, nil)
		default:
			next.start(ctx, now)
		}
	}
}

// requeueDelayed queues delayed writes that are due, and returns when the next is due.
func (w *Writer) requeueDelayed(now time.Time) (due time.Time) {
	w.delayed = slices.DeleteFunc(w.delayed, func(delayed *nodeWrite) bool {
		if delayed.gone {
			return true
		}
		if now.Before(delayed.notBefore) {
			due = times.Earliest(due, delayed.notBefore)
			return false
		}
		w.queue = append(w.queue, delayed)
		return true
	})
	return due
}

// Due returns when to call Start again, zero for never.
func (w *Writer) Due(now time.Time) time.Time {
	due := w.requeueDelayed(now)
	if len(w.queue) > 0 && w.running < maxConcurrentWrites { // a final check changed a plan
		return now
	}
	return due
}

// Waiting counts the nodes whose write is queued or delayed.
func (w *Writer) Waiting() int { return len(w.queue) + len(w.delayed) }

// cancelOverBound checks, before a slot is taken for good, whether a rule has more slots
// taken than its bound allows now. The bound may have been lowered, or nodes may have gone.
// If so, cancelOverBound cancels the surplus among the writes that have not been sent. The
// node that has waited longest is cancelled last. Of the limits on all rules together it
// cancels only what this node would exceed, all of its decisions at once.
func (w *Writer) cancelOverBound(now time.Time, wr *nodeWrite, change *treat.Change) (over bool) {
	core, name := w.host.Core(), wr.node.Object.Name
	switch {
	case !takesSlots(change):
	case wr.sentFor == "":
		if w.host.CallOff(now, name) {
			return true
		}
	case core.ExceedsClosing(name) || core.ExceedsRails(name):
		return true // that write may still arrive; it keeps its place until a fence has made it impossible
	}
	for _, rule := range change.Takes {
		if !w.host.IsOverBound(rule) {
			continue
		}
		over = true
		for _, n := range w.unsent(rule) {
			w.host.Core().Abandon(now, n.Object.Name, rule, 0)
			if !w.host.IsOverBound(rule) {
				break
			}
		}
	}
	return over
}

// unsent returns the nodes with a finding of the rule for which no write has been sent. The
// findings are those of the last Reconcile; to abandon a finding that is gone does nothing.
// The node that has waited longest is last.
func (w *Writer) unsent(rule triage.RuleID) []*engine.Node {
	since := map[*engine.Node]time.Time{}
	for _, n := range w.host.Nodes() {
		wr := w.writes[n]
		if finding, is := n.Finding(rule); is && (wr == nil || wr.progress != engine.Running && wr.sentFor == "") {
			since[n] = finding.Since
		}
	}
	return slices.SortedFunc(maps.Keys(since), func(a, b *engine.Node) int {
		return cmp.Or(since[b].Compare(since[a]), strings.Compare(b.Object.Name, a.Object.Name))
	})
}

// Problem returns why the taint of a rule is not on a node although it is planned: the last
// refusal of the API server, and what delays the write. Each is empty for nothing.
func (w *Writer) Problem(n *engine.Node, rule triage.RuleID) (refusal, delay string) {
	wr := w.writes[n]
	if wr == nil {
		return "", ""
	}
	failure := wr.failure.Text
	if failure == "" && wr.progress == engine.AwaitingLedger {
		failure = w.host.LedgerFailure()
	}
	if failure != "" {
		delay = "not written yet: " + failure
	}
	return wr.reportedRefusals[rule].Message, delay
}

// Failures yields the nodes whose write fails, with the last error.
func (w *Writer) Failures() iter.Seq2[string, string] {
	return func(yield func(node, failure string) bool) {
		for n, wr := range w.writes {
			if wr.failure.Tries > 0 && !yield(n.Object.Name, wr.failure.Text) {
				return
			}
		}
	}
}

// ForgetCounters deletes the counters of a rule.
func (w *Writer) ForgetCounters(rule triage.RuleID) { w.metrics.forget(rule) }

// fence returns a change that gives the node a new version. Its token differs every time,
// because the same token twice would change nothing.
func (w *Writer) fence(n *engine.Node) *treat.Change {
	return treat.Fence(n.Object, w.identity+"/"+n.Object.ResourceVersion)
}
