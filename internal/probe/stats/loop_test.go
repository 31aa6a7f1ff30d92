package stats

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/supervise"
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
		if n := d.seen(); n != 1 {
			t.Errorf("it has read %d times at once", n)
		}
		time.Sleep(10*time.Minute + time.Second) //nolint:forbidigo // the clock of a bubble
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		if n := d.seen(); n != 11 {
			t.Errorf("it has read %d times in ten minutes", n)
		}
		if d.silence >= supervise.CheckInterval {
			t.Errorf("it was silent for %s", d.silence)
		}
	})
}

// A filesystem that hangs occupies a single thread and affects no other value. It is asked again
// after it has answered.
func TestAFilesystemThatHangsKeepsNobodyWaiting(t *testing.T) {
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
			if _, ok := got["/well"]; len(got) != 1 || !ok {
				t.Errorf("round %d: got %v", round, got)
			}
			if len(wrong) != 2 || wrong[0].Error() != "it is broken" {
				t.Errorf("round %d: %v", round, wrong)
			}
			// Only the first call asks it and waits.
			if waited := time.Since(begun); round == 0 && waited != 5*time.Second || round > 0 && waited != 0 {
				t.Errorf("round %d took %s", round, waited)
			}
		}
		close(hangs)
		synctest.Wait()
		got, wrong := a.ask(paths, 5*time.Second)
		if _, ok := got["/hung"]; !ok || len(wrong) != 1 {
			t.Errorf("after it answered: %v, %v", got, wrong)
		}
		close(count)
		for path := range count {
			asked[path]++
		}
		if asked["/hung"] != 2 || asked["/well"] != 6 {
			t.Errorf("asked %v", asked)
		}
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
		if d.silence >= supervise.CheckInterval {
			t.Errorf("it was silent for %s", d.silence)
		}
		var shown []string
		for _, v := range one.last.values["disk/percent_used"] {
			shown = append(shown, v.labels[0])
		}
		if slices.Sort(shown); !slices.Equal(shown, []string{"dm-0", "nvme0n1"}) {
			t.Errorf("shown are %q", shown)
		}
		close(release)
	})
}

func TestMeasureTellsOfTheMissing(t *testing.T) {
	if u, err := measure("/"); err != nil || u.used+u.free <= 0 {
		t.Errorf("/ has %+v: %v", u, err)
	}
	if _, err := measure("/nowhere at all"); err == nil {
		t.Error("a place that is not there was measured")
	}
}
