package filelog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// writer writes numbered lines to a file and rotates it, as fast as the reader follows.
type logWriter struct {
	path      string
	lines     int
	rotations int
	kept      int // number of rotated files that are kept
	read      *atomic.Int64
}

// run alternates between renaming the file and copying and truncating it. After a rename
// it continues with the old file for a while, like a writer that does not know of the
// rotation yet.
func (m logWriter) run(ctx context.Context) error {
	file, err := os.OpenFile(m.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { file.Close() }()
	out := bufio.NewWriterSize(file, 8<<10)
	each := m.lines / (m.rotations + 1)
	var begun []int // number of the first line of each file
	reopen := -1
	for number := 1; number <= m.lines; number++ {
		if number%each == 0 && len(begun) < m.rotations {
			begun = append(begun, number)
			// Unread files must not be deleted. A reader that has read nothing would start with the
			// oldest existing file.
			due := 1
			if len(begun) >= m.kept {
				due = begun[len(begun)-m.kept]
			}
			err := out.Flush()
			for err == nil && m.read.Load() < int64(due) {
				err = sleep(ctx, time.Millisecond)
			}
			if err := errors.Join(err, m.shift()); err != nil {
				return err
			}
			if len(begun)%2 == 0 {
				if err := m.copyAndTruncate(); err != nil {
					return err
				}
			} else {
				if err := os.Rename(m.path, m.path+".1"); err != nil {
					return err
				}
				reopen = number + 10
			}
		}
		if number == reopen {
			if err := errors.Join(out.Flush(), file.Close()); err != nil {
				return err
			}
			if file, err = os.OpenFile(m.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
				return err
			}
			out.Reset(file)
		}
		fmt.Fprintf(out, "%010d Jan  2 03:04:05 node kernel: [%d.000000] nothing to see\n", number, number)
	}
	return out.Flush()
}

func (m logWriter) shift() error {
	for i := m.kept; i > 0; i-- {
		err := os.Rename(m.path+"."+strconv.Itoa(i), m.path+"."+strconv.Itoa(i+1))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (m logWriter) copyAndTruncate() error {
	text, err := os.ReadFile(m.path)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(m.path+".1", text, 0o600), os.Truncate(m.path, 0))
}

// soakSize returns a small size with many rotations. FILELOG_SOAK overrides it with lines,
// rotations and restarts, for example "10000000 200 50".
func soakSize(t *testing.T) (lines, rotations, restarts int) {
	t.Helper()
	size := os.Getenv("FILELOG_SOAK")
	if size == "" {
		size = "200000 200 50"
	}
	_, err := fmt.Sscan(size, &lines, &rotations, &restarts)
	testkit.Require(t, err == nil, "FILELOG_SOAK is %q: %v", size, err)
	return lines, rotations, restarts
}

func TestSoakReturnsEveryLineOnceInConstantMemory(t *testing.T) {
	lines, rotations, restarts := soakSize(t)
	var read atomic.Int64
	m := logWriter{path: filepath.Join(t.TempDir(), "messages"), lines: lines, rotations: rotations, kept: 5, read: &read}
	milled := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	go func() { milled <- m.run(ctx) }()

	random := rand.New(rand.NewPCG(6, 6))
	var position, before logs.Position
	var beforeRead int64
	open := func() *Reader {
		t.Helper()
		r := testkit.Value(Open(Config{Path: m.path, From: position})).Must(t)
		r.delays = delays{quiet: 5 * time.Millisecond, linger: time.Second}
		return r
	}
	r := open()
	defer func() { r.Close() }()
	done, crashes := 0, 0
	var early, late uint64
	for read.Load() < int64(lines) {
		chunk, err := r.Next(ctx)
		if errors.Is(err, logs.ErrNotExist) {
			continue
		}
		testkit.Require(t, err == nil, "after line %d: %v", read.Load(), err)
		last := read.Load()
		before, beforeRead = position, last
		for line := range bytes.Lines(chunk.Text) {
			number, err := strconv.ParseInt(string(line[:min(10, len(line))]), 10, 64)
			testkit.Require(t, err == nil && number == last+1, "read line %q after line %d; %+v", line, last, r.Counts())
			last++
		}
		position = chunk.Next
		testkit.MustBeSame(t, r.Counts(), (Counts{}), "after line %d", last)
		// Every restart replaces the reader. Every second restart also loses the last stored
		// position.
		if due := int64(done+1) * int64(lines) / int64(restarts+1); done < restarts && last > due {
			done++
			if len(before) > 0 && random.IntN(2) == 0 {
				crashes++
				position, last = before, beforeRead
			}
			testkit.Must(t, r.Close())
			r = open()
		}
		read.Store(last)
		switch {
		case early == 0 && last > int64(lines/10):
			early = heap()
		case last == int64(lines):
			late = heap()
		}
	}
	testkit.Must(t, <-milled)
	t.Logf("%d lines, %d rotations, %d restarts of which %d fell back; heap %d KiB after a tenth, %d KiB at the end",
		lines, rotations, done, crashes, early>>10, late>>10)
	testkit.Check(t, done == restarts && crashes != 0, "%d restarts, %d of them to an older position; want %d and some", done, crashes, restarts)
	testkit.Check(t, late <= early+1<<20, "the heap grew from %d to %d bytes", early, late)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkRead reads 1,000,000 lines of 107 bytes from the page cache per op: opening,
// reading, splitting and checking for truncation, without processing the lines.
func BenchmarkRead(b *testing.B) {
	const lines = 1_000_000
	path := filepath.Join(b.TempDir(), "messages")
	line := fmt.Appendf(nil, "%-106s\n", "Jan  2 03:04:05 node kernel: [12345.678901] eth0: link becomes ready")
	testkit.Must(b, os.WriteFile(path, bytes.Repeat(line, lines), 0o600))
	b.SetBytes(int64(len(line)) * lines)
	var used time.Duration
	chunks := 0
	allocated := testing.AllocsPerRun(1, func() { chunks = readAll(b, path, lines*len(line)) })
	for b.Loop() {
		start := cpu(b)
		readAll(b, path, lines*len(line))
		used += cpu(b) - start
	}
	b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(allocated, "allocations/op")
	b.ReportMetric(float64(chunks), "chunks/op")
	most := float64(10*chunks + 100)
	testkit.Check(b, allocated <= most, "%.0f allocations for %d chunks, want at most %.0f", allocated, chunks, most)
}

func readAll(b *testing.B, path string, size int) (chunks int) {
	b.Helper()
	r := testkit.Value(Open(Config{Path: path})).Must(b)
	defer r.Close()
	for size > 0 {
		chunk := testkit.Value(r.Next(b.Context())).Must(b)
		size -= len(chunk.Text)
		chunks++
	}
	return chunks
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
