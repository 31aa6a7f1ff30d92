package stats

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/config"
)

// metricName converts a display name to a metric name of letters, digits and underscores. It
// follows the library that node-problem-detector uses.
func metricName(displayed string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, displayed)
	switch {
	case name == "":
		return ""
	case name[0] >= '0' && name[0] <= '9':
		return "key_" + name
	case name[0] == '_':
		return "key" + name
	}
	return name
}

// isAgentMetric returns whether the name belongs to another metric of the agent.
func isAgentMetric(name string) bool {
	return name == "problem_counter" || name == "problem_gauge" || strings.HasPrefix(name, "autohealer_")
}

// Check returns an error if the metric names of a file are invalid, and warns of unknown IDs, which
// are not exported.
func Check(m config.StatsMonitor) (warnings []string, err error) {
	known := map[string]string{}
	for _, f := range metrics {
		known[f.id] = f.part
	}
	shown := map[string]string{}
	var wrong []error
	for _, part := range slices.Sorted(maps.Keys(m.Metrics)) {
		for _, id := range slices.Sorted(maps.Keys(m.Metrics[part])) {
			at := fmt.Sprintf("%s.metricsConfigs[%q]", part, id)
			name := metricName(m.Metrics[part][id])
			switch {
			case known[id] == "":
				warnings = append(warnings, at+": there is no such metric, and it is not shown; write a metric that docs/reference/machine-metrics.md lists")
			case known[id] != part:
				warnings = append(warnings, fmt.Sprintf("%s: it is a metric of %s, and not shown here; move it there", at, known[id]))
			case isAgentMetric(name):
				wrong = append(wrong, fmt.Errorf("%s.displayName: %s is a metric of the agent; write another name", at, name))
			case shown[name] != "":
				wrong = append(wrong, fmt.Errorf("%s.displayName: %s is shown under that name as well (%s); write another", at, shown[name], name))
			default:
				shown[name] = id
			}
		}
	}
	return warnings, errors.Join(wrong...)
}

// Names returns the sorted metric names of a file.
func Names(m config.StatsMonitor) []string { return slices.Sorted(maps.Values(named(m))) }

// named returns the metric names by ID.
func named(m config.StatsMonitor) map[string]string {
	names := map[string]string{}
	for _, f := range metrics {
		if name := metricName(m.Metrics[f.part][f.id]); name != "" {
			names[f.id] = name
		}
	}
	return names
}
