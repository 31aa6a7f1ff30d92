package main

import (
	"slices"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/stats"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// metrics returns all figures as they are now. The first two are those of
// node-problem-detector.
func (a *agent) metrics() []*metrictext.Family {
	problems := &metrictext.Family{Name: "problem_counter", Kind: metrictext.Counter, Labels: []string{"reason"},
		Help: "How often a problem was found."}
	for reason, n := range a.problems() {
		problems.Add(float64(n), reason)
	}
	standing := &metrictext.Family{Name: "problem_gauge", Kind: metrictext.Gauge, Labels: []string{"type", "reason"},
		Help: "Whether a condition stands, for a reason."}
	why := map[string]string{}
	for _, c := range a.chart.Conditions() {
		if c.Status == catalog.True {
			why[c.Type] = c.Reason
		}
	}
	for kind, reasons := range a.causes() {
		// What stands for a reason that no rule has is that of somebody who reports. As
		// long as nothing stands such a condition has none.
		if stands := why[kind]; !slices.Contains(reasons, stands) && (stands != "" || len(reasons) == 0) {
			reasons = append(reasons, stands)
		}
		slices.Sort(reasons)
		for _, reason := range slices.Compact(reasons) {
			standing.Add(number(reason != "" && why[kind] == reason), kind, reason)
		}
	}
	info := &metrictext.Family{Name: "autohealer_agent_build_info", Kind: metrictext.Gauge, Labels: []string{"version"},
		Help: "Which version of the agent this is."}
	info.Add(1, version)
	kept := &metrictext.Family{Name: "autohealer_agent_state_kept", Kind: metrictext.Gauge,
		Help: "Whether what is known outlives a restart: the last write of the state folder went well, and the folder is not one of the container itself."}
	kept.Add(number(a.memory.Err() == nil))
	unknown := &metrictext.Family{Name: "autohealer_agent_unknown_stored", Kind: metrictext.Gauge,
		Help: "Fields of the state that a newer agent has stored and this one does not know. They are kept as they are."}
	unknown.Add(float64(a.memory.CountUnknown() + a.unknownAgreed.Len()))
	return slices.Concat([]*metrictext.Family{problems, standing, info, kept, unknown}, a.fileMetrics(), a.monitorMetrics(), a.sourceMetrics(), a.reportMetrics(), a.machineMetrics())
}

func (a *agent) fileMetrics() []*metrictext.Family {
	valid := &metrictext.Family{Name: "autohealer_agent_config_valid", Kind: metrictext.Gauge, Labels: []string{"file"},
		Help: "Whether what stands in a configuration file is in force; if not, the last good version is, if there is one."}
	waiting := &metrictext.Family{Name: "autohealer_agent_config_waiting", Kind: metrictext.Gauge, Labels: []string{"file"},
		Help: "Whether a configuration file waits until the labels of the node are known."}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.settings {
		s := &a.settings[i]
		valid.Add(number(s.Err == nil), s.Path)
		waiting.Add(number(slices.Contains(a.waiting, s.Path)), s.Path)
	}
	return []*metrictext.Family{valid, waiting}
}

func (a *agent) monitorMetrics() []*metrictext.Family {
	family := func(name, kind, help string) *metrictext.Family {
		return &metrictext.Family{Name: "autohealer_agent_" + name, Kind: kind, Labels: []string{"monitor"}, Help: help}
	}
	up := family("monitor_up", metrictext.Gauge, "Whether a monitor looks, or would if there were anything to look at.")
	waits := family("monitor_waiting", metrictext.Gauge, "Whether a monitor waits for a log that is not there.")
	lines := family("lines_total", metrictext.Counter, "Lines or records that were read.")
	unstamped := family("unstamped_lines_total", metrictext.Counter, "Lines of interest that had no stamp in the format of their log, and did not count.")
	lost := family("lost_records_total", metrictext.Counter, "Records that were overwritten before they could be read.")
	cut := family("cut_lines_total", metrictext.Counter, "Lines that were too long to be read in full.")
	gaps := family("log_gaps_total", metrictext.Counter, "Times that an unknown number of lines was lost: a file was truncated without a copy, or disappeared before it was read.")
	for _, h := range a.supervisor.Health() {
		up.Add(number(h.Dead == ""), h.Monitor)
		waits.Add(number(h.Waits != ""), h.Monitor)
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
		Help: "Monitors that were to end, and still hang."}
	abandoned.Add(float64(a.supervisor.Abandoned()))
	programs := &metrictext.Family{Name: "autohealer_agent_abandoned_programs", Kind: metrictext.Gauge,
		Help: "Programs that were to end, and have not, or have left something behind that has not."}
	programs.Add(float64(a.children.Abandoned()))
	return []*metrictext.Family{up, waits, lines, unstamped, lost, cut, gaps, abandoned, programs}
}

// machineMetrics returns the figures that files ask for of the machine.
func (a *agent) machineMetrics() []*metrictext.Family {
	var monitors []*stats.Monitor
	a.supervisor.Each(func(_ string, m supervise.Monitor) {
		if monitor, ok := m.(*stats.Monitor); ok {
			monitors = append(monitors, monitor)
		}
	})
	return stats.Families(monitors...)
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
