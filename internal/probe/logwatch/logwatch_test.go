package logwatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// log is a fake log that a test writes to and breaks.
type log struct {
	mu      sync.Mutex
	chunks  []logs.Chunk // one per record
	err     error        // returned by reads; nil if the log is readable
	opened  int
	from    logs.Position // position of the last open
	since   time.Time
	changed chan struct{}
}

func newLog() *log { return &log{changed: make(chan struct{}, 1)} }

func (l *log) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// write adds a record with the current time. After writeMore, the log has more to read.
func (l *log) write(message string)     { l.add(message, false) }
func (l *log) writeMore(message string) { l.add(message, true) }

func (l *log) add(message string, more bool) {
	l.mu.Lock()
	number := uint64(len(l.chunks) + 1)
	l.chunks = append(l.chunks, logs.Chunk{
		Text:    []byte(message + "\n"),
		Records: []logs.Record{{End: len(message) + 1, Time: time.Now(), Number: number}},
		Next:    strconv.AppendUint(nil, number, 10),
		More:    more,
	})
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *log) open(from logs.Position, since time.Time) (logs.Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened++
	l.from, l.since = from, since
	r := &reader{log: l}
	if len(from) > 0 {
		if err := json.Unmarshal(from, &r.at); err != nil {
			return nil, err
		}
	}
	return r, nil
}

type reader struct {
	log    *log
	at     int
	failed bool
}

func (r *reader) next() (logs.Chunk, bool, error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.log.err != nil {
		err := r.log.err
		if r.failed {
			err = nil // returned only once
		}
		r.failed = true
		return logs.Chunk{}, err != nil, err
	}
	if r.at == len(r.log.chunks) {
		return logs.Chunk{}, false, nil
	}
	r.at++
	return r.log.chunks[r.at-1], true, nil
}

func (r *reader) Next(ctx context.Context) (logs.Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return logs.Chunk{}, err
		}
		if chunk, ok, err := r.next(); ok {
			return chunk, err
		}
		select {
		case <-ctx.Done():
			return logs.Chunk{}, ctx.Err()
		case <-r.log.changed:
		}
	}
}

func (r *reader) Close() error { return nil }

// recorder records the calls of a watch.
type recorder struct {
	mu    sync.Mutex
	calls []string
	here  int // number of calls of Here
}

func (d *recorder) record(call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.calls); n == 0 || d.calls[n-1] != call || call != "sees" {
		d.calls = append(d.calls, call)
	}
}

func (d *recorder) Report(r finding.Report) {
	for _, e := range r.Events {
		d.record("event " + e.Reason)
	}
	for _, c := range r.Conditions {
		d.record(fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
}
func (d *recorder) Heartbeat() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.here++
}
func (d *recorder) CanObserve()          { d.record("sees") }
func (d *recorder) WaitsFor(what string) { d.record("waits for " + what) }
func (d *recorder) CannotObserve(reason string, err error) {
	d.record("blind: " + reason + " " + err.Error())
}

func (d *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	testkit.NoDiff(t, cmp.Diff(want, d.calls), "the watch reported")
	d.calls = nil
}

// fixture is a watch with its log, its store and its reporter.
type fixture struct {
	*log
	*recorder
	store  *statefile.Store
	config logwatch.Config
	watch  *logwatch.Watch
	stop   func()
}

func newFixture(t *testing.T, change func(*config.LogMonitor)) *fixture {
	t.Helper()
	kept := testkit.Value(statefile.Open(statefile.Config{Boot: "this"})).Must(t)
	r := &fixture{log: newLog(), recorder: &recorder{}, store: kept, stop: func() {}}
	r.config = logwatch.Config{
		Key: "kernel", Boot: procfs.Boot{ID: "this", Time: time.Now().Add(-time.Hour)}, Memory: kept, Logger: slog.New(slog.DiscardHandler), Open: r.open,
		Monitor: config.LogMonitor{
			Plugin: config.Kmsg, LogPath: "/dev/log", BufferSize: 10, Source: "kernel-monitor", Lookback: time.Minute,
			Conditions: []config.Condition{{Type: "Deadlock", Reason: "NoDeadlock"}},
			Rules: []config.LogRule{
				{Reason: "OOM", Pattern: "killed process", Count: 1},
				{Permanent: true, Condition: "Deadlock", Reason: "Hung", Pattern: "task hung", ClearAfter: 10 * time.Minute, Count: 1},
			},
		},
	}
	if change != nil {
		change(&r.config.Monitor)
	}
	t.Cleanup(func() {
		r.stop()
		testkit.Must(t, kept.Close())
	})
	return r
}

// run starts a new watch, as after a restart.
func (r *fixture) run(t *testing.T) {
	t.Helper()
	r.stop()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	r.watch = logwatch.New(r.config)
	go func() {
		defer close(ended)
		err := r.watch.Run(ctx, r.recorder)
		testkit.Check(t, errors.Is(err, context.Canceled), "Run returned %v", err)
	}()
	r.stop = func() { cancel(); <-ended }
}

func pass(d time.Duration) { <-time.After(d) }

func TestWatchReportsAndContinuesAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.run(t)
		pass(time.Second)
		r.expect(t, "Deadlock=False NoDeadlock")
		pass(3 * time.Second)
		r.expect(t, "sees") // even if nothing is written
		r.write("killed process")
		r.write("task hung")
		r.expect(t, "sees", "event OOM", "sees", "event Hung", "Deadlock=True Hung")
		counts := r.watch.Counts()
		testkit.Check(t, counts.Lines == 2 && counts.Problems["OOM"] == 1 && counts.Problems["Hung"] == 1, "the counts are %+v", counts)

		r.stop()
		r.write("killed process")
		r.run(t)
		r.expect(t, "sees", "event OOM", "Deadlock=True Hung")
		testkit.Same(t, string(r.from), "2", "the position at which it continues")
	})
}

// Otherwise every restart of the agent would remove the taint of an unhealthy node and add it again.
func TestConditionsAreReportedAfterTheLogWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		for range 100 {
			r.writeMore("killed process")
		}
		r.write("task hung")
		r.run(t)
		synctest.Wait()
		r.recorder.mu.Lock()
		defer r.recorder.mu.Unlock()
		told := slices.DeleteFunc(r.calls, func(words string) bool { return words == "sees" || words == "event OOM" })
		testkit.NoDiff(t, cmp.Diff([]string{"event Hung", "Deadlock=True Hung"}, told), "the reports")
	})
}

func TestConditionsAreReportedWithinSecondsFromABusyLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.run(t)
		for range 20 {
			r.writeMore("killed process")
			pass(400 * time.Millisecond)
		}
		synctest.Wait()
		r.recorder.mu.Lock()
		defer r.recorder.mu.Unlock()
		at := slices.Index(r.calls, "Deadlock=False NoDeadlock")
		before := 0
		for _, words := range r.calls[:max(at, 0)] {
			if words == "event OOM" {
				before++
			}
		}
		testkit.Check(t, before >= 12 && before <= 14, "the condition was reported after %d lines of 400 ms each, want 5 s: %q", before, r.calls)
	})
}

// The reporter removes a condition that no monitor reports, also one of an unhealthy node.
func TestStoredConditionsAreReportedWhenOpenHangsOrPanics(t *testing.T) {
	for name, open := range map[string]func(hang <-chan struct{}){
		"hangs":  func(hang <-chan struct{}) { <-hang },
		"panics": func(<-chan struct{}) { panic("bad line") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFixture(t, nil)
				r.write("task hung")
				r.run(t)
				r.expect(t, "sees", "event Hung", "Deadlock=True Hung")
				r.stop()
				r.stop = func() {}

				hang := make(chan struct{})
				r.config.Open = func(logs.Position, time.Time) (logs.Reader, error) {
					open(hang)
					return nil, errors.New("open was released")
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }() // as the supervisor does
					_ = logwatch.New(r.config).Run(ctx, r.recorder)
				}()
				pass(9 * time.Second) // after ten seconds the condition would be removed
				r.expect(t, "Deadlock=True Hung")
				cancel()
				close(hang)
				<-ended
			})
		})
	}
}

func TestConditionClearsWhenTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.run(t)
		pass(time.Second)
		r.write("task hung")
		r.expect(t, "Deadlock=False NoDeadlock", "sees", "event Hung", "Deadlock=True Hung")
		pass(9 * time.Minute)
		r.expect(t)
		pass(2 * time.Minute)
		r.expect(t, "event NoDeadlock", "Deadlock=False NoDeadlock")
		r.run(t)
		pass(time.Second)
		r.expect(t, "Deadlock=False NoDeadlock")
	})
}

// A line that was written before the deadline counts, even if it is read later.
func TestPendingLinesAreReadBeforeAConditionClears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.run(t)
		pass(time.Second)
		r.write("task hung")
		r.expect(t, "Deadlock=False NoDeadlock", "sees", "event Hung", "Deadlock=True Hung")
		r.stop()
		pass(9 * time.Minute)
		r.write("task hung")
		pass(2 * time.Minute)
		r.run(t)
		r.expect(t, "sees", "Deadlock=True Hung")
	})
}

func TestUnreadableLogIsReopenedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.set(errors.New("permission denied"))
		r.run(t)
		r.expect(t, "Deadlock=False NoDeadlock", "blind: LogUnreadable permission denied")
		pass(time.Hour)
		synctest.Wait()
		testkit.Check(t, r.opened >= 100 && r.opened <= 130, "it was opened %d times in an hour, want every 30 seconds", r.opened)
		r.recorder.mu.Lock()
		r.calls = nil
		r.recorder.mu.Unlock()
		r.set(nil)
		pass(40 * time.Second)
		r.expect(t, "sees") // even if nothing is written
		r.write("killed process")
		r.expect(t, "sees", "event OOM")
	})
}

func TestMissingLogIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.set(fmt.Errorf("opening it: %w", logs.ErrNotExist))
		r.run(t)
		r.expect(t, "Deadlock=False NoDeadlock", "waits for /dev/log")
		pass(time.Hour)
		r.expect(t)
		testkit.Same(t, r.opened, 1, "opened readers: the reader itself waits")
		r.set(nil)
		r.write("killed process")
		r.expect(t, "sees", "event OOM")
	})
}

func TestWatchOfAnIdleLogSignalsLiveness(t *testing.T) {
	for what, err := range map[string]error{"a log without new lines": nil, "a missing log": logs.ErrNotExist} {
		synctest.Test(t, func(t *testing.T) {
			r := newFixture(t, nil)
			r.set(err)
			r.run(t)
			for range 100 {
				pass(supervise.CheckInterval + 3*time.Second)
				synctest.Wait()
				r.recorder.mu.Lock()
				testkit.Check(t, r.here != 0, "the watch of %s made no call for %s", what, supervise.CheckInterval+3*time.Second)
				r.here = 0
				r.recorder.mu.Unlock()
			}
		})
	}
}

func TestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, func(m *config.LogMonitor) { m.Delay = 30 * time.Minute })
		expect := func(what string, want time.Time) {
			t.Helper()
			synctest.Wait()
			testkit.Check(t, r.since.Equal(want), "%s lines count since %s, want %s", what, r.since, want)
		}
		first := time.Now().Add(-time.Minute)
		r.run(t)
		expect("at the first start", first)
		pass(10 * time.Minute)
		r.run(t) // nothing was read yet, so lines that were written meanwhile still count
		expect("after a restart", first)
		r.stop()
		r.config.Boot = procfs.Boot{ID: "next", Time: time.Now()}
		pass(time.Hour)
		r.run(t)
		expect("after a reboot", r.config.Boot.Time.Add(30*time.Minute))
		r.run(t)
		expect("after a reboot and a restart", r.config.Boot.Time.Add(30*time.Minute))
	})
}

// An agent that runs between two newer ones preserves the unknown fields of the watch and
// of the monitor. If the log has changed, those of the watch may be wrong and are dropped.
func TestUnknownStateFieldsArePreserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
			r.store.Keep("kernel", statefile.Entry{State: text}, true)
			r.run(t)
			r.write("task hung")
			pass(time.Second)
			entry, _ := r.store.Monitor("kernel")
			testkit.Contains(t, string(entry.State), `"Deadlock"`, "the state is written again")
			return entry.State, r.store.CountUnknown()
		})
		r.config.Monitor.LogPath = "/dev/other"
		r.run(t)
		pass(time.Second)
		if entry, _ := r.store.Monitor("kernel"); strings.Contains(string(entry.State), "newLevel") || !strings.Contains(string(entry.State), "newPace") || r.store.CountUnknown() != 1 {
			t.Errorf("for another log %d fields are preserved: %s", r.store.CountUnknown(), entry.State)
		}
	})
}

// Otherwise no line would count, after any restart, until the clock reaches the stored time.
func TestStoredSinceInTheFutureIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.run(t)
		synctest.Wait()
		r.stop()
		entry, _ := r.store.Monitor("kernel")
		state := map[string]any{}
		testkit.Must(t, json.Unmarshal(entry.State, &state))
		state["since"] = time.Now().Add(8 * time.Hour)
		entry.State, _ = json.Marshal(state)
		r.store.Keep("kernel", entry, true)
		r.write("killed process") // before the restart
		pass(10 * time.Second)
		first := time.Now().Add(-time.Minute)
		for range 2 {
			r.run(t)
			synctest.Wait()
			testkit.Check(t, r.since.Equal(first), "lines count since %s, want %s", r.since, first)
			pass(10 * time.Second)
		}
		r.expect(t, "sees", "event OOM", "Deadlock=False NoDeadlock", "Deadlock=False NoDeadlock", "sees")
	})
}

// Timestamps in a file have whole seconds.
func TestLinesInTheSecondOfTheFirstStartCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass(700 * time.Millisecond)
		for plugin, want := range map[string]time.Time{config.Filelog: time.Now().Truncate(time.Second), config.Kmsg: time.Now()} {
			r := newFixture(t, func(m *config.LogMonitor) {
				m.Plugin, m.Lookback = plugin, 0
				m.PluginConfig = map[string]string{"timestamp": "^.{15}", "message": "(.*)", "timestampFormat": "Jan _2 15:04:05"}
			})
			for range 2 {
				r.run(t)
				synctest.Wait()
				testkit.Check(t, r.since.Equal(want), "lines of %s count since %s, want %s", plugin, r.since, want)
			}
			r.stop()
		}
	})
}

func TestAnotherLogUnderTheSameKeyIsReadFromItsStart(t *testing.T) {
	for name, change := range map[string]func(*config.LogMonitor){
		"another path":   func(m *config.LogMonitor) { m.LogPath = "/dev/other" },
		"another plugin": func(m *config.LogMonitor) { m.Plugin = config.Kmsg },
		"another identifier": func(m *config.LogMonitor) {
			m.PluginConfig = map[string]string{"source": "dockerd"}
		},
		"the same": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFixture(t, func(m *config.LogMonitor) {
					m.Plugin, m.PluginConfig = config.Journald, map[string]string{"source": "kernel", "other": "a"}
					m.Rules = append(m.Rules, config.LogRule{Reason: "Both", Pattern: `first half\nsecond half`, Count: 1})
				})
				first := time.Now().Add(-time.Minute)
				r.run(t)
				pass(time.Second)
				r.write("task hung")
				r.write("first half")
				r.expect(t, "Deadlock=False NoDeadlock", "sees", "event Hung", "Deadlock=True Hung", "sees")
				r.stop()
				pass(5 * time.Minute)
				if change != nil {
					change(&r.config.Monitor)
					r.chunks = nil // another log
				}
				since := time.Now().Add(-time.Minute)
				r.write("second half")
				r.run(t)
				if change == nil {
					r.expect(t, "sees", "event Both", "Deadlock=True Hung")
					since = first
				} else {
					r.expect(t, "sees", "Deadlock=True Hung")
				}
				testkit.Check(t, r.since.Equal(since) && (len(r.from) == 0) == (change != nil),
					"it is read from %q, and lines count since %s, want %s", r.from, r.since, since)
				pass(time.Second)
				r.run(t) // the log is no longer new
				pass(time.Second)
				if r.expect(t, "Deadlock=True Hung"); !r.since.Equal(since) || len(r.from) == 0 {
					t.Errorf("after a restart it is read from %q, and lines count since %s, want %s", r.from, r.since, since)
				}
			})
		})
	}
}

func TestInvalidStoredStateIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.store.Keep("kernel", statefile.Entry{Position: json.RawMessage(`7`), State: json.RawMessage(`"what"`)}, true)
		r.run(t)
		pass(time.Second)
		r.expect(t, "Deadlock=False NoDeadlock")
		testkit.Same(t, len(r.from), 0, "it continues at the start, not at %s", r.from)
	})
}

func TestCheckReportsErrors(t *testing.T) {
	good := config.LogMonitor{
		Plugin: config.Filelog, LogPath: "/var/log/kern.log", BufferSize: 10, Source: "x",
		PluginConfig: map[string]string{"timestamp": "^.{15}", "message": "kernel: (.*)", "timestampFormat": "Jan _2 15:04:05"},
		Rules:        []config.LogRule{{Reason: "A", Pattern: "abcdef", Count: 1}, {Reason: "B", Pattern: `\d+`, Count: 1}},
	}
	expensive, err := logwatch.Check(good)
	diff := cmp.Diff([]string{`\d+`}, expensive)
	testkit.Check(t, diff == "" && err == nil, "%v %s", err, diff)
	for want, change := range map[string]func(*config.LogMonitor){
		"pluginConfig": func(m *config.LogMonitor) { m.PluginConfig = map[string]string{"timestamp": "("} },
		"pluginConfig.timestampFormat": func(m *config.LogMonitor) {
			m.PluginConfig = map[string]string{"timestamp": "^.{15}", "message": "(.*)", "timestampFormat": "15:04:05"}
		},
		"pattern": func(m *config.LogMonitor) { m.Rules = []config.LogRule{{Reason: "A", Pattern: "(", Count: 1}} },
		"logPath": func(m *config.LogMonitor) { m.LogPath = "kern.log" },
	} {
		bad := good
		change(&bad)
		if _, err := logwatch.Check(bad); err == nil || !strings.HasPrefix(err.Error(), want) && !strings.Contains(err.Error(), "]."+want) {
			t.Errorf("a bad %s gives the error %v", want, err)
		}
	}
}
