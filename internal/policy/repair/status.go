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
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// WriteStatuses updates the statuses of repair policies and the metrics of all
// repair rules.
func (r *Policy) WriteStatuses(ctx context.Context, now time.Time) {
	sums := map[*repairPolicy]*repairCounts{}
	for id, followed := range r.followed {
		counts, _ := r.host.Core().Population(id)
		sum := r.countRepair(followed, counts)
		r.metrics.setRule(id, followed.pool, sum)
		if followed.stale {
			due := r.firstDue(sum.rows)
			r.metrics.setEligible(id, followed.pool, due, followed.due)
			followed.due = due
		}
		if followed.policy == nil {
			followed.stale = false
			continue
		}
		if sums[followed.policy] == nil {
			sums[followed.policy] = &repairCounts{}
		}
		sums[followed.policy].add(sum)
		if followed.stale {
			followed.stale, followed.policy.status.Stale = false, true
		}
	}
	for name, count := range r.counts {
		r.metrics.setPoolHeld(name, count.isHeld())
	}
	for _, pol := range r.policies {
		sum := sums[pol]
		if sum == nil {
			sum = &repairCounts{}
		}
		if !pol.status.Stale && pol.status.Stored.Nodes == status.Count(sum.nodes) {
			continue
		}
		pol.status.Update(ctx, now, r.host.Statuses(), status.Write[v1alpha1.RepairPolicyStatus]{
			Resource: "repairpolicies/status", Kind: "repairPolicy", Name: pol.object.Name,
			Status: func() v1alpha1.RepairPolicyStatus { return r.statusOf(pol, sum) },
			Send:   r.host.Writer().RepairPolicyStatus,
		})
	}
}

// repairCounts sums up the nodes of a repair rule or of a policy.
type repairCounts struct {
	nodes, unhealthy, repairing, held int
	rows                              []row
}

// row is an unhealthy node.
type row struct {
	node   string
	reason triage.Reason
}

func (s *repairCounts) add(other repairCounts) {
	s.nodes += other.nodes
	s.unhealthy += other.unhealthy
	s.repairing += other.repairing
	s.held += other.held
	s.rows = append(s.rows, other.rows...)
}

// countRepair counts the nodes of a rule. A ready timeout selects all nodes of its pool,
// but only nodes that have not started count. A node whose timeout has not passed is not
// unhealthy, because every node starts like that.
func (r *Policy) countRepair(followed *repairRule, counts triage.Population) repairCounts {
	sum := repairCounts{nodes: counts.Selected, unhealthy: counts.Unhealthy, repairing: counts.Treated}
	isTimeout := followed.rule.ID.Kind == policykind.ReadyTimeout
	if isTimeout {
		sum.nodes = min(sum.nodes, r.countsOf(followed.pool).starting)
	}
	for node, reason := range followed.nodes {
		if isTimeout && reason.Code == triage.Pending {
			sum.unhealthy--
			continue
		}
		if reason.Code.IsWait() {
			sum.held++
		}
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
	status := v1alpha1.RepairPolicyStatus{
		ObservedGeneration: pol.object.Generation,
		Nodes:              status.Count(sum.nodes), Sick: status.Count(sum.unhealthy), Repairing: status.Count(sum.repairing), Held: status.Count(sum.held),
		SickNodes:  []v1alpha1.SickNode{},
		Conditions: slices.Clone(pol.status.Stored.Conditions),
	}
	slices.SortFunc(sum.rows, func(a, b row) int {
		return cmp.Or(r.eligible(a).Compare(r.eligible(b)), cmp.Compare(a.node, b.node))
	})
	for _, row := range sum.rows[:min(len(sum.rows), v1alpha1.MaxListedNodes)] {
		reason := r.host.CurrentReason(row.node, row.reason)
		if state := r.host.Node(row.node); state != nil && r.host.FindNodeTasks(row.node) != nil && reason.Action == triage.Terminate &&
			(r.remediations.HasObjects(row.node, reason.Rule) || r.MayRequest(state, reason.Rule)) {
			reason.Action = triage.Remediate
		}
		listedNode := v1alpha1.SickNode{Name: row.node, Reason: reason.Code.String(), Message: r.host.Explain(row.node, reason.Sentence())}
		if at := r.eligible(row); !at.IsZero() {
			listedNode.EligibleAt = new(metav1.NewTime(at.UTC().Truncate(time.Second)))
		}
		status.SickNodes = append(status.SickNodes, listedNode)
	}
	r.setConditions(pol, &status)
	return status
}

// eligible returns when an unhealthy node becomes eligible for repair.
func (r *Policy) eligible(one row) time.Time {
	return r.host.CurrentReason(one.node, one.reason).Eligible
}

// setConditions sets the conditions of the policy.
func (r *Policy) setConditions(pol *repairPolicy, status *v1alpha1.RepairPolicyStatus) {
	set := func(kind string, is bool, reason, message string) {
		condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: pol.object.Generation}
		if is {
			condition.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	pool := pol.object.Spec.NodePool
	switch {
	case pol.problem != "":
		set(v1alpha1.Accepted, false, "Invalid", pol.problemMessage())
	case !isEnabled(&pol.object.Spec.Repair):
		set(v1alpha1.Accepted, true, "SwitchedOff", "the policy is disabled: nothing is repaired")
	case pool != "" && r.pools[pool] == nil:
		set(v1alpha1.Accepted, true, "NoSuchNodePool", "there is no NodePool "+pool+" yet")
	default:
		message := "the policy is followed"
		if pol.object.Spec.Repair.ReadyTimeout != "" && r.cfg.ReadyTimeout == 0 {
			message += "; spec.repair.readyTimeout: " + validate.ReadyTimeoutsOffMessage
		}
		set(v1alpha1.Accepted, true, "Followed", message)
	}
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.SchemaLost)
	if lost := r.poolsWithLostSchema(); len(lost) > 0 {
		set(v1alpha1.SchemaLost, true, "BlocksHidden", "the CRD of NodePools has lost the schema of repair blocks; the last good blocks are in force for NodePools "+strings.Join(lost, ", "))
	}
	switch message := r.conflict(pol); message {
	case "":
		set(v1alpha1.Conflict, false, "NoConflict", "no other policy governs a node that this policy selects")
	default:
		set(v1alpha1.Conflict, true, "Shadowed", message)
	}
}

// problemMessage says why the newest version is invalid, and what applies instead.
func (p *repairPolicy) problemMessage() string {
	switch {
	case p.problem == "":
		return ""
	case p.inForce != nil:
		return p.problem + "; the previous version stays in force"
	}
	return p.problem + "; until the policy is corrected, none of its nodes is repaired, unless another policy governs it"
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
	return fmt.Sprintf("other policies take precedence for %d of its nodes; for example, node %s is governed by %s", len(pol.shadowed), node, by)
}
