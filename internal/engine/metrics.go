package engine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/treat"
)

// Metrics holds the metrics of the engine.
type Metrics struct {
	metricset.Set
	Policies *PolicyMetrics
	writes   *prometheus.CounterVec
	waiting  prometheus.Gauge
	events   *prometheus.CounterVec
	leading  prometheus.Gauge
	unknown  *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		Policies: newPolicyMetrics(),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_writes_total",
			Help: "Writes to the API server by outcome: made, stale (the object had changed), busy, refused, unknown (no answer arrived).",
		}, []string{"resource", "outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_writes_waiting",
			Help: "Nodes that wait to be written.",
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_events_total",
			Help: "Events by outcome: written, refused by the API server, or dropped because too many waited.",
		}, []string{"outcome"}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_leading",
			Help: "Whether this replica leads and has loaded all nodes and policies (1) or not (0).",
		}),
		unknown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_unknown_stored",
			Help: "Entries and fields that a newer version has stored and this version does not know, by format: ledger, record (annotations of nodes), mark (annotations of NodeClaims). The controller keeps them unchanged.",
		}, []string{"format"}),
	}
	m.Set = metricset.Set{m.Policies, m.writes, m.waiting, m.events, m.leading, m.unknown}
	return m
}

// Event counts an Event by its outcome.
func (m *Metrics) Event(outcome string) { m.events.WithLabelValues(outcome).Inc() }

// CountWrite counts a write by its result.
func (m *Metrics) CountWrite(resource string, result treat.Outcome) {
	m.writes.WithLabelValues(resource, result.String()).Inc()
}

// setUnknownEntries sets how many entries of a format this version does not know.
func (m *Metrics) setUnknownEntries(format string, n int) {
	m.unknown.WithLabelValues(format).Set(float64(n))
}

// addUnknownEntries changes that number by n.
func (m *Metrics) addUnknownEntries(format string, n int) {
	m.unknown.WithLabelValues(format).Add(float64(n))
}
