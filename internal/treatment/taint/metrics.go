package taint

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of taints.
type Metrics struct {
	metricset.Set
	placed  *prometheus.CounterVec
	removed *prometheus.CounterVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		placed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_taints_placed_total",
			Help: "Taints placed on nodes.",
		}, policykind.Labels("effect")),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_taints_removed_total",
			Help: "Taints removed from nodes.",
		}, policykind.Labels("effect")),
	}
	m.Set = metricset.Set{m.placed, m.removed}
	return m
}

// forget deletes the counters of a rule.
func (m *Metrics) forget(rule triage.RuleID) {
	labels := policykind.PolicyOf(rule).Match()
	m.placed.DeletePartialMatch(labels)
	m.removed.DeletePartialMatch(labels)
}
