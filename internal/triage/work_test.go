package triage_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The cost of a change depends on the rules that select the node and read the condition, and
// on the nodes whose plan changes. It does not depend on the size of the cluster, also with limits
// on all rules together.
func TestWorkOfAChangeDoesNotGrowWithTheCluster(t *testing.T) {
	type cost struct {
		change                  string
		judged, touched, walked int
	}
	half := &triage.Limit{Number: 49, Percent: true}
	for _, size := range []int{100, 10_000, 100_000} {
		core := triage.New()
		testkit.Must(t, core.SetRails(benchStart, triage.Rails{
			InTreatment: half, Unschedulable: half, Topology: []triage.Share{{Label: "zone", Limit: *half}},
			Pace:              &triage.Pace{Limit: *half, AtLeast: 2, Period: time.Minute},
			CorrelatedFailure: &triage.CorrelatedFailure{Threshold: *half, MinNodes: 10, Window: 5 * time.Minute, Labels: []string{"zone"}},
			MaxAttempts:       &triage.MaxAttempts{Limit: 3, Window: 24 * time.Hour}, KeepLast: true,
		}))
		now := benchStart
		// Ten rules select every node. Three of them read the condition that flips: a capped
		// eviction, a health check and a repair rule.
		for i := range 7 {
			rule := validRule()
			rule.ID.Name = fmt.Sprintf("bystander-%d", i)
			rule.When.Signals = []triage.Signal{{Condition: fmt.Sprintf("Other%d", i), Status: triage.True}}
			mustSet(t, core, now, rule)
		}
		eviction := validRule()
		eviction.ID = triage.RuleID{Kind: policykind.ConditionSet, Name: "evicts"}
		eviction.Response = triage.Response{Taint: &triage.TaintResponse{Key: "example.com/unhealthy", Effect: triage.NoExecute}}
		eviction.Bound = triage.Bound{Cap: &triage.Limit{Number: 2}}
		check := validRule()
		check.ID = triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "checks"}
		check.Bound = triage.Bound{Gate: &triage.Limit{Number: 50, Percent: true}}
		repair := validRule()
		repair.Bound = triage.Bound{Cap: &triage.Limit{Number: 2}}
		for _, rule := range []triage.Rule{eviction, check, repair} {
			for i := range rule.When.Signals {
				rule.When.Signals[i].For = 0
			}
			mustSet(t, core, now, rule)
		}
		node := func(i int, ready triage.Status) triage.Node {
			return triage.Node{
				Name: fmt.Sprintf("worker-%d", i), UID: strconv.Itoa(i), Labels: map[string]string{"zone": strconv.Itoa(i % 3)},
				Conditions: []triage.Condition{{Type: "Ready", Status: ready}},
			}
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
			costs = append(costs, cost{change, after.Judged - before.Judged, after.Touched - before.Touched, after.Walked - before.Walked})
		}
		for i := range 4 {
			measure(fmt.Sprintf("worker-%d fails", i), func() { core.Observe(now, node(i, triage.False)) })
		}
		measure("nothing changes", func() { core.Observe(now, node(3, triage.False)) })
		measure("worker-0 recovers", func() { core.Observe(now, node(0, triage.True)) })
		measure("its taint is gone", func() { core.Abandon(now, "worker-0", eviction.ID, 0) })
		measure("time passes", func() { core.Advance(now) })

		want := []cost{
			{"worker-0 fails", 3, 1, 0},
			{"worker-1 fails", 3, 1, 0},
			{"worker-2 fails", 3, 1, 0},
			{"worker-3 fails", 3, 1, 0},
			{"nothing changes", 0, 0, 0},
			{"worker-0 recovers", 3, 1, 0},
			{"its taint is gone", 0, 2, 0}, // the node, and the node that waited longest
			{"time passes", 0, 0, 0},
		}
		for i := range want {
			if costs[i] != want[i] {
				t.Errorf("at %d nodes: %+v, want %+v", size, costs[i], want[i])
			}
		}
	}
}

// While nodes are replaced, a change does not visit nodes that it does not concern. This
// also holds when another departure becomes the first, and when a replacement begins to
// count.
func TestWorkDoesNotGrowWithTheClusterWhileNodesAreReplaced(t *testing.T) {
	for _, size := range []int{100, 10_000} {
		core := triage.New()
		now := benchStart
		repair := validRule()
		repair.When.Signals = []triage.Signal{{Condition: "Broken", Status: triage.True}}
		repair.Bound = triage.Bound{Cap: &triage.Limit{Number: 50, Percent: true}, Pool: "NodePool/default"}
		repair.Response = triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}}
		timeout := repair
		timeout.ID = triage.RuleID{Kind: policykind.ReadyTimeout, Name: "default"}
		timeout.When.Signals = []triage.Signal{{Condition: triage.Ready, Status: triage.False, For: time.Hour, FromCreation: true}}
		mustSet(t, core, now, repair)
		mustSet(t, core, now, timeout)
		node := func(i int, broken, ready triage.Status) triage.Node {
			n := triage.Node{Name: fmt.Sprintf("worker-%d", i), UID: strconv.Itoa(i), Created: benchStart.Add(-time.Duration(i%1000) * time.Hour)}
			if i >= size {
				n.Created = benchStart.Add(time.Duration(i-size+1) * time.Minute)
			}
			n.Conditions = []triage.Condition{{Type: "Broken", Status: broken}, {Type: triage.Ready, Status: ready}}
			return n
		}
		for i := range size {
			core.Observe(now, node(i, triage.False, triage.True))
		}
		core.Loaded(now)
		settle(core)

		measure := func(change string, want triage.Work, wantCap int, do func()) {
			t.Helper()
			now = now.Add(time.Minute)
			before := core.Work()
			do()
			settle(core)
			after := core.Work()
			got := triage.Work{Judged: after.Judged - before.Judged, Touched: after.Touched - before.Touched, Walked: after.Walked - before.Walked, Young: after.Young - before.Young}
			testkit.Check(t, got == want, "at %d nodes, %s: %+v, want %+v", size, change, got, want)
			if p, _ := core.Population(repair.ID); p.Cap != wantCap {
				t.Errorf("at %d nodes, %s: at most %d may be in treatment, want %d", size, change, p.Cap, wantCap)
			}
		}
		half := size / 2
		measure("worker-0 breaks", triage.Work{Judged: 1, Touched: 1}, half, func() { core.Observe(now, node(0, triage.True, triage.True)) })
		measure("worker-1 breaks", triage.Work{Judged: 1, Touched: 1}, half, func() { core.Observe(now, node(1, triage.True, triage.True)) })
		measure("worker-0 goes", triage.Work{}, half-1, func() { core.Forget(now, "worker-0") })
		measure("its replacement comes", triage.Work{Judged: 2, Touched: 1}, half-1, func() { core.Observe(now, node(size+3, triage.False, triage.False)) })
		measure("its replacement is ready", triage.Work{Judged: 2, Touched: 1}, half, func() { core.Observe(now, node(size+3, triage.False, triage.True)) })
		measure("worker-1 goes", triage.Work{Young: 1}, half-1, func() { core.Forget(now, "worker-1") })
		measure("a condition becomes Unknown", triage.Work{Judged: 1, Touched: 1}, half-1, func() { core.Observe(now, node(2, triage.Unknown, triage.True)) })
		measure("time passes", triage.Work{}, half-1, func() { core.Advance(now) })
		measure("a rule is edited", triage.Work{Judged: size - 1, Walked: size - 1}, (size-1)*40/100, func() {
			edited := repair
			edited.Bound.Cap = &triage.Limit{Number: 40, Percent: true}
			mustSet(t, core, now, edited)
		})
	}
}

func mustSet(t *testing.T, core *triage.Core, now time.Time, r triage.Rule) {
	t.Helper()
	testkit.Must(t, core.SetRule(now, r))
}

func settle(core *triage.Core) {
	for {
		if _, ok := core.NextWoken(); !ok {
			return
		}
	}
}
