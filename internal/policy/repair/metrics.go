package repair

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/remediation"
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
			Help: "Nodes of a repair rule or a ready timeout by state: assigned to it, unhealthy (or its ready timeout has passed), repairing (or deleted and not replaced yet), waiting (due, but a bound, a budget or a veto delays the repair).",
		}, []string{"rule", "nodepool", "state"}),
		eligible: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_repair_eligible_timestamp_seconds",
			Help: "When an unhealthy node becomes eligible for repair, in seconds since 1970. Each rule has series for at most 20 nodes, the first ones due.",
		}, []string{"rule", "nodepool", "node"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_repairs_total",
			Help: "Repairs by outcome: terminated (the controller deleted the NodeClaim), cancelled (it removed the mark again); for nodes without a NodeClaim the outcomes of remediations.",
		}, []string{"nodepool", "condition", "mode", "outcome"}),
		dueToRepair: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_due_to_repair_seconds",
			Help:    "Time from when a repair is due until it has begun.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}, []string{"kind"}),
		readyTimeout: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_nodeclaims_ready_timeout_recovered_total",
			Help: "NodeClaims that the controller deleted because their node did not become ready in time.",
		}, []string{"nodepool", "capacity_type"}),
		poolHeld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodepool_held",
			Help: "Whether the controller pauses replacement in a NodePool (1) because several nodes in a row did not become ready, or not (0).",
		}, []string{"nodepool"}),
		poolBlocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodepool_repair_blocks",
			Help: "NodePools by the state of their repair block: in_force, invalid, schema_lost (the CRD has lost the schema of blocks, and the last valid block is in force), block_lost (the block is gone with the schema), not_saved (in force, but the controller has not saved a copy yet).",
		}, []string{"state"}),
	}
	m.Set = metricset.Set{m.nodes, m.eligible, m.repairs, m.dueToRepair, m.readyTimeout, m.poolHeld, m.poolBlocks}
	return m
}

// setRule sets the gauges of a repair rule.
func (m *Metrics) setRule(rule triage.RuleID, pool string, sum repairCounts) {
	for state, n := range map[string]int{"assigned": sum.nodes, "unhealthy": sum.unhealthy, "repairing": sum.repairing, "waiting": sum.held} {
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
	for state, n := range map[string]int{"in_force": t.InForce, "invalid": t.Refused, "schema_lost": t.Lost, "block_lost": t.Vanished, "not_saved": t.NotSaved} {
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
func (*Policy) ObserveRecovery(triage.RuleID, remediation.Object, time.Duration) {}

// ObserveObject does nothing: repairs have no such metric.
func (*Policy) ObserveObject(remediation.Object, remediation.ObjectChange) {}
