package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/budget"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxLaunchFailures is how many nodes of a pool are replaced in a row because they do
	// not become Ready. After that the controller tries one node at a time with growing
	// waits, because launching a bad image again does not help.
	maxLaunchFailures = 3
	// maxLaunchWait limits those waits. The first wait is twice the ready timeout, and
	// the replacement has used up half of it when it is due. Each further wait is twice
	// the previous wait.
	maxLaunchWait = 6 * time.Hour
)

// claimCounts is what a claim adds to the counts of its pool.
type claimCounts struct {
	initialized     int // its node is or was ready for work
	disrupted       int // initialised, and being taken out of service
	claims          int // it has or will have an instance
	terminating     int // being taken out of service
	starting        int // its node was never ready for work
	pendingFailures int // its node's ready timeout has passed and the claim is not marked yet; see usesCurrentTemplate
}

func (s *claimCounts) add(other claimCounts, sign int) {
	s.initialized += sign * other.initialized
	s.disrupted += sign * other.disrupted
	s.claims += sign * other.claims
	s.terminating += sign * other.terminating
	s.starting += sign * other.starting
	s.pendingFailures += sign * other.pendingFailures
}

// poolCounts counts the claims of a pool as Karpenter's budgets do, and how many of its
// nodes in a row did not become Ready.
type poolCounts struct {
	claimCounts
	failures launchFailures
	dirty    bool
	due      time.Time // when time alone changes the allowance, zero for never
}

// launchFailures counts the nodes of a pool that were replaced because they did not
// become Ready, since the last node that did.
type launchFailures struct {
	failed   int
	last     time.Time
	template string // hash of the template they were made from, empty if unknown
}

// next returns when the next node may be replaced, given the ready timeout.
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

func (r *repairs) countsOf(pool string) *poolCounts {
	count := r.counts[pool]
	if count == nil {
		count = &poolCounts{}
		r.counts[pool] = count
	}
	return count
}

// recountClaim updates the counts for a claim.
func (r *repairs) recountClaim(c *nodeClaim) {
	count := r.countsOf(c.pool())
	if now := r.claimCounts(c); now != c.counts {
		count.add(c.counts, -1)
		count.add(now, 1)
		c.counts, count.dirty = now, true
	}
	if ready := c.Condition(karpenter.Initialized); count.failures.failed > 0 && r.usesCurrentTemplate(c) && c.Is(karpenter.Initialized) && !ready.LastTransitionTime.Time.Before(count.failures.last.Truncate(time.Second)) {
		r.engine.Logger().Info("pool has nodes that become ready again", "nodePool", c.pool(), "nodeClaim", c.Name, "failed", count.failures.failed)
		r.endHold(c.pool(), count, "NodeClaim "+c.Name+" has become ready")
	}
}

// recountPool updates the counts for all claims of a pool.
func (r *repairs) recountPool(name string) {
	for _, c := range r.engine.nodeClaims.byName {
		if c.pool() == name {
			r.recountClaim(c)
		}
	}
}

// endHold resets the launch failures of a pool. It requests a ledger snapshot, because
// the next leader would otherwise hold the pool again.
func (r *repairs) endHold(pool string, count *poolCounts, message string) {
	if count.isHeld() {
		r.reportPoolReleased(pool, message)
	}
	count.failures, count.dirty = launchFailures{}, true
	r.engine.RewriteLedger()
}

// checkTemplateChange ends the hold of a pool if its template has changed since the failures.
func (r *repairs) checkTemplateChange(name string) {
	count := r.countsOf(name)
	now := r.templateOf(name)
	switch {
	case count.failures.failed == 0 || now == "" || now == count.failures.template:
	case count.failures.template == "": // the template was unknown when they failed
		count.failures.template = now
		r.engine.RewriteLedger()
	default:
		r.endHold(name, count, "its template has changed")
	}
}

// usesCurrentTemplate reports whether the claim was made from the pool's current template. An
// older claim says nothing about it: its failure does not count towards the next hold,
// and its success does not end one. It is still replaced, because its replacement uses
// the new template. Karpenter makes no more claims from the old template, so this does
// not last. If a hash is unknown, the claim counts.
func (r *repairs) usesCurrentTemplate(c *nodeClaim) bool {
	made, now := c.Annotations[karpenter.HashAnnotation], r.templateOf(c.pool())
	return made == "" || now == "" || made == now
}

// templateOf returns a hash of the pool's template, empty if unknown.
func (r *repairs) templateOf(name string) string {
	if pool := r.pools[name]; pool != nil {
		return pool.Annotations[karpenter.HashAnnotation]
	}
	return ""
}

func (r *repairs) removeFromCounts(c *nodeClaim) {
	count := r.countsOf(c.pool())
	count.add(c.counts, -1)
	c.counts, count.dirty = claimCounts{}, true
}

// claimCounts returns what a claim adds. Karpenter's own repair counts nodes that were
// initialised once, including a node that it restarts. Nodes that were never initialised
// count for the ready timeout. A node that is not Ready still counts as in service: an
// unhealthy node must not block its own repair. A claim whose instance is terminating
// does not count. A claim that this controller plans to terminate counts as disrupted
// already.
func (r *repairs) claimCounts(c *nodeClaim) (s claimCounts) {
	if c.Is(karpenter.InstanceTerminating) {
		return s
	}
	s.claims = 1
	_, isGoing := c.Disrupted()
	isGoing = isGoing || c.isEnding() || c.mark != nil
	isInitialised := c.Is(karpenter.Rebooting)
	for _, name := range r.engine.nodeClaims.nodesOf(c) {
		state := r.engine.Node(name)
		if state == nil {
			continue
		}
		if !r.hasStarted(state) {
			s.starting = 1
		}
		isInitialised = isInitialised || state.Object.Labels[karpenter.InitializedLabel] == "true"
		if by := r.of(state).terminatedBy; isRepair(by) {
			isGoing = true
			if by.Kind == policykind.ReadyTimeout && c.mark == nil && r.usesCurrentTemplate(c) {
				s.pendingFailures = 1
			}
		}
	}
	if isGoing {
		s.terminating = 1
	}
	if isInitialised {
		s.initialized, s.disrupted = 1, s.terminating
	}
	return s
}

// recountNode updates the counts for the claims of a node.
func (r *repairs) recountNode(node *corev1.Node) {
	for _, c := range r.engine.nodeClaims.byID[node.Spec.ProviderID] {
		r.recountClaim(c)
	}
}

// noteTermination records whether the plan terminates the node.
func (r *repairs) noteTermination(state *Node, plan triage.Plan) {
	var by triage.RuleID
	if planned := plan.Treatment; planned != nil && isRepair(planned.Rule) {
		by = planned.Rule
	}
	if known := r.of(state); by != known.terminatedBy {
		known.terminatedBy = by
		r.recountNode(state.Object)
	}
}

// UpdateAllowances tells the core how many more nodes of each pool may be terminated,
// where that has changed. It counts each decision of the core before it sets the next
// allowance.
func (r *repairs) UpdateAllowances(now time.Time) (due time.Time) {
	r.engine.ReconcileWoken(now)
	for name, count := range r.counts {
		if !count.dirty && (count.due.IsZero() || now.Before(count.due)) {
			due = times.Earliest(due, count.due)
			continue
		}
		due = times.Earliest(due, r.updateAllowance(now, name, count))
	}
	for _, count := range r.counts {
		if count.dirty { // changed by decisions about another pool
			due = now
		}
	}
	return due
}

func (r *repairs) updateAllowance(now time.Time, name string, count *poolCounts) (due time.Time) {
	for tell := true; tell; tell = count.dirty {
		count.dirty, count.due = false, time.Time{}
		if count.claimCounts == (claimCounts{}) && r.pools[name] == nil {
			if count.failures.failed > 0 {
				r.engine.RewriteLedger()
			}
			delete(r.counts, name)
			r.engine.cfg.Metrics.forgetPool(name)
			return time.Time{}
		}
		for _, id := range slices.SortedFunc(maps.Keys(r.followed), compareRules) {
			if r.followed[id].pool != name {
				continue
			}
			r.engine.ReconcileWoken(now)
			allowed, changes := r.allowance(now, id, name, count)
			count.due = times.Earliest(count.due, changes)
			r.engine.Core().Allow(now, id, allowed)
		}
		r.engine.ReconcileWoken(now)
	}
	return count.due
}

// allowance returns how many more terminations a rule may start in a pool, why no more,
// and when time alone changes that.
func (r *repairs) allowance(now time.Time, id triage.RuleID, name string, count *poolCounts) (*triage.Allowance, time.Time) {
	allowed, changes := r.disruptionAllowance(now, id, name, count)
	if id.Kind != policykind.ReadyTimeout || r.pools[name] == nil {
		return allowed, changes
	}
	if left, message, until := count.failures.remaining(now, name, r.timeoutFor(id), count.pendingFailures); allowed == nil || left < allowed.Places {
		return &triage.Allowance{Places: left, Words: message}, times.Earliest(changes, until)
	}
	return allowed, changes
}

// disruptionAllowance does the same for the disruption budgets of the pool alone.
func (r *repairs) disruptionAllowance(now time.Time, id triage.RuleID, name string, count *poolCounts) (*triage.Allowance, time.Time) {
	if name == "" { // claims without a pool and nodes without a claim have no budgets
		return nil, time.Time{}
	}
	pool := r.pools[name]
	if pool == nil {
		return &triage.Allowance{Words: "NodePool " + name + " is gone"}, time.Time{}
	}
	total, going := count.initialized, count.disrupted
	if id.Kind == policykind.ReadyTimeout {
		total, going = count.claims, count.terminating
	}
	budgets := pool.Spec.Disruption.Budgets
	if total == 0 {
		budgets = withoutPercentages(budgets)
	}
	room, message, changes := budget.Room(now, name, budgets, karpenter.Unhealthy, total, going)
	if room > 0 && room < budget.Unbounded { // the reason for waiting must be the one after the room is used up
		_, message, _ = budget.Room(now, name, budgets, karpenter.Unhealthy, total, going+room)
	}
	if room == budget.Unbounded {
		return nil, changes
	}
	return &triage.Allowance{Places: room, Words: message}, changes
}

// withoutPercentages drops budgets in percent. If no node is in service, a percentage has no base
// and there is nothing to protect. It keeps 0%, which allows no disruption, and
// unreadable budgets, which block everything.
func withoutPercentages(budgets []karpenter.Budget) []karpenter.Budget {
	kept := []karpenter.Budget{}
	for _, b := range budgets {
		if share, is := strings.CutSuffix(b.Nodes, "%"); !is || strings.Trim(share, "0") == "" || !budget.IsReadable(b) {
			kept = append(kept, b)
		}
	}
	return kept
}

// remaining returns how many more nodes may be replaced because they did not become Ready.
func (t launchFailures) remaining(now time.Time, pool string, timeout time.Duration, trying int) (places int, message string, until time.Time) {
	if t.failed < maxLaunchFailures {
		return max(0, maxLaunchFailures-t.failed-trying), fmt.Sprintf("%d nodes of NodePool %s in a row have not become ready and are being replaced; the next replacement waits for their result", maxLaunchFailures, pool), time.Time{}
	}
	next := t.next(timeout)
	message = fmt.Sprintf("NodePool %s is held: %d nodes in a row have not become ready, which another node will not cure; the next one is tried at %s. If you have repaired the pool, delete its NodeClaims that are not ready", pool, t.failed, next.UTC().Format(time.RFC3339))
	if now.Before(next) {
		return 0, message, next
	}
	return max(0, 1-trying), message, time.Time{}
}

// isHeld reports whether replacement in the pool is paused because its nodes do not
// become Ready.
func (c *poolCounts) isHeld() bool { return c.failures.failed >= maxLaunchFailures }
