package taint

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// fixture is an engine with a writer whose writes the test answers.
type fixture struct {
	*enginetest.Fixture
	taints *Writer
	policy *fakePolicy
}

// open runs a test with a fixture in a synctest bubble.
func open(t *testing.T, test func(*fixture)) {
	t.Helper()
	enginetest.Run(t, func(f *enginetest.Fixture) {
		c := &fixture{Fixture: f, taints: New(f, "test", NewMetrics()), policy: &fakePolicy{known: map[triage.RuleID]bool{}}}
		c.AddPolicies(c.policy)
		c.SetNodeWriter(c.taints)
		test(c)
	})
}

// deliver delivers a node and returns its write.
func (c *fixture) deliver(node *corev1.Node) *nodeWrite {
	c.T.Helper()
	testkit.Must(c.T, c.NodeInbox().Update(node))
	c.Round(c.T.Context())
	return c.taints.getOrCreate(c.Node(node.Name))
}

// node delivers a node with a name.
func (c *fixture) node(name string) *nodeWrite { return c.deliver(enginetest.Named(name, "1")) }

// answer gives a write of a taint a result.
func (c *fixture) answer(wr *nodeWrite, result treat.Outcome, err error) {
	change := treat.Fence(wr.node.Object, "token")
	change.Placed = []triage.PlannedTaint{{Taint: triage.Taint{Rule: setRule("set"), Effect: triage.NoSchedule}}}
	c.taints.handleResult(time.Now(), writeResult{write: wr, change: change, result: result, err: err, version: wr.node.Object.ResourceVersion})
}

// planOf returns the plan of a node.
func (c *fixture) planOf(name string) (triage.Plan, error) {
	plan, ok := c.Core().Plan(name)
	if !ok {
		return plan, errors.New("there is no node " + name)
	}
	return plan, nil
}

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

func (p *fakePolicy) About(rule triage.RuleID, _ *corev1.Node) (s engine.Subject) {
	if p.known[rule] {
		s.Policy = &corev1.ObjectReference{Kind: "Fake", Name: rule.Name}
	}
	return s
}

// setRule returns the rule of a condition set.
func setRule(name string) triage.RuleID {
	return triage.RuleID{Kind: policykind.ConditionSet, Name: name}
}
