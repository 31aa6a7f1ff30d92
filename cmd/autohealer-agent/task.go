package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/interval"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/plugin"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/stats"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// task is what a file asks for, whatever its kind: a monitor, and what it is about.
type task struct {
	source     string
	conditions []config.Condition
	// causes are the reasons of permanent rules, by their conditions.
	causes map[string][]string
	// counted says whether problems become metrics.
	counted bool
	// figures are the names of the metrics that it shows of the machine.
	figures []string
	make    func() (supervise.Monitor, error)
}

// kinds are the types of its conditions.
func (t task) kinds() []string {
	kinds := make([]string, len(t.conditions))
	for i, c := range t.conditions {
		kinds[i] = c.Type
	}
	return kinds
}

// counter is a monitor that counts the problems that it finds, by reason. Each reason of
// a rule is there from the start.
type counter interface{ Problems() map[string]uint64 }

// task returns what becomes of a file. It is not ok if no monitor does.
func (a *agent) task(s *settings.Setting) (t task, ok bool) {
	name, path, f := s.String(), s.Path, s.File
	switch {
	case f.Log != nil:
		m := *f.Log
		return task{
			source: m.Source, conditions: m.Conditions, counted: m.Metrics,
			causes: causes(m.Rules, func(r config.LogRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			make: func() (supervise.Monitor, error) {
				return logwatch.New(logwatch.Config{Key: name, Monitor: m, Boot: a.boot, Memory: a.memory, Logger: a.log}), nil
			},
		}, true
	case f.Plugin != nil:
		m := *f.Plugin
		return task{
			source: m.Source, conditions: m.Conditions, counted: m.Metrics,
			causes: causes(m.Rules, func(r config.PluginRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			make: func() (supervise.Monitor, error) {
				return plugin.New(plugin.Config{Key: name, Monitor: m, Children: a.children, Boot: a.boot.ID, Memory: a.memory, Logger: a.log})
			},
		}, true
	case f.Check != nil:
		m := *f.Check
		return task{
			source: m.Source, conditions: m.Conditions, counted: m.Metrics,
			causes: causes(m.Rules, func(r config.CheckRule) (bool, string, string) { return r.Permanent, r.Condition, r.Reason }),
			make:   func() (supervise.Monitor, error) { return a.checks(name, m) },
		}, true
	case f.Stats != nil:
		m := *f.Stats
		return task{
			source: string(f.Kind), figures: stats.Names(m),
			make: func() (supervise.Monitor, error) {
				return stats.New(stats.Config{Key: name, File: path, Monitor: m, Logger: a.log})
			},
		}, true
	}
	return task{}, false
}

// causes returns the reasons that permanent rules have, by their conditions.
func causes[Rule any](rules []Rule, of func(Rule) (permanent bool, condition, reason string)) map[string][]string {
	reasons := map[string][]string{}
	for _, rule := range rules {
		permanent, condition, reason := of(rule)
		if permanent && !slices.Contains(reasons[condition], reason) {
			reasons[condition] = append(reasons[condition], reason)
		}
	}
	return reasons
}

// messagePause is how long the message of a check stands at least that has replaced
// another: what a kubelet answers may be new each time.
const messagePause = time.Minute

// checks returns the monitor of checks that are built in. Their messages say what is done
// about a sickness, and so are told anew while it stands.
func (a *agent) checks(name string, m config.CheckMonitor) (*interval.Monitor, error) {
	node := check.Node{
		Getenv: a.getenv, Boot: a.boot.Time, Units: a.units, Repairs: a.repairs,
		Tell: func(e finding.Event) { a.found(name, finding.Report{Source: m.Source, Events: []finding.Event{e}}) },
	}
	made := interval.Config{
		Key: name, Source: m.Source, Conditions: m.Conditions, Concurrency: m.Concurrency,
		UpdateOnMessage: true, MessagePause: messagePause, SkipInitialStatus: m.SkipInitialStatus,
		Boot: a.boot.ID, Memory: a.memory, Logger: a.log,
	}
	if m.UpdateOnMessage {
		made.MessagePause = 0
	}
	for i := range m.Rules {
		rule := &m.Rules[i]
		examine, err := check.New(*rule, node)
		if err != nil {
			return nil, err
		}
		made.Rules = append(made.Rules, interval.Rule{
			Name: rule.Check, Permanent: rule.Permanent, Condition: rule.Condition, Reason: rule.Reason,
			Interval: rule.InvokeInterval, Timeout: rule.Timeout, Exam: examine,
		})
	}
	return interval.New(made)
}

// job has a task done.
func (a *agent) job(s *settings.Setting, t task) supervise.Job {
	name := s.String()
	job := supervise.Job{Name: name, Version: s.Version, Source: t.source}
	for _, condition := range t.conditions {
		job.Conditions = append(job.Conditions, condition.Type)
	}
	job.Make = func() supervise.Monitor {
		monitor, err := t.make()
		if err != nil { // which whoever has judged the file should have seen
			monitor = broken{err}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.retire(name)
		if counts, ok := monitor.(counter); ok && t.counted {
			a.counters[name] = counts
		}
		return monitor
	}
	return job
}

// broken is a monitor that cannot be: it says why, and counts as dead.
type broken struct{ err error }

// Run is that of a monitor.
func (b broken) Run(context.Context, supervise.Reporter) error { return b.err }

// retire keeps the counts of a monitor that is no more: a counter never goes back.
func (a *agent) retire(name string) {
	if counts := a.counters[name]; counts != nil {
		add(a.retired, counts.Problems())
	}
	delete(a.counters, name)
}

func add(to, more map[string]uint64) {
	for reason, n := range more {
		to[reason] += n
	}
}

// problems returns how often each problem was found, by reason.
func (a *agent) problems() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := maps.Clone(a.retired)
	for _, counts := range a.counters {
		add(sum, counts.Problems())
	}
	return sum
}

// causes returns the conditions that become metrics, each with the reasons that its
// rules have. Those of a daemon that reports have none: it has its own words.
func (a *agent) causes() map[string][]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string][]string{}
	for _, t := range a.runs {
		for condition, reasons := range t.causes {
			if t.counted {
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
