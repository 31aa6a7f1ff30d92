package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// PolicyMetrics are the metrics that all kinds of policies have. Only the goroutine of the
// engine uses them.
type PolicyMetrics struct {
	metricset.Set
	nodes *prometheus.GaugeVec
	ready *prometheus.GaugeVec
	start *prometheus.HistogramVec
	// states are the states that a policy had. A state that has no nodes any more is 0, so
	// that an alert sees its end.
	states map[policykind.Policy]map[string]bool
}

func newPolicyMetrics() *PolicyMetrics {
	m := &PolicyMetrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_policy_nodes",
			Help: "Nodes of a policy by state, which do not overlap: Healthy, Removed (deleted and not replaced yet), or the reason in the status of the policy, for example Pending, Treating, Tainted, GateClosed, Exhausted.",
		}, policykind.Labels("state")),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_policy_ready",
			Help: "Whether the newest version of a policy is in force (1) or not (0), as its condition Ready says.",
		}, policykind.Labels()),
		start: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_policy_start_duration_seconds",
			Help:    "Time from when a taint, a remediation or a repair is due, and no limit holds it, until the API server has stored its first write.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}, policykind.Labels()),
		states: map[policykind.Policy]map[string]bool{},
	}
	m.Set = metricset.Set{m.nodes, m.ready, m.start}
	return m
}

// SetNodes sets the number of nodes of a policy by state.
func (m *PolicyMetrics) SetNodes(policy policykind.Policy, states map[string]int) {
	known := m.states[policy]
	if known == nil {
		known = map[string]bool{}
		m.states[policy] = known
	}
	for state := range states {
		known[state] = true
	}
	for state := range known {
		m.nodes.WithLabelValues(policy.Kind, policy.Name, state).Set(float64(states[state]))
	}
}

// SetReady sets whether a policy is in force.
func (m *PolicyMetrics) SetReady(policy policykind.Policy, is bool) {
	m.ready.WithLabelValues(policy.Kind, policy.Name).Set(metricset.Bool(is))
}

// ObserveStart observes the time from when something is due until it has begun.
func (m *PolicyMetrics) ObserveStart(rule triage.RuleID, took time.Duration) {
	policy := policykind.PolicyOf(rule)
	m.start.WithLabelValues(policy.Kind, policy.Name).Observe(took.Seconds())
}

// Forget deletes the gauges of a deleted policy.
func (m *PolicyMetrics) Forget(policy policykind.Policy) {
	delete(m.states, policy)
	m.nodes.DeletePartialMatch(policy.Match())
	m.ready.DeletePartialMatch(policy.Match())
}

func (m *PolicyMetrics) forgetCounters(rule triage.RuleID) {
	m.start.DeletePartialMatch(policykind.PolicyOf(rule).Match())
}
