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

// sourceName returns the name of a reporting daemon among the names of monitors.
func sourceName(source string) string { return "problem-source:" + source }

// sources returns the daemons that a file allows to report.
func sources(p *config.ProblemSources) intake.Setup {
	setup := intake.Setup{Socket: p.Socket, TCP: p.TCP}
	for _, source := range p.Sources {
		setup.Sources = append(setup.Sources, intake.Source(source))
	}
	return setup
}

// checkSources validates the sources of a file as a whole. It warns of configurations in
// which one source could report for another.
func checkSources(path string, p *config.ProblemSources) (warnings []string, err error) {
	setup := sources(p)
	if err := setup.Validate(); err != nil {
		return nil, prefixLines(path, err)
	}
	for _, warning := range setup.Exposed(check.RepairsFolder) {
		warnings = append(warnings, path+": "+warning)
	}
	return warnings, nil
}

// addSourceErrors adds errors about the sources as a whole to errors about single fields,
// unless the former follow from the latter.
func addSourceErrors(path string, wrong error, draft *config.ProblemSources) error {
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

// sharedConditions returns warnings about conditions of several files: those that both a daemon
// and a monitor report, and those whose healthy status differs. The former may be intended; the
// condition then has the worst status of them.
func sharedConditions(setup intake.Setup, monitors map[string][]config.Condition) []string {
	var found []string
	healthy := map[string]config.Condition{} // the first declaration of a type
	declare := func(c config.Condition) {
		if first, ok := healthy[c.Type]; ok && first.Healthy != c.Healthy {
			found = append(found, fmt.Sprintf("%s is %s on a healthy node in one file and %s in another; write the same healthyStatus in both", c.Type, first.Healthy, c.Healthy))
			return
		}
		healthy[c.Type] = c
	}
	names := slices.Sorted(maps.Keys(monitors))
	for _, monitor := range names {
		for _, c := range monitors[monitor] {
			declare(c)
		}
	}
	for i := range setup.Sources {
		source := &setup.Sources[i]
		for _, kind := range source.Conditions {
			for _, c := range source.Declared {
				if c.Type == kind {
					declare(config.Condition{Type: kind, Healthy: c.Healthy})
				}
			}
			for _, monitor := range names {
				if slices.ContainsFunc(monitors[monitor], func(c config.Condition) bool { return c.Type == kind }) {
					found = append(found, fmt.Sprintf("%s is kept by %s and by %s: it is as bad as the worse of them says, and Unknown while %s is silent", kind, source.Name, monitor, source.Name))
				}
			}
		}
	}
	return found
}

// conditionsOf returns the conditions of a file's monitor.
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

// applySources accepts reports of these daemons and of no others. It waits for running
// reports, which take the locks of handleReport, so the caller must not hold them.
func (a *agent) applySources(setup intake.Setup) {
	if err := a.intake.Apply(setup); err != nil { // checkFile should have refused the file
		a.log.Error("applying problem sources failed; the previous sources stay", "err", err)
	}
}

// handleSourceReport takes the findings of a daemon.
func (a *agent) handleSourceReport(source string, r finding.Report) {
	a.problems.count(r)
	a.handleReport(sourceName(source), r)
}

// sourceState stores the state of reporting daemons in the state file.
type sourceState struct{ store *statefile.Store }

// Recall returns the stored state of a source.
func (d sourceState) Recall(source string) json.RawMessage {
	entry, _ := d.store.Monitor(sourceName(source))
	return entry.State
}

// Keep stores the state of a source.
func (d sourceState) Keep(source string, state json.RawMessage, unknown int, urgent bool) {
	d.store.Keep(sourceName(source), statefile.Entry{State: state, UnknownInside: unknown}, urgent)
}

// sourceMetrics returns the metrics of problem reports.
func (a *agent) sourceMetrics() []*metrictext.Family {
	family := func(name, kind, help string, labels ...string) *metrictext.Family {
		return &metrictext.Family{Name: "autohealer_agent_" + name, Kind: kind, Labels: labels, Help: help}
	}
	reports := family("problem_reports_total", metrictext.Counter, "Problem reports of a source, by HTTP status of the response.", "source", "code")
	slowed := family("problem_reports_slowed_total", metrictext.Counter, "Problem reports that were delayed because their source sends too much.", "source")
	events := family("problem_report_events_total", metrictext.Counter, "Events that a source reported, each counted once.", "source")
	silent := family("problem_source_silent", metrictext.Gauge, "Whether a source has been silent for too long.", "source")
	unauthenticated := family("problem_reports_unauthenticated_total", metrictext.Counter, "Problem reports of unknown clients.")
	counts, unknown := a.intake.Counts()
	for _, of := range counts {
		reports.Add(float64(of.Accepted), of.Source, "204")
		for code, n := range of.Refused {
			reports.Add(float64(n), of.Source, strconv.Itoa(code))
		}
		slowed.Add(float64(of.Slowed), of.Source)
		events.Add(float64(of.Events), of.Source)
		silent.Add(boolValue(of.Silent), of.Source)
	}
	if len(counts) > 0 || unknown > 0 {
		unauthenticated.Add(float64(unknown))
	}
	return []*metrictext.Family{reports, slowed, events, silent, unauthenticated}
}
