package dialect_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// compiler is a policy that compiles to a rule.
type compiler interface {
	Rule() (triage.Rule, error)
}

func selector(t *testing.T, s string) triage.Selector {
	t.Helper()
	selector, err := triage.ParseSelector(s)
	testkit.Must(t, err)
	return selector
}

// precedences are the precedences of the rules by kind.
var precedences = map[triage.Kind]int{policykind.ConditionSet: 0, policykind.NodeHealthCheck: 1, policykind.Repair: 2, policykind.ReadyTimeout: 3}

// stages are the stages of the rules by kind.
var stages = map[triage.Kind]triage.Stage{
	policykind.ConditionSet: policykind.StageTaint, policykind.NodeHealthCheck: policykind.StageRemediate,
	policykind.Repair: policykind.StageRepair, policykind.ReadyTimeout: policykind.StageRepair,
}

// check compiles a policy and compares the rule.
func check(t *testing.T, given compiler, want triage.Rule) {
	t.Helper()
	want.Precedence, want.Stage = precedences[want.ID.Kind], stages[want.ID.Kind]
	got, err := given.Rule()
	testkit.Must(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("compiled to\n%s\nwant\n%s", show(got), show(want))
	}
}

func show(r triage.Rule) string {
	text, err := json.MarshalIndent(r, "  ", "  ")
	if err != nil {
		return err.Error()
	}
	return r.Selector.String() + "\n  " + string(text)
}

// refusal is the expected error for an invalid field.
type refusal struct {
	name  string
	given compiler
	field string
	value string
	says  string // part of the problem
}

func checkRefusals(t *testing.T, refusals []refusal) {
	t.Helper()
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			rule, err := test.given.Rule()
			var field *triage.FieldError
			testkit.Require(t, errors.As(err, &field), "error is %v, want a FieldError", err)
			if field.Field != test.field || field.Value != test.value {
				t.Errorf("refuses %s: %q, want %s: %q", field.Field, field.Value, test.field, test.value)
			}
			testkit.Check(t, strings.Contains(field.Problem, test.says), "problem is %q, want something with %q", field.Problem, test.says)
			if !reflect.DeepEqual(rule, triage.Rule{}) {
				t.Errorf("an invalid rule is returned:\n%s", show(rule))
			}
		})
	}
}

func TestConditionSet(t *testing.T) {
	gpu := selector(t, "pool=gpu")
	share := func(percent int) *triage.Limit { return &triage.Limit{Number: percent, Percent: true} }
	tests := []struct {
		name string
		set  dialect.ConditionSet
		want triage.Rule
	}{
		{
			name: "requires both conditions of the example",
			set: dialect.ConditionSet{
				Name: "conditionset-1", Effect: "NoExecute",
				TaintKey: "node.stakater.com/KubeletContainerRuntimeUnhealthy",
				Conditions: []dialect.SetCondition{
					{Type: "KubeletUnhealthy", Status: "true"},
					{Type: "ContainerRuntimeUnhealthy", Status: "unknown"},
				},
			},
			want: triage.Rule{
				ID: triage.RuleID{Kind: policykind.ConditionSet, Name: "conditionset-1"},
				When: triage.When{All: true, Signals: []triage.Signal{
					{Condition: "KubeletUnhealthy", Status: triage.True},
					{Condition: "ContainerRuntimeUnhealthy", Status: triage.Unknown},
				}},
				Bound: triage.Bound{Cap: share(49)},
				Response: triage.Response{Taint: &triage.TaintResponse{
					Key: "node.stakater.com/KubeletContainerRuntimeUnhealthy", Effect: triage.NoExecute,
				}},
			},
		},
		{
			name: "keeps every field",
			set: dialect.ConditionSet{
				Name: "full", TaintKey: "example.com/full", Effect: "NoExecute", Selector: gpu,
				Conditions:   []dialect.SetCondition{{Type: "XidError", Status: "UNKNOWN", Duration: "1h30m", EvenSilent: true}},
				MaxUnhealthy: "3", ControlPlane: true, DryRun: true, Hold: "paused by anna",
			},
			want: triage.Rule{
				ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: "full"},
				Selector: gpu,
				When: triage.When{All: true, Signals: []triage.Signal{
					{Condition: "XidError", Status: triage.Unknown, For: 90 * time.Minute, EvenSilent: true},
				}},
				Bound: triage.Bound{Cap: &triage.Limit{Number: 3}},
				Response: triage.Response{Taint: &triage.TaintResponse{
					Key: "example.com/full", Effect: triage.NoExecute, ControlPlane: true,
				}},
				DryRun: true, Hold: "paused by anna",
			},
		},
		{
			name: "has no cap with a weaker effect",
			set: dialect.ConditionSet{
				Name: "weak", TaintKey: "example.com/weak", Effect: "NoSchedule", MaxUnhealthy: "10%",
				Conditions: []dialect.SetCondition{{Type: "NTPProblem", Status: "True"}},
			},
			want: triage.Rule{
				ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: "weak"},
				When:     triage.When{All: true, Signals: []triage.Signal{{Condition: "NTPProblem", Status: triage.True}}},
				Response: triage.Response{Taint: &triage.TaintResponse{Key: "example.com/weak", Effect: triage.NoSchedule}},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { check(t, test.set, test.want) })
	}
}

func TestConditionSetRefuses(t *testing.T) {
	with := func(change func(*dialect.ConditionSet)) dialect.ConditionSet {
		set := dialect.ConditionSet{
			Name: "set", TaintKey: "example.com/set", Effect: "NoExecute",
			Conditions: []dialect.SetCondition{{Type: "A", Status: "True"}, {Type: "B", Status: "False", Duration: "5m"}},
		}
		if _, err := set.Rule(); err != nil {
			t.Fatalf("the set to start from: %v", err)
		}
		change(&set)
		return set
	}
	checkRefusals(t, []refusal{
		{"no name", with(func(s *dialect.ConditionSet) { s.Name = "" }), "metadata.name", "", "needs a name"},
		{"no taint key", with(func(s *dialect.ConditionSet) { s.TaintKey = "" }), "spec.taintKey", "", "needs a taint key"},
		{"no effect", with(func(s *dialect.ConditionSet) { s.Effect = "" }), "spec.effect", "", "NoExecute"},
		{"an effect in the wrong letter case", with(func(s *dialect.ConditionSet) { s.Effect = "noexecute" }), "spec.effect", "noexecute", "NoExecute"},
		{"no conditions", with(func(s *dialect.ConditionSet) { s.Conditions = nil }), "spec.conditions", "", "at least one"},
		{"a condition without a type", with(func(s *dialect.ConditionSet) { s.Conditions[1].Type = "" }), "spec.conditions[1]", "", "condition type"},
		{"a condition with a type that is too long", with(func(s *dialect.ConditionSet) { s.Conditions[1].Type = strings.Repeat("x", 317) }), "spec.conditions[1]", strings.Repeat("x", 317), "316"},
		{"a condition and its status", with(func(s *dialect.ConditionSet) { s.Conditions[1].Type = "A=True" }), "spec.conditions[A=True]", "A=True", "the condition type alone"},
		{"a condition named twice", with(func(s *dialect.ConditionSet) { s.Conditions[1].Type = "A" }), "spec.conditions[A]", "A", "twice"},
		{"an invalid status", with(func(s *dialect.ConditionSet) { s.Conditions[0].Status = "yes" }), "spec.conditions[A].status", "yes", "True, False or Unknown"},
		{"no status", with(func(s *dialect.ConditionSet) { s.Conditions[0].Status = "" }), "spec.conditions[A].status", "", "True, False or Unknown"},
		{"a status that no condition has", with(func(s *dialect.ConditionSet) { s.Conditions[0].Status = "missing" }), "spec.conditions[A].status", "missing", "True, False or Unknown"},
		{"a duration without a unit", with(func(s *dialect.ConditionSet) { s.Conditions[1].Duration = "5" }), "spec.conditions[B].duration", "5", "want a duration"},
		{"a negative duration", with(func(s *dialect.ConditionSet) { s.Conditions[1].Duration = "-5m" }), "spec.conditions[B].duration", "-5m", "negative"},
		{"an invalid limit", with(func(s *dialect.ConditionSet) { s.MaxUnhealthy = "half" }), "spec.maxUnhealthy", "half", "want a number"},
		{"a limit above 100%", with(func(s *dialect.ConditionSet) { s.MaxUnhealthy = "101%" }), "spec.maxUnhealthy", "101%", "100%"},
		{"a negative limit", with(func(s *dialect.ConditionSet) { s.MaxUnhealthy = "-1" }), "spec.maxUnhealthy", "-1", "want a number"},
		{"an invalid limit with a weaker effect", with(func(s *dialect.ConditionSet) { s.Effect, s.MaxUnhealthy = "NoSchedule", "half" }), "spec.maxUnhealthy", "half", "want a number"},
	})
}

func TestNodeHealthCheck(t *testing.T) {
	linux := selector(t, "kubernetes.io/os=linux")
	template := []dialect.RemediationStep{{Template: "group-x"}}
	readyFor300s := triage.When{Signals: []triage.Signal{
		{Condition: "Ready", Status: triage.False, For: 5 * time.Minute},
		{Condition: "Ready", Status: triage.Unknown, For: 5 * time.Minute},
	}}
	remediate := triage.Response{Ladder: []triage.Step{{Action: triage.Remediate, Ref: "group-x"}}}
	id := triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "nodehealthcheck-sample"}
	tests := []struct {
		name  string
		check dialect.NodeHealthCheck
		want  triage.Rule
	}{
		{
			name:  "adds every default to the example",
			check: dialect.NodeHealthCheck{Name: id.Name, Steps: template},
			want: triage.Rule{
				ID: id, When: readyFor300s, Response: remediate,
				Bound: triage.Bound{Gate: &triage.Limit{Number: 49, Percent: true, RoundUp: true}},
			},
		},
		{
			name:  "compiles minHealthy",
			check: dialect.NodeHealthCheck{Name: id.Name, Steps: template, MinHealthy: "51%"},
			want: triage.Rule{
				ID: id, When: readyFor300s, Response: remediate,
				Bound: triage.Bound{Gate: &triage.Limit{Number: 51, Percent: true, RoundUp: true, Healthy: true}},
			},
		},
		{
			name: "keeps every field",
			check: dialect.NodeHealthCheck{
				Name: id.Name, Selector: linux, MaxUnhealthy: "2", Hold: "paused by anna", StormCooldown: "90s", HealthyDelay: "10m",
				UnhealthyConditions: []dialect.UnhealthyCondition{
					{Type: "Ready", Status: "unknown", Duration: "10m"},
					{Type: "DiskPressure", Status: "True", Duration: "0s"},
				},
				Steps: []dialect.RemediationStep{{Template: "reboot", Timeout: "5m"}, {Template: "replace"}},
			},
			want: triage.Rule{
				ID: id, Selector: linux, Hold: "paused by anna",
				When: triage.When{Signals: []triage.Signal{
					{Condition: "Ready", Status: triage.Unknown, For: 10 * time.Minute},
					{Condition: "DiskPressure", Status: triage.True},
				}},
				Bound: triage.Bound{Gate: &triage.Limit{Number: 2}, Cooldown: 90 * time.Second},
				Response: triage.Response{Ladder: []triage.Step{
					{Action: triage.Remediate, Ref: "reboot", Timeout: 5 * time.Minute},
					{Action: triage.Remediate, Ref: "replace"},
				}},
				Recovery: triage.Recovery{Delay: 10 * time.Minute},
			},
		},
		{
			name:  "waits for a confirmation with a negative delay",
			check: dialect.NodeHealthCheck{Name: id.Name, Steps: template, MaxUnhealthy: "2", HealthyDelay: "-1ns"},
			want: triage.Rule{
				ID: id, When: readyFor300s, Response: remediate, Recovery: triage.Recovery{ByHand: true},
				Bound: triage.Bound{Gate: &triage.Limit{Number: 2}},
			},
		},
		{
			name:  "accepts zero delay, zero cooldown and the shortest timeout",
			check: dialect.NodeHealthCheck{Name: id.Name, Steps: []dialect.RemediationStep{{Template: "group-x", Timeout: "60s"}}, MaxUnhealthy: "2", HealthyDelay: "0s", StormCooldown: "0s"},
			want: triage.Rule{
				ID: id, When: readyFor300s,
				Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate, Ref: "group-x", Timeout: time.Minute}}},
				Bound:    triage.Bound{Gate: &triage.Limit{Number: 2}},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { check(t, test.check, test.want) })
	}
}

func TestNodeHealthCheckRefuses(t *testing.T) {
	with := func(change func(*dialect.NodeHealthCheck)) dialect.NodeHealthCheck {
		check := dialect.NodeHealthCheck{
			Name: "check",
			UnhealthyConditions: []dialect.UnhealthyCondition{
				{Type: "Ready", Status: "False", Duration: "300s"},
				{Type: "Ready", Status: "Unknown", Duration: "300s"},
			},
			Steps: []dialect.RemediationStep{{Template: "reboot", Timeout: "5m"}, {Template: "replace"}},
		}
		if _, err := check.Rule(); err != nil {
			t.Fatalf("the health check to start from: %v", err)
		}
		change(&check)
		return check
	}
	checkRefusals(t, []refusal{
		{"no name", with(func(c *dialect.NodeHealthCheck) { c.Name = "" }), "metadata.name", "", "needs a name"},
		{"a condition without a type", with(func(c *dialect.NodeHealthCheck) { c.UnhealthyConditions[1].Type = "" }), "spec.unhealthyConditions[1].type", "", "condition type"},
		{"an invalid status", with(func(c *dialect.NodeHealthCheck) { c.UnhealthyConditions[1].Status = "NotReady" }), "spec.unhealthyConditions[1].status", "NotReady", "True, False or Unknown"},
		{"a condition and status named twice", with(func(c *dialect.NodeHealthCheck) { c.UnhealthyConditions[1].Status = "false" }), "spec.unhealthyConditions[1].type", "Ready", "Ready=False is named twice"},
		{"no duration", with(func(c *dialect.NodeHealthCheck) { c.UnhealthyConditions[0].Duration = "" }), "spec.unhealthyConditions[0].duration", "", "want a duration"},
		{"a negative duration", with(func(c *dialect.NodeHealthCheck) { c.UnhealthyConditions[0].Duration = "-1s" }), "spec.unhealthyConditions[0].duration", "-1s", "negative"},
		{"a duration that overflows", with(func(c *dialect.NodeHealthCheck) { c.UnhealthyConditions[0].Duration = "9999999h" }), "spec.unhealthyConditions[0].duration", "9999999h", "want a duration"},
		{"both bounds", with(func(c *dialect.NodeHealthCheck) { c.MaxUnhealthy, c.MinHealthy = "49%", "51%" }), "spec.minHealthy", "51%", "not both"},
		{"an invalid maximum", with(func(c *dialect.NodeHealthCheck) { c.MaxUnhealthy = "49 %" }), "spec.maxUnhealthy", "49 %", "want a number"},
		{"an invalid minimum", with(func(c *dialect.NodeHealthCheck) { c.MinHealthy = "most" }), "spec.minHealthy", "most", "want a number"},
		{"no template", with(func(c *dialect.NodeHealthCheck) { c.Steps = nil }), "spec.remediationTemplate", "", "want a template"},
		{"a lone template without a name", with(func(c *dialect.NodeHealthCheck) { c.Steps = []dialect.RemediationStep{{}} }), "spec.remediationTemplate", "", "name of a template"},
		{"one of several templates without a name", with(func(c *dialect.NodeHealthCheck) { c.Steps[1].Template = "" }), "spec.escalatingRemediations[1].remediationTemplate", "", "name of a template"},
		{"an invalid timeout", with(func(c *dialect.NodeHealthCheck) { c.Steps[0].Timeout = "soon" }), "spec.escalatingRemediations[0].timeout", "soon", "want a duration"},
		{"a negative timeout", with(func(c *dialect.NodeHealthCheck) { c.Steps[1].Timeout = "-1m" }), "spec.escalatingRemediations[1].timeout", "-1m", "negative"},
		{"a timeout of less than a minute", with(func(c *dialect.NodeHealthCheck) { c.Steps[1].Timeout = "59.9s" }), "spec.escalatingRemediations[1].timeout", "59.9s", "at least a minute"},
		{"a timeout of zero", with(func(c *dialect.NodeHealthCheck) { c.Steps[0].Timeout = "0s" }), "spec.escalatingRemediations[0].timeout", "0s", "at least a minute"},
		{"an invalid delay", with(func(c *dialect.NodeHealthCheck) { c.HealthyDelay = "by hand" }), "spec.healthyDelay", "by hand", "want a duration"},
		{"an invalid cooldown", with(func(c *dialect.NodeHealthCheck) { c.StormCooldown = "soon" }), "spec.stormCooldownDuration", "soon", "want a duration"},
		{"a negative cooldown", with(func(c *dialect.NodeHealthCheck) { c.StormCooldown = "-5m" }), "spec.stormCooldownDuration", "-5m", "negative"},
	})
}

// The provider of the documented example, with its own recommendations.
var provider = []dialect.RepairStatement{
	{Type: "Ready", Status: "False", Toleration: "20m"},
	{Type: "NetworkUnavailable", Status: "True", Toleration: "15m"},
}

func TestRepair(t *testing.T) {
	type signal = triage.Signal
	tests := []struct {
		name   string
		repair dialect.Repair
		want   []signal
	}{
		{
			name:   "uses the recommendation of the provider without policies",
			repair: dialect.Repair{Statements: provider},
			want: []signal{
				{Condition: "Ready", Status: triage.False, For: 20 * time.Minute},
				{Condition: "NetworkUnavailable", Status: triage.True, For: 15 * time.Minute},
			},
		},
		{
			name:   "prefers the default of the pool over the recommendation",
			repair: dialect.Repair{Statements: provider, DefaultToleration: "30m"},
			want: []signal{
				{Condition: "Ready", Status: triage.False, For: 30 * time.Minute},
				{Condition: "NetworkUnavailable", Status: triage.True, For: 30 * time.Minute},
			},
		},
		{
			name: "prefers a policy over the default of the pool",
			repair: dialect.Repair{
				Statements:        append(provider[:2:2], dialect.RepairStatement{Type: "KernelReady", Status: "False", Toleration: "5m"}),
				DefaultToleration: "30m",
				Policies: []dialect.RepairPolicy{
					{ConditionType: "Ready", Toleration: "45m"},
					{ConditionType: "NetworkUnavailable", Toleration: "10m"},
				},
			},
			want: []signal{
				{Condition: "Ready", Status: triage.False, For: 45 * time.Minute},
				{Condition: "NetworkUnavailable", Status: triage.True, For: 10 * time.Minute},
				{Condition: "KernelReady", Status: triage.False, For: 30 * time.Minute},
			},
		},
		{
			name: "accepts a default of zero",
			repair: dialect.Repair{
				Statements: provider[:1], DefaultToleration: "0s",
			},
			want: []signal{{Condition: "Ready", Status: triage.False}},
		},
		{
			name: "needs no recommendation if the pool decides",
			repair: dialect.Repair{
				Statements: []dialect.RepairStatement{{Type: "Ready", Status: "False"}},
				Policies:   []dialect.RepairPolicy{{ConditionType: "Ready", Toleration: "45m"}},
			},
			want: []signal{{Condition: "Ready", Status: triage.False, For: 45 * time.Minute}},
		},
		{
			name: "prefers a policy with a status",
			repair: dialect.Repair{
				Statements: []dialect.RepairStatement{
					{Type: "Ready", Status: "False", Toleration: "20m"},
					{Type: "Ready", Status: "Unknown", Toleration: "20m"},
				},
				Policies: []dialect.RepairPolicy{
					{ConditionType: "Ready", Toleration: "45m"},
					{ConditionType: "Ready", ConditionStatus: "unknown", Toleration: "1h"},
				},
			},
			want: []signal{
				{Condition: "Ready", Status: triage.False, For: 45 * time.Minute},
				{Condition: "Ready", Status: triage.Unknown, For: time.Hour},
			},
		},
		{
			name: "treats a policy with a status as a statement",
			repair: dialect.Repair{
				Statements: provider[:1],
				Policies:   []dialect.RepairPolicy{{ConditionType: "XidError", ConditionStatus: "true", Toleration: "2m"}},
			},
			want: []signal{
				{Condition: "Ready", Status: triage.False, For: 20 * time.Minute},
				{Condition: "XidError", Status: triage.True, For: 2 * time.Minute},
			},
		},
		{
			name: "ignores a policy without a statement and without a status",
			repair: dialect.Repair{
				Statements: provider[:1],
				Policies: []dialect.RepairPolicy{
					{ConditionType: "XidError", Toleration: "2m"},
					{ConditionType: "XidError", Toleration: "1m", Reason: "Xid79"},
				},
			},
			want: []signal{{Condition: "Ready", Status: triage.False, For: 20 * time.Minute}},
		},
		{
			name: "changes only the reason of a policy",
			repair: dialect.Repair{
				Statements: provider[:1],
				Policies:   []dialect.RepairPolicy{{ConditionType: "Ready", Reason: "DiskGone", Toleration: "1m"}},
			},
			want: []signal{
				{Condition: "Ready", Status: triage.False, For: 20 * time.Minute},
				{Condition: "Ready", Status: triage.False, Reason: "DiskGone", For: time.Minute},
			},
		},
		{
			name: "states only the reason of a policy",
			repair: dialect.Repair{
				Policies: []dialect.RepairPolicy{
					{ConditionType: "XidError", ConditionStatus: "True", Reason: "Xid79", Toleration: "1m"},
					{ConditionType: "XidError", Toleration: "2m"},
				},
			},
			want: []signal{{Condition: "XidError", Status: triage.True, Reason: "Xid79", For: time.Minute}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.repair.Name = "default"
			check(t, test.repair, triage.Rule{
				ID:   triage.RuleID{Kind: policykind.Repair, Name: "default"},
				When: triage.When{Signals: test.want},
				Bound: triage.Bound{
					Gate: &triage.Limit{Number: 20, Percent: true, RoundUp: true, Few: 5, FewNumber: 49}, GateName: "unhealthyThreshold",
					Cap: &triage.Limit{Number: 20, Percent: true},
				},
				Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
			})
		})
	}
	for name, test := range map[string]struct {
		threshold   string
		concurrency dialect.Concurrency
		gate, limit triage.Limit
	}{
		"numbers":             {"3", dialect.Concurrency{MaxConcurrent: "2"}, triage.Limit{Number: 3}, triage.Limit{Number: 2}},
		"percentages":         {"50%", dialect.Concurrency{MaxConcurrent: "30%"}, triage.Limit{Number: 50, Percent: true, RoundUp: true}, triage.Limit{Number: 30, Percent: true}},
		"the written default": {"20%", dialect.Concurrency{MaxConcurrent: "20%"}, triage.Limit{Number: 20, Percent: true, RoundUp: true}, triage.Limit{Number: 20, Percent: true}},
		"the old name":        {"0", dialect.Concurrency{MaxUnhealthy: "2"}, triage.Limit{}, triage.Limit{Number: 2}},
	} {
		t.Run("keeps selector, bounds, pool and hold, with "+name, func(t *testing.T) {
			pool := selector(t, "karpenter.sh/nodepool=default")
			check(t, dialect.Repair{
				Name: "default", Selector: pool, Statements: provider[:1], UnhealthyThreshold: test.threshold, Concurrency: test.concurrency,
				Pool: "NodePool/default", Hold: "paused by anna",
			}, triage.Rule{
				ID:       triage.RuleID{Kind: policykind.Repair, Name: "default"},
				Selector: pool,
				When:     triage.When{Signals: []signal{{Condition: "Ready", Status: triage.False, For: 20 * time.Minute}}},
				Bound:    triage.Bound{Gate: &test.gate, GateName: "unhealthyThreshold", Cap: &test.limit, Pool: "NodePool/default"},
				Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
				Hold:     "paused by anna",
			})
		})
	}
}

func TestRepairRefuses(t *testing.T) {
	with := func(change func(*dialect.Repair)) dialect.Repair {
		repair := dialect.Repair{
			Name:       "default",
			Statements: append([]dialect.RepairStatement(nil), provider...),
			Policies: []dialect.RepairPolicy{
				{ConditionType: "Ready", Toleration: "45m"},
				{ConditionType: "XidError", ConditionStatus: "True", Toleration: "10m"},
			},
			DefaultToleration: "30m",
		}
		if _, err := repair.Rule(); err != nil {
			t.Fatalf("the repair to start from: %v", err)
		}
		change(&repair)
		return repair
	}
	checkRefusals(t, []refusal{
		{"no name", with(func(r *dialect.Repair) { r.Name = "" }), "metadata.name", "", "needs a name"},
		{"a policy without a condition", with(func(r *dialect.Repair) { r.Policies[0].ConditionType = "" }), "repair.policies[0].conditionType", "", "condition type"},
		{"a policy without a toleration", with(func(r *dialect.Repair) { r.Policies[0].Toleration = "" }), "repair.policies[0].toleration", "", "want a duration"},
		{"an invalid toleration", with(func(r *dialect.Repair) { r.Policies[1].Toleration = "10 minutes" }), "repair.policies[1].toleration", "10 minutes", "want a duration"},
		{"a negative toleration", with(func(r *dialect.Repair) { r.Policies[1].Toleration = "-10m" }), "repair.policies[1].toleration", "-10m", "negative"},
		{"an invalid status", with(func(r *dialect.Repair) { r.Policies[1].ConditionStatus = "bad" }), "repair.policies[1].conditionStatus", "bad", "True, False or Unknown"},
		{"a condition with two policies", with(func(r *dialect.Repair) {
			r.Policies = append(r.Policies, dialect.RepairPolicy{ConditionType: "Ready", Toleration: "1h"})
		}), "repair.policies[2].conditionType", "Ready", "already"},
		{"a condition and status with two policies", with(func(r *dialect.Repair) {
			r.Policies = append(r.Policies, dialect.RepairPolicy{ConditionType: "XidError", ConditionStatus: "true", Toleration: "1h"})
		}), "repair.policies[2].conditionType", "XidError", "already"},
		{"a reason with two policies", with(func(r *dialect.Repair) {
			r.Policies = []dialect.RepairPolicy{{ConditionType: "Ready", Reason: "DiskGone", Toleration: "1m"}, {ConditionType: "Ready", Reason: "DiskGone", Toleration: "2m"}}
		}), "repair.policies[1].conditionType", "Ready", "already"},
		{"an invalid default", with(func(r *dialect.Repair) { r.DefaultToleration = "long" }), "repair.defaultTolerationDuration", "long", "want a duration"},
		{"a negative default", with(func(r *dialect.Repair) { r.DefaultToleration = "-30m" }), "repair.defaultTolerationDuration", "-30m", "negative"},
		{"an invalid limit", with(func(r *dialect.Repair) { r.MaxConcurrent = "few" }), "repair.maxConcurrent", "few", "want a number"},
		{"an invalid limit with its old name", with(func(r *dialect.Repair) { r.MaxUnhealthy = "few" }), "repair.maxUnhealthy", "few", "want a number"},
		{"a limit with both names", with(func(r *dialect.Repair) { r.MaxUnhealthy, r.MaxConcurrent = "2", "2" }), "repair.maxUnhealthy", "2", "old name of maxConcurrent"},
		{"an invalid threshold", with(func(r *dialect.Repair) { r.UnhealthyThreshold = "101%" }), "repair.unhealthyThreshold", "101%", "more than 100%"},
		{"a statement without a type", with(func(r *dialect.Repair) { r.Statements[1].Type = "" }), "statements[1].type", "", "condition type"},
		{"a statement without a status", with(func(r *dialect.Repair) { r.Statements[1].Status = "" }), "statements[1].status", "", "True, False or Unknown"},
		{"a duplicate statement", with(func(r *dialect.Repair) { r.Statements[1] = r.Statements[0] }), "statements[1].type", "Ready", "Ready=False is stated already"},
		{"an invalid recommendation with a policy", with(func(r *dialect.Repair) { r.Statements[0].Toleration = "x" }), "statements[0].toleration", "x", "want a duration"},
		{"no toleration", with(func(r *dialect.Repair) { r.Statements[1].Toleration, r.DefaultToleration = "", "" }), "statements[1].toleration", "", "want a duration"},
		{"no unhealthy condition", with(func(r *dialect.Repair) { r.Statements, r.Policies = nil, r.Policies[:1] }), "repair.policies", "", "nothing is stated to be unhealthy"},
	})
}

func TestReadyTimeout(t *testing.T) {
	managed := selector(t, "karpenter.sh/nodepool")
	notReadyFor := func(d time.Duration) triage.When {
		return triage.When{Signals: []triage.Signal{
			{Condition: "Ready", Status: triage.False, For: d, FromCreation: true},
			{Condition: "Ready", Status: triage.Unknown, For: d, FromCreation: true},
			{Condition: "Ready", Status: triage.Missing, For: d, FromCreation: true},
			{Condition: "StartupTaints", Status: triage.True, For: d, FromCreation: true},
		}}
	}
	terminate := triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}}
	id := triage.RuleID{Kind: policykind.ReadyTimeout, Name: "default"}
	t.Run("defaults to ten minutes and 20%", func(t *testing.T) {
		check(t, dialect.ReadyTimeout{Name: "default"}, triage.Rule{
			ID: id, When: notReadyFor(10 * time.Minute), Response: terminate,
			Bound: triage.Bound{Cap: &triage.Limit{Number: 20, Percent: true}},
		})
	})
	t.Run("keeps every field", func(t *testing.T) {
		check(t, dialect.ReadyTimeout{Name: "default", Selector: managed, Timeout: "25m", Concurrency: dialect.Concurrency{MaxConcurrent: "1"}, Pool: "NodePool/default", Hold: "bad image"}, triage.Rule{
			ID: id, Selector: managed, When: notReadyFor(25 * time.Minute), Response: terminate,
			Bound: triage.Bound{Cap: &triage.Limit{Number: 1}, Pool: "NodePool/default"}, Hold: "bad image",
		})
	})
}

func TestReadyTimeoutRefuses(t *testing.T) {
	checkRefusals(t, []refusal{
		{"no name", dialect.ReadyTimeout{}, "metadata.name", "", "needs a name"},
		{"an invalid timeout", dialect.ReadyTimeout{Name: "x", Timeout: "ten"}, "repair.readyTimeout", "ten", "want a duration"},
		{"a negative timeout", dialect.ReadyTimeout{Name: "x", Timeout: "-10m"}, "repair.readyTimeout", "-10m", "negative"},
		{"a timeout of zero", dialect.ReadyTimeout{Name: "x", Timeout: "0s"}, "repair.readyTimeout", "0s", "some time"},
		{"an invalid limit", dialect.ReadyTimeout{Name: "x", Concurrency: dialect.Concurrency{MaxConcurrent: "few"}}, "repair.maxConcurrent", "few", "want a number"},
	})
}
