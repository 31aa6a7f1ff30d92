package repair

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of repair policies and ready timeouts.
type Metrics struct {
	metricset.Set
	eligible     *prometheus.GaugeVec
	repairs      *prometheus.CounterVec
	readyTimeout *prometheus.CounterVec
	poolHeld     *prometheus.GaugeVec
	poolBlocks   *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		eligible: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_repair_eligible_timestamp_seconds",
			Help: "When an unhealthy node becomes eligible for repair, in seconds since 1970. Each rule has series for at most 20 nodes, the first ones due.",
		}, policykind.Labels("nodepool", "node")),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_repairs_total",
			Help: "Repairs by outcome: terminated (the controller deleted the NodeClaim), forced (it ended the drain), cancelled (it removed the mark again); for nodes without a NodeClaim the outcomes of remediations.",
		}, policykind.Labels("nodepool", "condition", "mode", "outcome")),
		readyTimeout: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_nodeclaims_ready_timeout_recovered_total",
			Help: "NodeClaims that the controller deleted because their node did not become ready in time.",
		}, policykind.Labels("nodepool", "capacity_type")),
		poolHeld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodepool_held",
			Help: "Whether the controller pauses replacement in a NodePool (1) because several nodes in a row did not become ready, or not (0).",
		}, policykind.Labels("nodepool")),
		poolBlocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodepool_repair_blocks",
			Help: "NodePools by the state of their repair block: in_force, invalid, schema_lost (the CRD has lost the schema of blocks), block_lost (the block is gone with the schema), not_saved (in force, but the controller has not saved a copy yet). In all but the first the last valid block is in force.",
		}, []string{"state"}),
	}
	m.Set = metricset.Set{m.eligible, m.repairs, m.readyTimeout, m.poolHeld, m.poolBlocks}
	return m
}

// setEligible sets when nodes become eligible for repair, and deletes the gauges of nodes
// that are no longer listed.
func (m *Metrics) setEligible(rule triage.RuleID, pool string, now, before map[string]time.Time) {
	policy := policykind.PolicyOf(rule)
	for node := range before {
		if _, still := now[node]; !still {
			m.eligible.DeleteLabelValues(policy.Kind, policy.Name, pool, node)
		}
	}
	for node, at := range now {
		m.eligible.WithLabelValues(policy.Kind, policy.Name, pool, node).Set(float64(at.Unix()))
	}
}

// SetBlocks sets the gauges of repair blocks.
func (m *Metrics) SetBlocks(t repairblock.Counts) {
	for state, n := range map[string]int{"in_force": t.InForce, "invalid": t.Refused, "schema_lost": t.Lost, "block_lost": t.Vanished, "not_saved": t.NotSaved} {
		m.poolBlocks.WithLabelValues(state).Set(float64(n))
	}
}

// setPoolHeld sets whether replacement in a pool is paused.
func (m *Metrics) setPoolHeld(pool string, is bool) {
	policy := policykind.PolicyOf(timeoutRule(pool))
	m.poolHeld.WithLabelValues(policy.Kind, policy.Name, pool).Set(metricset.Bool(is))
}

func (m *Metrics) forgetPool(pool string) {
	m.poolHeld.DeletePartialMatch(policykind.PolicyOf(timeoutRule(pool)).Match())
}

// countReadyTimeout counts a NodeClaim that the controller deleted because of a ready timeout.
func (m *Metrics) countReadyTimeout(rule triage.RuleID, pool, capacityType string) {
	policy := policykind.PolicyOf(rule)
	m.readyTimeout.WithLabelValues(policy.Kind, policy.Name, pool, capacityType).Inc()
}

// ForgetCounters deletes the counters of a deleted NodePool.
func (r *Policy) ForgetCounters(rule triage.RuleID) bool {
	if !isRepair(rule) {
		return false
	}
	r.metrics.repairs.DeletePartialMatch(policykind.PolicyOf(rule).Match())
	if rule.Kind == policykind.ReadyTimeout { // the name is that of the NodePool
		labels := prometheus.Labels{"nodepool": rule.Name}
		r.metrics.repairs.DeletePartialMatch(labels)
		r.metrics.readyTimeout.DeletePartialMatch(labels)
	}
	return true
}

// CountRemediation counts a remediation of a node without a machine by its outcome.
func (r *Policy) CountRemediation(rule triage.RuleID, condition, outcome string) {
	r.metrics.countRepair(rule, "", condition, "Remediation", outcome)
}

// countRepair counts a repair by its outcome.
func (m *Metrics) countRepair(rule triage.RuleID, pool, condition, mode, outcome string) {
	policy := policykind.PolicyOf(rule)
	m.repairs.WithLabelValues(policy.Kind, policy.Name, pool, condition, mode, outcome).Inc()
}

// ObserveRecovery does nothing: repairs have no such metric.
func (*Policy) ObserveRecovery(triage.RuleID, remediation.Object, time.Duration) {}

// ObserveObject does nothing: repairs have no such metric.
func (*Policy) ObserveObject(remediation.Object, remediation.ObjectChange) {}
