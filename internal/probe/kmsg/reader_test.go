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
	chunk := testkit.Value(r.Next(ctx)).Must(t)
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
	testkit.Require(t, errors.Is(err, context.DeadlineExceeded), "there is %q to read, and the error %v", chunk.Text, err)
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
	testkit.Same(t, texts(t, chunk), []string{"new", "newest"}, "the texts")
	testkit.Check(t, chunk.Records[0].Number == 2 && chunk.Records[0].Time.Equal(ring.now) && chunk.Lost == 0, "read %+v, lost %d", chunk.Records, chunk.Lost)
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
			testkit.Require(t, len(chunk.Text) == 0 && chunk.Records != nil && len(chunk.Records) == 0 && len(chunk.Next) != 0, "got %+v", chunk)
			mustWait(t, r)
			ring.add("meanwhile")
			ring.now = ring.now.Add(time.Hour)
			restarted := ring.open(Config{Since: ring.now, From: chunk.Next})
			testkit.Same(t, texts(t, next(t, restarted)), []string{"meanwhile"}, "the texts")
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
	got := texts(t, chunk)
	testkit.Check(t, slices.Equal(got, []string{"7", "8", "9", "10"}) && chunk.Lost == 6, "read %q, lost %d", got, chunk.Lost)
	ring.skip()
	ring.add("after a gap")
	testkit.Same(t, next(t, r).Lost, 1, "lost records")
	ring.add(strings.Repeat("x", maxRecord))
	ring.add("after a record that is too long")
	chunk = next(t, r)
	testkit.Check(t, chunk.Lost == 1 && len(chunk.Records) == 1, "read %d records, lost %d", len(chunk.Records), chunk.Lost)
}

func TestRecordsOverwrittenBeforeTheFirstStartAreNotLost(t *testing.T) {
	ring := newRing(t, 2)
	for range 5 {
		ring.add("x")
	}
	chunk := next(t, ring.open(Config{}))
	testkit.Check(t, chunk.Lost == 0 && len(chunk.Records) == 2, "read %d records, lost %d", len(chunk.Records), chunk.Lost)
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
			testkit.Check(t, r.ResumeError() != nil, "nothing is said of it")
			chunk := next(t, r)
			got := texts(t, chunk)
			testkit.Check(t, slices.Equal(got, []string{"3", "4"}) && chunk.Lost == 0, "read %q, lost %d", got, chunk.Lost)
		})
	}
}

// A position ahead of the log must not make the reader skip new records.
func TestPositionAheadOfTheLogSkipsNoNewRecord(t *testing.T) {
	ring := newRing(t, 10)
	ring.add("old")
	r := ring.open(Config{From: logs.Position(`{"boot":"this","next":1000}`)})
	testkit.Same(t, len(next(t, r).Records), 0, "the texts")
	ring.add("new")
	chunk := next(t, r)
	got := texts(t, chunk)
	testkit.Check(t, slices.Equal(got, []string{"new"}) && chunk.Lost == 0, "read %q, lost %d", got, chunk.Lost)
}

func TestChunkSizeIsLimited(t *testing.T) {
	ring := newRing(t, 1000)
	for range 700 {
		ring.add("x")
	}
	r := ring.open(Config{})
	for _, want := range []int{maxRecords, maxRecords, 700 - 2*maxRecords} {
		chunk := next(t, r)
		testkit.Same(t, len(chunk.Records), want, "records of a chunk")
		testkit.Same(t, chunk.More, (want == maxRecords), "More after a chunk of %d records", want)
	}
	for range 100 {
		ring.add(strings.Repeat("x", 8000))
	}
	testkit.Between(t, len(next(t, r).Text), maxText, maxText+maxRecord, "bytes of a chunk")
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
			testkit.MustBeSame(t, texts(t, next(t, r)), []string{"first"}, "the texts before the error")
			for range 2 {
				_, err := r.Next(t.Context())
				testkit.Require(t, errors.Is(err, wrong) && strings.HasPrefix(err.Error(), "reading "), "the error is %v, want %v", err, wrong)
			}
			ring.fail = nil
			testkit.Same(t, texts(t, next(t, r)), []string{"second"}, "the texts")
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
	testkit.Check(t, err != nil && strings.Contains(err.Error(), path) && strings.Contains(err.Error(), Path), "a file: %v", err)
}

func TestReadingContinuesAfterACancel(t *testing.T) {
	ring := newRing(t, 10)
	r := ring.open(Config{})
	next(t, r)
	mustWait(t, r)
	ring.add("after")
	testkit.Same(t, texts(t, next(t, r)), []string{"after"}, "the texts")
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
				testkit.MustBeSame(rt, line.text, strconv.FormatUint(line.Number, 10), "record %d", line.Number)
			}
			read += len(chunk.Records)
			lost += int(chunk.Lost)
			accounted += uint64(len(chunk.Records)) + chunk.Lost
			at = chunk.Next
			// All available records were read, because the ring is smaller than a chunk.
			testkit.MustBeSame(rt, accounted, written, "records that were written, and read or counted as lost")
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
				testkit.Must(rt, r.Close())
				r = ring.open(Config{From: at, Since: ring.now.Add(time.Hour)})
				hear(next(t, r))
			},
		})
	})
	t.Logf("%d records read, %d lost, %d restarts", read, lost, restarts)
	testkit.Check(t, read != 0 && lost != 0 && restarts != 0, "this test has looked at nothing")
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
		source := r.device.source.(*cursor)
		return testing.AllocsPerRun(100, func() {
			source.next -= uint64(records)
			r.next -= uint64(records)
			chunk, err := r.Next(context.Background())
			testkit.Require(t, err == nil && len(chunk.Records) == records, "read %d records: %v", len(chunk.Records), err)
		})
	}
	one, all := perChunk(1), perChunk(maxRecords)
	t.Logf("a chunk of 1 record costs %.0f allocations, one of %d records %.0f", one, maxRecords, all)
	// encoding/json encodes the position. Its pools may or may not be empty.
	testkit.Check(t, all <= one+10, "what a chunk costs depends on its records")
}
