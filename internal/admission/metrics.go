package admission

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what is counted of the answers.
type Metrics struct {
	answers *prometheus.HistogramVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "autohealer_admission_seconds",
		Help:    "Time that an answer to the API server took, by what was asked about and what was answered: allowed, warned (allowed with a warning), refused, or unready (refused because the nodes are not known yet).",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2},
	}, []string{"resource", "answer"})}
}

// Describe lists the metrics.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) { m.answers.Describe(to) }

// Collect reads the metrics.
func (m *Metrics) Collect(to chan<- prometheus.Metric) { m.answers.Collect(to) }

func (m *Metrics) answered(resource, answer string, took time.Duration) {
	m.answers.WithLabelValues(resource, answer).Observe(took.Seconds())
}
