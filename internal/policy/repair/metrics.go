package repair

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of repair policies and ready timeouts.
type Metrics struct {
	metricset.Set
	nodes        *prometheus.GaugeVec
	eligible     *prometheus.GaugeVec
	repairs      *prometheus.CounterVec
	dueToRepair  *prometheus.HistogramVec
	readyTimeout *prometheus.CounterVec
	poolHeld     *prometheus.GaugeVec
	poolBlocks   *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_repair_nodes",
			Help: "Nodes under a rule of repair policies or ready timeouts: governed by it, sick (unhealthy; of a ready timeout: it is over), repairing (under way, or gone and not replaced yet), held (due, and kept from it by a bound, a budget or a veto).",
		}, []string{"rule", "nodepool", "state"}),
		eligible: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_repair_eligible_timestamp_seconds",
			Help: "From when an unhealthy node may be repaired, in seconds since 1970; what holds it then is told by its Events. Of every rule no more than 20 nodes, those that are due first.",
		}, []string{"rule", "nodepool", "node"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_repairs_total",
			Help: "Repairs by what became of them: terminated (the NodeClaim was deleted), spared (it was marked, and is not to go after all), and for nodes without one begun, recovered, node_gone, called_off or lost as remediations are.",
		}, []string{"nodepool", "condition", "mode", "outcome"}),
		dueToRepair: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_due_to_repair_seconds",
			Help:    "Time from when a repair was due to the answer that it has begun.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}, []string{"kind"}),
		readyTimeout: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_nodeclaims_ready_timeout_recovered_total",
			Help: "NodeClaims deleted because their node had not become ready in time.",
		}, []string{"nodepool", "capacity_type"}),
		poolHeld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodepool_held",
			Help: "Whether a NodePool is held (1) because nodes of it in a row have not become ready, or not (0).",
		}, []string{"nodepool"}),
		poolBlocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodepool_repair_blocks",
			Help: "NodePools by what is the matter with their repair block: in_force, refused (what stands there cannot be followed), lost (the schema of the block is gone from the CRD, and the last good one is in force), vanished (the block has gone with the schema), unkept (in force, but there is no copy yet).",
		}, []string{"state"}),
	}
	m.Set = metricset.Set{m.nodes, m.eligible, m.repairs, m.dueToRepair, m.readyTimeout, m.poolHeld, m.poolBlocks}
	return m
}

// setRule sets the gauges of a repair rule.
func (m *Metrics) setRule(rule triage.RuleID, pool string, sum repairCounts) {
	for state, n := range map[string]int{"governed": sum.nodes, "sick": sum.sick, "repairing": sum.repairing, "held": sum.held} {
		m.nodes.WithLabelValues(rule.String(), pool, state).Set(float64(n))
	}
}

// setEligible sets when nodes become eligible for repair, and deletes the gauges of nodes
// that are no longer listed.
func (m *Metrics) setEligible(rule triage.RuleID, pool string, now, before map[string]time.Time) {
	for node := range before {
		if _, still := now[node]; !still {
			m.eligible.DeleteLabelValues(rule.String(), pool, node)
		}
	}
	for node, at := range now {
		m.eligible.WithLabelValues(rule.String(), pool, node).Set(float64(at.Unix()))
	}
}

// forgetRule deletes the gauges of a repair rule.
func (m *Metrics) forgetRule(rule triage.RuleID) {
	labels := prometheus.Labels{"rule": rule.String()}
	m.nodes.DeletePartialMatch(labels)
	m.eligible.DeletePartialMatch(labels)
}

// SetBlocks sets the gauges of repair blocks.
func (m *Metrics) SetBlocks(t repairblock.Counts) {
	for state, n := range map[string]int{"in_force": t.InForce, "refused": t.Refused, "lost": t.Lost, "vanished": t.Vanished, "unkept": t.NotSaved} {
		m.poolBlocks.WithLabelValues(state).Set(float64(n))
	}
}

// setPoolHeld sets whether replacement in a pool is paused.
func (m *Metrics) setPoolHeld(pool string, is bool) {
	m.poolHeld.WithLabelValues(pool).Set(metricset.Bool(is))
}

func (m *Metrics) forgetPool(pool string) { m.poolHeld.DeleteLabelValues(pool) }

// ForgetCounters deletes the counters of a deleted NodePool.
func (r *Policy) ForgetCounters(rule triage.RuleID) bool {
	if !isRepair(rule) {
		return false
	}
	labels := prometheus.Labels{"nodepool": rule.Name}
	r.metrics.repairs.DeletePartialMatch(labels)
	r.metrics.readyTimeout.DeletePartialMatch(labels)
	return true
}

// CountRemediation counts a remediation of a node without a machine by its outcome.
func (r *Policy) CountRemediation(_ triage.RuleID, condition, outcome string) {
	r.metrics.repairs.WithLabelValues("", condition, "Remediation", outcome).Inc()
}

// ObserveStart observes the delay between a repair's due time and its start.
func (r *Policy) ObserveStart(rule triage.RuleID, wait time.Duration) {
	r.metrics.dueToRepair.WithLabelValues(string(rule.Kind)).Observe(wait.Seconds())
}

// ObserveRecovery does nothing: repairs have no such metric.
func (*Policy) ObserveRecovery(triage.RuleID, time.Duration) {}
