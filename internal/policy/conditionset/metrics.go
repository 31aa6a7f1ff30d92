package conditionset

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
)

// Metrics holds the metrics of condition sets.
type Metrics struct {
	metricset.Set
	configMapsRead prometheus.Gauge
	behind         *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		configMapsRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_configmaps_followed",
			Help: "1 on the replica that leads and has read all ConfigMaps with sets; 0 on it means that a permission is missing.",
		}),
		behind: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_configmap_not_in_force",
			Help: "Whether the current version of a ConfigMap with ConditionSets is not in force (1), because it is invalid, not saved yet, or one of its sets is held, or in force (0).",
		}, []string{"configmap"}),
	}
	m.Set = metricset.Set{m.configMapsRead, m.behind}
	return m
}

// setConfigMap sets whether the content of a ConfigMap differs from what is in force.
func (m *Metrics) setConfigMap(name string, isBehind bool) {
	m.behind.WithLabelValues(name).Set(metricset.Bool(isBehind))
}

func (m *Metrics) forgetConfigMap(name string) { m.behind.DeleteLabelValues(name) }
