package controller

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/record"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// writeTimeout is how long a write may go without an answer.
	writeTimeout = 10 * time.Second
	// firstRetry and lastRetry bound the wait after a write that was not made.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// writesAtOnce and writesPerSecond bound how fast a flapping node is written.
	writesAtOnce    = 10
	writesPerSecond = 1
	// firstRefusedRetry and lastRefusedRetry bound the wait after a write that the
	// server does not accept: somebody has to change something before it will.
	firstRefusedRetry = 5 * time.Second
	lastRefusedRetry  = 5 * time.Minute
	// refusalHeld is how long a refusal counts when there is another one.
	refusalHeld = 2 * lastRefusedRetry
)

// patient is a node and what goes on with it.
type patient struct {
	node *corev1.Node
	seen time.Time // when this version came

	// stage is where a write for the node is on its way.
	stage stage
	// granted is what the ledger names for the node, asks what its next page will.
	granted, asks grant
	named         bool
	// onItsWay is the version of the node that a placement names which may be
	// made yet; empty for none. lost is the same of one whose answer never came.
	onItsWay, lost string

	trouble   trouble       // of the last write
	notBefore time.Time     // of the next write
	pace      *rate.Limiter // of its writes; nil before the first
	// doubt says that the node must be read afresh before anything else.
	doubt bool

	// refusals is how often the server has refused writes of late.
	refusals   int
	refusedAt  time.Time
	complaints map[triage.RuleID]complaint

	wanted    time.Time      // since when a taint is missing
	ours      []triage.Taint // that are on the node
	unowned   []taintID      // that are on the node, and that no record proves to be ours
	findings  []triage.Reason
	told      map[triage.RuleID]triage.Code // what people know of it under health checks and repair policies
	toldWords map[triage.RuleID]string      // of those: by what they are held, without numbers

	governed     governance    // by whom it may be terminated
	shadowed     []string      // repair policies that ask for it in vain
	started      bool          // it is, or was, ready for work
	spokenFor    string        // what speaks against its termination, empty for nothing
	terminatedBy triage.RuleID // the rule that it is to be terminated by, zero for none
	outlives     *parting      // its claim, nil if that is there or was never marked

	unreadable  bool
	unknown     int              // entries and fields of its record that this version does not know
	toldUnclear map[taintID]bool // taints of unclear ownership that people know of
	gone        bool
}

// grant is a right, written in the ledger, to take places with one write.
type grant struct {
	version string // of the node
	rules   []triage.RuleID
	unknown format.Unknown // what a newer version has named beside that
}

func (g grant) covers(version string, rules []triage.RuleID) bool {
	if g.version != version {
		return false
	}
	for _, r := range rules {
		if !slices.Contains(g.rules, r) {
			return false
		}
	}
	return true
}

// stage is where a node's next write stands.
type stage int

const (
	idle    stage = iota
	queued        // something is to be done
	entered       // waits for the ledger
	written       // sent, no answer yet
)

// know takes over a newer version of the node. A write that names an older one
// has been made, or never will be.
func (p *patient) know(node *corev1.Node, at time.Time) {
	if p.node != nil && p.node.UID != node.UID {
		p.granted, p.trouble, p.notBefore, p.doubt, p.wanted = grant{}, trouble{}, time.Time{}, false, time.Time{}
		p.refusals, p.complaints, p.started = 0, nil, false
	}
	p.node, p.seen = node, at
	if p.onItsWay != node.ResourceVersion {
		p.onItsWay, p.lost = "", ""
	}
	if p.granted.version != node.ResourceVersion {
		p.granted = grant{}
	}
}

// answered notes that the last write was not made. One before it, with the same
// version, may be yet if its answer was lost.
func (p *patient) answered() { p.onItsWay = p.lost }

// consider queues a node if there is something to do about it.
func (l *loop) consider(now time.Time, p *patient) {
	plan, ok := l.planOf(p)
	if !ok {
		return
	}
	l.noteFindings(now, p, plan.Findings)
	l.noteTermination(p, plan)
	l.tellWaits(p, plan.Findings)
	l.admit(now, p, plan)
	if p.stage != idle {
		return // it is looked at again before it goes on
	}
	change, releases := l.next(p, plan, now)
	switch {
	case change != nil || p.doubt:
		if change != nil && len(change.Placed) > 0 && p.wanted.IsZero() {
			p.wanted = p.seen
			if now.Sub(p.seen) > time.Second { // time alone made it due
				p.wanted = now
			}
		}
		p.stage = queued
		l.queue.push(p)
	default:
		p.wanted = time.Time{}
		if p.onItsWay == "" {
			p.granted = grant{}
		}
		l.isOver(now, p)
		l.free(now, p, releases)
	}
}

// free gives back the places of rules that have nothing on the node and nothing
// on its way there.
func (l *loop) free(now time.Time, p *patient, rules []triage.RuleID) {
	for _, rule := range rules {
		l.core.Abandon(now, p.node.Name, rule, 0)
	}
}

// next returns the change that a plan asks for, or the rules whose place can be
// freed at once because nothing of theirs is on the node or on its way.
func (l *loop) next(p *patient, plan triage.Plan, now time.Time) (change *treat.Change, releases []triage.RuleID) {
	if change = treat.Prepare(p.node, plan, now); change != nil {
		return change, nil
	}
	if p.onItsWay != "" { // the node is as planned, so nobody wants that write any more
		return l.fence(p), nil
	}
	for _, reason := range plan.Release {
		if reason.Rule.Kind == triage.ConditionSet { // what else there is stands elsewhere
			releases = append(releases, reason.Rule)
		}
	}
	return nil, releases
}

// fence gives the node a new version. Its token is another one every time: the
// same twice would change nothing.
func (l *loop) fence(p *patient) *treat.Change {
	return treat.Fence(p.node, l.cfg.Identity+"/"+p.node.ResourceVersion)
}

// dispatch sends what is queued, as far as there are writers.
func (l *loop) dispatch(ctx context.Context, now time.Time) {
	for tries := l.queue.len(); tries > 0 && l.writing < writers; tries-- {
		p := l.queue.pop()
		p.stage = idle
		switch {
		case p.gone:
		case now.Before(p.notBefore):
			l.delayed = append(l.delayed, p)
			p.stage = queued
		case p.doubt:
			l.send(ctx, p, nil)
		default:
			l.sendNext(ctx, p, now)
		}
	}
	l.cfg.Metrics.waiting.Set(float64(l.queue.len() + len(l.delayed) + len(l.pages.entering) + len(l.pages.asked)))
}

// sendNext looks at the plan once more and sends what it asks for, by way of the
// ledger if it takes a place.
func (l *loop) sendNext(ctx context.Context, p *patient, now time.Time) {
	plan, ok := l.planOf(p)
	if !ok {
		return
	}
	l.noteFindings(now, p, plan.Findings)
	change, releases := l.next(p, plan, now)
	if change != nil && l.overBound(now, change.Takes) {
		if p.onItsWay == "" {
			l.consider(now, p) // the plan is another now
			return
		}
		change = l.fence(p) // it may be one too many, and must not arrive
	}
	switch {
	case change == nil:
		l.free(now, p, releases)
	case len(change.Takes) > 0 && !p.granted.covers(p.node.ResourceVersion, change.Takes):
		p.stage = entered
		l.pages.entering = append(l.pages.entering, p)
	case !p.mayWrite(now):
		p.stage = queued
		l.delayed = append(l.delayed, p)
	default:
		if len(change.Takes) > 0 {
			p.onItsWay = p.node.ResourceVersion
		}
		l.send(ctx, p, change)
	}
}

// overBound looks once more, before a place is taken for good, whether there are
// more places taken than there may be now: a bound may have been lowered, or
// nodes may have gone. If so, as many as are too many are called off, of those
// that have not been sent, and the one that has waited longest is the last.
func (l *loop) overBound(now time.Time, takes []triage.RuleID) (over bool) {
	for _, rule := range takes {
		if !l.isOverBound(rule) {
			continue
		}
		over = true
		for _, p := range l.unsent(rule) {
			l.core.Abandon(now, p.node.Name, rule, 0)
			if !l.isOverBound(rule) {
				break
			}
		}
	}
	return over
}

func (l *loop) isOverBound(rule triage.RuleID) bool {
	counts, ok := l.core.Population(rule)
	return ok && counts.Cap >= 0 && counts.Pooled > counts.Cap
}

// unsent returns the patients that a rule has something to say about and that
// nothing has been sent for, the longest-waiting last.
func (l *loop) unsent(rule triage.RuleID) []*patient {
	since := map[*patient]time.Time{}
	for _, p := range l.patients {
		for _, finding := range p.findings {
			if finding.Rule == rule && p.stage != written && p.onItsWay == "" {
				since[p] = finding.Since
			}
		}
	}
	return slices.SortedFunc(maps.Keys(since), func(a, b *patient) int {
		return cmp.Or(since[b].Compare(since[a]), strings.Compare(b.node.Name, a.node.Name))
	})
}

// mayWrite says whether the node's pace allows a write now, and puts it off if not.
func (p *patient) mayWrite(now time.Time) bool {
	if p.pace == nil {
		p.pace = rate.NewLimiter(writesPerSecond, writesAtOnce)
	}
	if p.pace.AllowN(now, 1) {
		return true
	}
	p.notBefore = now.Add(time.Second / writesPerSecond)
	return false
}

// retry queues again what was put off until now, and returns when the next is due.
func (l *loop) retry(now time.Time) (due time.Time) {
	l.delayed = slices.DeleteFunc(l.delayed, func(p *patient) bool {
		if p.gone {
			return true
		}
		if now.Before(p.notBefore) {
			due = earliest(due, p.notBefore)
			return false
		}
		l.queue.push(p)
		return true
	})
	return due
}

// outcome is what became of a write.
type outcome struct {
	patient *patient
	uid     types.UID     // of the node that was meant
	change  *treat.Change // nil if the node was only to be read
	version string
	fate    treat.Fate
	err     error
	fresh   *corev1.Node // the node as it is now, where that was asked for
	missing bool         // there is no such node
}

// deniedAsStale says whether a write was turned down as if the node had changed,
// although it has not: some admission webhook answers with a conflict.
func (o outcome) deniedAsStale() bool {
	return o.change != nil && o.err != nil && o.fresh != nil && o.fresh.UID == o.uid && o.fresh.ResourceVersion == o.change.Node.ResourceVersion
}

// send makes a change, or with none reads the node afresh.
func (l *loop) send(ctx context.Context, p *patient, change *treat.Change) {
	p.stage = written
	l.writing++
	name, uid := p.node.Name, p.node.UID
	l.requests.Go(func() {
		o := outcome{patient: p, uid: uid, change: change, fate: treat.Stale}
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if change != nil {
			o.version, o.err = l.write.Apply(ctx, change)
			o.fate = treat.FateOf(o.err)
		}
		if o.fate == treat.Stale {
			var err error
			o.fresh, err = l.write.Fetch(ctx, name)
			if o.missing = apierrors.IsNotFound(err); err != nil && !o.missing {
				o.fate, o.err = treat.Unsure, err
			}
		}
		l.outcomes <- o
	})
}

// heed takes in what became of a write.
func (l *loop) heed(o outcome) {
	now := time.Now()
	p := o.patient
	l.writing--
	p.stage = idle
	l.cfg.Metrics.wrote("nodes", o.fate)
	if p.gone {
		return
	}
	switch o.fate {
	case treat.Made:
		l.made(now, p, o)
	case treat.Stale:
		p.doubt = false
		if o.deniedAsStale() {
			p.answered()
			l.refused(now, p, o)
			break
		}
		l.refreshed(now, p, o)
	case treat.Busy:
		p.answered()
		l.backOff(now, p, o)
	case treat.Refused:
		p.answered()
		l.refused(now, p, o)
	case treat.Unsure:
		p.doubt, p.lost = true, p.onItsWay
		l.backOff(now, p, o)
	}
	if !p.gone {
		l.consider(now, p)
		l.restate(now, p)
	}
}

// made takes over a change without waiting for the watch to tell of it.
func (l *loop) made(now time.Time, p *patient, o outcome) {
	p.notBefore, p.doubt = time.Time{}, false
	l.isOver(now, p)
	after := o.change.Made(o.version)
	if older(p.node, after) {
		l.core.Observe(now, l.learn(after, now))
	}
	l.tell(now, p, o.change)
}

// refreshed takes over a node that was read afresh.
func (l *loop) refreshed(now time.Time, p *patient, o outcome) {
	switch {
	case o.missing && p.node.UID == o.uid: // else it has been made again meanwhile
		l.forget(now, p)
	case o.missing:
	case older(p.node, o.fresh):
		l.core.Observe(now, l.learn(nodewatch.Trim(o.fresh), now))
	}
}

// backOff puts off the next write of a node, longer with every failure.
func (l *loop) backOff(now time.Time, p *patient, o outcome) {
	isNews := p.trouble.meets(o.fate, o.err)
	wait := backOff(p.trouble.tries)
	p.notBefore = now.Add(wait)
	if isNews && l.putOffs.names(now) {
		l.cfg.Logger.Warn("write put off", "node", p.node.Name, "retryIn", wait.String(), "err", o.err)
	}
}

func backOff(tries int) time.Duration { return growing(tries, firstRetry, lastRetry) }

// growing returns a wait that doubles with every try, about first to begin with
// and never more than last.
func growing(tries int, first, last time.Duration) time.Duration {
	wait := min(first<<min(tries-1, 10), last)
	return wait/2 + rand.N(wait/2)
}

// refused gives the places back that the server does not let the change take,
// and says so.
func (l *loop) refused(now time.Time, p *patient, o outcome) {
	if now.Sub(p.refusedAt) > refusalHeld {
		p.refusals = 0
	}
	p.refusals++
	p.refusedAt = now
	wait := growing(p.refusals, firstRefusedRetry, lastRefusedRetry)
	isNews := p.trouble.meets(o.fate, o.err)
	if isNews && len(o.change.Placed)+len(o.change.Removed) == 0 && l.refusals.names(now) { // there is no set to complain to
		l.cfg.Logger.Error("write refused", "node", p.node.Name, "err", o.err)
	}
	if len(o.change.Takes) == 0 || p.onItsWay != "" {
		p.notBefore = now.Add(wait)
	} else { // NoSchedule in its place is another write, which may be accepted
		for _, rule := range o.change.Takes {
			l.core.Abandon(now, p.node.Name, rule, wait)
		}
		p.trouble = trouble{}
	}
	for _, placed := range o.change.Placed {
		l.complain(now, p, placed.Rule, placed.Reason, "could not be placed: "+o.err.Error())
	}
	for _, removed := range o.change.Removed {
		if !slices.ContainsFunc(o.change.Placed, func(placed triage.PlannedTaint) bool { return placed.Rule == removed.Rule }) {
			l.complain(now, p, removed.Rule, removed.Reason, removed.Key+":"+removed.Effect.String()+" could not be removed: "+o.err.Error())
		}
	}
}

// tell lets people know of a change that was made.
func (l *loop) tell(now time.Time, p *patient, change *treat.Change) {
	told := map[triage.RuleID]bool{}
	for _, placed := range change.Placed {
		told[placed.Rule] = true
		if placed.Reason.Code != triage.FellBack { // what was refused may have been the stronger one
			delete(p.complaints, placed.Rule)
		}
		l.cfg.Metrics.placed.WithLabelValues(placed.Rule.Name, placed.Effect.String()).Inc()
		l.cfg.Logger.Info("taint placed", "node", p.node.Name, "key", placed.Key, "effect", placed.Effect.String(), "reason", placed.Reason.String())
		l.cfg.Announce(treat.Announcement{Node: p.node, Policy: treat.AboutSet(l.setOf(placed.Rule)), Reason: placed.Reason})
	}
	if len(change.Placed) > 0 && !p.wanted.IsZero() {
		l.cfg.Metrics.latency.Observe(now.Sub(p.wanted).Seconds())
	}
	p.wanted = time.Time{}
	for _, removed := range change.Removed {
		if !told[removed.Rule] {
			delete(p.complaints, removed.Rule)
		}
		l.cfg.Metrics.removed.WithLabelValues(removed.Rule.Name, removed.Effect.String()).Inc()
		if l.policies[removed.Rule.Name] == nil {
			l.retire(now, removed.Rule)
		}
		l.cfg.Logger.Info("taint removed", "node", p.node.Name, "key", removed.Key, "effect", removed.Effect.String(), "reason", removed.Reason.String())
		if told[removed.Rule] {
			continue // it was exchanged, which has been told
		}
		word := treat.Announcement{Node: p.node, Policy: treat.AboutSet(l.setOf(removed.Rule)), Reason: removed.Reason}
		if pol := l.policies[removed.Rule.Name]; pol != nil && pol.err != nil {
			word.Trouble = "its taint is removed, because the set is not accepted: " + pol.err.Error()
		}
		l.cfg.Announce(word)
	}
}

func unreadableRecord(err error) string {
	return "what was noted here cannot be read, so no taint on this node counts as ours (" + err.Error() + "); " +
		"remove the annotation " + record.Annotation + " and the taints that are not wanted"
}

// fifo is a queue.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(item T) { q.items = append(q.items, item) }

func (q *fifo[T]) pop() T {
	item := q.items[q.head]
	clear(q.items[q.head : q.head+1])
	q.head++
	if q.head > len(q.items)/2 {
		q.items, q.head = q.items[:copy(q.items, q.items[q.head:])], 0
	}
	return item
}
