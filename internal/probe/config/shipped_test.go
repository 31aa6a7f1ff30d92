package config_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// shipped is the folder that the agent's image has as /config.
const shipped = "../../../config"

// added are the files without a counterpart in node-problem-detector, or whose counterpart runs a
// second program.
var added = []string{"frequent-restarts.json", "frequent-unregister-netdevice.json", "gpu-monitor.json"}

func load(t *testing.T, folder string) map[string]*config.LogMonitor {
	t.Helper()
	monitors := map[string]*config.LogMonitor{}
	for name, text := range files(t, folder) {
		if kindOf(name) != config.SystemLog {
			continue
		}
		file, _, err := config.Parse(name, config.SystemLog, text)
		testkit.Must(t, err)
		monitors[name] = file.Log
	}
	return monitors
}

func TestShippedFilesHaveNoWarnings(t *testing.T) {
	for name, text := range files(t, shipped) {
		_, warnings, err := config.Parse(name, kindOf(name), text)
		testkit.Check(t, err == nil && len(warnings) == 0, "%v, warnings %q", err, warnings)
	}
}

// For each file of node-problem-detector there is a file with the same name here, which reads the
// same log and reports the same.
func TestShippedFilesReportWhatTheOriginalsDo(t *testing.T) {
	ours, theirs := load(t, shipped), load(t, originals)
	want := slices.Concat(slices.Collect(maps.Keys(theirs)), added)
	testkit.NoDiff(t, cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(maps.Keys(ours))), "files (-theirs +ours)")
	for name, original := range theirs {
		if got := ours[name]; got != nil {
			testkit.NoDiff(t, cmp.Diff(outline(original), outline(got)), "%s (-theirs +ours)", name)
		}
	}
}

// outline returns the parts of a monitor that users rely on.
func outline(m *config.LogMonitor) map[string][]string {
	path := m.LogPath
	if m.Plugin == config.Journald && path == "/var/log/journal" {
		path = "" // ours read that of /run as well
	}
	o := map[string][]string{
		"log":      {m.Plugin, path, m.PluginConfig["source"], m.Lookback.String(), m.Delay.String(), strconv.Itoa(m.BufferSize), strings.Join(m.SkipList, ",")},
		"reported": {m.Source, strconv.FormatBool(m.Metrics)},
	}
	for _, c := range m.Conditions {
		reason := c.Reason
		if reason == "DiskBadBlock" {
			reason = "DiskHasNoBadBlock" // theirs gives the unhealthy and the healthy one the same
		}
		o["healthy"] = append(o["healthy"], c.Type+" "+reason)
	}
	found := map[string]bool{}
	for _, r := range m.Rules {
		if r.Reason == "ContainerdHung" || r.Reason == "KubeletHung" {
			continue // theirs knows Docker only
		}
		found[fmt.Sprintf("%v %s %s", r.Permanent, r.Condition, r.Reason)] = true
	}
	o["found"] = slices.Sorted(maps.Keys(found))
	return o
}

// For the same reason, the patterns here match what those of node-problem-detector match. The texts
// are generated from the latter.
func TestShippedPatternsMatchWhatTheOriginalsDo(t *testing.T) {
	ours := load(t, shipped)
	tried := 0
	for name, original := range load(t, originals) {
		for i, rule := range original.Rules {
			if ours[name] == nil {
				continue
			}
			// Their dots match any letter, although the logs contain a dot.
			pattern := strings.ReplaceAll(rule.Pattern, "free. Usage", `free\. Usage`)
			if name == "systemd-monitor.json" {
				pattern = strings.NewReplacer(".service", `\.service`, ")...", `)\.\.\.`, ").", `)\.`).Replace(pattern)
			}
			t.Run(fmt.Sprintf("%s/rules[%d]", name, i), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					text := rapid.StringMatching(pattern).Draw(rt, "text")
					reasons := find(ours[name], text)
					testkit.Require(rt, slices.Contains(reasons, rule.Reason), "%q is %s for theirs, and %q for ours", text, rule.Reason, reasons)
					tried++
				})
			})
		}
	}
	t.Logf("tried %d texts", tried)
	testkit.Check(t, tried != 0, "nothing was tried")
}

// find tries every rule on a message.
func find(m *config.LogMonitor, message string) []string {
	var reasons []string
	for _, rule := range m.Rules {
		if regexp.MustCompile("(?:" + rule.Pattern + `)\z`).MatchString(message) {
			reasons = append(reasons, rule.Reason)
		}
	}
	return reasons
}

// Lines of current kernels and programs. node-problem-detector's files miss most of them.
func TestShippedFilesMatchCurrentLogs(t *testing.T) {
	ours := load(t, shipped)
	for _, test := range []struct{ file, line, reason string }{
		{"kernel-monitor.json", "Memory cgroup out of memory: Killed process 4242 (java) total-vm:4108876kB, anon-rss:1029384kB, file-rss:20kB, shmem-rss:0kB, UID:1000 pgtables:2400kB oom_score_adj:969", "OOMKilling"},
		{"kernel-monitor.json", "INFO: task kworker/u8:1 (x):77 blocked for more than 120 seconds.", "TaskHung"},
		{"kernel-monitor.json", "INFO: task jbd2/sda1-8:312 blocked in I/O wait for more than 122 seconds.", "TaskHung"},
		{"kernel-monitor.json", "INFO: task dockerd:1201 blocked for more than 120 seconds.", "TaskHung DockerHung"},
		{"kernel-monitor.json", "INFO: task containerd-shim:1202 blocked for more than 120 seconds.", "TaskHung ContainerdHung"},
		{"kernel-monitor.json", "INFO: task kubelet:1203 blocked in I/O wait for more than 120 seconds.", "TaskHung KubeletHung"},
		{"kernel-monitor.json", "INFO: task kubelet-helper:1204 blocked for more than 120 seconds.", "TaskHung"},
		{"kernel-monitor.json", "INFO: task docker:1201 blocked for more than 120 seconds.", "TaskHung DockerHung"},
		{"kernel-monitor.json", "unregister_netdevice: waiting for br-1f2e to become free. Usage count = 2", "UnregisterNetDevice"},
		{"kernel-monitor.json", "BUG: kernel NULL pointer dereference, address: 0000000000000010", "KernelOops"},
		{"kernel-monitor.json", "BUG: unable to handle page fault for address: ffffffffc0a3d000", "KernelOops"},
		{"kernel-monitor.json", "Unable to handle kernel paging request at virtual address ffff800012345678", "KernelOops"},
		{"kernel-monitor.json", "kernel BUG at mm/slub.c:305!", "KernelOops"},
		{"kernel-monitor.json", "Oops: divide error: 0000 [#1] PREEMPT SMP NOPTI", "KernelOops"},
		{"kernel-monitor.json", "XFS (dm-2): Corruption of in-memory data (0x8) detected at xfs_defer_finish (fs/xfs/libxfs/xfs_defer.c:532).  Shutting down filesystem.", "XfsHasShutdown"},
		{"kernel-monitor.json", "{1}[Hardware Error]: event severity: fatal", "CperHardwareErrorFatal"},
		{"kernel-monitor.json", "EXT4-fs (sda1): mounted filesystem with ordered data mode", ""},
		{"kernel-monitor.json", "INFO: task java:12 blocked for more than 120 seconds. Not tainted", ""},
		{"kernel-monitor-filelog.json", "Jan  3 04:05:06 node-1 kernel: [   12.345678] divide error: 0000 [#1] SMP", "KernelOops"},
		{"kernel-monitor-filelog.json", "Jan  3 04:05:06 node-1 kernel: task docker:7 blocked for more than 120 seconds.", "TaskHung DockerHung"},
		{"readonly-monitor.json", "EXT4-fs (sda1): Remounting filesystem read-only", "FilesystemIsReadOnly"},
		{"readonly-monitor.json", "BTRFS info (device vda2 state E): forced readonly", "FilesystemIsReadOnly"},
		{"readonly-monitor.json", "EXT4-fs (sda1): re-mounted ro. Quota mode: none.", ""},
		{"docker-monitor-filelog.json", `time="2026-01-03T04:05:06.789Z" level=error msg="Error trying v2 registry: failed to register layer: rename /var/lib/docker/image/a /var/lib/docker/image/b: directory not empty"`, "CorruptDockerImage"},
		{"systemd-monitor.json", "Started kubelet: The Kubernetes Node Agent.", "KubeletStart"},
		{"systemd-monitor.json", "Started kubelet.service - kubelet: The Kubernetes Node Agent.", "KubeletStart"},
		{"systemd-monitor.json", "Starting docker.service - Docker Application Container Engine...", "DockerStart"},
		{"systemd-monitor.json", "Starting containerd.service - containerd container runtime...", "ContainerdStart"},
		{"systemd-monitor.json", "Started kubelet-probe.timer - Probe.", ""},
		{"disk-log-message-filelog.json", "Jan  3 04:05:06 node-1 smartd[812]: Device: /dev/sda [SAT], 168 Currently unreadable (pending) sectors", "DiskBadBlock"},
		{"disk-log-message-filelog.json", "Jan  3 04:05:06 node-1 smartd[812]: Device: /dev/sda [SAT], 16 Currently unreadable (pending) sectors", ""},
		{"frequent-restarts.json", "kubelet.service: Scheduled restart job, restart counter is at 3.", "FrequentKubeletRestart"},
		{"frequent-restarts.json", "docker.service: Scheduled restart job, restart counter is at 1.", "FrequentDockerRestart"},
		// Some versions of systemd write this in addition, which must not count as a second
		// restart.
		{"frequent-restarts.json", "docker.service: Service hold-off time over, scheduling restart.", ""},
		{"frequent-restarts.json", "containerd.service: Scheduled restart job, restart counter is at 12.", "FrequentContainerdRestart"},
		{"frequent-restarts.json", "my-docker.service: Scheduled restart job, restart counter is at 3.", ""},
		{"frequent-unregister-netdevice.json", "unregister_netdevice: waiting for veth12 to become free. Usage count = 1", "UnregisterNetDevice"},
	} {
		monitor := ours[test.file]
		testkit.Same(t, strings.Join(find(monitor, message(t, monitor, test.line)), " "), test.reason, "%s: %q", test.file, test.line)
	}
}

// message extracts the message of a line as the file defines it.
func message(t *testing.T, m *config.LogMonitor, line string) string {
	t.Helper()
	for _, name := range []string{"timestamp", "message"} {
		if m.Plugin != config.Filelog {
			continue
		}
		groups := regexp.MustCompile(m.PluginConfig[name]).FindStringSubmatch(line)
		testkit.Require(t, groups != nil, "%q has no %s", line, name)
		if name == "message" {
			line = groups[len(groups)-1]
		}
	}
	return line
}

// The catalog explains everything that a shipped file reports.
func TestCatalogueKnowsWhatTheShippedFilesReport(t *testing.T) {
	seen := 0
	for name, m := range load(t, shipped) {
		for _, c := range m.Conditions {
			seen++
			if known, ok := catalog.Lookup(c.Type); !ok || string(known.Source) != m.Source || known.SurvivesReboot != c.SurvivesReboot {
				t.Errorf("%s: the catalogue has %s as %+v", name, c.Type, known)
			}
		}
		for _, rule := range m.Rules {
			if rule.Permanent {
				continue
			}
			seen++
			known, ok := catalog.LookupEvent(rule.Reason)
			testkit.Check(t, ok && slices.Contains(known.Sources, catalog.Source(m.Source)), "%s: the catalogue has %s as %+v", name, rule.Reason, known)
		}
	}
	testkit.Check(t, seen != 0, "nothing was seen")
}

// The checks have the same conditions and reasons as node-problem-detector.
func TestShippedChecksReportWhatTheOriginalsDo(t *testing.T) {
	file, _, err := config.Parse("health-checks.json", config.Check, files(t, shipped)["health-checks.json"])
	testkit.Must(t, err)
	healthy, found := map[string]string{}, map[string]string{}
	for name, text := range files(t, originals) {
		switch kindOf(name) {
		case config.CustomPlugin:
			theirs, _, err := config.Parse(name, config.CustomPlugin, text)
			testkit.Must(t, err)
			for _, c := range theirs.Plugin.Conditions {
				healthy[c.Type] = c.Reason
			}
			for _, r := range theirs.Plugin.Rules {
				found[r.Condition+" "+r.Reason] = r.InvokeInterval.String()
			}
		case config.SystemLog:
			theirs, _, err := config.Parse(name, config.SystemLog, text)
			testkit.Must(t, err)
			for _, c := range theirs.Log.Conditions {
				healthy[c.Type] = c.Reason
			}
			for _, r := range theirs.Log.Rules {
				found[r.Condition+" "+r.Reason] = "30s" // a log has no interval
			}
		}
	}
	for _, c := range file.Check.Conditions {
		if known, ok := catalog.Lookup(c.Type); !ok || healthy[c.Type] != c.Reason {
			t.Errorf("%s is %q while well, and %q with theirs; the catalogue has %+v", c.Type, c.Reason, healthy[c.Type], known)
		}
	}
	for _, r := range file.Check.Rules {
		if every, ok := found[r.Condition+" "+r.Reason]; !ok || every != r.InvokeInterval.String() {
			t.Errorf("%s %s is looked for every %s, and every %q with theirs", r.Condition, r.Reason, r.InvokeInterval, every)
		}
		testkit.Check(t, !r.Settings.Repair, "%s repairs, without being asked to", r.Check)
		_, ok := catalog.LookupEvent(r.Reason)
		testkit.Check(t, r.Permanent || ok, "the catalogue does not have %s", r.Reason)
	}
	for _, reason := range []string{"UnitRestarted", "UnitRestartFailed"} {
		_, ok := catalog.LookupEvent(reason)
		testkit.Check(t, ok, "the catalogue does not have %s", reason)
	}
}
