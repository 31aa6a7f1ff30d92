package observe_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// reboot and replace are two templates, and their texts in a step.
var (
	reboot  = corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "healing", Name: "quick"}
	replace = corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "ReplaceTemplate", Name: "all"}
)

const (
	rebootText  = "example.com/v1/RebootTemplate healing/quick"
	replaceText = "example.com/v1/ReplaceTemplate all"
)

// check returns a valid health check, after a change.
func check(change func(*v1alpha1.NodeHealthCheckSpec)) *v1alpha1.NodeHealthCheck {
	c := &v1alpha1.NodeHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Name: "check"},
		Spec: v1alpha1.NodeHealthCheckSpec{
			EscalatingRemediations: []v1alpha1.EscalatingRemediation{
				{RemediationTemplate: reboot, Order: 1, Timeout: "10m"},
				{RemediationTemplate: replace, Order: 2, Timeout: "1h"},
			},
		},
	}
	change(&c.Spec)
	return c
}

// notReady are the default unhealthy conditions.
var notReady = triage.When{Signals: []triage.Signal{
	{Condition: "Ready", Status: triage.False, For: 5 * time.Minute},
	{Condition: "Ready", Status: triage.Unknown, For: 5 * time.Minute},
}}

func percentage(number int) *triage.Limit {
	return &triage.Limit{Number: number, Percent: true, RoundUp: true}
}

func TestNodeHealthCheckCompilesRealExamples(t *testing.T) {
	id := triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "nodehealthcheck-sample"}
	atLeast := percentage(51)
	atLeast.Healthy = true
	for file, want := range map[string]triage.Rule{
		"seed.yaml": {
			ID: id, Precedence: 1, Stage: policykind.StageRemediate, When: notReady, Bound: triage.Bound{Gate: percentage(49)},
			Response: triage.Response{Ladder: []triage.Step{
				{Action: triage.Remediate, Ref: "medik8s.io/v1alpha1/ProviderXRemediationTemplate default/group-x"},
			}},
		},
		"medik8s.yaml": {
			ID: id, Precedence: 1, Stage: policykind.StageRemediate, Selector: selector(t, "node-role.kubernetes.io/worker"), When: notReady, Bound: triage.Bound{Gate: atLeast},
			Response: triage.Response{Ladder: []triage.Step{{
				Action: triage.Remediate,
				Ref:    "self-node-remediation.medik8s.io/v1alpha1/SelfNodeRemediationTemplate openshift-operators/self-node-remediation-automatic-strategy-template",
			}}},
		},
	} {
		t.Run(file, func(t *testing.T) {
			text := testkit.Value(os.ReadFile("../../api/remediation/v1alpha1/testdata/" + file)).Must(t)
			var written v1alpha1.NodeHealthCheck
			testkit.Must(t, yaml.UnmarshalStrict(text, &written))
			got := testkit.Value(observe.NodeHealthCheck(&written)).Must(t)
			testkit.Equal(t, "rule", want, got, bySelectorText)
		})
	}
}

func TestNodeHealthCheckReadsEveryField(t *testing.T) {
	base := triage.Rule{
		ID: triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "check"}, Precedence: 1, Stage: policykind.StageRemediate, When: notReady, Bound: triage.Bound{Gate: percentage(49)},
		Response: triage.Response{Ladder: []triage.Step{
			{Action: triage.Remediate, Ref: rebootText, Timeout: 10 * time.Minute},
			{Action: triage.Remediate, Ref: replaceText, Timeout: time.Hour},
		}},
	}
	tests := []struct {
		name   string
		change func(*v1alpha1.NodeHealthCheckSpec)
		want   func(*triage.Rule)
	}{
		{"nothing but steps", func(*v1alpha1.NodeHealthCheckSpec) {}, func(*triage.Rule) {}},
		{"the selector", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}}
		}, func(r *triage.Rule) { r.Selector = selector(t, "pool=gpu") }},
		{"an empty selector", func(s *v1alpha1.NodeHealthCheckSpec) { s.Selector = &metav1.LabelSelector{} }, func(*triage.Rule) {}},
		{"conditions", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.UnhealthyConditions = []v1alpha1.UnhealthyCondition{{Type: "GPUBroken", Status: "true", Duration: "90s"}, {Type: "GPUBroken", Status: "Unknown", Duration: "0s"}}
		}, func(r *triage.Rule) {
			r.When = triage.When{Signals: []triage.Signal{
				{Condition: "GPUBroken", Status: triage.True, For: 90 * time.Second}, {Condition: "GPUBroken", Status: triage.Unknown},
			}}
		}},
		{"a number of unhealthy nodes", func(s *v1alpha1.NodeHealthCheckSpec) { s.MaxUnhealthy = new(intstr.FromInt32(3)) },
			func(r *triage.Rule) { r.Bound.Gate = &triage.Limit{Number: 3} }},
		{"no node may be unhealthy", func(s *v1alpha1.NodeHealthCheckSpec) { s.MaxUnhealthy = new(intstr.FromInt32(0)) },
			func(r *triage.Rule) { r.Bound.Gate = &triage.Limit{} }},
		{"a number of healthy nodes", func(s *v1alpha1.NodeHealthCheckSpec) { s.MinHealthy = new(intstr.FromString("2")) },
			func(r *triage.Rule) { r.Bound.Gate = &triage.Limit{Number: 2, Healthy: true} }},
		{"one template", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations, s.RemediationTemplate = nil, reboot.DeepCopy()
		}, func(r *triage.Rule) { r.Response.Ladder = []triage.Step{{Action: triage.Remediate, Ref: rebootText}} }},
		{"one template beside an empty list", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations, s.RemediationTemplate = []v1alpha1.EscalatingRemediation{}, reboot.DeepCopy()
		}, func(r *triage.Rule) { r.Response.Ladder = []triage.Step{{Action: triage.Remediate, Ref: rebootText}} }},
		{"unsorted steps", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations[0].Order = 7
		}, func(r *triage.Rule) {
			l := r.Response.Ladder
			r.Response.Ladder = []triage.Step{l[1], l[0]}
		}},
		{"orders below zero", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations[0].Order, s.EscalatingRemediations[1].Order = 0, -5
		}, func(r *triage.Rule) {
			l := r.Response.Ladder
			r.Response.Ladder = []triage.Step{l[1], l[0]}
		}},
		{"pause requests", func(s *v1alpha1.NodeHealthCheckSpec) { s.PauseRequests = []string{"cluster upgrade", "anna"} },
			func(r *triage.Rule) { r.Hold = "paused: cluster upgrade, anna" }},
		{"an empty pause request", func(s *v1alpha1.NodeHealthCheckSpec) { s.PauseRequests = []string{""} },
			func(r *triage.Rule) { r.Hold = "paused: " }},
		{"a cooldown", func(s *v1alpha1.NodeHealthCheckSpec) { s.StormCooldownDuration = "5m" },
			func(r *triage.Rule) { r.Bound.Cooldown = 5 * time.Minute }},
		{"a healthy delay", func(s *v1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "90s" },
			func(r *triage.Rule) { r.Recovery.Delay = 90 * time.Second }},
		{"a recovery with a confirmation", func(s *v1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "-1s" },
			func(r *triage.Rule) { r.Recovery.ByHand = true }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := base
			test.want(&want)
			got := testkit.Value(observe.NodeHealthCheck(check(test.change))).Must(t)
			testkit.Equal(t, "rule", want, got, bySelectorText)
		})
	}
}

func TestNodeHealthCheckNamesTheInvalidField(t *testing.T) {
	conditions := func(list ...v1alpha1.UnhealthyCondition) func(*v1alpha1.NodeHealthCheckSpec) {
		return func(s *v1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions = list }
	}
	template := func(change func(*corev1.ObjectReference)) func(*v1alpha1.NodeHealthCheckSpec) {
		return func(s *v1alpha1.NodeHealthCheckSpec) { change(&s.EscalatingRemediations[1].RemediationTemplate) }
	}
	const second = "spec.escalatingRemediations[1]."
	tests := []struct {
		name   string
		change func(*v1alpha1.NodeHealthCheckSpec)
		field  string
		value  string
		says   string
	}{
		{"an unreadable spec", func(s *v1alpha1.NodeHealthCheckSpec) { s.Unreadable = "order: " + strings.Repeat("x", 1000) },
			"spec", "", "kubectl explain nodehealthcheck.spec"},
		{"an empty list", func(s *v1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions = []v1alpha1.UnhealthyCondition{} },
			"spec.unhealthyConditions", "", "Ready False or Unknown for 300s"},
		{"a condition without a type", conditions(v1alpha1.UnhealthyCondition{Status: "True", Duration: "1s"}), "spec.unhealthyConditions[0].type", "", "Ready"},
		{"an invalid status", conditions(v1alpha1.UnhealthyCondition{Type: "A", Status: "maybe", Duration: "1s"}), "spec.unhealthyConditions[0].status", "maybe", "True, False or Unknown"},
		{"a condition without a duration", conditions(v1alpha1.UnhealthyCondition{Type: "A", Status: "True"}), "spec.unhealthyConditions[0].duration", "", "duration"},
		{"a negative duration", conditions(v1alpha1.UnhealthyCondition{Type: "A", Status: "True", Duration: "-1s"}), "spec.unhealthyConditions[0].duration", "-1s", "negative"},
		{"a condition twice", conditions(v1alpha1.UnhealthyCondition{Type: "A", Status: "True", Duration: "1s"}, v1alpha1.UnhealthyCondition{Type: "A", Status: "true", Duration: "2s"}),
			"spec.unhealthyConditions[1].type", "A", "twice"},
		{"both bounds", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.MinHealthy, s.MaxUnhealthy = new(intstr.FromInt32(1)), new(intstr.FromInt32(1))
		}, "spec.minHealthy", "1", "not both"},
		{"a negative bound", func(s *v1alpha1.NodeHealthCheckSpec) { s.MaxUnhealthy = new(intstr.FromInt32(-1)) }, "spec.maxUnhealthy", "-1", "number of nodes"},
		{"a bound above 100%", func(s *v1alpha1.NodeHealthCheckSpec) { s.MinHealthy = new(intstr.FromString("101%")) }, "spec.minHealthy", "101%", "100%"},
		{"an invalid cooldown", func(s *v1alpha1.NodeHealthCheckSpec) { s.StormCooldownDuration = "long" }, "spec.stormCooldownDuration", "long", "duration"},
		{"a negative cooldown", func(s *v1alpha1.NodeHealthCheckSpec) { s.StormCooldownDuration = "-5m" }, "spec.stormCooldownDuration", "-5m", "negative"},
		{"an invalid delay", func(s *v1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "long" }, "spec.healthyDelay", "long", "duration"},
		{"an invalid selector", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "? a"}}
		}, "spec.selector.matchLabels", "? a", "label"},
		{"no template", func(s *v1alpha1.NodeHealthCheckSpec) { s.EscalatingRemediations = nil }, "spec.remediationTemplate", "", "spec.escalatingRemediations"},
		{"both forms", func(s *v1alpha1.NodeHealthCheckSpec) { s.RemediationTemplate = &reboot }, "spec.remediationTemplate", "quick", "not both"},
		{"an empty template", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations, s.RemediationTemplate = nil, &corev1.ObjectReference{}
		}, "spec.remediationTemplate.apiVersion", "", "group"},
		{"a version without a group", template(func(r *corev1.ObjectReference) { r.APIVersion = "v1" }), second + "remediationTemplate.apiVersion", "v1", "group"},
		{"a version with too many parts", template(func(r *corev1.ObjectReference) { r.APIVersion = "a/b/c" }), second + "remediationTemplate.apiVersion", "a/b/c", "group"},
		{"a kind that is not a template", template(func(r *corev1.ObjectReference) { r.Kind = "Reboot" }), second + "remediationTemplate.kind", "Reboot", "ends in Template"},
		{"the kind Template", template(func(r *corev1.ObjectReference) { r.Kind = "Template" }), second + "remediationTemplate.kind", "Template", "ends in Template"},
		{"a name with a slash", template(func(r *corev1.ObjectReference) { r.Name = "a/b" }), second + "remediationTemplate.name", "a/b", "name of the template"},
		{"no name", template(func(r *corev1.ObjectReference) { r.Name = "" }), second + "remediationTemplate.name", "", "name of the template"},
		{"a namespace with a space", template(func(r *corev1.ObjectReference) { r.Namespace = "a b" }), second + "remediationTemplate.namespace", "a b", "namespace"},
		{"a template twice", template(func(r *corev1.ObjectReference) { *r = reboot }), second + "remediationTemplate", rebootText, "twice"},
		{"an order twice", func(s *v1alpha1.NodeHealthCheckSpec) { s.EscalatingRemediations[1].Order = 1 }, second + "order", "1", "same order"},
		{"a step without a timeout", func(s *v1alpha1.NodeHealthCheckSpec) { s.EscalatingRemediations[1].Timeout = "" }, second + "timeout", "", "minute"},
		// The step is first by its order, and second in the object.
		{"a timeout that is too short", func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations[1].Timeout, s.EscalatingRemediations[1].Order = "59s", 0
		}, second + "timeout", "59s", ""},
		{"an invalid timeout", func(s *v1alpha1.NodeHealthCheckSpec) { s.EscalatingRemediations[1].Timeout = "long" }, second + "timeout", "long", "duration"},
		{"a value that is too long", conditions(v1alpha1.UnhealthyCondition{Type: "A", Status: corev1.ConditionStatus(strings.Repeat("ä", 1000)), Duration: "1s"}),
			"spec.unhealthyConditions[0].status", strings.Repeat("ä", 48) + "...", "True, False or Unknown"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rule, err := observe.NodeHealthCheck(check(test.change))
			refuses(t, rule, err, test.field, test.value, test.says)
		})
	}
}

func TestNodeHealthCheckNeedsAName(t *testing.T) {
	unnamed := check(func(*v1alpha1.NodeHealthCheckSpec) {})
	unnamed.Name = ""
	testkit.Value(observe.NodeHealthCheck(unnamed)).Fails(t, "metadata.name")
}

// Any stored object, under any CRD, is compiled or refused.
func TestNodeHealthCheckCompilesOrRefusesAnything(t *testing.T) {
	var compiled, refused int
	rapid.Check(t, func(t *rapid.T) {
		template := map[string]any{"apiVersion": "example.com/v1", "kind": "XTemplate", "namespace": "a", "name": "b"}
		spec := map[string]any{
			"selector":               map[string]any{"matchLabels": map[string]any{"a": "b"}},
			"unhealthyConditions":    []any{map[string]any{"type": "A", "status": "True", "duration": "5m"}},
			"maxUnhealthy":           "49%",
			"stormCooldownDuration":  "5m",
			"escalatingRemediations": []any{map[string]any{"remediationTemplate": template, "order": 1, "timeout": "10m"}},
			"pauseRequests":          []any{"anna"},
			"healthyDelay":           "5m",
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			corrupt(t, spec)
		}
		text := testkit.Value(json.Marshal(map[string]any{"metadata": map[string]any{"name": "any"}, "spec": spec})).Must(t)
		var stored v1alpha1.NodeHealthCheck
		testkit.Must(t, json.Unmarshal(text, &stored))
		rule, err := observe.NodeHealthCheck(&stored)
		var field *triage.FieldError
		switch {
		case err == nil && rule.Validate() == nil && len(rule.Response.Ladder) > 0 && rule.Bound.Gate != nil:
			compiled++
		case errors.As(err, &field) && strings.HasPrefix(field.Field, "spec"):
			refused++
		default:
			t.Fatalf("%s\ncompiles to %+v, with the error %v", text, rule, err)
		}
	})
	t.Logf("saw %d that compile and %d that do not", compiled, refused)
	testkit.Check(t, compiled != 0 && refused != 0, "no valid or no invalid health check was tried")
}

// corrupt puts an unexpected value into a map, or removes a field.
func corrupt(t *rapid.T, value map[string]any) {
	keys := slices.Sorted(maps.Keys(value))
	if len(keys) == 0 {
		return
	}
	key := rapid.SampledFrom(keys).Draw(t, "key")
	deeper := rapid.Bool().Draw(t, "deeper")
	switch inner := value[key].(type) {
	case map[string]any:
		if deeper {
			corrupt(t, inner)
			return
		}
	case []any:
		if first, ok := slices.Concat(inner, []any{nil})[0].(map[string]any); ok && deeper {
			corrupt(t, first)
			return
		}
	}
	if deeper {
		delete(value, key)
		return
	}
	value[key] = rapid.SampledFrom([]any{
		nil, "", " ", "a", "5m", "-5m", "59s", "9999999999h", "101%", "v1", "Template", 0, -1, 1e30, true,
		[]any{}, []any{nil}, []any{map[string]any{}}, map[string]any{}, map[string]any{"a": nil},
	}).Draw(t, "odd")
}
