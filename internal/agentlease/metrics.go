package agentlease

import "github.com/prometheus/client_golang/prometheus"

// Metrics holds the metrics of agents.
type Metrics struct{ *prometheus.GaugeVec }

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "autohealer_agents",
		Help: "Agents with a Lease by state: alive, or silent because they have not renewed it. 0 on replicas that do not lead.",
	}, []string{"state"})}
}

// Set sets the numbers of live and silent agents.
func (m *Metrics) Set(alive, silent int) {
	m.WithLabelValues("alive").Set(float64(alive))
	m.WithLabelValues("silent").Set(float64(silent))
}
