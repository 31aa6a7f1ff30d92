package admission

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
)

// Metrics counts answers and rejected requests.
type Metrics struct {
	metricset.Set
	answers    *prometheus.HistogramVec
	rejections *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	m := &Metrics{rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "autohealer_webhook_rejected_requests_total",
		Help: "Requests to the webhook that were not checked: no_length (without Content-Length), too_large, busy (too many were being checked), or slow (the body did not arrive in time).",
	}, []string{"reason"}), answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "autohealer_admission_duration_seconds",
		Help:    "Time that an answer to the API server took, by what was asked about and what was answered: allowed, warned (allowed with a warning), refused, or unready (refused because the nodes are not known yet).",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2},
	}, []string{"resource", "answer"})}
	m.Set = metricset.Set{m.answers, m.rejections}
	return m
}

func (m *Metrics) answered(resource, answer string, took time.Duration) {
	m.answers.WithLabelValues(resource, answer).Observe(took.Seconds())
}

func (m *Metrics) rejected(reason string) { m.rejections.WithLabelValues(reason).Inc() }
