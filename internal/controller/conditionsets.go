package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// counterRetention is how long counters of a deleted set stay: a few times the usual scrape
// interval.
const counterRetention = 15 * time.Minute

// conditionSet is a ConditionSet and its state.
type conditionSet struct {
	set   *v1alpha1.ConditionSet
	rule  triage.Rule
	nodes map[string]triage.Reason // the findings

	inForce         *v1alpha1.ConditionSet // the followed version; nil for none
	needsValidation bool                   // this version has not been validated
	restored        bool                   // this version is unchanged since the start of this term
	problems        []validate.Problem     // why it is not followed
	err             error                  // the problems as one error
	awaitsNodes     bool                   // rejected because of node reports, so validate again when they change
	proof           proof                  // reports that are missing until the set is followed without restrictions
	unclearTaints   map[string]taintID     // nodes with a taint that the set may have placed, but no record proves it
	status          status.Status[v1alpha1.ConditionSetStatus]
}

// isInAPI reports whether the set is an API object with a status, and not part of a
// ConfigMap.
func (pol *conditionSet) isInAPI() bool { return configmaps.ConfigMapOf(pol.set) == nil }

func setRule(name string) triage.RuleID {
	return triage.RuleID{Kind: triage.ConditionSet, Name: name}
}

// setOf returns the set that a rule was compiled from, nil if it is gone.
func (l *loop) setOf(rule triage.RuleID) *v1alpha1.ConditionSet {
	if pol := l.sets[rule.Name]; pol != nil && rule.Kind == triage.ConditionSet {
		return pol.set
	}
	return nil
}

// followSet stores a new or changed set. Validation comes later in the round, when nodes
// and other sets are known.
func (l *loop) followSet(now time.Time, set *v1alpha1.ConditionSet) {
	pol := l.sets[set.Name]
	if pol == nil {
		pol = &conditionSet{nodes: map[string]triage.Reason{}}
		l.sets[set.Name] = pol
		delete(l.retiredRules, setRule(set.Name))
	}
	isSame := pol.set != nil && pol.set.UID == set.UID
	// Annotations do not change the generation.
	known := isSame && pol.set.Generation == set.Generation &&
		pol.set.Annotations[v1alpha1.AcceptImpactAnnotation] == set.Annotations[v1alpha1.AcceptImpactAnnotation]
	pol.status.Observe(set, set.Status)
	if !isSame {
		pol.inForce = nil
	}
	pol.set, pol.status.Stale = set, true
	l.statuses.Schedule(now)
	if !known {
		pol.needsValidation, pol.restored, l.validation.due = true, !l.loaded, true
	}
}

func (l *loop) removeSet(now time.Time, name string) {
	if l.sets[name] == nil {
		return
	}
	delete(l.sets, name)
	l.validation.due = true
	l.core.RemoveRule(now, setRule(name))
	l.cfg.Metrics.forgetSet(name)
	l.retire(now, setRule(name))
	l.cfg.Logger.Info("set gone", "conditionSet", name)
}

// retire schedules the deletion of a deleted set's counters. Users look at the growth of
// counters, and every scraper has seen the last value by then. If a counter comes back
// because a taint was stuck on a node, it starts at zero.
func (l *loop) retire(now time.Time, rule triage.RuleID) {
	if l.retiredRules == nil {
		l.retiredRules = map[triage.RuleID]time.Time{}
	}
	l.retiredRules[rule] = now.Add(counterRetention)
}

// forgetRetired deletes counters that are due, and returns when the next ones are.
func (l *loop) forgetRetired(now time.Time) (due time.Time) {
	for rule, at := range l.retiredRules {
		if now.Before(at) {
			due = times.Earliest(due, at)
			continue
		}
		l.cfg.Metrics.forgetCounts(rule)
		delete(l.retiredRules, rule)
	}
	return due
}

// findingsOf returns the findings of a rule by node, and the mark that the status of its
// policy is stale. Both are nil if the policy is gone.
func (l *loop) findingsOf(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	if pol := l.sets[rule.Name]; pol != nil && rule.Kind == triage.ConditionSet {
		return pol.nodes, &pol.status.Stale
	}
	if c := l.checkOf(rule); c != nil {
		return c.nodes, &c.status.Stale
	}
	if r := l.repairs.followed[rule]; r != nil {
		return r.nodes, &r.stale
	}
	return nil, nil
}

// noteFindings stores the findings for a node with their policies.
func (l *loop) noteFindings(now time.Time, state *nodeState, findings []triage.Reason) {
	if len(state.findings) == 0 && len(findings) == 0 {
		return
	}
	name := state.node.Name
	for _, was := range state.findings {
		if nodes, stale := l.findingsOf(was.Rule); stale != nil && !slices.ContainsFunc(findings, func(is triage.Reason) bool { return is.Rule == was.Rule }) {
			delete(nodes, name)
			*stale = true
		}
	}
	for _, is := range findings {
		if nodes, stale := l.findingsOf(is.Rule); stale != nil && nodes[name] != is {
			nodes[name] = is
			*stale = true
		}
	}
	state.findings = findings
	l.statuses.Schedule(now)
}

// markStatusesStale marks the statuses of the node's policies as stale, because the node or a write
// to it has changed while the findings have not.
func (l *loop) markStatusesStale(now time.Time, state *nodeState) {
	for _, finding := range state.findings {
		if _, stale := l.findingsOf(finding.Rule); stale != nil {
			*stale = true
			l.statuses.Schedule(now)
		}
	}
}

// writeStatuses updates the statuses, and returns when to check again.
func (l *loop) writeStatuses(ctx context.Context, now time.Time) (due time.Time) {
	return l.statuses.Check(now, func() {
		l.writeSetStatuses(ctx, now)
		l.writeCheckStatuses(ctx, now)
		l.writePolicyStatuses(ctx, now)
	})
}

// writeSetStatuses updates the statuses of condition sets.
func (l *loop) writeSetStatuses(ctx context.Context, now time.Time) {
	for name, pol := range l.sets {
		counts, _ := l.core.Population(setRule(name))
		l.cfg.Metrics.setPopulation(name, counts, l.countNodes(pol), pol.err == nil && !pol.withholdsTaints())
		if !pol.isInAPI() || !pol.status.Stale && pol.status.Stored.Selected == clamp(counts.Selected) {
			continue
		}
		pol.status.Update(ctx, now, l.statuses, status.Write[v1alpha1.ConditionSetStatus]{
			Resource: "conditionsets/status", Kind: "conditionSet", Name: name,
			Status: func() v1alpha1.ConditionSetStatus { return l.statusOf(pol, counts) },
			Send:   l.write.Status,
		})
	}
}

// nodeCounts counts the nodes of a set by outcome.
type nodeCounts struct {
	tainted, heldBack, superseded int
}

// countNodes counts taints that are on the nodes, not taints in flight.
func (l *loop) countNodes(pol *conditionSet) (t nodeCounts) {
	for name, reason := range pol.nodes {
		switch effect := l.nodeStates[name].hasTaint(reason.Rule); {
		case reason.Code == triage.Superseded:
			t.superseded++
		case effect == 0 || pol.err != nil:
		case effect < pol.rule.Response.Taint.Effect:
			t.heldBack++
		default:
			t.tainted++
		}
	}
	return t
}

// hasTaint returns the effect of the rule's taint on the node, 0 for none.
func (state *nodeState) hasTaint(rule triage.RuleID) (effect triage.Effect) {
	if state == nil {
		return 0
	}
	for _, t := range state.ownTaints {
		if t.Rule == rule {
			effect = max(effect, t.Effect)
		}
	}
	return effect
}

// hasForeignTaint reports whether the node has the taint of the reason and another
// component placed it.
func (state *nodeState) hasForeignTaint(reason triage.Reason) bool {
	return slices.ContainsFunc(state.node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == reason.Key && string(t.Effect) == reason.Effect.String()
	}) && !slices.ContainsFunc(state.ownTaints, func(t triage.Taint) bool { return t.Key == reason.Key && t.Effect == reason.Effect })
}

// setMessage returns the text of a reason. If our taint is not on the node, it adds why.
func (l *loop) setMessage(name string, reason triage.Reason) string {
	state := l.nodeStates[name]
	if state == nil || reason.Key == "" || reason.Code == triage.DryRun {
		return reason.String()
	}
	isThere := state.hasTaint(reason.Rule) == reason.Effect
	complaint := state.refusalsReported[reason.Rule].message
	switch {
	case isThere && complaint != "" && reason.Code == triage.FellBack && !reason.Until.IsZero(): // NoExecute was refused
		return reason.String() + "; " + complaint
	case isThere:
		return reason.String()
	case reason.Code == triage.Tainted && reason.Foreign > 0:
		return reason.String()
	case state.hasForeignTaint(reason):
		return reason.String() + "; the node already has this taint, set by another component"
	case state.failure.tries > 0:
		return reason.String() + "; not written yet: " + state.failure.text
	case state.stage == awaitingLedger && l.ledger.failure.tries > 0:
		return reason.String() + "; not written yet: " + l.ledger.failure.text
	}
	return reason.String() + "; being written"
}

// statusOf returns the status of a set.
func (l *loop) statusOf(pol *conditionSet, counts triage.Population) v1alpha1.ConditionSetStatus {
	status := v1alpha1.ConditionSetStatus{
		ObservedGeneration: pol.set.Generation,
		Selected:           clamp(counts.Selected),
		Matched:            clamp(counts.Unhealthy),
		Nodes:              []v1alpha1.MatchedNode{},
		Conditions:         slices.Clone(pol.status.Stored.Conditions),
	}
	if pol.err == nil && counts.Cap >= 0 {
		limit := clamp(counts.Cap)
		status.MaxTainted = &limit
	}
	t := l.countNodes(pol)
	status.Tainted, status.HeldBack, status.Superseded = clamp(t.tainted), clamp(t.heldBack), clamp(t.superseded)
	names := slices.Collect(maps.Keys(pol.nodes))
	slices.SortFunc(names, func(a, b string) int {
		one, other := pol.nodes[a], pol.nodes[b]
		return cmp.Or(cmp.Compare(one.Code, other.Code), one.Since.Compare(other.Since), cmp.Compare(a, b))
	})
	var heldBack triage.Reason
	for _, name := range names {
		reason := pol.nodes[name]
		if heldBack.Code == 0 && reason.Code == triage.FellBack {
			heldBack = l.currentReason(name, reason)
		}
		if len(status.Nodes) < v1alpha1.MaxListedNodes {
			reason = l.currentReason(name, reason)
			status.Nodes = append(status.Nodes, v1alpha1.MatchedNode{Name: name, Reason: reason.Code.String(), Message: l.setMessage(name, reason)})
		}
	}
	l.setConditions(pol, &status, heldBack)
	pol.setOwnershipCondition(&status)
	return status
}

// currentReason returns the current finding of the rule for the node, because the numbers in a
// stored reason may be outdated.
func (l *loop) currentReason(node string, reason triage.Reason) triage.Reason {
	plan, _ := l.core.Plan(node)
	for _, finding := range plan.Findings {
		if finding.Rule == reason.Rule {
			return finding
		}
	}
	return reason
}

// setConditions sets the conditions of the set.
func (l *loop) setConditions(pol *conditionSet, status *v1alpha1.ConditionSetStatus, heldBack triage.Reason) {
	accepted := metav1.Condition{
		Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, Reason: "Followed",
		Message: "the set is followed", ObservedGeneration: pol.set.Generation,
	}
	if pol.set.Spec.DryRun {
		accepted.Reason, accepted.Message = "DryRun", "the set is judged, but places no taint"
	}
	switch {
	case pol.err != nil:
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, string(pol.problems[0].Reason), pol.err.Error()
	case pol.proof.refused:
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, reasonHeld, pol.proof.message()
	case len(pol.proof.types) > 0:
		accepted.Reason, accepted.Message = reasonAwaitingReports, pol.proof.message()
		if pol.withholdsTaints() {
			accepted.Status = metav1.ConditionFalse
		}
	}
	meta.SetStatusCondition(&status.Conditions, accepted)
	bounded := metav1.Condition{
		Type: v1alpha1.HeldBack, Status: metav1.ConditionFalse, Reason: "NothingHeldBack",
		Message: "no node is kept from NoExecute", ObservedGeneration: pol.set.Generation,
	}
	if heldBack.Code != 0 {
		bounded.Status, bounded.Reason = metav1.ConditionTrue, heldBack.Code.String()
		bounded.Message = fmt.Sprintf("nodes with NoSchedule instead of NoExecute: %d; %s", status.HeldBack, heldBack.String())
	}
	meta.SetStatusCondition(&status.Conditions, bounded)
}

// clamp converts a count to the API's type.
func clamp(n int) int32 { return int32(min(n, 1<<31-1)) } //nolint:gosec // bounded in the same line
