package observe_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

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
		{name: "refuses a pool name that is not a label value", spec: v1alpha1.RepairPolicySpec{NodePool: "the default"}, field: "spec.nodePool", says: "such as default"},
		{name: "refuses neither nodePool nor selector", field: "spec.nodePool", says: "selector: {} means all nodes"},
		{name: "refuses an invalid selector", spec: v1alpha1.RepairPolicySpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}, field: "spec.selector.matchLabels", says: "name part"},
	} {
		t.Run(test.name, func(t *testing.T) {
			who, err := observe.RepairNodes(&v1alpha1.RepairPolicy{Spec: test.spec})
			var wrong *triage.FieldError
			if (err != nil) != (test.field != "") || err != nil && (!errors.As(err, &wrong) || wrong.Field != test.field || !strings.Contains(wrong.Problem, test.says)) {
				t.Fatalf("%v, want one in %s with %q", err, test.field, test.says)
			}
			if err == nil && who.String() != test.who {
				t.Errorf("%q, want %q", who, test.who)
			}
		})
	}
}
