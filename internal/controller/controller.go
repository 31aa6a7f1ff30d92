package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/agentlease"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
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
	// Repairs configures the replacement of nodes.
	Repairs RepairConfig
	// NodeFacts receives every node from now on. It may be nil.
	NodeFacts *nodefacts.Store
	// Event publishes an Event. It must not block and must be safe for concurrent use.
	Event func(treat.Event)
	// Metrics may be nil.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate returns an error that names every missing field.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Nodes": c.Nodes == nil, "Agents": c.Agents == nil, "AgentNamespace": c.AgentNamespace == "", "Namespace": c.Namespace == "", "Identity": c.Identity == "",
		"Event": c.Event == nil, "Logger": c.Logger == nil,
	}.Check()
}

// Controller follows the policies of a cluster while this replica leads.
type Controller struct {
	cfg      Config
	liveness liveness
}

// New returns a controller that does nothing until Start.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the controller: %w", err)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	return &Controller{cfg: cfg}, nil
}

// NeedLeaderElection returns true: only the leader runs the controller.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start runs until ctx ends or another replica has claimed the ledger.
func (c *Controller) Start(ctx context.Context) error {
	claimed, restored, err := c.claimLedger(ctx)
	if err != nil {
		return err
	}
	c.cfg.Logger.Info("leading", "identity", c.cfg.Identity, "restoredEntries", len(restored))
	agents, err := c.newAgentMonitor()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()

	signal := make(chan struct{}, 1)
	nodes, sets := watch.NewInbox(signal, nodewatch.Same), watch.NewInbox[*v1alpha1.ConditionSet](signal, nil)
	watches.Go(func() { nodes.Fill(ctx, &corev1.Node{}, c.cfg.Nodes, c.cfg.Logger) })
	watches.Go(func() {
		sets.Fill(ctx, &v1alpha1.ConditionSet{}, watch.Source(c.cfg.Client, func() client.ObjectList { return &v1alpha1.ConditionSetList{} }), c.cfg.Logger)
	})
	configMaps := newConfigMapSets(c.cfg, signal)
	watches.Go(func() { configMaps.readRevisions(ctx, c.cfg.Logger) })
	watches.Go(func() {
		configMaps.inbox.Fill(ctx, &corev1.ConfigMap{}, configMapSource(c.cfg.Client, c.cfg.Namespace, configMaps.sendAccess), c.cfg.Logger)
	})
	leases := watch.NewOptional(signal, &coordinationv1.Lease{}, watch.Source(c.cfg.Client, func() client.ObjectList { return &coordinationv1.LeaseList{} }, client.InNamespace(nodelease.Namespace)))
	watches.Go(func() { leases.Run(ctx) })
	medik8sInbox := watch.NewOptional(signal, &coordinationv1.Lease{}, medik8sLeases(c.cfg.Client))
	medik8sInbox.Namespaced = true
	watches.Go(func() { medik8sInbox.Run(ctx) })
	watches.Go(func() { agents.Run(ctx) })
	healthChecks := watch.NewOptional(signal, &remediationv1alpha1.NodeHealthCheck{}, watch.Source(c.cfg.Client, func() client.ObjectList { return &remediationv1alpha1.NodeHealthCheckList{} }))
	watches.Go(func() { healthChecks.Run(ctx) })
	repairPolicies := watch.NewOptional(signal, &v1alpha1.RepairPolicy{}, watch.Source(c.cfg.Client, func() client.ObjectList { return &v1alpha1.RepairPolicyList{} }))
	watches.Go(func() { repairPolicies.Run(ctx) })
	blocks, err := c.newRepairBlocks(signal)
	if err != nil {
		return err
	}
	watches.Go(func() { blocks.Run(ctx) })
	claims := watch.NewOptional(signal, &karpenter.NodeClaim{}, &watch.DependentSource{
		Source:         watch.Source(c.cfg.Client, func() client.ObjectList { return &karpenter.NodeClaimList{} }),
		IsOtherMissing: func() bool { known, isThere, _ := blocks.Listed(); return known && !isThere },
	})
	watches.Go(func() { claims.Run(ctx) })
	l := &loop{
		cfg:          c.cfg,
		core:         triage.New(),
		write:        treat.NewWriter(c.cfg.Client),
		signal:       signal,
		nodeInbox:    nodes,
		setInbox:     sets,
		nodeStates:   map[string]*nodeState{},
		sets:         map[string]*conditionSet{},
		writeResults: make(chan writeResult, maxConcurrentWrites),
		statuses:     status.NewWriter(writeTimeout, c.cfg.Metrics.countWrite, c.cfg.Logger),
		configMaps:   configMaps,
		leaseInbox:   leases,
		checks: checks{
			inbox:     healthChecks,
			medik8s:   medik8sLeader{inbox: medik8sInbox, leases: map[string]observedLease{}},
			known:     map[string]*check{},
			templates: map[remediation.Template]*unstructured.Unstructured{},
			watches: watch.Kinds{
				Client: c.cfg.Client, Signal: signal, Known: map[schema.GroupVersionKind]*watch.Kind{},
				Start: func(work func(context.Context)) context.CancelFunc {
					ctx, stop := context.WithCancel(ctx)
					watches.Go(func() { work(ctx) })
					return stop
				},
			},
		},
		repairs:            newRepairs(c.cfg.Repairs, repairPolicies, blocks),
		nodeClaims:         newNodeClaims(claims),
		treatments:         map[string]*nodeTreatments{},
		treatmentsByObject: map[ledger.ObjectRef]*nodeTreatments{},
		taskResults:        make(chan *taskResult, maxConcurrentTasks),
		liveness:           &c.liveness,
		ledger:             ledgerWriter{ledger: claimed, restored: restored, unknownEntries: claimed.Kept(), done: make(chan error, 1)},
		startedAt:          time.Now(),
	}
	return l.run(ctx)
}

// newAgentMonitor returns the monitor that marks agents without a fresh Lease as silent.
// It shares no state with the loop, which sees the monitor's writes through the watch.
func (c *Controller) newAgentMonitor() (*agentlease.Monitor, error) {
	return agentlease.NewMonitor(agentlease.Config{
		Leases:    c.cfg.Agents,
		Client:    agentlease.NewClient(c.cfg.Client, c.cfg.AgentNamespace),
		Namespace: c.cfg.AgentNamespace,
		Event:     c.cfg.Event,
		Wrote:     func(result treat.Result) { c.cfg.Metrics.countWrite("nodes/status", result) },
		Count:     c.cfg.Metrics.setAgents,
		Logger:    c.cfg.Logger,
	})
}

// newRepairBlocks returns the store that knows which repair blocks are in force. It
// shares no state with the loop, which polls it for changes.
func (c *Controller) newRepairBlocks(signal chan<- struct{}) (*repairblock.Store, error) {
	r := c.cfg.Repairs
	return repairblock.NewStore(repairblock.Config{
		Client:    c.cfg.Client,
		Namespace: c.cfg.Namespace,
		Check: func(pool string, block *v1alpha1.RepairSpec) error {
			named := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: karpenter.NodePoolSpec{Repair: block}}
			return validate.StoredNodePool(validate.NodePoolCase{Pool: named, Repairs: validate.Repairs{Statements: r.Karpenter}}).Err()
		},
		Restore: r.RestoreSchema,
		Schema:  r.Schema,
		Event:   c.cfg.Event,
		Wrote:   c.cfg.Metrics.countWrite,
		Count:   c.cfg.Metrics.setBlocks,
		Changed: func() {
			select {
			case signal <- struct{}{}:
			default: // a signal is pending already
			}
		},
		Logger: c.cfg.Logger,
	})
}

// claimLedger claims the ledger. It retries while the API server is unreachable or denies
// access, because giving up would stop the leader without another replica doing better.
func (c *Controller) claimLedger(ctx context.Context) (*ledger.Ledger, []ledger.Entry, error) {
	for failures := 1; ; failures++ {
		claimed, restored, err := ledger.Claim(ctx, c.cfg.Client, c.cfg.Namespace, c.cfg.Identity)
		if err == nil || errors.Is(err, ledger.ErrUnreadable) {
			return claimed, restored, err
		}
		wait := retryDelay(failures)
		c.cfg.Logger.Warn("ledger not claimed", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}
