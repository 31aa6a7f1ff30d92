package repair

import (
	"iter"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The treatment with remediation objects calls the methods in this file, for nodes without
// a machine.

// Requests reports whether the rule terminates nodes.
func (*Policy) Requests(rule triage.RuleID) bool { return isRepair(rule) }

// Request returns what the rule of a repair policy asks for.
func (r *Policy) Request(rule triage.RuleID) *remediation.Request {
	followed := r.followed[rule]
	if followed == nil || followed.policy == nil || rule.Kind != policykind.Repair {
		return nil
	}
	object := followed.policy.object
	return &remediation.Request{
		Owner:      remediation.Owner{Kind: remediation.PolicyKind, Name: object.Name, UID: object.UID},
		Generation: object.Generation, Ladder: followed.ladder, Rule: followed.rule, TakesSlot: true,
	}
}

// MayRequest reports whether the rule names a template, and the node has no machine that
// could be deleted and replaced.
func (r *Policy) MayRequest(n *engine.Node, rule triage.RuleID) bool {
	followed := r.followed[rule]
	if rule.Kind != policykind.Repair || followed == nil || len(followed.ladder) == 0 {
		return false
	}
	m, _ := r.machines.MachineOf(n.Object)
	return m == nil || r.nodeOf(n).isStandalone
}

// RuleOf returns the rule of the repair policy that owns an object.
func (*Policy) RuleOf(owner remediation.Owner) triage.RuleID {
	if owner.Kind != remediation.PolicyKind {
		return triage.RuleID{}
	}
	return triage.RuleID{Kind: policykind.Repair, Name: policyRule(owner.Name)}
}

// IsDeferring reports false: no other controller follows repair policies.
func (*Policy) IsDeferring() bool { return false }

// ReadsConfirmations reports false: no annotation confirms a repair.
func (*Policy) ReadsConfirmations() bool { return false }

// References yields the kinds that the followed and the newest version of each policy name.
func (r *Policy) References() iter.Seq[schema.GroupVersionKind] {
	return func(yield func(schema.GroupVersionKind) bool) {
		for _, pol := range r.policies {
			for _, version := range []*v1alpha1.RepairPolicy{pol.inForce, pol.object} {
				if version != nil && version.Spec.RemediationTemplate != nil && !remediation.YieldKinds(*version.Spec.RemediationTemplate, yield) {
					return
				}
			}
		}
	}
}

// TemplatesChanged marks the rules as outdated.
func (r *Policy) TemplatesChanged() { r.changed = true }
