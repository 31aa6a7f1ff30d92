package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
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
	// NodeFacts receives every node from now on. It may be nil.
	NodeFacts *nodefacts.Store
	// Event publishes an Event. It must not block and must be safe for concurrent use.
	Event   func(treat.Event)
	Metrics *Metrics
	// Random returns a random duration below the given one, for the delays of retries. If it is
	// nil, the engine uses rand.N.
	Random func(below time.Duration) time.Duration
	// Liveness shows that the engine makes progress.
	Liveness *Liveness
	Logger   *slog.Logger
}

// Validate returns an error that names every missing field.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Nodes": c.Nodes == nil, "Namespace": c.Namespace == "", "Identity": c.Identity == "",
		"Event": c.Event == nil, "Metrics": c.Metrics == nil, "Liveness": c.Liveness == nil, "Logger": c.Logger == nil,
	}.Check()
}

// New returns an engine that does nothing until Run.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the engine: %w", err)
	}
	return newEngine(cfg), nil
}

// newEngine returns an engine for a valid configuration.
func newEngine(cfg Config) *Engine {
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
		nodeWriter: noNodeWriter{},
		statuses:   status.NewWriter(WriteTimeout, cfg.Metrics.CountWrite, cfg.Logger),
		tasks:      taskRunner{byNode: map[string]*NodeTasks{}, results: make(chan *TaskResult, maxConcurrentTasks)},
		startedAt:  time.Now(),
	}
	l.tasks.engine, l.tasks.checks, l.ledger.engine = l, l, l
	return l
}

// AddPolicies adds policies. It must be called before Run.
func (l *Engine) AddPolicies(policies ...Policy) { l.policies = append(l.policies, policies...) }

// AddTreatments adds treatments. It must be called before Run. The first treatment that owns an
// object gets its ledger entry, so a treatment that owns every kind comes last.
func (l *Engine) AddTreatments(treatments ...Treatment) {
	l.tasks.treatments = append(l.tasks.treatments, treatments...)
}

// Signal returns the channel that starts a round when an inbox of a policy has changes.
func (l *Engine) Signal() chan<- struct{} { return l.signal }

// Run works until ctx ends or another replica has claimed the ledger. It must be called
// after Claim.
func (l *Engine) Run(ctx context.Context) error {
	if l.nodeWriter == (noNodeWriter{}) {
		return errors.New("the engine has no NodeWriter: call SetNodeWriter before Run")
	}
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
		wait := l.RetryDelay(failures)
		l.cfg.Logger.Warn("ledger not claimed", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}
