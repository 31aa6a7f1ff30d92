package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics are what the controller counts.
type Metrics struct {
	nodes    *prometheus.GaugeVec
	placed   *prometheus.CounterVec
	removed  *prometheus.CounterVec
	latency  prometheus.Histogram
	writes   *prometheus.CounterVec
	waiting  prometheus.Gauge
	accepted *prometheus.GaugeVec
	events   *prometheus.CounterVec
	leading  prometheus.Gauge
	behind   *prometheus.GaugeVec

	sheetsRead prometheus.Gauge
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_conditionset_nodes",
			Help: "Nodes of a ConditionSet: selected by it, matched by it, tainted with its effect, held back with NoSchedule by its bound, superseded by a higher effect.",
		}, []string{"conditionset", "state"}),
		placed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_taints_placed_total",
			Help: "Taints placed on nodes.",
		}, []string{"conditionset", "effect"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_taints_removed_total",
			Help: "Taints removed from nodes.",
		}, []string{"conditionset", "effect"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "autohealer_condition_to_taint_seconds",
			Help:    "Time from the arrival of the condition that made a taint due, or from when its duration was over, to the answer that the taint is stored.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_writes_total",
			Help: "Writes to the API server by what became of them: made, stale (the object had changed), busy, refused, unsure (no answer came).",
		}, []string{"resource", "outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_writes_waiting",
			Help: "Nodes that wait to be written.",
		}),
		accepted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_conditionset_accepted",
			Help: "Whether a ConditionSet is followed (1) or not (0).",
		}, []string{"conditionset"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_events_total",
			Help: "Events by what became of them: written, refused by the API server, or dropped because too many waited.",
		}, []string{"outcome"}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_leading",
			Help: "Whether this replica leads and has loaded all nodes and sets (1) or not (0).",
		}),
		sheetsRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_configmaps_followed",
			Help: "1 on the replica that leads and has read all ConfigMaps with sets; 0 on it means that a right is missing for that.",
		}),
		behind: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_configmap_not_in_force",
			Help: "Whether the present version of a ConfigMap with ConditionSets is not in force (1), because it is not accepted, not kept yet, or one of its sets is no longer followed, or is (0).",
		}, []string{"configmap"}),
	}
}

// Event counts what became of an Event.
func (m *Metrics) Event(outcome string) { m.events.WithLabelValues(outcome).Inc() }

// Describe lists the metrics.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(to)
	}
}

// Collect reads the metrics.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(to)
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.nodes, m.placed, m.removed, m.latency, m.writes, m.waiting, m.accepted, m.events, m.leading, m.behind, m.sheetsRead}
}

var fateNames = map[treat.Fate]string{
	treat.Made: "made", treat.Stale: "stale", treat.Busy: "busy", treat.Refused: "refused", treat.Unsure: "unsure",
}

func (m *Metrics) wrote(resource string, fate treat.Fate) {
	m.writes.WithLabelValues(resource, fateNames[fate]).Inc()
}

// population tells the counts of a set.
func (m *Metrics) population(set string, counts triage.Population, t tally, isFollowed bool) {
	for state, n := range map[string]int{
		"selected": counts.Selected, "matched": counts.Sick, "tainted": t.tainted, "held_back": t.heldBack, "superseded": t.superseded,
	} {
		m.nodes.WithLabelValues(set, state).Set(float64(n))
	}
	followed := 0.0
	if isFollowed {
		followed = 1
	}
	m.accepted.WithLabelValues(set).Set(followed)
}

// sheet tells whether a ConfigMap says something else than what is in force.
func (m *Metrics) sheet(name string, isBehind bool) {
	behind := 0.0
	if isBehind {
		behind = 1
	}
	m.behind.WithLabelValues(name).Set(behind)
}

func (m *Metrics) forgetSheet(name string) { m.behind.DeleteLabelValues(name) }

// forgetSet drops what is said of a set while it is there.
func (m *Metrics) forgetSet(set string) {
	labels := prometheus.Labels{"conditionset": set}
	m.nodes.DeletePartialMatch(labels)
	m.accepted.DeletePartialMatch(labels)
}

// forgetCounts drops what was counted for a set.
func (m *Metrics) forgetCounts(set string) {
	labels := prometheus.Labels{"conditionset": set}
	m.placed.DeletePartialMatch(labels)
	m.removed.DeletePartialMatch(labels)
}
