package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/budget"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// triesInARow is how many nodes of a pool are replaced one after the other because
	// they do not become ready. After that one is tried at a time, with growing waits: a
	// bad image is not cured by launching it again.
	triesInARow = 3
	// longestTryWait bounds those waits. The first is twice as long as a node may take to
	// become ready, of which its replacement has used up one half when it is due, and each
	// that follows twice as long as the one before.
	longestTryWait = 6 * time.Hour
)

// share is what one claim adds to the counts of its pool.
type share struct {
	initialised int // its node is, or was, ready for work
	disrupted   int // and it is being taken out of service
	claims      int // it has a machine, or will have
	going       int // and it is being taken out of service
	starting    int // its node was never ready for work
	trying      int // it is decided that its node does not become ready, and not yet marked; see isTry
}

func (s *share) add(other share, sign int) {
	s.initialised += sign * other.initialised
	s.disrupted += sign * other.disrupted
	s.claims += sign * other.claims
	s.going += sign * other.going
	s.starting += sign * other.starting
	s.trying += sign * other.trying
}

// headcount is how many claims a pool has, in the words of Karpenter's budgets, and how
// often in a row its nodes have not become ready.
type headcount struct {
	share
	tries tries
	dirty bool
	alarm time.Time // when the clock alone changes what is allowed, zero for never
}

// tries are the nodes of a pool that were replaced because they had not become ready,
// since one has.
type tries struct {
	failed   int
	last     time.Time
	template string // a hash of what they were made of, empty if nobody knows
}

// next is when the next one may be replaced, where a node may take so long to become
// ready.
func (t tries) next(timeout time.Duration) time.Time {
	if t.failed < triesInARow {
		return time.Time{}
	}
	wait := 2 * timeout
	for range t.failed - triesInARow {
		if wait = 2 * wait; wait >= longestTryWait {
			break
		}
	}
	return t.last.Add(max(2*timeout, min(wait, longestTryWait)))
}

func (r *repairs) countOf(pool string) *headcount {
	count := r.counts[pool]
	if count == nil {
		count = &headcount{}
		r.counts[pool] = count
	}
	return count
}

// weigh counts a claim as it is now.
func (l *loop) weigh(c *claim) {
	count := l.repairs.countOf(c.pool())
	if now := l.shareOf(c); now != c.share {
		count.add(c.share, -1)
		count.add(now, 1)
		c.share, count.dirty = now, true
	}
	if ready := c.Condition(karpenter.Initialized); count.tries.failed > 0 && l.isTry(c) && c.Is(karpenter.Initialized) && !ready.LastTransitionTime.Time.Before(count.tries.last.Truncate(time.Second)) {
		l.cfg.Logger.Info("pool has nodes that become ready again", "nodePool", c.pool(), "nodeClaim", c.Name, "failed", count.tries.failed)
		l.endHold(c.pool(), count, "NodeClaim "+c.Name+" has become ready")
	}
}

// weighPool counts all claims of a pool as they are now.
func (l *loop) weighPool(name string) {
	for _, c := range l.machines.known {
		if c.pool() == name {
			l.weigh(c)
		}
	}
}

// endHold has the nodes of a pool tried as if none had failed. An heir that reads of
// them would hold the pool once more, so the page is written again.
func (l *loop) endHold(pool string, count *headcount, words string) {
	if count.isHeld() {
		l.tellOfRelease(pool, words)
	}
	count.tries, count.dirty = tries{}, true
	l.pages.isOutdated = true
}

// heedTemplate ends the hold of a pool whose nodes are made of something else now than
// those that have failed.
func (l *loop) heedTemplate(name string) {
	count := l.repairs.countOf(name)
	now := l.templateOf(name)
	switch {
	case count.tries.failed == 0 || now == "" || now == count.tries.template:
	case count.tries.template == "": // nobody knew when they failed
		count.tries.template = now
		l.pages.isOutdated = true
	default:
		l.endHold(name, count, "its template has changed")
	}
}

// isTry says whether what becomes of a claim's node tells something about the pool's
// present template. A claim that Karpenter made before the template changed does not:
// neither does its failure count towards the next hold, nor does its success end one.
// It is replaced like all others, because its replacement is made from the new template.
// Karpenter makes no further claim from the old one, so this cannot go on for long.
// Where one of the two hashes is unknown the claim counts.
func (l *loop) isTry(c *claim) bool {
	made, now := c.Annotations[karpenter.HashAnnotation], l.templateOf(c.pool())
	return made == "" || now == "" || made == now
}

// templateOf is a hash of what a pool's nodes are made of, empty if nobody knows.
func (l *loop) templateOf(name string) string {
	if pool := l.repairs.pools[name]; pool != nil {
		return pool.Annotations[karpenter.HashAnnotation]
	}
	return ""
}

func (l *loop) unweigh(c *claim) {
	count := l.repairs.countOf(c.pool())
	count.add(c.share, -1)
	c.share, count.dirty = share{}, true
}

// shareOf says what a claim adds. Karpenter's own repair counts the nodes that once were
// initialised, and one that it restarts, which is not meanwhile; those that never were are
// counted by whoever replaces them. One that is not ready is not for that reason taken out
// of service: a sick node must not block its own repair. A claim whose machine is going has
// been paid for. One that is decided here counts as taken out of service before it is.
func (l *loop) shareOf(c *claim) (s share) {
	if c.Is(karpenter.InstanceTerminating) {
		return s
	}
	s.claims = 1
	_, isGoing := c.Disrupted()
	isGoing = isGoing || c.isEnding() || c.mark != nil
	isInitialised := c.Is(karpenter.Rebooting)
	for _, name := range l.machines.nodesOf(c) {
		p := l.patients[name]
		if p == nil {
			continue
		}
		if !l.hasStarted(p) {
			s.starting = 1
		}
		isInitialised = isInitialised || p.node.Labels[karpenter.InitializedLabel] == "true"
		if isRepair(p.terminatedBy) {
			isGoing = true
			if p.terminatedBy.Kind == triage.ReadyTimeout && c.mark == nil && l.isTry(c) {
				s.trying = 1
			}
		}
	}
	if isGoing {
		s.going = 1
	}
	if isInitialised {
		s.initialised, s.disrupted = 1, s.going
	}
	return s
}

// weighNode counts the claim of a node as it is now.
func (l *loop) weighNode(node *corev1.Node) {
	for _, c := range l.machines.byID[node.Spec.ProviderID] {
		l.weigh(c)
	}
}

// noteTermination counts a node that is to be terminated, or no longer is.
func (l *loop) noteTermination(p *patient, plan triage.Plan) {
	var by triage.RuleID
	if t := plan.Treatment; t != nil && isRepair(t.Rule) {
		by = t.Rule
	}
	if by != p.terminatedBy {
		p.terminatedBy = by
		l.weighNode(p.node)
	}
}

// tellAllowances tells the core how many more nodes of a pool may be terminated, where
// that has changed. What the core decides in answer is counted before the next is told.
func (l *loop) tellAllowances(now time.Time) (due time.Time) {
	l.considerWoken(now)
	for name, count := range l.repairs.counts {
		if !count.dirty && (count.alarm.IsZero() || now.Before(count.alarm)) {
			due = earliest(due, count.alarm)
			continue
		}
		due = earliest(due, l.tellAllowance(now, name, count))
	}
	for _, count := range l.repairs.counts {
		if count.dirty { // by what another pool's nodes had to say
			due = now
		}
	}
	return due
}

func (l *loop) tellAllowance(now time.Time, name string, count *headcount) (due time.Time) {
	for tell := true; tell; tell = count.dirty {
		count.dirty, count.alarm = false, time.Time{}
		if count.share == (share{}) && l.repairs.pools[name] == nil {
			l.pages.isOutdated = l.pages.isOutdated || count.tries.failed > 0
			delete(l.repairs.counts, name)
			l.cfg.Metrics.forgetPool(name)
			return time.Time{}
		}
		for _, id := range slices.SortedFunc(maps.Keys(l.repairs.followed), compareRules) {
			if l.repairs.followed[id].pool != name {
				continue
			}
			l.considerWoken(now)
			allowed, changes := l.allowance(now, id, name, count)
			count.alarm = earliest(count.alarm, changes)
			l.core.Allow(now, id, allowed)
		}
		l.considerWoken(now)
	}
	return count.alarm
}

// allowance says how many more nodes of a pool a rule may begin to terminate, why no
// more, and when the clock alone changes that.
func (l *loop) allowance(now time.Time, id triage.RuleID, name string, count *headcount) (*triage.Allowance, time.Time) {
	allowed, changes := l.budgeted(now, id, name, count)
	if id.Kind != triage.ReadyTimeout || l.repairs.pools[name] == nil {
		return allowed, changes
	}
	if left, words, until := count.tries.left(now, name, l.timeoutFor(id), count.trying); allowed == nil || left < allowed.Places {
		return &triage.Allowance{Places: left, Words: words}, earliest(changes, until)
	}
	return allowed, changes
}

// budgeted says the same by the budgets of the pool alone.
func (l *loop) budgeted(now time.Time, id triage.RuleID, name string, count *headcount) (*triage.Allowance, time.Time) {
	if name == "" { // a claim that somebody has made without a pool has no budgets, and nor have nodes without a claim
		return nil, time.Time{}
	}
	pool := l.repairs.pools[name]
	if pool == nil {
		return &triage.Allowance{Words: "NodePool " + name + " is gone"}, time.Time{}
	}
	total, going := count.initialised, count.disrupted
	if id.Kind == triage.ReadyTimeout {
		total, going = count.claims, count.going
	}
	budgets := pool.Spec.Disruption.Budgets
	if total == 0 {
		budgets = absolute(budgets)
	}
	room, words, changes := budget.Room(now, name, budgets, karpenter.Unhealthy, total, going)
	if room > 0 && room < budget.Unbounded { // who has to wait does so when that is used up
		_, words, _ = budget.Room(now, name, budgets, karpenter.Unhealthy, total, going+room)
	}
	if room == budget.Unbounded {
		return nil, changes
	}
	return &triage.Allowance{Places: room, Words: words}, changes
}

// absolute leaves the shares out: where nothing is in service there is nothing for them
// to be of, and nothing to protect. One of 0% says that nobody is to go, and one that
// cannot be read lets nothing through.
func absolute(budgets []karpenter.Budget) []karpenter.Budget {
	kept := []karpenter.Budget{}
	for _, b := range budgets {
		if share, is := strings.CutSuffix(b.Nodes, "%"); !is || strings.Trim(share, "0") == "" || !budget.IsReadable(b) {
			kept = append(kept, b)
		}
	}
	return kept
}

// left says how many more nodes may be replaced that have not become ready.
func (t tries) left(now time.Time, pool string, timeout time.Duration, trying int) (places int, words string, until time.Time) {
	if t.failed < triesInARow {
		return max(0, triesInARow-t.failed-trying), fmt.Sprintf("%d nodes of NodePool %s in a row have not become ready and are being replaced; it is to be seen what comes of them", triesInARow, pool), time.Time{}
	}
	next := t.next(timeout)
	words = fmt.Sprintf("NodePool %s is held: %d nodes in a row have not become ready, which another node will not cure; the next one is tried at %s. If you have repaired the pool, delete its NodeClaims that are not ready", pool, t.failed, next.UTC().Format(time.RFC3339))
	if now.Before(next) {
		return 0, words, next
	}
	return max(0, 1-trying), words, time.Time{}
}

// isHeld says whether a pool is held because its nodes do not become ready.
func (c *headcount) isHeld() bool { return c.tries.failed >= triesInARow }
