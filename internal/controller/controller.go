// Package controller wires the engine, the policies and the monitor of agents into one
// controller that the leading replica runs. It contains no logic of its own: the engine
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
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/policy/conditionset"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/treat"
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
	// Repairs configures the replacement of nodes.
	Repairs engine.RepairConfig
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
		"Identity": c.Identity == "", "Event": c.Event == nil, "Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check()
}

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
	agents, err := c.newAgentMonitor()
	if err != nil {
		return err
	}
	e, err := engine.New(engine.Config{
		Client: c.cfg.Client, Nodes: c.cfg.Nodes, Namespace: c.cfg.Namespace, Identity: c.cfg.Identity, Repairs: c.cfg.Repairs, NodeFacts: c.cfg.NodeFacts,
		CheckMetrics: c.cfg.Metrics.HealthChecks, RepairMetrics: c.cfg.Metrics.Repairs,
		Event: c.cfg.Event, Metrics: c.cfg.Metrics.Engine, Liveness: &c.liveness, Logger: c.cfg.Logger,
	})
	if err != nil {
		return err
	}
	sets, err := conditionset.New(e, conditionset.Config{
		Client: c.cfg.Client, Namespace: c.cfg.Namespace, Signal: e.Signal(),
		Event: c.cfg.Event, Wrote: c.cfg.Metrics.Engine.CountWrite, Metrics: c.cfg.Metrics.ConditionSets, Logger: c.cfg.Logger,
	})
	if err != nil {
		return err
	}
	e.Add(sets)
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

// newAgentMonitor returns the monitor that marks agents without a fresh Lease as silent.
// It shares no state with the engine, which sees the monitor's writes through the watch.
func (c *Controller) newAgentMonitor() (*agentlease.Monitor, error) {
	return agentlease.NewMonitor(agentlease.Config{
		Leases:    c.cfg.Agents,
		Client:    agentlease.NewClient(c.cfg.Client, c.cfg.AgentNamespace),
		Namespace: c.cfg.AgentNamespace,
		Event:     c.cfg.Event,
		Wrote:     func(result treat.Result) { c.cfg.Metrics.Engine.CountWrite("nodes/status", result) },
		Count:     c.cfg.Metrics.Engine.SetAgents,
		Logger:    c.cfg.Logger,
	})
}

// Metrics holds the metrics of the engine and of the policies.
type Metrics struct {
	Engine        *engine.Metrics
	ConditionSets *conditionset.Metrics
	HealthChecks  *engine.CheckMetrics
	Repairs       *engine.RepairMetrics
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{Engine: engine.NewMetrics(), ConditionSets: conditionset.NewMetrics(), HealthChecks: engine.NewCheckMetrics(), Repairs: engine.NewRepairMetrics()}
}

// Register registers all metrics.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	for _, part := range []prometheus.Collector{m.Engine, m.ConditionSets, m.HealthChecks, m.Repairs} {
		if err := registry.Register(part); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
