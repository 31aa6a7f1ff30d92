package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestMetricsAreNamedAsPeopleExpect(t *testing.T) {
	m := NewMetrics()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	for fate := treat.Made; fate <= treat.Unsure; fate++ {
		if fateNames[fate] == "" {
			t.Errorf("fate %d has no name", fate)
		}
		m.wrote("nodes", fate)
	}
	m.population("set", triage.Population{Counts: triage.Counts{Selected: 10, Sick: 6}}, tally{tainted: 4, heldBack: 2}, true)
	m.placed.WithLabelValues("set", "NoExecute").Inc()
	m.removed.WithLabelValues("set", "NoExecute").Inc()
	m.latency.Observe(0.01)
	m.Event("written")
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if got := testutil.ToFloat64(m.nodes.WithLabelValues("set", "held_back")); got != 2 {
		t.Errorf("held back: %v", got)
	}
	m.forgetSet("set")
	if n := testutil.CollectAndCount(m.nodes) + testutil.CollectAndCount(m.accepted); n != 0 {
		t.Errorf("%d lines are left of a set that is gone", n)
	}
}
