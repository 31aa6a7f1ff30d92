package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// acting is a monitor that does what a test says.
type acting func(ctx context.Context, desk supervise.Reporter) error

func (a acting) Run(ctx context.Context, desk supervise.Reporter) error { return a(ctx, desk) }

// audience hears everything that monitors report.
type audience struct {
	mu    sync.Mutex
	heard []string
	ids   map[string]bool
}

func (a *audience) emit(monitor string, r finding.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids == nil {
		a.ids = map[string]bool{}
	}
	for _, c := range r.Conditions {
		a.heard = append(a.heard, fmt.Sprintf("%s: %s=%s %s", monitor, c.Type, c.Status, c.Reason))
	}
	for _, e := range r.Events {
		a.heard = append(a.heard, fmt.Sprintf("%s: event %s %s", monitor, e.Reason, e.Message))
		a.ids[e.ID] = true
	}
	for _, kind := range r.Gone {
		a.heard = append(a.heard, fmt.Sprintf("%s: %s is gone", monitor, kind))
	}
}

// hears returns what was heard since the last time.
func (a *audience) hears() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	heard := a.heard
	a.heard = nil
	return heard
}

func (a *audience) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, a.hears()); diff != "" {
		t.Errorf("what was heard is another (-want +got):\n%s", diff)
	}
}

// stage is a supervisor with an audience, in the bubble of a test.
func stage(t *testing.T) (*supervise.Supervisor, *audience) {
	t.Helper()
	a := &audience{}
	s := supervise.New(supervise.Config{Emit: a.emit, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.Stop)
	return s, a
}

func condition(kind string, status catalog.Status, reason string) finding.Condition {
	return finding.Condition{Type: kind, Status: status, Reason: reason, Since: time.Now()}
}

func report(conditions ...finding.Condition) finding.Report {
	return finding.Report{Source: "test", Conditions: conditions}
}

func job(name, version string, m supervise.Monitor, conditions ...string) supervise.Job {
	return supervise.Job{Name: name, Version: version, Source: "test", Conditions: conditions, Make: func() supervise.Monitor { return m }}
}

// breathe is what a monitor does that has nothing to tell.
func breathe(ctx context.Context, desk supervise.Reporter) {
	for ctx.Err() == nil {
		desk.Here()
		select {
		case <-ctx.Done():
		case <-time.After(supervise.CheckInterval):
		}
	}
}

// pass lets time go by, of which there is any amount in the bubble.
func pass(d time.Duration) { <-time.After(d) }

func dead(s *supervise.Supervisor) []string {
	var names []string
	for _, h := range s.Health() {
		if h.Dead != "" {
			names = append(names, h.Monitor+": "+h.Dead)
		}
	}
	return names
}

func expectDead(t *testing.T, s *supervise.Supervisor, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, dead(s)); diff != "" {
		t.Errorf("other monitors are dead (-want +got):\n%s", diff)
	}
}

func TestAMonitorThatCannotLookForAMinuteIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		step := make(chan func(supervise.Reporter))
		s.Apply(t.Context(), []supervise.Job{job("kernel", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			desk.Report(report(condition("Deadlock", catalog.False, "NoDeadlock"), condition("Readonly", catalog.True, "IsReadonly")))
			for {
				select {
				case <-ctx.Done():
					return nil
				case do := <-step:
					do(desk)
				}
			}
		}))})
		a.expect(t, "kernel: Deadlock=False NoDeadlock", "kernel: Readonly=True IsReadonly")
		blind := func(desk supervise.Reporter) {
			desk.Blind("LogUnreadable", errors.New("reading /dev/kmsg: permission denied"))
		}

		step <- blind
		pass(59 * time.Second)
		expectDead(t, s)
		step <- func(desk supervise.Reporter) { desk.Sees() }
		step <- blind // the minute begins anew
		pass(59 * time.Second)
		step <- blind // and is not put off by saying so again
		expectDead(t, s)
		a.expect(t)
		pass(2 * time.Second)
		expectDead(t, s, "kernel: reading /dev/kmsg: permission denied")
		a.expect(t, "kernel: Deadlock=Unknown LogUnreadable",
			`kernel: event LogUnreadable Node condition Deadlock is now: Unknown, reason: LogUnreadable, message: "reading /dev/kmsg: permission denied"`)

		// That another of its conditions changes is told, and what was found stays.
		step <- func(desk supervise.Reporter) {
			desk.Report(report(condition("Readonly", catalog.False, "NotReadonly")))
		}
		a.expect(t, "kernel: Readonly=Unknown LogUnreadable")
		step <- func(desk supervise.Reporter) { desk.Report(report(condition("Readonly", catalog.True, "IsReadonly"))) }
		a.expect(t, "kernel: Readonly=True IsReadonly")

		step <- func(desk supervise.Reporter) { desk.Sees() }
		expectDead(t, s)
		a.expect(t, "kernel: Deadlock=False NoDeadlock",
			`kernel: event NoDeadlock Node condition Deadlock is now: False, reason: NoDeadlock, message: ""`)
		if len(a.ids) != 2 {
			t.Errorf("the events have %d identities, want one each", len(a.ids))
		}
	})
}

func TestALogThatIsAwayIsShownAndNoDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		s.Apply(t.Context(), []supervise.Job{job("docker", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			desk.Report(report(condition("Corrupt", catalog.False, "Fine")))
			desk.Waits("/var/log/docker.log")
			breathe(ctx, desk)
			return nil
		}))})
		pass(time.Hour)
		expectDead(t, s)
		a.expect(t, "docker: Corrupt=False Fine")
		if h := s.Health(); len(h) != 1 || h[0].Waits != "/var/log/docker.log" {
			t.Errorf("the health is %+v", h)
		}
	})
}

func TestAMonitorThatPanicsIsRunAgainAndHarmsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		var runs atomic.Int64
		var cured atomic.Bool
		s.Apply(t.Context(), []supervise.Job{
			job("bad", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
				runs.Add(1)
				desk.Report(report(condition("Deadlock", catalog.False, "NoDeadlock")))
				desk.Sees()
				if !cured.Load() {
					panic("poison")
				}
				breathe(ctx, desk)
				return nil
			})),
			job("good", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
				desk.Report(report(condition("Fine", catalog.False, "Good")))
				breathe(ctx, desk)
				return nil
			})),
		})
		synctest.Wait()
		heard := a.hears()
		slices.Sort(heard)
		if diff := cmp.Diff([]string{
			"bad: Deadlock=False NoDeadlock", "bad: Deadlock=Unknown MonitorEnded",
			`bad: event MonitorEnded Node condition Deadlock is now: Unknown, reason: MonitorEnded, message: "panic: poison"`,
			"good: Fine=False Good",
		}, heard); diff != "" {
			t.Error(diff)
		}
		pass(10 * time.Minute)
		expectDead(t, s, "bad: panic: poison")
		a.expect(t) // its conditions do not flap
		if n := runs.Load(); n < 10 || n > 20 {
			t.Errorf("it was run %d times in 10 minutes", n)
		}
		cured.Store(true)
		pass(69 * time.Second)
		expectDead(t, s)
		a.expect(t, "bad: Deadlock=False NoDeadlock", `bad: event NoDeadlock Node condition Deadlock is now: False, reason: NoDeadlock, message: ""`)
	})
}

func TestAMonitorThatEndsByItselfIsDeadUntilItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		first := true
		s.Apply(t.Context(), []supervise.Job{job("short", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			if first {
				first = false
				return nil
			}
			desk.Report(report(condition("A", catalog.False, "Fine")))
			<-ctx.Done()
			return nil
		}))})
		expectDead(t, s, "short: it has ended by itself")
		pass(5 * time.Second)
		expectDead(t, s, "short: it has ended by itself") // it has not proved itself
		a.expect(t, "short: A=Unknown MonitorEnded")
		pass(7 * time.Second)
		expectDead(t, s)
		a.expect(t, "short: A=False Fine", `short: event Fine Node condition A is now: False, reason: Fine, message: ""`)
	})
}

func TestApplyTouchesOnlyWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		started, ended := map[string]int{}, map[string]int{}
		var mu sync.Mutex
		count := func(of map[string]int, name string) {
			mu.Lock()
			defer mu.Unlock()
			of[name]++
		}
		idle := func(name string) supervise.Monitor {
			return acting(func(ctx context.Context, _ supervise.Reporter) error {
				count(started, name)
				<-ctx.Done()
				count(ended, name)
				return nil
			})
		}
		expect := func(what string, started_, ended_ map[string]int) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(started_, started) + cmp.Diff(ended_, ended); diff != "" {
				t.Errorf("%s:\n%s", what, diff)
			}
		}
		s.Apply(t.Context(), []supervise.Job{job("a", "1", idle("a1"), "A"), job("b", "1", idle("b1"), "B", "C")})
		expect("at first", map[string]int{"a1": 1, "b1": 1}, map[string]int{})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", idle("a1"), "A"), job("b", "2", idle("b2"), "C", "D")})
		expect("one changed", map[string]int{"a1": 1, "b1": 1, "b2": 1}, map[string]int{"b1": 1})
		a.expect(t, "b: B is gone")
		s.Apply(t.Context(), []supervise.Job{job("b", "2", idle("b2"), "C", "D"), job("c", "1", idle("c1"))})
		expect("one went and one came", map[string]int{"a1": 1, "b1": 1, "b2": 1, "c1": 1}, map[string]int{"a1": 1, "b1": 1})
		a.expect(t, "a: A is gone")
		var names []string
		s.Each(func(name string, _ supervise.Monitor) { names = append(names, name) })
		if diff := cmp.Diff([]string{"b", "c"}, names); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAtTheEndNothingIsSaidToBeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &audience{}
		s := supervise.New(supervise.Config{Emit: a.emit, Logger: slog.New(slog.DiscardHandler)})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			desk.Report(report(condition("A", catalog.True, "Sick"), condition("B", catalog.False, "Well")))
			desk.Blind("LogUnreadable", errors.New("x"))
			<-ctx.Done()
			return ctx.Err()
		}), "A", "B")})
		a.expect(t, "a: A=True Sick", "a: B=False Well")
		s.Stop()
		pass(time.Hour) // no timer is left that could speak
		a.expect(t)
	})
}

func TestTheLogTellsEachTroubleOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, nil))
		a := &audience{}
		s := supervise.New(supervise.Config{Emit: a.emit, Logger: log})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			for range 50 {
				desk.Blind("LogUnreadable", errors.New("no"))
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
			desk.Sees()
			desk.Sees()
			<-ctx.Done()
			return ctx.Err()
		}))})
		pass(time.Hour)
		s.Stop()
		counts := map[string]int{}
		for line := range strings.Lines(text.String()) {
			for _, words := range []string{"cannot look", "can look again"} {
				if strings.Contains(line, words) {
					counts[words]++
				}
			}
		}
		if want := map[string]int{"cannot look": 1, "can look again": 1}; !maps.Equal(want, counts) {
			t.Errorf("the log tells %v, want %v:\n%s", counts, want, text.String())
		}
	})
}

// hung is a monitor that does not hear of anything, as one that reads from a file server
// which does not answer, until it is freed.
func hung(free <-chan struct{}) acting {
	return func(ctx context.Context, desk supervise.Reporter) error {
		desk.Report(report(condition("Deadlock", catalog.False, "NoDeadlock"), condition("Readonly", catalog.True, "IsReadonly")))
		desk.Sees()
		<-free
		desk.Here()
		desk.Report(report(condition("Deadlock", catalog.True, "Deadlocked")))
		breathe(ctx, desk)
		return ctx.Err()
	}
}

func TestAMonitorThatHangsIsDeadUntilItSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		free := make(chan struct{})
		s.Apply(t.Context(), []supervise.Job{job("kernel", "1", hung(free))})
		a.expect(t, "kernel: Deadlock=False NoDeadlock", "kernel: Readonly=True IsReadonly")
		pass(59 * time.Second)
		expectDead(t, s)
		pass(supervise.CheckInterval + 2*time.Second)
		expectDead(t, s, "kernel: it hangs: it has said nothing for a minute")
		a.expect(t, "kernel: Deadlock=Unknown MonitorHangs",
			`kernel: event MonitorHangs Node condition Deadlock is now: Unknown, reason: MonitorHangs, message: "it hangs: it has said nothing for a minute"`)
		pass(time.Hour)
		a.expect(t)
		close(free)
		expectDead(t, s)
		a.expect(t, "kernel: Deadlock=False NoDeadlock",
			`kernel: event NoDeadlock Node condition Deadlock is now: False, reason: NoDeadlock, message: ""`,
			"kernel: Deadlock=True Deadlocked")
		pass(time.Hour)
		expectDead(t, s)
	})
}

func TestOneThatHungAndThenCannotLookDoesNotSeemWellInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		s.Apply(t.Context(), []supervise.Job{job("kernel", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			desk.Report(report(condition("Deadlock", catalog.False, "NoDeadlock")))
			pass(2 * time.Minute)
			desk.Blind("LogUnreadable", errors.New("stale file handle"))
			breathe(ctx, desk)
			return ctx.Err()
		}))})
		pass(110 * time.Second)
		expectDead(t, s, "kernel: it hangs: it has said nothing for a minute")
		a.hears()
		pass(20 * time.Second)
		expectDead(t, s, "kernel: stale file handle")
		a.expect(t, "kernel: Deadlock=Unknown LogUnreadable",
			`kernel: event LogUnreadable Node condition Deadlock is now: Unknown, reason: LogUnreadable, message: "stale file handle"`)
	})
}

func TestNobodyWaitsLongForMonitorsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stage(t)
		free := make(chan struct{})
		well := acting(func(ctx context.Context, desk supervise.Reporter) error {
			breathe(ctx, desk)
			return ctx.Err()
		})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", hung(free), "Deadlock"), job("b", "1", hung(free)), job("c", "1", hung(free)), job("d", "1", well)})
		synctest.Wait()
		a.hears()
		within := func(what string, do func()) {
			t.Helper()
			began := time.Now()
			do()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s takes %s", what, took)
			}
		}
		within("a reload", func() {
			s.Apply(t.Context(), []supervise.Job{job("b", "2", well), job("c", "1", hung(free)), job("d", "1", well)})
		})
		a.expect(t, "a: Deadlock is gone")
		pass(5 * time.Minute)
		expectDead(t, s, "c: it hangs: it has said nothing for a minute")
		a.hears()
		if n := s.Abandoned(); n != 2 {
			t.Errorf("%d monitors are abandoned, want 2", n)
		}
		within("the end", s.Stop)
		if n := s.Abandoned(); n != 3 {
			t.Errorf("%d monitors are abandoned, want 3", n)
		}
		close(free)
		a.expect(t) // nobody hears them any more
		if n := s.Abandoned(); n != 0 {
			t.Errorf("%d monitors are abandoned, but all have ended", n)
		}
	})
}

func TestOneThatIsLateNowAndThenIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stage(t)
		s.Apply(t.Context(), []supervise.Job{job("slow", "1", acting(func(ctx context.Context, desk supervise.Reporter) error {
			for ctx.Err() == nil {
				desk.Sees()
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute - time.Second):
				}
			}
			return ctx.Err()
		}))})
		for range 1000 {
			pass(time.Second)
			expectDead(t, s)
		}
	})
}
