package statefile

import (
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func started(t *testing.T, disk *platter) *Store {
	t.Helper()
	m, err := open(disk, "boot", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// kept is the state of the monitor "x" on a disk.
func kept(t *testing.T, disk *platter) string {
	t.Helper()
	text, err := disk.after(func(int) int { return 0 }).Read(stateFile)
	if err != nil || text == nil {
		return ""
	}
	s, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(s.Monitors["x"].State)
}

func entry(n int) Entry { return Entry{State: []byte(strconv.Itoa(n))} }

func TestWhatIsUrgentIsWrittenAtOnceAndTheRestSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newPlatter()
		m := started(t, disk)
		defer m.Close()
		expect := func(when string, writes int, state string) {
			t.Helper()
			synctest.Wait()
			if got, _, _ := disk.tally(); got != writes || kept(t, disk) != state {
				t.Fatalf("%s the state was written %d times and is %q, want %d times and %q", when, got, kept(t, disk), writes, state)
			}
		}
		pass(time.Hour)
		expect("while nothing happens", 0, "")
		m.Keep("x", entry(1), false)
		expect("after an hour's rest", 1, "1")
		m.Keep("x", entry(2), false)
		m.Keep("x", entry(3), false)
		pass(calm - time.Nanosecond)
		expect("before it is time", 1, "1")
		pass(time.Nanosecond)
		expect("when it is time", 2, "3")
		pass(brisk)
		m.Keep("x", entry(4), false)
		expect("for a mere position", 2, "3")
		m.Keep("x", entry(5), true)
		expect("for something urgent", 3, "5")
		m.Keep("x", entry(6), true)
		m.Keep("x", entry(7), false)
		pass(brisk - time.Nanosecond)
		expect("right after that", 3, "5")
		pass(time.Nanosecond)
		expect("a bit later", 4, "7")
		m.KeepLabels(map[string]string{"gpu": "true"})
		pass(calm)
		expect("for labels", 5, "7")
		m.KeepLabels(map[string]string{"gpu": "true"})
		pass(calm)
		expect("for the same labels", 5, "7")
		m.Keep("x", entry(8), false)
		if err := m.Flush(); err != nil {
			t.Fatal(err)
		}
		expect("when flushed", 6, "8")
		pass(time.Hour)
		expect("when nothing has changed", 6, "8")
		m.Keep("x", entry(9), false)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		expect("at the end", 7, "9")
	})
}

// A storm of problems costs a write now and then, and not one each.
func TestAStormOfUrgentStatesIsWrittenNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newPlatter()
		m := started(t, disk)
		defer m.Close()
		for i := range 10_000 {
			m.Keep("x", entry(i), true)
			pass(time.Millisecond)
		}
		synctest.Wait()
		writes, _, _ := disk.tally()
		if most := int(10*time.Second/brisk) + 1; writes > most || writes < most-2 {
			t.Errorf("10 seconds of problems cost %d writes, want about %d", writes, most)
		}
	})
}

func TestNobodyWaitsForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newPlatter()
		m := started(t, disk)
		disk.stuck = make(chan struct{})
		m.Keep("x", entry(1), true)
		synctest.Wait() // the disk hangs now
		for i := range 100 {
			m.Keep("x", entry(i), true)
			m.KeepLabels(map[string]string{"i": strconv.Itoa(i)})
		}
		if e, ok := m.Monitor("x"); !ok || string(e.State) != "99" {
			t.Errorf("remembered %s", e.State)
		}
		if writes, _, _ := disk.tally(); writes != 0 {
			t.Error("the disk does not hang")
		}
		close(disk.stuck)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if got := kept(t, disk); got != "99" {
			t.Errorf("kept %s", got)
		}
	})
}

func TestADiskThatDoesNotTakeTheStateIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newPlatter()
		m := started(t, disk)
		defer m.Close()
		disk.beset(errPower)
		m.Keep("x", entry(1), true)
		synctest.Wait()
		if m.Err() == nil {
			t.Fatal("nothing is said of it")
		}
		_, before, _ := disk.tally()
		for i := range 100 {
			m.Keep("x", entry(i), true)
			pass(10 * time.Millisecond)
		}
		synctest.Wait()
		if _, steps, _ := disk.tally(); before == 0 || steps != before {
			t.Errorf("the disk was tried %d times, and is not left alone: %d times", before, steps)
		}
		disk.beset(nil)
		pass(calm)
		synctest.Wait()
		if m.Err() != nil || kept(t, disk) != "99" {
			t.Errorf("kept %q, error %v", kept(t, disk), m.Err())
		}
	})
}

func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // nobody waits: the clock is the bubble's
