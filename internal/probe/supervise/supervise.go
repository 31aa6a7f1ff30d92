package supervise

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/resourcestack/autohealer/internal/symptom"
)

// Config is what a supervisor needs to know.
type Config struct {
	// Emit takes what the monitors find, each under its name. It must not wait, and
	// must not ask the supervisor.
	Emit func(monitor string, r symptom.Report)
	// Logger is told what becomes of monitors.
	Logger *slog.Logger
}

// Job is a monitor that is to run.
type Job struct {
	// Name tells it from all others, and stays when its file changes.
	Name string
	// Version tells it from what ran under the name before: a job whose version is the
	// same is left alone.
	Version string
	// Source of its reports, and the types of the conditions that it keeps.
	Source     string
	Conditions []string
	// Make returns the monitor.
	Make func() Monitor
}

// Supervisor runs monitors. Its methods may be called by several at once.
type Supervisor struct {
	cfg Config

	applying sync.Mutex // one change at a time

	mu      sync.Mutex // of running
	running map[string]*running
}

// running is a job that is being done.
type running struct {
	job     Job
	monitor Monitor
	ward    *ward
	stop    context.CancelFunc
	ended   chan struct{}
}

func (r *running) end() {
	r.stop()
	<-r.ended
}

// New returns a supervisor under which nothing runs.
func New(cfg Config) *Supervisor { return &Supervisor{cfg: cfg, running: map[string]*running{}} }

// Apply has these jobs done and no others, until ctx ends. It returns when those that
// are not to be done any more have ended.
func (s *Supervisor) Apply(ctx context.Context, jobs []Job) {
	s.applying.Lock()
	defer s.applying.Unlock()
	for _, r := range s.list() {
		at := slices.IndexFunc(jobs, func(j Job) bool { return j.Name == r.job.Name })
		if at < 0 {
			s.remove(r)
			s.emitGone(r.job, nil)
			s.cfg.Logger.Info("a monitor is stopped", "monitor", r.job.Name)
		} else if jobs[at].Version != r.job.Version {
			s.remove(r)
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

// emitGone says which conditions of a job nobody keeps any more.
func (s *Supervisor) emitGone(job Job, kept []string) {
	gone := slices.DeleteFunc(slices.Clone(job.Conditions), func(kind string) bool { return slices.Contains(kept, kind) })
	if len(gone) > 0 {
		s.cfg.Emit(job.Name, symptom.Report{Source: job.Source, Gone: gone})
	}
}

func (s *Supervisor) start(ctx context.Context, job Job) {
	ctx, stop := context.WithCancel(ctx)
	r := &running{job: job, monitor: job.Make(), stop: stop, ended: make(chan struct{})}
	r.ward = newWard(job.Name, r.monitor, func(report symptom.Report) { s.cfg.Emit(job.Name, report) }, s.cfg.Logger)
	s.mu.Lock()
	s.running[job.Name] = r
	s.mu.Unlock()
	go func() {
		defer close(r.ended)
		r.ward.run(ctx)
	}()
}

func (s *Supervisor) remove(r *running) {
	r.end()
	s.mu.Lock()
	delete(s.running, r.job.Name)
	s.mu.Unlock()
}

// list returns what runs, by name.
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

// Stop ends all monitors, and returns when they have. What they have told stands.
func (s *Supervisor) Stop() {
	s.applying.Lock()
	defer s.applying.Unlock()
	for _, r := range s.list() {
		r.end()
	}
}

// Health returns how all monitors are, by name.
func (s *Supervisor) Health() []Health {
	list := s.list()
	health := make([]Health, 0, len(list))
	for _, r := range list {
		health = append(health, r.ward.health())
	}
	return health
}

// Each visits all monitors, by name.
func (s *Supervisor) Each(visit func(name string, m Monitor)) {
	for _, r := range s.list() {
		visit(r.job.Name, r.monitor)
	}
}
