package match_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/match"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// kernelMonitor holds the patterns of node-problem-detector's kernel monitor, and one
// more.
var kernelMonitor = []string{
	`Killed process \d+ (.+) total-vm:\d+kB, anon-rss:\d+kB, file-rss:\d+kB.*`,
	`task [\S ]+:\w+ blocked for more than \w+ seconds\.`,
	`unregister_netdevice: waiting for \w+ to become free. Usage count = \d+`,
	`BUG: unable to handle kernel NULL pointer dereference at .*`,
	`divide error: 0000 \[#\d+\] SMP`,
	`EXT4-fs error .*`,
	`EXT4-fs warning .*`,
	`Buffer I/O error .*`,
	`XFS .* Shutting down filesystem.?`,
	`CE memory read error .*`,
	`.*\[Hardware Error\]: event severity: corrected$`,
	`.*\[Hardware Error\]: event severity: recoverable$`,
	`.*\[Hardware Error\]: event severity: fatal$`,
	`task docker:\w+ blocked for more than \w+ seconds\.`,
	`task \S+:\w+ blocked for more than \w+ seconds\.`,
}

// kernelLog returns lines of a kernel log file, 107 bytes long on average. They contain
// many words of the patterns and match none.
func kernelLog(seed uint64, lines int) []byte {
	r := rand.New(rand.NewPCG(seed, 6))
	says := []func() string{
		func() string {
			return fmt.Sprintf("audit: type=1400 audit(%d.%03d:%d): apparmor=\"STATUS\"", 1700000000+r.IntN(1e6), r.IntN(1000), r.IntN(1e5))
		},
		func() string {
			return fmt.Sprintf("EXT4-fs (sda%d): mounted filesystem, errors=remount-ro", r.IntN(9))
		},
		func() string {
			return fmt.Sprintf("XFS (dm-%d): Ending clean mount of filesystem, no error", r.IntN(9))
		},
		func() string {
			return fmt.Sprintf("docker0: port %d(veth%07x) entered blocking state", r.IntN(90), r.IntN(1<<28))
		},
		func() string {
			return fmt.Sprintf("IPv6: ADDRCONF(NETDEV_CHANGE): veth%07x: link becomes ready", r.IntN(1<<28))
		},
		func() string {
			return fmt.Sprintf("task %d of the workqueue was blocked, and went on without an error", r.IntN(1e5))
		},
		func() string {
			return fmt.Sprintf("usb %d-%d: device descriptor read/64, error -%d", r.IntN(9), r.IntN(9), r.IntN(110))
		},
		func() string {
			return fmt.Sprintf("[Firmware Bug]: TSC_DEADLINE disabled due to Errata, update to 0x%x", r.IntN(1<<16))
		},
		func() string {
			return fmt.Sprintf("nvme nvme%d: I/O %d QID %d timeout, no Buffer was lost", r.IntN(4), r.IntN(1024), r.IntN(64))
		},
		func() string {
			return fmt.Sprintf("mce: CPU%d: Core temperature above threshold, cpu clock throttled", r.IntN(64))
		},
		func() string {
			return fmt.Sprintf("process %d (java) used greatest stack depth: %d bytes left", r.IntN(1e6), r.IntN(1e5))
		},
	}
	var text bytes.Buffer
	up := 0.0
	for range lines {
		up += r.Float64()
		second := int(up)
		fmt.Fprintf(&text, "Jan %2d %02d:%02d:%02d node-17 kernel: [%12.6f] %s\n", 1+second/86400%28, second/3600%24, second/60%60, second%60, up, says[r.IntN(len(says))]())
	}
	return text.Bytes()
}

// BenchmarkScan scans 10,000 lines of a kernel log (seed 1). No line matches.
func BenchmarkScan(b *testing.B) {
	const lines = 10_000
	text := kernelLog(1, lines)
	for _, fixture := range []struct {
		name     string
		patterns []string
	}{
		{"kernel-monitor-and-one-more", kernelMonitor},
		{"and-one-of-three-bytes", append([]string{`NMI .*`}, kernelMonitor...)},
		{"and-one-of-either-case", append([]string{`(?i)oops: task \d+ is stuck`}, kernelMonitor...)},
		{"and-300-more", append(manyPatterns(2, 300), kernelMonitor...)},
	} {
		b.Run(fixture.name, func(b *testing.B) {
			set := setOf(b, fixture.patterns)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			candidates := 0
			from := spent(b)
			for b.Loop() {
				set.Scan(text, func(int, int) { candidates++ })
			}
			b.ReportMetric((spent(b)-from).Seconds()/float64(b.N)*1e6/lines, "cpu-s/1M-lines")
			b.ReportMetric(float64(len(text))/lines, "B/line")
			if candidates > 0 {
				b.Errorf("found %d candidates where there are none", candidates)
			}
		})
	}
}

// manyPatterns returns patterns that contain two words of eight letters each.
func manyPatterns(seed uint64, count int) []string {
	r := rand.New(rand.NewPCG(seed, 6))
	word := func() string {
		letters := make([]byte, 8)
		for i := range letters {
			letters[i] = "etaoinsrhldcumfpgwybv"[r.IntN(21)]
		}
		return string(letters)
	}
	patterns := make([]string, count)
	for i := range patterns {
		patterns[i] = word() + ` \d+: ` + word() + `.*`
	}
	return patterns
}

// BenchmarkEveryPatternOnEveryLine tries every pattern on the same lines, for comparison
// with Scan.
func BenchmarkEveryPatternOnEveryLine(b *testing.B) {
	const lines = 10_000
	text := kernelLog(1, lines)
	var plain []*regexp.Regexp
	for _, p := range kernelMonitor {
		plain = append(plain, regexp.MustCompile(`(?:`+p+`)\z`))
	}
	b.SetBytes(int64(len(text)))
	hits := 0
	from := spent(b)
	for b.Loop() {
		for line := range bytes.Lines(text) {
			for _, p := range plain {
				if p.Match(bytes.TrimSuffix(line, []byte("\n"))) {
					hits++
				}
			}
		}
	}
	b.ReportMetric((spent(b)-from).Seconds()/float64(b.N)*1e6/lines, "cpu-s/1M-lines")
	if hits > 0 {
		b.Errorf("found %d matches where there are none", hits)
	}
}

// spent returns the CPU time of this process, which does not depend on the load of the
// machine.
func spent(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	testkit.Must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func setOf(tb testing.TB, patterns []string) *match.Set {
	tb.Helper()
	all := make([]*match.Pattern, len(patterns))
	for i, p := range patterns {
		all[i] = compile(tb, p)
	}
	return match.NewSet(all...)
}
