package nodehealthcheck

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
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

	// The metrics of medik8s, for its alerts and dashboards.
	ongoing  *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	old      *prometheus.CounterVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_nodes",
			Help: "Nodes of a NodeHealthCheck by state: selected, healthy, unhealthy, recovering (healthy, but its remediation still exists), removed (deleted and not replaced yet), in_treatment.",
		}, []string{"nodehealthcheck", "state"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_waiting_nodes",
			Help: "Unhealthy nodes of a NodeHealthCheck whose remediation is due and does not start, by reason.",
		}, []string{"nodehealthcheck", "reason"}),
		disabled: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_disabled",
			Help: "Whether the controller does not follow a NodeHealthCheck (1) or follows it (0).",
		}, []string{"nodehealthcheck"}),
		remediations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_remediations_total",
			Help: "Remediations by outcome: begun, escalated (the next step began), timed_out, recovered, deselected, check_gone, node_gone, unwanted (the plan had changed when the object arrived), lost (another client deleted the object).",
		}, []string{"nodehealthcheck", "outcome"}),
		toRemediation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_condition_to_remediation_seconds",
			Help:    "Time from when a remediation is due until the API server has stored its object.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}, []string{"nodehealthcheck"}),
		toRecovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_remediation_to_recovery_seconds",
			Help:    "Time from the creation of a remediation object until the controller deletes it because the node has recovered.",
			Buckets: []float64{1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200},
		}, []string{"nodehealthcheck"}),
		deferring: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_deferring",
			Help: "Whether the controller leaves NodeHealthChecks to medik8s' own controller (1) or follows them (0).",
		}),
		ongoing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodehealthcheck_ongoing_remediation",
			Help: "Is 1 for every remediation object of a node (name), as with medik8s.",
		}, []string{"name", "namespace", "remediation"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nodehealthcheck_unhealthy_node_duration_seconds",
			Help:    "Time from the creation of a remediation object until its node (name) has recovered, as with medik8s.",
			Buckets: []float64{30, 60, 120, 180, 240, 300, 600, 1200, 2400, 3600},
		}, []string{"name", "namespace", "remediation"}),
		old: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodehealthcheck_old_remediation_cr",
			Help: "Remediation objects of a node (name) that existed for more than 48 hours, as with medik8s.",
		}, []string{"name", "namespace"}),
	}
	m.Set = metricset.Set{m.nodes, m.waiting, m.disabled, m.remediations, m.toRemediation, m.toRecovery, m.deferring, m.ongoing, m.duration, m.old}
	return m
}

// setCheck sets the gauges of a health check.
func (m *Metrics) setCheck(name string, counts triage.Population, c *check) {
	for state, n := range map[string]int{
		"selected": counts.Selected, "healthy": counts.Selected - counts.Unhealthy - counts.Recovering,
		"unhealthy": counts.Unhealthy, "recovering": counts.Recovering, "removed": counts.Departed, "in_treatment": counts.Treated,
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
func (h *Policy) ObserveRecovery(rule triage.RuleID, object remediation.Object, took time.Duration) {
	h.metrics.toRecovery.WithLabelValues(rule.Name).Observe(took.Seconds())
	h.metrics.duration.WithLabelValues(object.Node, object.Namespace, object.Kind).Observe(took.Seconds())
}

// ObserveObject counts remediation objects. While the controller defers to medik8s' own
// controller, that controller counts them.
func (h *Policy) ObserveObject(object remediation.Object, change remediation.ObjectChange) {
	switch {
	case change == remediation.ObjectIsGone:
		delete(h.objects, object.UID)
		if !slices.ContainsFunc(slices.Collect(maps.Values(h.objects)), func(other remediation.Object) bool {
			return other.Node == object.Node && other.Namespace == object.Namespace && other.Kind == object.Kind
		}) {
			h.metrics.ongoing.DeleteLabelValues(object.Node, object.Namespace, object.Kind)
		}
	case h.IsDeferring():
	case change == remediation.ObjectIsOld:
		h.metrics.old.WithLabelValues(object.Node, "").Inc() // the namespace is that of the node
	default:
		h.objects[object.UID] = object
		h.metrics.ongoing.WithLabelValues(object.Node, object.Namespace, object.Kind).Set(1)
	}
}
