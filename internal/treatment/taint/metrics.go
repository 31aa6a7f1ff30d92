package taint

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of taints.
type Metrics struct {
	metricset.Set
	placed  *prometheus.CounterVec
	removed *prometheus.CounterVec
	latency prometheus.Histogram
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
	}
	m.Set = metricset.Set{m.placed, m.removed, m.latency}
	return m
}

// forget deletes the counters of a rule.
func (m *Metrics) forget(rule triage.RuleID) {
	labels := prometheus.Labels{"conditionset": rule.Name}
	m.placed.DeletePartialMatch(labels)
	m.removed.DeletePartialMatch(labels)
}
