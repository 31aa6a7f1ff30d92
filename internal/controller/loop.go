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
	"github.com/resourcestack/autohealer/internal/record"
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

	signal <-chan struct{}
	nodes  *mailbox[*corev1.Node]
	sets   *mailbox[*v1alpha1.ConditionSet]
	sheets *sheets
	loaded bool

	patients map[string]*patient
	policies map[string]*policy
	vetting  vetting
	unowned  unowned

	checks   checks
	repairs  repairs
	machines machines
	leases   *inquiry[*coordinationv1.Lease] // of nodes
	beds     map[string]*bed
	homes    map[string]*bed // of remediation objects, by kind, namespace and name
	remains  remains
	bedAlarm time.Time  // when a bed is to be looked at, zero for never
	errands  fifo[*bed] // with something to do
	nursing  int        // errands that are being run
	reports  chan *errandReport

	questions chan question // whether a treatment may still begin; nil while the loop does not run
	asked     []question    // to be answered after the round
	stopped   chan struct{} // closed when the loop has ended

	queue    fifo[*patient] // with something to do
	delayed  []*patient     // likewise, but not now
	writing  int
	outcomes chan outcome

	statusWriting  int
	statuses       chan statusOutcome
	checkStatuses  chan checkStatusOutcome
	policyStatuses chan policyStatusOutcome

	statusAt   time.Time // when statuses are to be looked at, zero for never
	statusLast time.Time

	pages     pages
	requests  sync.WaitGroup
	pulse     *pulse
	putOffs   teller
	refusals  teller
	retired   map[triage.RuleID]time.Time // policies that are gone: when their counts may go
	startedAt time.Time
}

// run works until ctx ends or the ledger is lost.
func (l *loop) run(ctx context.Context) error {
	defer l.requests.Wait()
	defer l.cfg.Metrics.leading.Set(0)
	defer l.cfg.Metrics.sheetsRead.Set(0)
	defer l.cfg.Metrics.unknown.Reset()
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	l.pulse.rests(time.Now())
	defer l.pulse.ends()
	l.questions, l.stopped = make(chan question), make(chan struct{})
	defer close(l.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.signal:
		case <-alarm.C:
		case o := <-l.outcomes:
			l.heed(o)
		case o := <-l.statuses:
			l.heedStatus(o)
		case o := <-l.checkStatuses:
			l.heedCheckStatus(o)
		case o := <-l.policyStatuses:
			l.heedPolicyStatus(o)
		case r := <-l.reports:
			l.heedErrand(r)
		case q := <-l.questions:
			l.hear(q)
		case o := <-l.sheets.done:
			l.heedShelf(time.Now(), o)
		case a := <-l.sheets.access:
			l.heedAccess(a)
		case err := <-l.pages.done:
			if err := l.turnPage(err); err != nil {
				return err
			}
		}
		rest := longestRest
		if due := l.round(ctx); !due.IsZero() {
			rest = min(rest, max(0, time.Until(due)))
		}
		l.answerQuestions()
		l.pulse.rests(time.Now().Add(rest))
		alarm.Reset(rest)
	}
}

// round takes in all that has come, brings every node that is concerned in line
// with its plan, and returns when the next round is due, zero if nothing will be.
func (l *loop) round(ctx context.Context) time.Time {
	now := time.Now()
	if !l.loaded && (!l.nodes.hasSynced() || !l.sets.hasSynced() || !l.sheets.canBeRead() && len(l.sheets.denied) == 0 || !l.knowsRepairs(now) || !l.knowsChecks(now)) {
		return time.Time{} // the mailboxes will call
	}
	l.takeSets(now)
	if !l.loaded {
		l.vetSets(now, false) // so that nodes meet rules, and not each rule all nodes
	}
	l.takeRepairs(now)
	l.takeClaims(now) // so that what is allowed is known before anything is decided
	l.tellAllowances(now)
	l.takeNodes(now)
	l.vetSets(now, true)
	l.takeSheets(now) // which are held against the sets that are followed
	l.vetSets(now, true)
	proving := l.proveSets(now) // before a plan is carried out that the nodes speak against
	l.takeChecks(now)
	l.takeObjects(now) // of nodes that are known, and for rules that are not yet
	l.followChecks(now)
	l.followRepairs(now)
	if !l.loaded {
		if l.cfg.Census != nil {
			l.cfg.Census.Take()
		}
		l.takeInheritance(now)
		l.tellAllowances(now) // which it may have changed
		l.loaded = true
		l.lookAtRemains(now)
		l.core.Loaded(now)
		for node := range l.beds {
			l.tend(now, node)
		}
		l.cfg.Metrics.leading.Set(1)
		l.cfg.Logger.Info("loaded", "nodes", len(l.patients), "conditionSets", len(l.policies), "nodeHealthChecks", len(l.checks.known), "repairRules", len(l.repairs.followed), "nodeClaims", len(l.machines.known), "after", time.Since(l.startedAt).String())
	}
	l.lookAtRemains(now)
	judging := l.judgeWaiting(now)
	l.reportUnowned(now)
	l.core.Advance(now)
	l.considerWoken(now)
	l.retry(now)
	waking := l.wakeBeds(now)
	l.considerWoken(now)
	l.dispatch(ctx, now)
	l.dispatchErrands(ctx, now)
	l.considerWoken(now)
	allowing := l.tellAllowances(now)
	due := earliest(l.retry(now), earliest(allowing, l.writePage(ctx, now)))
	if l.queue.len() > 0 && l.writing < writers || l.errands.len() > 0 && l.nursing < nurses { // a last look changed a plan
		due = now
	}
	due = earliest(earliest(due, l.tendShelf(ctx, now)), l.writeStatuses(ctx, now))
	if at, ok := l.core.Deadline(); ok {
		due = earliest(due, at)
	}
	due = earliest(earliest(due, earliest(judging, proving)), earliest(earliest(waking, l.bedAlarm), l.checks.peer.until()))
	return earliest(due, earliest(l.sumUp(now), l.forgetRetired(now)))
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// takeNodes lets the core know of the nodes that have changed.
func (l *loop) takeNodes(now time.Time) {
	letter := l.nodes.take()
	if letter.whole != "" {
		for name, p := range l.patients {
			// One that was read afresh may be younger than the list.
			if _, there := letter.latest[name]; !there && !olderVersion(letter.whole, p.node.ResourceVersion) {
				l.forget(now, p)
			}
		}
	}
	facts := make([]triage.Node, 0, len(letter.latest))
	for _, name := range slices.Sorted(maps.Keys(letter.latest)) {
		a := letter.latest[name]
		p := l.patients[name]
		switch {
		case a.gone:
			if p != nil && !older(a.object, p.node) {
				l.forget(now, p)
			}
		case p != nil && !isNews(p.node, a.object): // our own write told us before the watch did
		case p != nil && nodewatch.Same(p.node, a.object): // a heartbeat
			p.know(a.object, p.seen)
		default:
			facts = append(facts, l.learn(a.object, a.at))
		}
	}
	l.core.Observe(now, facts...)
	l.attendStirred(now)
	// Somebody else's taint that served may be gone, which is no fact of the core.
	for i := range facts {
		l.consider(now, l.patients[facts[i].Name])
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

// learn takes over a newer version of a node.
func (l *loop) learn(node *corev1.Node, at time.Time) triage.Node {
	p := l.patients[node.Name]
	if p == nil {
		p = &patient{}
		l.patients[node.Name] = p
	}
	if p.node == nil || !maps.Equal(p.node.Labels, node.Labels) { // another set may select it now
		l.lookAtStatuses(at)
	}
	before := p.node
	l.machines.tie(before, node)
	p.know(node, at)
	if before == nil || before.Annotations[record.Annotation] != node.Annotations[record.Annotation] {
		note, _ := record.Read(node.Annotations) // unreadable: that is told below
		l.cfg.Metrics.keptMore("record", note.CountUnknown()-p.unknown)
		p.unknown = note.CountUnknown()
	}
	if before != nil { // which may have had another machine
		l.weighNode(before)
	}
	l.weighNode(node)
	facts, err := observe.Node(node)
	l.addCare(at, p, &facts)
	l.unowned.update(p, unownedOn(node))
	l.vetting.moved, l.vetting.toProve, l.sheets.moved = true, true, true
	if l.cfg.Census != nil {
		l.cfg.Census.Observe(facts)
	}
	if !slices.Equal(p.ours, facts.Taints) {
		p.ours = facts.Taints
		l.restate(at, p)
	}
	if unreadable := err != nil; unreadable != p.unreadable {
		p.unreadable = unreadable
		if unreadable {
			l.cfg.Logger.Error("record unreadable", "node", node.Name, "err", err)
			l.cfg.Announce(treat.Announcement{Node: node, Reason: triage.Reason{Code: triage.Unclear}, Trouble: unreadableRecord(err)})
		}
	}
	return facts
}

func (l *loop) forget(now time.Time, p *patient) {
	name := p.node.Name
	l.core.Forget(now, name)
	l.vetting.moved, l.vetting.toProve, l.sheets.moved = true, true, true
	if l.cfg.Census != nil {
		l.cfg.Census.Forget(name)
	}
	l.noteFindings(now, p, nil)
	l.lookAtStatuses(now)
	for _, policy := range p.shadowed {
		l.repairs.shadow(policy, name, false)
	}
	l.unowned.update(p, nil)
	l.machines.untie(p.node)
	l.cfg.Metrics.keptMore("record", -p.unknown)
	p.terminatedBy = triage.RuleID{}
	l.weighNode(p.node)
	p.gone = true
	delete(l.patients, name)
	l.tend(now, name)
}

// takeSets takes in the policies that have changed.
func (l *loop) takeSets(now time.Time) {
	letter := l.sets.take()
	if letter.whole != "" {
		for name, pol := range l.policies {
			if _, there := letter.latest[name]; !there && pol.isInAPI() {
				l.dropSet(now, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(letter.latest)) {
		if a := letter.latest[name]; a.gone {
			l.dropSet(now, name)
		} else {
			l.followSet(now, a.object)
		}
	}
	if l.vetting.due && !l.sheets.judgeAt.IsZero() { // what has changed may have been in a ConfigMap's way
		l.sheets.judgeAt, l.sheets.moved = now, true
	}
}

// considerWoken looks at every node whose plan may ask for something else than
// before. Until everything is known, no plan is what it will be.
func (l *loop) considerWoken(now time.Time) {
	for l.loaded {
		name, ok := l.core.NextWoken()
		if !ok {
			return
		}
		if p := l.patients[name]; p != nil {
			l.consider(now, p)
		}
	}
}
