package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const originals = "testdata/node-problem-detector"

// kindOf returns the flag for a file of node-problem-detector.
func kindOf(name string) config.Kind {
	switch {
	case strings.HasSuffix(name, "system-stats-monitor.json"):
		return config.SystemStats
	case strings.HasSuffix(name, "-counter.json"), strings.HasPrefix(name, "health-checker-"):
		return config.CustomPlugin
	}
	switch name {
	case "health-checks.json":
		return config.Check
	case "custom-plugin-monitor.json", "network-problem-monitor.json", "iptables-mode-monitor.json":
		return config.CustomPlugin
	}
	return config.SystemLog
}

// files reads the JSON files of a folder.
func files(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	testkit.Require(t, err == nil && len(paths) != 0, "%s has no files: %v", folder, err)
	texts := map[string][]byte{}
	for _, path := range paths {
		text := testkit.Value(os.ReadFile(path)).Must(t)
		texts[filepath.Base(path)] = text
	}
	return texts
}

func TestEveryOriginalFileIsValid(t *testing.T) {
	seen := map[config.Kind]int{}
	warned := map[string][]string{}
	for name, text := range files(t, originals) {
		kind := kindOf(name)
		file, warnings, err := config.Parse(name, kind, text)
		if err != nil {
			t.Errorf("as %s: %v", kind, err)
			continue
		}
		seen[kind]++
		if len(warnings) > 0 {
			warned[name] = warnings
		}
		testkit.Check(t, file.Path == name && file.Kind == kind && file.ForNode(map[string]string{"a": "b"}) && file.ForNode(nil), "%s became %+v", name, file)
		// With the wrong flag, each error names the right one.
		for _, other := range []config.Kind{config.SystemLog, config.CustomPlugin, config.SystemStats, config.Check} {
			_, _, err := config.Parse(name, other, text)
			testkit.Check(t, other == kind || err != nil && strings.Contains(err.Error(), "name it there") && strings.Contains(err.Error(), string(kind)),
				"%s as %s: %v", name, other, err)
		}
	}
	t.Logf("saw %v", seen)
	testkit.Check(t, len(seen) >= 3, "some kind was not seen: this test does not look at it")
	testkit.NoDiff(t, cmp.Diff(map[string][]string{
		"disk-log-message-filelog.json": {`disk-log-message-filelog.json: rules[0].reason: "DiskBadBlock" is also the reason of a healthy DiskBadBlock, so that they cannot be told apart`},
	}, warned),
		"warnings")
}

func TestOriginalFilesKeepTheirMeaning(t *testing.T) {
	const counter = "/home/kubernetes/bin/log-counter"
	for name, want := range map[string]config.File{
		"disk-log-message-filelog.json": {Log: &config.LogMonitor{
			Plugin: config.Filelog,
			PluginConfig: map[string]string{
				"timestamp": "^.{15}", "timestampFormat": "Jan _2 15:04:05",
				"message": "(?i)Currently unreadable.*sectors|(?i)Offline uncorrectable sectors",
			},
			LogPath: "/var/log/messages", SkipList: []string{" audit:", " audit["}, Lookback: 10 * time.Hour, BufferSize: 1,
			Source: "disk-monitor", Metrics: true,
			Conditions: []config.Condition{{Type: "DiskBadBlock", Reason: "DiskBadBlock", Message: "Disk no bad block", SurvivesReboot: true}},
			Rules: []config.LogRule{{
				Permanent: true, Condition: "DiskBadBlock", Reason: "DiskBadBlock", Count: 1,
				Pattern: `.*([1-9]\d{2,}) (Currently unreadable.*sectors|Offline uncorrectable sectors).*`,
			}},
		}},
		"readonly-monitor.json": {Log: &config.LogMonitor{
			Plugin: config.Kmsg, LogPath: "/dev/kmsg", Lookback: 5 * time.Minute, BufferSize: 10, Source: "readonly-monitor", Metrics: true,
			Conditions: []config.Condition{{Type: "ReadonlyFilesystem", Reason: "FilesystemIsNotReadOnly", Message: "Filesystem is not read-only"}},
			Rules: []config.LogRule{{
				Permanent: true, Condition: "ReadonlyFilesystem", Reason: "FilesystemIsReadOnly", Pattern: "Remounting filesystem read-only", Count: 1,
			}},
		}},
		"custom-plugin-monitor.json": {Plugin: &config.PluginMonitor{
			Source: "ntp-custom-plugin-monitor", Metrics: true, InvokeInterval: 30 * time.Second, Timeout: 5 * time.Second, MaxOutputLength: 80, Concurrency: 3,
			Conditions: []config.Condition{{Type: "NTPProblem", Reason: "NTPIsUp", Message: "ntp service is up"}},
			Rules: []config.PluginRule{
				{Reason: "NTPIsDown", Path: "./config/plugin/check_ntp.sh", Timeout: 3 * time.Second, InvokeInterval: 30 * time.Second},
				{Permanent: true, Condition: "NTPProblem", Reason: "NTPIsDown", Path: "./config/plugin/check_ntp.sh", Timeout: 3 * time.Second, InvokeInterval: 30 * time.Second},
			},
		}},
		"kernel-monitor-counter.json": {Plugin: &config.PluginMonitor{
			Source: "kernel-monitor", Metrics: true, InvokeInterval: 5 * time.Minute, Timeout: time.Minute, MaxOutputLength: 80, Concurrency: 1,
			Conditions: []config.Condition{{Type: "FrequentUnregisterNetDevice", Reason: "NoFrequentUnregisterNetDevice", Message: "node is functioning properly"}},
			Rules: []config.PluginRule{{
				Permanent: true, Condition: "FrequentUnregisterNetDevice", Reason: "UnregisterNetDevice", Path: counter,
				Args: []string{
					"--journald-source=kernel", "--log-path=/var/log/journal", "--lookback=20m", "--count=3",
					`--pattern=unregister_netdevice: waiting for \w+ to become free. Usage count = \d+`,
				},
				Timeout: time.Minute, InvokeInterval: 5 * time.Minute,
			}},
		}},
		"system-stats-monitor.json": {Stats: &config.StatsMonitor{
			InvokeInterval: time.Minute, ProcPath: "/proc", IncludeRootBlk: true, IncludeAllAttachedBlk: true, LsblkTimeout: 5 * time.Second,
			KnownModulesPath: "guestosconfig/known-modules.json",
			Metrics: map[string]map[string]string{
				"cpu": same("cpu/load_15m", "cpu/load_1m", "cpu/load_5m", "cpu/runnable_task_count", "cpu/usage_time", "system/cpu_stat",
					"system/interrupts_total", "system/processes_total", "system/procs_blocked", "system/procs_running"),
				"disk": same("disk/avg_queue_len", "disk/bytes_used", "disk/percent_used", "disk/io_time", "disk/merged_operation_count",
					"disk/operation_bytes_count", "disk/operation_count", "disk/operation_time", "disk/weighted_io"),
				"host":      same("host/uptime"),
				"memory":    same("memory/anonymous_used", "memory/bytes_used", "memory/dirty_used", "memory/page_cache_used", "memory/unevictable_used", "memory/percent_used"),
				"osFeature": same("system/os_feature"),
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := config.Read(filepath.Join(originals, name), kindOf(name))
			testkit.Must(t, err)
			want.Path, want.Kind = filepath.Join(originals, name), kindOf(name)
			testkit.NoDiff(t, cmp.Diff(want, *got, cmpopts.IgnoreFields(config.File{}, "Nodes"), cmpopts.IgnoreFields(config.Condition{}, "Healthy", "Meaning")), "the file")
		})
	}
}

// same returns metrics with their IDs as names.
func same(ids ...string) map[string]string {
	names := map[string]string{}
	for _, id := range ids {
		names[id] = id
	}
	return names
}
