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

// Config is what a supervisor needs to know.
type Config struct {
	// Emit takes what the monitors find, each under its name. It must not wait, and
	// must not ask the supervisor.
	Emit func(monitor string, r finding.Report)
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

// patience is how long a monitor may take to end. It is short, as the agent has to be
// gone before it is killed, with what it knows written down.
const patience = 3 * time.Second

// Supervisor runs monitors. Its methods may be called by several at once.
type Supervisor struct {
	cfg Config

	applying sync.Mutex // one change at a time

	mu        sync.Mutex // of what follows, never held while somebody is waited for
	running   map[string]*running
	abandoned []*running // that were to end, and had not
}

// running is a job that is being done.
type running struct {
	job     Job
	monitor Monitor
	ward    *ward
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

// New returns a supervisor under which nothing runs.
func New(cfg Config) *Supervisor { return &Supervisor{cfg: cfg, running: map[string]*running{}} }

// Apply has these jobs done and no others, until ctx ends. It returns when those that
// are not to be done any more have ended, or were abandoned.
func (s *Supervisor) Apply(ctx context.Context, jobs []Job) {
	s.applying.Lock()
	defer s.applying.Unlock()
	heir := func(r *running) int {
		return slices.IndexFunc(jobs, func(j Job) bool { return j.Name == r.job.Name })
	}
	leaving := slices.DeleteFunc(s.list(), func(r *running) bool {
		at := heir(r)
		return at >= 0 && jobs[at].Version == r.job.Version
	})
	s.end(leaving)
	for _, r := range leaving {
		s.mu.Lock()
		delete(s.running, r.job.Name)
		s.mu.Unlock()
		if at := heir(r); at < 0 {
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

// end ends monitors, all at once, and waits for them, but not for one that hangs: no
// other must wait for it. What that one says later is not heard.
func (s *Supervisor) end(list []*running) {
	for _, r := range list {
		r.stop()
	}
	late := make(chan struct{})
	defer time.AfterFunc(patience, func() { close(late) }).Stop()
	for _, r := range list {
		select {
		case <-r.ended:
		case <-late:
			s.abandon(r)
		}
	}
}

// abandon leaves a monitor to itself that does not end.
func (s *Supervisor) abandon(r *running) {
	if r.hasEnded() {
		return // at the last moment
	}
	r.ward.leave()
	s.mu.Lock()
	s.abandoned = append(s.abandoned, r)
	s.mu.Unlock()
	s.cfg.Logger.Error("a monitor hangs and does not end, it is abandoned", "monitor", r.job.Name, "after", patience)
}

// Abandoned returns how many monitors were to end and still hang.
func (s *Supervisor) Abandoned() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandoned = slices.DeleteFunc(s.abandoned, (*running).hasEnded)
	return len(s.abandoned)
}

// emitGone says which conditions of a job nobody keeps any more.
func (s *Supervisor) emitGone(job Job, kept []string) {
	gone := slices.DeleteFunc(slices.Clone(job.Conditions), func(kind string) bool { return slices.Contains(kept, kind) })
	if len(gone) > 0 {
		s.cfg.Emit(job.Name, finding.Report{Source: job.Source, Gone: gone})
	}
}

func (s *Supervisor) start(ctx context.Context, job Job) {
	ctx, stop := context.WithCancel(ctx)
	r := &running{job: job, monitor: job.Make(), stop: stop, ended: make(chan struct{})}
	r.ward = newWard(job.Name, r.monitor, func(report finding.Report) { s.cfg.Emit(job.Name, report) }, s.cfg.Logger)
	s.mu.Lock()
	s.running[job.Name] = r
	s.mu.Unlock()
	go func() {
		defer close(r.ended)
		r.ward.run(ctx)
	}()
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

// Stop ends all monitors, and returns when they have, or were abandoned. What they have
// told stands.
func (s *Supervisor) Stop() {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.end(s.list())
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
