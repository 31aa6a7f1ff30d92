package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/stats"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// task is the monitor that a file asks for.
type task struct {
	source     string
	conditions []config.Condition
	// reasons are the reasons of permanent rules, by condition.
	reasons map[string][]string
	// countsProblems says whether problems become metrics.
	countsProblems bool
	// metrics are the names of the machine's metrics that the task serves.
	metrics []string
	// readsLog says whether the task is a log monitor. cleared are its cleared conditions.
	readsLog   bool
	cleared    map[string]time.Time
	newMonitor func() (supervise.Monitor, error)
}

// conditionTypes returns the types of the conditions.
func (t task) conditionTypes() []string {
	kinds := make([]string, len(t.conditions))
	for i, c := range t.conditions {
		kinds[i] = c.Type
	}
	return kinds
}

// factory creates the monitors of files.
type factory struct {
	log      *slog.Logger
	boot     procfs.Boot
	state    *statefile.Store
	getenv   func(string) string
	emit     func(monitor string, r finding.Report)
	children *subprocess.Children // all started programs
	units    *unit.Manager
	repairs  *check.Repairs
	// cleared is until when findings of log monitors are cleared, by condition type.
	cleared map[string]time.Time
}

// task returns the task of a file. ok is false if the file has no monitor.
func (f *factory) task(s *settings.Setting) (t task, ok bool) {
	name, path, file := s.String(), s.Path, s.File
	switch {
	case file.Log != nil:
		m := *file.Log
		cleared := maps.Clone(f.cleared)
		maps.DeleteFunc(cleared, func(kind string, _ time.Time) bool {
			return !slices.ContainsFunc(m.Conditions, func(c config.Condition) bool { return c.Type == kind })
		})
		return task{
			source: m.Source, conditions: m.Conditions, countsProblems: m.Metrics, readsLog: true, cleared: cleared,
			reasons: permanentReasons(m.Rules, func(r config.LogRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			newMonitor: func() (supervise.Monitor, error) {
				return logwatch.New(logwatch.Config{Key: name, Monitor: m, Boot: f.boot, Clear: cleared, Memory: f.state, Logger: f.log}), nil
			},
		}, true
	case file.Plugin != nil:
		m := *file.Plugin
		return task{
			source: m.Source, conditions: m.Conditions, countsProblems: m.Metrics,
			reasons: permanentReasons(m.Rules, func(r config.PluginRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			newMonitor: func() (supervise.Monitor, error) {
				return periodic.NewPlugin(periodic.PluginConfig{Key: name, Monitor: m, Children: f.children, Boot: f.boot.ID, Memory: f.state, Logger: f.log})
			},
		}, true
	case file.Check != nil:
		m := *file.Check
		return task{
			source: m.Source, conditions: m.Conditions, countsProblems: m.Metrics,
			reasons:    permanentReasons(m.Rules, func(r config.CheckRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			newMonitor: func() (supervise.Monitor, error) { return f.checks(name, m) },
		}, true
	case file.Stats != nil:
		m := *file.Stats
		return task{
			source: string(file.Kind), metrics: stats.Names(m),
			newMonitor: func() (supervise.Monitor, error) {
				return stats.New(stats.Config{Key: name, File: path, Monitor: m, Logger: f.log})
			},
		}, true
	}
	return task{}, false
}

// permanentReasons returns the reasons of permanent rules, by condition.
func permanentReasons[Rule any](rules []Rule, of func(Rule) (permanent bool, condition, reason string)) map[string][]string {
	reasons := map[string][]string{}
	for _, rule := range rules {
		permanent, condition, reason := of(rule)
		if permanent && !slices.Contains(reasons[condition], reason) {
			reasons[condition] = append(reasons[condition], reason)
		}
	}
	return reasons
}

// messagePause is the least time between two messages of a check. A kubelet's answer may
// differ each time.
const messagePause = time.Minute

// checks returns the monitor of built-in checks. Their messages say which repair is under
// way, so they are updated while the problem lasts.
func (f *factory) checks(name string, m config.CheckMonitor) (*periodic.Monitor, error) {
	node := check.Node{
		Getenv: f.getenv, Boot: f.boot.Time, Units: f.units, Repairs: f.repairs,
		Tell: func(e finding.Event) {
			f.emit(name, finding.Report{Source: m.Source, Events: []finding.Event{e}})
		},
	}
	cfg := periodic.Config{
		Key: name, Source: m.Source, Conditions: m.Conditions, Concurrency: m.Concurrency,
		UpdateOnMessage: true, MessagePause: messagePause, SkipInitialStatus: m.SkipInitialStatus,
		Boot: f.boot.ID, Memory: f.state, Logger: f.log,
	}
	if m.UpdateOnMessage {
		cfg.MessagePause = 0
	}
	for i := range m.Rules {
		rule := &m.Rules[i]
		run, err := check.New(*rule, node)
		if err != nil {
			return nil, err
		}
		cfg.Rules = append(cfg.Rules, periodic.Rule{
			Name: rule.Check, Permanent: rule.Permanent, Condition: rule.Condition, Reason: rule.Reason,
			Interval: rule.InvokeInterval, Timeout: rule.Timeout, Check: run,
		})
	}
	return periodic.New(cfg)
}

// job returns the supervised job of a task.
func (a *agent) job(s *settings.Setting, t task) supervise.Job {
	name := s.String()
	job := supervise.Job{Name: name, Version: s.Version, Source: t.source}
	if len(t.cleared) > 0 {
		job.Version += fmt.Sprint(t.cleared) // the monitor starts again without its cleared findings
	}
	for _, condition := range t.conditions {
		job.Conditions = append(job.Conditions, condition.Type)
	}
	job.Make = func() supervise.Monitor {
		monitor, err := t.newMonitor()
		if err != nil { // checkFile should have refused the file
			monitor = failedMonitor{err}
		}
		counts, ok := monitor.(counter)
		if !ok || !t.countsProblems {
			counts = nil
		}
		a.problems.replace(name, counts)
		return monitor
	}
	return job
}

// failedMonitor stands for a monitor that could not be created. It returns the error and
// counts as dead.
type failedMonitor struct{ err error }

// Run returns the error.
func (b failedMonitor) Run(context.Context, supervise.Reporter) error { return b.err }

// conditionReasons returns the conditions that become metrics, with the reasons of their
// rules. Conditions of daemons have none, because daemons choose their reasons.
func (a *agent) conditionReasons() map[string][]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string][]string{}
	for _, t := range a.running.tasks {
		for condition, reasons := range t.reasons {
			if t.countsProblems {
				all[condition] = append(all[condition], reasons...)
			}
		}
	}
	for i := range a.running.sources.Sources {
		for _, condition := range a.running.sources.Sources[i].Conditions {
			all[condition] = append(all[condition], nil...)
		}
	}
	return all
}
