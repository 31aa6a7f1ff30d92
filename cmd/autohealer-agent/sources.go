package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
)

// sourceName is the name of a daemon that reports, beside those of monitors.
func sourceName(source string) string { return "problem-source:" + source }

// sources is what a file says of the daemons that may report.
func sources(p *config.ProblemSources) intake.Setup {
	setup := intake.Setup{Socket: p.Socket, TCP: p.TCP}
	for _, source := range p.Sources {
		setup.Sources = append(setup.Sources, intake.Source(source))
	}
	return setup
}

// judgeSources says what is wrong with them as a whole, with the path of their file, and
// warns of what lets one speak for another.
func judgeSources(path string, p *config.ProblemSources) (warnings []string, err error) {
	setup := sources(p)
	if err := setup.Validate(); err != nil {
		return nil, prefixed(path, err)
	}
	for _, warning := range setup.Exposed(check.RepairsFolder) {
		warnings = append(warnings, path+": "+warning)
	}
	return warnings, nil
}

// withRest adds to what is wrong with single fields of a file what is wrong with the
// sources as a whole, except where that follows from the former.
func withRest(path string, wrong error, draft *config.ProblemSources) error {
	if draft == nil {
		return wrong
	}
	rest := sources(draft).Validate()
	if rest == nil {
		return wrong
	}
	lines := strings.Split(wrong.Error(), "\n")
	for line := range strings.SplitSeq(rest.Error(), "\n") {
		field, _, _ := strings.Cut(line, ":")
		follows := func(l string) bool { return strings.HasPrefix(l, path+": "+field) }
		if !slices.ContainsFunc(lines, follows) {
			lines = append(lines, path+": "+line)
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// bothKeep says which conditions a daemon keeps that monitors keep as well, by their names:
// that may be meant, and a condition is then as bad as the worst of them says.
func bothKeep(setup intake.Setup, monitors map[string][]config.Condition) []string {
	var both []string
	for i := range setup.Sources {
		source := &setup.Sources[i]
		for _, kind := range source.Conditions {
			for _, monitor := range slices.Sorted(maps.Keys(monitors)) {
				if slices.ContainsFunc(monitors[monitor], func(c config.Condition) bool { return c.Type == kind }) {
					both = append(both, fmt.Sprintf("%s is kept by %s and by %s: it is as bad as the worse of them says, and Unknown while %s is silent", kind, source.Name, monitor, source.Name))
				}
			}
		}
	}
	return both
}

// conditionsOf are those of the monitor that a file is for.
func conditionsOf(f *config.File) []config.Condition {
	switch {
	case f.Log != nil:
		return f.Log.Conditions
	case f.Plugin != nil:
		return f.Plugin.Conditions
	case f.Check != nil:
		return f.Check.Conditions
	}
	return nil
}

// hear listens to these daemons and to no others. It waits for those who report to have
// been heard, and they for whoever holds what found takes: nothing of that is held here.
func (a *agent) hear(setup intake.Setup) {
	if err := a.intake.Apply(setup); err != nil { // which whoever has judged the file should have seen
		a.log.Error("who may report stays as it was", "err", err)
	}
}

// heard takes what a daemon has reported.
func (a *agent) heard(source string, r finding.Report) { a.found(sourceName(source), r) }

// drawer is where the memory keeps what daemons have told.
type drawer struct{ memory *statefile.Store }

// Recall returns what was kept last.
func (d drawer) Recall(source string) json.RawMessage {
	entry, _ := d.memory.Monitor(sourceName(source))
	return entry.State
}

// Keep keeps something.
func (d drawer) Keep(source string, state json.RawMessage, unknown int, urgent bool) {
	d.memory.Keep(sourceName(source), statefile.Entry{State: state, UnknownInside: unknown}, urgent)
}

// sourceMetrics are the figures of what was reported.
func (a *agent) sourceMetrics() []*metrictext.Family {
	family := func(name, kind, help string, labels ...string) *metrictext.Family {
		return &metrictext.Family{Name: "autohealer_agent_" + name, Kind: kind, Labels: labels, Help: help}
	}
	reports := family("problem_reports_total", metrictext.Counter, "Problem reports of a source, by the HTTP status of the answer.", "source", "code")
	slowed := family("problem_reports_slowed_total", metrictext.Counter, "Problem reports that were answered late because their source sends too much.", "source")
	events := family("problem_report_events_total", metrictext.Counter, "Events that a source has reported, each counted once.", "source")
	silent := family("problem_source_silent", metrictext.Gauge, "Whether a source has said nothing for too long.", "source")
	strangers := family("problem_reports_strangers_total", metrictext.Counter, "Problem reports of somebody who is not known.")
	counts, unknown := a.intake.Counts()
	for _, of := range counts {
		reports.Add(float64(of.Accepted), of.Source, "204")
		for code, n := range of.Refused {
			reports.Add(float64(n), of.Source, strconv.Itoa(code))
		}
		slowed.Add(float64(of.Slowed), of.Source)
		events.Add(float64(of.Events), of.Source)
		silent.Add(number(of.Silent), of.Source)
	}
	if len(counts) > 0 || unknown > 0 {
		strangers.Add(float64(unknown))
	}
	return []*metrictext.Family{reports, slowed, events, silent, strangers}
}
