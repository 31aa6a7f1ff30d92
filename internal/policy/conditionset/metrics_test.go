package conditionset

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/triage"
)

func TestMetricsOfASetEndWithIt(t *testing.T) {
	m := NewMetrics()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	m.setPopulation("set", triage.Population{Counts: triage.Counts{Selected: 10, Unhealthy: 6}}, nodeCounts{tainted: 4, heldBack: 2}, true)
	problems, err := testutil.GatherAndLint(registry)
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if got := testutil.ToFloat64(m.nodes.WithLabelValues("set", "held_back")); got != 2 {
		t.Errorf("held back: %v", got)
	}
	m.forgetSet("set")
	if n := testutil.CollectAndCount(m.nodes) + testutil.CollectAndCount(m.accepted); n != 0 {
		t.Errorf("%d series are left of a deleted set", n)
	}
}
