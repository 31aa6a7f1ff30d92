package dialect

import (
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// Repair replaces the nodes of a pool that stay sick longer than they are
// tolerated. What is sick, the provider states; for how long it is tolerated,
// the pool may say.
type Repair struct {
	Name     string
	Selector triage.Selector

	// Statements are what the provider calls sick.
	Statements []RepairStatement
	// Policies are the pool's own tolerations, each for one condition.
	//
	// A policy for a condition that no statement names is a statement of its
	// own if it says in which status the condition is sick, and does nothing if
	// it does not.
	Policies []RepairPolicy
	// DefaultToleration is for every stated condition without a policy; empty
	// means what the provider recommends.
	DefaultToleration string

	// MaxUnhealthy is how many of the selected nodes may be in repair at once;
	// empty means 20%. A share is rounded down, but to no less than one.
	MaxUnhealthy string
	// Pool is who shares the bound; empty shares it with nobody.
	Pool string
	// Hold, when not empty, says why nothing new may begin.
	Hold string
}

// RepairStatement is one thing that a provider calls sick.
type RepairStatement struct {
	Type   string
	Status string // True, False or Unknown in any letter case
	// Toleration is what the provider recommends. It may be empty where the
	// pool decides.
	Toleration string
}

// RepairPolicy is how long a pool tolerates a condition.
type RepairPolicy struct {
	ConditionType string
	Toleration    string

	// ConditionStatus narrows the policy to one status; empty means every
	// status that is stated to be sick.
	ConditionStatus string
	// Reason narrows the policy to the conditions that carry it. There it holds
	// instead of what holds for any reason, be it shorter or longer.
	Reason string
}

// Rule compiles the repair policies of a pool.
func (r Repair) Rule() (triage.Rule, error) {
	var f fields
	p := r.read(&f)
	var when triage.When
	for _, s := range p.sick() {
		when.Signals = append(when.Signals, triage.Signal{
			Condition: s.condition, Status: s.status, Reason: s.reason,
			For: p.toleration(s),
		})
	}
	if len(when.Signals) == 0 {
		f.refuse("repair.policies", "", "nothing is stated to be sick: want a provider's statement, or a policy with a conditionStatus")
	}
	limit := f.limit("repair.maxUnhealthy", or(r.MaxUnhealthy, "20%"))
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: triage.Repair, Name: f.text("metadata.name", r.Name, "a repair policy needs a name")},
		Who:      r.Selector,
		When:     when,
		Bound:    triage.Bound{Cap: limit, Pool: r.Pool},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
		Hold:     r.Hold,
	})
}

// pool is a Repair whose text has been read.
type pool struct {
	statements []statement
	policies   []policy
	byDefault  time.Duration
	hasDefault bool
}

// sickness is a condition in a status, with any reason or with one.
type sickness struct {
	condition string
	status    triage.Status
	reason    string
}

type statement struct {
	sickness
	toleration time.Duration
}

type policy struct {
	sickness
	anyStatus  bool
	toleration time.Duration
}

// toleration is the order of resolution: the pool's policy for the condition,
// then the pool's default, then what the provider recommends.
func (p pool) toleration(s sickness) time.Duration {
	if policy, ok := p.policyFor(s); ok {
		return policy.toleration
	}
	if p.hasDefault {
		return p.byDefault
	}
	return p.recommended(s)
}

// policyFor finds the policy that speaks of s: one that names the status goes
// before one for every status.
func (p pool) policyFor(s sickness) (policy, bool) {
	var found policy
	ok := false
	for _, policy := range p.policies {
		if policy.speaksOf(s) && (!ok || found.anyStatus) {
			found, ok = policy, true
		}
	}
	return found, ok
}

func (p policy) speaksOf(s sickness) bool {
	if p.anyStatus {
		s.status = p.status
	}
	return p.sickness == s
}

func (p pool) recommended(s sickness) time.Duration {
	for _, statement := range p.statements {
		if statement.sickness == s {
			return statement.toleration
		}
	}
	return 0
}

// sick lists everything that makes a node of the pool sick: what the provider
// states, then what policies state on their own, then the reasons for which
// policies make an exception.
func (p pool) sick() []sickness {
	var list []sickness
	add := func(s sickness) {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	for _, statement := range p.statements {
		add(statement.sickness)
	}
	for _, policy := range p.policies {
		if !policy.anyStatus {
			add(policy.sickness)
		}
	}
	for _, policy := range p.policies {
		if !policy.anyStatus || policy.reason == "" {
			continue
		}
		for _, s := range slices.Clone(list) {
			if s.condition == policy.condition && s.reason == "" {
				add(sickness{s.condition, s.status, policy.reason})
			}
		}
	}
	return list
}

func (r Repair) read(f *fields) pool {
	var p pool
	if r.DefaultToleration != "" {
		p.byDefault = f.duration("repair.defaultTolerationDuration", r.DefaultToleration)
		p.hasDefault = true
	}
	written := map[policy]bool{}
	for i, given := range r.Policies {
		path := fmt.Sprintf("repair.policies[%d].", i)
		var read policy
		read.condition = f.text(path+"conditionType", given.ConditionType, "want a condition type such as Ready")
		read.reason = given.Reason
		read.anyStatus = given.ConditionStatus == ""
		if !read.anyStatus {
			read.status = f.status(path+"conditionStatus", given.ConditionStatus)
		}
		read.toleration = f.duration(path+"toleration", given.Toleration)
		what := policy{sickness: read.sickness, anyStatus: read.anyStatus}
		if written[what] {
			f.refuse(path+"conditionType", given.ConditionType, "there is a policy for this condition already")
		}
		written[what] = true
		p.policies = append(p.policies, read)
	}
	for i, given := range r.Statements {
		path := fmt.Sprintf("statements[%d].", i)
		s := sickness{
			condition: f.text(path+"type", given.Type, "want a condition type such as Ready"),
			status:    f.status(path+"status", given.Status),
		}
		if slices.ContainsFunc(p.statements, func(other statement) bool { return other.sickness == s }) {
			f.refuse(path+"type", given.Type, fmt.Sprintf("%s=%s is stated already", s.condition, s.status))
		}
		read := statement{sickness: s}
		_, hasPolicy := p.policyFor(s)
		if given.Toleration != "" || !hasPolicy && !p.hasDefault {
			read.toleration = f.duration(path+"toleration", given.Toleration)
		}
		p.statements = append(p.statements, read)
	}
	return p
}
