package conditionset

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of condition sets.
type Metrics struct {
	metricset.Set
	nodes          *prometheus.GaugeVec
	accepted       *prometheus.GaugeVec
	configMapsRead prometheus.Gauge
	behind         *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_conditionset_nodes",
			Help: "Nodes of a ConditionSet: selected by it, matched by it, tainted with its effect, held back with NoSchedule by its bound, superseded by a higher effect.",
		}, []string{"conditionset", "state"}),
		accepted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_conditionset_accepted",
			Help: "Whether a ConditionSet is followed (1) or not (0).",
		}, []string{"conditionset"}),
		configMapsRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_configmaps_followed",
			Help: "1 on the replica that leads and has read all ConfigMaps with sets; 0 on it means that a permission is missing.",
		}),
		behind: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_configmap_not_in_force",
			Help: "Whether the current version of a ConfigMap with ConditionSets is not in force (1), because it is invalid, not saved yet, or one of its sets is held, or in force (0).",
		}, []string{"configmap"}),
	}
	m.Set = metricset.Set{m.nodes, m.accepted, m.configMapsRead, m.behind}
	return m
}

// setPopulation sets the gauges of a condition set.
func (m *Metrics) setPopulation(set string, counts triage.Population, t nodeCounts, isFollowed bool) {
	for state, n := range map[string]int{
		"selected": counts.Selected, "matched": counts.Unhealthy, "tainted": t.tainted, "held_back": t.heldBack, "superseded": t.superseded,
	} {
		m.nodes.WithLabelValues(set, state).Set(float64(n))
	}
	m.accepted.WithLabelValues(set).Set(metricset.Bool(isFollowed))
}

// setConfigMap sets whether the content of a ConfigMap differs from what is in force.
func (m *Metrics) setConfigMap(name string, isBehind bool) {
	m.behind.WithLabelValues(name).Set(metricset.Bool(isBehind))
}

func (m *Metrics) forgetConfigMap(name string) { m.behind.DeleteLabelValues(name) }

// forgetSet deletes the gauges of a condition set.
func (m *Metrics) forgetSet(set string) {
	labels := prometheus.Labels{"conditionset": set}
	m.nodes.DeletePartialMatch(labels)
	m.accepted.DeletePartialMatch(labels)
}
