package repair

import (
	"cmp"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The treatment that terminates machines calls the methods in this file.

// Terminates reports whether a rule terminates the machine of a node, and not with a
// remediation object.
func (r *Policy) Terminates(node string, rule triage.RuleID) bool {
	if n, followed := r.nodes[node], r.followed[rule]; n != nil && n.isStandalone && followed != nil && len(followed.ladder) > 0 {
		return false
	}
	return isRepair(rule) && !r.remediations.HasObjects(node, rule)
}

// isStandalone reports whether nothing would replace a machine, and the rule does not ask for its
// deletion nevertheless.
func (r *Policy) isStandalone(m machine.Machine, rule *repairRule) bool {
	return m != nil && !r.HasPool(m.Pool()) && (rule == nil || !rule.deletesStandalone)
}

// Termination returns how a rule terminates machines.
func (r *Policy) Termination(rule triage.RuleID) (how machine.Termination, isFollowed bool) {
	how = machine.Termination{Mode: v1alpha1.Forceful}
	if how.IsReadyTimeout = rule.Kind == policykind.ReadyTimeout; how.IsReadyTimeout {
		how.ReadyTimeout = r.timeoutFor(rule)
	}
	followed := r.followed[rule]
	if followed == nil {
		return how, false
	}
	how.BoundPool = followed.rule.Bound.Pool
	if spec := followed.spec; spec != nil {
		if spec.Termination != "" {
			how.Mode = spec.Termination
		}
		if grace, err := time.ParseDuration(spec.TerminationGracePeriod); err == nil { // empty, or validated
			how.GracePeriod = &grace
		}
	}
	return how, true
}

// timeoutFor returns the ready timeout of a rule.
func (r *Policy) timeoutFor(rule triage.RuleID) time.Duration {
	if followed := r.followed[rule]; followed != nil && len(followed.rule.When.Signals) > 0 {
		return followed.rule.When.Signals[0].For
	}
	return 0
}

// VetoTermination returns why a marked machine must not be deleted, empty if it may. The
// mark may be old if its deletion was not sent or failed, and much may have changed
// since. The core does not check again, because for the core the termination is running.
func (r *Policy) VetoTermination(now time.Time, n *engine.Node, m machine.Machine, rule triage.RuleID) string {
	followed := r.followed[rule]
	if followed == nil {
		return "its policy is gone"
	}
	if veto := cmp.Or(r.nodeOf(n).veto, r.workOfOthers(n, r.host.Respect(), false), r.host.Core().HoldFirst(n.Object.Name, rule)); veto != "" {
		return veto
	}
	switch {
	case r.host.IsOverBound(rule):
		return "more nodes are in repair than the limit allows now"
	case followed.pool == "":
		return ""
	}
	count := r.countsWithout(followed.pool, m)
	if allowed, _ := r.disruptionAllowance(now, rule, followed.pool, &count); allowed != nil && allowed.Remaining < 1 {
		return allowed.Reason
	}
	return ""
}

// VetoForcing returns why the drain of a machine that is being deleted must not be ended by force,
// empty if it may. Karpenter taints and deletes the node at the start of a drain, so both are no
// veto. A drain of another client is a new repair, which the gate and the bound can hold.
func (r *Policy) VetoForcing(n *engine.Node, m machine.Machine, rule triage.RuleID) string {
	if veto := r.nodeOf(n).veto; veto != "" && veto != engine.NodeDeletedMessage {
		return veto
	}
	respect, core, isOurs := r.host.Respect(), r.host.Core(), m.Mark() != nil
	if respect != nil {
		respect = new(*respect)
		respect.Karpenter = false
	}
	if veto := r.workOfOthers(n, respect, isOurs); veto != "" {
		return veto
	}
	if isOurs {
		return core.Hold(n.Object.Name, rule)
	}
	if hold := core.HoldFirst(n.Object.Name, rule); hold != "" || r.hasRoomToForce(rule, m) {
		return hold
	}
	return "more nodes are in repair than the limit allows now"
}

// workOfOthers returns the first work of others that keeps a node from treatment, empty for none.
func (r *Policy) workOfOthers(n *engine.Node, respect *dialect.Respect, isTreated bool) string {
	if respect != nil {
		for _, reason := range observe.WorkOfOthers(n.Object, *respect, isTreated) {
			return reason
		}
	}
	return ""
}

// CountsUnder returns the rule that counts a final termination of a node: the node's
// current rule if the rule of the mark is gone. The bound of the pool is the same.
func (r *Policy) CountsUnder(n *engine.Node, rule triage.RuleID) triage.RuleID {
	if assigned := r.nodeOf(n).assigned; r.followed[rule] == nil && assigned.repairedBy != "" {
		return assigned.repair()
	}
	return rule
}

// HasPool reports whether a NodePool exists.
func (r *Policy) HasPool(name string) bool { return r.pools[name] != nil }

// Terminated counts what became of a termination.
func (r *Policy) Terminated(now time.Time, m machine.Machine, t *engine.Task, outcome string, waited time.Duration) {
	how, _ := r.Termination(t.Rule)
	if !r.HasPool(m.Pool()) {
		r.host.Retire(now, timeoutRule(m.Pool()))
	}
	r.metrics.countRepair(t.Rule, m.Pool(), t.Reason.Condition, string(how.Mode), outcome)
	if outcome != "terminated" {
		return
	}
	if waited >= 0 {
		r.host.PolicyMetrics().ObserveStart(t.Rule, waited)
	}
	if t.Rule.Kind == policykind.ReadyTimeout {
		r.metrics.countReadyTimeout(t.Rule, m.Pool(), m.CapacityType())
	}
}

// RecordsStart reports whether to record on the node that it was ready for work: a ready
// timeout applies and the provider of the machine has not recorded it.
func (r *Policy) RecordsStart(n *engine.Node) bool {
	if r.nodeOf(n).assigned.timedBy == "" || r.machines.IsInitialized(n.Object) {
		return false
	}
	m, _ := r.machines.MachineOf(n.Object)
	return m != nil && !m.IsEnding() && m.ReadySince().IsZero()
}

// addVetoes adds what forbids the repair of a node, and notes the last of it for a machine
// that is marked already.
func (r *Policy) addVetoes(now time.Time, n *engine.Node, facts *triage.Node) {
	known := r.nodeOf(n)
	known.veto, known.isStandalone = "", false
	if n.Object.DeletionTimestamp != nil {
		known.veto = engine.NodeDeletedMessage
	}
	if known.assigned == (assignedPolicies{}) && !r.machines.HasMachines() {
		return
	}
	add := func(message string, isRespected bool) {
		known.veto = message
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Action: triage.Terminate, Reason: message, Respected: isRespected})
	}
	veto := func(message string) { add(message, false) }
	if by, is := karpenter.DoNotRepair(n.Object.Annotations); is {
		veto("the node is annotated " + by)
	}
	name := n.Object.Labels[karpenter.NodePoolLabel]
	if pool := r.pools[name]; pool != nil {
		if by, is := karpenter.DoNotRepair(pool.Annotations); is {
			veto("NodePool " + name + " is annotated " + by)
		}
	}
	m, problem := r.machines.MachineOf(n.Object)
	// A remediation takes the Lease, so it always waits for the Lease.
	respect := r.host.Respect()
	if message := r.remediations.ForeignLease(now, n.Object.Name); message != "" && (respect == nil || respect.Maintenance || m == nil) {
		isRespected := respect != nil && respect.Maintenance
		if isRespected {
			message = dialect.HeldByRespect("maintenance", message, "the Lease ends")
		}
		add(message, isRespected)
	}
	followed := r.followed[known.assigned.repair()]
	known.isStandalone = r.isStandalone(m, followed) && m.Mark() == nil
	if m != nil {
		for _, message := range m.Vetoes() {
			veto(message)
		}
	}
	switch {
	case problem != "":
		veto(problem)
	case r.isStandalone(m, followed):
		if followed == nil || len(followed.ladder) == 0 || m.Mark() != nil {
			veto(fmt.Sprintf("%s %s belongs to no NodePool, so nothing would replace the node; to delete it nevertheless, set deleteStandaloneNodeClaims: true in the RepairPolicy", r.machines.Kind(), m.GetName()))
		}
	case m == nil && r.HasPool(name): // otherwise no NodePool made it, whatever the label says
		veto("no " + r.machines.Kind() + " has its provider ID, so there is nothing to delete")
	case m == nil:
		if followed != nil && len(followed.ladder) == 0 {
			veto("it has no " + r.machines.Kind() + " that could be deleted, and the policy names no remediationTemplate")
		}
	default:
		// The provider has started to disrupt the machine as well.
		if how, is := m.Disrupted(); is && m.Mark() != nil && m.Mark().NodeUID == n.Object.UID && !m.IsEnding() {
			known.veto = m.Reference().Kind + " " + m.GetName() + " " + how
		}
	}
}
