package admission

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts answers and rejected requests.
type Metrics struct {
	answers    *prometheus.HistogramVec
	rejections *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "autohealer_webhook_rejected_requests_total",
		Help: "Requests to the webhook that were not judged: too_large, or busy because too many were being judged.",
	}, []string{"reason"}), answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "autohealer_admission_seconds",
		Help:    "Time that an answer to the API server took, by what was asked about and what was answered: allowed, warned (allowed with a warning), refused, or unready (refused because the nodes are not known yet).",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2},
	}, []string{"resource", "answer"})}
}

// Describe lists the metrics.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.answers.Describe(to)
	m.rejections.Describe(to)
}

// Collect reads the metrics.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.answers.Collect(to)
	m.rejections.Collect(to)
}

func (m *Metrics) answered(resource, answer string, took time.Duration) {
	m.answers.WithLabelValues(resource, answer).Observe(took.Seconds())
}

func (m *Metrics) rejected(reason string) { m.rejections.WithLabelValues(reason).Inc() }
