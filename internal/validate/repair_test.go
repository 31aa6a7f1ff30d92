package validate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/validate"
)

func TestRepairsBefore(t *testing.T) {
	policy := func(name, pool string, created int64) *v1alpha1.RepairPolicy {
		p := &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RepairPolicySpec{NodePool: pool}}
		if pool == "" {
			p.Spec.Selector = &metav1.LabelSelector{}
		}
		if created > 0 {
			p.CreationTimestamp = metav1.NewTime(time.Unix(created, 0))
		}
		return p
	}
	for _, test := range []struct {
		name          string
		first, second *v1alpha1.RepairPolicy
	}{
		{"a policy with a pool before an older policy with a selector", policy("z", "default", 9), policy("a", "", 1)},
		{"the older of two with a pool", policy("z", "default", 1), policy("a", "default", 9)},
		{"the older of two with a selector", policy("z", "", 1), policy("a", "", 9)},
		{"the first by name of two policies with the same age", policy("a", "default", 1), policy("z", "default", 1)},
		{"a stored policy before a policy that is being created", policy("z", "", 1), policy("a", "", 0)},
		{"a new policy with a pool before an old policy with a selector", policy("z", "default", 0), policy("a", "", 1)},
	} {
		if !validate.RepairsBefore(test.first, test.second) || validate.RepairsBefore(test.second, test.first) {
			t.Errorf("%s: it is not so", test.name)
		}
	}

	// The order is total: of any three policies one takes precedence, so that every node has
	// one policy, regardless of the order of the policies.
	any3 := rapid.Custom(func(t *rapid.T) *v1alpha1.RepairPolicy {
		return policy(rapid.StringMatching("[a-c]").Draw(t, "name"), rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "pool"), rapid.Int64Range(0, 2).Draw(t, "created"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := any3.Draw(t, "a"), any3.Draw(t, "b"), any3.Draw(t, "c")
		testkit.Require(t, !validate.RepairsBefore(a, a), "a policy goes before itself")
		testkit.Require(t, a.Name == b.Name || validate.RepairsBefore(a, b) != validate.RepairsBefore(b, a), "neither of two, or both, goes first")
		if validate.RepairsBefore(a, b) && validate.RepairsBefore(b, c) && !validate.RepairsBefore(a, c) {
			t.Fatal("the order goes round in a circle")
		}
	})
}

// Every block gets a verdict, every problem has a path, and a block in force is never
// rejected for something that admission allows.
func FuzzRepair(f *testing.F) {
	for _, seed := range []string{
		`{"spec": {"nodePool": "default", "repair": {"defaultTolerationDuration": "30m", "policies": [{"conditionType": "Ready", "toleration": "45m"}]}}}`,
		`{"spec": {"selector": {"matchLabels": {"a": "b"}}, "repair": {"policies": [{"conditionType": "Ready", "conditionStatus": "True", "toleration": "-1m"}]}}}`,
		`{"spec": {"repair": {"maxUnhealthy": 1e30, "termination": "Gentle", "readyTimeout": "0s"}}}`,
		`{"spec": {"repair": null}}`, `{"spec": 3}`, `{"spec": {"nodePool": "a b", "repair": {"policies": [{}]}, "remediationTemplate": {"kind": "Pod"}}}`,
	} {
		f.Add([]byte(seed))
	}
	statements := dialect.Statements{Pools: []dialect.RepairStatement{{Type: "Ready", Status: "False", Toleration: "30m"}}}
	nodes := cluster{}
	testkit.Must(f, nodes.add("n", 3, []string{"Ready:False", "karpenter.sh/nodepool=default"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		policy, pool := &v1alpha1.RepairPolicy{}, &karpenter.NodePool{}
		if json.Unmarshal(data, policy) != nil || json.Unmarshal(data, pool) != nil {
			return // metadata are out of scope
		}
		policy.Name, pool.Name = "mine", "default"
		repairs := validate.Repairs{Statements: statements, Policies: []*v1alpha1.RepairPolicy{policy}, Pools: []*karpenter.NodePool{pool}, Reported: []string{}, Survey: nodes.survey}
		for _, verdicts := range [][2]validate.Verdict{
			{validate.RepairPolicy(validate.RepairCase{Policy: policy, Repairs: repairs}), validate.StoredRepairPolicy(validate.RepairCase{Policy: policy, Repairs: repairs})},
			{validate.NodePool(validate.NodePoolCase{Pool: pool, Repairs: repairs}), validate.StoredNodePool(validate.NodePoolCase{Pool: pool, Repairs: repairs})},
		} {
			if (verdicts[0].Err() == nil) != (verdicts[1].Err() == nil) {
				t.Errorf("judged: %v; standing: %v", verdicts[0].Err(), verdicts[1].Err())
			}
			for _, p := range verdicts[0].Problems {
				testkit.Check(t, strings.HasPrefix(p.Field, "spec.") && p.Text != "", "a problem without a path or words: %q", p)
			}
			for _, w := range validate.Lines(verdicts[0].Warnings) {
				testkit.Check(t, !strings.ContainsAny(w, "\n\r\t"), "a warning of two lines: %q", w)
			}
		}
	})
}

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
			who := testkit.Value(observe.RepairNodes(p)).Must(t)
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
			Statements: dialect.Statements{Pools: []dialect.RepairStatement{{Type: "Ready", Status: "False", Toleration: "30m"}}}, Policies: others, Survey: nodes.survey,
		}})
		told := ""
		for _, warning := range validate.Lines(verdict.Warnings) {
			if strings.Contains(warning, "match now") || strings.Contains(warning, "matches now") {
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
	testkit.Check(t, partly != 0, "no policy shared its nodes: this test looks at nothing")
}

// The examples are accepted in a cluster with the NodePool that they name, each by itself.
func TestRepairExamplesAreAccepted(t *testing.T) {
	pools := documents[karpenter.NodePool](t, "../../examples/nodepool.yaml")
	policies := documents[v1alpha1.RepairPolicy](t, "../../examples/repair-policy.yaml")
	testkit.Require(t, len(pools) == 1 && len(policies) == 2, "there are %d NodePools and %d RepairPolicies", len(pools), len(policies))
	d := &repairFixture{healthFixture: healthFixture{fixture: fixture{cluster: cluster{}}}}
	testkit.Must(t, d.cluster.add("n", 3, []string{"Ready:True", "KernelDeadlock:False"}))
	accepts := func(name string, v validate.Verdict) {
		t.Helper()
		testkit.Check(t, v.Err() == nil, "%s: %v", name, v.Err())
		t.Logf("%s: warnings %q", name, v.Warnings)
	}
	accepts("NodePool", validate.NodePool(validate.NodePoolCase{Pool: pools[0], Repairs: d.repairs()}))
	plain := *pools[0]
	plain.Spec.Repair = nil
	d.pools = []*karpenter.NodePool{&plain}
	for _, policy := range policies {
		accepts("RepairPolicy "+policy.Name, validate.RepairPolicy(d.policyCase(policy)))
	}
}
