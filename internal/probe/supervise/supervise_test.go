package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/resourcestack/autohealer/internal/testkit"
)

// acting is a monitor that a test controls.
type fakeMonitor func(ctx context.Context, reporter supervise.Reporter) error

func (a fakeMonitor) Run(ctx context.Context, reporter supervise.Reporter) error {
	return a(ctx, reporter)
}

// audience records the reports of monitors.
type recorder struct {
	mu       sync.Mutex
	received []string
	ids      map[string]bool
}

func (a *recorder) emit(monitor string, r finding.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids == nil {
		a.ids = map[string]bool{}
	}
	for _, c := range r.Conditions {
		a.received = append(a.received, fmt.Sprintf("%s: %s=%s %s", monitor, c.Type, c.Status, c.Reason))
	}
	for _, e := range r.Events {
		word := map[finding.Severity]string{finding.Info: "event", finding.Warn: "warning"}[e.Severity]
		a.received = append(a.received, fmt.Sprintf("%s: %s %s %s", monitor, word, e.Reason, e.Message))
		a.ids[e.ID] = true
	}
	for _, kind := range r.Gone {
		a.received = append(a.received, fmt.Sprintf("%s: %s is gone", monitor, kind))
	}
}

// hears returns the reports since the last call.
func (a *recorder) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	received := a.received
	a.received = nil
	return received
}

func (a *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	testkit.NoDiff(t, cmp.Diff(want, a.take()), "the reports")
}

// stage returns a supervisor whose reports are recorded.
func newSupervisor(t *testing.T) (*supervise.Supervisor, *recorder) {
	t.Helper()
	a := &recorder{}
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

// breathe gives signs of life until ctx ends.
func giveSignsOfLife(ctx context.Context, reporter supervise.Reporter) {
	for ctx.Err() == nil {
		reporter.Heartbeat()
		select {
		case <-ctx.Done():
		case <-time.After(supervise.CheckInterval):
		}
	}
}

// pass lets time pass in the bubble.
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
	testkit.NoDiff(t, cmp.Diff(want, dead(s)), "the dead monitors")
}

func TestAMonitorThatCannotLookForAMinuteIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		step := make(chan func(supervise.Reporter))
		s.Apply(t.Context(), []supervise.Job{job("kernel", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			reporter.Report(report(condition("Deadlock", catalog.False, "NoDeadlock"), condition("Readonly", catalog.True, "IsReadonly")))
			for {
				select {
				case <-ctx.Done():
					return nil
				case do := <-step:
					do(reporter)
				}
			}
		}))})
		a.expect(t, "kernel: Deadlock=False NoDeadlock", "kernel: Readonly=True IsReadonly")
		blind := func(reporter supervise.Reporter) {
			reporter.CannotObserve("LogUnreadable", errors.New("reading /dev/kmsg: permission denied"))
		}

		step <- blind
		pass(59 * time.Second)
		expectDead(t, s)
		step <- func(reporter supervise.Reporter) { reporter.CanObserve() }
		step <- blind // the minute starts again
		pass(59 * time.Second)
		step <- blind // a repeated call does not extend it
		expectDead(t, s)
		a.expect(t)
		pass(2 * time.Second)
		expectDead(t, s, "kernel: reading /dev/kmsg: permission denied")
		a.expect(t, "kernel: Deadlock=Unknown LogUnreadable",
			`kernel: warning LogUnreadable Node condition Deadlock is now: Unknown, reason: LogUnreadable, message: "reading /dev/kmsg: permission denied"`)

		// A change of another condition is reported, and a True condition stays.
		step <- func(reporter supervise.Reporter) {
			reporter.Report(report(condition("Readonly", catalog.False, "NotReadonly")))
		}
		a.expect(t, "kernel: Readonly=Unknown LogUnreadable")
		step <- func(reporter supervise.Reporter) {
			reporter.Report(report(condition("Readonly", catalog.True, "IsReadonly")))
		}
		a.expect(t, "kernel: Readonly=True IsReadonly")

		step <- func(reporter supervise.Reporter) { reporter.CanObserve() }
		expectDead(t, s)
		a.expect(t, "kernel: Deadlock=False NoDeadlock",
			`kernel: event NoDeadlock Node condition Deadlock is now: False, reason: NoDeadlock, message: ""`)
		testkit.Same(t, len(a.ids), 2, "identities of the events: one each")
	})
}

func TestAMonitorThatWaitsIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		s.Apply(t.Context(), []supervise.Job{job("docker", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			reporter.Report(report(condition("Corrupt", catalog.False, "Fine")))
			reporter.WaitsFor("/var/log/docker.log")
			giveSignsOfLife(ctx, reporter)
			return nil
		}))})
		pass(time.Hour)
		expectDead(t, s)
		a.expect(t, "docker: Corrupt=False Fine")
		h := s.Health()
		testkit.Check(t, len(h) == 1 && h[0].Waits == "/var/log/docker.log", "the health is %+v", h)
	})
}

func TestAMonitorThatPanicsIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		var runs atomic.Int64
		var cured atomic.Bool
		s.Apply(t.Context(), []supervise.Job{
			job("bad", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
				runs.Add(1)
				reporter.Report(report(condition("Deadlock", catalog.False, "NoDeadlock")))
				reporter.CanObserve()
				if !cured.Load() {
					panic("poison")
				}
				giveSignsOfLife(ctx, reporter)
				return nil
			})),
			job("good", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
				reporter.Report(report(condition("Fine", catalog.False, "Good")))
				giveSignsOfLife(ctx, reporter)
				return nil
			})),
		})
		synctest.Wait()
		received := a.take()
		slices.Sort(received)
		testkit.NoDiff(t, cmp.Diff([]string{
			"bad: Deadlock=False NoDeadlock", "bad: Deadlock=Unknown MonitorEnded",
			`bad: warning MonitorEnded Node condition Deadlock is now: Unknown, reason: MonitorEnded, message: "panic: poison"`,
			"good: Fine=False Good",
		}, received),
			"the reports")
		pass(10 * time.Minute)
		expectDead(t, s, "bad: panic: poison")
		a.expect(t) // its conditions do not flap
		testkit.Between(t, runs.Load(), 10, 20, "runs in 10 minutes")
		cured.Store(true)
		pass(69 * time.Second)
		expectDead(t, s)
		a.expect(t, "bad: Deadlock=False NoDeadlock", `bad: event NoDeadlock Node condition Deadlock is now: False, reason: NoDeadlock, message: ""`)
	})
}

func TestAMonitorThatEndsIsDeadUntilItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		first := true
		s.Apply(t.Context(), []supervise.Job{job("short", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			if first {
				first = false
				return nil
			}
			reporter.Report(report(condition("A", catalog.False, "Fine")))
			<-ctx.Done()
			return nil
		}))})
		expectDead(t, s, "short: the monitor has ended unexpectedly")
		pass(5 * time.Second)
		expectDead(t, s, "short: the monitor has ended unexpectedly") // it has not proved itself
		a.expect(t, "short: A=Unknown MonitorEnded")
		pass(7 * time.Second)
		expectDead(t, s)
		a.expect(t, "short: A=False Fine", `short: event Fine Node condition A is now: False, reason: Fine, message: ""`)
	})
}

func TestApplyReplacesOnlyChangedJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		started, ended := map[string]int{}, map[string]int{}
		var mu sync.Mutex
		count := func(of map[string]int, name string) {
			mu.Lock()
			defer mu.Unlock()
			of[name]++
		}
		idle := func(name string) supervise.Monitor {
			return fakeMonitor(func(ctx context.Context, _ supervise.Reporter) error {
				count(started, name)
				<-ctx.Done()
				count(ended, name)
				return nil
			})
		}
		expect := func(what string, started_, ended_ map[string]int) {
			t.Helper()
			synctest.Wait()
			testkit.NoDiff(t, cmp.Diff(started_, started)+cmp.Diff(ended_, ended), "%s", what)
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
		testkit.NoDiff(t, cmp.Diff([]string{"b", "c"}, names), "the names")
	})
}

func TestStopReportsNothingAsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &recorder{}
		s := supervise.New(supervise.Config{Emit: a.emit, Logger: slog.New(slog.DiscardHandler)})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			reporter.Report(report(condition("A", catalog.True, "Unhealthy"), condition("B", catalog.False, "Well")))
			reporter.CannotObserve("LogUnreadable", errors.New("x"))
			<-ctx.Done()
			return ctx.Err()
		}), "A", "B")})
		a.expect(t, "a: A=True Unhealthy", "a: B=False Well")
		s.Stop()
		pass(time.Hour) // no timer is left that could report
		a.expect(t)
	})
}

func TestEachFailureIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, nil))
		a := &recorder{}
		s := supervise.New(supervise.Config{Emit: a.emit, Logger: log})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			for range 50 {
				reporter.CannotObserve("LogUnreadable", errors.New("no"))
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
			reporter.CanObserve()
			reporter.CanObserve()
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
		testkit.Same(t, counts, map[string]int{"cannot look": 1, "can look again": 1}, "the log:\n%s", text.String())
	})
}

// hung is a monitor that ignores its context until it is freed, for example because it reads from a
// file server that does not answer.
func hung(free <-chan struct{}) fakeMonitor {
	return func(ctx context.Context, reporter supervise.Reporter) error {
		reporter.Report(report(condition("Deadlock", catalog.False, "NoDeadlock"), condition("Readonly", catalog.True, "IsReadonly")))
		reporter.CanObserve()
		<-free
		reporter.Heartbeat()
		reporter.Report(report(condition("Deadlock", catalog.True, "Deadlocked")))
		giveSignsOfLife(ctx, reporter)
		return ctx.Err()
	}
}

func TestAMonitorThatHangsIsDeadUntilItReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		free := make(chan struct{})
		s.Apply(t.Context(), []supervise.Job{job("kernel", "1", hung(free))})
		a.expect(t, "kernel: Deadlock=False NoDeadlock", "kernel: Readonly=True IsReadonly")
		pass(59 * time.Second)
		expectDead(t, s)
		pass(supervise.CheckInterval + 2*time.Second)
		expectDead(t, s, "kernel: the monitor hangs: no sign of life for a minute")
		a.expect(t, "kernel: Deadlock=Unknown MonitorHangs",
			`kernel: warning MonitorHangs Node condition Deadlock is now: Unknown, reason: MonitorHangs, message: "the monitor hangs: no sign of life for a minute"`)
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

func TestAMonitorThatHangsAndThenIsBlindStaysDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		s.Apply(t.Context(), []supervise.Job{job("kernel", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			reporter.Report(report(condition("Deadlock", catalog.False, "NoDeadlock")))
			pass(2 * time.Minute)
			reporter.CannotObserve("LogUnreadable", errors.New("stale file handle"))
			giveSignsOfLife(ctx, reporter)
			return ctx.Err()
		}))})
		pass(110 * time.Second)
		expectDead(t, s, "kernel: the monitor hangs: no sign of life for a minute")
		a.take()
		pass(20 * time.Second)
		expectDead(t, s, "kernel: stale file handle")
		a.expect(t, "kernel: Deadlock=Unknown LogUnreadable",
			`kernel: event LogUnreadable Node condition Deadlock is now: Unknown, reason: LogUnreadable, message: "stale file handle"`)
	})
}

func TestMonitorsThatHangAreAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newSupervisor(t)
		free := make(chan struct{})
		well := fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			giveSignsOfLife(ctx, reporter)
			return ctx.Err()
		})
		s.Apply(t.Context(), []supervise.Job{job("a", "1", hung(free), "Deadlock"), job("b", "1", hung(free)), job("c", "1", hung(free)), job("d", "1", well)})
		synctest.Wait()
		a.take()
		within := func(what string, do func()) {
			t.Helper()
			began := time.Now()
			do()
			testkit.Between(t, time.Since(began), 0, 5*time.Second, "the time of %s", what)
		}
		within("a reload", func() {
			s.Apply(t.Context(), []supervise.Job{job("b", "2", well), job("c", "1", hung(free)), job("d", "1", well)})
		})
		a.expect(t, "a: Deadlock is gone")
		pass(5 * time.Minute)
		expectDead(t, s, "c: the monitor hangs: no sign of life for a minute")
		a.take()
		testkit.Same(t, s.Abandoned(), 2, "abandoned monitors")
		within("the end", s.Stop)
		testkit.Same(t, s.Abandoned(), 3, "abandoned monitors")
		close(free)
		a.expect(t) // their reports are ignored
		testkit.Same(t, s.Abandoned(), 0, "abandoned monitors after all have ended")
	})
}

func TestALateMonitorIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSupervisor(t)
		s.Apply(t.Context(), []supervise.Job{job("slow", "1", fakeMonitor(func(ctx context.Context, reporter supervise.Reporter) error {
			for ctx.Err() == nil {
				reporter.CanObserve()
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
