package kmsg

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// last returns the time of the newest record. It fails the test if there is none.
func last(t *testing.T, r *Reader) time.Time {
	t.Helper()
	chunk := next(t, r)
	testkit.Require(t, len(chunk.Records) != 0, "nothing was read")
	return chunk.Records[len(chunk.Records)-1].Time
}

// caughtUp returns a reader that has reached the end of a log.
func caughtUp(t *testing.T, ring *ring) *Reader {
	t.Helper()
	r := ring.open(Config{})
	next(t, r)
	return r
}

func TestTimeIsBootTimePlusTimestamp(t *testing.T) {
	ring := newRing(t, 10)
	ring.addAt(90*time.Second, "old")
	got, want := last(t, ring.open(Config{})), booted.Time.Add(90*time.Second)
	testkit.Check(t, got.Equal(want), "its time is %s, want %s", got, want)
}

// The kernel's clock stopped during a suspend, or drifted, or the system time was set
// after the boot.
func TestAwaitedRecordGetsTheCurrentTime(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"the machine has slept":     3 * time.Hour,
		"the clock was set back":    -20 * time.Minute,
		"the stamps are off":        tolerance + time.Second,
		"the stamps are off a bit":  tolerance / 2,
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
			testkit.Between(t, last(t, r).Sub(ring.now).Abs(), 0, tolerance, "its time is off by")
		})
	}
}

// A reader that was busy finds records that were written some time ago.
func TestPendingRecordGetsTheTimeOfItsTimestamp(t *testing.T) {
	ring := newRing(t, 10)
	r := caughtUp(t, ring)
	mustWait(t, r) // Next has returned once since
	written := ring.now
	ring.add("while no reader waits")
	ring.now = ring.now.Add(time.Hour)
	at := last(t, r)
	testkit.Check(t, at.Equal(written), "its time is %s, but it was written at %s", at, written)
}

// A record that is written after the log was opened never gets a time before that,
// although the boot time has whole seconds. Otherwise a monitor that starts now would
// ignore it as old.
func TestNewRecordIsNotOlderThanTheOpen(t *testing.T) {
	ring := newRing(t, 10)
	ring.now = ring.now.Add(700 * time.Millisecond)
	r := ring.open(Config{Since: ring.now})
	ring.addAt(ring.stamp()-700*time.Millisecond, "at once")
	at := last(t, r)
	testkit.Check(t, !at.Before(ring.now), "its time is %s, but the log was opened at %s", at, ring.now)
}

// A restarted reader computes the same times, so that a finding that is repeated has the
// same identity.
func TestTimesAreTheSameAfterARestart(t *testing.T) {
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
	after := last(t, ring.open(Config{From: from}))
	testkit.Check(t, after.Equal(before), "its time was %s and is now %s", before, after)

	// If the system time was set, all times move.
	set := procfs.Boot{ID: booted.ID, Time: booted.Time.Add(time.Hour)}
	if after, want := last(t, ring.open(Config{From: from, Boot: set})), set.Time.Add(slept+time.Second); !after.Equal(want) {
		t.Errorf("after the clock was set its time is %s, want %s", after, want)
	}
}
