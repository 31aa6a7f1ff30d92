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
	"github.com/resourcestack/autohealer/internal/ownership"
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

// nodeState is a node and what goes on with it.
type nodeState struct {
	node *corev1.Node
	seen time.Time // when this version came

	// stage is where a write for the node is on its way.
	stage queueStage
	// granted is what the ledger names for the node, asks what its next page will.
	granted, asks grantedSlot
	named         bool
	// inFlight is the version of the node that a placement names which may be
	// made yet; empty for none. lost is the same of one whose answer never came.
	inFlight, lost string

	failure   writeFailure  // of the last write
	notBefore time.Time     // of the next write
	writeRate *rate.Limiter // of its writes; nil before the first
	// needsRead says that the node must be read afresh before anything else.
	needsRead bool

	// refusals is how often the server has refused writes of late.
	refusals         int
	refusedAt        time.Time
	refusalsReported map[triage.RuleID]reportedRefusal

	wanted          time.Time      // since when a taint is missing
	ours            []triage.Taint // that are on the node
	unowned         []taintID      // that are on the node, and that no record proves to be ours
	findings        []triage.Reason
	reported        map[triage.RuleID]triage.Code // what people know of it under health checks and repair policies
	reportedMessage map[triage.RuleID]string      // of those: by what they are held, without numbers

	assigned      assignedPolicies // by whom it may be terminated
	shadowed      []string         // repair policies that ask for it in vain
	started       bool             // it is, or was, ready for work
	rulesSeen     string           // what speaks against its termination, empty for nothing
	terminatedBy  triage.RuleID    // the rule that it is to be terminated by, zero for none
	outlivedClaim *outlivedClaim   // its claim, nil if that is there or was never marked

	unreadable      bool
	unknown         int              // entries and fields of its record that this version does not know
	unclearReported map[taintID]bool // taints of unclear ownership that people know of
	gone            bool
}

// grantedSlot is a right, written in the ledger, to take places with one write.
type grantedSlot struct {
	version string // of the node
	rules   []triage.RuleID
	unknown format.Unknown // what a newer version has named beside that
}

func (g grantedSlot) covers(version string, rules []triage.RuleID) bool {
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

// queueStage is where a node's next write stands.
type queueStage int

const (
	idle           queueStage = iota
	queued                    // something is to be done
	awaitingLedger            // waits for the ledger
	inFlight                  // sent, no answer yet
)

// setNode takes over a newer version of the node. A write that names an older one
// has been made, or never will be.
func (p *nodeState) setNode(node *corev1.Node, at time.Time) {
	if p.node != nil && p.node.UID != node.UID {
		p.granted, p.failure, p.notBefore, p.needsRead, p.wanted = grantedSlot{}, writeFailure{}, time.Time{}, false, time.Time{}
		p.refusals, p.refusalsReported, p.started = 0, nil, false
	}
	p.node, p.seen = node, at
	if p.inFlight != node.ResourceVersion {
		p.inFlight, p.lost = "", ""
	}
	if p.granted.version != node.ResourceVersion {
		p.granted = grantedSlot{}
	}
}

// confirmWrite notes that the last write was not made. One before it, with the same
// version, may be yet if its answer was lost.
func (p *nodeState) confirmWrite() { p.inFlight = p.lost }

// reconcileNode queues a node if there is something to do about it.
func (l *loop) reconcileNode(now time.Time, p *nodeState) {
	plan, ok := l.planOf(p)
	if !ok {
		return
	}
	l.noteFindings(now, p, plan.Findings)
	l.noteTermination(p, plan)
	l.reportWaits(p, plan.Findings)
	l.ensureTreatments(now, p, plan)
	if p.stage != idle {
		return // it is looked at again before it goes on
	}
	change, releases := l.next(p, plan, now)
	switch {
	case change != nil || p.needsRead:
		if change != nil && len(change.Placed) > 0 && p.wanted.IsZero() {
			p.wanted = p.seen
			if now.Sub(p.seen) > time.Second { // time alone made it due
				p.wanted = now
			}
		}
		p.stage = queued
		l.writeQueue.push(p)
	default:
		p.wanted = time.Time{}
		if p.inFlight == "" {
			p.granted = grantedSlot{}
		}
		l.clearFailure(now, p)
		l.forgetSlots(now, p, releases)
	}
}

// forgetSlots gives back the places of rules that have nothing on the node and nothing
// on its way there.
func (l *loop) forgetSlots(now time.Time, p *nodeState, rules []triage.RuleID) {
	for _, rule := range rules {
		l.core.Abandon(now, p.node.Name, rule, 0)
	}
}

// next returns the change that a plan asks for, or the rules whose place can be
// freed at once because nothing of theirs is on the node or on its way.
func (l *loop) next(p *nodeState, plan triage.Plan, now time.Time) (change *treat.Change, releases []triage.RuleID) {
	if change = treat.Prepare(p.node, plan, now); change != nil {
		return change, nil
	}
	if p.inFlight != "" { // the node is as planned, so nobody wants that write any more
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
func (l *loop) fence(p *nodeState) *treat.Change {
	return treat.Fence(p.node, l.cfg.Identity+"/"+p.node.ResourceVersion)
}

// startWrites sends what is queued, as far as there are writers.
func (l *loop) startWrites(ctx context.Context, now time.Time) {
	for tries := l.writeQueue.len(); tries > 0 && l.writesRunning < writers; tries-- {
		p := l.writeQueue.pop()
		p.stage = idle
		switch {
		case p.gone:
		case now.Before(p.notBefore):
			l.delayed = append(l.delayed, p)
			p.stage = queued
		case p.needsRead:
			l.writeNode(ctx, p, nil)
		default:
			l.startWrite(ctx, p, now)
		}
	}
	l.cfg.Metrics.waiting.Set(float64(l.writeQueue.len() + len(l.delayed) + len(l.ledger.queuedNodes) + len(l.ledger.writingNodes)))
}

// startWrite looks at the plan once more and sends what it asks for, by way of the
// ledger if it takes a place.
func (l *loop) startWrite(ctx context.Context, p *nodeState, now time.Time) {
	plan, ok := l.planOf(p)
	if !ok {
		return
	}
	l.noteFindings(now, p, plan.Findings)
	change, releases := l.next(p, plan, now)
	if change != nil && l.overBound(now, change.Takes) {
		if p.inFlight == "" {
			l.reconcileNode(now, p) // the plan is another now
			return
		}
		change = l.fence(p) // it may be one too many, and must not arrive
	}
	switch {
	case change == nil:
		l.forgetSlots(now, p, releases)
	case len(change.Takes) > 0 && !p.granted.covers(p.node.ResourceVersion, change.Takes):
		p.stage = awaitingLedger
		l.ledger.queuedNodes = append(l.ledger.queuedNodes, p)
	case !p.mayWrite(now):
		p.stage = queued
		l.delayed = append(l.delayed, p)
	default:
		if len(change.Takes) > 0 {
			p.inFlight = p.node.ResourceVersion
		}
		l.writeNode(ctx, p, change)
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
func (l *loop) unsent(rule triage.RuleID) []*nodeState {
	since := map[*nodeState]time.Time{}
	for _, p := range l.nodeStates {
		for _, finding := range p.findings {
			if finding.Rule == rule && p.stage != inFlight && p.inFlight == "" {
				since[p] = finding.Since
			}
		}
	}
	return slices.SortedFunc(maps.Keys(since), func(a, b *nodeState) int {
		return cmp.Or(since[b].Compare(since[a]), strings.Compare(b.node.Name, a.node.Name))
	})
}

// mayWrite says whether the node's pace allows a write now, and puts it off if not.
func (p *nodeState) mayWrite(now time.Time) bool {
	if p.writeRate == nil {
		p.writeRate = rate.NewLimiter(writesPerSecond, writesAtOnce)
	}
	if p.writeRate.AllowN(now, 1) {
		return true
	}
	p.notBefore = now.Add(time.Second / writesPerSecond)
	return false
}

// retry queues again what was put off until now, and returns when the next is due.
func (l *loop) retry(now time.Time) (due time.Time) {
	l.delayed = slices.DeleteFunc(l.delayed, func(p *nodeState) bool {
		if p.gone {
			return true
		}
		if now.Before(p.notBefore) {
			due = earliest(due, p.notBefore)
			return false
		}
		l.writeQueue.push(p)
		return true
	})
	return due
}

// writeResult is what became of a write.
type writeResult struct {
	state   *nodeState
	uid     types.UID     // of the node that was meant
	change  *treat.Change // nil if the node was only to be read
	version string
	result  treat.Result
	err     error
	fresh   *corev1.Node // the node as it is now, where that was asked for
	missing bool         // there is no such node
}

// deniedAsStale says whether a write was turned down as if the node had changed,
// although it has not: some admission webhook answers with a conflict.
func (o writeResult) deniedAsStale() bool {
	return o.change != nil && o.err != nil && o.fresh != nil && o.fresh.UID == o.uid && o.fresh.ResourceVersion == o.change.Node.ResourceVersion
}

// writeNode makes a change, or with none reads the node afresh.
func (l *loop) writeNode(ctx context.Context, p *nodeState, change *treat.Change) {
	p.stage = inFlight
	l.writesRunning++
	name, uid := p.node.Name, p.node.UID
	l.requests.Go(func() {
		o := writeResult{state: p, uid: uid, change: change, result: treat.Stale}
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if change != nil {
			o.version, o.err = l.write.Apply(ctx, change)
			o.result = treat.Classify(o.err)
		}
		if o.result == treat.Stale {
			var err error
			o.fresh, err = l.write.Fetch(ctx, name)
			if o.missing = apierrors.IsNotFound(err); err != nil && !o.missing {
				o.result, o.err = treat.Unknown, err
			}
		}
		l.writeResults <- o
	})
}

// handleWriteResult takes in what became of a write.
func (l *loop) handleWriteResult(o writeResult) {
	now := time.Now()
	p := o.state
	l.writesRunning--
	p.stage = idle
	l.cfg.Metrics.wrote("nodes", o.result)
	if p.gone {
		return
	}
	switch o.result {
	case treat.Made:
		l.writeDone(now, p, o)
	case treat.Stale:
		p.needsRead = false
		if o.deniedAsStale() {
			p.confirmWrite()
			l.writeRefused(now, p, o)
			break
		}
		l.nodeRefreshed(now, p, o)
	case treat.Busy:
		p.confirmWrite()
		l.backOff(now, p, o)
	case treat.Refused:
		p.confirmWrite()
		l.writeRefused(now, p, o)
	case treat.Unknown:
		p.needsRead, p.lost = true, p.inFlight
		l.backOff(now, p, o)
	}
	if !p.gone {
		l.reconcileNode(now, p)
		l.restate(now, p)
	}
}

// writeDone takes over a change without waiting for the watch to tell of it.
func (l *loop) writeDone(now time.Time, p *nodeState, o writeResult) {
	p.notBefore, p.needsRead = time.Time{}, false
	l.clearFailure(now, p)
	after := o.change.Made(o.version)
	if older(p.node, after) {
		l.core.Observe(now, l.upsertNode(after, now))
	}
	l.reportChange(now, p, o.change)
}

// nodeRefreshed takes over a node that was read afresh.
func (l *loop) nodeRefreshed(now time.Time, p *nodeState, o writeResult) {
	switch {
	case o.missing && p.node.UID == o.uid: // else it has been made again meanwhile
		l.removeNode(now, p)
	case o.missing:
	case older(p.node, o.fresh):
		l.core.Observe(now, l.upsertNode(nodewatch.Trim(o.fresh), now))
	}
}

// backOff puts off the next write of a node, longer with every failure.
func (l *loop) backOff(now time.Time, p *nodeState, o writeResult) {
	isNews := p.failure.add(o.result, o.err)
	wait := backOff(p.failure.tries)
	p.notBefore = now.Add(wait)
	if isNews && l.retryLog.allows(now) {
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

// writeRefused gives the places back that the server does not let the change take,
// and says so.
func (l *loop) writeRefused(now time.Time, p *nodeState, o writeResult) {
	if now.Sub(p.refusedAt) > refusalHeld {
		p.refusals = 0
	}
	p.refusals++
	p.refusedAt = now
	wait := growing(p.refusals, firstRefusedRetry, lastRefusedRetry)
	isNews := p.failure.add(o.result, o.err)
	if isNews && len(o.change.Placed)+len(o.change.Removed) == 0 && l.refusalLog.allows(now) { // there is no set to complain to
		l.cfg.Logger.Error("write refused", "node", p.node.Name, "err", o.err)
	}
	if len(o.change.Takes) == 0 || p.inFlight != "" {
		p.notBefore = now.Add(wait)
	} else { // NoSchedule in its place is another write, which may be accepted
		for _, rule := range o.change.Takes {
			l.core.Abandon(now, p.node.Name, rule, wait)
		}
		p.failure = writeFailure{}
	}
	for _, placed := range o.change.Placed {
		l.reportRefusal(now, p, placed.Rule, placed.Reason, "could not be placed: "+o.err.Error())
	}
	for _, removed := range o.change.Removed {
		if !slices.ContainsFunc(o.change.Placed, func(placed triage.PlannedTaint) bool { return placed.Rule == removed.Rule }) {
			l.reportRefusal(now, p, removed.Rule, removed.Reason, removed.Key+":"+removed.Effect.String()+" could not be removed: "+o.err.Error())
		}
	}
}

// reportChange lets people know of a change that was made.
func (l *loop) reportChange(now time.Time, p *nodeState, change *treat.Change) {
	told := map[triage.RuleID]bool{}
	for _, placed := range change.Placed {
		told[placed.Rule] = true
		if placed.Reason.Code != triage.FellBack { // what was refused may have been the stronger one
			delete(p.refusalsReported, placed.Rule)
		}
		l.cfg.Metrics.placed.WithLabelValues(placed.Rule.Name, placed.Effect.String()).Inc()
		l.cfg.Logger.Info("taint placed", "node", p.node.Name, "key", placed.Key, "effect", placed.Effect.String(), "reason", placed.Reason.String())
		l.cfg.Event(treat.Event{Node: p.node, Policy: treat.AboutSet(l.setOf(placed.Rule)), Reason: placed.Reason})
	}
	if len(change.Placed) > 0 && !p.wanted.IsZero() {
		l.cfg.Metrics.latency.Observe(now.Sub(p.wanted).Seconds())
	}
	p.wanted = time.Time{}
	for _, removed := range change.Removed {
		if !told[removed.Rule] {
			delete(p.refusalsReported, removed.Rule)
		}
		l.cfg.Metrics.removed.WithLabelValues(removed.Rule.Name, removed.Effect.String()).Inc()
		if l.sets[removed.Rule.Name] == nil {
			l.retire(now, removed.Rule)
		}
		l.cfg.Logger.Info("taint removed", "node", p.node.Name, "key", removed.Key, "effect", removed.Effect.String(), "reason", removed.Reason.String())
		if told[removed.Rule] {
			continue // it was exchanged, which has been told
		}
		word := treat.Event{Node: p.node, Policy: treat.AboutSet(l.setOf(removed.Rule)), Reason: removed.Reason}
		if pol := l.sets[removed.Rule.Name]; pol != nil && pol.err != nil {
			word.Failure = "its taint is removed, because the set is not accepted: " + pol.err.Error()
		}
		l.cfg.Event(word)
	}
}

func unreadableRecord(err error) string {
	return "what was noted here cannot be read, so no taint on this node counts as ours (" + err.Error() + "); " +
		"remove the annotation " + ownership.Annotation + " and the taints that are not wanted"
}

// queue is a queue.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) pop() T {
	item := q.items[q.head]
	clear(q.items[q.head : q.head+1])
	q.head++
	if q.head > len(q.items)/2 {
		q.items, q.head = q.items[:copy(q.items, q.items[q.head:])], 0
	}
	return item
}
