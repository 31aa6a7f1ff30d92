package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/triage"
)

// writePolicyStatuses updates the statuses of repair policies and the metrics of all
// repair rules.
func (l *Engine) writePolicyStatuses(ctx context.Context, now time.Time) {
	sums := map[*repairPolicy]*repairCounts{}
	for id, r := range l.repairs.followed {
		counts, _ := l.core.Population(id)
		sum := l.countRepair(r, counts)
		l.cfg.Metrics.setRepair(id, r.pool, sum)
		if r.stale {
			due := l.firstDue(sum.rows)
			l.cfg.Metrics.setRepairFrom(id, r.pool, due, r.due)
			r.due = due
		}
		if r.policy == nil {
			r.stale = false
			continue
		}
		if sums[r.policy] == nil {
			sums[r.policy] = &repairCounts{}
		}
		sums[r.policy].add(sum)
		if r.stale {
			r.stale, r.policy.status.Stale = false, true
		}
	}
	for name, count := range l.repairs.counts {
		l.cfg.Metrics.setPoolHeld(name, count.isHeld())
	}
	for _, pol := range l.repairs.policies {
		sum := sums[pol]
		if sum == nil {
			sum = &repairCounts{}
		}
		if !pol.status.Stale && pol.status.Stored.Nodes == status.Count(sum.nodes) {
			continue
		}
		pol.status.Update(ctx, now, l.statuses, status.Write[v1alpha1.RepairPolicyStatus]{
			Resource: "repairpolicies/status", Kind: "repairPolicy", Name: pol.object.Name,
			Status: func() v1alpha1.RepairPolicyStatus { return l.policyStatusOf(pol, sum) },
			Send:   l.write.RepairPolicyStatus,
		})
	}
}

// repairCounts sums up the nodes of a repair rule or of a policy.
type repairCounts struct {
	nodes, sick, repairing, held int
	rows                         []row
}

// row is an unhealthy node.
type row struct {
	node   string
	reason triage.Reason
}

func (s *repairCounts) add(other repairCounts) {
	s.nodes += other.nodes
	s.sick += other.sick
	s.repairing += other.repairing
	s.held += other.held
	s.rows = append(s.rows, other.rows...)
}

// countRepair counts the nodes of a rule. A ready timeout selects all nodes of its pool,
// but only nodes that have not started count. A node whose timeout has not passed is not
// unhealthy, because every node starts like that.
func (l *Engine) countRepair(r *repairRule, counts triage.Population) repairCounts {
	sum := repairCounts{nodes: counts.Selected, sick: counts.Unhealthy, repairing: counts.Treated}
	isTimeout := r.rule.ID.Kind == triage.ReadyTimeout
	if isTimeout {
		sum.nodes = min(sum.nodes, l.repairs.countsOf(r.pool).starting)
	}
	for node, reason := range r.nodes {
		if isTimeout && reason.Code == triage.Pending {
			sum.sick--
			continue
		}
		if isWait(reason.Code) {
			sum.held++
		}
		sum.rows = append(sum.rows, row{node, reason})
	}
	return sum
}

// firstDue returns when unhealthy nodes become eligible for repair. It lists the earliest
// ones, at most as many as a status lists.
func (l *Engine) firstDue(rows []row) map[string]time.Time {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.reason.Eligible.IsZero() })
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(a.reason.Eligible.Compare(b.reason.Eligible), cmp.Compare(a.node, b.node))
	})
	due := map[string]time.Time{}
	for _, r := range rows[:min(len(rows), v1alpha1.MaxListedNodes)] {
		due[r.node] = r.reason.Eligible
	}
	return due
}

// policyStatusOf returns the status of a policy.
func (l *Engine) policyStatusOf(pol *repairPolicy, sum *repairCounts) v1alpha1.RepairPolicyStatus {
	status := v1alpha1.RepairPolicyStatus{
		ObservedGeneration: pol.object.Generation,
		Nodes:              status.Count(sum.nodes), Sick: status.Count(sum.sick), Repairing: status.Count(sum.repairing), Held: status.Count(sum.held),
		SickNodes:  []v1alpha1.SickNode{},
		Conditions: slices.Clone(pol.status.Stored.Conditions),
	}
	slices.SortFunc(sum.rows, func(a, b row) int {
		return cmp.Or(l.eligible(a).Compare(l.eligible(b)), cmp.Compare(a.node, b.node))
	})
	for _, row := range sum.rows[:min(len(sum.rows), v1alpha1.MaxListedNodes)] {
		reason := l.CurrentReason(row.node, row.reason)
		if treatments, state := l.treatments[row.node], l.nodeStates[row.node]; treatments != nil && state != nil && l.usesRemediationObject(treatments, state, reason.Rule) {
			reason = asRemediation(reason)
		}
		listedNode := v1alpha1.SickNode{Name: row.node, Reason: reason.Code.String(), Message: l.treatmentMessage(row.node, reason.String())}
		if at := l.eligible(row); !at.IsZero() {
			listedNode.EligibleAt = new(metav1.NewTime(at.UTC().Truncate(time.Second)))
		}
		status.SickNodes = append(status.SickNodes, listedNode)
	}
	l.setPolicyConditions(pol, &status)
	return status
}

// eligible returns when an unhealthy node becomes eligible for repair.
func (l *Engine) eligible(r row) time.Time { return l.CurrentReason(r.node, r.reason).Eligible }

// setPolicyConditions sets the conditions of the policy.
func (l *Engine) setPolicyConditions(pol *repairPolicy, status *v1alpha1.RepairPolicyStatus) {
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
		set(v1alpha1.Accepted, true, "SwitchedOff", "the policy is switched off: nothing is repaired")
	case pool != "" && l.repairs.pools[pool] == nil:
		set(v1alpha1.Accepted, true, "NoSuchNodePool", "there is no NodePool "+pool+" yet")
	default:
		set(v1alpha1.Accepted, true, "Followed", "the policy is followed")
	}
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.SchemaLost)
	if lost := l.repairs.poolsWithLostSchema(); len(lost) > 0 {
		set(v1alpha1.SchemaLost, true, "BlocksHidden", "the CRD of NodePools has lost the schema of repair blocks; the last good blocks are in force for NodePools "+strings.Join(lost, ", "))
	}
	switch message := l.conflict(pol); message {
	case "":
		set(v1alpha1.Conflict, false, "NoConflict", "no other policy governs a node that this one asks for")
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
		return p.problem + "; the version before it is followed still"
	}
	return p.problem + "; until that is mended no node that it asks for is repaired, unless another policy governs it"
}

// poolsWithLostSchema returns the pools whose block is hidden because the CRD has lost its schema.
func (r *repairs) poolsWithLostSchema() (pools []string) {
	for name, pool := range r.pools {
		if pool.Lost {
			pools = append(pools, name)
		}
	}
	slices.Sort(pools)
	return pools
}

// conflict says which policy wins for nodes that this policy selects, empty for none.
func (l *Engine) conflict(pol *repairPolicy) string {
	pool := pol.object.Spec.NodePool
	if pol.inForce != nil {
		pool = pol.inForce.Spec.NodePool
	}
	if of := l.repairs.pools[pool]; of != nil && of.Block != nil {
		return "NodePool " + pool + " has a repair block of its own, which goes first"
	}
	if first := l.repairs.namedBy(pool); pool != "" && first != nil && first != pol {
		return fmt.Sprintf("RepairPolicy %s names NodePool %s, too, and is older", first.object.Name, pool)
	}
	if len(pol.shadowed) == 0 {
		return ""
	}
	node := slices.Min(slices.Collect(maps.Keys(pol.shadowed)))
	by := "nothing that is switched on"
	if state := l.nodeStates[node]; state != nil && state.assigned.repairedBy != "" {
		by = state.assigned.repairedBy
	}
	return fmt.Sprintf("nodes that it asks for and that another policy governs: %d, such as %s, by %s", len(pol.shadowed), node, by)
}

// templates returns the template references of the followed and the newest version.
func (p *repairPolicy) templates() (refs []corev1.ObjectReference) {
	for _, version := range []*v1alpha1.RepairPolicy{p.inForce, p.object} {
		if version != nil && version.Spec.RemediationTemplate != nil {
			refs = append(refs, *version.Spec.RemediationTemplate)
		}
	}
	return refs
}
