package stats

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestFiguresAreReadAtOnceAndEveryInterval(t *testing.T) {
	proc, sys := machine(t)
	synctest.Test(t, func(t *testing.T) {
		m := shipped(t, shippedFiles[0])
		m.ProcPath = proc
		one := monitor(t, Config{Monitor: m, SysPath: sys})
		one.asker.measure = func(string) (usage, error) { return usage{}, nil }
		ctx, stop := context.WithCancel(t.Context())
		d := &recorder{}
		ended := make(chan error)
		go func() { ended <- one.Run(ctx, d) }()
		synctest.Wait()
		testkit.Same(t, d.seen(), 1, "reads at the start")
		time.Sleep(10*time.Minute + time.Second) //nolint:forbidigo // the clock of a bubble
		stop()
		err := <-ended
		testkit.Check(t, errors.Is(err, context.Canceled), "it ended with %v", err)
		testkit.Same(t, d.seen(), 11, "reads in ten minutes")
		testkit.Check(t, d.silence < supervise.CheckInterval, "it was silent for %s", d.silence)
	})
}

// A filesystem that hangs occupies a single thread and affects no other value. It is asked again
// after it has answered.
func TestAHangingFilesystemDelaysNoOtherValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		asked := map[string]int{}
		count := make(chan string, 100)
		a := &asker{asked: map[string]bool{}, measure: func(path string) (usage, error) {
			count <- path
			switch path {
			case "/hung":
				<-hangs
			case "/broken":
				return usage{}, errors.New("it is broken")
			}
			return usage{used: 1, free: 2}, nil
		}}
		paths := []string{"/hung", "/well", "/broken"}
		for round := range 5 {
			begun := time.Now()
			got, wrong := a.ask(paths, 5*time.Second)
			_, ok := got["/well"]
			testkit.Check(t, len(got) == 1 && ok, "round %d: got %v", round, got)
			testkit.Check(t, len(wrong) == 2 && wrong[0].Error() == "it is broken", "round %d: %v", round, wrong)
			// Only the first call asks it and waits.
			waited := time.Since(begun)
			testkit.Check(t, (round != 0 || waited == 5*time.Second) && (round <= 0 || waited == 0), "round %d took %s", round, waited)
		}
		close(hangs)
		synctest.Wait()
		got, wrong := a.ask(paths, 5*time.Second)
		_, ok := got["/hung"]
		testkit.Check(t, ok && len(wrong) == 1, "after it answered: %v, %v", got, wrong)
		close(count)
		for path := range count {
			asked[path]++
		}
		testkit.Check(t, asked["/hung"] == 2 && asked["/well"] == 6, "asked %v", asked)
	})
}

// While a filesystem hangs, the monitor continues and exports the others.
func TestAHungDiskDoesNotSilenceTheMonitor(t *testing.T) {
	proc, sys := machine(t)
	synctest.Test(t, func(t *testing.T) {
		m := shipped(t, shippedFiles[0])
		m.ProcPath, m.LsblkTimeout = proc, time.Minute
		one := monitor(t, Config{Monitor: m, SysPath: sys})
		release := make(chan struct{})
		one.asker.measure = func(path string) (usage, error) {
			if path == "/etc/hosts" {
				<-release
			}
			return usage{1, 1}, nil
		}
		ctx, stop := context.WithCancel(t.Context())
		d := &recorder{}
		ended := make(chan error)
		go func() { ended <- one.Run(ctx, d) }()
		time.Sleep(5 * time.Minute) //nolint:forbidigo // the clock of a bubble
		stop()
		<-ended
		testkit.Check(t, d.silence < supervise.CheckInterval, "it was silent for %s", d.silence)
		var shown []string
		for _, v := range one.last.values["disk/percent_used"] {
			shown = append(shown, v.labels[0])
		}
		slices.Sort(shown)
		testkit.Check(t, slices.Equal(shown, []string{"dm-0", "nvme0n1"}), "shown are %q", shown)
		close(release)
	})
}

func TestMeasureTellsOfTheMissing(t *testing.T) {
	u, err := measure("/")
	testkit.Check(t, err == nil && u.used+u.free > 0, "/ has %+v: %v", u, err)
	_, err = measure("/nowhere at all")
	testkit.Check(t, err != nil, "a place that is not there was measured")
}
