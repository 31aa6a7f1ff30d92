package main

import (
	"maps"
	"slices"

	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// plan is what the files ask for on this node.
type plan struct {
	tasks   map[string]task // by the name of their job
	jobs    []supervise.Job
	sources intake.Setup
	waiting []string // conditions of files that wait for the labels of the node
}

// names are those of all whose state is remembered.
func (p plan) names() []string {
	names := slices.Collect(maps.Keys(p.tasks))
	for i := range p.sources.Sources {
		names = append(names, sourceName(p.sources.Sources[i].Name))
	}
	return names
}

// shownTwice are the metrics that more than one file shows, sorted.
func (p plan) shownTwice() []string {
	var all, twice []string
	for _, t := range p.tasks {
		all = append(all, t.figures...)
	}
	slices.Sort(all)
	for i, metric := range all {
		if i > 0 && metric == all[i-1] {
			twice = append(twice, metric)
		}
	}
	return slices.Compact(twice)
}

// plan makes the plan, and notes which files wait for the labels of the node.
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
		a.note(s)
		switch {
		case selects && a.labels == nil:
			waiting = append(waiting, s.Path)
			if t, ok := a.task(s); ok {
				p.waiting = append(p.waiting, t.kinds()...)
			}
		case selects && !s.File.ForNode(a.labels):
		default:
			a.take(&p, s)
		}
	}
	if !slices.Equal(waiting, a.waiting) && len(waiting) > 0 {
		a.log.Warn("configuration files wait until the labels of the node are known", "files", waiting)
	}
	a.waiting = waiting
	if twice := p.shownTwice(); !slices.Equal(twice, a.shownTwice) {
		if len(twice) > 0 {
			a.log.Warn("several files show the same metrics, which are those of the first by path", "metrics", twice)
		}
		a.shownTwice = twice
	}
	if selected {
		select {
		case a.needLabels <- struct{}{}:
		default:
		}
	}
	return p
}

// take takes a file into the plan.
func (a *agent) take(p *plan, s *settings.Setting) {
	if s.File.Problems != nil {
		p.sources = sources(s.File.Problems)
		return
	}
	if t, ok := a.task(s); ok {
		p.tasks[s.String()] = t
		p.jobs = append(p.jobs, a.job(s, t))
	}
}
