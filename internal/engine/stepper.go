package engine

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Stepper runs an engine step by step, for tests of policies and treatments. A test
// delivers objects, runs rounds, and decides what becomes of each task and each snapshot
// of the ledger. The stepper makes the same decisions as Run. It sends something only in
// RunTask and WriteSnapshot.
type Stepper struct{ *Engine }

// NewStepper returns a stepper. Of the configuration it needs Event, Metrics and Logger,
// and Client, Namespace and Identity for a real ledger.
func NewStepper(cfg Config) *Stepper {
	l := newEngine(cfg)
	l.statuses = &status.Writer{} // it writes nothing
	l.ledger.done = make(chan error, 1)
	return &Stepper{l}
}

// NodeInbox returns the inbox for nodes.
func (s *Stepper) NodeInbox() *watch.Inbox[*corev1.Node] { return s.nodeInbox }

// Restore sets the entries that the previous leader has stored, and those of kinds that
// this version does not know. Call it before the first round.
func (s *Stepper) Restore(entries []ledger.Entry, unknown ...ledger.UnknownEntry) {
	s.ledger.restored, s.ledger.unknownEntries = entries, unknown
}

// Loop runs the loop of Run until ctx ends or another replica has claimed the ledger. It
// starts no watches: the test fills the inboxes. Call Claim before, and no other method of
// the stepper while the loop runs.
func (s *Stepper) Loop(ctx context.Context) error { return s.run(ctx) }

// UseStatusWriter makes the policies write their statuses.
func (s *Stepper) UseStatusWriter(w *status.Writer) { s.statuses = w }

// Round runs a round, and leaves tasks and snapshots to the test. It returns when the next
// round is due, zero for never.
func (s *Stepper) Round(ctx context.Context) time.Time {
	now := time.Now()
	isReady, due := s.decide(ctx, now)
	if !isReady {
		return time.Time{}
	}
	for range len(s.tasks.queue) { // Run checks each task again before it starts the task
		if nodeTasks := s.tasks.pop(); nodeTasks.progress == Queued {
			nodeTasks.progress = Idle
			s.tasks.reconcile(now, nodeTasks.Node)
		}
	}
	due = times.Earliest(due, s.updateAllowances(now))
	s.ledger.syncDeletedNodes(now)
	s.statuses.Schedule(now)
	s.writeStatuses(ctx, now)
	return times.Earliest(due, s.nextDecision(), s.logSuppressed(now), s.forgetRetired(now))
}

// Next returns the next task of a node, nil for none, and when to check again.
func (s *Stepper) Next(node string) (*Task, time.Time) {
	if nodeTasks := s.tasks.byNode[node]; nodeTasks != nil {
		return s.tasks.next(time.Now(), nodeTasks)
	}
	return nil, time.Time{}
}

// IsQueued reports whether a task of the node waits to be started.
func (s *Stepper) IsQueued(node string) bool { return s.progressOf(node) == Queued }

// AwaitsLedger reports whether a task of the node waits for its slot in the ledger.
func (s *Stepper) AwaitsLedger(node string) bool { return s.progressOf(node) == AwaitingLedger }

func (s *Stepper) progressOf(node string) Progress {
	if nodeTasks := s.tasks.byNode[node]; nodeTasks != nil {
		return nodeTasks.progress
	}
	return Idle
}

// Startable returns the tasks that may start now, by node. Tasks that take a slot are
// queued for the next snapshot.
func (s *Stepper) Startable() map[string]*Task {
	startable := map[string]*Task{}
	for range len(s.tasks.queue) {
		nodeTasks := s.tasks.pop()
		if t := s.tasks.nextStartable(time.Now(), nodeTasks); t != nil {
			nodeTasks.progress = Queued
			s.tasks.queue = append(s.tasks.queue, nodeTasks)
			startable[nodeTasks.Node] = t
		}
	}
	s.ReconcileWoken(time.Now())
	s.updateAllowances(time.Now())
	return startable
}

// Begin starts the queued task of a node and returns its result to fill in. It returns nil
// if the node has no queued task that may start.
func (s *Stepper) Begin(node string) *TaskResult {
	for range len(s.tasks.queue) {
		nodeTasks := s.tasks.pop()
		if nodeTasks.Node != node {
			s.tasks.queue = append(s.tasks.queue, nodeTasks)
			continue
		}
		if t := s.tasks.nextStartable(time.Now(), nodeTasks); t != nil {
			return s.tasks.startTask(time.Now(), nodeTasks, t)
		}
		return nil
	}
	return nil
}

// SetStartChecks replaces the checks before a treatment begins.
func (s *Stepper) SetStartChecks(checks StartChecks) { s.tasks.checks = checks }

// Start starts a task of a node and returns its result to fill in.
func (s *Stepper) Start(now time.Time, node string, t *Task) *TaskResult {
	return s.tasks.startTask(now, s.tasks.getOrCreate(node), t)
}

// RunTask runs a task of a node to its end, with real requests, and returns its result.
func (s *Stepper) RunTask(ctx context.Context, node string, t *Task) *TaskResult {
	s.tasks.runInBackground(ctx, time.Now(), s.tasks.getOrCreate(node), t)
	return <-s.tasks.results
}

// Finish takes in the result of a task.
func (s *Stepper) Finish(r *TaskResult) { s.tasks.handleResult(r) }

// Snapshot returns the entries of the next snapshot of the ledger, nil if none is due; due
// then is when to ask again. The test must call Stored with what became of it.
func (s *Stepper) Snapshot() (entries []ledger.Entry, due time.Time) {
	if entries, due = s.ledger.nextSnapshot(time.Now()); entries != nil {
		s.ledger.isWriting = true
	}
	return entries, due
}

// Entries returns the entries of a snapshot taken now, whether or not one is due.
func (s *Stepper) Entries() []ledger.Entry {
	s.ledger.requestDeletedNodes(time.Now(), s.ledger.ledger.Room())
	return s.ledger.entries()
}

// Stored takes in what became of a snapshot. It returns an error if another replica has
// claimed the ledger.
func (s *Stepper) Stored(err error) error { return s.ledger.handleResult(err) }

// WriteSnapshot writes the next snapshot to the real ledger, if one is due. It returns when
// to try again if the snapshot must wait.
func (s *Stepper) WriteSnapshot(ctx context.Context, now time.Time) (due time.Time, err error) {
	if due = s.ledger.write(ctx, now); !s.ledger.isWriting {
		return due, nil
	}
	return due, s.ledger.handleResult(<-s.ledger.done)
}

// MayStart runs a round and answers as MayStillStart does in a running engine.
func (s *Stepper) MayStart(ctx context.Context, t *Task) bool {
	answer := make(chan bool, 1)
	s.tasks.queueStartRequest(startRequest{node: t.Node.Name, rule: t.Rule, step: t.Step, answer: answer})
	s.Round(ctx)
	s.tasks.answerStartRequests()
	return <-answer
}

// AnswerStart answers the next call of MayStillStart.
func (s *Stepper) AnswerStart(answer func(node string) bool) {
	s.tasks.startRequests = make(chan startRequest)
	go func() {
		request := <-s.tasks.startRequests
		request.answer <- answer(request.node)
	}()
}
