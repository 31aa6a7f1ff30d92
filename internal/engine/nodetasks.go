package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

// MaxInFlight is how long a write that takes a slot may still succeed after it was sent.
// The API server works on a request for at most a minute; the rest is for the network.
const MaxInFlight = 2 * time.Minute

// NodeTasks is the progress of the treatments of one node name: they run one task at a time
// and take one slot. It outlives the node, because remediation objects do.
type NodeTasks struct {
	Node     string
	progress Progress
	// granted is the ledger entry that holds the slot; requested is the entry requested in the
	// next snapshot. They are zero for none.
	granted, requested ledger.ObjectWrite
	// sentAt is when the write that granted covers was last sent, if it may have succeeded
	// or may still succeed. It is zero for none.
	sentAt  time.Time
	running *Task       // nil for none
	attempt *newAttempt // that the running task begins, nil for none
	// recorded says that the node has the attempt of the write that granted covers.
	recorded bool
	// hasEarlier says that an earlier attempt of the write that granted covers got no answer, and
	// may still succeed after a later attempt has.
	hasEarlier bool
	// releasesLater says that the slot is free when the running task has ended and no attempt
	// may still succeed.
	releasesLater bool
	// unanswered are the tasks whose answer was lost and that are not reported.
	unanswered map[taskID]unansweredTask

	failures         map[taskID]taskFailure
	due              time.Time                  // when to check again, zero for never
	dueSince         time.Time                  // since when a treatment is due
	refusalsReported map[taskID]ReportedRefusal // the last rejected write of each task
}

// unansweredTask is a task that may have succeeded although its answer was lost.
type unansweredTask struct {
	result *TaskResult
	until  time.Time // when it cannot arrive any more
}

// taskFailure records why a task failed and when to retry it. It does not block other
// tasks.
type taskFailure struct {
	Failure
	refusals  int
	notBefore time.Time
}

// Slot returns the ledger entry that holds the slot of the node, zero for none.
func (nodeTasks *NodeTasks) Slot() ledger.ObjectWrite { return nodeTasks.granted }

// Running returns the task that runs, nil for none.
func (nodeTasks *NodeTasks) Running() *Task { return nodeTasks.running }

// WasRefused reports whether the API server has rejected a task of this kind for the object,
// and has made none since.
func (nodeTasks *NodeTasks) WasRefused(kind, object string) bool {
	return nodeTasks.failures[taskID{kind, object}].refusals > 0
}

// HasSlot reports whether the ledger names a slot of the node.
func (nodeTasks *NodeTasks) HasSlot() bool { return nodeTasks.granted != ledger.ObjectWrite{} }

// HasSlotFor reports whether the slot is for this existing node.
func (nodeTasks *NodeTasks) HasSlotFor(n *Node) bool {
	return n != nil && string(n.Object.UID) == nodeTasks.granted.UID
}

// Release clears the slot, because its write has arrived. While another attempt of the write
// runs, or may still succeed, the slot stays: the object may be deleted, and that attempt
// would then make it again.
func (nodeTasks *NodeTasks) Release() {
	if t := nodeTasks.running; nodeTasks.hasEarlier || t != nil && t.takesSlot() && t.Slot == nodeTasks.granted {
		nodeTasks.releasesLater = true
		return
	}
	nodeTasks.clearSlot()
}

// clearSlot clears the slot, because its write can never succeed.
func (nodeTasks *NodeTasks) clearSlot() {
	nodeTasks.granted, nodeTasks.sentAt = ledger.ObjectWrite{}, time.Time{}
	nodeTasks.hasEarlier, nodeTasks.releasesLater, nodeTasks.recorded = false, false, false
}

// releaseDue clears the slot of a write that has arrived once no other attempt may succeed.
// Until then it returns when that is.
func (nodeTasks *NodeTasks) releaseDue(now time.Time) (due time.Time) {
	if !nodeTasks.releasesLater {
		return time.Time{}
	}
	if due = nodeTasks.InFlightUntil(now); due.IsZero() {
		nodeTasks.clearSlot()
	}
	return due
}

// WasSent reports whether the write that the slot covers may have succeeded or may still
// succeed.
func (nodeTasks *NodeTasks) WasSent() bool { return !nodeTasks.sentAt.IsZero() }

// NoteDue records since when the treatment is due.
func (nodeTasks *NodeTasks) NoteDue(now time.Time, n *Node) {
	if nodeTasks.dueSince.IsZero() {
		nodeTasks.dueSince = n.DueSince(now)
	}
}

// MarkStarted records that the treatment has begun. It returns since when the treatment was
// due, zero if that is unknown.
func (nodeTasks *NodeTasks) MarkStarted() (dueSince time.Time) {
	dueSince = nodeTasks.dueSince
	nodeTasks.dueSince, nodeTasks.refusalsReported = time.Time{}, nil
	return dueSince
}

// reportArrived reports the tasks that have succeeded although their answers were lost, and forgets
// those that cannot succeed any more.
func (nodeTasks *NodeTasks) reportArrived(now time.Time) {
	for _, id := range slices.SortedFunc(maps.Keys(nodeTasks.unanswered), taskID.compare) {
		switch u := nodeTasks.unanswered[id]; {
		case u.result.Task.Work.HasArrived(now):
			delete(nodeTasks.unanswered, id)
			u.result.Task.Work.Report(now, u.result)
		case !now.Before(u.until):
			delete(nodeTasks.unanswered, id)
		}
	}
}

// isEmpty reports whether there is nothing left to do or to remember.
func (tr *taskRunner) isEmpty(nodeTasks *NodeTasks) bool {
	if nodeTasks.progress != Idle || nodeTasks.HasSlot() || len(nodeTasks.failures)+len(nodeTasks.unanswered) > 0 {
		return false
	}
	for _, t := range tr.treatments {
		if !t.Forget(nodeTasks.Node) {
			return false
		}
	}
	return true
}

// getOrCreate returns the tasks of a node, created if necessary.
func (tr *taskRunner) getOrCreate(node string) *NodeTasks {
	nodeTasks := tr.byNode[node]
	if nodeTasks == nil {
		nodeTasks = &NodeTasks{Node: node}
		tr.byNode[node] = nodeTasks
	}
	return nodeTasks
}

// ownerOf returns the treatment that writes the object of a slot, nil for none.
func (tr *taskRunner) ownerOf(slot ledger.ObjectWrite) Treatment {
	for _, t := range tr.treatments {
		if t.Owns(slot.Object) {
			return t
		}
	}
	return nil
}

// InFlightUntil returns until when the write that the slot covers may still succeed by its
// age, zero if it cannot.
func (nodeTasks *NodeTasks) InFlightUntil(now time.Time) (until time.Time) {
	if until = nodeTasks.sentAt.Add(MaxInFlight); !nodeTasks.HasSlot() || !nodeTasks.WasSent() || !now.Before(until) {
		return time.Time{}
	}
	return until
}

// inFlightUntil returns until when a write that takes a slot may still succeed, zero if
// none may.
func (tr *taskRunner) inFlightUntil(now time.Time, nodeTasks *NodeTasks) (until time.Time) {
	if until = nodeTasks.InFlightUntil(now); !until.IsZero() && !tr.ownerOf(nodeTasks.granted).MayArrive(nodeTasks.granted) {
		return time.Time{}
	}
	return until
}

// reconcile queues a node if it has a task to run.
func (tr *taskRunner) reconcile(now time.Time, node string) {
	nodeTasks := tr.byNode[node]
	if nodeTasks == nil || !tr.engine.loaded {
		return
	}
	for _, t := range tr.treatments {
		t.Update(now, node)
	}
	if nodeTasks.progress != Running {
		nodeTasks.reportArrived(now)
	}
	if nodeTasks.progress != Idle {
		return
	}
	t, due := tr.next(now, nodeTasks)
	if t == nil {
		tr.sleepUntil(now, nodeTasks, due)
		return
	}
	nodeTasks.progress = Queued
	tr.queue = append(tr.queue, nodeTasks)
}

// ensure adds the tasks of a node if its plan asks for a treatment, and reconciles
// existing tasks.
func (tr *taskRunner) ensure(now time.Time, state *Node, plan triage.Plan) {
	name := state.Object.Name
	if tr.byNode[name] == nil && !slices.ContainsFunc(tr.treatments, func(t Treatment) bool { return t.Concerns(state, plan) }) {
		return
	}
	tr.getOrCreate(name)
	tr.reconcile(now, name)
}

// next returns the task to run now, or when there may be a task. It skips failed tasks
// until their retry is due.
func (tr *taskRunner) next(now time.Time, nodeTasks *NodeTasks) (next *Task, due time.Time) {
	state := tr.engine.nodeStates[nodeTasks.Node]
	var plan triage.Plan
	if state != nil {
		var ok bool
		if plan, ok = tr.engine.core.Plan(nodeTasks.Node); !ok {
			return nil, time.Time{}
		}
	}
	due = nodeTasks.releaseDue(now)
	if nodeTasks.HasSlot() && !nodeTasks.HasSlotFor(state) {
		free, until := tr.ownerOf(nodeTasks.granted).FreesSlot(now, nodeTasks)
		if free {
			nodeTasks.clearSlot()
		}
		due = until
	}
	if plan.Treatment == nil {
		nodeTasks.dueSince = time.Time{}
	}
	for _, treatment := range tr.treatments {
		for t, wait := range treatment.Tasks(now, nodeTasks, state, plan) {
			due = times.Earliest(due, wait)
			if t == nil {
				continue
			}
			from := nodeTasks.failures[t.id()].notBefore
			if t.NotBefore.After(from) {
				from = t.NotBefore
			}
			if now.Before(from) {
				due = times.Earliest(due, from)
				continue
			}
			return t, time.Time{}
		}
	}
	return nil, due
}

// ReleaseSlot frees the slot of a treatment that was planned and does not exist. If a
// write for the slot may still succeed, it returns until when and frees nothing. A
// treatment without a slot is deleted if it arrives later.
func (l *Engine) ReleaseSlot(now time.Time, nodeTasks *NodeTasks, rule triage.RuleID) (due time.Time) {
	if triage.RuleID(nodeTasks.granted.Rule) == rule { // otherwise the slot belongs to another rule
		if until := l.tasks.inFlightUntil(now, nodeTasks); !until.IsZero() {
			return until
		}
		nodeTasks.clearSlot()
	}
	nodeTasks.dueSince = time.Time{}
	l.core.Abandon(now, nodeTasks.Node, rule, 0)
	return time.Time{}
}

// callOff abandons the decisions of a node that exceed the rails now. If a write for its slot may
// still succeed, it returns until when and abandons nothing. A taint that may still arrive keeps the
// place of the node, so the treatment waits for the node writer to know more.
func (l *Engine) callOff(now time.Time, nodeTasks *NodeTasks) (due time.Time) {
	if until := l.tasks.inFlightUntil(now, nodeTasks); !until.IsZero() {
		return until
	}
	if state := l.nodeStates[nodeTasks.Node]; state != nil && l.nodeWriter.MayTakeSlot(state) {
		return now.Add(WriteTimeout)
	}
	nodeTasks.clearSlot()
	nodeTasks.requested = ledger.ObjectWrite{} // the snapshot that is being written grants nothing
	nodeTasks.dueSince = time.Time{}
	l.core.CallOff(now, nodeTasks.Node, false)
	return time.Time{}
}

// CallOff abandons the decisions of a node that exceed the rails now, and reports whether there
// were any. The node writer asks before it sends a taint for them. A treatment that may still
// arrive stays, and keeps the place of the node.
func (l *Engine) CallOff(now time.Time, node string) (calledOff bool) {
	nodeTasks := l.tasks.byNode[node]
	mayArrive := nodeTasks != nil && (nodeTasks.running != nil && nodeTasks.running.Begins || !l.tasks.inFlightUntil(now, nodeTasks).IsZero())
	switch {
	case !mayArrive && l.core.ExceedsRails(node):
		if nodeTasks != nil {
			l.callOff(now, nodeTasks)
			return true
		}
	case !l.core.ExceedsClosing(node):
		return false
	}
	l.core.CallOff(now, node, mayArrive)
	return true
}

// start starts queued tasks, up to maxConcurrentTasks.
func (tr *taskRunner) start(ctx context.Context, now time.Time) {
	for tries := len(tr.queue); tries > 0 && tr.running < maxConcurrentTasks; tries-- {
		nodeTasks := tr.pop()
		if t := tr.nextStartable(now, nodeTasks); t != nil {
			tr.runInBackground(ctx, now, nodeTasks, t)
		}
	}
}

// pop removes the first node from the queue.
func (tr *taskRunner) pop() *NodeTasks {
	nodeTasks := tr.queue[0]
	tr.queue[0], tr.queue = nil, tr.queue[1:]
	return nodeTasks
}

// nextStartable returns the next task of a node if it may run now. A task that takes a
// slot first waits until the ledger stores the slot.
func (tr *taskRunner) nextStartable(now time.Time, nodeTasks *NodeTasks) *Task {
	nodeTasks.progress = Idle
	t, due := tr.next(now, nodeTasks)
	switch {
	case t == nil:
		tr.sleepUntil(now, nodeTasks, due)
	case t.takesSlot() && tr.engine.core.ExceedsRails(t.Node.Name):
		tr.sleepUntil(now, nodeTasks, times.Earliest(due, tr.engine.callOff(now, nodeTasks)))
	case t.takesSlot() && !tr.engine.mayBegin(now, t.Rule, t.Node):
		tr.sleepUntil(now, nodeTasks, times.Earliest(due, tr.engine.ReleaseSlot(now, nodeTasks, t.Rule))) // nodes that have waited longer go first
	case t.takesSlot() && nodeTasks.granted != t.Slot:
		nodeTasks.progress = AwaitingLedger
		tr.engine.RequestSlot(taskSlot{tr, nodeTasks})
	default:
		return t
	}
	return nil
}

// sleepUntil leaves a node alone until the given time. It forgets failures of tasks
// that could be retried now and are not needed any more.
func (tr *taskRunner) sleepUntil(now time.Time, nodeTasks *NodeTasks, until time.Time) {
	maps.DeleteFunc(nodeTasks.failures, func(_ taskID, s taskFailure) bool {
		if now.Before(s.notBefore) {
			until = times.Earliest(until, s.notBefore)
			return false
		}
		return true
	})
	for _, u := range nodeTasks.unanswered {
		until = times.Earliest(until, u.until)
	}
	nodeTasks.due = until
	tr.nextDue = times.Earliest(tr.nextDue, until)
	if until.IsZero() && tr.isEmpty(nodeTasks) {
		delete(tr.byNode, nodeTasks.Node)
	}
}

// runDue checks the nodes that are due, and returns when the next ones are.
func (tr *taskRunner) runDue(now time.Time) (due time.Time) {
	if tr.nextDue.IsZero() || now.Before(tr.nextDue) {
		return tr.nextDue
	}
	tr.nextDue = time.Time{}
	var woken []string
	for node, nodeTasks := range tr.byNode {
		switch {
		case nodeTasks.due.IsZero():
		case now.Before(nodeTasks.due):
			tr.nextDue = times.Earliest(tr.nextDue, nodeTasks.due)
		default:
			nodeTasks.due = time.Time{}
			woken = append(woken, node)
		}
	}
	slices.Sort(woken)
	tr.engine.Reobserve(now, woken...) // another holder's Lease may have expired
	return tr.nextDue
}

// Explain appends to a message what delays the treatments of a node.
func (l *Engine) Explain(node, message string) string {
	tr := &l.tasks
	nodeTasks := tr.byNode[node]
	if nodeTasks == nil {
		return message
	}
	parts := []string{message}
	for _, t := range tr.treatments {
		parts = append(parts, t.Problems(node)...)
	}
	for _, id := range slices.SortedFunc(maps.Keys(nodeTasks.failures), taskID.compare) {
		parts = append(parts, "not written yet: "+nodeTasks.failures[id].Text)
	}
	if nodeTasks.progress == AwaitingLedger && l.ledger.failure.Tries > 0 {
		parts = append(parts, "not written yet: "+l.ledger.failure.Text)
	}
	return strings.Join(parts, "; ")
}

// markStatusesStale marks the statuses of the policies that treat the node as stale.
func (tr *taskRunner) markStatusesStale(now time.Time, nodeTasks *NodeTasks) {
	for _, t := range tr.treatments {
		for _, rule := range t.Rules(nodeTasks.Node) {
			tr.engine.MarkStatusStale(now, rule)
		}
	}
	if state := tr.engine.nodeStates[nodeTasks.Node]; state != nil {
		tr.engine.MarkStatusesStale(now, state)
	}
}
