package validate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/validate"
)

// The impact line of a policy counts the nodes that no older policy selects.
func TestImpactCountsNodesWithoutAnOlderPolicy(t *testing.T) {
	partly := 0
	rapid.Check(t, func(t *rapid.T) {
		nodes := cluster{}
		for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
			words := []string{"Ready:False"}
			for _, key := range []string{"a", "b", "c"} {
				if value := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, key); value != "" {
					words = append(words, key+"="+value)
				}
			}
			testkit.Must(t, nodes.add(fmt.Sprintf("n%02d", i), 1, words))
		}
		policy := func(name string, age time.Duration) *v1alpha1.RepairPolicy {
			p := &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
			p.Spec.Selector = &metav1.LabelSelector{}
			for range rapid.IntRange(0, 2).Draw(t, "demands") {
				demand := metav1.LabelSelectorRequirement{
					Key:      rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"),
					Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}).Draw(t, "operator"),
				}
				if demand.Operator == metav1.LabelSelectorOpIn || demand.Operator == metav1.LabelSelectorOpNotIn {
					demand.Values = []string{rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value")}
				}
				p.Spec.Selector.MatchExpressions = append(p.Spec.Selector.MatchExpressions, demand)
			}
			return p
		}
		judged := policy("judged", 0)
		var others []*v1alpha1.RepairPolicy
		for i := range rapid.IntRange(0, 3).Draw(t, "others") {
			others = append(others, policy(fmt.Sprint("other-", i), time.Duration(rapid.IntRange(-1, 1).Draw(t, "age"))*time.Hour))
		}
		selects := func(p *v1alpha1.RepairPolicy, n node) bool {
			who, err := observe.RepairNodes(p)
			if err != nil {
				t.Fatal(err)
			}
			return n.meets(who)
		}
		selected, left := 0, 0
		for _, n := range nodes {
			if !selects(judged, n) {
				continue
			}
			selected++
			isLeft := true
			for _, other := range others {
				isLeft = isLeft && (!validate.RepairsBefore(other, judged) || !selects(other, n))
			}
			if isLeft {
				left++
			}
		}
		verdict := validate.RepairPolicy(validate.RepairCase{Policy: judged, Repairs: validate.Repairs{
			Statements: []dialect.RepairStatement{{Type: "Ready", Status: "False", Toleration: "30m"}}, Policies: others, Survey: nodes.survey,
		}})
		told := ""
		for _, warning := range verdict.Warnings {
			if strings.Contains(warning, "the policy will repair") {
				told = warning
			}
		}
		want := fmt.Sprintf("%d of %d selected node", left, left)
		if left < selected {
			partly++
			want = fmt.Sprintf("%d of the %d selected node", left, left)
		}
		if left == 0 && told != "" || left > 0 && !strings.HasPrefix(told, want) {
			t.Fatalf("of %d selected nodes %d are left to it, and it says %q", selected, left, told)
		}
	})
	if partly == 0 {
		t.Error("no policy shared its nodes: this test looks at nothing")
	}
}
