package engine

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

func TestMetricsAreNamedAsPeopleExpect(t *testing.T) {
	m := NewMetrics()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	for result := treat.Made; result <= treat.Unknown; result++ {
		m.CountWrite("nodes", result)
	}
	m.Event("written")
	problems := testkit.Value(testutil.GatherAndLint(registry)).Must(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
