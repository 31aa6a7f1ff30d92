package remediation

import "github.com/resourcestack/autohealer/internal/triage"

// Request is what a policy asks of remediators for the nodes of one rule.
type Request struct {
	Owner      Owner // of the remediation objects
	Generation int64 // of the owner
	// Ladder and Rule are those of the followed version. The ID of the rule is zero for none.
	Ladder []Template
	Rule   triage.Rule
	// TakesSlot says that the ledger stores each remediation before its object is created.
	TakesSlot bool
}

// IsFollowed reports whether a version of the policy is in force.
func (r *Request) IsFollowed() bool { return r.Rule.ID != triage.RuleID{} }
