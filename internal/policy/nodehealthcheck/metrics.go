package nodehealthcheck

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of health checks.
type Metrics struct {
	metricset.Set
	nodes         *prometheus.GaugeVec
	waiting       *prometheus.GaugeVec
	disabled      *prometheus.GaugeVec
	remediations  *prometheus.CounterVec
	toRemediation *prometheus.HistogramVec
	toRecovery    *prometheus.HistogramVec
	deferring     prometheus.Gauge
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_nodes",
			Help: "Nodes of a NodeHealthCheck: selected by it, healthy, sick (unhealthy), recovering (healthy, but the remediation still exists), departed, in_treatment.",
		}, []string{"nodehealthcheck", "state"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_waiting_nodes",
			Help: "Sick nodes of a NodeHealthCheck that are not treated, by the reason.",
		}, []string{"nodehealthcheck", "reason"}),
		disabled: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_disabled",
			Help: "Whether a NodeHealthCheck cannot be followed (1) or is (0).",
		}, []string{"nodehealthcheck"}),
		remediations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_remediations_total",
			Help: "Remediations by what became of them: begun, escalated (a later one was begun), timed_out, recovered, deselected, check_gone, node_gone, called_off (it was no longer wanted when it came), lost (another client deleted it).",
		}, []string{"nodehealthcheck", "outcome"}),
		toRemediation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_condition_to_remediation_seconds",
			Help:    "Time from when a remediation was due to the answer that its object is stored.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}, []string{"nodehealthcheck"}),
		toRecovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_remediation_to_recovery_seconds",
			Help:    "Time from when a remediation was begun to when it was removed because the node had recovered.",
			Buckets: []float64{1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200},
		}, []string{"nodehealthcheck"}),
		deferring: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_standing_back",
			Help: "Whether NodeHealthChecks are left to another controller (1) or followed (0).",
		}),
	}
	m.Set = metricset.Set{m.nodes, m.waiting, m.disabled, m.remediations, m.toRemediation, m.toRecovery, m.deferring}
	return m
}

// setCheck sets the gauges of a health check.
func (m *Metrics) setCheck(name string, counts triage.Population, c *check) {
	for state, n := range map[string]int{
		"selected": counts.Selected, "healthy": counts.Selected - counts.Unhealthy - counts.Recovering,
		"sick": counts.Unhealthy, "recovering": counts.Recovering, "departed": counts.Departed, "in_treatment": counts.Treated,
	} {
		m.nodes.WithLabelValues(name, state).Set(float64(n))
	}
	m.disabled.WithLabelValues(name).Set(metricset.Bool(c.disabled != ""))
	waiting := c.waiting(counts)
	for code := range c.reportedWaits {
		if _, still := waiting[code]; !still {
			m.waiting.DeleteLabelValues(name, code.String())
		}
	}
	for code, n := range waiting {
		m.waiting.WithLabelValues(name, code.String()).Set(float64(n))
	}
	c.reportedWaits = waiting
}

// forgetCheck deletes the gauges of a health check.
func (m *Metrics) forgetCheck(name string) {
	labels := prometheus.Labels{"nodehealthcheck": name}
	m.nodes.DeletePartialMatch(labels)
	m.waiting.DeletePartialMatch(labels)
	m.disabled.DeletePartialMatch(labels)
}

// ForgetCounters deletes the counters of a deleted health check.
func (h *Policy) ForgetCounters(rule triage.RuleID) bool {
	if rule.Kind != policykind.NodeHealthCheck {
		return false
	}
	labels := prometheus.Labels{"nodehealthcheck": rule.Name}
	h.metrics.remediations.DeletePartialMatch(labels)
	h.metrics.toRemediation.DeletePartialMatch(labels)
	h.metrics.toRecovery.DeletePartialMatch(labels)
	return true
}

// CountRemediation counts a remediation by its outcome.
func (h *Policy) CountRemediation(rule triage.RuleID, _, outcome string) {
	h.metrics.remediations.WithLabelValues(rule.Name, outcome).Inc()
}

// ObserveStart observes the delay between a remediation's due time and its start.
func (h *Policy) ObserveStart(rule triage.RuleID, wait time.Duration) {
	h.metrics.toRemediation.WithLabelValues(rule.Name).Observe(wait.Seconds())
}

// ObserveRecovery observes the time from the start of a remediation to recovery.
func (h *Policy) ObserveRecovery(rule triage.RuleID, wait time.Duration) {
	h.metrics.toRecovery.WithLabelValues(rule.Name).Observe(wait.Seconds())
}
