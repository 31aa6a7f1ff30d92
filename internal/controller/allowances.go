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
	// maxLaunchFailures is how many nodes of a pool are replaced one after the other because
	// they do not become ready. After that one is tried at a time, with growing waits: a
	// bad image is not cured by launching it again.
	maxLaunchFailures = 3
	// maxLaunchWait bounds those waits. The first is twice as long as a node may take to
	// become ready, of which its replacement has used up one half when it is due, and each
	// that follows twice as long as the one before.
	maxLaunchWait = 6 * time.Hour
)

// claimCounts is what one claim adds to the counts of its pool.
type claimCounts struct {
	initialised int // its node is, or was, ready for work
	disrupted   int // and it is being taken out of service
	claims      int // it has a machine, or will have
	going       int // and it is being taken out of service
	starting    int // its node was never ready for work
	trying      int // it is decided that its node does not become ready, and not yet marked; see isTry
}

func (s *claimCounts) add(other claimCounts, sign int) {
	s.initialised += sign * other.initialised
	s.disrupted += sign * other.disrupted
	s.claims += sign * other.claims
	s.going += sign * other.going
	s.starting += sign * other.starting
	s.trying += sign * other.trying
}

// poolCounts is how many claims a pool has, in the words of Karpenter's budgets, and how
// often in a row its nodes have not become ready.
type poolCounts struct {
	claimCounts
	failures launchFailures
	dirty    bool
	due      time.Time // when the clock alone changes what is allowed, zero for never
}

// launchFailures are the nodes of a pool that were replaced because they had not become ready,
// since one has.
type launchFailures struct {
	failed   int
	last     time.Time
	template string // a hash of what they were made of, empty if nobody knows
}

// next is when the next one may be replaced, where a node may take so long to become
// ready.
func (t launchFailures) next(timeout time.Duration) time.Time {
	if t.failed < maxLaunchFailures {
		return time.Time{}
	}
	wait := 2 * timeout
	for range t.failed - maxLaunchFailures {
		if wait = 2 * wait; wait >= maxLaunchWait {
			break
		}
	}
	return t.last.Add(max(2*timeout, min(wait, maxLaunchWait)))
}

func (r *repairs) countOf(pool string) *poolCounts {
	count := r.counts[pool]
	if count == nil {
		count = &poolCounts{}
		r.counts[pool] = count
	}
	return count
}

// recountDirty counts a claim as it is now.
func (l *loop) recountDirty(c *nodeClaim) {
	count := l.repairs.countOf(c.pool())
	if now := l.countsOf(c); now != c.counts {
		count.add(c.counts, -1)
		count.add(now, 1)
		c.counts, count.dirty = now, true
	}
	if ready := c.Condition(karpenter.Initialized); count.failures.failed > 0 && l.isLaunchFailure(c) && c.Is(karpenter.Initialized) && !ready.LastTransitionTime.Time.Before(count.failures.last.Truncate(time.Second)) {
		l.cfg.Logger.Info("pool has nodes that become ready again", "nodePool", c.pool(), "nodeClaim", c.Name, "failed", count.failures.failed)
		l.endHold(c.pool(), count, "NodeClaim "+c.Name+" has become ready")
	}
}

// recountPool counts all claims of a pool as they are now.
func (l *loop) recountPool(name string) {
	for _, c := range l.nodeClaims.byName {
		if c.pool() == name {
			l.recountDirty(c)
		}
	}
}

// endHold has the nodes of a pool tried as if none had failed. An heir that reads of
// them would hold the pool once more, so the page is written again.
func (l *loop) endHold(pool string, count *poolCounts, words string) {
	if count.isHeld() {
		l.reportPoolReleased(pool, words)
	}
	count.failures, count.dirty = launchFailures{}, true
	l.ledger.isOutdated = true
}

// noteTemplate ends the hold of a pool whose nodes are made of something else now than
// those that have failed.
func (l *loop) noteTemplate(name string) {
	count := l.repairs.countOf(name)
	now := l.templateOf(name)
	switch {
	case count.failures.failed == 0 || now == "" || now == count.failures.template:
	case count.failures.template == "": // nobody knew when they failed
		count.failures.template = now
		l.ledger.isOutdated = true
	default:
		l.endHold(name, count, "its template has changed")
	}
}

// isLaunchFailure says whether what becomes of a claim's node tells something about the pool's
// present template. A claim that Karpenter made before the template changed does not:
// neither does its failure count towards the next hold, nor does its success end one.
// It is replaced like all others, because its replacement is made from the new template.
// Karpenter makes no further claim from the old one, so this cannot go on for long.
// Where one of the two hashes is unknown the claim counts.
func (l *loop) isLaunchFailure(c *nodeClaim) bool {
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

func (l *loop) forgetPoolCounts(c *nodeClaim) {
	count := l.repairs.countOf(c.pool())
	count.add(c.counts, -1)
	c.counts, count.dirty = claimCounts{}, true
}

// countsOf says what a claim adds. Karpenter's own repair counts the nodes that once were
// initialised, and one that it restarts, which is not meanwhile; those that never were are
// counted by whoever replaces them. One that is not ready is not for that reason taken out
// of service: a sick node must not block its own repair. A claim whose machine is going has
// been paid for. One that is decided here counts as taken out of service before it is.
func (l *loop) countsOf(c *nodeClaim) (s claimCounts) {
	if c.Is(karpenter.InstanceTerminating) {
		return s
	}
	s.claims = 1
	_, isGoing := c.Disrupted()
	isGoing = isGoing || c.isEnding() || c.mark != nil
	isInitialised := c.Is(karpenter.Rebooting)
	for _, name := range l.nodeClaims.nodesOf(c) {
		p := l.nodeStates[name]
		if p == nil {
			continue
		}
		if !l.hasStarted(p) {
			s.starting = 1
		}
		isInitialised = isInitialised || p.node.Labels[karpenter.InitializedLabel] == "true"
		if isRepair(p.terminatedBy) {
			isGoing = true
			if p.terminatedBy.Kind == triage.ReadyTimeout && c.mark == nil && l.isLaunchFailure(c) {
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

// recountNode counts the claim of a node as it is now.
func (l *loop) recountNode(node *corev1.Node) {
	for _, c := range l.nodeClaims.byID[node.Spec.ProviderID] {
		l.recountDirty(c)
	}
}

// noteTermination counts a node that is to be terminated, or no longer is.
func (l *loop) noteTermination(p *nodeState, plan triage.Plan) {
	var by triage.RuleID
	if t := plan.Treatment; t != nil && isRepair(t.Rule) {
		by = t.Rule
	}
	if by != p.terminatedBy {
		p.terminatedBy = by
		l.recountNode(p.node)
	}
}

// updateAllowances tells the core how many more nodes of a pool may be terminated, where
// that has changed. What the core decides in answer is counted before the next is told.
func (l *loop) updateAllowances(now time.Time) (due time.Time) {
	l.reconcileWoken(now)
	for name, count := range l.repairs.counts {
		if !count.dirty && (count.due.IsZero() || now.Before(count.due)) {
			due = earliest(due, count.due)
			continue
		}
		due = earliest(due, l.updateAllowance(now, name, count))
	}
	for _, count := range l.repairs.counts {
		if count.dirty { // by what another pool's nodes had to say
			due = now
		}
	}
	return due
}

func (l *loop) updateAllowance(now time.Time, name string, count *poolCounts) (due time.Time) {
	for tell := true; tell; tell = count.dirty {
		count.dirty, count.due = false, time.Time{}
		if count.claimCounts == (claimCounts{}) && l.repairs.pools[name] == nil {
			l.ledger.isOutdated = l.ledger.isOutdated || count.failures.failed > 0
			delete(l.repairs.counts, name)
			l.cfg.Metrics.forgetPool(name)
			return time.Time{}
		}
		for _, id := range slices.SortedFunc(maps.Keys(l.repairs.followed), compareRules) {
			if l.repairs.followed[id].pool != name {
				continue
			}
			l.reconcileWoken(now)
			allowed, changes := l.allowance(now, id, name, count)
			count.due = earliest(count.due, changes)
			l.core.Allow(now, id, allowed)
		}
		l.reconcileWoken(now)
	}
	return count.due
}

// allowance says how many more nodes of a pool a rule may begin to terminate, why no
// more, and when the clock alone changes that.
func (l *loop) allowance(now time.Time, id triage.RuleID, name string, count *poolCounts) (*triage.Allowance, time.Time) {
	allowed, changes := l.disruptionAllowance(now, id, name, count)
	if id.Kind != triage.ReadyTimeout || l.repairs.pools[name] == nil {
		return allowed, changes
	}
	if left, words, until := count.failures.left(now, name, l.timeoutFor(id), count.trying); allowed == nil || left < allowed.Places {
		return &triage.Allowance{Places: left, Words: words}, earliest(changes, until)
	}
	return allowed, changes
}

// disruptionAllowance says the same by the budgets of the pool alone.
func (l *loop) disruptionAllowance(now time.Time, id triage.RuleID, name string, count *poolCounts) (*triage.Allowance, time.Time) {
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
func (t launchFailures) left(now time.Time, pool string, timeout time.Duration, trying int) (places int, words string, until time.Time) {
	if t.failed < maxLaunchFailures {
		return max(0, maxLaunchFailures-t.failed-trying), fmt.Sprintf("%d nodes of NodePool %s in a row have not become ready and are being replaced; it is to be seen what comes of them", maxLaunchFailures, pool), time.Time{}
	}
	next := t.next(timeout)
	words = fmt.Sprintf("NodePool %s is held: %d nodes in a row have not become ready, which another node will not cure; the next one is tried at %s. If you have repaired the pool, delete its NodeClaims that are not ready", pool, t.failed, next.UTC().Format(time.RFC3339))
	if now.Before(next) {
		return 0, words, next
	}
	return max(0, 1-trying), words, time.Time{}
}

// isHeld says whether a pool is held because its nodes do not become ready.
func (c *poolCounts) isHeld() bool { return c.failures.failed >= maxLaunchFailures }
