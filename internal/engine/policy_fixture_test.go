package engine

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// fakePolicy is a policy whose objects are names. It sets no rules by itself.
type fakePolicy struct {
	known map[triage.RuleID]bool
}

func (p *fakePolicy) Watch(context.Context)                               {}
func (p *fakePolicy) Ready(time.Time) bool                                { return true }
func (p *fakePolicy) Take(time.Time)                                      {}
func (p *fakePolicy) SetRules(context.Context, time.Time) (due time.Time) { return time.Time{} }
func (p *fakePolicy) WriteStatuses(context.Context, time.Time)            {}
func (p *fakePolicy) Size() (name string, objects int)                    { return "fakes", len(p.known) }

func (p *fakePolicy) Findings(triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	return nil, nil
}

func (p *fakePolicy) About(rule triage.RuleID, _ *corev1.Node) (s Subject) {
	if p.known[rule] {
		s.Policy = &corev1.ObjectReference{Kind: "Fake", Name: rule.Name}
	}
	return s
}

// setRule returns the rule of a condition set.
func setRule(name string) triage.RuleID {
	return triage.RuleID{Kind: policykind.ConditionSet, Name: name}
}
