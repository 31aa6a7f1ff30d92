package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/stats"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
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
	metrics    []string
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

// counter is a monitor that counts its problems by reason. Each reason of a rule is present
// from the start.
type counter interface{ Problems() map[string]uint64 }

// task returns the task of a file. ok is false if the file has no monitor.
func (a *agent) task(s *settings.Setting) (t task, ok bool) {
	name, path, f := s.String(), s.Path, s.File
	switch {
	case f.Log != nil:
		m := *f.Log
		return task{
			source: m.Source, conditions: m.Conditions, countsProblems: m.Metrics,
			reasons: permanentReasons(m.Rules, func(r config.LogRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			newMonitor: func() (supervise.Monitor, error) {
				return logwatch.New(logwatch.Config{Key: name, Monitor: m, Boot: a.boot, Memory: a.state, Logger: a.log}), nil
			},
		}, true
	case f.Plugin != nil:
		m := *f.Plugin
		return task{
			source: m.Source, conditions: m.Conditions, countsProblems: m.Metrics,
			reasons: permanentReasons(m.Rules, func(r config.PluginRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			newMonitor: func() (supervise.Monitor, error) {
				return periodic.NewPlugin(periodic.PluginConfig{Key: name, Monitor: m, Children: a.children, Boot: a.boot.ID, Memory: a.state, Logger: a.log})
			},
		}, true
	case f.Check != nil:
		m := *f.Check
		return task{
			source: m.Source, conditions: m.Conditions, countsProblems: m.Metrics,
			reasons:    permanentReasons(m.Rules, func(r config.CheckRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			newMonitor: func() (supervise.Monitor, error) { return a.checks(name, m) },
		}, true
	case f.Stats != nil:
		m := *f.Stats
		return task{
			source: string(f.Kind), metrics: stats.Names(m),
			newMonitor: func() (supervise.Monitor, error) {
				return stats.New(stats.Config{Key: name, File: path, Monitor: m, Logger: a.log})
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
func (a *agent) checks(name string, m config.CheckMonitor) (*periodic.Monitor, error) {
	node := check.Node{
		Getenv: a.getenv, Boot: a.boot.Time, Units: a.units, Repairs: a.repairs,
		Tell: func(e finding.Event) {
			a.handleReport(name, finding.Report{Source: m.Source, Events: []finding.Event{e}})
		},
	}
	cfg := periodic.Config{
		Key: name, Source: m.Source, Conditions: m.Conditions, Concurrency: m.Concurrency,
		UpdateOnMessage: true, MessagePause: messagePause, SkipInitialStatus: m.SkipInitialStatus,
		Boot: a.boot.ID, Memory: a.state, Logger: a.log,
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
	for _, condition := range t.conditions {
		job.Conditions = append(job.Conditions, condition.Type)
	}
	job.Make = func() supervise.Monitor {
		monitor, err := t.newMonitor()
		if err != nil { // checkFile should have refused the file
			monitor = failedMonitor{err}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.retireCounter(name)
		if counts, ok := monitor.(counter); ok && t.countsProblems {
			a.counters[name] = counts
		}
		return monitor
	}
	return job
}

// failedMonitor stands for a monitor that could not be created. It returns the error and
// counts as dead.
type failedMonitor struct{ err error }

// Run returns the error.
func (b failedMonitor) Run(context.Context, supervise.Reporter) error { return b.err }

// retireCounter keeps the counts of an ended monitor, because a counter must not decrease.
func (a *agent) retireCounter(name string) {
	if counts := a.counters[name]; counts != nil {
		addCounts(a.retiredProblems, counts.Problems())
	}
	delete(a.counters, name)
}

func addCounts(to, more map[string]uint64) {
	for reason, n := range more {
		to[reason] += n
	}
}

// problems returns the number of problems by reason.
func (a *agent) problems() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := maps.Clone(a.retiredProblems)
	for _, counts := range a.counters {
		addCounts(sum, counts.Problems())
	}
	return sum
}

// conditionReasons returns the conditions that become metrics, with the reasons of their
// rules. Conditions of daemons have none, because daemons choose their reasons.
func (a *agent) conditionReasons() map[string][]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string][]string{}
	for _, t := range a.tasks {
		for condition, reasons := range t.reasons {
			if t.countsProblems {
				all[condition] = append(all[condition], reasons...)
			}
		}
	}
	for i := range a.sources.Sources {
		for _, condition := range a.sources.Sources[i].Conditions {
			all[condition] = append(all[condition], nil...)
		}
	}
	return all
}
