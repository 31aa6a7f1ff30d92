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

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/aggregate"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/probe/boot"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/report"
)

// agent joins the parts: files become monitors and daemons that are heard, what those
// find goes onto the chart, and what that says of the node to the API server.
type agent struct {
	log        *slog.Logger
	boot       boot.Boot
	memory     *statefile.Store
	supervisor *supervise.Supervisor
	chart      aggregate.Aggregate
	needLabels chan struct{}
	getenv     func(string) string
	children   *subprocess.Children // all programs that are run
	units      *unit.Manager
	repairs    *check.Repairs
	intake     *intake.Intake
	client     *kubeapi.Client // nil if there is no API server, for which noClient says why
	noClient   error
	reporter   *report.Reporter // nil if nothing is reported
	// unknownAgreed is what a newer agent has kept beside what was agreed upon.
	unknownAgreed *format.Rest

	// What is entered into the chart first is reported first: the reporter takes the last
	// word for the newest.
	telling sync.Mutex

	// One change at a time. It may wait for monitors to end, which mu must not: whoever
	// asks how the agent is gets an answer meanwhile.
	changing   sync.Mutex
	mu         sync.Mutex // of what follows
	settings   []settings.Setting
	labels     map[string]string // of the node; nil if they were never known
	waiting    []string          // files that wait for labels
	shownTwice []string          // metrics that several files show
	runs       map[string]task   // what monitors that run do, by their names
	sources    intake.Setup      // who is heard
	noted      map[string]string // version of a file of which it was said what is odd
	both       []string          // conditions that a daemon and a monitor keep
	counters   map[string]counter
	retired    map[string]uint64 // problems of monitors that are no more, by reason
	silent     map[string]bool   // monitors that have conditions and have not told them yet
	complete   bool              // there was a moment without any
}

// run wires everything up and works until ctx ends.
func run(ctx context.Context, o options, getenv func(string) string, out io.Writer) error {
	log := o.logger(out)
	if getenv("GOGC") == "" {
		// Little is alive here, and what is read is thrown away at once: the memory that
		// a busy agent has falls from 14 to 12 MB, and no time is lost that one could see.
		debug.SetGCPercent(25)
	}
	slim(log) // what is linked has made itself ready
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	a, err := begin(o, getenv, log)
	if err != nil {
		return err
	}
	last := func(name settings.Name) (string, bool) { return a.memory.Text(name.String()) }
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	shelf := settings.New(settings.Config{Names: o.files(), Judge: judge, Last: last, Nudges: hangups, Logger: log})
	changes := shelf.Read()
	if err := anyGood(shelf.Settings()); err != nil {
		return errors.Join(err, a.memory.Close())
	}
	if err := a.connect(o, getenv); err != nil {
		return errors.Join(err, a.memory.Close())
	}
	servers, err := listen(ctx, o, a)
	if err != nil {
		return errors.Join(err, a.memory.Close())
	}
	log.Info("starting", "version", version, "node", o.node, "boot", a.boot.ID, "stateDir", o.stateDir)
	for _, given := range o.ignored {
		log.Info("an argument has no effect", "argument", given)
	}

	lasting := context.WithoutCancel(ctx)
	hush := a.speak(lasting)
	bury := background(lasting, a.children.Reap)
	var parts sync.WaitGroup
	for _, server := range servers {
		parts.Go(func() { server.serve(ctx, stop) })
	}
	a.follow(ctx, changes, shelf.Settings())
	parts.Go(func() {
		shelf.Watch(ctx, func(changes []settings.Change) { a.follow(ctx, changes, shelf.Settings()) })
	})
	if o.problemSources != "" {
		parts.Go(func() { a.intake.Run(ctx) })
	}
	parts.Go(func() { labels{a.ask(o.node), a.needLabels, a.labelsNeeded, a.learn, log}.follow(ctx) })
	parts.Wait()
	a.supervisor.Stop()
	bury()
	hush() // after the last monitor has had its say
	log.Info("stopping")
	err = a.memory.Close()
	for _, server := range servers {
		err = errors.Join(err, server.err)
	}
	return err
}

// begin makes an agent that remembers what the one before knew.
func begin(o options, getenv func(string) string, log *slog.Logger) (*agent, error) {
	this, err := boot.Read("")
	if err != nil {
		return nil, err
	}
	remembered, err := statefile.Open(statefile.Config{Dir: o.stateDir, Boot: this.ID, Log: log})
	if err != nil {
		return nil, err
	}
	a := &agent{
		log: log, boot: this, memory: remembered, needLabels: make(chan struct{}, 1), getenv: getenv,
		children: subprocess.New(), units: unit.New(unit.Config{}), repairs: &check.Repairs{Folder: check.RepairsFolder},
		noted: map[string]string{}, counters: map[string]counter{}, retired: map[string]uint64{},
	}
	if known, ok := remembered.Labels(); ok {
		a.labels = known
	}
	a.supervisor = supervise.New(supervise.Config{Emit: a.found, Logger: log})
	a.intake = intake.New(intake.Config{Emit: a.heard, Memory: drawer{remembered}, Boot: this.ID, Logger: log})
	return a, nil
}

// speak reports what is found until what it returns is called, which waits until what is
// left has been reported, for a moment.
func (a *agent) speak(ctx context.Context) (hush func()) {
	if a.reporter == nil {
		return func() {}
	}
	return background(ctx, a.reporter.Run)
}

// background runs something until what it returns is called, which waits for its end.
func background(ctx context.Context, run func(context.Context)) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() { stop(); running.Wait() }
}

// anyGood says what is wrong if nothing at all can be used: one bad file of several
// must not blind the node, but an agent that looks at nothing must not look alive.
func anyGood(all []settings.Setting) error {
	wrong := []error{errors.New("no configuration file can be used")}
	for _, s := range all {
		if s.File != nil {
			return nil
		}
		wrong = append(wrong, s.Err)
	}
	return errors.Join(wrong...)
}

// follow takes up changed files.
func (a *agent) follow(ctx context.Context, changes []settings.Change, all []settings.Setting) {
	for _, change := range changes {
		event, ok := change.Event(time.Now())
		switch {
		case ok && event.Severity == finding.Warn:
			a.log.Error("a configuration file cannot be used", "file", change.Now.Path, "reason", event.Reason, "err", event.Message, "id", event.ID)
		case ok:
			a.log.Info("a configuration file can be used again", "file", change.Now.Path, "reason", event.Reason, "id", event.ID)
		}
		if ok {
			a.report(finding.Report{Source: name, Events: []finding.Event{event}})
		}
	}
	good := map[string]string{}
	for i := range all {
		if s := &all[i]; s.File != nil {
			good[s.String()] = s.Text
		}
	}
	a.memory.KeepTexts(good)
	a.change(ctx, func() { a.settings = all })
}

// learn takes up the labels of the node.
func (a *agent) learn(ctx context.Context, known map[string]string) {
	a.memory.KeepLabels(known)
	a.change(ctx, func() { a.labels = known })
}

// change has those monitors run, and those daemons heard, that the files ask for on this
// node, after something of it has changed.
func (a *agent) change(ctx context.Context, what func()) {
	a.changing.Lock()
	defer a.changing.Unlock()
	a.mu.Lock()
	what()
	p := a.plan()
	a.noteBoth(p)
	a.await(p)
	a.mu.Unlock()
	// Before they run: what is remembered for too long must not be recalled.
	a.memory.Ask(time.Now(), p.names()...)
	// First who reports by himself: what he has told in the life before must be there when
	// the last of the monitors has told its own.
	a.hear(p.sources)
	a.supervisor.Apply(ctx, p.jobs)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(p.tasks)
	a.sources = p.sources
	a.allTold()
}

// await notes whose conditions are not known yet: what an agent before this one has told
// of them stands meanwhile.
func (a *agent) await(p plan) {
	before, awaited := a.silent, p.waiting
	a.silent = map[string]bool{}
	for name, t := range p.tasks {
		_, ran := a.runs[name]
		a.silent[name] = len(t.conditions) > 0 && (before[name] || !ran)
		if a.silent[name] {
			awaited = append(awaited, t.kinds()...)
		}
	}
	if a.reporter != nil {
		a.reporter.Await(awaited...)
	}
}

// allTold tells the reporter when all conditions are known for the first time: what an
// agent before this one has reported, and nobody tells of, is then removed.
func (a *agent) allTold() {
	if a.complete || len(a.waiting) > 0 || slices.Contains(slices.Collect(maps.Values(a.silent)), true) {
		return
	}
	a.complete = true
	slim(a.log) // the start is over
	if a.reporter != nil {
		a.reporter.Complete()
	}
}

// drop lets go of the monitors that do not run any more. What they have found is
// remembered for a while: a file may be away for a moment, and a label may flap.
func (a *agent) drop(now map[string]task) {
	for name := range a.runs {
		if _, stays := now[name]; !stays {
			a.retire(name)
		}
	}
	a.runs = now
}

// note says once of each version of a file what is odd about it.
func (a *agent) note(s *settings.Setting) {
	key := s.String()
	if a.noted[key] == s.Version {
		return
	}
	a.noted[key] = s.Version
	for _, warning := range s.Warnings {
		a.log.Warn("a configuration file may say what is not meant", "file", s.Path, "warning", warning)
	}
}

// noteBoth says which conditions both a daemon and a monitor keep, when that is news.
func (a *agent) noteBoth(p plan) {
	monitors := map[string][]config.Condition{}
	for name, t := range p.tasks {
		monitors[name] = t.conditions
	}
	both := bothKeep(p.sources, monitors)
	if !slices.Equal(both, a.both) {
		for _, warning := range both {
			a.log.Warn("configuration files may say what is not meant", "warning", warning)
		}
	}
	a.both = both
}

// found takes what a monitor has found.
func (a *agent) found(monitor string, r finding.Report) {
	for i := range r.Events {
		event := &r.Events[i]
		log := a.log.With("monitor", monitor, "reason", event.Reason, "message", event.Message, "time", event.Time, "id", event.ID)
		if event.Condition == "" {
			log.Info("problem found")
		} else {
			log.Info("condition changed", "condition", event.Condition)
		}
	}
	a.telling.Lock()
	a.report(a.chart.Add(monitor, r))
	a.telling.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(r.Conditions) > 0 && a.silent[monitor] {
		a.silent[monitor] = false
		a.allTold()
	}
}

// report is where what concerns the node as a whole leaves the agent: to the log and,
// where there is one, to the API server.
func (a *agent) report(r finding.Report) {
	for i := range r.Conditions {
		c := &r.Conditions[i]
		log := a.log.With("condition", c.Type, "status", c.Status, "reason", c.Reason, "since", c.Since)
		if c.Status == catalog.False {
			log.Debug("condition stands") // as most do, from the start on
		} else {
			log.Info("condition stands")
		}
	}
	for _, kind := range r.Gone {
		a.log.Info("condition is kept no longer", "condition", kind)
	}
	if a.reporter != nil {
		a.reporter.Take(r)
	}
}

// labelsNeeded says whether a file asks for labels.
func (a *agent) labelsNeeded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.settings, func(s settings.Setting) bool { return s.File != nil && !s.File.Nodes.Empty() })
}

// ask returns how the labels of the node are asked for.
func (a *agent) ask(node string) func(context.Context) (map[string]string, error) {
	return func(ctx context.Context) (map[string]string, error) {
		if a.client == nil {
			return nil, a.noClient
		}
		return a.client.NodeLabels(ctx, node)
	}
}

// ailments says why the agent is not well, in the order of names; nothing if it is.
func (a *agent) ailments() []string {
	var why []string
	for _, h := range a.supervisor.Health() {
		if h.Dead != "" {
			why = append(why, fmt.Sprintf("%s is dead: %s", h.Monitor, h.Dead))
		}
	}
	why = append(why, a.intake.Ailments()...)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.settings {
		if s := &a.settings[i]; s.File == nil && s.Err != nil {
			why = append(why, fmt.Sprintf("%s cannot be used: %v", s.Path, s.Err))
		}
	}
	return why
}
