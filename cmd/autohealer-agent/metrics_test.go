package main

import (
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// shippedStats are the shipped files of machine metrics.
const shippedStats = "../../config/system-stats-monitor.json,../../config/net-cgroup-system-stats-monitor.json"

func TestScrapeHasTheMetricsOfShippedFiles(t *testing.T) {
	s := newScene(t)
	p := start(t, append(s.args(), "--config.system-stats-monitor="+shippedStats)...)
	p.waitFor("the last of the metrics", func() bool {
		return p.metric(`net_tx_bytes{interface_name="lo"}`) != "none" && p.metric("cpu_load_1m") != "none"
	})
	for _, metric := range []string{
		"cpu_load_15m", "system_processes_total", `cpu_usage_time{state="user"}`,
		`memory_bytes_used{state="used"}`, "memory_unevictable_used", `net_rx_packets{interface_name="lo"}`,
	} {
		got, err := strconv.ParseFloat(p.metric(metric), 64)
		testkit.Check(t, err == nil && got >= 0, "%s is %s", metric, p.metric(metric))
	}
	_, scrape := get(t, p.metricsURL+"/metrics")
	for _, family := range []string{"host_uptime{", "system_os_feature{", "disk_io_time{", "problem_counter{"} {
		testkit.Contains(t, scrape, "\n"+family, "the metric %s}", family)
	}
	for _, file := range strings.Split(shippedStats, ",") {
		testkit.Same(t, p.metric(`autohealer_agent_monitor_up{monitor="system-stats-monitor:`+file+`"}`), "1", "monitor_up of %s", file)
	}
	testkit.Same(t, p.logged("level=WARN", "metrics of the machine"), 0, "warnings about machine metrics")
	lint(t, p)
	p.stop()
}

func TestDuplicateMetricsAreLoggedAndServedOnce(t *testing.T) {
	s, folder := newScene(t), t.TempDir()
	first, second := filepath.Join(folder, "a.json"), filepath.Join(folder, "b.json")
	load := func(id string) string { return `{"cpu": {"metricsConfigs": {"` + id + `": {"displayName": "load"}}}}` }
	put(t, first, load("cpu/load_1m"))
	put(t, second, load("cpu/load_5m"))
	p := start(t, append(s.args(), "--config.system-stats-monitor="+second+","+first)...)
	const words = "several files have the same metrics"
	p.waitFor("the warning", func() bool { return p.logged(words, "[load]") == 1 })
	p.waitFor("the metric", func() bool { return p.metric("load") != "none" })
	if _, scrape := get(t, p.metricsURL+"/metrics"); strings.Count(scrape, "\nload ") != 1 || !strings.Contains(scrape, "over the last minute") {
		t.Errorf("want only the metric of the first file:\n%s", scrape)
	}
	put(t, s.config, kernelMonitor(s.log.path, `"skipList": ["x"],`))
	p.waitFor("that another file has changed", func() bool { return p.logged("a monitor is replaced", s.config) == 1 })
	testkit.Same(t, p.logged(words), 1, "log lines of the warning")
	put(t, second, strings.Replace(load("cpu/load_5m"), `"load"`, `"load5"`, 1))
	p.waitFor("the second as well", func() bool { return p.metric("load5") != "none" })
	put(t, second, load("cpu/load_15m"))
	p.waitFor("the second warning", func() bool { return p.logged(words) == 2 })
}

func TestValidateExplainsErrorsOfMachineMetrics(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stats.json")
	said := func() (string, error) {
		var out strings.Builder
		err := command(t.Context(), []string{"--validate", "--config.system-stats-monitor=" + file}, none, &out, io.Discard)
		return out.String(), err
	}
	put(t, file, `{"cpu": {"metricsConfigs": {"cpu/load_1m": {"displayName": "problem_gauge"}, "cpu/load_5m": {"displayName": "problem_counter"}}}}`)
	if text, err := said(); err == nil || strings.Count(text, file+": cpu.metricsConfigs[") != 2 {
		t.Errorf("for a metric of the agent (%v):\n%s", err, text)
	}
	put(t, file, `{"cpu": {"metricsConfigs": {"cpu/load_1m": {"displayName": "load"}, "cpu/lode_1m": {"displayName": "lode"}}}}`)
	if text, err := said(); err != nil || !strings.Contains(text, ": 1 metric\n") || !strings.Contains(text, `  warning: cpu.metricsConfigs["cpu/lode_1m"]: there is no such metric`) {
		t.Errorf("for an unknown metric (%v):\n%s", err, text)
	}
}
