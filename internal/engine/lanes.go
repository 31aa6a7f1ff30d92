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

// Lane is the progress of the treatments of one node name: they run one task at a time
// and take one slot. It outlives the node, because remediation objects do.
type Lane struct {
	Node  string
	stage Stage
	// granted is the ledger entry that holds the slot; requested is the entry requested in the
	// next snapshot. They are zero for none.
	granted, requested ledger.ObjectWrite
	// sentAt is when the write that granted covers was last sent, if it may have succeeded
	// or may still succeed. It is zero for none.
	sentAt  time.Time
	running *Task // nil for none

	failures        map[string]taskFailure // by kind of task
	due             time.Time              // when to check again, zero for never
	dueSince        time.Time              // since when a treatment is due
	refusalReported ReportedRefusal        // the last rejected write
}

// taskFailure records why a task failed and when to retry it. It does not block other
// kinds of tasks.
type taskFailure struct {
	Failure
	refusals  int
	notBefore time.Time
}

// Slot returns the ledger entry that holds the slot of the node, zero for none.
func (lane *Lane) Slot() ledger.ObjectWrite { return lane.granted }

// Running returns the task that runs, nil for none.
func (lane *Lane) Running() *Task { return lane.running }

// HasSlot reports whether the ledger names a slot of the node.
func (lane *Lane) HasSlot() bool { return lane.granted != ledger.ObjectWrite{} }

// HasSlotFor reports whether the slot is for this existing node.
func (lane *Lane) HasSlotFor(n *Node) bool {
	return n != nil && string(n.Object.UID) == lane.granted.UID
}

// Release clears the slot, because its write has arrived or can never succeed.
func (lane *Lane) Release() {
	lane.granted, lane.sentAt = ledger.ObjectWrite{}, time.Time{}
}

// WasSent reports whether the write that the slot covers may have succeeded or may still
// succeed.
func (lane *Lane) WasSent() bool { return !lane.sentAt.IsZero() }

// NoteDue records since when the treatment is due.
func (lane *Lane) NoteDue(now time.Time, n *Node) {
	if lane.dueSince.IsZero() {
		lane.dueSince = n.DueSince(now)
	}
}

// Begun tells that the treatment has begun. It returns since when the treatment was due,
// zero if that is unknown.
func (lane *Lane) Begun() (dueSince time.Time) {
	dueSince = lane.dueSince
	lane.dueSince, lane.refusalReported = time.Time{}, ReportedRefusal{}
	return dueSince
}

// isEmpty reports whether there is nothing left to do or to remember.
func (tr *taskRunner) isEmpty(lane *Lane) bool {
	if lane.stage != Idle || lane.HasSlot() || len(lane.failures) > 0 {
		return false
	}
	for _, t := range tr.treatments {
		if !t.Forget(lane.Node) {
			return false
		}
	}
	return true
}

// of returns the lane of a node, created if necessary.
func (tr *taskRunner) of(node string) *Lane {
	lane := tr.lanes[node]
	if lane == nil {
		lane = &Lane{Node: node}
		tr.lanes[node] = lane
	}
	return lane
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
func (lane *Lane) InFlightUntil(now time.Time) (until time.Time) {
	if until = lane.sentAt.Add(MaxInFlight); !lane.HasSlot() || !lane.WasSent() || !now.Before(until) {
		return time.Time{}
	}
	return until
}

// inFlightUntil returns until when a write that takes a slot may still succeed, zero if
// none may.
func (tr *taskRunner) inFlightUntil(now time.Time, lane *Lane) (until time.Time) {
	if until = lane.InFlightUntil(now); !until.IsZero() && !tr.ownerOf(lane.granted).MayArrive(lane.granted) {
		return time.Time{}
	}
	return until
}

// reconcile queues a node if it has a task to run.
func (tr *taskRunner) reconcile(now time.Time, node string) {
	lane := tr.lanes[node]
	if lane == nil || !tr.engine.loaded {
		return
	}
	for _, t := range tr.treatments {
		t.Update(now, node)
	}
	if lane.stage != Idle {
		return
	}
	t, due := tr.next(now, lane)
	if t == nil {
		tr.sleepUntil(now, lane, due)
		return
	}
	lane.stage = Queued
	tr.queue = append(tr.queue, lane)
}

// ensure adds a lane for a node if its plan asks for a treatment, and reconciles an
// existing lane.
func (tr *taskRunner) ensure(now time.Time, state *Node, plan triage.Plan) {
	name := state.Object.Name
	if tr.lanes[name] == nil && !slices.ContainsFunc(tr.treatments, func(t Treatment) bool { return t.Concerns(state, plan) }) {
		return
	}
	tr.of(name)
	tr.reconcile(now, name)
}

// next returns the task to run now, or when there may be a task. It skips failed tasks
// until their retry is due.
func (tr *taskRunner) next(now time.Time, lane *Lane) (next *Task, due time.Time) {
	state := tr.engine.nodeStates[lane.Node]
	var plan triage.Plan
	if state != nil {
		var ok bool
		if plan, ok = tr.engine.core.Plan(lane.Node); !ok {
			return nil, time.Time{}
		}
	}
	if lane.HasSlot() && !lane.HasSlotFor(state) {
		free, until := tr.ownerOf(lane.granted).FreesSlot(now, lane)
		if free {
			lane.Release()
		}
		due = until
	}
	if plan.Treatment == nil {
		lane.dueSince = time.Time{}
	}
	for _, treatment := range tr.treatments {
		for t, wait := range treatment.Tasks(now, lane, state, plan) {
			due = times.Earliest(due, wait)
			if t == nil {
				continue
			}
			from := lane.failures[t.Kind].notBefore
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
func (l *Engine) ReleaseSlot(now time.Time, lane *Lane, rule triage.RuleID) (due time.Time) {
	if triage.RuleID(lane.granted.Rule) == rule { // otherwise the slot belongs to another rule
		if until := l.tasks.inFlightUntil(now, lane); !until.IsZero() {
			return until
		}
		lane.Release()
	}
	lane.dueSince = time.Time{}
	l.core.Abandon(now, lane.Node, rule, 0)
	return time.Time{}
}

// start starts queued tasks, up to maxConcurrentTasks.
func (tr *taskRunner) start(ctx context.Context, now time.Time) {
	for tries := len(tr.queue); tries > 0 && tr.running < maxConcurrentTasks; tries-- {
		lane := tr.pop()
		if t := tr.nextStartable(now, lane); t != nil {
			tr.runInBackground(ctx, now, lane, t)
		}
	}
}

// pop removes the first lane from the queue.
func (tr *taskRunner) pop() *Lane {
	lane := tr.queue[0]
	tr.queue[0], tr.queue = nil, tr.queue[1:]
	return lane
}

// nextStartable returns the next task of a node if it may run now. A task that takes a
// slot first waits until the ledger stores the slot.
func (tr *taskRunner) nextStartable(now time.Time, lane *Lane) *Task {
	lane.stage = Idle
	t, due := tr.next(now, lane)
	switch {
	case t == nil:
		tr.sleepUntil(now, lane, due)
	case t.takesSlot() && !tr.engine.mayBegin(now, t.Rule, t.Node):
		tr.sleepUntil(now, lane, times.Earliest(due, tr.engine.ReleaseSlot(now, lane, t.Rule))) // nodes that have waited longer go first
	case t.takesSlot() && lane.granted != t.Slot:
		lane.stage = AwaitingLedger
		tr.engine.RequestSlot(laneSlot{tr, lane})
	default:
		return t
	}
	return nil
}

// sleepUntil leaves a node alone until the given time. It forgets failures of tasks
// that could be retried now and are not needed any more.
func (tr *taskRunner) sleepUntil(now time.Time, lane *Lane, until time.Time) {
	maps.DeleteFunc(lane.failures, func(_ string, s taskFailure) bool {
		if now.Before(s.notBefore) {
			until = times.Earliest(until, s.notBefore)
			return false
		}
		return true
	})
	lane.due = until
	tr.nextDue = times.Earliest(tr.nextDue, until)
	if until.IsZero() && tr.isEmpty(lane) {
		delete(tr.lanes, lane.Node)
	}
}

// runDue checks the nodes that are due, and returns when the next ones are.
func (tr *taskRunner) runDue(now time.Time) (due time.Time) {
	if tr.nextDue.IsZero() || now.Before(tr.nextDue) {
		return tr.nextDue
	}
	tr.nextDue = time.Time{}
	var woken []string
	for node, lane := range tr.lanes {
		switch {
		case lane.due.IsZero():
		case now.Before(lane.due):
			tr.nextDue = times.Earliest(tr.nextDue, lane.due)
		default:
			lane.due = time.Time{}
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
	lane := tr.lanes[node]
	if lane == nil {
		return message
	}
	parts := []string{message}
	for _, t := range tr.treatments {
		parts = append(parts, t.Problems(node)...)
	}
	for _, kind := range slices.Sorted(maps.Keys(lane.failures)) {
		parts = append(parts, "not written yet: "+lane.failures[kind].Text)
	}
	if lane.stage == AwaitingLedger && l.ledger.failure.Tries > 0 {
		parts = append(parts, "not written yet: "+l.ledger.failure.Text)
	}
	return strings.Join(parts, "; ")
}

// markStatusesStale marks the statuses of the policies that treat the node as stale.
func (tr *taskRunner) markStatusesStale(now time.Time, lane *Lane) {
	for _, t := range tr.treatments {
		for _, rule := range t.Rules(lane.Node) {
			tr.engine.MarkStatusStale(now, rule)
		}
	}
	if state := tr.engine.nodeStates[lane.Node]; state != nil {
		tr.engine.MarkStatusesStale(now, state)
	}
}
