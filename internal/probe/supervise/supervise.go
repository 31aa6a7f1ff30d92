package supervise

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
)

// Config configures a Supervisor.
type Config struct {
	// Emit receives the reports of a monitor. It must not block and must not call the supervisor.
	Emit func(monitor string, r finding.Report)
	// Logger receives starts and failures of monitors.
	Logger *slog.Logger
}

// Job is a monitor that should run.
type Job struct {
	// Name identifies the monitor. It stays the same when the file changes.
	Name string
	// Version changes when the file does. A job with an unchanged version keeps running.
	Version string
	// Source is the source of its reports, Conditions are the types of its conditions.
	Source     string
	Conditions []string
	// Make creates the monitor.
	Make func() Monitor
}

// stopTimeout is how long a monitor may take to end. It is short, because the agent must store its
// state and exit before it is killed.
const stopTimeout = 3 * time.Second

// Supervisor runs monitors. It is safe for concurrent use.
type Supervisor struct {
	cfg Config

	applying sync.Mutex // allows one Apply at a time

	mu        sync.Mutex // guards the following fields; never held while waiting
	running   map[string]*running
	abandoned []*running // were stopped and have not ended
}

// running is a job with its monitor.
type running struct {
	job     Job
	monitor Monitor
	runner  *runner
	stop    context.CancelFunc
	ended   chan struct{}
}

func (r *running) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// New returns a supervisor without monitors.
func New(cfg Config) *Supervisor { return &Supervisor{cfg: cfg, running: map[string]*running{}} }

// Apply runs exactly these jobs until ctx ends. It returns when all other monitors have ended or
// were abandoned.
func (s *Supervisor) Apply(ctx context.Context, jobs []Job) {
	s.applying.Lock()
	defer s.applying.Unlock()
	successor := func(r *running) int {
		return slices.IndexFunc(jobs, func(j Job) bool { return j.Name == r.job.Name })
	}
	leaving := slices.DeleteFunc(s.list(), func(r *running) bool {
		at := successor(r)
		return at >= 0 && jobs[at].Version == r.job.Version
	})
	s.end(leaving)
	for _, r := range leaving {
		s.mu.Lock()
		delete(s.running, r.job.Name)
		s.mu.Unlock()
		if at := successor(r); at < 0 {
			s.emitGone(r.job, nil)
			s.cfg.Logger.Info("a monitor is stopped", "monitor", r.job.Name)
		} else {
			s.emitGone(r.job, jobs[at].Conditions)
			s.start(ctx, jobs[at])
			s.cfg.Logger.Info("a monitor is replaced", "monitor", r.job.Name)
		}
	}
	for _, job := range jobs {
		s.mu.Lock()
		_, runs := s.running[job.Name]
		s.mu.Unlock()
		if !runs {
			s.start(ctx, job)
			s.cfg.Logger.Info("a monitor is started", "monitor", job.Name)
		}
	}
}

// end stops monitors, all at once, and waits for them. It abandons a monitor that hangs and ignores
// its later reports.
func (s *Supervisor) end(list []*running) {
	for _, r := range list {
		r.stop()
	}
	late := make(chan struct{})
	defer time.AfterFunc(stopTimeout, func() { close(late) }).Stop()
	for _, r := range list {
		select {
		case <-r.ended:
		case <-late:
			s.abandon(r)
		}
	}
}

// abandon gives up a monitor that does not end.
func (s *Supervisor) abandon(r *running) {
	if r.hasEnded() {
		return // it ended at the last moment
	}
	r.runner.detach()
	s.mu.Lock()
	s.abandoned = append(s.abandoned, r)
	s.mu.Unlock()
	s.cfg.Logger.Error("a monitor hangs and does not end, it is abandoned", "monitor", r.job.Name, "after", stopTimeout)
}

// Abandoned returns how many abandoned monitors still hang.
func (s *Supervisor) Abandoned() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandoned = slices.DeleteFunc(s.abandoned, (*running).hasEnded)
	return len(s.abandoned)
}

// emitGone reports the conditions of a job that no other job has.
func (s *Supervisor) emitGone(job Job, kept []string) {
	gone := slices.DeleteFunc(slices.Clone(job.Conditions), func(kind string) bool { return slices.Contains(kept, kind) })
	if len(gone) > 0 {
		s.cfg.Emit(job.Name, finding.Report{Source: job.Source, Gone: gone})
	}
}

func (s *Supervisor) start(ctx context.Context, job Job) {
	ctx, stop := context.WithCancel(ctx)
	r := &running{job: job, monitor: job.Make(), stop: stop, ended: make(chan struct{})}
	r.runner = newRunner(job.Name, r.monitor, func(report finding.Report) { s.cfg.Emit(job.Name, report) }, s.cfg.Logger)
	s.mu.Lock()
	s.running[job.Name] = r
	s.mu.Unlock()
	go func() {
		defer close(r.ended)
		r.runner.run(ctx)
	}()
}

// list returns the running jobs by name.
func (s *Supervisor) list() []*running {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*running, 0, len(s.running))
	for _, r := range s.running {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *running) int { return strings.Compare(a.job.Name, b.job.Name) })
	return list
}

// Stop stops all monitors and returns when they have ended or were abandoned. Their conditions stay
// as reported.
func (s *Supervisor) Stop() {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.end(s.list())
}

// Health returns the health of all monitors by name.
func (s *Supervisor) Health() []Health {
	list := s.list()
	health := make([]Health, 0, len(list))
	for _, r := range list {
		health = append(health, r.runner.health())
	}
	return health
}

// Each calls visit for all monitors by name.
func (s *Supervisor) Each(visit func(name string, m Monitor)) {
	for _, r := range s.list() {
		visit(r.job.Name, r.monitor)
	}
}
