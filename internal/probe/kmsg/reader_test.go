package kmsg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// next returns the next chunk. It fails the test if Next would wait.
func next(t *testing.T, r *Reader) logs.Chunk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	chunk, err := r.Next(ctx)
	testkit.Must(t, err)
	return chunk
}

func texts(t *testing.T, c logs.Chunk) []string {
	t.Helper()
	var all []string
	for _, line := range lines(t, c) {
		all = append(all, line.text)
	}
	return all
}

// mustWait fails the test if there is something to read.
func mustWait(t *testing.T, r *Reader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	chunk, err := r.Next(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("there is %q to read, and the error %v", chunk.Text, err)
	}
}

func TestRecordsBeforeSinceAreSkipped(t *testing.T) {
	ring := newRing(t, 10)
	ring.add("old")
	ring.now = ring.now.Add(time.Minute)
	ring.add("")
	ring.add("new")
	r := ring.open(Config{Since: ring.now})
	ring.add("newest")
	chunk := next(t, r)
	if got := texts(t, chunk); !slices.Equal(got, []string{"new", "newest"}) {
		t.Errorf("read %q", got)
	}
	if chunk.Records[0].Number != 2 || !chunk.Records[0].Time.Equal(ring.now) || chunk.Lost != 0 {
		t.Errorf("read %+v, lost %d", chunk.Records, chunk.Lost)
	}
	mustWait(t, r)
}

// If nothing has happened yet, a restarted reader still continues at this position.
func TestFirstChunkOfAnIdleLogHasAPosition(t *testing.T) {
	for name, before := range map[string]int{"a log that was never written": 0, "one whose lines are old": 3} {
		t.Run(name, func(t *testing.T) {
			ring := newRing(t, 10)
			for range before {
				ring.add("old")
			}
			ring.now = ring.now.Add(time.Minute)
			r := ring.open(Config{Since: ring.now})
			chunk := next(t, r)
			if len(chunk.Text) != 0 || chunk.Records == nil || len(chunk.Records) != 0 || len(chunk.Next) == 0 {
				t.Fatalf("got %+v", chunk)
			}
			mustWait(t, r)
			ring.add("meanwhile")
			ring.now = ring.now.Add(time.Hour)
			restarted := ring.open(Config{Since: ring.now, From: chunk.Next})
			if got := texts(t, next(t, restarted)); !slices.Equal(got, []string{"meanwhile"}) {
				t.Errorf("read %q", got)
			}
		})
	}
}

func TestOverwrittenRecordsAreCounted(t *testing.T) {
	ring := newRing(t, 4)
	ring.add("zero")
	r := ring.open(Config{})
	next(t, r)
	for i := range 10 {
		ring.add(strconv.Itoa(i + 1))
	}
	chunk := next(t, r)
	if got := texts(t, chunk); !slices.Equal(got, []string{"7", "8", "9", "10"}) || chunk.Lost != 6 {
		t.Errorf("read %q, lost %d", got, chunk.Lost)
	}
	ring.skip()
	ring.add("after a gap")
	if chunk := next(t, r); chunk.Lost != 1 {
		t.Errorf("lost %d", chunk.Lost)
	}
	ring.add(strings.Repeat("x", maxRecord))
	ring.add("after one that is too long")
	if chunk := next(t, r); chunk.Lost != 1 || len(chunk.Records) != 1 {
		t.Errorf("read %d records, lost %d", len(chunk.Records), chunk.Lost)
	}
}

func TestRecordsOverwrittenBeforeTheFirstStartAreNotLost(t *testing.T) {
	ring := newRing(t, 2)
	for range 5 {
		ring.add("x")
	}
	if chunk := next(t, ring.open(Config{})); chunk.Lost != 0 || len(chunk.Records) != 2 {
		t.Errorf("read %d records, lost %d", len(chunk.Records), chunk.Lost)
	}
}

func TestInvalidPositionIsIgnored(t *testing.T) {
	for name, from := range map[string]string{
		"of another boot": `{"boot":"other","next":3,"booted":"2026-02-03T04:05:06Z","zero":"2026-02-03T04:05:06Z"}`,
		"not JSON":        `{"boot":`,
		"another kind":    `[1, 2]`,
		"of a file":       `{"inode":17,"offset":4}`,
	} {
		t.Run(name, func(t *testing.T) {
			ring := newRing(t, 10)
			for i := range 5 {
				ring.add(strconv.Itoa(i))
				ring.now = ring.now.Add(time.Minute)
			}
			r := ring.open(Config{From: logs.Position(from), Since: ring.now.Add(-2 * time.Minute)})
			if r.ResumeError() == nil {
				t.Error("nothing is said of it")
			}
			chunk := next(t, r)
			if got := texts(t, chunk); !slices.Equal(got, []string{"3", "4"}) || chunk.Lost != 0 {
				t.Errorf("read %q, lost %d", got, chunk.Lost)
			}
		})
	}
}

// A position ahead of the log must not make the reader skip new records.
func TestPositionAheadOfTheLogSkipsNoNewRecord(t *testing.T) {
	ring := newRing(t, 10)
	ring.add("old")
	r := ring.open(Config{From: logs.Position(`{"boot":"this","next":1000}`)})
	if chunk := next(t, r); len(chunk.Records) != 0 {
		t.Errorf("read %q", chunk.Text)
	}
	ring.add("new")
	chunk := next(t, r)
	if got := texts(t, chunk); !slices.Equal(got, []string{"new"}) || chunk.Lost != 0 {
		t.Errorf("read %q, lost %d", got, chunk.Lost)
	}
}

func TestChunkSizeIsLimited(t *testing.T) {
	ring := newRing(t, 1000)
	for range 700 {
		ring.add("x")
	}
	r := ring.open(Config{})
	for _, want := range []int{maxRecords, maxRecords, 700 - 2*maxRecords} {
		chunk := next(t, r)
		if got := len(chunk.Records); got != want {
			t.Errorf("a chunk has %d records, want %d", got, want)
		}
		if chunk.More != (want == maxRecords) {
			t.Errorf("after a chunk of %d records More is %v", want, chunk.More)
		}
	}
	for range 100 {
		ring.add(strings.Repeat("x", 8000))
	}
	if got := len(next(t, r).Text); got < maxText || got > maxText+maxRecord {
		t.Errorf("a chunk has %d bytes", got)
	}
}

func TestReadingContinuesAfterAnError(t *testing.T) {
	for _, wrong := range []error{unix.EIO, unix.EINVAL, unix.EPIPE} {
		t.Run(wrong.Error(), func(t *testing.T) {
			ring := newRing(t, 10)
			r := ring.open(Config{})
			next(t, r)
			ring.add("first")
			ring.add("second")
			ring.fail, ring.grace = wrong, 1
			if got := texts(t, next(t, r)); !slices.Equal(got, []string{"first"}) {
				t.Fatalf("read %q before the error", got)
			}
			for range 2 {
				if _, err := r.Next(t.Context()); !errors.Is(err, wrong) || !strings.HasPrefix(err.Error(), "reading ") {
					t.Fatalf("the error is %v, want %v", err, wrong)
				}
			}
			ring.fail = nil
			if got := texts(t, next(t, r)); !slices.Equal(got, []string{"second"}) {
				t.Errorf("read %q", got)
			}
		})
	}
}

func TestOpenRejectsOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "messages")
	if _, err := Open(Config{Path: path}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	testkit.Must(t, os.WriteFile(path, []byte("6,1,1,-;x\n"), 0o600))
	_, err := Open(Config{Path: path})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), Path) {
		t.Errorf("a file: %v", err)
	}
}

func TestReadingContinuesAfterACancel(t *testing.T) {
	ring := newRing(t, 10)
	r := ring.open(Config{})
	next(t, r)
	mustWait(t, r)
	ring.add("after")
	if got := texts(t, next(t, r)); !slices.Equal(got, []string{"after"}) {
		t.Errorf("read %q", got)
	}
}

// For any sequence of writes, overwrites and restarts, each record is read once or counted
// once as lost.
func TestEachRecordIsReadOnceOrCountedOnce(t *testing.T) {
	read, lost, restarts := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		ring := newRing(t, rapid.IntRange(1, 20).Draw(rt, "size"))
		r := ring.open(Config{})
		var at logs.Position
		written, accounted := uint64(0), uint64(0)
		hear := func(chunk logs.Chunk) {
			for _, line := range lines(t, chunk) {
				if line.text != strconv.FormatUint(line.Number, 10) {
					rt.Fatalf("record %d is %q", line.Number, line.text)
				}
			}
			read += len(chunk.Records)
			lost += int(chunk.Lost)
			accounted += uint64(len(chunk.Records)) + chunk.Lost
			at = chunk.Next
			// All available records were read, because the ring is smaller than a chunk.
			if accounted != written {
				rt.Fatalf("%d records were written, and %d read or counted as lost", written, accounted)
			}
		}
		hear(next(t, r))
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				for range rapid.IntRange(1, 30).Draw(rt, "lines") {
					ring.add(strconv.FormatUint(written, 10))
					written++
				}
			},
			"read": func(rt *rapid.T) {
				if accounted == written {
					rt.Skip("nothing to read")
				}
				hear(next(t, r))
			},
			"restart": func(rt *rapid.T) {
				restarts++
				if err := r.Close(); err != nil {
					rt.Fatal(err)
				}
				r = ring.open(Config{From: at, Since: ring.now.Add(time.Hour)})
				hear(next(t, r))
			},
		})
	})
	t.Logf("%d records read, %d lost, %d restarts", read, lost, restarts)
	if read == 0 || lost == 0 || restarts == 0 {
		t.Error("this test has looked at nothing")
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	perChunk := func(records int) float64 {
		ring := newRing(t, 2*maxRecords)
		r := ring.open(Config{})
		next(t, r)
		line := "usb 1-1: new high-speed USB device number 2 using xhci_hcd\n SUBSYSTEM=usb\n DEVICE=c189:1"
		for range maxRecords {
			ring.add(line)
		}
		next(t, r) // lets the buffers grow
		source := r.source.(*cursor)
		return testing.AllocsPerRun(100, func() {
			source.next -= uint64(records)
			r.next -= uint64(records)
			if chunk, err := r.Next(context.Background()); err != nil || len(chunk.Records) != records {
				t.Fatalf("read %d records: %v", len(chunk.Records), err)
			}
		})
	}
	one, all := perChunk(1), perChunk(maxRecords)
	t.Logf("a chunk of 1 record costs %.0f allocations, one of %d records %.0f", one, maxRecords, all)
	// encoding/json encodes the position. Its pools may or may not be empty.
	if all > one+10 {
		t.Error("what a chunk costs depends on its records")
	}
}
