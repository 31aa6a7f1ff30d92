package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// panel shows one metric.
type panel struct {
	title  string
	metric string
	of     metricType
	by     string // labels that are shown, separated by commas
	where  string // selector of labels
	unit   string // of Grafana
	about  string
}

// metricType decides how the series of several replicas or nodes become one.
type metricType int

const (
	value     metricType = iota // a gauge of the leader: replicas that do not lead have none, or 0
	count                       // a gauge of each agent: how many agents have it
	missing                     // a gauge of each agent that should be 1: how many agents have 0
	rate                        // a counter
	quantiles                   // a histogram
)

// dashboardRows are the panels by what a reader wants to know.
var dashboardRows = []struct {
	title  string
	panels []panel
}{
	{"Is Autohealer well?", []panel{
		{title: "Leaders", metric: "autohealer_leading", about: "1 is normal. 0 means that no node is treated."},
		{title: "Policies in force", metric: "autohealer_policy_ready", by: "policy_kind,policy", about: "0: the newest version is invalid, held or cannot be read."},
		{title: "Agents", metric: "autohealer_agents", by: "state", about: "Conditions of the nodes of silent agents are Unknown."},
		{title: "Webhook certificate is trusted", metric: "autohealer_webhook_certificate_trusted", about: "0: the API server refuses all changes of policies."},
	}},
	{"What do the policies do?", []panel{
		{title: "Nodes by policy and state", metric: "autohealer_policy_nodes", where: `state!="Healthy"`, by: "policy_kind,policy,state", about: "The states are the reasons in the status of the policy."},
		{title: "Taints placed", metric: "autohealer_taints_placed_total", of: rate, by: "policy,effect"},
		{title: "Taints removed", metric: "autohealer_taints_removed_total", of: rate, by: "policy,effect"},
		{title: "Remediations ended", metric: "autohealer_remediations_total", of: rate, by: "policy,outcome"},
		{title: "Repairs", metric: "autohealer_repairs_total", of: rate, by: "policy,nodepool,condition,mode,outcome"},
		{title: "From due to stored", metric: "autohealer_policy_start_duration_seconds", of: quantiles, unit: "s", about: "The time in which a taint, a remediation or a repair that nothing holds is stored."},
		{title: "Time to recover", metric: "autohealer_remediation_recovery_duration_seconds", of: quantiles, unit: "s", about: "From the start of a remediation until the node is healthy."},
	}},
	{"What holds treatments?", []panel{
		{title: "Used by Guardrails limit", metric: "autohealer_guardrail_used", by: "rail,domain"},
		{title: "Guardrails limit", metric: "autohealer_guardrail_limit", by: "rail,domain"},
		{title: "Held by Guardrails limit", metric: "autohealer_guardrail_held", by: "rail,domain"},
		{title: "Held NodePools", metric: "autohealer_nodepool_held", by: "nodepool", about: "1: several new nodes in a row did not become ready."},
		{title: "Policies that leave nodes to medik8s", metric: "autohealer_nodehealthcheck_deferring"},
	}},
	{"How does the controller work?", []panel{
		{title: "Writes", metric: "autohealer_writes_total", of: rate, by: "resource,outcome"},
		{title: "Writes that wait", metric: "autohealer_writes_waiting"},
		{title: "Events", metric: "autohealer_events_total", of: rate, by: "outcome"},
		{title: "Answers of the webhook", metric: "autohealer_admission_duration_seconds", of: quantiles, unit: "s"},
		{title: "Memory", metric: "process_resident_memory_bytes", where: `job=~".*autohealer.*"`, by: "pod,instance", unit: "bytes"},
	}},
	{"What do the agents find?", []panel{
		{title: "Nodes with a problem", metric: "problem_gauge", of: count, by: "type,reason"},
		{title: "Problems found", metric: "problem_counter", of: rate, by: "reason"},
		{title: "Agents with an invalid file", metric: "autohealer_agent_config_valid", of: missing, by: "file"},
		{title: "Agents with a failed monitor", metric: "autohealer_agent_monitor_up", of: missing, by: "monitor"},
		{title: "Log lines read", metric: "autohealer_agent_lines_total", of: rate, by: "monitor"},
		{title: "Log records lost", metric: "autohealer_agent_lost_records_total", of: rate, by: "monitor"},
	}},
}

// query is an expression of PromQL with its legend.
type query struct{ expression, legend string }

func (p panel) queries() []query {
	grouped := func(function, inner string) string {
		if p.by == "" {
			return function + "(" + inner + ")"
		}
		return function + " by (" + strings.ReplaceAll(p.by, ",", ", ") + ") (" + inner + ")"
	}
	series := p.metric
	if p.where != "" {
		series += "{" + p.where + "}"
	}
	var parts []string
	for label := range strings.SplitSeq(p.by, ",") {
		if label != "" {
			parts = append(parts, "{{"+label+"}}")
		}
	}
	legend := strings.Join(parts, " ")
	switch p.of {
	case count:
		return []query{{grouped("sum", series) + " > 0", legend}}
	case missing:
		return []query{{grouped("count", series+" == 0"), legend}}
	case rate:
		return []query{{grouped("sum", "rate("+series+"[$__rate_interval])"), legend}}
	case quantiles:
		buckets := "sum by (le) (rate(" + p.metric + "_bucket[$__rate_interval]))"
		return []query{{"histogram_quantile(0.5, " + buckets + ")", "median"}, {"histogram_quantile(0.99, " + buckets + ")", "99%"}}
	default:
		return []query{{grouped("max", series), legend}}
	}
}

// writeDashboard makes the dashboard for Grafana.
func writeDashboard(folder string) error {
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	const width, height = 8, 7
	y := 0
	for _, row := range dashboardRows {
		panels = append(panels, object{"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": false, "panels": []object{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		for i, p := range row.panels {
			var targets []object
			for _, q := range p.queries() {
				targets = append(targets, object{"refId": string(rune('A' + len(targets))), "datasource": source, "expr": q.expression, "legendFormat": q.legend})
			}
			unit := p.unit
			if unit == "" {
				unit = "short"
			}
			panels = append(panels, object{
				"id": len(panels) + 1, "type": "timeseries", "title": p.title, "description": p.about, "datasource": source, "targets": targets,
				"fieldConfig": object{"defaults": object{"unit": unit, "min": 0}, "overrides": []object{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}},
				"gridPos":     object{"x": i % 3 * width, "y": y + i/3*height, "w": width, "h": height},
			})
		}
		y += (len(row.panels) + 2) / 3 * height
	}
	dashboard, err := json.MarshalIndent(object{
		"uid": "autohealer", "title": "Autohealer", "tags": []string{"autohealer", "kubernetes"}, "schemaVersion": 39, "editable": true,
		"refresh": "1m", "time": object{"from": "now-6h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "chart", "files", "dashboard.json"), append(dashboard, '\n'), 0o644)
}
