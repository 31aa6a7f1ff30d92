package kmsg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// These tests use the real kernel log. Other processes write to it at the same time, so a
// test only looks at lines that contain its mark.

// testDevice is the real device, for a test that writes to it.
type testDevice struct{ mark string }

func newTestDevice() testDevice { return testDevice{"autohealer-test-" + rand.Text()} }

// write writes a line. It must end with a newline, because the kernel holds back a record
// that may be continued. A test writes few lines per open: the kernel accepts ten lines
// per open file and then none for some seconds.
func (d testDevice) write(t *testing.T, prefix, words string) {
	t.Helper()
	file, err := os.OpenFile(Path, os.O_WRONLY, 0)
	testkit.Require(t, err == nil, "opening the kernel log for writing: %v: run this test as root on Linux", err)
	defer file.Close()
	_, err = fmt.Fprintf(file, "%s%s %s\n", prefix, d.mark, words)
	testkit.Require(t, err == nil, "writing to the kernel log: %v", err)
}

// provoke makes the kernel itself write a line with the mark: it names an unknown mount
// option.
func (d testDevice) provoke(t *testing.T) {
	t.Helper()
	err := unix.Mount("none", t.TempDir(), "tmpfs", 0, d.mark+"=1")
	testkit.Require(t, errors.Is(err, unix.EINVAL), "mounting with an unknown option: %v: run this test as root", err)
}

func thisBoot(t *testing.T) procfs.Boot {
	t.Helper()
	b := testkit.Value(procfs.ReadBoot("")).Must(t)
	return b
}

// line is a record with its text.
type line struct {
	logs.Record
	text string
}

// lines splits a chunk into its records.
func lines(t *testing.T, c logs.Chunk) []line {
	t.Helper()
	var all []line
	begin := 0
	for _, record := range c.Records {
		text := string(c.Text[begin:record.End])
		testkit.Require(t, strings.HasSuffix(text, "\n"), "the record %q does not end with a newline", text)
		all = append(all, line{record, strings.TrimSuffix(text, "\n")})
		begin = record.End
	}
	testkit.MustBeSame(t, begin, len(c.Text), "the end of the records in the chunk")
	return all
}

// until reads until a line with the mark ends with the given text. It returns all lines
// with the mark, the position after them, and the number of lost records.
func until(t *testing.T, r *Reader, mark, last string) (found []line, at logs.Position, lost uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		chunk, err := r.Next(ctx)
		testkit.Require(t, err == nil, "waiting for %q after %d lines: %v", last, len(found), err)
		at = chunk.Next
		lost += chunk.Lost
		for _, line := range lines(t, chunk) {
			if words, ok := strings.CutPrefix(line.text, mark+" "); ok {
				line.text = words
				found = append(found, line)
			}
		}
		if len(found) > 0 && found[len(found)-1].text == last {
			return found, at, lost
		}
	}
}

func read(t *testing.T, cfg Config) *Reader {
	t.Helper()
	cfg.Boot = thisBoot(t)
	r := testkit.Value(Open(cfg)).Must(t)
	t.Cleanup(func() { r.Close() })
	return r
}

func TestRealLogIsReadInOrderWithPriorityAndFacility(t *testing.T) {
	began := time.Now()
	device := newTestDevice()
	r := read(t, Config{Since: began})
	device.write(t, "<3>", "an error")
	device.write(t, "<30>", "of a daemon")
	device.write(t, "<0>", "of no facility")
	device.write(t, "<6>", "a tab\tand a back\\slash  ")
	device.write(t, "", "the end")
	found, _, _ := until(t, r, device.mark, "the end")
	type said struct {
		text     string
		priority int8
		facility int16
	}
	const user, daemon = 1, 3
	want := []said{
		{"an error", 3, user},
		{"of a daemon", 6, daemon},
		// The kernel does not let user space write with the kernel's facility.
		{"of no facility", 0, user},
		{`a tab\x09and a back\x5cslash`, 6, user},
		{"the end", 4, user},
	}
	testkit.MustBeSame(t, len(found), len(want), "lines that were written and read: %v", found)
	for i, line := range found {
		testkit.Same(t, (said{line.text, line.Priority, line.Facility}), want[i], "the lines")
		if i > 0 && line.Number <= found[i-1].Number {
			t.Errorf("record %d comes after %d", line.Number, found[i-1].Number)
		}
		testkit.Check(t, !strings.Contains(line.Time.String(), "m="), "the time %s is in the future", line.Time)
		testkit.Check(t, !line.Time.Before(began) && !line.Time.After(time.Now().Add(tolerance)),
			"a line that was written after %s has the time %s", began, line.Time)
	}
}

func TestKernelRecordsHaveTheKernelFacility(t *testing.T) {
	device := newTestDevice()
	r := read(t, Config{Since: time.Now()})
	device.provoke(t)
	for ctx := t.Context(); ; {
		chunk := testkit.Value(r.Next(ctx)).Must(t)
		for _, line := range lines(t, chunk) {
			if strings.Contains(line.text, device.mark) {
				testkit.Check(t, line.Facility == logs.Kernel && line.Priority == 3 && strings.HasPrefix(line.text, "tmpfs: "), "the kernel wrote %+v", line)
				return
			}
		}
	}
}

func TestRestartOnTheRealLogRepeatsAndLosesNothing(t *testing.T) {
	device := newTestDevice()
	first := read(t, Config{Since: time.Now()})
	device.write(t, "", "before")
	before, at, _ := until(t, first, device.mark, "before")
	testkit.Must(t, first.Close())
	device.write(t, "", "meanwhile")
	// The reader ignores Since if it has a position.
	second := read(t, Config{From: at, Since: time.Now().Add(time.Hour)})
	testkit.Must(t, second.ResumeError())
	device.write(t, "", "after")
	found, _, lost := until(t, second, device.mark, "after")
	testkit.Check(t, len(before) == 1 && len(found) == 2 && found[0].text == "meanwhile" && lost == 0,
		"before the restart %v was read, after it %v, and %d were lost", before, found, lost)
	// A second restart from the same position returns the same records with the same times.
	third := read(t, Config{From: at})
	again, _, _ := until(t, third, device.mark, "after")
	testkit.Require(t, len(again) == 2 && again[0].Number == found[0].Number, "the third reader read %v, the second %v", again, found)
	if !again[0].Time.Equal(found[0].Time) {
		t.Errorf("the same record has the time %s, and then %s", found[0].Time, again[0].Time)
	}
}

func TestPositionOfAnotherBootIsIgnored(t *testing.T) {
	device := newTestDevice()
	first := read(t, Config{Since: time.Now()})
	device.write(t, "", "old")
	_, at, _ := until(t, first, device.mark, "old")
	other := thisBoot(t)
	other.ID = "another"
	r := testkit.Value(Open(Config{Boot: other, From: at, Since: time.Now().Add(-time.Hour)})).Must(t)
	defer r.Close()
	testkit.Check(t, r.ResumeError() != nil, "nothing is said of it")
	device.write(t, "", "new")
	// In a full ring, new records overwrite those that the reader starts with, so the number
	// of lost records is arbitrary here.
	found, _, _ := until(t, r, device.mark, "new")
	testkit.Check(t, len(found) == 2, "read %v", found)
}

// The test fills the ring until it wraps, once while no reader runs and once while a
// reader does not read.
func TestOverrunOfTheRealLogIsCounted(t *testing.T) {
	device := newTestDevice()
	there := read(t, Config{Since: time.Now()})
	device.write(t, "", "before")
	_, at, _ := until(t, there, device.mark, "before")

	// The ring has at most 4 MiB on common machines. A record takes more than its text.
	filler := strings.Repeat("x", 900)
	written := uint64(0)
	for ; written < 6<<20/900; written++ {
		device.write(t, "<7>", filler)
		if written%512 == 0 && wrapped(t, at) {
			break
		}
	}
	device.write(t, "", "after")

	away := read(t, Config{From: at})
	for name, r := range map[string]*Reader{"a reader that was there": there, "a reader that was away": away} {
		found, _, lost := until(t, r, device.mark, "after")
		t.Logf("%s: %d lines written, %d read, %d lost", name, written, len(found), lost)
		testkit.Check(t, lost != 0, "%s: no lost records", name)
		// Other processes may write as well, so more records may be lost.
		got := uint64(len(found)-1) + lost
		testkit.Check(t, got >= written, "%s: %d of %d lines were read or counted as lost", name, got, written)
	}
}

// wrapped says whether the record after a position was overwritten.
func wrapped(t *testing.T, at logs.Position) bool {
	t.Helper()
	r := read(t, Config{From: at})
	defer r.Close()
	chunk := testkit.Value(r.Next(t.Context())).Must(t)
	return chunk.Lost > 0
}

func TestNextOnTheRealLogCanBeInterrupted(t *testing.T) {
	for name, callBack := range map[string]func(*Reader, context.CancelFunc) error{
		"by the context": func(r *Reader, cancel context.CancelFunc) error { cancel(); return context.Canceled },
		"by Close":       func(r *Reader, cancel context.CancelFunc) error { r.Close(); return os.ErrClosed },
	} {
		t.Run(name, func(t *testing.T) {
			r := read(t, Config{Since: time.Now()})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error)
			go func() {
				for {
					if _, err := r.Next(ctx); err != nil {
						ended <- err
						return
					}
				}
			}()
			awaitPoll(t)
			want := callBack(r, cancel)
			select {
			case err := <-ended:
				testkit.Check(t, errors.Is(err, want), "ended with %v, want %v", err, want)
			case <-time.After(10 * time.Second):
				t.Fatal("it waits on")
			}
		})
	}
}

// awaitPoll waits until a goroutine waits for the file in Next.
func awaitPoll(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for range 1000 {
		all := string(stacks[:runtime.Stack(stacks, true)])
		for stack := range strings.SplitSeq(all, "\n\n") {
			if strings.Contains(stack, "[IO wait") && strings.Contains(stack, "(*Reader).Next") {
				return
			}
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // a goroutine that begins to wait sends no signal
	}
	t.Fatal("no goroutine waits for the log")
}
