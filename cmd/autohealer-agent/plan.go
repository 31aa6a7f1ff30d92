package main

import (
	"maps"
	"slices"

	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// plan is what the files require on this node.
type plan struct {
	tasks             map[string]task // by name of the job
	jobs              []supervise.Job
	sources           intake.Setup
	waitingConditions []string // conditions of files that wait for labels
}

// names returns the names of all monitors and sources with stored state.
func (p plan) names() []string {
	names := slices.Collect(maps.Keys(p.tasks))
	for i := range p.sources.Sources {
		names = append(names, sourceName(p.sources.Sources[i].Name))
	}
	return names
}

// duplicateMetrics returns the metrics of more than one file, sorted.
func (p plan) duplicateMetrics() []string {
	var all, twice []string
	for _, t := range p.tasks {
		all = append(all, t.metrics...)
	}
	slices.Sort(all)
	for i, metric := range all {
		if i > 0 && metric == all[i-1] {
			twice = append(twice, metric)
		}
	}
	return slices.Compact(twice)
}

// plan returns the plan, and records which files wait for the labels of the node.
func (a *agent) plan() plan {
	p := plan{tasks: map[string]task{}}
	var waiting []string
	selected := false
	for i := range a.settings {
		s := &a.settings[i]
		if s.File == nil {
			continue
		}
		selects := !s.File.Nodes.Empty()
		selected = selected || selects
		a.warnings.logFile(s)
		switch {
		case selects && a.labels == nil:
			waiting = append(waiting, s.Path)
			if t, ok := a.factory.task(s); ok {
				p.waitingConditions = append(p.waitingConditions, t.conditionTypes()...)
			}
		case selects && !s.File.ForNode(a.labels):
		default:
			a.addToPlan(&p, s)
		}
	}
	if !slices.Equal(waiting, a.pending.files) && len(waiting) > 0 {
		a.log.Warn("configuration files wait until the labels of the node are known", "files", waiting)
	}
	a.pending.files = waiting
	a.warnings.logDuplicateMetrics(p)
	if selected {
		a.readNode()
	}
	return p
}

// addToPlan adds a file to the plan.
func (a *agent) addToPlan(p *plan, s *settings.Setting) {
	if s.File.Problems != nil {
		p.sources = sources(s.File.Problems)
		return
	}
	if t, ok := a.factory.task(s); ok {
		p.tasks[s.String()] = t
		p.jobs = append(p.jobs, a.job(s, t))
	}
}
