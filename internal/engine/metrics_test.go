package engine

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

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
	m.placed.WithLabelValues("set", "NoExecute").Inc()
	m.removed.WithLabelValues("set", "NoExecute").Inc()
	m.latency.Observe(0.01)
	m.Event("written")
	m.SetAgents(2, 1)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
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
		later(CounterRetention / 2)
		c.taints.reportChange(time.Now(), state, removed)
		later(CounterRetention / 2)
		if count() != 2 {
			c.t.Error("the last count is deleted too early")
		}
		if due := c.forgetRetired(time.Now()); !due.Equal(time.Now().Add(CounterRetention / 2)) {
			c.t.Errorf("they are looked at again at %v", due)
		}
		later(CounterRetention / 2)
		if n := count(); n != 0 {
			c.t.Errorf("%d counts are left of a set that is gone", n)
		}

		c.taints.reportChange(time.Now(), state, removed) // the taint was stuck on a node
		later(CounterRetention)
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
