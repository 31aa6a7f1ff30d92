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
	"github.com/resourcestack/autohealer/internal/census"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/poolblock"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/silence"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/vet"
)

// Config is what a controller works with.
type Config struct {
	// Client talks to the API server. It must not read from a cache.
	Client client.WithWatch
	// Nodes is where nodes come from, trimmed as nodewatch does.
	Nodes cache.ListerWatcherWithContext
	// Agents is where the Leases of agents come from, and AgentNamespace where they are.
	Agents         silence.Leases
	AgentNamespace string
	// Namespace is where the ledger is kept, and ConfigMaps with sets are read.
	Namespace string
	// Identity is the name of this process. No other process ever has the same.
	Identity string
	// Repairs is how nodes are replaced.
	Repairs RepairConfig
	// Census, if there is one, is told of every node from now on.
	Census *census.Census
	// Announce tells users of a change. It must not block, and may be called by several
	// goroutines.
	Announce func(treat.Announcement)
	// Metrics may be nil.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate says everything that is missing.
func (c Config) Validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Client", c.Client == nil}, {"Nodes", c.Nodes == nil}, {"Agents", c.Agents == nil}, {"AgentNamespace", c.AgentNamespace == ""}, {"Namespace", c.Namespace == ""}, {"Identity", c.Identity == ""},
		{"Announce", c.Announce == nil}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Controller follows the policies of a cluster for as long as it leads.
type Controller struct {
	cfg   Config
	pulse pulse
}

// New returns a controller that does nothing until it is started.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the controller: %w", err)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	return &Controller{cfg: cfg}, nil
}

// NeedLeaderElection says that only one replica at a time may be started.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start works until ctx ends, or until another has taken over.
func (c *Controller) Start(ctx context.Context) error {
	book, inherited, err := c.claim(ctx)
	if err != nil {
		return err
	}
	c.cfg.Logger.Info("leading", "identity", c.cfg.Identity, "inherited", len(inherited))
	agents, err := c.listenToAgents()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()

	signal := make(chan struct{}, 1)
	nodes, sets := newMailbox(signal, nodewatch.Same), newMailbox[*v1alpha1.ConditionSet](signal, nil)
	watches.Go(func() { nodes.fill(ctx, &corev1.Node{}, c.cfg.Nodes, c.cfg.Logger) })
	watches.Go(func() {
		sets.fill(ctx, &v1alpha1.ConditionSet{}, from(c.cfg.Client, func() client.ObjectList { return &v1alpha1.ConditionSetList{} }), c.cfg.Logger)
	})
	pinned := newSheets(c.cfg, signal)
	watches.Go(func() { pinned.readKept(ctx, c.cfg.Logger) })
	watches.Go(func() {
		pinned.mail.fill(ctx, &corev1.ConfigMap{}, sheetsFrom(c.cfg.Client, c.cfg.Namespace, pinned.tell), c.cfg.Logger)
	})
	leases := newInquiry(signal, &coordinationv1.Lease{}, from(c.cfg.Client, func() client.ObjectList { return &coordinationv1.LeaseList{} }, client.InNamespace(nodelease.Namespace)))
	watches.Go(func() { leases.ask(ctx) })
	peers := newInquiry(signal, &coordinationv1.Lease{}, peerFrom(c.cfg.Client))
	peers.spread = true
	watches.Go(func() { peers.ask(ctx) })
	watches.Go(func() { agents.Run(ctx) })
	healthChecks := newInquiry(signal, &remediationv1alpha1.NodeHealthCheck{}, from(c.cfg.Client, func() client.ObjectList { return &remediationv1alpha1.NodeHealthCheckList{} }))
	watches.Go(func() { healthChecks.ask(ctx) })
	repairPolicies := newInquiry(signal, &v1alpha1.RepairPolicy{}, from(c.cfg.Client, func() client.ObjectList { return &v1alpha1.RepairPolicyList{} }))
	watches.Go(func() { repairPolicies.ask(ctx) })
	blocks, err := c.keepBlocks(signal)
	if err != nil {
		return err
	}
	watches.Go(func() { blocks.Run(ctx) })
	claims := newInquiry(signal, &karpenter.NodeClaim{}, &companion{
		source: from(c.cfg.Client, func() client.ObjectList { return &karpenter.NodeClaimList{} }),
		isLost: func() bool { known, isThere, _ := blocks.Answer(); return known && !isThere },
	})
	watches.Go(func() { claims.ask(ctx) })
	l := &loop{
		cfg:      c.cfg,
		core:     triage.New(),
		write:    treat.NewWriter(c.cfg.Client),
		signal:   signal,
		nodes:    nodes,
		sets:     sets,
		patients: map[string]*patient{},
		policies: map[string]*policy{},
		outcomes: make(chan outcome, writers),
		statuses: make(chan statusOutcome, statusWriters),
		sheets:   pinned,
		leases:   leases,
		checks: checks{
			mail:      healthChecks,
			peer:      peer{mail: peers, leases: map[string]tenure{}},
			known:     map[string]*check{},
			templates: map[remediation.Template]*unstructured.Unstructured{},
			kinds: kinds{
				client: c.cfg.Client, signal: signal, known: map[schema.GroupVersionKind]*kind{},
				watch: func(work func(context.Context)) context.CancelFunc {
					ctx, stop := context.WithCancel(ctx)
					watches.Go(func() { work(ctx) })
					return stop
				},
			},
		},
		repairs:        newRepairs(c.cfg.Repairs, repairPolicies, blocks),
		machines:       newMachines(claims),
		beds:           map[string]*bed{},
		homes:          map[string]*bed{},
		reports:        make(chan *errandReport, nurses),
		checkStatuses:  make(chan checkStatusOutcome, statusWriters),
		policyStatuses: make(chan policyStatusOutcome, statusWriters),
		pulse:          &c.pulse,
		pages:          pages{book: book, inherited: inherited, kept: book.Kept(), done: make(chan error, 1)},
		startedAt:      time.Now(),
	}
	return l.run(ctx)
}

// listenToAgents returns who calls them silent. It shares nothing with the loop: what
// it writes, the loop sees as it sees what agents write.
func (c *Controller) listenToAgents() (*silence.Keeper, error) {
	return silence.NewKeeper(silence.Config{
		Leases:    c.cfg.Agents,
		Hands:     silence.NewHands(c.cfg.Client, c.cfg.AgentNamespace),
		Namespace: c.cfg.AgentNamespace,
		Announce:  c.cfg.Announce,
		Wrote:     func(fate treat.Fate) { c.cfg.Metrics.wrote("nodes/status", fate) },
		Count:     c.cfg.Metrics.heard,
		Logger:    c.cfg.Logger,
	})
}

// keepBlocks returns who knows which repair blocks are in force. It shares nothing with
// the loop, which takes from it what has changed.
func (c *Controller) keepBlocks(signal chan<- struct{}) (*poolblock.Keeper, error) {
	r := c.cfg.Repairs
	return poolblock.NewKeeper(poolblock.Config{
		Client:    c.cfg.Client,
		Namespace: c.cfg.Namespace,
		Judge: func(pool string, block *v1alpha1.RepairSpec) error {
			named := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: karpenter.NodePoolSpec{Repair: block}}
			return vet.StandingNodePool(vet.NodePoolCase{Pool: named, Repairs: vet.Repairs{Statements: r.Karpenter}}).Err()
		},
		Restore:  r.RestoreSchema,
		Schema:   r.Schema,
		Announce: c.cfg.Announce,
		Wrote:    c.cfg.Metrics.wrote,
		Count:    c.cfg.Metrics.blocks,
		Changed: func() {
			select {
			case signal <- struct{}{}:
			default: // it is lit already
			}
		},
		Logger: c.cfg.Logger,
	})
}

// claim takes the ledger over. An API server that is not there yet, or rights
// that are not, are waited for: who leads must not give up what others wait for.
func (c *Controller) claim(ctx context.Context) (*ledger.Ledger, []ledger.Entry, error) {
	for failures := 1; ; failures++ {
		book, inherited, err := ledger.Claim(ctx, c.cfg.Client, c.cfg.Namespace, c.cfg.Identity)
		if err == nil || errors.Is(err, ledger.ErrUnreadable) {
			return book, inherited, err
		}
		wait := backOff(failures)
		c.cfg.Logger.Warn("ledger not claimed", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}
