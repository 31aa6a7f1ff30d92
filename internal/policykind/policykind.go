// Package policykind names the kinds of policies that this version knows, and the stages of rules.
// The core does not know them: it only compares the names. A stored record of another kind
// belongs to a newer version, so its readers leave it as it is.
package policykind

import (
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/triage"
)

// The kinds of policies. Stored records and metrics contain these names.
const (
	ConditionSet    triage.Kind = "ConditionSet"
	NodeHealthCheck triage.Kind = "NodeHealthCheck"
	Repair          triage.Kind = "Repair"
	ReadyTimeout    triage.Kind = "ReadyTimeout"
)

// all are the kinds in the order of precedence of their rules.
var all = []triage.Kind{ConditionSet, NodeHealthCheck, Repair, ReadyTimeout}

// The stages that Guardrails can stop. Each rule belongs to one of them.
const (
	StageTaint     triage.Stage = "Taint"
	StageRemediate triage.Stage = "Remediate"
	StageRepair    triage.Stage = "Repair"
)

// Stages returns all stages, from the least to the most disruptive.
func Stages() []triage.Stage { return []triage.Stage{StageTaint, StageRemediate, StageRepair} }

// Register adds a kind whose policy is in another module or test, so that stored records may
// name it. It must be called while packages are initialized.
func Register(kind triage.Kind) triage.Kind {
	all = append(all, kind)
	return kind
}

// Precedence returns the precedence of the rules of a kind.
func Precedence(kind triage.Kind) int { return slices.Index(all, kind) }

// ParseRuleID parses the result of [triage.RuleID.String]. A kind that this version does not
// know is an error.
func ParseRuleID(s string) (triage.RuleID, error) {
	kind, name, _ := strings.Cut(s, "/")
	if name == "" || !slices.Contains(all, triage.Kind(kind)) {
		return triage.RuleID{}, &triage.FieldError{Field: "rule", Value: s, Problem: "want a kind and a name, for example ConditionSet/kernel-deadlock"}
	}
	return triage.RuleID{Kind: triage.Kind(kind), Name: name}, nil
}

// Policy is the object that a rule comes from, as metrics name it. The ready timeout of a
// NodePool is a policy of its own, with the kind ReadyTimeout.
type Policy struct{ Kind, Name string }

// PolicyOf returns the policy of a rule. The rules of repairs have names for the controller:
// NodePool/x, RepairPolicy/y, RepairPolicy/y/x for a policy in a NodePool, and the name of
// the NodePool for its ready timeout.
func PolicyOf(rule triage.RuleID) Policy {
	owner, name, hasOwner := strings.Cut(rule.Name, "/")
	if rule.Kind != Repair || !hasOwner {
		return Policy{string(rule.Kind), rule.Name}
	}
	name, _, _ = strings.Cut(name, "/")
	return Policy{owner, name}
}

// Labels returns the labels that metrics of policies have, and additional ones.
func Labels(more ...string) []string { return append([]string{"policy_kind", "policy"}, more...) }

// Match returns the labels of a policy, to delete its series.
func (p Policy) Match() map[string]string {
	return map[string]string{"policy_kind": p.Kind, "policy": p.Name}
}

// PoolField returns the field of a NodePool that contains a rule, and the name of the pool. The
// field is empty if a policy of its own has the rule.
func PoolField(rule triage.RuleID) (field, pool string) {
	switch policy := PolicyOf(rule); {
	case rule.Kind == ReadyTimeout:
		return "readyTimeout", policy.Name
	case rule.Kind == Repair && policy.Kind == "NodePool":
		return "spec.repair", policy.Name
	}
	return "", ""
}

// Describe names the policy of a rule for users.
func Describe(rule triage.RuleID) string {
	if field, pool := PoolField(rule); field != "" {
		return field + " of NodePool " + pool
	}
	if rule.Kind == Repair {
		policy := PolicyOf(rule)
		return policy.Kind + " " + policy.Name
	}
	return rule.String()
}
