package remediation

import (
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Requester is a policy that treats nodes with remediation objects.
type Requester interface {
	// Requests reports whether a rule is of this policy, and treats nodes.
	Requests(rule triage.RuleID) bool
	// Request returns what a rule of this policy asks for, nil if its object is gone.
	Request(rule triage.RuleID) *remediation.Request
	// MayRequest reports whether a rule of this policy treats a node with a remediation
	// object, if the node has none yet.
	MayRequest(n *engine.Node, rule triage.RuleID) bool
	// RuleOf returns the rule of the objects with this owner, zero if the owner is not of
	// this policy.
	RuleOf(owner remediation.Owner) triage.RuleID
	// IsDeferring reports whether another controller carries out this policy.
	IsDeferring() bool
	// ReadsConfirmations reports whether users may confirm the health of nodes with an
	// annotation.
	ReadsConfirmations() bool
	// References yields the kinds of templates and objects that the policy names.
	References() iter.Seq[schema.GroupVersionKind]
	// TemplatesChanged tells that templates, or the access to their kinds, have changed.
	TemplatesChanged()
	// CountRemediation counts a remediation because of a condition by its outcome.
	CountRemediation(rule triage.RuleID, condition, outcome string)
	// ObserveRecovery observes how long a remediation took.
	ObserveRecovery(rule triage.RuleID, object remediation.Object, took time.Duration)
	// ObserveObject observes a change of a remediation object of the policy.
	ObserveObject(object remediation.Object, change remediation.ObjectChange)
}

// requesterOf returns the policy of a rule, nil if no policy with remediation objects has
// the rule.
func (rm *Treatment) requesterOf(rule triage.RuleID) Requester {
	for _, r := range rm.requesters {
		if r.Requests(rule) {
			return r
		}
	}
	return nil
}

// request returns what a rule asks for, nil if its policy is gone.
func (rm *Treatment) request(rule triage.RuleID) *remediation.Request {
	if r := rm.requesterOf(rule); r != nil {
		return r.Request(rule)
	}
	return nil
}

// ruleOf returns the rule that an object was created for, zero if it is not ours.
func (rm *Treatment) ruleOf(o remediation.Object) triage.RuleID {
	for _, r := range rm.requesters {
		if rule := r.RuleOf(o.Owner); rule != (triage.RuleID{}) {
			return rule
		}
	}
	return triage.RuleID{}
}

// isDeferring reports whether another controller carries out the policy of a rule.
func (rm *Treatment) isDeferring(rule triage.RuleID) bool {
	r := rm.requesterOf(rule)
	return r != nil && r.IsDeferring()
}

// isOurs reports whether this controller's policies own the object.
func (rm *Treatment) isOurs(o remediationObject) bool { return rm.isTreatmentRule(o.rule) }

// isTreatmentRule reports whether this controller treats nodes for the rule, and not only
// with a taint.
func (rm *Treatment) isTreatmentRule(rule triage.RuleID) bool {
	r := rm.requesterOf(rule)
	return r != nil && !r.IsDeferring()
}

// namesTreatmentRule reports whether one of the reasons is about a treatment rule.
func (rm *Treatment) namesTreatmentRule(reasons []triage.Reason) bool {
	return slices.ContainsFunc(reasons, func(r triage.Reason) bool { return rm.isTreatmentRule(r.Rule) })
}
