package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// agent connects the parts: configuration files become monitors and sources, the aggregate
// merges their findings, and the reporter writes the result to the API server.
type agent struct {
	log        *slog.Logger
	state      *statefile.Store
	factory    factory
	supervisor *supervise.Supervisor
	intake     *intake.Intake
	reports    reports
	problems   *problems
	needNode   chan struct{}

	// changeMu serializes changes. A change may wait for monitors to end. mu must not be
	// held that long, because status requests need it.
	changeMu sync.Mutex
	mu       sync.Mutex // guards the fields below
	settings []settings.Setting
	labels   map[string]string // of the node; nil until first known
	running  plan              // the plan that is in force
	pending  pending
	warnings warnings

	refusedClear string // the last value of the annotation with an error; for the reader of the node
}

// run wires the agent and runs it until ctx ends.
func run(ctx context.Context, o options, getenv func(string) string, out io.Writer) error {
	log := o.log.Logger(out)
	if getenv("GOGC") == "" {
		// The live heap is small, and input is discarded at once. This setting reduces the
		// memory of a busy agent from 14 to 12 MB without a measurable cost.
		debug.SetGCPercent(25)
	}
	releasePages(log) // package initialization is done
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	a, err := newAgent(o, getenv, log)
	if err != nil {
		return err
	}
	last := func(name settings.Name) (string, bool) { return a.state.Text(name.String()) }
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	files := settings.New(settings.Config{Names: o.files(), Parse: checkFile, Last: last, Nudges: reloads, Logger: log})
	changes := files.Read()
	if err := checkUsable(files.Settings()); err != nil {
		return errors.Join(err, a.state.Close())
	}
	api, getNode, err := a.reports.connect(o, getenv)
	if err != nil {
		return errors.Join(err, a.state.Close())
	}
	servers, err := listen(ctx, o, a, api)
	if err != nil {
		return errors.Join(err, a.state.Close())
	}
	log.Info("starting", "version", version, "node", o.node, "boot", a.factory.boot.ID, "stateDir", o.stateDir)
	for _, given := range o.ignored {
		log.Info("argument has no effect", "argument", given)
	}

	lasting := context.WithoutCancel(ctx)
	stopReporter := a.reports.start(lasting)
	stopReaping := background(lasting, a.factory.children.Reap)
	var parts sync.WaitGroup
	for _, server := range servers {
		parts.Go(func() { server.serve(ctx, stop) })
	}
	a.applyFiles(ctx, changes, files.Settings())
	parts.Go(func() {
		files.Watch(ctx, func(changes []settings.Change) { a.applyFiles(ctx, changes, files.Settings()) })
	})
	if o.problemSources != "" {
		parts.Go(func() { a.intake.Run(ctx) })
	}
	parts.Go(func() {
		nodeReader{getNode, a.needNode, a.readInterval, func(ctx context.Context, node kubeapi.Metadata) {
			a.setLabels(ctx, node.Labels)
			a.clearAnnotated(ctx, node.Annotations[clearAnnotation])
		}, log}.run(ctx)
	})
	parts.Wait()
	a.supervisor.Stop()
	stopReaping()
	stopReporter() // after the last report of a monitor
	log.Info("stopping")
	err = a.state.Close()
	for _, server := range servers {
		err = errors.Join(err, server.err)
	}
	return err
}

// newAgent returns an agent with the stored state of its predecessor.
func newAgent(o options, getenv func(string) string, log *slog.Logger) (*agent, error) {
	this, err := procfs.ReadBoot("")
	if err != nil {
		return nil, err
	}
	remembered, err := statefile.Open(statefile.Config{Dir: o.stateDir, Boot: this.ID, Log: log})
	if err != nil {
		return nil, err
	}
	a := &agent{
		log: log, state: remembered, needNode: make(chan struct{}, 1),
		reports: reports{log: log, state: remembered}, problems: newProblems(), warnings: newWarnings(log),
	}
	a.factory = factory{
		log: log, boot: this, state: remembered, getenv: getenv, emit: a.handleReport,
		cleared:  map[string]time.Time{},
		children: subprocess.New(), units: unit.New(unit.Config{}), repairs: &check.Repairs{Folder: check.RepairsFolder},
	}
	if known, ok := remembered.Labels(); ok {
		a.labels = known
	}
	a.supervisor = supervise.New(supervise.Config{Emit: a.handleReport, Logger: log})
	a.intake = intake.New(intake.Config{Emit: a.handleSourceReport, Memory: sourceState{remembered}, Boot: this.ID, Logger: log})
	return a, nil
}

// background runs a function until the returned function is called, which waits for its
// end.
func background(ctx context.Context, run func(context.Context)) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() { stop(); running.Wait() }
}

// checkUsable returns an error if no file is usable. One bad file of several must not stop
// the others, but an agent without any monitor must not look healthy.
func checkUsable(all []settings.Setting) error {
	errs := []error{errors.New("no configuration file can be used")}
	for _, s := range all {
		if s.File != nil {
			return nil
		}
		errs = append(errs, s.Err)
	}
	return errors.Join(errs...)
}

// applyFiles applies changed files.
func (a *agent) applyFiles(ctx context.Context, changes []settings.Change, all []settings.Setting) {
	for _, change := range changes {
		event, ok := change.Event(time.Now())
		switch {
		case ok && event.Severity == finding.Warn:
			a.log.Error("configuration file cannot be used", "file", change.Now.Path, "reason", event.Reason, "err", event.Message, "id", event.ID)
		case ok:
			a.log.Info("configuration file can be used again", "file", change.Now.Path, "reason", event.Reason, "id", event.ID)
		}
		if ok {
			a.reports.report(finding.Report{Source: name, Events: []finding.Event{event}})
		}
	}
	good := map[string]string{}
	for i := range all {
		if s := &all[i]; s.File != nil {
			good[s.String()] = s.Text
		}
	}
	a.state.KeepTexts(good)
	a.change(ctx, func() { a.settings = all })
}

// setLabels applies the labels of the node, if a file needs them.
func (a *agent) setLabels(ctx context.Context, known map[string]string) {
	a.mu.Lock()
	same := a.labels != nil && maps.Equal(a.labels, known)
	a.mu.Unlock()
	if same || !a.labelsNeeded() {
		return
	}
	a.state.KeepLabels(known)
	a.change(ctx, func() { a.labels = known })
}

// change applies a change, and then starts and stops monitors and sources as the files
// require on this node.
func (a *agent) change(ctx context.Context, apply func()) {
	a.changeMu.Lock()
	defer a.changeMu.Unlock()
	a.mu.Lock()
	apply()
	p := a.plan()
	a.warnings.logSharedConditions(p)
	a.reports.await(a.pending.await(p, a.running.tasks))
	a.mu.Unlock()
	// Before the monitors start: they must not restore expired state.
	a.state.Ask(time.Now(), p.names()...)
	// Sources first: their restored conditions must be present when the last monitor reports.
	a.applySources(p.sources)
	a.supervisor.Apply(ctx, p.jobs)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.retireTasks(p.tasks)
	a.running = p
	a.checkComplete()
	a.readNode() // a new monitor may have reported before it was known here
}

// checkComplete tells the reporter when all conditions are known for the first time. The
// reporter then removes rows of the previous agent that no monitor reports.
func (a *agent) checkComplete() {
	if a.pending.complete() {
		releasePages(a.log) // startup is done
		a.reports.complete()
	}
}

// retireTasks keeps the problem counts of monitors that no longer run. The state file keeps
// their findings for a while, because a file may be missing for a moment and a label may
// flap.
func (a *agent) retireTasks(now map[string]task) {
	for name := range a.running.tasks {
		if _, stays := now[name]; !stays {
			a.problems.replace(name, nil)
		}
	}
}

// handleReport takes the findings of a monitor.
func (a *agent) handleReport(monitor string, r finding.Report) {
	for i := range r.Events {
		event := &r.Events[i]
		log := a.log.With("monitor", monitor, "reason", event.Reason, "message", event.Message, "time", event.Time, "id", event.ID)
		if event.Condition == "" {
			log.Info("problem found")
		} else {
			log.Info("condition changed", "condition", event.Condition)
		}
	}
	a.reports.add(monitor, r)
	if len(r.Conditions) > 0 {
		a.readNode() // a condition may be cleared now
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(r.Conditions) > 0 && a.pending.monitors[monitor] {
		a.pending.monitors[monitor] = false
		a.checkComplete()
	}
}

// readInterval returns how often to read the metadata of the node, 0 while it is not needed.
func (a *agent) readInterval() time.Duration {
	switch {
	case a.reports.reporter != nil && a.mayClear():
		return clearInterval
	case a.labelsNeeded():
		return labelInterval
	}
	return 0
}

// readNode makes the reader of the node check whether it is needed.
func (a *agent) readNode() {
	select {
	case a.needNode <- struct{}{}:
	default:
	}
}

// labelsNeeded reports whether a file selects nodes by labels.
func (a *agent) labelsNeeded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.settings, func(s settings.Setting) bool { return s.File != nil && !s.File.Nodes.Empty() })
}

// unhealthyReasons says why the agent is unhealthy, sorted by name. It is empty for a
// healthy agent.
func (a *agent) unhealthyReasons() []string {
	var reasons []string
	for _, h := range a.supervisor.Health() {
		if h.Dead != "" {
			reasons = append(reasons, fmt.Sprintf("%s is dead: %s", h.Monitor, h.Dead))
		}
	}
	reasons = append(reasons, a.intake.Problems()...)
	if refusal := a.reports.refusal(); refusal != "" {
		reasons = append(reasons, refusal)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.settings {
		if s := &a.settings[i]; s.File == nil && s.Err != nil {
			reasons = append(reasons, fmt.Sprintf("%s cannot be used: %v", s.Path, s.Err))
		}
	}
	return reasons
}
