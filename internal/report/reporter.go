package report

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

const (
	defaultEventNamespace = "default"
	defaultLookEvery      = 5 * time.Minute
	// farewell is how long one who stops tries to get rid of what is left.
	farewell = 3 * time.Second
)

// API asks the API server. A kubeapi.Client does.
type API interface {
	Do(context.Context, kubeapi.Request) (kubeapi.Answer, error)
}

// Config says who reports, about which node and to whom.
type Config struct {
	API  API
	Node string
	// Holder of the Lease: the name of the pod or of the host.
	Holder string
	// LeaseNamespace is where the Lease is kept. Without one there is none, and the agent
	// is never called silent.
	LeaseNamespace string
	// EventNamespace is where Events go. Empty means default, where those of nodes are.
	EventNamespace string
	// TakeOver has the agent take over rows of other managers as often as they write them.
	TakeOver bool
	// WithoutConditions and WithoutEvents have the agent keep them to itself.
	WithoutConditions, WithoutEvents bool
	// LookEvery is how often, at most, the Node is looked at for what others have changed.
	// Zero means 5 minutes.
	LookEvery time.Duration
	// Remembered is what the agent before this one knew, and Remember is told what
	// changes of it. It is called from Run and must not block.
	Remembered State
	Remember   func(State)
	Logger     *slog.Logger
}

// Validate says everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.API == nil {
		errs = append(errs, errors.New("a reporter needs an API server to report to"))
	}
	if c.Node == "" {
		errs = append(errs, errors.New("a reporter needs the name of its node"))
	}
	if c.LeaseNamespace != "" && c.Holder == "" {
		errs = append(errs, errors.New("a Lease needs a holder: the name of the pod or of the host"))
	}
	if c.LookEvery < 0 {
		errs = append(errs, errors.New("the time between looks is less than nothing"))
	}
	return errors.Join(errs...)
}

// Reporter tells the API server what was found. It may be used by many at once.
type Reporter struct {
	api      API
	remember func(State)
	wake     chan struct{}

	mu   sync.Mutex
	core *core
}

// New returns a reporter that says nothing until it is run.
func New(cfg Config) (*Reporter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.EventNamespace == "" {
		cfg.EventNamespace = defaultEventNamespace
	}
	if cfg.LookEvery == 0 {
		cfg.LookEvery = defaultLookEvery
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reporter{
		api: cfg.API, remember: cfg.Remember, wake: make(chan struct{}, 1),
		core: newCore(cfg, rand.Float64, time.Now()),
	}, nil
}

// Take hands over what was found. It never blocks.
func (r *Reporter) Take(found finding.Report) {
	if found.IsEmpty() {
		return
	}
	r.mu.Lock()
	r.core.take(time.Now(), found)
	r.mu.Unlock()
	r.stir()
}

// Complete says that every source has reported its conditions once. Until then, or for
// ten seconds, no condition is written: one that is not said is one that is removed, unless
// it is awaited.
func (r *Reporter) Complete() {
	r.mu.Lock()
	r.core.complete = true
	r.mu.Unlock()
	r.stir()
}

// Await names all conditions that somebody keeps and has not told yet. What stands of
// them under our name is not removed meanwhile.
func (r *Reporter) Await(kinds ...string) {
	r.mu.Lock()
	r.core.rows.await(kinds)
	r.mu.Unlock()
	r.stir()
}

func (r *Reporter) stir() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends, and then for a moment what is left.
func (r *Reporter) Run(ctx context.Context) {
	for {
		asked, at := r.next()
		if asked != nil {
			r.send(ctx, asked)
		}
		if ctx.Err() != nil || asked == nil && !r.wait(ctx, at) {
			break
		}
	}
	r.finish(context.WithoutCancel(ctx))
}

// wait waits until then, for something new or for the end, which it tells.
func (r *Reporter) wait(ctx context.Context, at time.Time) bool {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.wake:
	case <-due:
	}
	return ctx.Err() == nil
}

func (r *Reporter) next() (*request, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.next(time.Now())
}

func (r *Reporter) send(ctx context.Context, asked *request) {
	got, err := r.api.Do(ctx, asked.Request)
	r.mu.Lock()
	if err != nil && ctx.Err() != nil {
		r.core.unsent(asked) // we have hung up, and not the API server
	} else {
		r.core.answer(time.Now(), asked, got, err)
	}
	state, remember := r.core.rows.state.clone(), r.core.stateChanged && r.remember != nil
	r.core.stateChanged = false
	r.mu.Unlock()
	if remember {
		r.remember(state)
	}
}

// finish sends what is due, until nothing is or it cannot be sent.
func (r *Reporter) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	for ctx.Err() == nil {
		asked, _ := r.next()
		if asked == nil {
			break
		}
		r.send(ctx, asked)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.lanes.abandon("stopped")
}

// Counts returns the figures as they are now.
func (r *Reporter) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.figures()
}

// State returns what should outlive a restart.
func (r *Reporter) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.rows.state.clone()
}
