package guardrails

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of the guardrails.
type Metrics struct {
	metricset.Set
	limit, used, held *prometheus.GaugeVec
	shown             map[series]bool
}

type series struct{ rail, domain string }

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"rail", "domain"})
	}
	m := &Metrics{
		limit: gauge("autohealer_guardrail_limit", "How many nodes a rail of the Guardrails allows now, how many treatments per period (pace), or how many attempts per node (maxAttempts). domain is the label value of a topology."),
		used:  gauge("autohealer_guardrail_used", "How many nodes, or treatments (pace), count against the limit of a rail; of maxAttempts the attempts of the node that has most."),
		held:  gauge("autohealer_guardrail_held", "How many nodes wait because of a rail."),
	}
	m.Set = metricset.Set{m.limit, m.used, m.held}
	return m
}

// set replaces the numbers of all rails. It never deletes the series of a rail that stays, because a
// scrape at that time would find none.
func (m *Metrics) set(use triage.RailUse) {
	stale := m.shown
	m.shown = map[series]bool{}
	for _, rail := range use.Rails {
		name := railNames[rail.Rail]
		m.shown[series{name, rail.Domain}] = true
		delete(stale, series{name, rail.Domain})
		m.held.WithLabelValues(name, rail.Domain).Set(float64(rail.Held))
		if !rail.HasLimit() {
			continue
		}
		m.limit.WithLabelValues(name, rail.Domain).Set(float64(rail.Limit))
		m.used.WithLabelValues(name, rail.Domain).Set(float64(rail.Used))
	}
	for old := range stale {
		for _, vec := range []*prometheus.GaugeVec{m.limit, m.used, m.held} {
			vec.DeleteLabelValues(old.rail, old.domain)
		}
	}
}
