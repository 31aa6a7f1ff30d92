package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestMetricsAreNamedAsPeopleExpect(t *testing.T) {
	m, repairs, checks := NewMetrics(), NewRepairMetrics(), NewCheckMetrics()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m, repairs, checks)
	for result := treat.Made; result <= treat.Unknown; result++ {
		if resultNames[result] == "" {
			t.Errorf("fate %d has no name", result)
		}
		m.CountWrite("nodes", result)
	}
	m.placed.WithLabelValues("set", "NoExecute").Inc()
	m.removed.WithLabelValues("set", "NoExecute").Inc()
	m.latency.Observe(0.01)
	m.Event("written")
	m.SetAgents(2, 1)
	repairs.setRule(poolRuleID("pool"), "pool", repairCounts{nodes: 1})
	repairs.setEligible(poolRuleID("pool"), "pool", map[string]time.Time{"node": time.Now()}, nil)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestMetricsOfRepairBlocks(t *testing.T) {
	m := NewRepairMetrics()
	m.setBlocks(repairblock.Counts{InForce: 5, Refused: 4, Lost: 3, Vanished: 2, NotSaved: 1})
	m.setBlocks(repairblock.Counts{InForce: 6, Refused: 5, Lost: 4, Vanished: 3, NotSaved: 2})
	if err := testutil.CollectAndCompare(m, strings.NewReader(`
# HELP autohealer_nodepool_repair_blocks NodePools by what is the matter with their repair block: in_force, refused (what stands there cannot be followed), lost (the schema of the block is gone from the CRD, and the last good one is in force), vanished (the block has gone with the schema), unkept (in force, but there is no copy yet).
# TYPE autohealer_nodepool_repair_blocks gauge
autohealer_nodepool_repair_blocks{state="in_force"} 6
autohealer_nodepool_repair_blocks{state="lost"} 4
autohealer_nodepool_repair_blocks{state="refused"} 5
autohealer_nodepool_repair_blocks{state="unkept"} 2
autohealer_nodepool_repair_blocks{state="vanished"} 3
`), "autohealer_nodepool_repair_blocks"); err != nil {
		t.Error(err)
	}
}

func TestCountersOutliveTheirSetForAWhile(t *testing.T) {
	open(t, func(c *loopFixture) {
		count := func() int {
			return testutil.CollectAndCount(c.cfg.Metrics.placed) + testutil.CollectAndCount(c.cfg.Metrics.removed)
		}
		policy := &fakePolicy{known: map[triage.RuleID]bool{}}
		c.Add(policy)
		create := func() { policy.known[setRule("set")] = true; c.Revive(setRule("set")) }
		remove := func() { delete(policy.known, setRule("set")); c.Retire(time.Now(), setRule("set")) }
		taint := triage.Taint{Rule: setRule("set"), Effect: triage.NoExecute}
		placed := &treat.Change{Placed: []triage.PlannedTaint{{Taint: taint}}}
		removed := &treat.Change{Removed: []treat.RemovedTaint{{Taint: taint}}}
		state := c.admit("a")
		later := func(wait time.Duration) {
			pass(wait)
			c.forgetRetired(time.Now())
		}

		create()
		c.taints.reportChange(time.Now(), state, placed)
		later(24 * time.Hour)
		if count() != 1 {
			c.t.Fatal("the counts of a set that is there are gone")
		}
		remove()
		later(counterRetention / 2)
		c.taints.reportChange(time.Now(), state, removed)
		later(counterRetention / 2)
		if count() != 2 {
			c.t.Error("the last count is deleted too early")
		}
		if due := c.forgetRetired(time.Now()); !due.Equal(time.Now().Add(counterRetention / 2)) {
			c.t.Errorf("they are looked at again at %v", due)
		}
		later(counterRetention / 2)
		if n := count(); n != 0 {
			c.t.Errorf("%d counts are left of a set that is gone", n)
		}

		c.taints.reportChange(time.Now(), state, removed) // the taint was stuck on a node
		later(counterRetention)
		if n := count(); n != 0 {
			c.t.Errorf("%d counts are left of a taint that was stuck", n)
		}

		remove()
		create()
		c.taints.reportChange(time.Now(), state, placed)
		remove()
		create() // the set returns in time
		later(24 * time.Hour)
		if count() != 1 {
			c.t.Error("the counts of a set that is back are gone")
		}
	})
}
