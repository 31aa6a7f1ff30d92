package logwatch

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logmonitor"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/times"
)

// Unreadable is the reason of conditions whose log cannot be read.
const Unreadable = "LogUnreadable"

const (
	// Delays before Run opens an unreadable log again.
	firstWait, longestWait = time.Second, 30 * time.Second
	// readableAfter is how long a reopened log must return no error to count as readable
	// again, even if no line is written to it.
	readableAfter = 2 * time.Second
)

// Memory stores positions and states.
type Memory interface {
	Monitor(key string) (statefile.Entry, bool)
	Keep(key string, entry statefile.Entry, urgent bool)
}

// Config configures a watch.
type Config struct {
	// Key identifies the watch in Memory.
	Key     string
	Monitor config.LogMonitor
	Boot    procfs.Boot
	// Clear is until when stored findings are dropped, by condition type.
	Clear  map[string]time.Time
	Memory Memory
	Logger *slog.Logger
	// Open opens the log. If it is nil, the watch opens the log that Monitor names.
	Open func(from logs.Position, since time.Time) (logs.Reader, error)
}

// Watch monitors a log.
type Watch struct {
	cfg Config

	mu      sync.Mutex // guards the fields below, which Counts reads from other goroutines
	monitor *logmonitor.Monitor
	reading Counts // of the open reader
	counts  Counts // of earlier readers and monitors
}

// Counts are the totals of a watch over all its runs.
type Counts struct {
	Lines, Unstamped, Lost uint64
	// Cut counts lines that were too long to be read in full.
	Cut uint64
	// Gaps counts losses of an unknown number of lines.
	Gaps uint64
	// Problems counts findings by reason. It has an entry for each reason of a rule.
	Problems map[string]uint64
}

// New returns a watch. Run starts it.
func New(cfg Config) *Watch {
	if cfg.Open == nil {
		cfg.Open = cfg.open
	}
	return &Watch{cfg: cfg, counts: Counts{Problems: map[string]uint64{}}}
}

// Run watches the log until ctx ends.
func (w *Watch) Run(ctx context.Context, reporter supervise.Reporter) error {
	at, err := w.restore(time.Now())
	if err != nil {
		return err
	}
	// Also after a panic: the supervisor runs the watch again, and the counters continue.
	defer w.keepCounts()
	began := time.Now()
	start := &startReporter{Reporter: reporter}
	start.Report(w.monitor.Start(began))
	last := time.AfterFunc(startTimeout, start.finish)
	defer func() {
		last.Stop()
		if ctx.Err() == nil { // a panic, which may recur on every run
			start.finish()
		}
	}()
	w.store(at, true)

	failures := 0 // in a row
	for {
		err := w.read(ctx, start, at)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if at.read {
			failures, at.read = 0, false
		}
		failures++
		start.CannotObserve(Unreadable, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(times.Backoff(failures, firstWait, longestWait)):
		}
	}
}

// progress is how far a watch has read.
type progress struct {
	position logs.Position
	since    time.Time
	read     bool // whether the log could be read since it was last opened

	state json.RawMessage // state of the monitor that text contains
	text  json.RawMessage // the stored state of the watch

	unknown *format.Rest // unknown fields of the stored state
}

// storedState is the state of a watch in the state file.
type storedState struct {
	// Since is the time from which on lines count.
	Since time.Time `json:"since"`
	// Boot is the ID of the boot in which Since was set.
	Boot string `json:"boot"`
	// Log identifies the log that was read. Older versions did not store it.
	Log     string          `json:"log,omitempty"`
	Monitor json.RawMessage `json:"monitor,omitempty"`
}

// restore creates the monitor from its stored state.
func (w *Watch) restore(now time.Time) (*progress, error) {
	entry, known := w.cfg.Memory.Monitor(w.cfg.Key)
	var stored storedState
	var unknown *format.Rest
	if known {
		var err error
		if unknown, err = format.ReadAll(entry.State, &stored); err != nil {
			w.cfg.Logger.Warn("ignoring the stored state of a monitor: it cannot be read", "monitor", w.cfg.Key, "err", err)
			known, entry = false, statefile.Entry{}
		}
	}
	if known && stored.Log != "" && stored.Log != w.log() {
		// The position and Since belong to the other log. The findings are kept.
		w.cfg.Logger.Info("the log of a monitor was changed: reading the new log from its start", "monitor", w.cfg.Key)
		known, entry, stored.Monitor, unknown = false, statefile.Entry{}, withoutLines(stored.Monitor), nil
	}
	at := &progress{position: entry.Position, since: w.since(now, known, stored), unknown: unknown}
	translator, err := translator(w.cfg.Monitor)
	if err != nil {
		return nil, err
	}
	monitor, err := logmonitor.New(logmonitor.Config{
		Monitor: w.cfg.Monitor, Translator: translator, Since: at.since, Boot: w.cfg.Boot.ID, Clear: w.cfg.Clear, Remembered: stored.Monitor,
	})
	if err != nil {
		return nil, err
	}
	if err := monitor.RestoreError(); err != nil {
		w.cfg.Logger.Warn("ignoring the stored state of a monitor: it cannot be read", "monitor", w.cfg.Key, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.monitor = monitor
	return at, nil
}

// since returns the time from which on lines count: shortly before the first start of the
// watch, and never before the boot. A watch that ran before a reboot counts all lines of
// the new boot.
func (w *Watch) since(now time.Time, known bool, stored storedState) time.Time {
	since := w.cfg.Boot.Time.Add(w.cfg.Monitor.Delay)
	if first := w.first(now, known, stored); first.After(since) && (!known || stored.Boot == w.cfg.Boot.ID) {
		since = first
	}
	if w.cfg.Monitor.Plugin == config.Filelog {
		// Timestamps in files mostly have whole seconds, so a line written now can seem older.
		since = since.Truncate(time.Second)
	}
	return since
}

// first returns the time from which on lines count because of the first start of the
// watch. A stored time in the future was stored while the clock was ahead, so this start
// counts as the first.
func (w *Watch) first(now time.Time, known bool, stored storedState) time.Time {
	if !known || stored.Since.After(now) {
		return now.Add(-w.cfg.Monitor.Lookback)
	}
	return stored.Since
}

// read reads the log until ctx ends or the log cannot be read.
func (w *Watch) read(ctx context.Context, reporter *startReporter, at *progress) error {
	reader, err := w.cfg.Open(at.position, at.since)
	if err != nil {
		return err
	}
	defer w.close(reader)
	isReadable := false // whether the reporter knows that the log can be read
	for {
		chunk, err := w.next(ctx, reader, isReadable, reporter.isHolding())
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded) && reporter.isHolding():
			reporter.finish()
		case errors.Is(err, context.DeadlineExceeded) && !isReadable:
			reporter.CanObserve()
			isReadable = true
		case errors.Is(err, context.DeadlineExceeded):
			reporter.Heartbeat()
			w.wake(reporter, at, now)
		case errors.Is(err, logs.ErrNotExist):
			reporter.WaitsFor(w.name())
			isReadable, at.read = true, true // the reader waits for the log, so the watch need not reopen it
		case err != nil:
			return err
		default:
			reporter.CanObserve()
			isReadable, at.read = true, true
			w.take(reporter, at, now, chunk)
			w.tally(reader)
			if !chunk.More {
				reporter.finish()
			}
		}
	}
}

// next waits for a chunk. It returns earlier if a condition, a liveness signal or a
// deadline of the monitor is due.
func (w *Watch) next(ctx context.Context, reader logs.Reader, isReadable, starting bool) (logs.Chunk, error) {
	timeout := supervise.CheckInterval
	switch {
	case starting:
		timeout = startPatience
	case !isReadable:
		timeout = readableAfter
	}
	if deadline, ok := w.monitor.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond)) // read what is already there before the deadline passes
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return reader.Next(ctx)
}

// take applies the rules to a chunk, reports the findings, and then stores the progress.
func (w *Watch) take(reporter supervise.Reporter, at *progress, now time.Time, chunk logs.Chunk) {
	if chunk.Lost > 0 {
		w.cfg.Logger.Warn("log records were lost before they could be read", "monitor", w.cfg.Key, "records", chunk.Lost)
	}
	report := w.ask(func(m *logmonitor.Monitor) finding.Report { return m.Take(now, chunk) })
	if len(chunk.Next) > 0 {
		at.position = chunk.Next
	}
	if !report.IsEmpty() {
		reporter.Report(report)
	}
	w.store(at, !report.IsEmpty())
}

// ask calls the monitor under the lock.
func (w *Watch) ask(question func(*logmonitor.Monitor) finding.Report) finding.Report {
	w.mu.Lock()
	defer w.mu.Unlock() // also when it panics
	return question(w.monitor)
}

// wake lets the monitor handle the passing of time.
func (w *Watch) wake(reporter supervise.Reporter, at *progress, now time.Time) {
	report := w.ask(func(m *logmonitor.Monitor) finding.Report { return m.Wake(now) })
	if !report.IsEmpty() {
		reporter.Report(report)
		w.store(at, true)
	}
}

// store stores the progress of the watch. It runs after each chunk, which may be a single
// line, so it encodes only a changed state.
func (w *Watch) store(at *progress, urgent bool) {
	if state := w.monitor.State(); at.text == nil || !same(state, at.state) {
		text, err := at.unknown.Write(storedState{Since: at.since, Boot: w.cfg.Boot.ID, Log: w.log(), Monitor: state})
		if err != nil {
			w.cfg.Logger.Error("the state of a monitor cannot be encoded", "monitor", w.cfg.Key, "err", err)
			return
		}
		at.state, at.text = state, text
	}
	w.cfg.Memory.Keep(w.cfg.Key, statefile.Entry{Position: at.position, State: at.text, UnknownInside: at.unknown.Len() + w.monitor.CountUnknown()}, urgent)
}

// same says whether two states are the same slice. Comparing their bytes would cost more.
func same(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// name returns the name of the log for users.
func (w *Watch) name() string {
	if w.cfg.Monitor.LogPath != "" {
		return w.cfg.Monitor.LogPath
	}
	return "the log of " + w.cfg.Monitor.Plugin
}

// tally takes over the counters of the reader.
func (w *Watch) tally(reader logs.Reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading.Cut, w.reading.Gaps = counted(reader)
}

// close closes the reader and keeps its counters.
func (w *Watch) close(reader logs.Reader) {
	w.tally(reader)
	if err := reader.Close(); err != nil {
		w.cfg.Logger.Warn("cannot close a log", "monitor", w.cfg.Key, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.Cut += w.reading.Cut
	w.counts.Gaps += w.reading.Gaps
	w.reading = Counts{}
}

// keepCounts keeps the counters of a monitor that ends.
func (w *Watch) keepCounts() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts = w.sum()
	w.monitor = nil
}

// Counts returns the totals. It is safe for concurrent use.
func (w *Watch) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sum()
}

// Problems returns how often each reason was found. It has an entry for each reason of a
// rule.
func (w *Watch) Problems() map[string]uint64 { return w.Counts().Problems }

func (w *Watch) sum() Counts {
	sum := w.counts
	sum.Problems = map[string]uint64{}
	for _, rule := range w.cfg.Monitor.Rules {
		sum.Problems[rule.Reason] = w.counts.Problems[rule.Reason]
	}
	if w.monitor != nil {
		counts := w.monitor.Counts()
		sum.Lines += counts.Lines
		sum.Unstamped += counts.Unstamped
		sum.Lost += counts.Lost
		for reason, n := range counts.Problems {
			sum.Problems[reason] += n
		}
	}
	sum.Cut += w.reading.Cut
	sum.Gaps += w.reading.Gaps
	return sum
}

// Check returns the errors of a configuration that only show when a monitor is created
// from it. It also returns the patterns that must be tried on every line.
func Check(m config.LogMonitor) (expensive []string, err error) {
	translator, err := translator(m)
	if err != nil {
		return nil, err
	}
	monitor, err := logmonitor.New(logmonitor.Config{Monitor: m, Translator: translator})
	if err != nil {
		return nil, err
	}
	return monitor.Expensive(), checkPath(m)
}
