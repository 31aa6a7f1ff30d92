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
	remediations *prometheus.CounterVec
	toRecovery   *prometheus.HistogramVec
	deferring    prometheus.Gauge

	// The metrics of medik8s, for its alerts and dashboards.
	ongoing  *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	old      *prometheus.CounterVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		remediations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_remediations_total",
			Help: "Remediations by outcome: begun, escalated (the next step began), timed_out, recovered, deselected, check_gone, node_gone, unwanted (the plan had changed when the object arrived), lost (another client deleted the object).",
		}, policykind.Labels("outcome")),
		toRecovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_remediation_recovery_duration_seconds",
			Help:    "Time from the creation of a remediation object until the controller deletes it because the node has recovered.",
			Buckets: []float64{1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200},
		}, policykind.Labels()),
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
	m.Set = metricset.Set{m.remediations, m.toRecovery, m.deferring, m.ongoing, m.duration, m.old}
	return m
}

// ForgetCounters deletes the counters of a deleted health check.
func (h *Policy) ForgetCounters(rule triage.RuleID) bool {
	if rule.Kind != policykind.NodeHealthCheck {
		return false
	}
	labels := policykind.PolicyOf(rule).Match()
	h.metrics.remediations.DeletePartialMatch(labels)
	h.metrics.toRecovery.DeletePartialMatch(labels)
	return true
}

// CountRemediation counts a remediation by its outcome.
func (h *Policy) CountRemediation(rule triage.RuleID, _, outcome string) {
	h.metrics.remediations.WithLabelValues(string(rule.Kind), rule.Name, outcome).Inc()
}

// ObserveRecovery observes the time from the start of a remediation to recovery.
func (h *Policy) ObserveRecovery(rule triage.RuleID, object remediation.Object, took time.Duration) {
	h.metrics.toRecovery.WithLabelValues(string(rule.Kind), rule.Name).Observe(took.Seconds())
	h.metrics.duration.WithLabelValues(object.Node, object.Namespace, object.Kind).Observe(took.Seconds())
}

// ObserveObject counts remediation objects. While the controller defers to medik8s' own
// controller, that controller counts them. The end of the last remediation may let the newest
// version of the health check take force.
func (h *Policy) ObserveObject(object remediation.Object, change remediation.ObjectChange) {
	if c := h.known[object.Owner.Name]; c != nil && c.invalid != "" {
		h.changed = true
	}
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
