package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// vocabulary of a healthy kernel, with words that rules look for: each line is a near miss of
// one rule or of none.
var vocabulary = []string{
	"usb 1-1: new high-speed USB device number 7 using xhci_hcd, no error seen on the port so far",
	"EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro, quota on",
	"task scheduler: balancing of domain 3 was blocked for 12 ticks, migrating 4 threads of others",
	"XFS (dm-2): Ending clean mount of volume 8, no shutdown since the last one, log is recovered",
	"audit: type=1400 apparmor=\"STATUS\" operation=\"profile_load\" profile=\"unconfined\" name=\"docker\"",
	"IPv6: ADDRCONF(NETDEV_CHANGE): veth3a4b1: link becomes ready, waiting for lo to become free",
	"Memory cgroup stats for /kubepods/burstable/pod12: cache:4KB rss:8KB, nothing was killed there",
	"CPU3: Core temperature is above threshold, cpu clock is throttled (total events = 42), not fatal",
	"docker0: port 2(veth1c2d3) entered forwarding state after it was blocked for the usual seconds",
	"nfs: server storage-7.cluster.local is responding again, I/O goes on where it had been stopped",
}

// writeLines writes a log of n lines with an average of 107 bytes and a fixed seed. No line
// matches a rule of the kernel monitor.
func writeLines(tb testing.TB, path string, n int) {
	tb.Helper()
	file, err := os.Create(path)
	testkit.Must(tb, err)
	defer file.Close()
	out := bufio.NewWriterSize(file, 1<<20)
	random := rand.New(rand.NewPCG(1, 107))
	stamp := time.Now().Format(time.Stamp)
	for i := range n {
		words := vocabulary[random.IntN(len(vocabulary))]
		fmt.Fprintf(out, "%s node-1 kernel: [%7d.%06d] %s\n", stamp, i/1000, i%1000000, words[:min(len(words), 47+random.IntN(24))])
	}
	testkit.Must(tb, out.Flush())
}

// fifteenRules returns the configuration of a file monitor with the 14 rules of
// node-problem-detector's kernel monitor and one more.
func fifteenRules(tb testing.TB, log string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(originals, "kernel-monitor.json"))
	testkit.Must(tb, err)
	var monitor map[string]any
	testkit.Must(tb, json.Unmarshal(text, &monitor))
	monitor["plugin"], monitor["logPath"] = "filelog", log
	monitor["pluginConfig"] = map[string]string{"timestamp": "^.{15}", "message": `kernel: \[.*\] (.*)`, "timestampFormat": "Jan _2 15:04:05"}
	rules, _ := monitor["rules"].([]any)
	if len(rules) != 14 {
		tb.Fatalf("the kernel monitor has %d rules, want 14", len(rules))
	}
	monitor["rules"] = append(rules, map[string]string{"type": "temporary", "reason": "TaskBlocked", "pattern": `task \S+:\w+ blocked for more than \w+ seconds\.`})
	text, err = json.Marshal(monitor)
	testkit.Must(tb, err)
	return string(text)
}

// buildRelease builds the agent like a release.
func buildRelease(tb testing.TB, folder string) string {
	tb.Helper()
	release := filepath.Join(folder, name)
	build := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", release, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	return release
}

// resident returns the resident memory of the agent in MB.
func (p *process) resident() float64 {
	p.t.Helper()
	return residentOf(p.t, p.command.Process.Pid)
}

func residentOf(tb testing.TB, pid int) float64 {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	testkit.Must(tb, err)
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	kilobytes, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
	testkit.Must(tb, err)
	return kilobytes * 1024 / 1e6
}

// linesRead returns the number of lines that the only monitor has read.
func (p *process) linesRead(s fixture) int {
	p.t.Helper()
	n, _ := strconv.ParseFloat(p.metric(`autohealer_agent_lines_total{monitor="`+monitorOf(s)+`"}`), 64)
	return int(n)
}

// One op is a whole run of an agent: it starts, reads a log of 1,000,000 lines (107 MB, seed
// 1/107) with the 14 rules of the kernel monitor and one more, of which none matches, and is
// stopped. cpu-s is the user and system time, MB-idle the memory before the log exists.
func BenchmarkTheWholeAgent(b *testing.B) {
	folder := b.TempDir()
	release := buildRelease(b, folder)
	info, err := os.Stat(release)
	testkit.Must(b, err)
	s := newScene(b)
	put(b, s.config, fifteenRules(b, s.log.path))
	ready := filepath.Join(filepath.Dir(s.log.path), "ready")
	const lines = 1_000_000
	writeLines(b, ready, lines)
	written, err := os.Stat(ready)
	testkit.Must(b, err)
	b.SetBytes(written.Size())
	var idle, busy, worst, sum float64
	for b.Loop() {
		_ = os.Remove(s.log.path)
		testkit.Must(b, os.RemoveAll(s.state))
		p := launch(b, release, s.args()...)
		p.waitFor("a condition", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
		idle = max(idle, p.resident())
		testkit.Must(b, os.Link(ready, s.log.path))
		p.waitFor("all lines", func() bool { return p.linesRead(s) == lines })
		busy = max(busy, p.resident())
		p.stop()
		if len(p.ids()) != 0 {
			b.Fatalf("%d problems are found in a log without problems", len(p.ids()))
		}
		state := p.command.ProcessState
		used := (state.UserTime() + state.SystemTime()).Seconds()
		worst, sum = max(worst, used), sum+used
	}
	b.ReportMetric(sum/float64(b.N), "cpu-s/op")
	b.ReportMetric(worst, "worst-cpu-s")
	b.ReportMetric(idle, "MB-idle")
	b.ReportMetric(busy, "MB-busy")
	b.ReportMetric(float64(info.Size())/1e6, "MB-binary")
	if worst > 0.40 {
		b.Logf("one of the runs took %.2f s of CPU, and 0.40 s is what is allowed", worst)
	}
}
