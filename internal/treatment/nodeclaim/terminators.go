package nodeclaim

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// terminators are all policies that terminate nodes. They answer as one policy: each question
// about a rule goes to the policy of the rule.
type terminators []Terminator

// of returns the policy of a rule, nil for none.
func (all terminators) of(rule triage.RuleID) Terminator {
	for _, policy := range all {
		if policy.Requests(rule) {
			return policy
		}
	}
	return nil
}

func (all terminators) Requests(rule triage.RuleID) bool { return all.of(rule) != nil }

func (all terminators) Terminates(node string, rule triage.RuleID) bool {
	policy := all.of(rule)
	return policy != nil && policy.Terminates(node, rule)
}

func (all terminators) Termination(rule triage.RuleID) (how machine.Termination, isFollowed bool) {
	if policy := all.of(rule); policy != nil {
		return policy.Termination(rule)
	}
	return how, false
}

func (all terminators) VetoTermination(now time.Time, n *engine.Node, m machine.Machine, rule triage.RuleID) string {
	if policy := all.of(rule); policy != nil {
		return policy.VetoTermination(now, n, m, rule)
	}
	return ""
}

func (all terminators) VetoForcing(n *engine.Node, m machine.Machine, rule triage.RuleID) string {
	if policy := all.of(rule); policy != nil {
		return policy.VetoForcing(n, m, rule)
	}
	return ""
}

func (all terminators) CountsUnder(n *engine.Node, rule triage.RuleID) triage.RuleID {
	if policy := all.of(rule); policy != nil {
		return policy.CountsUnder(n, rule)
	}
	return rule
}

func (all terminators) HasPool(name string) bool {
	return slices.ContainsFunc(all, func(policy Terminator) bool { return policy.HasPool(name) })
}

func (all terminators) MachineChanged(now time.Time, m machine.Machine, was *ownership.Mark) {
	for _, policy := range all {
		policy.MachineChanged(now, m, was)
	}
}

func (all terminators) MachineRemoved(m machine.Machine) {
	for _, policy := range all {
		policy.MachineRemoved(m)
	}
}

func (all terminators) Terminated(now time.Time, m machine.Machine, t *engine.Task, outcome string, waited time.Duration) {
	if policy := all.of(t.Rule); policy != nil {
		policy.Terminated(now, m, t, outcome, waited)
	}
}
