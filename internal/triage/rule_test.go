package triage_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

func validRule() triage.Rule {
	return triage.Rule{
		ID:    triage.RuleID{Kind: policykind.Repair, Name: "default"},
		Stage: policykind.StageRepair,
		When: triage.When{Signals: []triage.Signal{
			{Condition: "Ready", Status: triage.False, For: time.Minute},
			{Condition: "Ready", Status: triage.Unknown, For: time.Minute},
		}},
		Bound:    triage.Bound{Gate: &triage.Limit{Number: 49, Percent: true}, Cap: &triage.Limit{Number: 2}},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Reboot, Timeout: time.Minute}, {Action: triage.Terminate}}},
	}
}

func TestInvalidRules(t *testing.T) {
	set := func(r *triage.Rule, taint *triage.TaintResponse) {
		r.Bound.Gate, r.Response = nil, triage.Response{Taint: taint}
	}
	evict := &triage.TaintResponse{Key: "example.com/unhealthy", Effect: triage.NoExecute}
	tests := []struct {
		name         string
		spoil        func(r *triage.Rule)
		field, value string
	}{
		{"has no kind", func(r *triage.Rule) { r.ID.Kind = "" }, "id.kind", ""},
		{"has an invalid kind", func(r *triage.Rule) { r.ID.Kind = "a/b" }, "id.kind", "a/b"},
		{"has no name", func(r *triage.Rule) { r.ID.Name = "" }, "id.name", ""},
		{"has no stage", func(r *triage.Rule) { r.Stage = "" }, "stage", ""},
		{"has no signal", func(r *triage.Rule) { r.When.Signals = nil }, "when.signals", ""},
		{"has a signal without a condition", func(r *triage.Rule) { r.When.Signals[1].Condition = "" }, "when.signals[1].condition", ""},
		{"has an invalid status", func(r *triage.Rule) { r.When.Signals[0].Status = 9 }, "when.signals[0].status", "Status(9)"},
		{"has a negative duration", func(r *triage.Rule) { r.When.Signals[1].For = -time.Second }, "when.signals[1].for", "-1s"},
		{"mixes fromCreation within a condition", func(r *triage.Rule) { r.When.Signals[1].FromCreation = true }, "when.signals[1].fromCreation", "true"},
		{"has a negative gate", func(r *triage.Rule) { r.Bound.Gate.Number = -1 }, "bound.gate", "-1%"},
		{"has a gate above 100%", func(r *triage.Rule) { r.Bound.Gate.Number = 101 }, "bound.gate", "101%"},
		{"has a negative cap", func(r *triage.Rule) { r.Bound.Cap.Number = -3 }, "bound.cap", "-3"},
		{"has a cap on healthy nodes", func(r *triage.Rule) { r.Bound.Cap.Healthy = true }, "bound.cap", "2"},
		{"has no response", func(r *triage.Rule) { r.Response = triage.Response{} }, "response.ladder", ""},
		{"has two responses", func(r *triage.Rule) { r.Response.Taint = evict }, "response.taint", "example.com/unhealthy"},
		{"has an invalid step", func(r *triage.Rule) { r.Response.Ladder[1].Action = 0 }, "response.ladder[1].action", "Action(0)"},
		{"has a negative timeout", func(r *triage.Rule) { r.Response.Ladder[0].Timeout = -1 }, "response.ladder[0].timeout", "-1ns"},
		{"has a taint without a key", func(r *triage.Rule) { set(r, &triage.TaintResponse{Effect: triage.NoExecute}) }, "response.taint.key", ""},
		{"has an invalid effect", func(r *triage.Rule) { set(r, &triage.TaintResponse{Key: "example.com/unhealthy"}) }, "response.taint.effect", "Effect(0)"},
		{"has a taint in a pool", func(r *triage.Rule) { set(r, evict); r.Bound.Pool = "NodePool/a" }, "bound.pool", "NodePool/a"},
		{"has a negative cooldown", func(r *triage.Rule) { r.Bound.Cooldown = -time.Second }, "bound.cooldown", "-1s"},
		{"has a smaller percentage for few nodes", func(r *triage.Rule) { r.Bound.Gate.Few, r.Bound.Gate.FewNumber = 5, 48 }, "bound.gate", "49%"},
		{"has more than 100% for few nodes", func(r *triage.Rule) { r.Bound.Gate.Few, r.Bound.Gate.FewNumber = 5, 101 }, "bound.gate", "49%"},
		{"has a percentage for a negative number of nodes", func(r *triage.Rule) { r.Bound.Gate.Few, r.Bound.Gate.FewNumber = -5, 60 }, "bound.gate", "49%"},
		{"has a number that differs for few nodes", func(r *triage.Rule) { *r.Bound.Gate = triage.Limit{Number: 1, Few: 5, FewNumber: 60} }, "bound.gate", "1"},
		{"has a minimum of healthy nodes that differs for few nodes", func(r *triage.Rule) { r.Bound.Gate.Few, r.Bound.Gate.FewNumber, r.Bound.Gate.Healthy = 5, 60, true }, "bound.gate", "49%"},
		{"has a cooldown without a gate", func(r *triage.Rule) { r.Bound.Gate, r.Bound.Cooldown = nil, time.Minute }, "bound.cooldown", "1m0s"},
		{"has a cooldown of a taint", func(r *triage.Rule) { set(r, evict); r.Bound.Cooldown = time.Minute }, "bound.cooldown", "1m0s"},
		{"has a negative delay", func(r *triage.Rule) { r.Recovery.Delay = -time.Second }, "recovery.delay", "-1s"},
		{"has a delay and waits for a confirmation", func(r *triage.Rule) { r.Recovery = triage.Recovery{Delay: time.Minute, ByHand: true} }, "recovery.delay", "1m0s"},
		{"delays the end of a taint", func(r *triage.Rule) { set(r, evict); r.Recovery.Delay = time.Minute }, "recovery.delay", "1m0s"},
		{"confirms the end of a taint", func(r *triage.Rule) { set(r, evict); r.Recovery.ByHand = true }, "recovery.byHand", "true"},
		{"has a taint with a gate", func(r *triage.Rule) {
			gate := r.Bound.Gate
			set(r, evict)
			r.Bound.Gate = gate
		}, "bound.gate", "49%"},
		{"caps a taint that evicts no pods", func(r *triage.Rule) {
			set(r, &triage.TaintResponse{Key: "example.com/unhealthy", Effect: triage.NoSchedule})
		}, "bound.cap", "2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := validRule()
			tt.spoil(&r)
			core := triage.New()
			err := core.SetRule(time.Now(), r)
			var field *triage.FieldError
			testkit.Require(t, errors.As(err, &field), "error is %v, want a FieldError", err)
			if field.Field != tt.field || field.Value != tt.value {
				t.Errorf("error names field %q and value %q, want %q and %q", field.Field, field.Value, tt.field, tt.value)
			}
			testkit.Check(t, field.Problem != "" && strings.Contains(err.Error(), tt.field), "error %q does not say what is wrong and where", err)
			if _, ok := core.Population(r.ID); ok {
				t.Error("the rule is followed all the same")
			}
		})
	}
	t.Run("accepts a valid rule", func(t *testing.T) {
		r := validRule()
		r.Bound.Cooldown, r.Recovery.Delay = time.Minute, time.Minute
		for _, r := range []triage.Rule{validRule(), r} {
			if err := triage.New().SetRule(time.Now(), r); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestCodeNames(t *testing.T) {
	names := []string{
		"Treating", "Exhausted", "Tainted", "FellBack", "Kept", "Recovering", "Recovered", "Deselected", "RuleGone", "NodeGone", "CapFull", "NotAllowed", "GivenUp", "GateClosed",
		"CoolingDown", "ControlPlaneBusy", "Busy", "Vetoed", "OutsideWindow", "OnHold", "NodePaused", "Retrying", "DryRun", "Superseded", "Unclear", "Pending", "Partial", "Healthy", "NotSelected",
	}
	codes := []triage.Code{
		triage.Treating, triage.Exhausted, triage.Tainted, triage.FellBack, triage.Kept, triage.Recovering, triage.Recovered, triage.Deselected, triage.RuleGone, triage.NodeGone, triage.CapFull, triage.NotAllowed, triage.GivenUp,
		triage.GateClosed, triage.CoolingDown, triage.ControlPlaneBusy, triage.Busy, triage.Vetoed, triage.OutsideWindow, triage.OnHold, triage.NodePaused, triage.Retrying, triage.DryRun, triage.Superseded,
		triage.Unclear, triage.Pending, triage.Partial, triage.Healthy, triage.NotSelected,
	}
	for i, code := range codes {
		if code.String() != names[i] {
			t.Errorf("code %d is spelled %q, want %q", code, code, names[i])
		}
	}
	if last := codes[len(codes)-1] + 1; !strings.HasPrefix(last.String(), "Code(") {
		t.Errorf("%s is a code that this test does not know", last)
	}
}

// A rule on dry run without responses asks for nothing. A rule with responses releases them
// until they are gone, even after a restart.
func TestDryRunReleasesRestoredDecisions(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	rule := validRule()
	rule.Bound, rule.DryRun, rule.Hold = triage.Bound{}, true, "paused"
	rule.Response.Ladder = []triage.Step{{Action: triage.Terminate}}
	core := triage.New()
	mustSet(t, core, now, rule)
	for _, name := range []string{"a", "b"} {
		core.Observe(now, triage.Node{Name: name, UID: name, Created: now.Add(-time.Hour),
			Conditions: []triage.Condition{{Type: "Ready", Status: triage.False, Transition: now.Add(-time.Hour)}}})
	}
	core.Resume(now, triage.Grant{Rule: rule.ID, Node: "a", UID: "a", Since: now})
	core.Resume(now, triage.Grant{Rule: rule.ID, Node: "gone", UID: "gone", Since: now, Gone: now})
	core.Resume(now, triage.Grant{Rule: rule.ID, Node: "gone meanwhile", UID: "gone meanwhile", Since: now})
	core.Loaded(now)

	releases := func(node string, want int) {
		t.Helper()
		plan, _ := core.Plan(node)
		if plan.Treatment != nil || plan.Reason.Code != triage.DryRun || plan.Reason.Action != triage.Terminate || len(plan.Release) != want {
			t.Errorf("%s: %s; %d releases, want %d", node, plan.Reason, len(plan.Release), want)
		}
	}
	treated := func(want int) {
		t.Helper()
		if p, _ := core.Population(rule.ID); p.Treated != want || p.Unhealthy != 2 {
			t.Errorf("%d unhealthy and %d in treatment, want 2 and %d", p.Unhealthy, p.Treated, want)
		}
	}
	releases("a", 1)
	releases("b", 0)
	treated(3) // the decision in flight and the two nodes without a replacement
	core.Abandon(now, "a", rule.ID, time.Minute)
	releases("a", 0)
	treated(2)
	core.Advance(now.Add(triage.ReplacementWait))
	treated(0)
}

// The plan has the weaker taint and calls off the stronger one, each with its reason, until
// the caller abandons the stronger one.
func TestWeakerEffectCallsOffRestoredDecisions(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	rule := validRule()
	rule.ID.Kind, rule.Bound = policykind.ConditionSet, triage.Bound{}
	rule.Response = triage.Response{Taint: &triage.TaintResponse{Key: "example.com/unhealthy", Effect: triage.NoSchedule}}
	core := triage.New()
	mustSet(t, core, now, rule)
	core.Observe(now, triage.Node{Name: "a", UID: "a", Created: now.Add(-time.Hour),
		Conditions: []triage.Condition{{Type: "Ready", Status: triage.False, Transition: now.Add(-time.Hour)}}})
	grant := triage.Grant{Rule: rule.ID, Node: "a", UID: "a", Since: now.Add(-time.Second), Taint: true}
	core.Resume(now, grant)
	core.Loaded(now)

	const says = "ConditionSet/default: Ready=False since 2026-07-01T11:00:00Z, taint example.com/unhealthy:NoSchedule"
	plan, _ := core.Plan("a")
	if len(plan.Taints) != 1 || plan.Taints[0].Effect != triage.NoSchedule || plan.Reason.String() != says {
		t.Errorf("%s; taints are %v", plan.Reason, plan.Taints)
	}
	if len(plan.Release) != 1 || plan.Release[0].Code != triage.Tainted || plan.Release[0].String() != says+"; NoExecute is called off" {
		t.Errorf("releases are %v", plan.Release)
	}
	if grants := core.Grants(); len(grants) != 1 || grants[0] != grant {
		t.Errorf("grants are %+v, want %+v", grants, grant)
	}

	core.Abandon(now, "a", rule.ID, 0)
	plan, _ = core.Plan("a")
	if len(plan.Taints) != 1 || plan.Reason.String() != says || len(plan.Release) != 0 || len(core.Grants()) != 0 {
		t.Errorf("after that: %s; releases are %v, grants %+v", plan.Reason, plan.Release, core.Grants())
	}
}

// An invalid rule must not replace a valid rule.
func TestInvalidChangeKeepsTheRule(t *testing.T) {
	core := triage.New()
	testkit.Must(t, core.SetRule(time.Now(), validRule()))
	bad := validRule()
	bad.When.Signals = nil
	if err := core.SetRule(time.Now(), bad); err == nil {
		t.Fatal("a rule without signals was taken")
	}
	if p, ok := core.Population(bad.ID); !ok || p.Cap != 2 {
		t.Errorf("population is %+v, %v: the good rule is gone", p, ok)
	}
}

func TestLimit(t *testing.T) {
	tests := []struct {
		name  string
		limit triage.Limit
		// result for 0, 1, 3, 10 and 201 nodes
		want [5]int
	}{
		{"returns a number unchanged", triage.Limit{Number: 3}, [5]int{3, 3, 3, 3, 3}},
		{"rounds a percentage down to at least one", triage.Limit{Number: 20, Percent: true}, [5]int{1, 1, 1, 2, 40}},
		{"rounds a percentage up", triage.Limit{Number: 49, Percent: true, RoundUp: true}, [5]int{0, 1, 2, 5, 99}},
		{"takes a larger percentage of few nodes", triage.Limit{Number: 20, Percent: true, RoundUp: true, Few: 3, FewNumber: 49}, [5]int{0, 1, 2, 2, 41}},
		{"takes a larger percentage of few nodes, rounded down", triage.Limit{Number: 20, Percent: true, Few: 3, FewNumber: 70}, [5]int{1, 1, 2, 2, 40}},
		{"returns zero for 0%", triage.Limit{Number: 0, Percent: true}, [5]int{0, 0, 0, 0, 0}},
		{"returns all nodes for 100%", triage.Limit{Number: 100, Percent: true}, [5]int{1, 1, 3, 10, 201}},
		{"subtracts a minimum number of healthy nodes", triage.Limit{Number: 2, Healthy: true}, [5]int{0, 0, 1, 8, 199}},
		{"subtracts a minimum percentage of healthy nodes", triage.Limit{Number: 51, Percent: true, RoundUp: true, Healthy: true}, [5]int{0, 0, 1, 4, 98}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, selected := range []int{0, 1, 3, 10, 201} {
				if got := tt.limit.Of(selected); got != tt.want[i] {
					t.Errorf("of %d nodes: %d, want %d", selected, got, tt.want[i])
				}
			}
		})
	}
}

// The core remembers that it saw a node ready for work, even if the caller does not say so.
func TestReadyTimeoutIgnoresNodesSeenReady(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	rule := validRule()
	rule.ID = triage.RuleID{Kind: policykind.ReadyTimeout, Name: "all"}
	rule.Bound = triage.Bound{}
	for i := range rule.When.Signals {
		rule.When.Signals[i].FromCreation = true
	}
	core := triage.New()
	mustSet(t, core, now, rule)
	node := func(name string, ready triage.Status) triage.Node {
		return triage.Node{Name: name, Created: now.Add(-time.Hour), Conditions: []triage.Condition{{Type: "Ready", Status: ready, Transition: now}}}
	}
	core.Observe(now, node("was-ready", triage.True), node("never-ready", triage.False))
	core.Loaded(now)
	core.Observe(now.Add(time.Second), node("was-ready", triage.False))
	if plan, _ := core.Plan("was-ready"); plan.Treatment != nil || plan.Reason.Code != triage.Healthy {
		t.Errorf("a node that was ready: %s", plan.Reason)
	}
	if plan, _ := core.Plan("never-ready"); plan.Treatment == nil {
		t.Errorf("a node that never was: %s", plan.Reason)
	}
}

// A restored grant keeps its slot, even if the facts show only an earlier step.
func TestResumeKeepsTheStepInFlight(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	rule := validRule()
	rule.Bound = triage.Bound{Cap: &triage.Limit{Number: 1}}
	core := triage.New()
	mustSet(t, core, now, rule)
	unhealthy := func(name string, status triage.Status, treatments ...triage.Treatment) triage.Node {
		return triage.Node{Name: name, UID: name, Created: now.Add(-time.Hour), Treatments: treatments,
			Conditions: []triage.Condition{{Type: "Ready", Status: status, Transition: now.Add(-time.Hour)}}}
	}
	core.Observe(now, unhealthy("a", triage.False, triage.Treatment{Rule: rule.ID, Step: 0, Since: now.Add(-time.Second)}), unhealthy("b", triage.False))
	core.Resume(now, triage.Grant{Rule: rule.ID, Node: "a", UID: "a", Step: 1, Since: now})
	core.Loaded(now)
	core.Forget(now.Add(time.Second), "a")
	if plan, _ := core.Plan("b"); plan.Treatment != nil || plan.Reason.Code != triage.CapFull {
		t.Errorf("a was being terminated and has no replacement yet, but b: %s", plan.Reason)
	}
}

// The caller may change its rule after SetRule.
func TestSetRuleCopiesTheRule(t *testing.T) {
	now := time.Now()
	rule := validRule()
	core := triage.New()
	mustSet(t, core, now, rule)
	rule.Bound.Cap.Number = 5
	if p, _ := core.Population(rule.ID); p.Cap != 2 {
		t.Errorf("the cap is %d after the caller changed its own", p.Cap)
	}
	mustSet(t, core, now, rule)
	if p, _ := core.Population(rule.ID); p.Cap != 5 {
		t.Errorf("the cap is %d after the caller said so", p.Cap)
	}
}

// A decided termination continues, whatever the rule says now.
func TestEditedLadderKeepsADecidedTermination(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	rule := validRule()
	rule.Bound = triage.Bound{Cap: &triage.Limit{Number: 1}}
	rule.Response.Ladder = []triage.Step{{Action: triage.Terminate}}
	core := triage.New()
	mustSet(t, core, now, rule)
	for _, name := range []string{"a", "b"} {
		core.Observe(now, triage.Node{Name: name, UID: name, Created: now.Add(-time.Hour),
			Conditions: []triage.Condition{{Type: "Ready", Status: triage.False, Transition: now.Add(-time.Hour)}}})
	}
	core.Loaded(now)
	rule.Response.Ladder = []triage.Step{{Action: triage.Drain}}
	mustSet(t, core, now, rule)
	core.Forget(now.Add(time.Second), "a")
	if plan, _ := core.Plan("b"); plan.Treatment != nil || plan.Reason.Code != triage.CapFull {
		t.Errorf("a has no replacement yet, but b: %s", plan.Reason)
	}
	core.Advance(now.Add(time.Second + triage.ReplacementWait))
	if plan, _ := core.Plan("b"); plan.Treatment == nil {
		t.Errorf("a has been waited for long enough, but b: %s", plan.Reason)
	}
}
