package logmonitor

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// kernelLog returns a kernel log file. No line matches a rule of the kernel monitor, but
// many contain words of a rule.
func kernelLog(lines int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 0))
	kinds := []string{
		"audit: type=1400 audit(%03d:%d): apparmor=STATUS task error",
		"EXT4-fs (sda%d): mounted filesystem %d with ordered data mode",
		"eth%d: renamed from veth%05d, blocked ports are forwarding now",
		"usb %d-1: new USB device number %d using xhci_hcd, Buffer of 1",
		"systemd[%d]: Started Session %d of user root; process 1 is well",
		"cgroup: fork rejected in /kubepods/burstable/pod%d/%d: a process",
	}
	var b bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&b, "Nov 15 12:00 node kernel: [%6d.000000] ", i)
		fmt.Fprintf(&b, kinds[random.IntN(len(kinds))], random.IntN(1000), random.IntN(100000))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// BenchmarkTake reads 1,000,000 lines (107 MB, seed 6) per op, in chunks of 256 KiB, with
// the 14 rules of the kernel monitor and one more. Its translator costs nothing, and no
// line matches.
func BenchmarkTake(b *testing.B) {
	text := kernelLog(1_000_000, 6)
	m := started(b, Config{Monitor: kernelMonitor(b), Translator: noon{}})
	if size := len(text) / 1_000_000; size < 106 || size > 108 {
		b.Fatalf("the text has %d MB", size)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		for rest := text; len(rest) > 0; {
			end := len(rest)
			if end > 256<<10 {
				end = bytes.LastIndexByte(rest[:256<<10], '\n') + 1
			}
			if report := m.Take(day, logs.Chunk{Text: rest[:end]}); !report.IsEmpty() {
				b.Fatalf("there is a match: %+v", report)
			}
			rest = rest[end:]
		}
	}
	if m.Counts().Lines%1_000_000 != 0 {
		b.Errorf("%d lines were read", m.Counts().Lines)
	}
}
