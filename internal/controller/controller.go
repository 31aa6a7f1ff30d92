// Package controller wires the engine, the policies, the treatments and the monitor of
// agents into one controller that the leading replica runs. It contains no logic of its own: the engine
// carries out plans, and each policy compiles what users write.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/agentlease"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/policy/conditionset"
	"github.com/resourcestack/autohealer/internal/policy/guardrails"
	"github.com/resourcestack/autohealer/internal/policy/nodehealthcheck"
	"github.com/resourcestack/autohealer/internal/policy/repair"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/treatment/remediation"
	"github.com/resourcestack/autohealer/internal/treatment/taint"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Config holds the dependencies and settings of a Controller.
type Config struct {
	// Client talks to the API server. It must not read from a cache.
	Client client.WithWatch
	// Nodes lists and watches nodes, trimmed as nodewatch does.
	Nodes cache.ListerWatcherWithContext
	// Agents lists and watches the Leases of agents, which are in AgentNamespace.
	Agents         agentlease.Leases
	AgentNamespace string
	// Namespace holds the ledger and the ConfigMaps with condition sets.
	Namespace string
	// Identity names this process. It must be unique for every process.
	Identity string
	// DefaultRails apply while there is no Guardrails object.
	DefaultRails dialect.Rails
	// Repairs configures the replacement of nodes.
	Repairs repair.Config
	// NodeFacts receives every node from now on. It may be nil.
	NodeFacts *nodefacts.Store
	// Event publishes an Event. It must not block and must be safe for concurrent use.
	Event   func(treat.Event)
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate returns an error that names every missing field.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Nodes": c.Nodes == nil, "Agents": c.Agents == nil, "AgentNamespace": c.AgentNamespace == "", "Namespace": c.Namespace == "",
		"Identity": c.Identity == "", "DefaultRails": c.DefaultRails.Mode == "", "Event": c.Event == nil, "Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check()
}

// reportsAgainFor is how long after its start a leader finds again what the previous leader has
// reported.
const reportsAgainFor = time.Minute

// Controller follows the policies of a cluster while this replica leads.
type Controller struct {
	cfg      Config
	liveness engine.Liveness
}

// New returns a controller that does nothing until Start.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the controller: %w", err)
	}
	return &Controller{cfg: cfg}, nil
}

// NeedLeaderElection returns true: only the leader runs the controller.
func (c *Controller) NeedLeaderElection() bool { return true }

// Healthy returns an error if a restart would help.
func (c *Controller) Healthy(*http.Request) error { return c.liveness.Check(time.Now()) }

// Start runs until ctx ends or another replica has claimed the ledger.
func (c *Controller) Start(ctx context.Context) error {
	started, write := time.Now(), c.cfg.Event
	c.cfg.Event = func(e treat.Event) {
		e.AfterStart = time.Since(started) < reportsAgainFor
		write(e)
	}
	agents, err := c.newAgentMonitor()
	if err != nil {
		return err
	}
	e, err := engine.New(engine.Config{
		Client: c.cfg.Client, Nodes: c.cfg.Nodes, Namespace: c.cfg.Namespace, Identity: c.cfg.Identity, NodeFacts: c.cfg.NodeFacts,
		Event: c.cfg.Event, Metrics: c.cfg.Metrics.Engine, Liveness: &c.liveness, Logger: c.cfg.Logger,
	})
	if err != nil {
		return err
	}
	if err := c.addParts(e); err != nil {
		return err
	}
	if err := e.Claim(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { agents.Run(ctx) })
	return e.Run(ctx)
}

// addParts adds the policies and the treatments to the engine.
func (c *Controller) addParts(e *engine.Engine) error {
	api, signal := c.cfg.Client, e.Signal()
	pools, err := c.newRepairBlocks(signal)
	if err != nil {
		return err
	}
	taints := taint.New(e, c.cfg.Identity, c.cfg.Metrics.Taints)
	sets, err := conditionset.New(e, conditionset.Config{
		Client: api, Namespace: c.cfg.Namespace, Signal: signal, Taints: taints,
		Event: c.cfg.Event, Wrote: c.cfg.Metrics.Engine.CountWrite, Metrics: c.cfg.Metrics.ConditionSets, Logger: c.cfg.Logger,
	})
	if err != nil {
		return err
	}
	arePoolsMissing := func() bool { known, isThere, _ := pools.Listed(); return known && !isThere }
	claims := nodeclaim.New(e, nodeclaim.NewInbox(api, signal, arePoolsMissing))
	remediations := remediation.New(e, remediation.NewLeases(api, signal), &watch.Kinds{Client: api, Signal: signal, Start: e.Go})
	checks := nodehealthcheck.New(e, nodehealthcheck.NewInboxes(api, signal), remediations, c.cfg.Metrics.HealthChecks)
	repairs := repair.New(e, c.cfg.Repairs, repair.Dependencies{
		Inbox: repair.NewInbox(api, signal), Pools: pools, Machines: claims, Remediations: remediations, Metrics: c.cfg.Metrics.Repairs,
	})
	claims.Serve(repairs)
	remediations.Serve(checks, repairs)

	rails := guardrails.New(e, guardrails.NewInbox(api, signal), c.cfg.DefaultRails, c.cfg.Metrics.Guardrails)
	e.AddPolicies(rails, checks, repairs, sets)
	e.AddTreatments(claims, remediations)
	e.SetNodeWriter(taints)
	return nil
}

// newRepairBlocks returns the store that knows which repair blocks of NodePools are in
// force. It shares no state with the engine, which polls it for changes.
func (c *Controller) newRepairBlocks(signal chan<- struct{}) (*repairblock.Store, error) {
	return repairblock.NewStore(repairblock.Config{
		Client:    c.cfg.Client,
		Namespace: c.cfg.Namespace,
		Check:     c.cfg.Repairs.CheckBlock,
		Restore:   c.cfg.Repairs.RestoreSchema,
		Schema:    c.cfg.Repairs.Schema,
		Event:     c.cfg.Event,
		Wrote:     c.cfg.Metrics.Engine.CountWrite,
		Count:     c.cfg.Metrics.Repairs.SetBlocks,
		Changed: func() {
			select {
			case signal <- struct{}{}:
			default: // a signal is pending already
			}
		},
		Logger: c.cfg.Logger,
	})
}

// newAgentMonitor returns the monitor that marks agents without a fresh Lease as silent.
// It shares no state with the engine, which sees the monitor's writes through the watch.
func (c *Controller) newAgentMonitor() (*agentlease.Monitor, error) {
	return agentlease.NewMonitor(agentlease.Config{
		Leases:    c.cfg.Agents,
		Client:    agentlease.NewClient(c.cfg.Client, c.cfg.AgentNamespace),
		Namespace: c.cfg.AgentNamespace,
		Event:     c.cfg.Event,
		Wrote:     func(result treat.Outcome) { c.cfg.Metrics.Engine.CountWrite("nodes/status", result) },
		Count:     c.cfg.Metrics.Agents.Set,
		Logger:    c.cfg.Logger,
	})
}

// Metrics holds the metrics of the parts.
type Metrics struct {
	Engine        *engine.Metrics
	Agents        *agentlease.Metrics
	Taints        *taint.Metrics
	ConditionSets *conditionset.Metrics
	HealthChecks  *nodehealthcheck.Metrics
	Repairs       *repair.Metrics
	Guardrails    *guardrails.Metrics
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		Engine: engine.NewMetrics(), Agents: agentlease.NewMetrics(), Taints: taint.NewMetrics(),
		ConditionSets: conditionset.NewMetrics(), HealthChecks: nodehealthcheck.NewMetrics(), Repairs: repair.NewMetrics(), Guardrails: guardrails.NewMetrics(),
	}
}

// Register registers all metrics.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	for _, part := range []prometheus.Collector{m.Engine, m.Agents, m.Taints, m.ConditionSets, m.HealthChecks, m.Repairs, m.Guardrails} {
		if err := registry.Register(part); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
