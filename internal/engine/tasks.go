package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// maxConcurrentTasks limits concurrent tasks.
const maxConcurrentTasks = 24

// Task is a write, or a sequence of writes, that a treatment asks for.
type Task struct {
	Kind string // names the task in the log; failures of one kind do not delay other kinds
	// Object identifies the object that the task writes, if a node may have several. Failures
	// for one object do not delay tasks of the same kind for other objects.
	Object   string
	Resource string // that the task writes, as metrics name it
	// Failure is what an Event says if the API server rejects the task; FailureEvent is the
	// reason of that Event.
	Failure      string
	FailureEvent treat.EventReason

	Rule   triage.RuleID
	Reason triage.Reason
	Step   int
	Node   *corev1.Node // as last seen; nil if gone
	// NotBefore is the earliest time for the task, apart from retries.
	NotBefore time.Time
	// Begins says that the task begins a treatment, or finishes beginning it. The engine runs its Work
	// only after all [StartChecks] have passed.
	Begins bool
	// HasBegun says that an object shows that an earlier task began the treatment. Pods no longer protect
	// the node, and the attempt is recorded.
	HasBegun bool
	// Slot must be stored in the ledger before the task runs. It is zero if the task takes
	// no slot, or if an API object already shows the slot.
	Slot ledger.ObjectWrite
	Work Work
}

// Work is what a task does.
type Work interface {
	// Run makes the requests. It runs outside the goroutine of the engine and must not
	// access the state of the engine or of the treatment.
	Run(ctx context.Context, r *TaskResult) error
	// Done takes in the result in the goroutine of the engine. It may change the result
	// before the engine acts on it.
	Done(now time.Time, r *TaskResult)
	// Report reports in Events, metrics and the log that the task has succeeded.
	Report(now time.Time, r *TaskResult)
	// HasArrived says whether the objects show that the task has succeeded although its answer was
	// lost. The engine asks while no task of the node runs, and then reports the task. It decides
	// nothing else.
	HasArrived(now time.Time) bool
}

// Preparer is a Work that begins a treatment and needs something first, for example the Lease of the node.
type Preparer interface {
	// Prepare makes requests as Run does, after the engine has looked for pods that protect the node, and
	// before it reads the node again. It reports whether the treatment may begin.
	Prepare(ctx context.Context, r *TaskResult) (may bool, err error)
}

// TaskResult is the result of a task, as far as the engine acts on it.
type TaskResult struct {
	NodeTasks *NodeTasks
	Task      *Task
	Outcome   treat.Outcome
	Err       error

	Fresh   *corev1.Node // the current node, if it differs from the known one
	Missing bool         // the node does not exist
	// Begun says that the treatment has begun although the task failed: its slot is taken.
	Begun bool
	// Learned says that the task failed because something had changed that the treatment
	// knows now: it decides again at once.
	Learned bool
	// IsRepeated says that an earlier attempt got no answer and is not reported.
	IsRepeated bool

	respectsPods bool        // a pod can protect the node of the task
	protection   string      // says that a pod does, empty if none does
	attempt      *newAttempt // that the task begins, nil for none

	previouslySentAt time.Time // when the same write was sent before and may still succeed; zero for never
}

// taskID identifies a task among the tasks of a node.
type taskID struct{ kind, object string }

func (t *Task) id() taskID { return taskID{t.Kind, t.Object} }

func (id taskID) compare(other taskID) int {
	return cmp.Or(strings.Compare(id.kind, other.kind), strings.Compare(id.object, other.object))
}

// takesSlot reports whether the task takes a slot under a bound that no API object shows
// before the task has run.
func (t *Task) takesSlot() bool { return t.Slot != ledger.ObjectWrite{} }

// taskRunner holds the tasks of all nodes and runs them.
type taskRunner struct {
	engine            *Engine
	treatments        []Treatment
	byNode            map[string]*NodeTasks
	nextDue           time.Time    // when to check the nodes next, zero for never
	queue             []*NodeTasks // nodes with a pending task
	running           int
	results           chan *TaskResult
	startRequests     chan startRequest // asks whether a treatment may still start; nil while the loop is not running
	openStartRequests []startRequest    // answered after the round
	checks            StartChecks       // the engine
}

// NotWritten records that the task has written nothing more, although a request of it got no answer: the
// request was a read. It returns the error.
func (r *TaskResult) NotWritten(err error) error {
	if r.Outcome = treat.Classify(err); r.Outcome == treat.Unknown {
		r.Outcome = treat.Busy
	}
	return err
}

// startTask marks a task as running and returns its result to fill in.
func (tr *taskRunner) startTask(now time.Time, nodeTasks *NodeTasks, t *Task) *TaskResult {
	r := &TaskResult{NodeTasks: nodeTasks, Task: t, previouslySentAt: nodeTasks.sentAt, respectsPods: tr.engine.respectsPods()}
	r.attempt = tr.engine.attemptOf(now, t)
	_, r.IsRepeated = nodeTasks.unanswered[t.id()]
	nodeTasks.progress, nodeTasks.running, nodeTasks.attempt = Running, t, r.attempt
	tr.running++
	if t.Begins && nodeTasks.HasSlot() {
		isCreation := nodeTasks.granted.ResourceVersion == "" // other writes name a version, so only one attempt can succeed
		nodeTasks.hasEarlier = nodeTasks.hasEarlier || isCreation && !nodeTasks.InFlightUntil(now).IsZero()
		nodeTasks.sentAt = now
	}
	return r
}

func (tr *taskRunner) runInBackground(ctx context.Context, now time.Time, nodeTasks *NodeTasks, t *Task) {
	r := tr.startTask(now, nodeTasks, t)
	tr.engine.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
		defer cancel()
		r.Err = tr.run(ctx, r)
		if r.Outcome == treat.Made {
			r.Outcome = treat.Classify(r.Err)
		}
		tr.results <- r
	})
}

// IsUnchanged reports whether the node is unchanged in everything that matters. If it has
// changed, the result holds the current node, and the loop decides again. The full node
// is large, so it is read only if its version differs, for example after a heartbeat.
func (l *Engine) IsUnchanged(ctx context.Context, r *TaskResult) (isStill bool, err error) {
	known := r.Task.Node
	isStill, err = l.write.IsStill(ctx, known)
	if err == nil && !isStill {
		r.Fresh, err = l.write.Fetch(ctx, known.Name)
	}
	switch {
	case apierrors.IsNotFound(err):
		r.Missing, r.Outcome = true, treat.Stale
		return false, nil
	case err != nil:
		return false, r.NotWritten(err)
	case isStill:
		return true, nil
	case r.Fresh.UID == known.UID && nodewatch.Same(nodewatch.Trim(r.Fresh), known):
		if r.attempt != nil {
			r.attempt.version = r.Fresh.ResourceVersion
		}
		r.Fresh = nil
		return true, nil
	}
	r.Outcome = treat.Stale
	return false, nil
}

// handleResult takes in the result of a task.
func (tr *taskRunner) handleResult(r *TaskResult) {
	now, nodeTasks, t := time.Now(), r.NodeTasks, r.Task
	tr.running--
	tr.engine.cfg.Metrics.CountWrite(t.Resource, r.Outcome)
	if t.Begins && r.Outcome != treat.Made && r.Outcome != treat.Unknown { // the write cannot succeed any more
		nodeTasks.sentAt = r.previouslySentAt
	}
	// The node stays busy meanwhile: a step that has begun must not be taken for one that has not.
	tr.engine.noteAttempt(now, r)
	t.Work.Done(now, r)
	switch r.Outcome {
	case treat.Unknown:
		if nodeTasks.unanswered == nil {
			nodeTasks.unanswered = map[taskID]unansweredTask{}
		}
		nodeTasks.unanswered[t.id()] = unansweredTask{r, now.Add(MaxInFlight)}
	case treat.Made:
		t.Work.Report(now, r)
		delete(nodeTasks.unanswered, t.id())
	}
	if t.Begins && (r.Begun || r.Outcome == treat.Made || r.Outcome == treat.Unknown) {
		tr.engine.core.NoteSent(nodeTasks.Node, t.Rule)
	}
	tr.engine.noteProtection(now, r)
	nodeTasks.progress, nodeTasks.running, nodeTasks.attempt = Idle, nil, nil
	if nodeTasks.releasesLater && !nodeTasks.hasEarlier {
		nodeTasks.clearSlot()
	}
	switch r.Outcome {
	case treat.Made:
		delete(nodeTasks.failures, t.id())
	case treat.Stale:
		tr.handleStale(now, r)
	case treat.Refused:
		tr.handleRefused(now, r)
	case treat.Busy, treat.Unknown:
		tr.retryLater(now, r)
	}
	tr.engine.Reobserve(now, nodeTasks.Node)
	tr.markStatusesStale(now, nodeTasks)
}

// handleStale handles a task that found an object changed.
func (tr *taskRunner) handleStale(now time.Time, r *TaskResult) {
	switch state := tr.engine.nodeStates[r.NodeTasks.Node]; {
	case r.Fresh != nil && state == nil:
		r.Err = errors.New("the node exists, but the watch has not delivered it yet") // or the node is gone, if the loop knows more
		tr.retryLater(now, r)
	case r.Missing || r.Fresh != nil:
		tr.takeFreshNode(now, r)
	case r.Learned:
	default: // the watch will report the change, or an admission webhook denied the write with a conflict
		if r.Err == nil {
			r.Err = errors.New("the API server answered with a conflict, but the object has not changed")
		}
		tr.retryLater(now, r)
	}
}

// takeFreshNode stores a node that was read directly.
func (tr *taskRunner) takeFreshNode(now time.Time, r *TaskResult) {
	state := tr.engine.nodeStates[r.NodeTasks.Node]
	switch {
	case state == nil:
	case r.Missing && r.Task.Node != nil && state.Object.UID == r.Task.Node.UID:
		tr.engine.RemoveNode(now, state)
	case r.Fresh != nil:
		tr.engine.NodeRead(now, nodewatch.Trim(r.Fresh))
	}
}

// taskFailed records a failure of the task. It returns the delay before the retry and
// whether the failure is new. Refusals have a counter of their own, because an API server
// that has just restarted rejects many requests for a moment.
func (tr *taskRunner) taskFailed(now time.Time, r *TaskResult) (wait time.Duration, isNews bool) {
	nodeTasks := r.NodeTasks
	if nodeTasks.failures == nil {
		nodeTasks.failures = map[taskID]taskFailure{}
	}
	s := nodeTasks.failures[r.Task.id()]
	isNews = s.Add(r.Outcome, r.Err)
	if r.Outcome == treat.Refused {
		s.refusals++
		wait = tr.engine.RefusalDelay(s.refusals)
	} else {
		wait = tr.engine.RetryDelay(s.Tries)
	}
	s.notBefore = now.Add(wait)
	nodeTasks.failures[r.Task.id()] = s
	return wait, isNews
}

// isRefusalNews reports whether to report that the API server rejected a task, and remembers it.
func (nodeTasks *NodeTasks) isRefusalNews(now time.Time, t *Task, message string) bool {
	reported := nodeTasks.refusalsReported[t.id()]
	if !reported.IsNews(now, message) {
		return false
	}
	if nodeTasks.refusalsReported == nil {
		nodeTasks.refusalsReported = map[taskID]ReportedRefusal{}
	}
	nodeTasks.refusalsReported[t.id()] = reported
	return true
}

// retryLater delays the retry of a task, longer with every failure.
func (tr *taskRunner) retryLater(now time.Time, r *TaskResult) {
	wait, isNews := tr.taskFailed(now, r)
	if isNews && tr.engine.LogsRetry(now) {
		tr.engine.cfg.Logger.Warn("treatment delayed", "node", r.NodeTasks.Node, "task", r.Task.Kind, "retryIn", wait.String(), "err", r.Err)
	}
}

// handleRefused frees the slot of a treatment that the API server rejected, and reports
// the rejection. Other treatments continue.
func (tr *taskRunner) handleRefused(now time.Time, r *TaskResult) {
	nodeTasks, t := r.NodeTasks, r.Task
	wait, _ := tr.taskFailed(now, r)
	if t.Begins && !r.Begun && tr.inFlightUntil(now, nodeTasks).IsZero() { // otherwise an earlier write may still take the slot
		nodeTasks.clearSlot()
		tr.engine.core.Abandon(now, nodeTasks.Node, t.Rule, wait)
	}
	message := fmt.Sprintf("%s: %v", t.Failure, r.Err)
	if !nodeTasks.isRefusalNews(now, t, message) {
		return
	}
	if tr.engine.LogsRefusal(now) {
		tr.engine.cfg.Logger.Error("write refused", "node", nodeTasks.Node, "rule", t.Rule.String(), "err", message)
	}
	tr.engine.PublishEvent(t.Rule, t.Node, t.FailureEvent, t.Reason, message)
}
