package report

import (
	"cmp"
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
	// shutdownTimeout is how long a stopping reporter keeps sending.
	shutdownTimeout = 3 * time.Second
)

// API sends requests to the API server. kubeapi.Client implements it.
type API interface {
	Do(context.Context, kubeapi.Request) (kubeapi.Answer, error)
}

// Config is the configuration of a Reporter.
type Config struct {
	API  API
	Node string
	// Holder is the holder of the Lease: the name of the pod or of the host.
	Holder string
	// LeaseNamespace is the namespace of the Lease. If it is empty, the agent has no Lease and
	// the controller never treats it as silent.
	LeaseNamespace string
	// EventNamespace is the namespace of Events. Empty means default, which Kubernetes uses
	// for nodes.
	EventNamespace string
	// TakeOver makes the agent take over conditions of other managers as often as they write
	// them.
	TakeOver bool
	// WithoutConditions and WithoutEvents disable writing conditions and Events.
	WithoutConditions, WithoutEvents bool
	// LookEvery is the maximum time between checks of the Node for changes by other managers.
	// Zero means 5 minutes.
	LookEvery time.Duration
	// Remembered is the state that the previous run of the agent saved. Run calls Remember
	// with every change of it. Remember must not block.
	Remembered State
	Remember   func(State)
	Logger     *slog.Logger
}

// Validate returns all errors of the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.API == nil {
		errs = append(errs, errors.New("API is missing"))
	}
	if c.Node == "" {
		errs = append(errs, errors.New("the field Node is missing: set the name of the node"))
	}
	if c.LeaseNamespace != "" && c.Holder == "" {
		errs = append(errs, errors.New("the field Holder is missing: set the name of the pod or of the host"))
	}
	if c.LookEvery < 0 {
		errs = append(errs, errors.New("LookEvery is negative"))
	}
	return errors.Join(errs...)
}

// Reporter writes findings to the API server. It is safe for concurrent use.
type Reporter struct {
	api      API
	remember func(State)
	wake     chan struct{}

	mu   sync.Mutex
	core *core
}

// New returns a reporter that sends nothing until Run is called.
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

// Take adds findings. It never blocks.
func (r *Reporter) Take(found finding.Report) {
	if found.IsEmpty() {
		return
	}
	r.mu.Lock()
	r.core.take(time.Now(), found)
	r.mu.Unlock()
	r.notify()
}

// Complete states that every source has reported its conditions once. The reporter writes no
// condition before this call or the end of ten seconds: an apply removes the conditions that
// it does not contain, unless they are awaited.
func (r *Reporter) Complete() {
	r.mu.Lock()
	r.core.complete = true
	r.mu.Unlock()
	r.notify()
}

// Await sets all conditions that a source will report but has not reported yet. The reporter
// does not remove their current values meanwhile.
func (r *Reporter) Await(kinds ...string) {
	r.mu.Lock()
	r.core.conditions.awaited.set(kinds)
	r.mu.Unlock()
	r.notify()
}

func (r *Reporter) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run sends requests until ctx ends, and then tries shortly to send the rest.
func (r *Reporter) Run(ctx context.Context) {
	for {
		req, at := r.next()
		if req != nil {
			r.send(ctx, req)
		}
		if ctx.Err() != nil || req == nil && !r.wait(ctx, at) {
			break
		}
	}
	r.finish(context.WithoutCancel(ctx))
}

// wait waits for a time, new findings, or the end of ctx. It returns false at the end of ctx.
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

func (r *Reporter) send(ctx context.Context, req *request) {
	got, err := r.api.Do(ctx, req.Request)
	r.mu.Lock()
	if err != nil && ctx.Err() != nil {
		r.core.requeue(req) // the agent cancelled the request, so this is no outage
	} else {
		r.core.answer(time.Now(), req, got, err)
	}
	sharing := &r.core.conditions.sharing
	state, remember := sharing.state.clone(), sharing.stateChanged && r.remember != nil
	sharing.stateChanged = false
	r.mu.Unlock()
	if remember {
		r.remember(state)
	}
}

// finish sends what is due until nothing is left or sending fails. It also sends conditions
// that wait because the last apply has only just begun.
func (r *Reporter) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	for ctx.Err() == nil {
		req, at := r.next()
		if req != nil {
			r.send(ctx, req)
		} else if at.IsZero() || time.Until(at) > coalesce || !r.wait(ctx, at) {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.events.dropAll("stopped")
}

// Counts returns the current metrics.
func (r *Reporter) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.snapshot()
}

// Refusal says why the API server takes no conditions of the agent's node, for example because there
// is no such node. It is empty if the API server takes them. An outage does not change it.
func (r *Reporter) Refusal() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.core.missing, r.core.forbidden)
}

// State returns the state to save for the next run.
func (r *Reporter) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.conditions.sharing.state.clone()
}
