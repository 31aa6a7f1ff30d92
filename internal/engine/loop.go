package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Engine holds all state of a term as leader, from the claim of the ledger to its loss.
// Only the goroutine of run uses it.
type Engine struct {
	cfg        Config
	core       *triage.Core
	nodeStates map[string]*Node
	policies   []Policy
	nodeWriter NodeWriter
	tasks      taskRunner // with the treatments
	ledger     ledgerWriter
	statuses   *status.Writer
	write      *treat.Writer

	signal    chan struct{}            // starts a round
	posts     chan func(now time.Time) // functions to call in the goroutine of run
	stopped   chan struct{}            // closed when the loop has ended
	nodeInbox *watch.Inbox[*corev1.Node]
	requests  sync.WaitGroup
	// startWatch runs work until stop is called or the loop ends. Run sets it.
	startWatch func(work func(context.Context)) (stop context.CancelFunc)

	respect      *dialect.Respect       // see Respect
	protected    map[string]*protection // nodes that a pod protects
	inheritance  inheritance
	startedAt    time.Time
	loaded       bool // everything that existed at the start is taken in
	failureLog   struct{ retries, refusals logLimiter }
	retiredRules map[triage.RuleID]time.Time // deleted policies, and when to delete their counters
}

// run works until ctx ends or the ledger is lost.
func (l *Engine) run(ctx context.Context) error {
	defer l.requests.Wait()
	defer l.statuses.Wait()
	defer l.cfg.Metrics.leading.Set(0)
	defer l.cfg.Metrics.unknown.Reset()
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.cfg.Liveness.sleeping(time.Now())
	defer l.cfg.Liveness.stopped()
	l.tasks.startRequests = make(chan startRequest)
	defer close(l.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.signal:
		case <-timer.C:
		case handle := <-l.statuses.Results():
			handle()
		case r := <-l.tasks.results:
			l.tasks.handleResult(r)
		case request := <-l.tasks.startRequests:
			l.tasks.queueStartRequest(request)
		case handle := <-l.posts:
			handle(time.Now())
		case err := <-l.ledger.done:
			if err := l.ledger.handleResult(err); err != nil {
				return err
			}
		}
		wait := maxSleep
		if due := l.round(ctx); !due.IsZero() {
			wait = min(wait, max(0, time.Until(due)))
		}
		l.tasks.answerStartRequests()
		l.cfg.Liveness.sleeping(time.Now().Add(wait))
		timer.Reset(wait)
	}
}

// round takes in all changes and reconciles every affected node with its plan. It returns
// when the next round is due, zero for never.
func (l *Engine) round(ctx context.Context) time.Time {
	now := time.Now()
	isReady, due := l.decide(ctx, now)
	if !isReady {
		return time.Time{} // an inbox signals when it is filled
	}
	l.nodeWriter.Start(ctx, now)
	l.cfg.Metrics.waiting.Set(float64(l.nodeWriter.Waiting() + len(l.ledger.queued) + len(l.ledger.writing)))
	l.tasks.start(ctx, now)
	l.ReconcileWoken(now)
	due = times.Earliest(due, l.updateAllowances(now), l.ledger.write(ctx, now), l.lookAtProtected(ctx, now), l.writeInherited(ctx, now))
	due = times.Earliest(due, l.nodeWriter.Due(now))                    // after the ledger, which may queue writes that need no slot any more
	if len(l.tasks.queue) > 0 && l.tasks.running < maxConcurrentTasks { // a final check changed a plan
		due = now
	}
	return times.Earliest(due, l.nextDecision(), l.writeStatuses(ctx, now), l.logSuppressed(now), l.forgetRetired(now))
}

// decide takes in all changes, and queues every node that differs from its plan. It does
// nothing until everything is loaded. due is when time alone changes a decision.
func (l *Engine) decide(ctx context.Context, now time.Time) (isReady bool, due time.Time) {
	if !l.loaded && !l.isReady(now) {
		return false, time.Time{}
	}
	for _, p := range l.policies {
		p.Take(now)
	}
	l.takeNodes(now)
	for _, t := range l.tasks.treatments {
		t.Take(now)
	}
	for _, p := range l.policies {
		due = times.Earliest(due, p.SetRules(ctx, now))
	}
	if !l.loaded {
		l.load(now)
		due = now // policies report what they could not before
	}
	for _, t := range l.tasks.treatments {
		t.Check(now)
	}
	l.core.Advance(now)
	l.ReconcileWoken(now)
	due = times.Earliest(due, l.tasks.runDue(now))
	l.ReconcileWoken(now)
	return true, due
}

// nextDecision returns when time alone changes a plan or a task, zero for never.
func (l *Engine) nextDecision() time.Time {
	at, _ := l.core.Deadline()
	return times.Earliest(at, l.tasks.nextDue)
}

// load resumes the work of the previous leader once everything is taken in.
func (l *Engine) load(now time.Time) {
	if l.cfg.NodeFacts != nil {
		l.cfg.NodeFacts.Takeover()
	}
	l.ledger.restore(now)
	l.updateAllowances(now) // restore may have changed them
	l.loaded = true
	for _, t := range l.tasks.treatments {
		t.Check(now)
	}
	l.core.Loaded(now)
	for node := range l.tasks.byNode {
		l.tasks.reconcile(now, node)
	}
	l.cfg.Metrics.leading.Set(1)
	l.logLoaded()
}

// logLoaded logs what the engine has loaded.
func (l *Engine) logLoaded() {
	sizes := make([]any, 0, 2*len(l.policies))
	for _, p := range l.policies {
		name, objects := p.Size()
		sizes = append(sizes, name, objects)
	}
	l.cfg.Logger.With("nodes", len(l.nodeStates)).With(sizes...).Info("loaded", "after", time.Since(l.startedAt).String())
}

// takeNodes passes changed nodes to the core.
func (l *Engine) takeNodes(now time.Time) {
	batch := l.nodeInbox.Take()
	if batch.ListVersion != "" {
		for name, state := range l.nodeStates {
			// A node from a direct read may be newer than the list.
			if _, there := batch.Changes[name]; !there && !OlderVersion(batch.ListVersion, state.Object.ResourceVersion) {
				l.RemoveNode(now, state)
			}
		}
	}
	facts := make([]triage.Node, 0, len(batch.Changes))
	for _, name := range slices.Sorted(maps.Keys(batch.Changes)) {
		change := batch.Changes[name]
		state := l.nodeStates[name]
		switch {
		case change.Gone:
			if state != nil && !older(change.Object, state.Object) {
				l.RemoveNode(now, state)
			}
		case state != nil && !isOtherVersion(state.Object, change.Object): // the result of our own write came before the watch event
		case state != nil && nodewatch.Same(state.Object, change.Object): // a heartbeat
			l.setNode(state, change.Object, state.observedAt)
			state.arrivedAt = change.At
		default:
			if state != nil && !change.Previous.IsZero() { // a heartbeat that was not taken
				state.arrivedAt = change.Previous
			}
			facts = append(facts, l.upsertNode(change.Object, change.At))
		}
	}
	facts = l.takeReplacements(now, facts)
	l.core.Observe(now, facts...)
	// A taint of another component may be gone. The core does not know those taints, so
	// check the node even if the core does not wake it.
	for i := range facts {
		l.Reconcile(now, l.nodeStates[facts[i].Name])
	}
}

// isOtherVersion reports whether the watch delivers another version than the known version, and not
// an older version. Versions that cannot be compared count as news, because the watch moves
// on.
func isOtherVersion(known, delivered *corev1.Node) bool {
	return known.ResourceVersion != delivered.ResourceVersion && !older(delivered, known)
}

// older reports whether a has an older version than b.
func older(a, b *corev1.Node) bool { return OlderVersion(a.ResourceVersion, b.ResourceVersion) }

// OlderVersion reports whether a is older than b. Both are versions of the same resource.
func OlderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// upsertNode stores a newer version of a node and returns its facts.
func (l *Engine) upsertNode(node *corev1.Node, at time.Time) triage.Node {
	state := l.nodeStates[node.Name]
	if state == nil {
		state = &Node{}
		l.nodeStates[node.Name] = state
	}
	if state.Object == nil || !maps.Equal(state.Object.Labels, node.Labels) { // other rules may select it now
		l.statuses.Schedule(at)
	}
	before := state.Object
	l.setNode(state, node, at)
	if before == nil || before.Annotations[ownership.Annotation] != node.Annotations[ownership.Annotation] {
		note, _ := ownership.Read(node.Annotations) // an unreadable record is reported below
		l.cfg.Metrics.addUnknownEntries("record", note.CountUnknown()-state.unknownEntries)
		state.unknownEntries = note.CountUnknown()
	}
	l.notePause(state)
	l.noteAttempts(at, state, before)
	l.nodeChanged(state, before, node)
	facts, err := observe.Node(node)
	facts.Previous, state.arrivedAt = state.arrivedAt, at
	l.addFacts(at, state, &facts)
	if l.cfg.NodeFacts != nil {
		l.cfg.NodeFacts.Observe(facts)
	}
	if !slices.Equal(state.Taints, facts.Taints) {
		state.Taints = facts.Taints
		l.MarkStatusesStale(at, state)
	}
	if unreadable := err != nil; unreadable != state.unreadable {
		state.unreadable = unreadable
		if unreadable {
			l.cfg.Logger.Error("record unreadable", "node", node.Name, "err", err)
			l.cfg.Event(treat.Event{Node: node, EventReason: treat.RecordUnreadable, Reason: triage.Reason{Code: triage.Unclear}, Failure: unreadableRecordMessage(err)})
		}
	}
	return facts
}

// notePause reports a pause of a node that cannot be read, once for each problem.
func (l *Engine) notePause(state *Node) {
	pause, _ := nodepause.Read(state.Object.Annotations)
	if pause.Problem != "" && pause.Problem != state.pauseProblem {
		l.cfg.Logger.Warn("pause unreadable", "node", state.Object.Name, "problem", pause.Problem)
		l.cfg.Event(treat.Event{Node: state.Object, EventReason: treat.PauseUnreadable, Message: pause.Problem})
	}
	state.pauseProblem = pause.Problem
}

// nodeChanged tells treatments and policies about a changed node.
func (l *Engine) nodeChanged(state *Node, before, after *corev1.Node) {
	for _, t := range l.tasks.treatments {
		t.NodeChanged(before, after)
	}
	for p := range implementing[NodeFollower](l.policies) {
		p.NodeChanged(state, before, after)
	}
}

// RemoveNode takes in that a node is gone.
func (l *Engine) RemoveNode(now time.Time, state *Node) {
	name := state.Object.Name
	l.core.Forget(now, name)
	if l.cfg.NodeFacts != nil {
		l.cfg.NodeFacts.Forget(name)
	}
	l.noteFindings(now, state, nil)
	l.statuses.Schedule(now)
	l.nodeChanged(state, state.Object, nil)
	l.cfg.Metrics.addUnknownEntries("record", -state.unknownEntries)
	l.nodeWriter.NodeGone(state)
	delete(l.nodeStates, name)
	l.leaveAttempts(now, state.Object)
	l.tasks.reconcile(now, name)
}

// ReconcileWoken reconciles every node whose plan may have changed. It does nothing until
// everything is loaded, because plans are incomplete before.
func (l *Engine) ReconcileWoken(now time.Time) {
	for l.loaded {
		name, ok := l.core.NextWoken()
		if !ok {
			return
		}
		if state := l.nodeStates[name]; state != nil {
			l.Reconcile(now, state)
		}
	}
}
