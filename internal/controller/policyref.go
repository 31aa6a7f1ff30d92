package controller

import (
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// policyRef is what is to be known of a policy that asks for remediation objects: a health
// check, or a repair policy for nodes that have no machine to be replaced.
type policyRef struct {
	owner      remediation.Owner
	generation int64
	ladder     []remediation.Template // of the version that is followed
	rule       triage.Rule            // likewise; its ID is zero if none is
}

// holder is whose name stands on the Lease of a node that is treated. A health check
// and a policy may have one name.
func holder(owner remediation.Owner) string {
	if owner.Kind == remediation.PolicyKind {
		return nodelease.HolderOf(policyRule(owner.Name))
	}
	return nodelease.HolderOf(owner.Name)
}

// isFollowed says whether some version of the policy is followed.
func (c *policyRef) isFollowed() bool { return c.rule.ID != triage.RuleID{} }

// policyOf returns that of a rule, nil if the policy is gone.
func (l *loop) policyOf(rule triage.RuleID) *policyRef {
	switch rule.Kind {
	case triage.NodeHealthCheck:
		if c := l.checks.known[rule.Name]; c != nil {
			return &policyRef{
				owner:      remediation.Owner{Kind: remediation.CheckKind, Name: rule.Name, UID: c.object.UID},
				generation: c.object.Generation, ladder: c.ladder, rule: c.rule,
			}
		}
	case triage.Repair:
		if r := l.repairs.followed[rule]; r != nil && r.policy != nil {
			return &policyRef{
				owner:      remediation.Owner{Kind: remediation.PolicyKind, Name: r.policy.object.Name, UID: r.policy.object.UID},
				generation: r.policy.object.Generation, ladder: r.ladder, rule: r.rule,
			}
		}
	}
	return nil
}

// ruleOf returns the rule that an object was made for, zero if none of ours was.
func ruleOf(o remediation.Object) triage.RuleID {
	switch o.Owner.Kind {
	case remediation.CheckKind:
		return checkRule(o.Owner.Name)
	case remediation.PolicyKind:
		return triage.RuleID{Kind: triage.Repair, Name: policyRule(o.Owner.Name)}
	}
	return triage.RuleID{}
}

// isOurs says whether one of our rules has made the object, and it is not left to
// another controller.
func (l *loop) isOurs(o remediation.Object) bool {
	return o.Owner.Kind == remediation.CheckKind && !l.checks.deferring || o.Owner.Kind == remediation.PolicyKind
}
