package dialect

import (
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Repair replaces nodes of a pool that stay unhealthy longer than tolerated. The provider
// states which conditions are unhealthy. The pool may change how long they are tolerated.
type Repair struct {
	Name     string
	Selector triage.Selector

	// Statements are the conditions that the provider states to be unhealthy.
	Statements []RepairStatement
	// Policies are the tolerations of the pool, each for one condition.
	//
	// A policy for a condition without a statement is itself a statement if it has a status.
	// Without a status it has no effect.
	Policies []RepairPolicy
	// DefaultToleration applies to stated conditions without a policy. Empty means the
	// toleration that the provider recommends, Never that they are not repaired.
	DefaultToleration string

	// UnhealthyThreshold is how many selected nodes may be unhealthy, in repair or not replaced
	// yet. Above it no new repair begins. Empty means 20%, or 49% of at most 5 nodes, because
	// 20% of so few nodes is a single node. A percentage is rounded up.
	UnhealthyThreshold string
	Concurrency
	// Pool names the rules that share the limit; empty means none.
	Pool string
	// Hold, if not empty, is the reason why nothing new may begin.
	Hold string
	// Windows are when repairs may begin; none means at any time.
	Windows []Window
}

// Concurrency limits how many selected nodes may be in repair at the same time. Empty means
// 20%. A percentage is rounded down, but to at least one.
type Concurrency struct {
	MaxConcurrent string
	MaxUnhealthy  string // the old name of MaxConcurrent
}

// limit returns the limit under either of its names.
func (c Concurrency) limit(f *fields) *triage.Limit {
	switch {
	case c.MaxUnhealthy == "":
		return f.limit("repair.maxConcurrent", orDefault(c.MaxConcurrent, "20%"))
	case c.MaxConcurrent != "":
		f.fail("repair.maxUnhealthy", c.MaxUnhealthy, "this is the old name of maxConcurrent, which is set too; want maxConcurrent alone, so remove maxUnhealthy")
	}
	return f.limit("repair.maxUnhealthy", c.MaxUnhealthy)
}

// thresholdField is the field that sets the gate of a repair policy.
const thresholdField = "unhealthyThreshold"

// The default threshold of few nodes.
const (
	fewNodes       = 5
	thresholdOfFew = 49
)

// threshold returns the gate of the rule.
func (r Repair) threshold(f *fields) *triage.Limit {
	gate := f.limit("repair."+thresholdField, orDefault(r.UnhealthyThreshold, "20%"))
	gate.RoundUp = gate.Percent
	if r.UnhealthyThreshold == "" {
		gate.Few, gate.FewNumber = fewNodes, thresholdOfFew
	}
	return gate
}

// RepairStatement is a condition that a provider states to be unhealthy.
type RepairStatement struct {
	Type   string
	Status string // True, False or Unknown in any letter case
	// Toleration is the recommendation of the provider. It may be empty if the pool decides.
	Toleration string
}

// RepairPolicy is how long a pool tolerates a condition.
type RepairPolicy struct {
	ConditionType string
	Toleration    string // Never means that the condition is not repaired

	// ConditionStatus limits the policy to a status. Empty means every status that is stated
	// to be unhealthy.
	ConditionStatus string
	// Reason limits the policy to conditions with this reason. For them it replaces the
	// toleration for any reason, whether shorter or longer.
	Reason string
	// Urgent lets repairs because of the condition begin outside the windows.
	Urgent bool
}

// Rule compiles the repair policies of a pool.
func (r Repair) Rule() (triage.Rule, error) {
	var f fields
	p := r.read(&f)
	var when triage.When
	for _, s := range p.unhealthyStates() {
		when.Signals = append(when.Signals, triage.Signal{
			Condition: s.condition, Status: s.status, Reason: s.reason,
			For: p.toleration(s), Urgent: p.isUrgent(s),
		})
	}
	if len(when.Signals) == 0 {
		f.fail("repair.policies", "", "nothing is stated to be unhealthy: want a provider's statement, or a policy with a conditionStatus")
	}
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: policykind.Repair, Name: f.text("metadata.name", r.Name, "a repair policy needs a name")},
		Stage:    policykind.StageRepair,
		Selector: r.Selector,
		When:     when,
		Bound:    triage.Bound{Gate: r.threshold(&f), GateName: thresholdField, Cap: r.limit(&f), Pool: r.Pool},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
		Hold:     r.Hold,
		Window:   f.windows("repair.windows", r.Windows),
	})
}

// parsedRepair is a Repair with parsed fields.
type parsedRepair struct {
	statements []statement
	policies   []policy
	byDefault  time.Duration
	hasDefault bool
}

// unhealthyState is a condition in a status, with a reason or with any.
type unhealthyState struct {
	condition string
	status    triage.Status
	reason    string
}

type statement struct {
	unhealthyState
	toleration time.Duration
}

type policy struct {
	unhealthyState
	anyStatus  bool
	urgent     bool
	toleration time.Duration
}

// toleration resolves the toleration in this order: the policy of the pool for the
// condition, the default of the pool, the recommendation of the provider.
func (p parsedRepair) toleration(s unhealthyState) time.Duration {
	if policy, ok := p.policyFor(s); ok {
		return policy.toleration
	}
	if p.hasDefault {
		return p.byDefault
	}
	return p.recommended(s)
}

// isUrgent says whether the policy of the pool for the condition is urgent.
func (p parsedRepair) isUrgent(s unhealthyState) bool {
	policy, _ := p.policyFor(s)
	return policy.urgent
}

// policyFor finds the policy for s. A policy that names the status wins over a policy for
// every status.
func (p parsedRepair) policyFor(s unhealthyState) (policy, bool) {
	var found policy
	ok := false
	for _, policy := range p.policies {
		if policy.matches(s) && (!ok || found.anyStatus) {
			found, ok = policy, true
		}
	}
	return found, ok
}

func (p policy) matches(s unhealthyState) bool {
	if p.anyStatus {
		s.status = p.status
	}
	return p.unhealthyState == s
}

func (p parsedRepair) recommended(s unhealthyState) time.Duration {
	for _, statement := range p.statements {
		if statement.unhealthyState == s {
			return statement.toleration
		}
	}
	return 0
}

// unhealthyStates lists all states that make a node of the pool unhealthy: the statements of
// the provider, the statements in policies, and the reasons with their own policy.
func (p parsedRepair) unhealthyStates() []unhealthyState {
	var list []unhealthyState
	add := func(s unhealthyState) {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	for _, statement := range p.statements {
		add(statement.unhealthyState)
	}
	for _, policy := range p.policies {
		if !policy.anyStatus {
			add(policy.unhealthyState)
		}
	}
	for _, policy := range p.policies {
		if !policy.anyStatus || policy.reason == "" {
			continue
		}
		for _, s := range slices.Clone(list) {
			if s.condition == policy.condition && s.reason == "" {
				add(unhealthyState{s.condition, s.status, policy.reason})
			}
		}
	}
	return list
}

func (r Repair) read(f *fields) parsedRepair {
	var p parsedRepair
	if r.DefaultToleration != "" {
		p.byDefault = f.toleration("repair.defaultTolerationDuration", r.DefaultToleration)
		p.hasDefault = true
	}
	written := map[policy]bool{}
	for i, given := range r.Policies {
		path := fmt.Sprintf("repair.policies[%d].", i)
		var read policy
		read.condition = f.text(path+"conditionType", given.ConditionType, "want a condition type like Ready")
		read.reason, read.urgent = given.Reason, given.Urgent
		read.anyStatus = given.ConditionStatus == ""
		if !read.anyStatus {
			read.status = f.status(path+"conditionStatus", given.ConditionStatus)
		}
		read.toleration = f.toleration(path+"toleration", given.Toleration)
		what := policy{unhealthyState: read.unhealthyState, anyStatus: read.anyStatus}
		if written[what] {
			f.fail(path+"conditionType", given.ConditionType, "there is a policy for this condition already")
		}
		written[what] = true
		p.policies = append(p.policies, read)
	}
	for i, given := range r.Statements {
		path := fmt.Sprintf("statements[%d].", i)
		s := unhealthyState{
			condition: f.text(path+"type", given.Type, "want a condition type like Ready"),
			status:    f.status(path+"status", given.Status),
		}
		if slices.ContainsFunc(p.statements, func(other statement) bool { return other.unhealthyState == s }) {
			f.fail(path+"type", given.Type, fmt.Sprintf("%s=%s is stated already", s.condition, s.status))
		}
		read := statement{unhealthyState: s}
		_, hasPolicy := p.policyFor(s)
		if given.Toleration != "" || !hasPolicy && !p.hasDefault {
			read.toleration = f.duration(path+"toleration", given.Toleration)
		}
		p.statements = append(p.statements, read)
	}
	return p
}
