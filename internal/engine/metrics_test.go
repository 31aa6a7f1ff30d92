package engine

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestMetricsAreNamedAsPeopleExpect(t *testing.T) {
	m := NewMetrics()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	for result := treat.Made; result <= treat.Unknown; result++ {
		m.CountWrite("nodes", result)
	}
	m.Event("written")
	policy := policykind.Policy{Kind: "ConditionSet", Name: "set"}
	m.Policies.SetNodes(policy, map[string]int{"Tainted": 2})
	m.Policies.SetReady(policy, true)
	m.Policies.ObserveStart(triage.RuleID{Kind: policykind.ConditionSet, Name: "set"}, time.Second)
	problems := testkit.Value(testutil.GatherAndLint(registry)).Must(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestMetricsOfAPolicy(t *testing.T) {
	m, rule := newPolicyMetrics(), triage.RuleID{Kind: policykind.Repair, Name: "RepairPolicy/p/pool"}
	policy := policykind.PolicyOf(rule)
	testkit.Check(t, policy == policykind.Policy{Kind: "RepairPolicy", Name: "p"}, "the policy is %+v", policy)
	gauge := func(state string) float64 {
		return testutil.ToFloat64(m.nodes.WithLabelValues(policy.Kind, policy.Name, state))
	}
	m.SetNodes(policy, map[string]int{"Healthy": 3, "Exhausted": 1})
	testkit.Check(t, gauge("Exhausted") == 1, "%v nodes are exhausted", gauge("Exhausted"))
	m.SetNodes(policy, map[string]int{"Healthy": 4})
	testkit.Check(t, gauge("Exhausted") == 0 && gauge("Healthy") == 4, "after the recovery %v are exhausted and %v healthy", gauge("Exhausted"), gauge("Healthy"))
	m.SetReady(policy, true)
	m.ObserveStart(rule, time.Second)
	m.Forget(policy)
	m.forgetCounters(rule)
	if n := testutil.CollectAndCount(m); n != 0 {
		t.Errorf("%d series are left of a deleted policy", n)
	}
}
