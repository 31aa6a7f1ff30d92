package controller

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// writers is how many nodes are written at a time.
	writers = 24
	// statusWriters is how many statuses are. They must not hold up a taint.
	statusWriters = 2
)

// loop is one reign: everything that is known, from the claim of the ledger to
// its loss. Only the goroutine of run touches it.
type loop struct {
	cfg   Config
	core  *triage.Core
	write *treat.Writer

	signal     <-chan struct{}
	nodeInbox  *inbox[*corev1.Node]
	setInbox   *inbox[*v1alpha1.ConditionSet]
	configMaps *configMapSets
	loaded     bool

	nodeStates map[string]*nodeState
	sets       map[string]*conditionSet
	validation setValidation
	unowned    unowned

	checks             checks
	repairs            repairs
	nodeClaims         nodeClaims
	leaseInbox         *optionalInbox[*coordinationv1.Lease] // of nodes
	treatments         map[string]*nodeTreatments
	treatmentsByObject map[string]*nodeTreatments // of remediation objects, by kind, namespace and name
	orphans            orphanedRemediations
	nextTreatmentDue   time.Time              // when a bed is to be looked at, zero for never
	taskQueue          queue[*nodeTreatments] // with something to do
	tasksRunning       int                    // errands that are being run
	taskResults        chan *taskResult

	startRequests chan startRequest // whether a treatment may still begin; nil while the loop does not run
	answered      []startRequest    // to be answered after the round
	stopped       chan struct{}     // closed when the loop has ended

	writeQueue    queue[*nodeState] // with something to do
	delayed       []*nodeState      // likewise, but not now
	writesRunning int
	writeResults  chan writeResult

	statusWritesRunning int
	statusResults       chan statusResult
	checkStatusResults  chan checkStatusResult
	repairStatusResults chan repairStatusResult

	statusAt   time.Time // when statuses are to be looked at, zero for never
	statusLast time.Time

	ledger       ledgerWriter
	requests     sync.WaitGroup
	liveness     *liveness
	retryLog     logLimiter
	refusalLog   logLimiter
	retiredRules map[triage.RuleID]time.Time // policies that are gone: when their counts may go
	startedAt    time.Time
}

// run works until ctx ends or the ledger is lost.
func (l *loop) run(ctx context.Context) error {
	defer l.requests.Wait()
	defer l.cfg.Metrics.leading.Set(0)
	defer l.cfg.Metrics.configMapsRead.Set(0)
	defer l.cfg.Metrics.unknown.Reset()
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	l.liveness.sleeping(time.Now())
	defer l.liveness.stopped()
	l.startRequests, l.stopped = make(chan startRequest), make(chan struct{})
	defer close(l.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.signal:
		case <-alarm.C:
		case o := <-l.writeResults:
			l.handleWriteResult(o)
		case o := <-l.statusResults:
			l.handleStatusResult(o)
		case o := <-l.checkStatusResults:
			l.handleCheckStatusResult(o)
		case o := <-l.repairStatusResults:
			l.handleRepairStatusResult(o)
		case r := <-l.taskResults:
			l.handleTaskResult(r)
		case q := <-l.startRequests:
			l.queueStartRequest(q)
		case o := <-l.configMaps.done:
			l.handleRevisionResult(time.Now(), o)
		case a := <-l.configMaps.access:
			l.handleAccess(a)
		case err := <-l.ledger.done:
			if err := l.snapshotStored(err); err != nil {
				return err
			}
		}
		rest := maxSleep
		if due := l.round(ctx); !due.IsZero() {
			rest = min(rest, max(0, time.Until(due)))
		}
		l.answerStartRequests()
		l.liveness.sleeping(time.Now().Add(rest))
		alarm.Reset(rest)
	}
}

// round takes in all that has come, brings every node that is concerned in line
// with its plan, and returns when the next round is due, zero if nothing will be.
func (l *loop) round(ctx context.Context) time.Time {
	now := time.Now()
	if !l.loaded && (!l.nodeInbox.hasSynced() || !l.setInbox.hasSynced() || !l.configMaps.canBeRead() && len(l.configMaps.denied) == 0 || !l.knowsRepairs(now) || !l.knowsChecks(now)) {
		return time.Time{} // the mailboxes will call
	}
	l.takeSets(now)
	if !l.loaded {
		l.validateSetsDue(now, false) // so that nodes meet rules, and not each rule all nodes
	}
	l.takeRepairs(now)
	l.takeClaims(now) // so that what is allowed is known before anything is decided
	l.updateAllowances(now)
	l.takeNodes(now)
	l.validateSetsDue(now, true)
	l.takeConfigMaps(now) // which are held against the sets that are followed
	l.validateSetsDue(now, true)
	proving := l.proveSets(now) // before a plan is carried out that the nodes speak against
	l.takeChecks(now)
	l.takeObjects(now) // of nodes that are known, and for rules that are not yet
	l.followChecks(now)
	l.followRepairs(now)
	if !l.loaded {
		if l.cfg.NodeFacts != nil {
			l.cfg.NodeFacts.Takeover()
		}
		l.restore(now)
		l.updateAllowances(now) // which it may have changed
		l.loaded = true
		l.checkOrphans(now)
		l.core.Loaded(now)
		for node := range l.treatments {
			l.reconcileTreatments(now, node)
		}
		l.cfg.Metrics.leading.Set(1)
		l.cfg.Logger.Info("loaded", "nodes", len(l.nodeStates), "conditionSets", len(l.sets), "nodeHealthChecks", len(l.checks.known), "repairRules", len(l.repairs.followed), "nodeClaims", len(l.nodeClaims.byName), "after", time.Since(l.startedAt).String())
	}
	l.checkOrphans(now)
	judging := l.validateWaiting(now)
	l.reportUnowned(now)
	l.core.Advance(now)
	l.reconcileWoken(now)
	l.retry(now)
	waking := l.runDueTreatments(now)
	l.reconcileWoken(now)
	l.startWrites(ctx, now)
	l.startTasks(ctx, now)
	l.reconcileWoken(now)
	allowing := l.updateAllowances(now)
	due := earliest(l.retry(now), earliest(allowing, l.writeLedger(ctx, now)))
	if l.writeQueue.len() > 0 && l.writesRunning < writers || l.taskQueue.len() > 0 && l.tasksRunning < maxConcurrentTasks { // a last look changed a plan
		due = now
	}
	due = earliest(earliest(due, l.writeRevisions(ctx, now)), l.writeStatuses(ctx, now))
	if at, ok := l.core.Deadline(); ok {
		due = earliest(due, at)
	}
	due = earliest(earliest(due, earliest(judging, proving)), earliest(earliest(waking, l.nextTreatmentDue), l.checks.medik8s.until()))
	return earliest(due, earliest(l.logSuppressed(now), l.forgetRetired(now)))
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// takeNodes lets the core know of the nodes that have changed.
func (l *loop) takeNodes(now time.Time) {
	letter := l.nodeInbox.take()
	if letter.listVersion != "" {
		for name, p := range l.nodeStates {
			// One that was read afresh may be younger than the list.
			if _, there := letter.changes[name]; !there && !olderVersion(letter.listVersion, p.node.ResourceVersion) {
				l.removeNode(now, p)
			}
		}
	}
	facts := make([]triage.Node, 0, len(letter.changes))
	for _, name := range slices.Sorted(maps.Keys(letter.changes)) {
		a := letter.changes[name]
		p := l.nodeStates[name]
		switch {
		case a.gone:
			if p != nil && !older(a.object, p.node) {
				l.removeNode(now, p)
			}
		case p != nil && !isNews(p.node, a.object): // our own write told us before the watch did
		case p != nil && nodewatch.Same(p.node, a.object): // a heartbeat
			p.setNode(a.object, p.seen)
		default:
			facts = append(facts, l.upsertNode(a.object, a.at))
		}
	}
	l.core.Observe(now, facts...)
	l.reobserveDirty(now)
	// Somebody else's taint that served may be gone, which is no fact of the core.
	for i := range facts {
		l.reconcileNode(now, l.nodeStates[facts[i].Name])
	}
}

// isNews says whether the watch brings another version than the one that is known,
// and none that is older. Versions that cannot be compared are news: it is the
// watch that goes on.
func isNews(known, brought *corev1.Node) bool {
	return known.ResourceVersion != brought.ResourceVersion && !older(brought, known)
}

// older says whether a is an older version than b.
func older(a, b *corev1.Node) bool { return olderVersion(a.ResourceVersion, b.ResourceVersion) }

// olderVersion says the same of two versions of one resource, which count upwards.
func olderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// upsertNode takes over a newer version of a node.
func (l *loop) upsertNode(node *corev1.Node, at time.Time) triage.Node {
	p := l.nodeStates[node.Name]
	if p == nil {
		p = &nodeState{}
		l.nodeStates[node.Name] = p
	}
	if p.node == nil || !maps.Equal(p.node.Labels, node.Labels) { // another set may select it now
		l.lookAtStatuses(at)
	}
	before := p.node
	l.nodeClaims.link(before, node)
	p.setNode(node, at)
	if before == nil || before.Annotations[ownership.Annotation] != node.Annotations[ownership.Annotation] {
		note, _ := ownership.Read(node.Annotations) // unreadable: that is told below
		l.cfg.Metrics.addUnknownEntries("record", note.CountUnknown()-p.unknown)
		p.unknown = note.CountUnknown()
	}
	if before != nil { // which may have had another machine
		l.recountNode(before)
	}
	l.recountNode(node)
	facts, err := observe.Node(node)
	l.addTreatmentFacts(at, p, &facts)
	l.unowned.update(p, unownedOn(node))
	l.validation.changed, l.validation.toProve, l.configMaps.changed = true, true, true
	if l.cfg.NodeFacts != nil {
		l.cfg.NodeFacts.Observe(facts)
	}
	if !slices.Equal(p.ours, facts.Taints) {
		p.ours = facts.Taints
		l.restate(at, p)
	}
	if unreadable := err != nil; unreadable != p.unreadable {
		p.unreadable = unreadable
		if unreadable {
			l.cfg.Logger.Error("record unreadable", "node", node.Name, "err", err)
			l.cfg.Event(treat.Event{Node: node, Reason: triage.Reason{Code: triage.Unclear}, Failure: unreadableRecord(err)})
		}
	}
	return facts
}

func (l *loop) removeNode(now time.Time, p *nodeState) {
	name := p.node.Name
	l.core.Forget(now, name)
	l.validation.changed, l.validation.toProve, l.configMaps.changed = true, true, true
	if l.cfg.NodeFacts != nil {
		l.cfg.NodeFacts.Forget(name)
	}
	l.noteFindings(now, p, nil)
	l.lookAtStatuses(now)
	for _, policy := range p.shadowed {
		l.repairs.noteShadowed(policy, name, false)
	}
	l.unowned.update(p, nil)
	l.nodeClaims.unlink(p.node)
	l.cfg.Metrics.addUnknownEntries("record", -p.unknown)
	p.terminatedBy = triage.RuleID{}
	l.recountNode(p.node)
	p.gone = true
	delete(l.nodeStates, name)
	l.reconcileTreatments(now, name)
}

// takeSets takes in the policies that have changed.
func (l *loop) takeSets(now time.Time) {
	letter := l.setInbox.take()
	if letter.listVersion != "" {
		for name, pol := range l.sets {
			if _, there := letter.changes[name]; !there && pol.isInAPI() {
				l.removeSet(now, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(letter.changes)) {
		if a := letter.changes[name]; a.gone {
			l.removeSet(now, name)
		} else {
			l.followSet(now, a.object)
		}
	}
	if l.validation.due && !l.configMaps.judgeAt.IsZero() { // what has changed may have been in a ConfigMap's way
		l.configMaps.judgeAt, l.configMaps.changed = now, true
	}
}

// reconcileWoken looks at every node whose plan may ask for something else than
// before. Until everything is known, no plan is what it will be.
func (l *loop) reconcileWoken(now time.Time) {
	for l.loaded {
		name, ok := l.core.NextWoken()
		if !ok {
			return
		}
		if p := l.nodeStates[name]; p != nil {
			l.reconcileNode(now, p)
		}
	}
}
