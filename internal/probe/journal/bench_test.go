package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// hundredThousand writes a file with 100,000 entries of 20 fields each. One of every oneIn
// entries is of the kubelet.
func hundredThousand(b *testing.B, oneIn int) (folder string, kubelet int) {
	b.Helper()
	const entries = 100_000
	m := newImage(true)
	var shared []uint64
	for i := range 14 {
		shared = append(shared, m.datum(fmt.Sprintf("_FIELD_%d=the same in all entries", i)))
	}
	for i := range entries {
		identifier := "other"
		if i%oneIn == 0 {
			identifier = "kubelet"
			kubelet++
		}
		m.entry(append([]uint64{
			m.datum(fmt.Sprintf("MESSAGE=I1115 14:25:33.%06d 1234 kuberuntime.go:%d] something of the usual length has happened to pod %d", i, i%700, i)),
			m.datum("SYSLOG_IDENTIFIER=" + identifier), m.datum(fmt.Sprintf("PRIORITY=%d", i%8)),
			m.datum("SYSLOG_FACILITY=3"), m.datum("_TRANSPORT=stdout"),
			m.datum(fmt.Sprintf("_SOURCE_REALTIME_TIMESTAMP=%d", 1_700_000_000_000_000+i)),
		}, shared...)...)
	}
	folder = b.TempDir()
	testkit.Must(b, os.WriteFile(filepath.Join(folder, "system@bench.journal"), m.b, 0o644))
	return folder, kubelet
}

// BenchmarkRead opens the journal and reads 100,000 entries through the filter per op.
func BenchmarkRead(b *testing.B) {
	for _, oneIn := range []int{1, 10, 1000} {
		b.Run(fmt.Sprintf("one-in-%d", oneIn), func(b *testing.B) {
			folder, want := hundredThousand(b, oneIn)
			read := func() {
				r, err := journal.Open(journal.Config{Path: folder, Identifier: "kubelet"})
				testkit.Must(b, err)
				defer func() { _ = r.Close() }()
				for got := 0; got < want; {
					chunk, err := r.Next(b.Context())
					testkit.Must(b, err)
					got += len(chunk.Records)
				}
			}
			for b.Loop() {
				read()
			}
			allocations := testing.AllocsPerRun(1, read)
			b.ReportMetric(float64(want), "messages/op")
			b.ReportMetric(allocations, "allocs/read")
			// Allocations of opening and of one position per chunk, and none per entry.
			if most := 200 + float64(want)/20; allocations > most {
				b.Errorf("%.0f allocations for %d messages of 100,000 entries, want at most %.0f", allocations, want, most)
			}
		})
	}
}

// BenchmarkCompressed opens the journal and reads 10,000 messages of 840 bytes, compressed
// with zstd, per op.
func BenchmarkCompressed(b *testing.B) {
	const want = 10_000
	m := newImage(true)
	for range want {
		m.entry(m.packed("MESSAGE", flagZSTD, decode(b, zstdBlock)), m.datum("SYSLOG_IDENTIFIER=kubelet"))
	}
	read := func() {
		texts, _, lost, err := journal.Read(m.b, "kubelet")
		if len(texts) != want || lost > 0 || err != nil {
			b.Fatalf("%d read and %d lost: %v", len(texts), lost, err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		read()
	}
}

// BenchmarkLatency measures the time from sending a message to a real journald until it is
// read.
func BenchmarkLatency(b *testing.B) {
	j := startJournald(b, "Storage=volatile\nReadKMsg=no")
	r, err := journal.Open(journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	testkit.Must(b, err)
	defer func() { _ = r.Close() }()
	var slowest time.Duration
	j.sync()
	for b.Loop() {
		begin := time.Now()
		j.say("kubelet", "hello")
		for got := 0; got == 0; {
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
			chunk, err := r.Next(ctx)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				b.Fatal(err)
			}
			got = len(chunk.Records)
		}
		slowest = max(slowest, time.Since(begin))
	}
	b.ReportMetric(float64(slowest.Milliseconds()), "slowest-ms")
}
