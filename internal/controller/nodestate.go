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
	// writeTimeout limits a write, including its answer.
	writeTimeout = 10 * time.Second
	// firstRetry and lastRetry bound the backoff after a failed write.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// writesAtOnce and writesPerSecond bound the writes to one flapping node.
	writesAtOnce    = 10
	writesPerSecond = 1
	// firstRefusedRetry and lastRefusedRetry bound the backoff after a write that the API
	// server rejected. A user has to change something before it succeeds.
	firstRefusedRetry = 5 * time.Second
	lastRefusedRetry  = 5 * time.Minute
	// refusalHeld is how long a refusal counts towards the backoff of the next one.
	refusalHeld = 2 * lastRefusedRetry
)

// nodeState is a node and the state of its writes.
type nodeState struct {
	node *corev1.Node
	seen time.Time // when this version arrived

	// stage is the progress of the next write for the node.
	stage queueStage
	// granted is the slot that the ledger names for the node; asks is the slot requested
	// in its next snapshot.
	granted, asks grantedSlot
	named         bool
	// inFlight is the node version that an unfinished taint write names, empty for none.
	// lost is the same for a write whose answer never came.
	inFlight, lost string

	failure   writeFailure  // of the last write
	notBefore time.Time     // earliest time of the next write
	writeRate *rate.Limiter // limits writes; nil before the first
	// needsRead requires a read of the node before any write.
	needsRead bool

	// refusals counts recent rejections by the API server.
	refusals         int
	refusedAt        time.Time
	refusalsReported map[triage.RuleID]reportedRefusal

	wanted          time.Time      // since when a taint is missing
	ours            []triage.Taint // our taints on the node
	unowned         []taintID      // taints on the node that no ownership record proves to be ours
	findings        []triage.Reason
	reported        map[triage.RuleID]triage.Code // last reported code per health check and repair policy
	reportedMessage map[triage.RuleID]string      // last reported cause per policy, without numbers

	assigned      assignedPolicies // policies that may terminate the node
	shadowed      []string         // repair policies that select the node without effect
	started       bool             // the node is or was ready for work
	rulesSeen     string           // the repair rules that apply, and what blocks them; compared to detect changes
	terminatedBy  triage.RuleID    // the rule that plans to terminate the node, zero for none
	outlivedClaim *outlivedClaim   // the deleted claim of this node; nil if the claim exists or was never marked

	unreadable      bool
	unknown         int              // entries and fields of the record that this version does not know
	unclearReported map[taintID]bool // taints of unclear ownership that were reported
	gone            bool
}

// grantedSlot is the right, stored in the ledger, to take slots with one write.
type grantedSlot struct {
	version string // of the node
	rules   []triage.RuleID
	unknown format.Unknown // fields that a newer version of the controller stored
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

// queueStage is the progress of the next write for a node.
type queueStage int

const (
	idle           queueStage = iota
	queued                    // has something to do
	awaitingLedger            // waits until the ledger stores its slot
	inFlight                  // sent, not answered
)

// setNode stores a newer version of the node. A write that names an older version has
// either succeeded already or never will.
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

// confirmWrite records that the last write failed for certain. An earlier write with the
// same version may still succeed if its answer was lost.
func (p *nodeState) confirmWrite() { p.inFlight = p.lost }

// reconcileNode queues a node if its plan differs from the node.
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
		return // checked again before the write
	}
	change, releases := l.next(p, plan, now)
	switch {
	case change != nil || p.needsRead:
		if change != nil && len(change.Placed) > 0 && p.wanted.IsZero() {
			p.wanted = p.seen
			if now.Sub(p.seen) > time.Second { // due by time, not by a change
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

// forgetSlots frees the slots of rules that have no taint on the node and no write in
// flight.
func (l *loop) forgetSlots(now time.Time, p *nodeState, rules []triage.RuleID) {
	for _, rule := range rules {
		l.core.Abandon(now, p.node.Name, rule, 0)
	}
}

// next returns the change that a plan asks for. Without a change it returns the rules
// whose slot is free at once, because they have no taint on the node or in flight.
func (l *loop) next(p *nodeState, plan triage.Plan, now time.Time) (change *treat.Change, releases []triage.RuleID) {
	if change = treat.Prepare(p.node, plan, now); change != nil {
		return change, nil
	}
	if p.inFlight != "" { // the node matches its plan, so the write in flight is not wanted any more
		return l.fence(p), nil
	}
	for _, reason := range plan.Release {
		if reason.Rule.Kind == triage.ConditionSet { // treatments release their slots themselves
			releases = append(releases, reason.Rule)
		}
	}
	return nil, releases
}

// fence gives the node a new version. Its token differs every time, because the same
// token twice would change nothing.
func (l *loop) fence(p *nodeState) *treat.Change {
	return treat.Fence(p.node, l.cfg.Identity+"/"+p.node.ResourceVersion)
}

// startWrites starts queued writes, up to the limit of concurrent writes.
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

// startWrite checks the plan again and sends its change, after the ledger has stored the
// slots that the change takes.
func (l *loop) startWrite(ctx context.Context, p *nodeState, now time.Time) {
	plan, ok := l.planOf(p)
	if !ok {
		return
	}
	l.noteFindings(now, p, plan.Findings)
	change, releases := l.next(p, plan, now)
	if change != nil && l.overBound(now, change.Takes) {
		if p.inFlight == "" {
			l.reconcileNode(now, p) // the plan has changed
			return
		}
		change = l.fence(p) // it may exceed the bound and must not arrive
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

// overBound checks, before a slot is taken for good, whether a rule has more slots taken
// than its bound allows now. The bound may have been lowered, or nodes may have gone. If
// so, overBound cancels the surplus among the writes that have not been sent. The node
// that has waited longest is cancelled last.
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

// unsent returns the nodes with a finding of the rule for which no write has been sent.
// The node that has waited longest is last.
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

// mayWrite reports whether the rate limit of the node allows a write, and delays it if
// not.
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

// retry queues delayed writes that are due, and returns when the next one is.
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

// writeResult is the result of a write.
type writeResult struct {
	state   *nodeState
	uid     types.UID     // of the intended node
	change  *treat.Change // nil if the node was only read
	version string
	result  treat.Result
	err     error
	fresh   *corev1.Node // the current node, if it was read
	missing bool         // the node does not exist
}

// deniedAsStale reports whether the API server answered with a conflict although the node
// is unchanged. Some admission webhooks deny requests with a conflict.
func (o writeResult) deniedAsStale() bool {
	return o.change != nil && o.err != nil && o.fresh != nil && o.fresh.UID == o.uid && o.fresh.ResourceVersion == o.change.Node.ResourceVersion
}

// writeNode applies a change. A nil change reads the node.
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

// handleWriteResult takes in the result of a write.
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

// writeDone stores the new node state without waiting for the watch.
func (l *loop) writeDone(now time.Time, p *nodeState, o writeResult) {
	p.notBefore, p.needsRead = time.Time{}, false
	l.clearFailure(now, p)
	after := o.change.Made(o.version)
	if older(p.node, after) {
		l.core.Observe(now, l.upsertNode(after, now))
	}
	l.reportChange(now, p, o.change)
}

// nodeRefreshed stores a node that was read directly.
func (l *loop) nodeRefreshed(now time.Time, p *nodeState, o writeResult) {
	switch {
	case o.missing && p.node.UID == o.uid: // otherwise the node has been created again
		l.removeNode(now, p)
	case o.missing:
	case older(p.node, o.fresh):
		l.core.Observe(now, l.upsertNode(nodewatch.Trim(o.fresh), now))
	}
}

// backOff delays the next write of a node, longer with every failure.
func (l *loop) backOff(now time.Time, p *nodeState, o writeResult) {
	isNews := p.failure.add(o.result, o.err)
	wait := backOff(p.failure.tries)
	p.notBefore = now.Add(wait)
	if isNews && l.retryLog.allows(now) {
		l.cfg.Logger.Warn("write put off", "node", p.node.Name, "retryIn", wait.String(), "err", o.err)
	}
}

func backOff(tries int) time.Duration { return growing(tries, firstRetry, lastRetry) }

// growing returns a randomized delay that doubles with every try, from about first up to
// last.
func growing(tries int, first, last time.Duration) time.Duration {
	wait := min(first<<min(tries-1, 10), last)
	return wait/2 + rand.N(wait/2)
}

// writeRefused frees the slots of a change that the API server rejected, and reports the
// rejection.
func (l *loop) writeRefused(now time.Time, p *nodeState, o writeResult) {
	if now.Sub(p.refusedAt) > refusalHeld {
		p.refusals = 0
	}
	p.refusals++
	p.refusedAt = now
	wait := growing(p.refusals, firstRefusedRetry, lastRefusedRetry)
	isNews := p.failure.add(o.result, o.err)
	if isNews && len(o.change.Placed)+len(o.change.Removed) == 0 && l.refusalLog.allows(now) { // no set to report it on
		l.cfg.Logger.Error("write refused", "node", p.node.Name, "err", o.err)
	}
	if len(o.change.Takes) == 0 || p.inFlight != "" {
		p.notBefore = now.Add(wait)
	} else { // NoSchedule instead of NoExecute is another write, which may be accepted
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

// reportChange publishes Events, logs and metrics for a change.
func (l *loop) reportChange(now time.Time, p *nodeState, change *treat.Change) {
	told := map[triage.RuleID]bool{}
	for _, placed := range change.Placed {
		told[placed.Rule] = true
		if placed.Reason.Code != triage.FellBack { // the refused taint may have been the stronger one
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
			continue // replaced by another taint, reported above
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

// queue is a first-in, first-out queue.
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
