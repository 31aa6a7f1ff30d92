package stats

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs/blockdevice"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestMetricNames(t *testing.T) {
	for displayed, want := range map[string]string{
		"cpu/load_1m": "cpu_load_1m", "compute.googleapis.com/guest/disk/io": "compute_googleapis_com_guest_disk_io",
		"1m": "key_1m", "_x": "key_x", "/x": "key_x", "größe": "gr__e", "": "",
	} {
		testkit.Same(t, metricName(displayed), want, "%q", displayed)
	}
}

func TestCheck(t *testing.T) {
	warnings, err := Check(config.StatsMonitor{Metrics: map[string]map[string]string{
		"cpu":  {"cpu/load_1m": "load", "cpu/load_5m": "load", "cpu/load_9m": "x", "net/rx_bytes": "y", "cpu/load_15m": "problem/counter"},
		"host": {"host/uptime": "up"},
	}})
	wantWarnings := []string{
		`cpu.metricsConfigs["cpu/load_9m"]: there is no such metric, and it is not shown; write a metric that docs/reference/machine-metrics.md lists`,
		`cpu.metricsConfigs["net/rx_bytes"]: it is a metric of net, and not shown here; move it there`,
	}
	wantErr := `cpu.metricsConfigs["cpu/load_15m"].displayName: problem_counter is a metric of the agent; write another name
cpu.metricsConfigs["cpu/load_5m"].displayName: cpu/load_1m is shown under that name as well (load); write another`
	testkit.NoDiff(t, cmp.Diff(wantWarnings, warnings), "warnings")
	testkit.NoDiff(t, cmp.Diff(wantErr, fmt.Sprint(err)), "error")
}

func TestSeveralFilesShowAFigureOnce(t *testing.T) {
	proc, _ := machine(t)
	asks := config.StatsMonitor{ProcPath: proc, InvokeInterval: time.Minute, Metrics: map[string]map[string]string{"cpu": {"cpu/load_1m": "load"}}}
	other := asks
	other.Metrics = map[string]map[string]string{"cpu": {"cpu/load_5m": "load", "cpu/load_1m": "other"}}
	a, b := monitor(t, Config{Monitor: asks}), monitor(t, Config{Monitor: other})
	look(t, a, time.Now())
	look(t, b, time.Now())
	text := scrape(t, a, b)
	testkit.Check(t, strings.Count(text, "# TYPE load gauge") == 1 && strings.Contains(text, "\nload 0.52\n") && strings.Contains(text, "\nother 0.52\n"),
		"shown are\n%s", text)
}

func TestQueueLengths(t *testing.T) {
	noon := time.Date(2026, time.November, 15, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		before queues
		taken  uint64
		want   []value
	}{
		"at first there is none":           {queues{}, 500, nil},
		"half of the time":                 {queues{noon, map[string]uint64{"sda": 1000}}, 31000, []value{{0.5, []string{"sda"}}}},
		"idle":                             {queues{noon, map[string]uint64{"sda": 1000}}, 1000, []value{{0, []string{"sda"}}}},
		"a count that began anew":          {queues{noon, map[string]uint64{"sda": 1000}}, 20, nil},
		"another disk was there":           {queues{noon, map[string]uint64{"sdb": 1000}}, 2000, nil},
		"no time has passed":               {queues{noon.Add(time.Minute), map[string]uint64{"sda": 1000}}, 2000, nil},
		"the clock was set back meanwhile": {queues{noon.Add(time.Hour), map[string]uint64{"sda": 1000}}, 2000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reading{wanted: map[string]bool{"disk/avg_queue_len": true}, values: map[string][]value{}}
			disk := blockdevice.Diskstats{Info: blockdevice.Info{DeviceName: "sda"}, IOStats: blockdevice.IOStats{WeightedIOTicks: test.taken}}
			after := disks(r, []blockdevice.Diskstats{disk}, nil, test.before, noon.Add(time.Minute))
			testkit.NoDiff(t, cmp.Diff(test.want, r.values["disk/avg_queue_len"], cmp.AllowUnexported(value{})), "the queue length")
			testkit.Same(t, after.taken["sda"], test.taken, "the next reading has to know %v", after)
		})
	}
}

func TestFeaturesOfTheCommandLine(t *testing.T) {
	for line, want := range map[string][3]float64{ // KTD, UnifiedCgroupHierarchy, KernelModuleIntegrity
		"": {0, 1, 0},
		"csm.enabled=1 systemd.unified_cgroup_hierarchy=0":            {1, 0, 0},
		"systemd.unified_cgroup_hierarchy=yes module.sig_enforce=1":   {0, 1, 0},
		"module.sig_enforce=1 loadpin.enabled=1 csm.enabled=\"true\"": {1, 1, 1},
		"loadpin.enabled=1 csm.enabled csm.enabled=maybe":             {0, 1, 0},
	} {
		r := &reading{wanted: map[string]bool{"system/os_feature": true}, values: map[string][]value{}}
		features(r, strings.Fields(line), true)
		var got [3]float64
		for i, v := range r.values["system/os_feature"] {
			got[i] = v.number
		}
		testkit.Same(t, got, want, "%q", line)
	}
}

func TestOSVersions(t *testing.T) {
	for text, want := range map[string]string{
		"ID=debian\nVERSION=\"13 (trixie)\"\n":       "debian 13 (trixie)",
		"ID=cos\nVERSION=117\nBUILD_ID=18613.0.79\n": "cos 117-18613.0.79",
		"ID=arch\nBUILD_ID=rolling\n":                "arch",
		"ID='talos'\nVERSION_ID=v1.11.2\n":           "talos v1.11.2",
		"":                                           "",
	} {
		testkit.Same(t, parseOSVersion(text), want, "%q", text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("nvidia 1 2 - Live 0x0 (POE)\n\nx\n")
	f.Add("350735.47 234388.90")
	f.Add("ID=\"a\"\nVERSION='\"\n=\n")
	f.Add(`[{"moduleName": "zfs"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range parseModules(text) {
			testkit.Check(t, m.name != "" && !strings.ContainsAny(m.name, " \n\t"), "a module is called %q", m.name)
		}
		n, err := parseUptime(text)
		testkit.Check(t, err == nil || n == 0, "both %v and %v", n, err)
		version := parseOSVersion(text)
		testkit.Check(t, strings.TrimSpace(version) == version, "a version with blanks around: %q", version)
		if known, err := parseKnownModules([]byte(text)); err != nil && slices.Compact(known) != nil {
			t.Errorf("both %q and %v", known, err)
		}
	})
}
