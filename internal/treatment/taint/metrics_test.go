package taint

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestCountersOutliveTheirSetForAWhile(t *testing.T) {
	open(t, func(c *fixture) {
		m := c.taints.metrics
		count := func() int { return testutil.CollectAndCount(m.placed) + testutil.CollectAndCount(m.removed) }
		create := func() { c.policy.known[setRule("set")] = true; c.Revive(setRule("set")) }
		remove := func() { delete(c.policy.known, setRule("set")); c.Retire(time.Now(), setRule("set")) }
		taint := triage.Taint{Rule: setRule("set"), Effect: triage.NoExecute}
		placed := &treat.Change{Placed: []triage.PlannedTaint{{Taint: taint}}}
		removed := &treat.Change{Removed: []treat.RemovedTaint{{Taint: taint}}}
		wr := c.node("a")
		later := func(wait time.Duration) (due time.Time) {
			enginetest.Pass(wait)
			return c.Round(t.Context())
		}

		create()
		wr.reportChange(time.Now(), placed)
		if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
			t.Errorf("the metrics have problems: %v, %v", problems, err)
		}
		later(24 * time.Hour)
		if count() != 1 {
			t.Fatal("the counters of an existing set are gone")
		}
		remove()
		later(engine.CounterRetention / 2)
		wr.reportChange(time.Now(), removed)
		due := later(engine.CounterRetention / 2)
		if count() != 2 {
			t.Error("the last counter is deleted too early")
		}
		if !due.Equal(time.Now().Add(engine.CounterRetention / 2)) {
			t.Errorf("the next round is due at %v", due)
		}
		later(engine.CounterRetention / 2)
		if n := count(); n != 0 {
			t.Errorf("%d counters of a deleted set are left", n)
		}

		wr.reportChange(time.Now(), removed) // the taint was stuck on a node
		later(engine.CounterRetention)
		if n := count(); n != 0 {
			t.Errorf("%d counters of a stuck taint are left", n)
		}

		remove()
		create()
		wr.reportChange(time.Now(), placed)
		remove()
		create() // the set returns in time
		later(24 * time.Hour)
		if count() != 1 {
			t.Error("the counters of a set that returned are gone")
		}
	})
}
