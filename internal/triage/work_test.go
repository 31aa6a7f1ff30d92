package triage_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// The cost of a change is the rules that select the node and read what changed,
// and the nodes whose plan it alters: the same at every size of the cluster.
func TestWorkOfAChangeDoesNotGrowWithTheCluster(t *testing.T) {
	type cost struct {
		change          string
		judged, touched int
	}
	for _, size := range []int{100, 10_000, 100_000} {
		core := triage.New()
		now := benchStart
		// Ten rules on every node, of which three read the condition that
		// flips: a capped eviction, a health check and a repair rule.
		for i := range 7 {
			rule := soundRule()
			rule.ID.Name = fmt.Sprintf("bystander-%d", i)
			rule.When.Signals = []triage.Signal{{Condition: fmt.Sprintf("Other%d", i), Status: triage.True}}
			mustSet(t, core, now, rule)
		}
		eviction := soundRule()
		eviction.ID = triage.RuleID{Kind: triage.ConditionSet, Name: "evicts"}
		eviction.Response = triage.Response{Taint: &triage.TaintResponse{Key: "example.com/sick", Effect: triage.NoExecute}}
		eviction.Bound = triage.Bound{Cap: &triage.Limit{Number: 2}}
		check := soundRule()
		check.ID = triage.RuleID{Kind: triage.NodeHealthCheck, Name: "checks"}
		check.Bound = triage.Bound{Gate: &triage.Limit{Number: 50, Percent: true}}
		repair := soundRule()
		repair.Bound = triage.Bound{Cap: &triage.Limit{Number: 2}}
		for _, rule := range []triage.Rule{eviction, check, repair} {
			for i := range rule.When.Signals {
				rule.When.Signals[i].For = 0
			}
			mustSet(t, core, now, rule)
		}
		node := func(i int, ready triage.Status) triage.Node {
			return triage.Node{Name: fmt.Sprintf("worker-%d", i), UID: strconv.Itoa(i), Conditions: []triage.Condition{{Type: "Ready", Status: ready}}}
		}
		for i := range size {
			core.Observe(now, node(i, triage.True))
		}
		core.Loaded(now)
		settle(core)

		var costs []cost
		measure := func(change string, do func()) {
			now = now.Add(time.Second)
			before := core.Work()
			do()
			settle(core)
			after := core.Work()
			costs = append(costs, cost{change, after.Judged - before.Judged, after.Touched - before.Touched})
		}
		for i := range 4 {
			measure(fmt.Sprintf("worker-%d falls sick", i), func() { core.Observe(now, node(i, triage.False)) })
		}
		measure("nothing changes", func() { core.Observe(now, node(3, triage.False)) })
		measure("worker-0 recovers", func() { core.Observe(now, node(0, triage.True)) })
		measure("its taint is gone", func() { core.Abandon(now, "worker-0", eviction.ID, 0) })
		measure("time passes", func() { core.Advance(now) })

		want := []cost{
			{"worker-0 falls sick", 3, 1},
			{"worker-1 falls sick", 3, 1},
			{"worker-2 falls sick", 3, 1},
			{"worker-3 falls sick", 3, 1},
			{"nothing changes", 0, 0},
			{"worker-0 recovers", 3, 1},
			{"its taint is gone", 0, 2}, // itself, and the one that waited longest
			{"time passes", 0, 0},
		}
		for i := range want {
			if costs[i] != want[i] {
				t.Errorf("at %d nodes: %+v, want %+v", size, costs[i], want[i])
			}
		}
	}
}

func mustSet(t *testing.T, core *triage.Core, now time.Time, r triage.Rule) {
	t.Helper()
	if err := core.SetRule(now, r); err != nil {
		t.Fatal(err)
	}
}

func settle(core *triage.Core) {
	for {
		if _, ok := core.NextWoken(); !ok {
			return
		}
	}
}
