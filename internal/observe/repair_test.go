package observe_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// exampleProvider has the statements of the provider in the documented example.
var exampleProvider = []dialect.RepairStatement{
	{Type: "Ready", Status: "False", Toleration: "20m"},
	{Type: "NetworkUnavailable", Status: "True", Toleration: "15m"},
}

// exampleBlock is the block of the NodePool in the documented example, after a change.
func exampleBlock(change func(*v1alpha1.RepairSpec)) *v1alpha1.RepairSpec {
	block := &v1alpha1.RepairSpec{
		DefaultTolerationDuration: "30m",
		Policies: []v1alpha1.ConditionRepair{
			{ConditionType: "Ready", Toleration: "45m"},
			{ConditionType: "NetworkUnavailable", Toleration: "10m"},
		},
	}
	change(block)
	return block
}

func unchanged(*v1alpha1.RepairSpec) {}

// repairOf compiles a valid block of the pool default.
func repairOf(t *testing.T, block *v1alpha1.RepairSpec) triage.Rule {
	t.Helper()
	return testkit.Value(observe.Repair("NodePool/default", "default", block, exampleProvider, nil)).Must(t)
}

// The two nodes of the documented example, and when they are due.
func TestRepairIsDueAsDocumented(t *testing.T) {
	at := func(text string) time.Time {
		return testkit.Value(time.Parse(time.RFC3339, text)).Must(t)
	}
	for name, example := range map[string]struct {
		condition corev1.NodeCondition
		due       time.Time
	}{
		"a node without network": {corev1.NodeCondition{
			Type: "NetworkUnavailable", Status: "True", Reason: "Network is not available", Message: "no connection",
			LastTransitionTime: metav1.NewTime(at("2024-11-01T15:02:48Z")),
		}, at("2024-11-01T15:12:48Z")},
		"a node that is not ready": {corev1.NodeCondition{
			Type: "Ready", Status: "False", Reason: "KubeletReady", Message: "kubelet is posting ready status",
			LastTransitionTime: metav1.NewTime(at("2024-11-01T15:02:48Z")),
		}, at("2024-11-01T15:47:48Z")},
	} {
		t.Run(name, func(t *testing.T) {
			facts := testkit.Value(observe.Node(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "unhealthy", UID: "u", CreationTimestamp: metav1.NewTime(at("2024-11-01T12:00:00Z"))},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{example.condition}},
			})).Must(t)
			facts.Assigned = []triage.RuleID{{Kind: policykind.Repair, Name: "NodePool/default"}}
			now := at("2024-11-01T15:03:00Z")
			core := triage.New()
			testkit.Must(t, core.SetRule(now, repairOf(t, exampleBlock(unchanged))))
			core.Observe(now, facts)
			core.Loaded(now)
			plan := func(now time.Time) triage.Plan {
				core.Advance(now)
				plan, _ := core.Plan("unhealthy")
				return plan
			}
			if waiting := plan(now); waiting.Treatment != nil || !waiting.Next.Equal(example.due) {
				t.Errorf("is due at %s, want %s: %s", waiting.Next, example.due, waiting.Reason)
			}
			if early := plan(example.due.Add(-time.Nanosecond)); early.Treatment != nil {
				t.Errorf("is treated too early: %s", early.Reason)
			}
			if due := plan(example.due); due.Treatment == nil || due.Treatment.Action != triage.Terminate {
				t.Errorf("is not terminated when it is due: %s", due.Reason)
			}
		})
	}
}

func TestRepair(t *testing.T) {
	type signals = []triage.Signal
	ready := triage.Signal{Condition: "Ready", Status: triage.False, For: 45 * time.Minute}
	network := triage.Signal{Condition: "NetworkUnavailable", Status: triage.True, For: 10 * time.Minute}
	policies := func(list ...v1alpha1.ConditionRepair) func(*v1alpha1.RepairSpec) {
		return func(s *v1alpha1.RepairSpec) { s.Policies = list }
	}
	tests := []struct {
		name   string
		change func(*v1alpha1.RepairSpec)
		want   func(*triage.Rule)
	}{
		{"the documented block", unchanged, func(*triage.Rule) {}},
		{"first the policy, then the pool's default", policies(v1alpha1.ConditionRepair{ConditionType: "Ready", Toleration: "45m"}),
			func(r *triage.Rule) { r.When.Signals[1].For = 30 * time.Minute }},
		{"then what the provider recommends", func(s *v1alpha1.RepairSpec) { s.Policies, s.DefaultTolerationDuration = s.Policies[:1], "" },
			func(r *triage.Rule) { r.When.Signals[1].For = 15 * time.Minute }},
		{"an empty block uses the recommendations", func(s *v1alpha1.RepairSpec) { *s = v1alpha1.RepairSpec{} },
			func(r *triage.Rule) { r.When.Signals[0].For, r.When.Signals[1].For = 20*time.Minute, 15*time.Minute }},
		{"accepts a default of zero", func(s *v1alpha1.RepairSpec) { s.Policies, s.DefaultTolerationDuration = nil, "0s" },
			func(r *triage.Rule) { r.When.Signals[0].For, r.When.Signals[1].For = 0, 0 }},
		{"a policy with a status is a statement", policies(
			v1alpha1.ConditionRepair{ConditionType: "Ready", Toleration: "45m"},
			v1alpha1.ConditionRepair{ConditionType: "Ready", ConditionStatus: "Unknown", Toleration: "1h"},
			v1alpha1.ConditionRepair{ConditionType: "NetworkUnavailable", Toleration: "10m"},
		), func(r *triage.Rule) {
			r.When.Signals = signals{ready, network, {Condition: "Ready", Status: triage.Unknown, For: time.Hour}}
		}},
		{"a policy without a statement and without a status has no effect", func(s *v1alpha1.RepairSpec) {
			s.Policies = append(s.Policies, v1alpha1.ConditionRepair{ConditionType: "XidError", Toleration: "1m"})
		}, func(*triage.Rule) {}},
		{"a reason is an exception", func(s *v1alpha1.RepairSpec) {
			s.Policies = append(s.Policies, v1alpha1.ConditionRepair{ConditionType: "Ready", Reason: "DiskGone", Toleration: "1m"})
		}, func(r *triage.Rule) {
			r.When.Signals = signals{ready, network, {Condition: "Ready", Status: triage.False, Reason: "DiskGone", For: time.Minute}}
		}},
		{"a bound by a number", func(s *v1alpha1.RepairSpec) { s.MaxConcurrent = new(intstr.FromInt32(3)) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 3} }},
		{"a bound by a percentage", func(s *v1alpha1.RepairSpec) { s.MaxConcurrent = new(intstr.FromString("50%")) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 50, Percent: true} }},
		{"a bound with its old name", func(s *v1alpha1.RepairSpec) { s.MaxUnhealthy = new(intstr.FromInt32(3)) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 3} }},
		{"a threshold", func(s *v1alpha1.RepairSpec) { s.UnhealthyThreshold = new(intstr.FromString("50%")) },
			func(r *triage.Rule) { r.Bound.Gate = &triage.Limit{Number: 50, Percent: true, RoundUp: true} }},
		{"a bound of zero", func(s *v1alpha1.RepairSpec) { s.MaxConcurrent = new(intstr.FromInt32(0)) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{} }},
		{"enabled explicitly", func(s *v1alpha1.RepairSpec) { s.Enabled = new(true) }, func(*triage.Rule) {}},
		{"switched off", func(s *v1alpha1.RepairSpec) { s.Enabled = new(false) },
			func(r *triage.Rule) { r.Hold = "repair is switched off: spec.repair.enabled is false" }},
		{"the termination is not part of the rule", func(s *v1alpha1.RepairSpec) {
			s.Termination, s.TerminationGracePeriod, s.ReadyTimeout = "Graceful", "1h", "20m"
		}, func(*triage.Rule) {}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := triage.Rule{
				ID:         triage.RuleID{Kind: policykind.Repair, Name: "NodePool/default"},
				Precedence: 2, Stage: policykind.StageRepair,
				AssignedOnly: true,
				When:         triage.When{Signals: signals{ready, network}},
				Bound: triage.Bound{
					Gate: &triage.Limit{Number: 20, Percent: true, RoundUp: true, Few: 5, FewNumber: 49}, GateName: "unhealthyThreshold",
					Cap: &triage.Limit{Number: 20, Percent: true}, Pool: "NodePool/default",
				},
				Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
			}
			test.want(&want)
			testkit.Equal(t, "rule", want, repairOf(t, exampleBlock(test.change)), bySelectorText)
		})
	}
}

func TestRepairOfPlainNodes(t *testing.T) {
	template := &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "default", Name: "quick"}
	rule := testkit.Value(observe.Repair("RepairPolicy/plain", "", exampleBlock(unchanged), exampleProvider, template)).Must(t)
	if rule.ID.String() != "Repair/RepairPolicy/plain" || rule.Bound.Pool != "" {
		t.Errorf("is %s, and shares the bound of %q", rule.ID, rule.Bound.Pool)
	}
	if want := "example.com/v1/RebootTemplate default/quick"; rule.Response.Ladder[0].Ref != want {
		t.Errorf("refers to %q, want %q", rule.Response.Ladder[0].Ref, want)
	}
	template.Kind = "Reboot"
	var field *triage.FieldError
	if _, err := observe.Repair("RepairPolicy/plain", "", exampleBlock(unchanged), exampleProvider, template); !errors.As(err, &field) || field.Field != "spec.remediationTemplate.kind" {
		t.Errorf("a template that is none: %v", err)
	}
}

// The default bound is a fifth of the nodes, rounded down, but at least one.
func TestRepairBoundsAFifthAndAtLeastOne(t *testing.T) {
	limit := repairOf(t, exampleBlock(unchanged)).Bound.Cap
	for nodes, want := range map[int]int{1: 1, 4: 1, 5: 1, 9: 1, 10: 2, 14: 2, 15: 3, 100: 20} {
		if got := limit.Of(nodes); got != want {
			t.Errorf("%d of %d nodes, want %d", got, nodes, want)
		}
	}
}

func TestReadyTimeout(t *testing.T) {
	rule := func(timeout time.Duration, change func(*triage.Rule)) triage.Rule {
		r := triage.Rule{
			ID:         triage.RuleID{Kind: policykind.ReadyTimeout, Name: "default"},
			Precedence: 3, Stage: policykind.StageRepair,
			AssignedOnly: true,
			When: triage.When{Signals: []triage.Signal{
				{Condition: "Ready", Status: triage.False, For: timeout, FromCreation: true},
				{Condition: "Ready", Status: triage.Unknown, For: timeout, FromCreation: true},
				{Condition: "Ready", Status: triage.Missing, For: timeout, FromCreation: true},
				{Condition: triage.StartupTaints, Status: triage.True, For: timeout, FromCreation: true},
			}},
			Bound:    triage.Bound{Cap: &triage.Limit{Number: 20, Percent: true}, Pool: "NodePool/default"},
			Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
		}
		change(&r)
		return r
	}
	tests := []struct {
		name  string
		block *v1alpha1.RepairSpec
		want  triage.Rule
	}{
		{"without a block the timeout of the cluster applies", nil, rule(10*time.Minute, func(*triage.Rule) {})},
		{"a block without a timeout", exampleBlock(unchanged), rule(10*time.Minute, func(*triage.Rule) {})},
		{"a timeout of the pool", &v1alpha1.RepairSpec{ReadyTimeout: "25m"}, rule(25*time.Minute, func(*triage.Rule) {})},
		{"the pool's bound", &v1alpha1.RepairSpec{MaxConcurrent: new(intstr.FromInt32(1))},
			rule(10*time.Minute, func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 1} })},
		{"switched off with the block", &v1alpha1.RepairSpec{Enabled: new(false)},
			rule(10*time.Minute, func(r *triage.Rule) { r.Hold = "repair is switched off: spec.repair.enabled is false" })},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := testkit.Value(observe.ReadyTimeout("default", test.block, 10*time.Minute)).Must(t)
			testkit.Equal(t, "rule", test.want, got, bySelectorText)
		})
	}
}

func TestReadyTimeoutRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		block *v1alpha1.RepairSpec
		field string
	}{
		"a block that cannot be read": {&v1alpha1.RepairSpec{Unreadable: "it is a number"}, "spec.repair"},
		"an invalid time":             {&v1alpha1.RepairSpec{ReadyTimeout: "long"}, "spec.repair.readyTimeout"},
		"no time":                     {&v1alpha1.RepairSpec{ReadyTimeout: "0s"}, "spec.repair.readyTimeout"},
		"a bad bound":                 {&v1alpha1.RepairSpec{MaxConcurrent: new(intstr.FromInt32(-1))}, "spec.repair.maxConcurrent"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := observe.ReadyTimeout("default", test.block, 10*time.Minute)
			var field *triage.FieldError
			testkit.Check(t, errors.As(err, &field) && field.Field == test.field, "refuses %v, want %s", err, test.field)
		})
	}
}

func TestRepairNamesTheInvalidField(t *testing.T) {
	first := func(change func(*v1alpha1.ConditionRepair)) func(*v1alpha1.RepairSpec) {
		return func(s *v1alpha1.RepairSpec) { change(&s.Policies[0]) }
	}
	const policy = "spec.repair.policies[0]."
	tests := []struct {
		name   string
		change func(*v1alpha1.RepairSpec)
		field  string
		value  string
		says   string
	}{
		{"an unreadable spec", func(s *v1alpha1.RepairSpec) { s.Unreadable = "policies: " + strings.Repeat("x", 1000) }, "spec.repair", "", "kubectl explain repairpolicy.spec.repair"},
		{"a crowd of policies", func(s *v1alpha1.RepairSpec) { s.Policies = make([]v1alpha1.ConditionRepair, 65) }, "spec.repair.policies", "65", "at most 64"},
		{"a policy without a condition", first(func(p *v1alpha1.ConditionRepair) { p.ConditionType = "" }), policy + "conditionType", "", "condition type"},
		{"a condition and its status", first(func(p *v1alpha1.ConditionRepair) { p.ConditionType = "Ready=False" }), policy + "conditionType", "Ready=False", "alone"},
		{"a condition without an end", first(func(p *v1alpha1.ConditionRepair) { p.ConditionType = strings.Repeat("x", 317) }), policy + "conditionType", strings.Repeat("x", 97) + "...", "316"},
		{"no toleration", first(func(p *v1alpha1.ConditionRepair) { p.Toleration = "" }), policy + "toleration", "", "duration"},
		{"an invalid toleration", first(func(p *v1alpha1.ConditionRepair) { p.Toleration = "long" }), policy + "toleration", "long", "duration"},
		{"a negative toleration", first(func(p *v1alpha1.ConditionRepair) { p.Toleration = "-1m" }), policy + "toleration", "-1m", "negative"},
		{"an invalid status", first(func(p *v1alpha1.ConditionRepair) { p.ConditionStatus = "bad" }), policy + "conditionStatus", "bad", "True, False or Unknown"},
		{"a condition twice", func(s *v1alpha1.RepairSpec) { s.Policies[1].ConditionType = "Ready" }, "spec.repair.policies[1].conditionType", "Ready", "already"},
		{"an invalid default", func(s *v1alpha1.RepairSpec) { s.DefaultTolerationDuration = "long" }, "spec.repair.defaultTolerationDuration", "long", "duration"},
		{"a negative default", func(s *v1alpha1.RepairSpec) { s.DefaultTolerationDuration = "-1s" }, "spec.repair.defaultTolerationDuration", "-1s", "negative"},
		{"a negative bound", func(s *v1alpha1.RepairSpec) { s.MaxConcurrent = new(intstr.FromInt32(-1)) }, "spec.repair.maxConcurrent", "-1", "number"},
		{"a bound above 100%", func(s *v1alpha1.RepairSpec) { s.MaxConcurrent = new(intstr.FromString("101%")) }, "spec.repair.maxConcurrent", "101%", "100%"},
		{"a bound with both names", func(s *v1alpha1.RepairSpec) {
			s.MaxConcurrent, s.MaxUnhealthy = new(intstr.FromInt32(1)), new(intstr.FromInt32(1))
		}, "spec.repair.maxUnhealthy", "1", "want maxConcurrent alone"},
		{"a negative threshold", func(s *v1alpha1.RepairSpec) { s.UnhealthyThreshold = new(intstr.FromInt32(-1)) }, "spec.repair.unhealthyThreshold", "-1", "number"},
		{"an invalid termination", func(s *v1alpha1.RepairSpec) { s.Termination = "graceful" }, "spec.repair.termination", "graceful", "Forceful or Graceful"},
		{"an invalid grace period", func(s *v1alpha1.RepairSpec) { s.TerminationGracePeriod = "long" }, "spec.repair.terminationGracePeriod", "long", "duration"},
		{"a negative grace period", func(s *v1alpha1.RepairSpec) { s.TerminationGracePeriod = "-1h" }, "spec.repair.terminationGracePeriod", "-1h", "negative"},
		{"an invalid ready timeout", func(s *v1alpha1.RepairSpec) { s.ReadyTimeout = "soon" }, "spec.repair.readyTimeout", "soon", "duration"},
		{"a ready timeout of zero", func(s *v1alpha1.RepairSpec) { s.ReadyTimeout = "0m" }, "spec.repair.readyTimeout", "0m", "some time"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rule, err := observe.Repair("NodePool/default", "default", exampleBlock(test.change), exampleProvider, nil)
			refuses(t, rule, err, test.field, test.value, test.says)
		})
	}
	t.Run("no statements", func(t *testing.T) {
		_, err := observe.Repair("NodePool/default", "default", exampleBlock(unchanged), nil, nil)
		var field *triage.FieldError
		testkit.Check(t, errors.As(err, &field) && field.Field == "spec.repair.policies", "refuses %v", err)
	})
}

// Any block, under any schema, is compiled or refused.
func TestRepairCompilesOrRefusesAnything(t *testing.T) {
	var compiled, refused int
	rapid.Check(t, func(t *rapid.T) {
		block := map[string]any{
			"enabled":                   true,
			"policies":                  []any{map[string]any{"conditionType": "A", "conditionStatus": "True", "reason": "x", "toleration": "5m"}},
			"defaultTolerationDuration": "30m",
			"maxConcurrent":             "20%",
			"unhealthyThreshold":        "20%",
			"termination":               "Graceful",
			"terminationGracePeriod":    "1h",
			"readyTimeout":              "10m",
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			corrupt(t, block)
		}
		text := testkit.Value(json.Marshal(block)).Must(t)
		var stored v1alpha1.RepairSpec
		testkit.Must(t, json.Unmarshal(text, &stored))
		rule, err := observe.Repair("NodePool/any", "any", &stored, exampleProvider, nil)
		timeout, timeoutErr := observe.ReadyTimeout("any", &stored, time.Minute)
		var field *triage.FieldError
		switch {
		case err == nil && rule.Validate() == nil && rule.Bound.Cap != nil:
			compiled++
			// The whole block is validated, so the ready timeout of it compiles too.
			if timeoutErr != nil || timeout.Validate() != nil || timeout.Bound.Pool != rule.Bound.Pool || *timeout.Bound.Cap != *rule.Bound.Cap {
				t.Fatalf("%s\ncompiles, but its ready timeout is %+v, with the error %v", text, timeout, timeoutErr)
			}
		case errors.As(err, &field) && strings.HasPrefix(field.Field, "spec.repair"):
			refused++
		default:
			t.Fatalf("%s\ncompiles to %+v, with the error %v", text, rule, err)
		}
	})
	t.Logf("saw %d that compile and %d that do not", compiled, refused)
	testkit.Check(t, compiled != 0 && refused != 0, "no valid or no invalid block was tried")
}

func TestRepairNodes(t *testing.T) {
	labels := func(text string) *metav1.LabelSelector {
		return testkit.Value(metav1.ParseToLabelSelector(text)).Must(t)
	}
	for _, test := range []struct {
		name  string
		spec  v1alpha1.RepairPolicySpec
		who   string
		field string // the invalid field
		says  string
	}{
		{name: "selects the nodes of a pool by label", spec: v1alpha1.RepairPolicySpec{NodePool: "default"}, who: "karpenter.sh/nodepool=default"},
		{name: "uses the selector", spec: v1alpha1.RepairPolicySpec{Selector: labels("pool=gpu,!spare")}, who: "pool=gpu,!spare"},
		{name: "selects all nodes with an empty selector", spec: v1alpha1.RepairPolicySpec{Selector: &metav1.LabelSelector{}}},
		{name: "refuses nodePool with selector", spec: v1alpha1.RepairPolicySpec{NodePool: "default", Selector: &metav1.LabelSelector{}}, field: "spec.nodePool", says: "not both"},
		{name: "refuses a pool name that is not a label value", spec: v1alpha1.RepairPolicySpec{NodePool: "the default"}, field: "spec.nodePool", says: "for example default"},
		{name: "refuses neither nodePool nor selector", field: "spec.nodePool", says: "selector: {} means all nodes"},
		{name: "refuses an invalid selector", spec: v1alpha1.RepairPolicySpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}, field: "spec.selector.matchLabels", says: "name part"},
	} {
		t.Run(test.name, func(t *testing.T) {
			who, err := observe.RepairNodes(&v1alpha1.RepairPolicy{Spec: test.spec})
			var wrong *triage.FieldError
			if (err != nil) != (test.field != "") || err != nil && (!errors.As(err, &wrong) || wrong.Field != test.field || !strings.Contains(wrong.Problem, test.says)) {
				t.Fatalf("%v, want one in %s with %q", err, test.field, test.says)
			}
			testkit.Check(t, err != nil || who.String() == test.who, "%q, want %q", who, test.who)
		})
	}
}
