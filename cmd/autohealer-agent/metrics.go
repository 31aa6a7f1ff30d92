package main

import (
	"slices"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/stats"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// metrics returns all current metrics. The first two have the names of
// node-problem-detector.
func (a *agent) metrics() []*metrictext.Family {
	problems := &metrictext.Family{Name: "problem_counter", Kind: metrictext.Counter, Labels: []string{"reason"},
		Help: "Number of problems found."}
	for reason, n := range a.problems.sum() {
		problems.Add(float64(n), reason)
	}
	conditionGauge := &metrictext.Family{Name: "problem_gauge", Kind: metrictext.Gauge, Labels: []string{"type", "reason"},
		Help: "Whether the node has the problem of a condition, by reason."}
	why := map[string]string{}
	for _, c := range a.reports.aggregate.Conditions() {
		if c.Status == catalog.True {
			why[c.Type] = c.Reason
		}
	}
	for kind, reasons := range a.conditionReasons() {
		// A reason that no rule has comes from a reporting daemon. While the condition of a
		// daemon is not True, it has no reason.
		if current := why[kind]; !slices.Contains(reasons, current) && (current != "" || len(reasons) == 0) {
			reasons = append(reasons, current)
		}
		slices.Sort(reasons)
		for _, reason := range slices.Compact(reasons) {
			conditionGauge.Add(boolValue(reason != "" && why[kind] == reason), kind, reason)
		}
	}
	info := &metrictext.Family{Name: "autohealer_build_info", Kind: metrictext.Gauge, Labels: []string{"version"},
		Help: "Version of the program."}
	info.Add(1, version)
	kept := &metrictext.Family{Name: "autohealer_agent_state_kept", Kind: metrictext.Gauge,
		Help: "Whether the state survives a restart: the last write to the state directory succeeded, and the directory is not part of the container."}
	kept.Add(boolValue(a.state.Err() == nil))
	unknown := &metrictext.Family{Name: "autohealer_agent_unknown_stored", Kind: metrictext.Gauge,
		Help: "Unknown fields of the state that a newer agent stored. They are kept unchanged."}
	unknown.Add(float64(a.state.CountUnknown() + a.reports.unknownFields.Len()))
	return slices.Concat([]*metrictext.Family{problems, conditionGauge, info, kept, unknown}, a.fileMetrics(), a.monitorMetrics(), a.sourceMetrics(), a.reports.metrics(), a.machineMetrics())
}

func (a *agent) fileMetrics() []*metrictext.Family {
	valid := &metrictext.Family{Name: "autohealer_agent_config_valid", Kind: metrictext.Gauge, Labels: []string{"file"},
		Help: "Whether the current version of a configuration file is in force. If not, the last good version is, if there is one."}
	waiting := &metrictext.Family{Name: "autohealer_agent_config_waiting", Kind: metrictext.Gauge, Labels: []string{"file"},
		Help: "Whether a configuration file waits for the labels of the node."}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.settings {
		s := &a.settings[i]
		valid.Add(boolValue(s.Err == nil), s.Path)
		waiting.Add(boolValue(slices.Contains(a.pending.files, s.Path)), s.Path)
	}
	return []*metrictext.Family{valid, waiting}
}

func (a *agent) monitorMetrics() []*metrictext.Family {
	family := func(name, kind, help string) *metrictext.Family {
		return &metrictext.Family{Name: "autohealer_agent_" + name, Kind: kind, Labels: []string{"monitor"}, Help: help}
	}
	up := family("monitor_up", metrictext.Gauge, "Whether a monitor works, or waits for its log.")
	waits := family("monitor_waiting", metrictext.Gauge, "Whether a monitor waits for a missing log.")
	lines := family("lines_total", metrictext.Counter, "Lines or records read.")
	unstamped := family("unstamped_lines_total", metrictext.Counter, "Matching lines without a timestamp in the format of the log, which were ignored.")
	lost := family("lost_records_total", metrictext.Counter, "Records that were overwritten before they could be read.")
	cut := family("cut_lines_total", metrictext.Counter, "Lines that were too long and were cut.")
	gaps := family("log_gaps_total", metrictext.Counter, "Number of gaps with an unknown number of lost lines: a file was truncated without a copy, or disappeared before it was read.")
	for _, h := range a.supervisor.Health() {
		up.Add(boolValue(h.Dead == ""), h.Monitor)
		waits.Add(boolValue(h.Waits != ""), h.Monitor)
	}
	a.supervisor.Each(func(name string, m supervise.Monitor) {
		watch, ok := m.(*logwatch.Watch)
		if !ok {
			return
		}
		counts := watch.Counts()
		lines.Add(float64(counts.Lines), name)
		unstamped.Add(float64(counts.Unstamped), name)
		lost.Add(float64(counts.Lost), name)
		cut.Add(float64(counts.Cut), name)
		gaps.Add(float64(counts.Gaps), name)
	})
	abandoned := &metrictext.Family{Name: "autohealer_agent_abandoned_monitors", Kind: metrictext.Gauge,
		Help: "Stopped monitors that still hang."}
	abandoned.Add(float64(a.supervisor.Abandoned()))
	programs := &metrictext.Family{Name: "autohealer_agent_abandoned_programs", Kind: metrictext.Gauge,
		Help: "Killed programs that still run, or whose children do."}
	programs.Add(float64(a.factory.children.Abandoned()))
	return []*metrictext.Family{up, waits, lines, unstamped, lost, cut, gaps, abandoned, programs}
}

// machineMetrics returns the metrics of the machine that files ask for.
func (a *agent) machineMetrics() []*metrictext.Family {
	var monitors []*stats.Monitor
	a.supervisor.Each(func(_ string, m supervise.Monitor) {
		if monitor, ok := m.(*stats.Monitor); ok {
			monitors = append(monitors, monitor)
		}
	})
	return stats.Families(monitors...)
}

func boolValue(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
