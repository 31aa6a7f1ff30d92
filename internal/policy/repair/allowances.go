package repair

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/budget"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

// machineCounts is what a machine adds to the counts of its pool.
type machineCounts struct {
	initialized     int // its node is or was ready for work
	disrupted       int // initialised, and being taken out of service
	machines        int // it has or will have an instance
	terminating     int // being taken out of service
	starting        int // its node was never ready for work
	forced          int // another client deletes it, and its drain is being ended by force
	pendingFailures int // its node's ready timeout has passed and it is not marked yet; see usesCurrentTemplate
}

func (s *machineCounts) add(other machineCounts, sign int) {
	s.initialized += sign * other.initialized
	s.disrupted += sign * other.disrupted
	s.machines += sign * other.machines
	s.terminating += sign * other.terminating
	s.starting += sign * other.starting
	s.forced += sign * other.forced
	s.pendingFailures += sign * other.pendingFailures
}

// poolCounts counts the machines of a pool as Karpenter's budgets do, and how many of its
// nodes in a row did not become Ready.
type poolCounts struct {
	machineCounts
	failures launchFailures
	dirty    bool
	due      time.Time // when time alone changes the allowance, zero for never
}

func (r *Policy) countsOf(pool string) *poolCounts {
	count := r.counts[pool]
	if count == nil {
		count = &poolCounts{}
		r.counts[pool] = count
	}
	return count
}

// recount updates the counts for a machine.
func (r *Policy) recount(m machine.Machine) {
	count := r.countsOf(m.Pool())
	now := r.machineCounts(m) // it may recount the machine itself
	if before := r.counted[m.GetUID()]; now != before {
		count.add(before, -1)
		count.add(now, 1)
		r.counted[m.GetUID()], count.dirty = now, true
	}
	if ready := m.ReadySince(); count.failures.failed > 0 && r.usesCurrentTemplate(m) && !ready.IsZero() && !ready.Before(count.failures.last.Truncate(time.Second)) {
		name := m.Reference().Kind + " " + m.GetName()
		r.host.Logger().Info("pool has nodes that become ready again", "nodePool", m.Pool(), "machine", name, "failed", count.failures.failed)
		r.endHold(m.Pool(), count, name+" has become ready")
	}
}

// recountPool updates the counts for all machines of a pool.
func (r *Policy) recountPool(name string) {
	for m := range r.machines.Machines() {
		if m.Pool() == name {
			r.recount(m)
		}
	}
}

// MachineChanged counts a new or changed machine.
func (r *Policy) MachineChanged(now time.Time, m machine.Machine, was *ownership.Mark) {
	r.countLaunchFailure(now, m, was)
	r.recount(m)
}

// MachineRemoved removes a machine from the counts of its pool.
func (r *Policy) MachineRemoved(m machine.Machine) {
	count := r.countsOf(m.Pool())
	count.add(r.counted[m.GetUID()], -1)
	count.dirty = true
	delete(r.counted, m.GetUID())
}

// machineCounts returns what a machine adds. Karpenter's own repair counts nodes that were
// initialised once, including a node that it restarts. Nodes that were never initialised
// count for the ready timeout. A node that is not Ready still counts as in service: an
// unhealthy node must not block its own repair. A machine whose instance is terminating
// does not count. A machine that this controller plans to terminate counts as disrupted
// already.
func (r *Policy) machineCounts(m machine.Machine) (s machineCounts) {
	if !m.HasInstance() {
		return s
	}
	s.machines = 1
	_, isGoing := m.Disrupted()
	isGoing = isGoing || m.IsEnding() || m.Mark() != nil
	isInitialised := m.IsRebooting()
	for _, name := range r.machines.NodesOf(m) {
		state := r.host.Node(name)
		if state == nil {
			continue
		}
		if !r.hasStarted(state) {
			s.starting = 1
		}
		isInitialised = isInitialised || r.machines.IsInitialized(state.Object)
		if by := r.nodeOf(state).terminatedBy; isRepair(by) {
			isGoing = true
			if by.Kind == policykind.ReadyTimeout && m.Mark() == nil && r.usesCurrentTemplate(m) {
				s.pendingFailures = 1
			}
		}
	}
	if isGoing {
		s.terminating = 1
	}
	if m.IsForced() {
		s.forced = 1
	}
	if isInitialised {
		s.initialized, s.disrupted = 1, s.terminating
	}
	return s
}

// recountNode updates the counts for the machines of a node.
func (r *Policy) recountNode(node *corev1.Node) {
	for m := range r.machines.Candidates(node) {
		r.recount(m)
	}
}

// noteTermination records whether the plan terminates the node.
func (r *Policy) noteTermination(state *engine.Node, plan triage.Plan) {
	var by triage.RuleID
	if planned := plan.Treatment; planned != nil && isRepair(planned.Rule) {
		by = planned.Rule
	}
	if known := r.nodeOf(state); by != known.terminatedBy {
		known.terminatedBy = by
		r.recountNode(state.Object)
	}
}

// UpdateAllowances tells the core how many more nodes of each pool may be terminated,
// where that has changed. It counts each decision of the core before it sets the next
// allowance.
func (r *Policy) UpdateAllowances(now time.Time) (due time.Time) {
	r.host.ReconcileWoken(now)
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

func (r *Policy) updateAllowance(now time.Time, name string, count *poolCounts) (due time.Time) {
	for tell := true; tell; tell = count.dirty {
		count.dirty, count.due = false, time.Time{}
		if count.machineCounts == (machineCounts{}) && r.pools[name] == nil {
			if count.failures.failed > 0 {
				r.host.RewriteLedger()
			}
			delete(r.counts, name)
			r.metrics.forgetPool(name)
			return time.Time{}
		}
		for _, id := range slices.SortedFunc(maps.Keys(r.followed), triage.RuleID.Compare) {
			if r.followed[id].pool != name {
				continue
			}
			r.host.ReconcileWoken(now)
			allowed, changes := r.allowance(now, id, name, count)
			count.due = times.Earliest(count.due, changes)
			r.host.Core().Allow(now, id, allowed)
		}
		r.host.ReconcileWoken(now)
	}
	return count.due
}

// allowance returns how many more terminations a rule may start in a pool, why no more,
// and when time alone changes that.
func (r *Policy) allowance(now time.Time, id triage.RuleID, name string, count *poolCounts) (*triage.Allowance, time.Time) {
	allowed, changes := r.disruptionAllowance(now, id, name, count)
	if room := r.roomBeside(id, count.forced); count.forced > 0 && room != nil && (allowed == nil || *room < allowed.Remaining) {
		allowed = &triage.Allowance{Remaining: *room, Reason: fmt.Sprintf("%d nodes of NodePool %s that other clients delete are not drained any longer", count.forced, name)}
	}
	if id.Kind != policykind.ReadyTimeout || r.pools[name] == nil {
		return allowed, changes
	}
	if left, message, until := count.failures.remaining(now, name, r.timeoutFor(id), count.pendingFailures); allowed == nil || left < allowed.Remaining {
		return &triage.Allowance{Remaining: left, Reason: message}, times.Earliest(changes, until)
	}
	return allowed, changes
}

// roomBeside returns how many more nodes the bound of a rule allows beside drains of other clients
// that are ended by force, nil for no bound.
func (r *Policy) roomBeside(id triage.RuleID, forced int) *int {
	counts, _ := r.host.Core().Population(id)
	if counts.Cap < 0 {
		return nil
	}
	return new(max(0, counts.Cap-counts.Pooled-forced))
}

// hasRoomToForce reports whether the bound of a rule allows to end one more drain of another client.
func (r *Policy) hasRoomToForce(rule triage.RuleID, m machine.Machine) bool {
	forced := r.countsOf(m.Pool()).forced - r.counted[m.GetUID()].forced
	room := r.roomBeside(rule, forced)
	return room == nil || *room > 0
}

// disruptionAllowance does the same for the disruption budgets of the pool alone.
func (r *Policy) disruptionAllowance(now time.Time, id triage.RuleID, name string, count *poolCounts) (*triage.Allowance, time.Time) {
	if name == "" { // machines without a pool and nodes without a machine have no budgets
		return nil, time.Time{}
	}
	pool := r.pools[name]
	if pool == nil {
		return &triage.Allowance{Reason: "NodePool " + name + " is gone"}, time.Time{}
	}
	total, going := count.initialized, count.disrupted
	if id.Kind == policykind.ReadyTimeout {
		total, going = count.machines, count.terminating
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
	return &triage.Allowance{Remaining: room, Reason: message}, changes
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

// MayBegin checks, before a slot is taken for good, that not too many nodes of the pool
// are out of service now. A budget may have been lowered, or another component may
// have started a disruption.
func (r *Policy) MayBegin(now time.Time, rule triage.RuleID, node *corev1.Node) bool {
	followed := r.followed[rule]
	if followed == nil || followed.pool == "" {
		return true
	}
	m, _ := r.machines.MachineOf(node)
	count := r.countsWithout(followed.pool, m)
	allowed, _ := r.allowance(now, rule, followed.pool, &count)
	return allowed == nil || allowed.Remaining > 0
}

// countsWithout returns the counts of a pool as if the machine, which may be nil, were in
// service.
func (r *Policy) countsWithout(pool string, m machine.Machine) poolCounts {
	count := *r.countsOf(pool)
	if m != nil {
		counted := r.counted[m.GetUID()]
		count.disrupted -= counted.disrupted
		count.terminating -= counted.terminating
		count.pendingFailures -= counted.pendingFailures
	}
	return count
}
