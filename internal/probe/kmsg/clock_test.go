package kmsg

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/boot"
)

// last is the time of the newest record, which must be there.
func last(t *testing.T, r *Reader) time.Time {
	t.Helper()
	chunk := next(t, r)
	if len(chunk.Records) == 0 {
		t.Fatal("nothing was read")
	}
	return chunk.Records[len(chunk.Records)-1].Time
}

// caughtUp returns a reader that has seen the end of a log.
func caughtUp(t *testing.T, ring *ring) *Reader {
	t.Helper()
	r := ring.open(Config{})
	next(t, r)
	return r
}

func TestARecordsTimeIsTheBootsAndItsStamp(t *testing.T) {
	ring := newRing(t, 10)
	ring.addAt(90*time.Second, "old")
	if got, want := last(t, ring.open(Config{})), booted.Time.Add(90*time.Second); !got.Equal(want) {
		t.Errorf("it is of %s, want %s", got, want)
	}
}

// The kernel's clock stood still for as long as the machine slept; or was never kept
// exact; or the machine's clock was set after the boot.
func TestARecordThatIsWaitedForIsOfNow(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"the machine has slept":     3 * time.Hour,
		"the clock was set back":    -20 * time.Minute,
		"the stamps are off":        slack + time.Second,
		"the stamps are off a bit":  slack / 2,
		"the clock was in the past": 55 * 365 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			ring := newRing(t, 10)
			r := caughtUp(t, ring)
			ring.meanwhile = func() {
				stamp := ring.stamp() + time.Minute
				ring.now = ring.now.Add(time.Minute + ahead)
				ring.addAt(stamp, "now")
			}
			if off := last(t, r).Sub(ring.now).Abs(); off > slack {
				t.Errorf("its time is off by %s", off)
			}
		})
	}
}

// Who was busy finds records that were written some time ago.
func TestARecordThatWasNotWaitedForIsOfItsStamp(t *testing.T) {
	ring := newRing(t, 10)
	r := caughtUp(t, ring)
	mustWait(t, r) // it was called back since
	written := ring.now
	ring.add("while nobody looks")
	ring.now = ring.now.Add(time.Hour)
	if at := last(t, r); !at.Equal(written) {
		t.Errorf("it is of %s, and was written at %s", at, written)
	}
}

// What comes after the reader is never older than it, or a monitor that begins now
// would take it for something from before: the boot's time is in whole seconds.
func TestWhatIsWrittenAfterTheOpeningIsNotFromBefore(t *testing.T) {
	ring := newRing(t, 10)
	ring.now = ring.now.Add(700 * time.Millisecond)
	r := ring.open(Config{Since: ring.now})
	ring.addAt(ring.stamp()-700*time.Millisecond, "at once")
	if at := last(t, r); at.Before(ring.now) {
		t.Errorf("it is of %s, and the log was opened at %s", at, ring.now)
	}
}

// A restart finds the same times, so that what is found twice is known for the same.
func TestTimesStayWhatTheyWereAfterARestart(t *testing.T) {
	ring := newRing(t, 10)
	r := caughtUp(t, ring)
	slept := ring.stamp()
	ring.meanwhile = func() {
		ring.now = ring.now.Add(3 * time.Hour)
		ring.addAt(slept, "settles the clock")
	}
	from := next(t, r).Next
	ring.addAt(slept+time.Second, "found twice")
	before := last(t, r)
	ring.now = ring.now.Add(time.Minute)
	if after := last(t, ring.open(Config{From: from})); !after.Equal(before) {
		t.Errorf("it was of %s, and is of %s", before, after)
	}

	// Unless somebody has set the clock, by which everything moves.
	set := boot.Boot{ID: booted.ID, Time: booted.Time.Add(time.Hour)}
	if after, want := last(t, ring.open(Config{From: from, Boot: set})), set.Time.Add(slept+time.Second); !after.Equal(want) {
		t.Errorf("after the clock was set it is of %s, want %s", after, want)
	}
}
