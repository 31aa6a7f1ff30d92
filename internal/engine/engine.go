package engine

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
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Config holds the dependencies and settings of an engine.
type Config struct {
	// Client talks to the API server. It must not read from a cache.
	Client client.WithWatch
	// Nodes lists and watches nodes, trimmed as nodewatch does.
	Nodes cache.ListerWatcherWithContext
	// Namespace holds the ledger.
	Namespace string
	// Identity names this process. It must be unique for every process.
	Identity string
	// Repairs configures the replacement of nodes.
	Repairs       RepairConfig
	RepairMetrics *RepairMetrics
	CheckMetrics  *CheckMetrics
	// NodeFacts receives every node from now on. It may be nil.
	NodeFacts *nodefacts.Store
	// Event publishes an Event. It must not block and must be safe for concurrent use.
	Event   func(treat.Event)
	Metrics *Metrics
	// Liveness shows that the engine makes progress.
	Liveness *Liveness
	Logger   *slog.Logger
}

// Validate returns an error that names every missing field.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Nodes": c.Nodes == nil, "Namespace": c.Namespace == "", "Identity": c.Identity == "",
		"Event": c.Event == nil, "Metrics": c.Metrics == nil, "RepairMetrics": c.RepairMetrics == nil, "CheckMetrics": c.CheckMetrics == nil, "Liveness": c.Liveness == nil, "Logger": c.Logger == nil,
	}.Check()
}

// New returns an engine that does nothing until Run.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the engine: %w", err)
	}
	signal := make(chan struct{}, 1)
	l := &Engine{
		cfg:        cfg,
		core:       triage.New(),
		write:      treat.NewWriter(cfg.Client),
		signal:     signal,
		nodeInbox:  watch.NewInbox(signal, nodewatch.Same),
		nodeStates: map[string]*Node{},
		posts:      make(chan func(now time.Time)),
		stopped:    make(chan struct{}),
		taints:     taintWriter{results: make(chan writeResult, maxConcurrentWrites)},
		statuses:   status.NewWriter(WriteTimeout, cfg.Metrics.CountWrite, cfg.Logger),
		remediations: newRemediations(
			watch.NewOptional(signal, &coordinationv1.Lease{}, watch.Source(cfg.Client, func() client.ObjectList { return &coordinationv1.LeaseList{} }, client.InNamespace(nodelease.Namespace))),
			watch.Kinds{Client: cfg.Client, Signal: signal},
		),
		checks: newChecks(
			watch.NewOptional(signal, &remediationv1alpha1.NodeHealthCheck{}, watch.Source(cfg.Client, func() client.ObjectList { return &remediationv1alpha1.NodeHealthCheckList{} })),
			watch.NewOptional(signal, &coordinationv1.Lease{}, medik8sLeases(cfg.Client)), cfg.CheckMetrics,
		),
		tasks:     taskRunner{lanes: map[string]*Lane{}, results: make(chan *Result, maxConcurrentTasks)},
		liveness:  cfg.Liveness,
		startedAt: time.Now(),
	}
	blocks, err := newRepairBlocks(cfg, signal)
	if err != nil {
		return nil, err
	}
	l.repairs = newRepairs(cfg.Repairs, cfg.RepairMetrics, watch.NewOptional(signal, &v1alpha1.RepairPolicy{}, watch.Source(cfg.Client, func() client.ObjectList { return &v1alpha1.RepairPolicyList{} })), blocks)
	l.nodeClaims = newNodeClaims(watch.NewOptional(signal, &karpenter.NodeClaim{}, &watch.DependentSource{
		Source:         watch.Source(cfg.Client, func() client.ObjectList { return &karpenter.NodeClaimList{} }),
		IsOtherMissing: func() bool { known, isThere, _ := blocks.Listed(); return known && !isThere },
	}))
	l.link()
	l.remediations.watches.Start = l.Go
	return l, nil
}

// link gives the parts of the engine access to each other.
func (l *Engine) link() {
	l.checks.engine, l.repairs.engine, l.nodeClaims.engine, l.remediations.engine = l, l, l, l
	l.taints.engine, l.tasks.engine, l.ledger.engine = l, l, l
	l.checks.remediations, l.repairs.remediations, l.repairs.machines = &l.remediations, &l.remediations, &l.nodeClaims
	l.remediations.requesters, l.nodeClaims.policy = []requester{&l.checks, &l.repairs}, &l.repairs
	l.policies = []Policy{&l.checks, &l.repairs}
	l.tasks.treatments = []Treatment{&l.nodeClaims, &l.remediations}
}

// Add adds policies. It must be called before Run.
func (l *Engine) Add(policies ...Policy) { l.policies = append(l.policies, policies...) }

// Treat adds treatments. It must be called before Run.
func (l *Engine) Treat(treatments ...Treatment) {
	l.tasks.treatments = append(treatments, l.tasks.treatments...) // remediations own every kind that is left, so they stay last
}

// Signal returns the channel that starts a round when an inbox of a policy has changes.
func (l *Engine) Signal() chan<- struct{} { return l.signal }

// Run works until ctx ends or another replica has claimed the ledger. It must be called
// after Claim.
func (l *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	watches.Go(func() { l.nodeInbox.Fill(ctx, &corev1.Node{}, l.cfg.Nodes, l.cfg.Logger) })
	for _, p := range l.policies {
		watches.Go(func() { p.Watch(ctx) })
	}
	for _, t := range l.tasks.treatments {
		watches.Go(func() { t.Watch(ctx) })
	}
	l.startWatch = func(work func(context.Context)) context.CancelFunc {
		ctx, stop := context.WithCancel(ctx)
		watches.Go(func() { work(ctx) })
		return stop
	}
	return l.run(ctx)
}

// newRepairBlocks returns the store that knows which repair blocks are in force. It
// shares no state with the loop, which polls it for changes.
func newRepairBlocks(cfg Config, signal chan<- struct{}) (*repairblock.Store, error) {
	r := cfg.Repairs
	return repairblock.NewStore(repairblock.Config{
		Client:    cfg.Client,
		Namespace: cfg.Namespace,
		Check: func(pool string, block *v1alpha1.RepairSpec) error {
			named := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: karpenter.NodePoolSpec{Repair: block}}
			return validate.StoredNodePool(validate.NodePoolCase{Pool: named, Repairs: validate.Repairs{Statements: r.Karpenter}}).Err()
		},
		Restore: r.RestoreSchema,
		Schema:  r.Schema,
		Event:   cfg.Event,
		Wrote:   cfg.Metrics.CountWrite,
		Count:   cfg.RepairMetrics.setBlocks,
		Changed: func() {
			select {
			case signal <- struct{}{}:
			default: // a signal is pending already
			}
		},
		Logger: cfg.Logger,
	})
}

// Claim claims the ledger. It retries while the API server is unreachable or denies
// access, because giving up would stop the leader without another replica doing better.
func (l *Engine) Claim(ctx context.Context) error {
	for failures := 1; ; failures++ {
		claimed, restored, err := ledger.Claim(ctx, l.cfg.Client, l.cfg.Namespace, l.cfg.Identity)
		if err == nil {
			l.ledger = ledgerWriter{engine: l, ledger: claimed, restored: restored, unknownEntries: claimed.Kept(), done: make(chan error, 1)}
			l.cfg.Logger.Info("leading", "identity", l.cfg.Identity, "restoredEntries", len(restored))
			return nil
		}
		if errors.Is(err, ledger.ErrUnreadable) {
			return err
		}
		wait := RetryDelay(failures)
		l.cfg.Logger.Warn("ledger not claimed", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}
