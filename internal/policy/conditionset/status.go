package conditionset

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
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/summary"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

var setType = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet"}

// WriteStatuses updates the statuses of condition sets.
func (p *Policy) WriteStatuses(ctx context.Context, now time.Time) {
	mirrors, nameTaken := map[string]wantedMirror{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(p.known)) {
		pol := p.known[name]
		counts, _ := p.host.Core().Population(setRule(name))
		policy := policykind.PolicyOf(setRule(name))
		p.host.PolicyMetrics().SetNodes(policy, pol.summarize(counts).States())
		p.host.PolicyMetrics().SetReady(policy, pol.err == nil && !pol.withholdsTaints() && p.configMapProblem(pol) == "")
		if !pol.isInAPI() {
			p.addMirror(mirrors, nameTaken, pol, counts)
			continue
		}
		if !pol.status.Stale && pol.status.Stored.Selected == status.Count(counts.Selected) {
			continue
		}
		pol.status.Update(ctx, now, p.host.Statuses(), status.Write[v1alpha1.ConditionSetStatus]{
			Resource: "conditionsets/status", Kind: "conditionSet", Name: name,
			Status: func() v1alpha1.ConditionSetStatus { return p.statusOf(pol, counts) },
			Send:   treat.StatusOf[v1alpha1.ConditionSetStatus](treat.NewWriter(p.cfg.Client), setType, pol.set.UID),
		})
	}
	p.nameTaken = nameTaken
	if p.configMaps.loaded { // otherwise the taints of sets in ConfigMaps stay, and so do their mirrors
		p.mirrors.Write(ctx, now, p.host.Statuses(), mirrors)
	}
}

// summarize counts the nodes of a set by state.
func (pol *conditionSet) summarize(counts triage.Population) *summary.Nodes {
	nodes := &summary.Nodes{Selected: counts.Selected}
	for name, reason := range pol.nodes {
		nodes.Add(name, reason)
	}
	return nodes
}

// nodeCounts counts the nodes of a set by outcome.
type nodeCounts struct {
	tainted, heldBack, superseded int
}

// countNodes counts taints that are on the nodes, not taints in flight.
func (p *Policy) countNodes(pol *conditionSet) (t nodeCounts) {
	for name, reason := range pol.nodes {
		switch effect := p.host.Node(name).TaintEffect(reason.Rule); {
		case reason.Code == triage.Superseded:
			t.superseded++
		case effect == 0 || pol.err != nil && pol.inForce == nil:
		case effect < pol.rule.Response.Taint.Effect:
			t.heldBack++
		default:
			t.tainted++
		}
	}
	return t
}

// hasForeignTaint reports whether the node has the taint of the reason and another
// component placed it.
func hasForeignTaint(state *engine.Node, reason triage.Reason) bool {
	return slices.ContainsFunc(state.Object.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == reason.Key && string(t.Effect) == reason.Effect.String()
	}) && !slices.ContainsFunc(state.Taints, func(t triage.Taint) bool { return t.Key == reason.Key && t.Effect == reason.Effect })
}

// message returns the text of a reason. If our taint is not on the node, it adds why.
func (p *Policy) message(name string, reason triage.Reason) string {
	state := p.host.Node(name)
	if state == nil || reason.Key == "" || reason.Code == triage.DryRun || reason.Code == triage.OnHold {
		return reason.Sentence()
	}
	isThere := state.TaintEffect(reason.Rule) == reason.Effect
	refusal, delay := p.cfg.Taints.Problem(state, reason.Rule)
	switch {
	case isThere && refusal != "" && reason.Code == triage.FellBack && !reason.Until.IsZero(): // NoExecute was refused
		return reason.Sentence() + "; " + refusal
	case isThere:
		return reason.Sentence()
	case reason.Code == triage.Tainted && reason.Foreign > 0:
		return reason.Sentence()
	case hasForeignTaint(state, reason):
		return reason.Sentence() + "; the node already has this taint, set by another component"
	case delay != "":
		return reason.Sentence() + "; " + delay
	}
	return reason.Sentence() + "; being written"
}

// statusOf returns the status of a set in the API.
func (p *Policy) statusOf(pol *conditionSet, counts triage.Population) v1alpha1.ConditionSetStatus {
	return p.statusFor(pol, counts, pol.set.Generation, pol.status.Stored.Conditions)
}

// statusFor returns the status of a set for an object with this generation and these conditions.
func (p *Policy) statusFor(pol *conditionSet, counts triage.Population, generation int64, stored []metav1.Condition) v1alpha1.ConditionSetStatus {
	result := v1alpha1.ConditionSetStatus{
		ObservedGeneration: generation,
		Mode:               pol.switches().Mode(),
		Selected:           status.Count(counts.Selected),
		Matched:            status.Count(counts.Unhealthy),
		Nodes:              []v1alpha1.MatchedNode{},
		Conditions:         slices.Clone(stored),
	}
	switch {
	case pol.inForce != nil:
		result.AcceptedSpec = format.EncodeSpec(pol.inForce.Spec)
	case !pol.isRefused(): // it is not validated yet
		result.AcceptedSpec = pol.status.Stored.AcceptedSpec
	}
	if (pol.err == nil || pol.inForce != nil) && counts.Cap >= 0 {
		limit := status.Count(counts.Cap)
		result.MaxTainted = &limit
	}
	t := p.countNodes(pol)
	result.Tainted, result.HeldBack, result.Superseded = status.Count(t.tainted), status.Count(t.heldBack), status.Count(t.superseded)
	names := slices.Collect(maps.Keys(pol.nodes))
	slices.SortFunc(names, func(a, b string) int {
		one, other := pol.nodes[a], pol.nodes[b]
		return cmp.Or(cmp.Compare(one.Code, other.Code), one.Since.Compare(other.Since), cmp.Compare(a, b))
	})
	var heldBack triage.Reason
	for _, name := range names {
		reason := pol.nodes[name]
		if heldBack.Code == 0 && reason.Code == triage.FellBack {
			heldBack = p.host.CurrentReason(name, reason)
		}
		if len(result.Nodes) < v1alpha1.MaxListedNodes {
			reason = p.host.CurrentReason(name, reason)
			result.Nodes = append(result.Nodes, v1alpha1.MatchedNode{Name: name, Reason: reason.Code.String(), Message: p.message(name, reason)})
		}
	}
	p.setConditions(pol, &result, heldBack, pol.summarize(counts).Sentence(p.host.CurrentReason))
	pol.setOwnershipCondition(&result)
	return result
}

const keepsAccepted = status.KeepsAccepted

// setConditions sets the conditions of the set.
func (p *Policy) setConditions(pol *conditionSet, status *v1alpha1.ConditionSetStatus, heldBack triage.Reason, sentence string) {
	accepted := metav1.Condition{
		Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, Reason: "Followed",
		Message: "the set is in force", ObservedGeneration: status.ObservedGeneration,
	}
	switch switches := pol.switches(); {
	case switches.Observe:
		accepted.Reason, accepted.Message = "DryRun", "the set is evaluated, but places no taint"
	case switches.Paused != "":
		accepted.Reason, accepted.Message = "Paused", switches.Paused+": the set places no new taint"
	}
	switch {
	case pol.err != nil:
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, string(pol.problems[0].Reason), pol.problemMessage()
	case pol.proof.refused:
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, reasonHeld, pol.proof.message()
	case len(pol.proof.types) > 0:
		accepted.Reason, accepted.Message = reasonAwaitingReports, pol.proof.message()
		if pol.withholdsTaints() {
			accepted.Status = metav1.ConditionFalse
		}
	}
	keepsPrevious := pol.keepsPrevious()
	switch problem := p.configMapProblem(pol); {
	case problem != "" && accepted.Status == metav1.ConditionTrue:
		accepted.Status, accepted.Reason, accepted.Message, keepsPrevious = metav1.ConditionFalse, string(validate.Invalid), problem+keepsAccepted, true
	case problem != "":
		accepted.Message += "; " + problem
	}
	meta.SetStatusCondition(&status.Conditions, accepted)
	ready := accepted
	switch ready.Type = v1alpha1.Ready; {
	case ready.Status == metav1.ConditionTrue && ready.Reason == "Paused":
		ready.Message += "; " + sentence
	case ready.Status == metav1.ConditionTrue:
		ready.Message = sentence
	case keepsPrevious:
		ready.Message += "; " + sentence
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	bounded := metav1.Condition{
		Type: v1alpha1.HeldBack, Status: metav1.ConditionFalse, Reason: "NothingHeldBack",
		Message: "no node is kept from NoExecute", ObservedGeneration: status.ObservedGeneration,
	}
	if heldBack.Code != 0 {
		bounded.Status, bounded.Reason = metav1.ConditionTrue, heldBack.Code.String()
		bounded.Message = fmt.Sprintf("nodes with NoSchedule instead of NoExecute: %d; %s", status.HeldBack, heldBack.String())
	}
	meta.SetStatusCondition(&status.Conditions, bounded)
}
