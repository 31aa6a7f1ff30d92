package repair

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/summary"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

var policyType = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "RepairPolicy"}

// WriteStatuses updates the statuses of repair policies and the metrics of all policies.
func (r *Policy) WriteStatuses(ctx context.Context, now time.Time) {
	sums, gauges := map[*repairPolicy]*repairCounts{}, map[policykind.Policy]*summary.Nodes{}
	ofPools := map[string]*repairCounts{} // of the rules of NodePools
	for id, followed := range r.followed {
		counts, _ := r.host.Core().Population(id)
		sum := r.countRepair(followed, counts)
		if followed.stale {
			due := r.firstDue(sum.rows)
			r.metrics.setEligible(id, followed.pool, due, followed.due)
			followed.due = due
			if followed.policy != nil {
				followed.policy.status.Stale = true
			} else {
				r.mirrors.stale[followed.pool] = true
			}
			followed.stale = false
		}
		entryOf(gauges, policykind.PolicyOf(id)).Merge(&sum.nodes)
		if followed.policy != nil {
			entryOf(sums, followed.policy).add(sum)
		} else {
			entryOf(ofPools, followed.pool).add(sum)
		}
	}
	for name, pol := range r.policies {
		entryOf(gauges, policykind.Policy{Kind: "RepairPolicy", Name: name}) // also of a policy without rules
		sum := entryOf(sums, pol)
		if !pol.status.Stale && pol.status.Stored.Nodes == status.Count(sum.nodes.Selected) {
			continue
		}
		pol.status.Update(ctx, now, r.host.Statuses(), status.Write[v1alpha1.RepairPolicyStatus]{
			Resource: "repairpolicies/status", Kind: "repairPolicy", Name: pol.object.Name,
			Status: func() v1alpha1.RepairPolicyStatus { return r.statusOf(pol, sum) },
			Send:   treat.StatusOf[v1alpha1.RepairPolicyStatus](r.host.Writer(), policyType, pol.object.UID),
		})
	}
	for name, pool := range r.pools {
		if pool.NeverValid() {
			entryOf(gauges, policykind.Policy{Kind: "NodePool", Name: name})
		}
	}
	r.setGauges(gauges)
	r.writeMirrors(ctx, now, ofPools)
}

// entryOf returns the entry of a key, created if necessary.
func entryOf[K comparable, V any](m map[K]*V, key K) *V {
	if m[key] == nil {
		m[key] = new(V)
	}
	return m[key]
}

// setGauges sets the gauges of all policies and pools.
func (r *Policy) setGauges(nodes map[policykind.Policy]*summary.Nodes) {
	for name, count := range r.counts {
		r.metrics.setPoolHeld(name, count.isHeld())
	}
	for policy := range r.reported {
		if nodes[policy] == nil {
			r.host.PolicyMetrics().Forget(policy)
		}
	}
	r.reported = map[policykind.Policy]bool{}
	for policy, sum := range nodes {
		r.reported[policy] = true
		r.host.PolicyMetrics().SetNodes(policy, sum.States())
		r.host.PolicyMetrics().SetReady(policy, r.isReady(policy))
	}
}

// isReady says whether the newest version of a policy is in force.
func (r *Policy) isReady(policy policykind.Policy) bool {
	switch policy.Kind {
	case "RepairPolicy":
		accepted := r.accepted(r.policies[policy.Name])
		return accepted.Status == metav1.ConditionTrue
	case "NodePool":
		pool := r.pools[policy.Name]
		return pool != nil && pool.Problem == "" && observe.AnnotatedSwitches(pool.Annotations).Problem == ""
	}
	return true
}

// repairCounts sums up the nodes of a repair rule or of a policy.
type repairCounts struct {
	nodes                summary.Nodes
	unhealthy, repairing int
	limit                int           // how many may be in repair at once
	threshold            int           // how many may be unhealthy while a repair starts
	readyTimeout         time.Duration // zero for none
	signals              []triage.Signal
	rows                 []row
}

// row is an unhealthy node.
type row struct {
	node   string
	reason triage.Reason
}

func (s *repairCounts) add(other *repairCounts) {
	s.nodes.Merge(&other.nodes)
	s.unhealthy += other.unhealthy
	s.repairing += other.repairing
	s.limit += other.limit
	s.threshold += other.threshold
	s.readyTimeout = max(s.readyTimeout, other.readyTimeout) // a policy has at most one
	s.signals = append(s.signals, other.signals...)
	s.rows = append(s.rows, other.rows...)
}

// countRepair counts the nodes of a rule. A ready timeout selects all nodes of its pool,
// but only nodes that have not started count. A node whose timeout has not passed is not
// unhealthy, because every node starts like that.
func (r *Policy) countRepair(followed *repairRule, counts triage.Population) *repairCounts {
	sum := &repairCounts{
		nodes:     summary.Nodes{Selected: counts.Selected, Removed: counts.Departed},
		unhealthy: counts.Unhealthy, repairing: counts.Treated,
	}
	isTimeout := followed.rule.ID.Kind == policykind.ReadyTimeout
	if !isTimeout && counts.Selected > 0 { // a ready timeout shares the bound of its pool
		sum.limit, sum.threshold, sum.signals = max(0, counts.Cap), max(0, counts.Gate), followed.rule.When.Signals
	}
	if isTimeout {
		sum.readyTimeout = r.timeoutFor(followed.rule.ID)
		sum.nodes.Selected = min(counts.Selected, r.countsOf(followed.pool).starting)
	}
	for node, reason := range followed.nodes {
		if isTimeout && reason.Code == triage.Pending {
			sum.unhealthy--
			continue
		}
		sum.nodes.Add(node, reason)
		sum.rows = append(sum.rows, row{node, reason})
	}
	return sum
}

// firstDue returns when unhealthy nodes become eligible for repair. It lists the earliest
// ones, at most as many as a status lists.
func (r *Policy) firstDue(rows []row) map[string]time.Time {
	rows = slices.DeleteFunc(slices.Clone(rows), func(one row) bool { return one.reason.Eligible.IsZero() })
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(a.reason.Eligible.Compare(b.reason.Eligible), cmp.Compare(a.node, b.node))
	})
	due := map[string]time.Time{}
	for _, one := range rows[:min(len(rows), v1alpha1.MaxListedNodes)] {
		due[one.node] = one.reason.Eligible
	}
	return due
}

// statusOf returns the status of a policy.
func (r *Policy) statusOf(pol *repairPolicy, sum *repairCounts) v1alpha1.RepairPolicyStatus {
	result := r.countsStatus(pol.object.Generation, pol.status.Stored.Conditions, sum)
	if pol.accepted != nil {
		result.AcceptedSpec = format.EncodeSpec(pol.accepted.Spec)
	}
	result.Mode = pol.switches().Mode()
	r.setConditions(&result, r.accepted(pol), pol.problem != "" && pol.inForce != nil, sum)
	conflict := metav1.Condition{
		Type: v1alpha1.Conflict, Status: metav1.ConditionFalse, Reason: "NoConflict", Message: "no other policy applies to a node that this policy selects", ObservedGeneration: pol.object.Generation,
	}
	if message := r.conflict(pol); message != "" {
		conflict.Status, conflict.Reason, conflict.Message = metav1.ConditionTrue, "Shadowed", message
	}
	meta.SetStatusCondition(&result.Conditions, conflict)
	return result
}

// countsStatus returns what a status says about nodes.
func (r *Policy) countsStatus(generation int64, conditions []metav1.Condition, sum *repairCounts) v1alpha1.RepairPolicyStatus {
	result := v1alpha1.RepairPolicyStatus{
		ObservedGeneration: generation,
		Nodes:              status.Count(sum.nodes.Selected),
		Unhealthy:          status.Count(sum.unhealthy), Repairing: status.Count(sum.repairing), Held: status.Count(sum.nodes.Count(triage.Code.IsWait)),
		Tolerations:    tolerations(sum.signals),
		UnhealthyNodes: []v1alpha1.UnhealthyNode{},
		Conditions:     slices.Clone(conditions),
	}
	if len(sum.signals) > 0 {
		result.MaxRepairing, result.UnhealthyThreshold = new(status.Count(sum.limit)), new(status.Count(sum.threshold))
	}
	if sum.readyTimeout > 0 {
		result.ReadyTimeout = text.Duration(sum.readyTimeout)
	}
	slices.SortFunc(sum.rows, func(a, b row) int {
		return cmp.Or(r.eligible(a).Compare(r.eligible(b)), cmp.Compare(a.node, b.node))
	})
	for _, row := range sum.rows[:min(len(sum.rows), v1alpha1.MaxListedNodes)] {
		reason := r.host.CurrentReason(row.node, row.reason)
		listedNode := v1alpha1.UnhealthyNode{Name: row.node, Reason: reason.Code.String(), Message: r.host.Explain(row.node, reason.Sentence())}
		if at := r.eligible(row); !at.IsZero() {
			listedNode.EligibleAt = new(metav1.NewTime(at.UTC().Truncate(time.Second)))
		}
		result.UnhealthyNodes = append(result.UnhealthyNodes, listedNode)
	}
	return result
}

// tolerations lists the conditions that make a node unhealthy. A policy may have NodePools of
// several providers, which recommend the same or other durations.
func tolerations(signals []triage.Signal) []v1alpha1.ConditionRepair {
	list := []v1alpha1.ConditionRepair{}
	for _, s := range signals {
		one := v1alpha1.ConditionRepair{ConditionType: s.Condition, ConditionStatus: s.Status.String(), Reason: s.Reason, Toleration: "Never", Urgent: s.Urgent}
		if s.For != triage.Never {
			one.Toleration = text.Duration(s.For)
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b v1alpha1.ConditionRepair) int {
		return cmp.Or(cmp.Compare(a.ConditionType, b.ConditionType), cmp.Compare(a.ConditionStatus, b.ConditionStatus), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Toleration, b.Toleration))
	})
	list = slices.Compact(list)
	return list[:min(len(list), v1alpha1.MaxRepairConditions)]
}

// eligible returns when an unhealthy node becomes eligible for repair.
func (r *Policy) eligible(one row) time.Time {
	return r.host.CurrentReason(one.node, one.reason).Eligible
}

// accepted returns the condition Accepted of the policy.
func (r *Policy) accepted(pol *repairPolicy) metav1.Condition {
	accepted := metav1.Condition{
		Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, Reason: "Followed", Message: "the policy is in force", ObservedGeneration: pol.object.Generation,
	}
	pool := pol.object.Spec.NodePool
	switch {
	case pol.problem != "":
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, "Invalid", pol.problemMessage()
	case !isEnabled(&pol.object.Spec.Repair):
		accepted.Reason, accepted.Message = "SwitchedOff", "the policy is disabled: nothing is repaired"
	case r.isShadowed(pol):
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, "Shadowed", r.conflict(pol)
	case pol.switches().Mode() != v1alpha1.Enforce:
		accepted.Reason, accepted.Message = modeReason(pol.switches())
	case pool != "" && r.pools[pool] == nil:
		accepted.Reason, accepted.Message = "NoSuchNodePool", "there is no NodePool "+pool+" yet"
	case hasReadyTimeout(&pol.object.Spec.Repair) && r.cfg.ReadyTimeout == 0:
		accepted.Message += "; spec.repair.readyTimeout: " + validate.ReadyTimeoutsOffMessage
	}
	return accepted
}

// modeReason says why a policy or a repair block does not act.
func modeReason(s observe.Switches) (reason, message string) {
	if s.Observe {
		return "DryRun", "nodes are evaluated, but nothing is repaired"
	}
	return "Paused", s.Paused + ": no new repair starts"
}

// setConditions sets the conditions that policies and repair blocks have. keepsPrevious says that
// an earlier version is in force than the newest.
func (r *Policy) setConditions(status *v1alpha1.RepairPolicyStatus, accepted metav1.Condition, keepsPrevious bool, sum *repairCounts) {
	meta.SetStatusCondition(&status.Conditions, accepted)
	ready, sentence := accepted, sum.nodes.Sentence(r.host.CurrentReason)
	ready.Type = v1alpha1.Ready
	switch {
	case ready.Reason == "Followed":
		ready.Message = sentence
	case ready.Status == metav1.ConditionTrue || keepsPrevious:
		ready.Message += "; " + sentence
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.SchemaLost)
	if lost := r.poolsWithLostSchema(); len(lost) > 0 {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.SchemaLost, Status: metav1.ConditionTrue, Reason: "BlocksHidden", ObservedGeneration: accepted.ObservedGeneration,
			Message: "the CRD of NodePools has lost the schema of repair blocks; the last good blocks are in force for NodePools " + strings.Join(lost, ", "),
		})
	}
}

// problemMessage says why the newest version is invalid, and what applies instead.
func (p *repairPolicy) problemMessage() string {
	switch {
	case p.problem == "":
		return ""
	case p.inForce != nil:
		return p.problem + status.KeepsAccepted
	}
	return p.problem + "; until the policy is corrected, none of its nodes is repaired, unless another policy applies to it"
}

// poolsWithLostSchema returns the pools whose block is hidden because the CRD has lost its schema.
func (r *Policy) poolsWithLostSchema() (pools []string) {
	for name, pool := range r.pools {
		if pool.Lost {
			pools = append(pools, name)
		}
	}
	slices.Sort(pools)
	return pools
}

// isShadowed says whether other policies take precedence for all nodes of the policy.
func (r *Policy) isShadowed(pol *repairPolicy) bool {
	if r.conflict(pol) == "" {
		return false
	}
	for id, followed := range r.followed {
		if counts, _ := r.host.Core().Population(id); followed.policy == pol && counts.Selected > 0 {
			return false
		}
	}
	return true
}

// conflict says which policy wins for nodes that this policy selects, empty for none.
func (r *Policy) conflict(pol *repairPolicy) string {
	pool := pol.object.Spec.NodePool
	if pol.inForce != nil {
		pool = pol.inForce.Spec.NodePool
	}
	if of := r.pools[pool]; of != nil && of.Block != nil {
		return "NodePool " + pool + " has its own repair block, which takes precedence"
	}
	if first := r.namedBy(pool); pool != "" && first != nil && first != pol {
		return fmt.Sprintf("RepairPolicy %s names NodePool %s, too, and is older", first.object.Name, pool)
	}
	if len(pol.shadowed) == 0 {
		return ""
	}
	node := slices.Min(slices.Collect(maps.Keys(pol.shadowed)))
	by := "no enabled policy"
	if known := r.nodes[node]; known != nil && known.assigned.repairedBy != "" {
		by = known.assigned.repairedBy
	}
	return fmt.Sprintf("other policies take precedence for %d of its nodes; for example, %s applies to node %s", len(pol.shadowed), by, node)
}
