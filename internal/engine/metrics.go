package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Metrics holds the metrics of the controller.
type Metrics struct {
	placed  *prometheus.CounterVec
	removed *prometheus.CounterVec
	latency prometheus.Histogram
	writes  *prometheus.CounterVec
	waiting prometheus.Gauge
	events  *prometheus.CounterVec
	leading prometheus.Gauge
	unknown *prometheus.GaugeVec

	checkNodes    *prometheus.GaugeVec
	checkWaiting  *prometheus.GaugeVec
	checkDisabled *prometheus.GaugeVec
	treatments    *prometheus.CounterVec
	toRemediation *prometheus.HistogramVec
	toRecovery    *prometheus.HistogramVec
	deferring     prometheus.Gauge
	agents        *prometheus.GaugeVec

	repairNodes  *prometheus.GaugeVec
	repairFrom   *prometheus.GaugeVec
	repairs      *prometheus.CounterVec
	repairAfter  *prometheus.HistogramVec
	readyTimeout *prometheus.CounterVec
	poolHeld     *prometheus.GaugeVec
	poolBlocks   *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{
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
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_events_total",
			Help: "Events by what became of them: written, refused by the API server, or dropped because too many waited.",
		}, []string{"outcome"}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_leading",
			Help: "Whether this replica leads and has loaded all nodes and sets (1) or not (0).",
		}),
		unknown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_unknown_stored",
			Help: "Entries and fields that a newer version has stored and this one does not know, by where: ledger, record (annotations of nodes), mark (annotations of NodeClaims). They are kept as they are.",
		}, []string{"format"}),
		checkNodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_nodes",
			Help: "Nodes of a NodeHealthCheck: selected by it, healthy, sick (unhealthy), recovering (healthy, but the remediation still exists), departed, in_treatment.",
		}, []string{"nodehealthcheck", "state"}),
		checkWaiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_waiting_nodes",
			Help: "Sick nodes of a NodeHealthCheck that are not treated, by the reason.",
		}, []string{"nodehealthcheck", "reason"}),
		checkDisabled: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_disabled",
			Help: "Whether a NodeHealthCheck cannot be followed (1) or is (0).",
		}, []string{"nodehealthcheck"}),
		treatments: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_remediations_total",
			Help: "Remediations by what became of them: begun, escalated (a later one was begun), timed_out, recovered, deselected, check_gone, node_gone, called_off (it was no longer wanted when it came), lost (another client deleted it).",
		}, []string{"nodehealthcheck", "outcome"}),
		toRemediation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_condition_to_remediation_seconds",
			Help:    "Time from when a remediation was due to the answer that its object is stored.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}, []string{"nodehealthcheck"}),
		toRecovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "autohealer_remediation_to_recovery_seconds",
			Help:    "Time from when a remediation was begun to when it was removed because the node had recovered.",
			Buckets: []float64{1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200},
		}, []string{"nodehealthcheck"}),
		deferring: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "autohealer_nodehealthcheck_standing_back",
			Help: "Whether NodeHealthChecks are left to another controller (1) or followed (0).",
		}),
		agents: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_agents",
			Help: "Agents that have a Lease: heard, or silent because they have not renewed it. 0 where this replica does not lead.",
		}, []string{"state"}),
		repairNodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_repair_nodes",
			Help: "Nodes under a rule of repair policies or ready timeouts: governed by it, sick (unhealthy; of a ready timeout: it is over), repairing (under way, or gone and not replaced yet), held (due, and kept from it by a bound, a budget or a veto).",
		}, []string{"rule", "nodepool", "state"}),
		repairFrom: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "autohealer_repair_eligible_timestamp_seconds",
			Help: "From when an unhealthy node may be repaired, in seconds since 1970; what holds it then is told by its Events. Of every rule no more than 20 nodes, those that are due first.",
		}, []string{"rule", "nodepool", "node"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "autohealer_repairs_total",
			Help: "Repairs by what became of them: terminated (the NodeClaim was deleted), spared (it was marked, and is not to go after all), and for nodes without one begun, recovered, node_gone, called_off or lost as remediations are.",
		}, []string{"nodepool", "condition", "mode", "outcome"}),
		repairAfter: prometheus.NewHistogramVec(prometheus.HistogramOpts{
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
}

// Event counts an Event by its outcome.
func (m *Metrics) Event(outcome string) { m.events.WithLabelValues(outcome).Inc() }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(to)
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.placed, m.removed, m.latency, m.writes, m.waiting, m.events, m.leading, m.unknown,
		m.checkNodes, m.checkWaiting, m.checkDisabled, m.treatments, m.toRemediation, m.toRecovery, m.deferring, m.agents,
		m.repairNodes, m.repairFrom, m.repairs, m.repairAfter, m.readyTimeout, m.poolHeld, m.poolBlocks}
}

var resultNames = map[treat.Result]string{
	treat.Made: "made", treat.Stale: "stale", treat.Busy: "busy", treat.Refused: "refused", treat.Unknown: "unsure",
}

// CountWrite counts a write by its result.
func (m *Metrics) CountWrite(resource string, result treat.Result) {
	m.writes.WithLabelValues(resource, resultNames[result]).Inc()
}

// setUnknownEntries sets how many entries of a format this version does not know.
func (m *Metrics) setUnknownEntries(format string, n int) {
	m.unknown.WithLabelValues(format).Set(float64(n))
}

// addUnknownEntries changes that number by n.
func (m *Metrics) addUnknownEntries(format string, n int) {
	m.unknown.WithLabelValues(format).Add(float64(n))
}

// forgetCounts deletes the counters of a policy.
func (m *Metrics) forgetCounts(rule triage.RuleID) {
	if rule.Kind == policykind.NodeHealthCheck {
		labels := prometheus.Labels{"nodehealthcheck": rule.Name}
		m.treatments.DeletePartialMatch(labels)
		m.toRemediation.DeletePartialMatch(labels)
		m.toRecovery.DeletePartialMatch(labels)
		return
	}
	if isRepair(rule) { // counted by pool
		labels := prometheus.Labels{"nodepool": rule.Name}
		m.repairs.DeletePartialMatch(labels)
		m.readyTimeout.DeletePartialMatch(labels)
		return
	}
	labels := prometheus.Labels{"conditionset": rule.Name}
	m.placed.DeletePartialMatch(labels)
	m.removed.DeletePartialMatch(labels)
}

// countTreatment counts a remediation by its outcome.
func (m *Metrics) countTreatment(rule triage.RuleID, condition, outcome string) {
	if isRepair(rule) {
		m.repairs.WithLabelValues("", condition, "Remediation", outcome).Inc()
		return
	}
	m.treatments.WithLabelValues(rule.Name, outcome).Inc()
}

// observeStart observes the delay between a treatment's due time and its start.
func (m *Metrics) observeStart(rule triage.RuleID, wait time.Duration) {
	if isRepair(rule) {
		m.repairAfter.WithLabelValues(string(rule.Kind)).Observe(wait.Seconds())
		return
	}
	m.toRemediation.WithLabelValues(rule.Name).Observe(wait.Seconds())
}

// observeRecovery observes the time from the start of a remediation to recovery.
func (m *Metrics) observeRecovery(rule triage.RuleID, wait time.Duration) {
	if !isRepair(rule) {
		m.toRecovery.WithLabelValues(rule.Name).Observe(wait.Seconds())
	}
}

// countTermination counts a termination by its outcome.
func (m *Metrics) countTermination(pool, condition, mode, outcome string) {
	m.repairs.WithLabelValues(pool, condition, mode, outcome).Inc()
}

// countReadyTimeout counts a node that did not become Ready in time.
func (m *Metrics) countReadyTimeout(pool, capacityType string) {
	m.readyTimeout.WithLabelValues(pool, capacityType).Inc()
}

// setRepair sets the gauges of a repair rule.
func (m *Metrics) setRepair(rule triage.RuleID, pool string, sum repairCounts) {
	for state, n := range map[string]int{"governed": sum.nodes, "sick": sum.sick, "repairing": sum.repairing, "held": sum.held} {
		m.repairNodes.WithLabelValues(rule.String(), pool, state).Set(float64(n))
	}
}

// setRepairFrom sets when nodes become eligible for repair, and deletes the gauges of
// nodes that are no longer listed.
func (m *Metrics) setRepairFrom(rule triage.RuleID, pool string, now, before map[string]time.Time) {
	for node := range before {
		if _, still := now[node]; !still {
			m.repairFrom.DeleteLabelValues(rule.String(), pool, node)
		}
	}
	for node, at := range now {
		m.repairFrom.WithLabelValues(rule.String(), pool, node).Set(float64(at.Unix()))
	}
}

// forgetRepair deletes the gauges of a repair rule.
func (m *Metrics) forgetRepair(rule triage.RuleID) {
	labels := prometheus.Labels{"rule": rule.String()}
	m.repairNodes.DeletePartialMatch(labels)
	m.repairFrom.DeletePartialMatch(labels)
}

// setBlocks sets the gauges of repair blocks.
func (m *Metrics) setBlocks(t repairblock.Counts) {
	for state, n := range map[string]int{"in_force": t.InForce, "refused": t.Refused, "lost": t.Lost, "vanished": t.Vanished, "unkept": t.NotSaved} {
		m.poolBlocks.WithLabelValues(state).Set(float64(n))
	}
}

// setPoolHeld sets whether replacement in a pool is paused.
func (m *Metrics) setPoolHeld(pool string, is bool) {
	m.poolHeld.WithLabelValues(pool).Set(zeroOrOne(is))
}

func (m *Metrics) forgetPool(pool string) { m.poolHeld.DeleteLabelValues(pool) }

// setCheck sets the gauges of a health check.
func (m *Metrics) setCheck(name string, counts triage.Population, c *check) {
	for state, n := range map[string]int{
		"selected": counts.Selected, "healthy": counts.Selected - counts.Unhealthy - counts.Recovering,
		"sick": counts.Unhealthy, "recovering": counts.Recovering, "departed": counts.Departed, "in_treatment": counts.Treated,
	} {
		m.checkNodes.WithLabelValues(name, state).Set(float64(n))
	}
	m.checkDisabled.WithLabelValues(name).Set(zeroOrOne(c.disabled != ""))
	waiting := c.waiting(counts)
	for code := range c.reportedWaits {
		if _, still := waiting[code]; !still {
			m.checkWaiting.DeleteLabelValues(name, code.String())
		}
	}
	for code, n := range waiting {
		m.checkWaiting.WithLabelValues(name, code.String()).Set(float64(n))
	}
	c.reportedWaits = waiting
}

// forgetCheck deletes the gauges of a health check.
func (m *Metrics) forgetCheck(name string) {
	labels := prometheus.Labels{"nodehealthcheck": name}
	m.checkNodes.DeletePartialMatch(labels)
	m.checkWaiting.DeletePartialMatch(labels)
	m.checkDisabled.DeletePartialMatch(labels)
}

func (m *Metrics) setDeferring(isBack bool) { m.deferring.Set(zeroOrOne(isBack)) }

// SetAgents sets the numbers of live and silent agents.
func (m *Metrics) SetAgents(heard, silent int) {
	m.agents.WithLabelValues("heard").Set(float64(heard))
	m.agents.WithLabelValues("silent").Set(float64(silent))
}

func zeroOrOne(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
