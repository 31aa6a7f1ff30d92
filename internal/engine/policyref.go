package engine

import (
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// policyRef describes a policy that uses remediation objects: a health check, or a repair
// policy for nodes without a NodeClaim.
type policyRef struct {
	owner      remediation.Owner
	generation int64
	ladder     []remediation.Template // of the followed version
	rule       triage.Rule            // of the followed version; its ID is zero for none
}

// holder returns the holder identity for the Lease of a treated node. A health check and
// a repair policy may have the same name, so their holders differ.
func holder(owner remediation.Owner) string {
	if owner.Kind == remediation.PolicyKind {
		return nodelease.HolderOf(policyRule(owner.Name))
	}
	return nodelease.HolderOf(owner.Name)
}

// isFollowed reports whether a version of the policy is followed.
func (c *policyRef) isFollowed() bool { return c.rule.ID != triage.RuleID{} }

// policyOf returns the policy of a rule, nil if it is gone.
func (rm *remediations) policyOf(rule triage.RuleID) *policyRef {
	switch rule.Kind {
	case policykind.NodeHealthCheck:
		if c := rm.engine.checks.known[rule.Name]; c != nil {
			return &policyRef{
				owner:      remediation.Owner{Kind: remediation.CheckKind, Name: rule.Name, UID: c.object.UID},
				generation: c.object.Generation, ladder: c.ladder, rule: c.rule,
			}
		}
	case policykind.Repair:
		if r := rm.engine.repairs.followed[rule]; r != nil && r.policy != nil {
			return &policyRef{
				owner:      remediation.Owner{Kind: remediation.PolicyKind, Name: r.policy.object.Name, UID: r.policy.object.UID},
				generation: r.policy.object.Generation, ladder: r.ladder, rule: r.rule,
			}
		}
	}
	return nil
}

// ruleOf returns the rule that an object was created for, zero if it is not ours.
func ruleOf(o remediation.Object) triage.RuleID {
	switch o.Owner.Kind {
	case remediation.CheckKind:
		return checkRule(o.Owner.Name)
	case remediation.PolicyKind:
		return triage.RuleID{Kind: policykind.Repair, Name: policyRule(o.Owner.Name)}
	}
	return triage.RuleID{}
}

// isOurs reports whether this controller's policies own the object. Objects of health
// checks are not ours while deferring.
func (rm *remediations) isOurs(o remediation.Object) bool {
	return o.Owner.Kind == remediation.CheckKind && !rm.engine.checks.deferring || o.Owner.Kind == remediation.PolicyKind
}
