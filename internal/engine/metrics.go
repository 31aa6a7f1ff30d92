package engine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of the engine.
type Metrics struct {
	metricset.Set
	placed  *prometheus.CounterVec
	removed *prometheus.CounterVec
	latency prometheus.Histogram
	writes  *prometheus.CounterVec
	waiting prometheus.Gauge
	events  *prometheus.CounterVec
	leading prometheus.Gauge
	unknown *prometheus.GaugeVec
	agents  *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		placed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_taints_placed_total",
			Help: "Taints placed on nodes.",
		}, []string{"conditionset", "effect"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_taints_removed_total",
			Help: "Taints removed from nodes.",
		}, []string{"conditionset", "effect"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "autohealer_condition_to_taint_seconds",
			Help:    "Time from the arrival of the condition that made a taint due, or from when its duration was over, to the answer that the taint is stored.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}),
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
			Help: "Whether this replica leads and has loaded all nodes and sets (1) or not (0).",
		}),
		unknown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_unknown_stored",
			Help: "Entries and fields that a newer version has stored and this version does not know, by format: ledger, record (annotations of nodes), mark (annotations of NodeClaims). The controller keeps them unchanged.",
		}, []string{"format"}),
		agents: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_agents",
			Help: "Agents with a Lease by state: alive, or silent because they have not renewed it. 0 on replicas that do not lead.",
		}, []string{"state"}),
	}
	m.Set = metricset.Set{m.placed, m.removed, m.latency, m.writes, m.waiting, m.events, m.leading, m.unknown, m.agents}
	return m
}

// Event counts an Event by its outcome.
func (m *Metrics) Event(outcome string) { m.events.WithLabelValues(outcome).Inc() }

// CountWrite counts a write by its result.
func (m *Metrics) CountWrite(resource string, result treat.Result) {
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

// forgetTaints deletes the counters of the taints of a rule.
func (m *Metrics) forgetTaints(rule triage.RuleID) {
	labels := prometheus.Labels{"conditionset": rule.Name}
	m.placed.DeletePartialMatch(labels)
	m.removed.DeletePartialMatch(labels)
}

// SetAgents sets the numbers of live and silent agents.
func (m *Metrics) SetAgents(alive, silent int) {
	m.agents.WithLabelValues("alive").Set(float64(alive))
	m.agents.WithLabelValues("silent").Set(float64(silent))
}
