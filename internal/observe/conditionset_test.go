package observe_test

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// exampleSets returns two sets as a user writes them.
func exampleSets(t *testing.T) []v1alpha1.ConditionSet {
	t.Helper()
	file := testkit.Value(os.Open("../../api/autohealer/v1alpha1/testdata/seed.yaml")).Must(t)
	defer file.Close()
	var sets []v1alpha1.ConditionSet
	for documents := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var set v1alpha1.ConditionSet
		err := documents.Decode(&set)
		if errors.Is(err, io.EOF) {
			return sets
		}
		testkit.Must(t, err)
		sets = append(sets, set)
	}
}

// set returns a valid set, after a change.
func set(change func(*v1alpha1.ConditionSetSpec)) *v1alpha1.ConditionSet {
	s := &v1alpha1.ConditionSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set"},
		Spec: v1alpha1.ConditionSetSpec{
			Type: "Combination", Effect: "NoExecute", TaintKey: "example.com/combination",
			Conditions: map[string]v1alpha1.SetCondition{"A": {Status: "True"}, "B": {Status: "False", Duration: "5m"}},
		},
	}
	change(&s.Spec)
	return s
}

func selector(t *testing.T, text string) triage.Selector {
	t.Helper()
	return testkit.Value(triage.ParseSelector(text)).Must(t)
}

// bySelectorText compares selectors by their kubectl syntax.
var bySelectorText = cmp.Transformer("text", func(s triage.Selector) string { return s.String() })

// refuses checks that a policy does not compile, and that the error names its field.
func refuses(t *testing.T, rule triage.Rule, err error, field, value, says string) {
	t.Helper()
	var wrong *triage.FieldError
	testkit.Require(t, errors.As(err, &wrong), "error is %v, want a FieldError", err)
	testkit.Check(t, wrong.Field == field && wrong.Value == value, "refuses %s: %q, want %s: %q", wrong.Field, wrong.Value, field, value)
	if !strings.Contains(wrong.Problem, says) || len(wrong.Problem) > 500 {
		t.Errorf("problem is %q, want something with %q", wrong.Problem, says)
	}
	testkit.Equal(t, "the rule of an invalid policy", triage.Rule{}, rule, bySelectorText)
}

func TestConditionSetCompilesTheExample(t *testing.T) {
	rule := func(name, key string, signals ...triage.Signal) triage.Rule {
		return triage.Rule{
			ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: name},
			Stage:    policykind.StageTaint,
			When:     triage.When{All: true, Signals: signals},
			Bound:    triage.Bound{Cap: &triage.Limit{Number: 49, Percent: true}},
			Response: triage.Response{Taint: &triage.TaintResponse{Key: key, Effect: triage.NoExecute}},
		}
	}
	want := []triage.Rule{
		rule("conditionset-1", "node.stakater.com/KubeletContainerRuntimeUnhealthy",
			triage.Signal{Condition: "ContainerRuntimeUnhealthy", Status: triage.Unknown},
			triage.Signal{Condition: "KubeletUnhealthy", Status: triage.True}),
		rule("conditionset-2", "node.stakater.com/KernelDeadlock",
			triage.Signal{Condition: "KernelDeadlock", Status: triage.True}),
	}
	var got []triage.Rule
	for _, s := range exampleSets(t) {
		compiled := testkit.Value(observe.ConditionSet(&s)).Must(t)
		got = append(got, compiled)
	}
	testkit.Equal(t, "rules", want, got, bySelectorText)
}

func TestConditionSet(t *testing.T) {
	tests := []struct {
		name   string
		change func(*v1alpha1.ConditionSetSpec)
		want   func(*triage.Rule)
	}{
		{"has its conditions in the order of their types", func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions = map[string]v1alpha1.SetCondition{"C": {Status: "True"}, "A": {Status: "Unknown", EvenSilent: true}, "B": {Status: "False", Duration: "90s"}}
		}, func(r *triage.Rule) {
			r.When.Signals = []triage.Signal{
				{Condition: "A", Status: triage.Unknown, EvenSilent: true},
				{Condition: "B", Status: triage.False, For: 90 * time.Second},
				{Condition: "C", Status: triage.True},
			}
		}},
		{"bounds by a number", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromInt32(3)) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 3} }},
		{"bounds by a number in quotes", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromString("3")) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 3} }},
		{"bounds by a percentage", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromString("10%")) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{Number: 10, Percent: true} }},
		{"accepts a limit of zero", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromInt32(0)) },
			func(r *triage.Rule) { r.Bound.Cap = &triage.Limit{} }},
		{"does not bound a weaker effect", func(s *v1alpha1.ConditionSetSpec) { s.Effect = "PreferNoSchedule" },
			func(r *triage.Rule) { r.Response.Taint.Effect, r.Bound.Cap = triage.PreferNoSchedule, nil }},
		{"can be on dry run", func(s *v1alpha1.ConditionSetSpec) { s.DryRun = true },
			func(r *triage.Rule) { r.DryRun = true }},
		{"can observe", func(s *v1alpha1.ConditionSetSpec) { s.Mode = v1alpha1.PolicyObserve },
			func(r *triage.Rule) { r.DryRun = true }},
		{"can be on dry run and observe", func(s *v1alpha1.ConditionSetSpec) { s.DryRun, s.Mode = true, v1alpha1.PolicyObserve },
			func(r *triage.Rule) { r.DryRun = true }},
		{"enforces explicitly", func(s *v1alpha1.ConditionSetSpec) { s.Mode = v1alpha1.PolicyEnforce }, func(*triage.Rule) {}},
		{"selects every node with an empty selector", func(s *v1alpha1.ConditionSetSpec) { s.Selector = &metav1.LabelSelector{} },
			func(*triage.Rule) {}},
		{"supports every selector operator", func(s *v1alpha1.ConditionSetSpec) {
			s.Selector = &metav1.LabelSelector{
				MatchLabels: map[string]string{"pool": "gpu", "empty": ""},
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"b", "a"}},
					{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"spot"}},
					{Key: "example.com/ready", Operator: metav1.LabelSelectorOpExists},
					{Key: "draining", Operator: metav1.LabelSelectorOpDoesNotExist},
				},
			}
		}, func(r *triage.Rule) {
			r.Selector = selector(t, "empty=,pool=gpu,zone in (a,b),tier!=spot,example.com/ready,!draining")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := testkit.Value(observe.ConditionSet(set(func(*v1alpha1.ConditionSetSpec) {}))).Must(t)
			test.want(&want)
			got := testkit.Value(observe.ConditionSet(set(test.change))).Must(t)
			testkit.Equal(t, "rule", want, got, bySelectorText)
		})
	}
}

func TestConditionSetIncludesControlPlaneOnlyByLabel(t *testing.T) {
	const role = "node-role.kubernetes.io/control-plane"
	expression := func(op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: role, Operator: op, Values: values}}}
	}
	tests := []struct {
		name     string
		selector *metav1.LabelSelector
		want     bool
	}{
		{"without a selector", nil, false},
		{"by a label", &metav1.LabelSelector{MatchLabels: map[string]string{role: ""}}, true},
		{"by the old label", &metav1.LabelSelector{MatchLabels: map[string]string{"node-role.kubernetes.io/master": ""}}, true},
		{"by the label's presence", expression(metav1.LabelSelectorOpExists), true},
		{"by the label's values", expression(metav1.LabelSelectorOpIn, "", "true"), true},
		{"by other values of the label", expression(metav1.LabelSelectorOpNotIn, "true"), false},
		{"by the label's absence", expression(metav1.LabelSelectorOpDoesNotExist), false},
		{"by another label", &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "control-plane"}}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rule := testkit.Value(observe.ConditionSet(set(func(s *v1alpha1.ConditionSetSpec) { s.Selector = test.selector }))).Must(t)
			if got := rule.Response.Taint.ControlPlane; got != test.want {
				t.Errorf("control plane: %v, want %v", got, test.want)
			}
		})
	}
}

func TestConditionSetRefuses(t *testing.T) {
	expression := func(key string, op metav1.LabelSelectorOperator, values ...string) func(*v1alpha1.ConditionSetSpec) {
		return func(s *v1alpha1.ConditionSetSpec) {
			s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "fine", Operator: "Exists"}, {Key: key, Operator: op, Values: values}}}
		}
	}
	long := strings.Repeat("ä", 1000)
	tests := []struct {
		name   string
		change func(*v1alpha1.ConditionSetSpec)
		field  string
		value  string
		says   string
	}{
		{"a spec that cannot be read", func(s *v1alpha1.ConditionSetSpec) { s.Unreadable = "it is a number" }, "spec", "", "cannot be read: it is a number"},
		{"no type", func(s *v1alpha1.ConditionSetSpec) { s.Type = "" }, "spec.type", "", "needs a type"},
		{"an invalid type", func(s *v1alpha1.ConditionSetSpec) { s.Type = "the kubelet is unhealthy" }, "spec.type", "the kubelet is unhealthy", "want a name"},
		{"a type that is too long", func(s *v1alpha1.ConditionSetSpec) { s.Type = strings.Repeat("x", 317) }, "spec.type", strings.Repeat("x", 97) + "...", "want a name"},
		{"too many conditions", func(s *v1alpha1.ConditionSetSpec) {
			for i := range 31 {
				s.Conditions["C"+strconv.Itoa(i)] = v1alpha1.SetCondition{Status: "True"}
			}
		}, "spec.conditions", "33", "at most 32"},
		{"a reserved taint key", func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = "node.kubernetes.io/not-ready" }, "spec.taintKey", "node.kubernetes.io/not-ready", "reserved"},
		{"an unknown mode", func(s *v1alpha1.ConditionSetSpec) { s.Mode = "Paused" }, "spec.mode", "Paused", "want Enforce or Observe"},
		{"a dry run that enforces", func(s *v1alpha1.ConditionSetSpec) { s.DryRun, s.Mode = true, v1alpha1.PolicyEnforce }, "spec.dryRun", "true", "remove dryRun"},
		{"an invalid effect", func(s *v1alpha1.ConditionSetSpec) { s.Effect = "Evict" }, "spec.effect", "Evict", "NoExecute"},
		{"no conditions", func(s *v1alpha1.ConditionSetSpec) { s.Conditions = nil }, "spec.conditions", "", "at least one"},
		{"a condition without a type", func(s *v1alpha1.ConditionSetSpec) { s.Conditions[""] = v1alpha1.SetCondition{Status: "True"} }, "spec.conditions[0]", "", "condition type"},
		{"an invalid status", func(s *v1alpha1.ConditionSetSpec) { s.Conditions["B"] = v1alpha1.SetCondition{Status: "1"} }, "spec.conditions[B].status", "1", "True, False or Unknown"},
		{"an invalid duration", func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["B"] = v1alpha1.SetCondition{Status: "True", Duration: "long"}
		}, "spec.conditions[B].duration", "long", "want a duration"},
		{"a negative bound", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromInt32(-1)) }, "spec.maxUnhealthy", "-1", "want a number"},
		{"an invalid bound", func(s *v1alpha1.ConditionSetSpec) { s.MaxUnhealthy = new(intstr.FromString("half")) }, "spec.maxUnhealthy", "half", "want a number"},

		{"an invalid operator", expression("pool", "in", "a"), "spec.selector.matchExpressions[1].operator", "in", "not a valid selector operator"},
		{"an invalid value", expression("pool", "In", "a b"), "spec.selector.matchExpressions[1].values[0]", "a b", "label"},
		{"a selector without values", expression("pool", "NotIn"), "spec.selector.matchExpressions[1].values", "", "must be specified"},
		{"an operator with unexpected values", expression("pool", "Exists", "a"), "spec.selector.matchExpressions[1].values", "", "may not be specified"},
		{"an invalid key", expression("a b", "Exists"), "spec.selector.matchExpressions[1].key", "a b", "name part"},
		{"the first of many bad labels", func(s *v1alpha1.ConditionSetSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"c": "? c", "e": "? e", "a": "? a", "d": "? d", "g": "? g", "b": "? b", "f": "? f"}}
		}, "spec.selector.matchLabels", "? a", "label"},

		{"a value that is too long", func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["B"] = v1alpha1.SetCondition{Status: v1alpha1.ConditionStatus(long)}
		}, "spec.conditions[B].status", strings.Repeat("ä", 48) + "...", "True, False or Unknown"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rule, err := observe.ConditionSet(set(test.change))
			refuses(t, rule, err, test.field, test.value, test.says)
			if _, again := observe.ConditionSet(set(test.change)); again == nil || again.Error() != err.Error() {
				t.Errorf("the second time it says %v, the first time it said %v", again, err)
			}
		})
	}
}
