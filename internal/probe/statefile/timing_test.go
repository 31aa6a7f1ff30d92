package statefile

import (
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func started(t *testing.T, disk *fakeDisk) *Store {
	t.Helper()
	m := testkit.Value(open(disk, "boot", slog.New(slog.DiscardHandler))).Must(t)
	return m
}

// stored returns the state of the monitor "x" on a disk.
func stored(t *testing.T, disk *fakeDisk) string {
	t.Helper()
	text, err := disk.after(func(int) int { return 0 }).Read(stateFile)
	if err != nil || text == nil {
		return ""
	}
	s := testkit.Value(parse(text)).Must(t)
	return string(s.Monitors["x"].State)
}

func entry(n int) Entry { return Entry{State: []byte(strconv.Itoa(n))} }

func TestUrgentChangesAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFakeDisk()
		m := started(t, disk)
		defer m.Close()
		expect := func(when string, writes int, state string) {
			t.Helper()
			synctest.Wait()
			if got, _, _ := disk.tally(); got != writes || stored(t, disk) != state {
				t.Fatalf("%s the state was written %d times and is %q, want %d times and %q", when, got, stored(t, disk), writes, state)
			}
		}
		pass(time.Hour)
		expect("while nothing happens", 0, "")
		m.Keep("x", entry(1), false)
		expect("after an idle hour", 1, "1")
		m.Keep("x", entry(2), false)
		m.Keep("x", entry(3), false)
		pass(writeInterval - time.Nanosecond)
		expect("before the interval has passed", 1, "1")
		pass(time.Nanosecond)
		expect("after the interval", 2, "3")
		pass(urgentInterval)
		m.Keep("x", entry(4), false)
		expect("for a change that is not urgent", 2, "3")
		m.Keep("x", entry(5), true)
		expect("for an urgent change", 3, "5")
		m.Keep("x", entry(6), true)
		m.Keep("x", entry(7), false)
		pass(urgentInterval - time.Nanosecond)
		expect("right after an urgent write", 3, "5")
		pass(time.Nanosecond)
		expect("after the urgent interval", 4, "7")
		m.KeepLabels(map[string]string{"gpu": "true"})
		pass(writeInterval)
		expect("for labels", 5, "7")
		m.KeepLabels(map[string]string{"gpu": "true"})
		pass(writeInterval)
		expect("for the same labels", 5, "7")
		m.Keep("x", entry(8), false)
		testkit.Must(t, m.Flush())
		expect("when flushed", 6, "8")
		pass(time.Hour)
		expect("when nothing has changed", 6, "8")
		m.Keep("x", entry(9), false)
		testkit.Must(t, m.Close())
		expect("at the end", 7, "9")
	})
}

// Many problems at once cause a few writes, not one write each.
func TestManyUrgentChangesCauseFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFakeDisk()
		m := started(t, disk)
		defer m.Close()
		for i := range 10_000 {
			m.Keep("x", entry(i), true)
			pass(time.Millisecond)
		}
		synctest.Wait()
		writes, _, _ := disk.tally()
		most := int(10*time.Second/urgentInterval) + 1
		testkit.Check(t, writes <= most && writes >= most-2, "10 seconds of problems cost %d writes, want about %d", writes, most)
	})
}

func TestHangingDiskBlocksNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFakeDisk()
		m := started(t, disk)
		disk.stuck = make(chan struct{})
		m.Keep("x", entry(1), true)
		synctest.Wait() // the disk hangs now
		for i := range 100 {
			m.Keep("x", entry(i), true)
			m.KeepLabels(map[string]string{"i": strconv.Itoa(i)})
		}
		e, ok := m.Monitor("x")
		testkit.Check(t, ok && string(e.State) == "99", "remembered %s", e.State)
		writes, _, _ := disk.tally()
		testkit.Check(t, writes == 0, "the disk does not hang")
		close(disk.stuck)
		testkit.Must(t, m.Close())
		testkit.Same(t, stored(t, disk), "99", "the stored value")
	})
}

func TestFailedWriteIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFakeDisk()
		m := started(t, disk)
		defer m.Close()
		disk.failWith(errPower)
		m.Keep("x", entry(1), true)
		synctest.Wait()
		testkit.Require(t, m.Err() != nil, "nothing is said of it")
		_, before, _ := disk.tally()
		for i := range 100 {
			m.Keep("x", entry(i), true)
			pass(10 * time.Millisecond)
		}
		synctest.Wait()
		_, steps, _ := disk.tally()
		testkit.Check(t, before != 0 && steps == before, "the disk was tried %d times, and is not not treated: %d times", before, steps)
		disk.failWith(nil)
		pass(writeInterval)
		synctest.Wait()
		testkit.Check(t, m.Err() == nil && stored(t, disk) == "99", "kept %q, error %v", stored(t, disk), m.Err())
	})
}

func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the clock of the bubble does not wait
