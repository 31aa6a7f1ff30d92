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

	"github.com/resourcestack/autohealer/internal/probe/boot"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// These tests are on the kernel's own log, into which others write at the same time: a
// test looks at lines that carry its mark only.

// device is the real one, for a test that writes into it.
type device struct{ mark string }

func newDevice() device { return device{"autohealer-test-" + rand.Text()} }

// say writes a line. It must end by a newline: the kernel holds a record back for as
// long as it may be continued. And it must be the first of few: the kernel takes ten
// lines from whoever has opened the log, and no more for some seconds.
func (d device) say(t *testing.T, prefix, words string) {
	t.Helper()
	file, err := os.OpenFile(Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("this test writes into the kernel's log, for which it must be root on a Linux machine: %v", err)
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%s%s %s\n", prefix, d.mark, words); err != nil {
		t.Fatalf("writing into the kernel's log: %v", err)
	}
}

// provoke has the kernel itself say something of the mark: it names an option of a
// mount that it does not know.
func (d device) provoke(t *testing.T) {
	t.Helper()
	err := unix.Mount("none", t.TempDir(), "tmpfs", 0, d.mark+"=1")
	if !errors.Is(err, unix.EINVAL) {
		t.Fatalf("mounting with an unknown option, for which this test must be root: %v", err)
	}
}

func thisBoot(t *testing.T) boot.Boot {
	t.Helper()
	b, err := boot.Read("")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// line is a record with its text.
type line struct {
	logs.Record
	text string
}

// lines takes a chunk apart.
func lines(t *testing.T, c logs.Chunk) []line {
	t.Helper()
	var all []line
	begin := 0
	for _, record := range c.Records {
		text := string(c.Text[begin:record.End])
		if !strings.HasSuffix(text, "\n") {
			t.Fatalf("the record %q does not end by a newline", text)
		}
		all = append(all, line{record, strings.TrimSuffix(text, "\n")})
		begin = record.End
	}
	if begin != len(c.Text) {
		t.Fatalf("%q is of no record", c.Text[begin:])
	}
	return all
}

// until reads until a line of the mark ends with the words, and returns all those of
// the mark, where the reader is then, and how many were lost.
func until(t *testing.T, r *Reader, mark, last string) (found []line, at logs.Position, lost uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		chunk, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %q after %d lines: %v", last, len(found), err)
		}
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
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestTheRealLogIsReadInOrderWithPriorityAndFacility(t *testing.T) {
	began := time.Now()
	device := newDevice()
	r := read(t, Config{Since: began})
	device.say(t, "<3>", "an error")
	device.say(t, "<30>", "of a daemon")
	device.say(t, "<0>", "of no facility")
	device.say(t, "<6>", "a tab\tand a back\\slash  ")
	device.say(t, "", "the end")
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
		// Nobody can pretend to be the kernel.
		{"of no facility", 0, user},
		{`a tab\x09and a back\x5cslash`, 6, user},
		{"the end", 4, user},
	}
	if len(found) != len(want) {
		t.Fatalf("%d lines were written, and %d read: %v", len(want), len(found), found)
	}
	for i, line := range found {
		if got := (said{line.text, line.Priority, line.Facility}); got != want[i] {
			t.Errorf("read %+v, want %+v", got, want[i])
		}
		if i > 0 && line.Number <= found[i-1].Number {
			t.Errorf("record %d comes after %d", line.Number, found[i-1].Number)
		}
		if strings.Contains(line.Time.String(), "m=") {
			t.Errorf("the time %s is more than what the clock shows", line.Time)
		}
		if line.Time.Before(began) || line.Time.After(time.Now().Add(slack)) {
			t.Errorf("a line that was written after %s is of %s", began, line.Time)
		}
	}
}

func TestWhatTheKernelItselfSaysIsOfItsFacility(t *testing.T) {
	device := newDevice()
	r := read(t, Config{Since: time.Now()})
	device.provoke(t)
	for ctx := t.Context(); ; {
		chunk, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines(t, chunk) {
			if strings.Contains(line.text, device.mark) {
				if line.Facility != logs.Kernel || line.Priority != 3 || !strings.HasPrefix(line.text, "tmpfs: ") {
					t.Errorf("the kernel said %+v", line)
				}
				return
			}
		}
	}
}

func TestARestartOnTheRealLogNeitherReplaysNorForgets(t *testing.T) {
	device := newDevice()
	first := read(t, Config{Since: time.Now()})
	device.say(t, "", "before")
	before, at, _ := until(t, first, device.mark, "before")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	device.say(t, "", "meanwhile")
	// Since plays no part where there is a position.
	second := read(t, Config{From: at, Since: time.Now().Add(time.Hour)})
	if err := second.PassedOver(); err != nil {
		t.Fatal(err)
	}
	device.say(t, "", "after")
	found, _, lost := until(t, second, device.mark, "after")
	if len(before) != 1 || len(found) != 2 || found[0].text != "meanwhile" || lost != 0 {
		t.Errorf("before the restart %v was read, after it %v, and %d were lost", before, found, lost)
	}
	// A second restart from the same place gives the same once more, times and all.
	third := read(t, Config{From: at})
	again, _, _ := until(t, third, device.mark, "after")
	if len(again) != 2 || again[0].Number != found[0].Number {
		t.Fatalf("the third reader read %v, the second %v", again, found)
	}
	if !again[0].Time.Equal(found[0].Time) {
		t.Errorf("the same record is of %s, and then of %s", found[0].Time, again[0].Time)
	}
}

func TestAnotherBootsPositionIsPassedOver(t *testing.T) {
	device := newDevice()
	first := read(t, Config{Since: time.Now()})
	device.say(t, "", "old")
	_, at, _ := until(t, first, device.mark, "old")
	other := thisBoot(t)
	other.ID = "another"
	r, err := Open(Config{Boot: other, From: at, Since: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.PassedOver() == nil {
		t.Error("nothing is said of it")
	}
	device.say(t, "", "new")
	// In a ring that is full, what is new takes the place of what the reader begins with:
	// how many are lost says nothing here.
	if found, _, _ := until(t, r, device.mark, "new"); len(found) != 2 {
		t.Errorf("read %v", found)
	}
}

// The ring is filled until it has turned, while the reader is away and while it is
// there but does not read.
func TestAnOverrunOfTheRealRingIsCountedAndReadingGoesOn(t *testing.T) {
	device := newDevice()
	there := read(t, Config{Since: time.Now()})
	device.say(t, "", "before")
	_, at, _ := until(t, there, device.mark, "before")

	// A ring has 4 MiB at most on any machine that people run this test on; a record
	// takes more than its text.
	filler := strings.Repeat("x", 900)
	written := uint64(0)
	for ; written < 6<<20/900; written++ {
		device.say(t, "<7>", filler)
		if written%512 == 0 && turned(t, at) {
			break
		}
	}
	device.say(t, "", "after")

	away := read(t, Config{From: at})
	for name, r := range map[string]*Reader{"a reader that was there": there, "one that was away": away} {
		found, _, lost := until(t, r, device.mark, "after")
		t.Logf("%s: %d lines written, %d read, %d lost", name, written, len(found), lost)
		if lost == 0 {
			t.Errorf("%s has lost nothing", name)
		}
		// Others may write too, so that more may be lost.
		if got := uint64(len(found)-1) + lost; got < written {
			t.Errorf("%s accounts for %d of %d lines", name, got, written)
		}
	}
}

// turned says whether the record after a position is gone.
func turned(t *testing.T, at logs.Position) bool {
	t.Helper()
	r := read(t, Config{From: at})
	defer r.Close()
	chunk, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return chunk.Lost > 0
}

func TestWhoWaitsForTheRealLogCanBeCalledBack(t *testing.T) {
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
				if !errors.Is(err, want) {
					t.Errorf("ended with %v, want %v", err, want)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("it waits on")
			}
		})
	}
}

// awaitPoll waits until a goroutine waits for a file in Next.
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
		time.Sleep(time.Millisecond) //nolint:forbidigo // nobody tells that a goroutine has begun to wait
	}
	t.Fatal("nobody waits for the log")
}
