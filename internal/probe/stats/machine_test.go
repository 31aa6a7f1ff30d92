package stats

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

var rewrite = flag.Bool("rewrite", false, "write what is scraped into testdata")

// machine creates a fake machine, with the links that the repository does not contain: sda with a
// partition, a volume dm-0 on it, a volume that is not mounted, an NVMe disk, and unused disks.
func machine(tb testing.TB) (proc, sys string) {
	tb.Helper()
	proc, sys = filepath.Join(tb.TempDir(), "proc"), filepath.Join(tb.TempDir(), "sys")
	testkit.Must(tb, os.CopyFS(proc, os.DirFS("testdata/proc")))
	link(tb, "42", filepath.Join(proc, "self"))
	for name, size := range map[string]string{"ram0": "8192", "loop0": "0", "sda": "1048576", "dm-0": "524288", "dm-1": "1024", "nvme0n1": "2097152"} {
		write(tb, filepath.Join(sys, "block", name, "size"), size+"\n")
		testkit.Must(tb, os.Mkdir(filepath.Join(sys, "block", name, "slaves"), 0o755))
	}
	link(tb, "../../sda/sda1", filepath.Join(sys, "block/dm-0/slaves/sda1"))
	link(tb, "../../sda/sda2", filepath.Join(sys, "block/dm-1/slaves/sda2"))
	link(tb, "../../devices/pci0000:00/ata1/block/sda/sda1", filepath.Join(sys, "dev/block/8:1"))
	link(tb, "../../devices/virtual/block/dm-0", filepath.Join(sys, "dev/block/253:0"))
	write(tb, filepath.Join(sys, "fs/cgroup/cgroup.controllers"), "cpu memory\n")
	return proc, sys
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	testkit.Must(tb, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(tb, os.WriteFile(path, []byte(text), 0o600))
}

func link(tb testing.TB, to, at string) {
	tb.Helper()
	testkit.Must(tb, os.MkdirAll(filepath.Dir(at), 0o755))
	testkit.Must(tb, os.Symlink(to, at))
}

// shipped returns the monitor of a file that comes with the agent.
func shipped(tb testing.TB, name string) config.StatsMonitor {
	tb.Helper()
	file, warnings, err := config.Read(filepath.Join("../../../config", name), config.SystemStats)
	testkit.Require(tb, err == nil && len(warnings) == 0, "%v, warnings %q", err, warnings)
	warnings, err = Check(*file.Stats)
	testkit.Require(tb, err == nil && len(warnings) == 0, "%v, warnings %q", err, warnings)
	return *file.Stats
}

var shippedFiles = []string{"system-stats-monitor.json", "net-cgroup-system-stats-monitor.json"}

func monitor(tb testing.TB, cfg Config) *Monitor {
	tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := testkit.Value(New(cfg)).Must(tb)
	return m
}

// recorder records what a monitor reports.
type recorder struct {
	mu      sync.Mutex
	sees    int
	blind   error
	last    time.Time
	silence time.Duration // the longest
}

func (d *recorder) record(what func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.last.IsZero() {
		d.silence = max(d.silence, time.Since(d.last))
	}
	d.last = time.Now()
	what()
}

func (d *recorder) Heartbeat()                        { d.record(func() {}) }
func (d *recorder) CanObserve()                       { d.record(func() { d.sees++ }) }
func (d *recorder) CannotObserve(_ string, err error) { d.record(func() { d.blind = err }) }
func (d *recorder) WaitsFor(string)                   {}
func (d *recorder) Report(finding.Report)             {}

// seen returns how often the monitor could look.
func (d *recorder) seen() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sees
}

func scrape(tb testing.TB, monitors ...*Monitor) string {
	tb.Helper()
	var text strings.Builder
	testkit.Must(tb, metrictext.Write(&text, Families(monitors...)...))
	return text.String()
}

// look reads at a time.
func look(tb testing.TB, m *Monitor, now time.Time) {
	tb.Helper()
	r := testkit.Value(m.read(now)).Must(tb)
	m.last = r
}

// The complete scrape of the shipped files on a fake machine, compared byte by byte.
func TestTheScrapeOfAKnownMachine(t *testing.T) {
	proc, sys := machine(t)
	var monitors []*Monitor
	for _, name := range shippedFiles {
		m := shipped(t, name)
		m.ProcPath = proc
		if m.Metrics["osFeature"] != nil {
			m.KnownModulesPath = "known-modules.json"
		}
		monitors = append(monitors, monitor(t, Config{File: "testdata/system-stats-monitor.json", Monitor: m, SysPath: sys}))
	}
	sizes := map[string]usage{
		"/etc/hosts":       {used: 30e9, free: 10e9},
		"/var/lib/my data": {used: 1e9, free: 3e9},
		"/mnt/btrfs":       {used: 0, free: 0},
	}
	first := time.Date(2026, time.November, 15, 12, 0, 0, 0, time.UTC)
	for _, m := range monitors {
		m.asker.measure = func(path string) (usage, error) {
			u, ok := sizes[path]
			if !ok {
				return usage{}, errors.New("unexpected path " + path)
			}
			return u, nil
		}
		look(t, m, first)
	}
	// A minute later, requests to sda have taken 90 seconds.
	stats := testkit.Value(os.ReadFile(filepath.Join(proc, "diskstats"))).Must(t)
	write(t, filepath.Join(proc, "diskstats"), strings.Replace(string(stats), "15400 23500", "60000 113500", 1))
	for _, m := range monitors {
		look(t, m, first.Add(time.Minute))
		for part, said := range m.lastErrors {
			testkit.Same(t, said, "", "the error of %s", part)
		}
	}
	got := scrape(t, monitors...)
	if *rewrite {
		write(t, "testdata/scrape.txt", got)
	}
	want := testkit.Value(os.ReadFile("testdata/scrape.txt")).Must(t)
	testkit.NoDiff(t, cmp.Diff(string(want), got), "the scrape")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(got))
	testkit.Check(t, err == nil && len(families) == len(metrics), "Prometheus reads %d metrics of %d: %v", len(families), len(metrics), err)
}

// The test machine has all metrics except those of disks, which it may not have. None appears twice
// in a scrape.
func TestThisMachineHasTheFigures(t *testing.T) {
	var monitors []*Monitor
	for _, name := range shippedFiles {
		m := monitor(t, Config{Monitor: shipped(t, name)})
		look(t, m, time.Now())
		monitors = append(monitors, m)
	}
	text := scrape(t, monitors...)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families := testkit.Value(parser.TextToMetricFamilies(strings.NewReader(text))).Must(t)
	for _, f := range metrics {
		testkit.Check(t, f.part == "disk" || families[metricName(f.id)] != nil, "%s is not shown", f.id)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		series, _, _ := strings.Cut(line, " ")
		testkit.Check(t, !seen[series] || series == "#", "%s is there twice", series)
		seen[series] = true
	}
	t.Logf("saw %d values of %d kinds", len(seen)-1, len(families))
}

// The names, types and labels of node-problem-detector, which dashboards use.
func TestFiguresAreShownAsByNodeProblemDetector(t *testing.T) {
	want := map[string]string{
		"cpu_load_1m": "gauge", "cpu_load_5m": "gauge", "cpu_load_15m": "gauge", "cpu_runnable_task_count": "gauge",
		"cpu_usage_time": "counter state", "system_cpu_stat": "counter cpu stage", "system_interrupts_total": "counter",
		"system_processes_total": "counter", "system_procs_running": "gauge", "system_procs_blocked": "gauge",
		"disk_io_time": "counter device_name", "disk_weighted_io": "counter device_name", "disk_avg_queue_len": "gauge device_name",
		"disk_operation_count": "counter device_name direction", "disk_merged_operation_count": "counter device_name direction",
		"disk_operation_bytes_count": "counter device_name direction", "disk_operation_time": "counter device_name direction",
		"disk_bytes_used": "gauge device_name fs_type mount_option state", "disk_percent_used": "gauge device_name",
		"host_uptime":       "gauge kernel_version os_version",
		"memory_bytes_used": "gauge state", "memory_percent_used": "gauge state", "memory_anonymous_used": "gauge state",
		"memory_page_cache_used": "gauge state", "memory_unevictable_used": "gauge", "memory_dirty_used": "gauge state",
		"system_os_feature": "gauge os_feature value",
	}
	for _, direction := range []string{"rx_bytes", "rx_packets", "rx_errors", "rx_dropped", "rx_fifo", "rx_frame", "rx_compressed", "rx_multicast",
		"tx_bytes", "tx_packets", "tx_errors", "tx_dropped", "tx_fifo", "tx_collisions", "tx_carrier", "tx_compressed"} {
		want["net_"+direction] = "counter interface_name"
	}
	golden := testkit.Value(os.ReadFile("testdata/scrape.txt")).Must(t)
	got := map[string]string{}
	labels := regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(string(golden)) {
		if fields := strings.Fields(line); fields[0] == "#" {
			if fields[1] == "TYPE" {
				got[fields[2]] = fields[3]
			}
			continue
		}
		name, rest, ok := strings.Cut(line, "{")
		if !ok || strings.Contains(got[name], " ") {
			continue
		}
		for _, label := range labels.FindAllStringSubmatch(rest, -1) {
			got[name] += " " + label[1]
		}
	}
	testkit.NoDiff(t, cmp.Diff(want, got), "the metrics (-theirs +ours)")
}

// The files of node-problem-detector use only metrics that exist here.
func TestTheFilesOfNodeProblemDetectorAreUnderstood(t *testing.T) {
	for _, name := range shippedFiles {
		theirs, _, err := config.Read(filepath.Join("../config/testdata/node-problem-detector", name), config.SystemStats)
		testkit.Must(t, err)
		if warnings, err := Check(*theirs.Stats); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, warnings %q", name, err, warnings)
		}
		testkit.NoDiff(t, cmp.Diff(theirs.Stats.Metrics, shipped(t, name).Metrics), "%s (-theirs +ours)", name)
	}
}

// The page for users contains every metric with its type and labels.
func TestThePageForUsersHasEveryFigure(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../../docs/reference/machine-metrics.md")).Must(t)
	rows := map[string]string{}
	id := regexp.MustCompile("`([a-z]+/[a-z_0-9]+)`")
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 {
			for _, found := range id.FindAllStringSubmatch(cells[2], -1) {
				rows[found[1]] = strings.ReplaceAll(strings.Join(strings.Fields(cells[1]+cells[3]+cells[4]), " "), "`", "")
			}
		}
	}
	want := map[string]string{}
	for _, f := range metrics {
		want[f.id] = strings.TrimSpace(f.part + " " + f.kind + " " + strings.Join(f.labels, ", "))
	}
	testkit.NoDiff(t, cmp.Diff(want, rows), "the metrics (-code +page)")
}

// A missing source affects no other metric and is logged once.
func TestWhatCannotBeReadIsAbsentAndSaidOnce(t *testing.T) {
	proc, sys := machine(t)
	for _, name := range []string{"stat", "modules", "uptime", "meminfo", "net/dev", "1/net/dev", "diskstats"} {
		testkit.Must(t, os.Remove(filepath.Join(proc, name)))
	}
	// Without the file there would be no modules; with this content they are not known.
	testkit.Must(t, os.Mkdir(filepath.Join(proc, "modules"), 0o755))
	var log strings.Builder
	m := shipped(t, shippedFiles[0])
	m.ProcPath = proc
	for part, names := range shipped(t, shippedFiles[1]).Metrics {
		m.Metrics[part] = names
	}
	all := monitor(t, Config{Monitor: m, SysPath: sys, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	all.asker.measure = func(string) (usage, error) { return usage{1, 1}, nil }
	look(t, all, time.Now())
	look(t, all, time.Now())
	for _, part := range []string{"cpu", "osFeature", "host", "memory", "net", "disk"} {
		testkit.Same(t, strings.Count(log.String(), "part="+part+" "), 1, "log lines about %s in\n%s", part, log.String())
	}
	text := scrape(t, all)
	for name, there := range map[string]bool{
		"cpu_load_1m": true, "cpu_usage_time": false, "system_os_feature{os_feature=\"KTD\"": true, "os_feature=\"GPUSupport\"": false,
		"host_uptime": false, "memory_": false, "net_": false, "disk_bytes_used": true, "disk_io_time": false,
	} {
		testkit.Same(t, strings.Contains(text, name), there, "%s is shown in\n%s", name, text)
	}
	write(t, filepath.Join(proc, "uptime"), "12.5 3\n")
	look(t, all, time.Now())
	if !strings.Contains(log.String(), "can be read again") || !strings.Contains(scrape(t, all), `os_version="ubuntu 24.04.1 LTS (Noble Numbat)"} 12`) {
		t.Errorf("what is there again is not shown, or not said:\n%s", log.String())
	}
}

func TestAKernelThatCannotLoadModulesHasNone(t *testing.T) {
	proc, sys := machine(t)
	testkit.Must(t, os.Remove(filepath.Join(proc, "modules")))
	m := config.StatsMonitor{ProcPath: proc, Metrics: map[string]map[string]string{"osFeature": {"system/os_feature": "feature"}}}
	one := monitor(t, Config{Monitor: m, SysPath: sys})
	look(t, one, time.Now())
	text := scrape(t, one)
	if one.lastErrors["osFeature"] != "" || !strings.Contains(text, `feature{os_feature="GPUSupport",value=""} 0`) || !strings.Contains(text, `"UnknownModules",value=""} 0`) {
		t.Errorf("%s\n%s", one.lastErrors["osFeature"], text)
	}
}

// A scrape contains the values of a single reading, also during the next one.
func TestScrapesAndReadingsDoNotMeet(t *testing.T) {
	proc, sys := machine(t)
	m := shipped(t, shippedFiles[0])
	m.ProcPath = proc
	one := monitor(t, Config{Monitor: m, SysPath: sys})
	one.look(&recorder{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20 {
			one.look(&recorder{})
		}
	}()
	for range 2 {
		go func() { _ = metrictext.Write(io.Discard, Families(one)...) }()
	}
	for range 20 {
		text := scrape(t, one)
		testkit.Require(t, strings.Contains(text, "cpu_load_1m 0.52\n"), "a scrape without the load:\n%s", text)
	}
	<-done
}

func TestAMachineThatCannotBeSeenIsNoQuietOne(t *testing.T) {
	m := shipped(t, shippedFiles[0])
	m.ProcPath = filepath.Join(t.TempDir(), "proc")
	blind := monitor(t, Config{Monitor: m})
	d := &recorder{}
	blind.look(d)
	testkit.Check(t, d.blind != nil && strings.Contains(d.blind.Error(), m.ProcPath) && d.seen() == 0 && scrape(t, blind) == "",
		"told %v, seen %d times, and shown\n%s", d.blind, d.seen(), scrape(t, blind))
}

// One operation reads a machine with 256 CPUs, 500 disks and 300 pod network interfaces.
func BenchmarkReadLarge(b *testing.B) {
	proc, sys := machine(b)
	var stat, disks, net strings.Builder
	stat.WriteString("cpu  30100 200 10050 401234 1500 0 300 40 20 10\n")
	for i := range 256 {
		fmt.Fprintf(&stat, "cpu%d 15100 100 5050 200617 1000 0 300 20 20 10\n", i)
	}
	for i := range 500 {
		fmt.Fprintf(&disks, " 259 %d nvme%dn1 12000 340 800000 5200 9000 4500 640000 18000 0 15400 23500 10 0 2048 300 120 80\n", i, i)
		write(b, filepath.Join(sys, "block", fmt.Sprintf("nvme%dn1", i), "size"), "8\n")
	}
	net.WriteString("a\nb\n")
	for i := range 300 {
		fmt.Fprintf(&net, "cali%d: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", i)
	}
	write(b, filepath.Join(proc, "stat"), stat.String())
	write(b, filepath.Join(proc, "diskstats"), disks.String())
	write(b, filepath.Join(proc, "1/net/dev"), net.String())
	read(b, func(m *Monitor) { m.cfg.Monitor.ProcPath, m.cfg.SysPath = proc, sys })
}

// One operation reads everything for the two shipped files on the machine that runs the benchmark.
func BenchmarkRead(b *testing.B) {
	read(b, func(*Monitor) {})
}

func read(b *testing.B, of func(*Monitor)) {
	b.Helper()
	var monitors []*Monitor
	for _, name := range shippedFiles {
		m := monitor(b, Config{Monitor: shipped(b, name)})
		of(m)
		monitors = append(monitors, m)
	}
	b.ReportAllocs()
	before := worked(b)
	for b.Loop() {
		for _, m := range monitors {
			m.look(&recorder{})
		}
	}
	// As if both were read every minute; one of them is read less often.
	b.ReportMetric(100*(worked(b)-before).Seconds()/float64(b.N)/60, "%-of-a-core")
}

// worked returns the CPU time of this process.
func worked(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	testkit.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
