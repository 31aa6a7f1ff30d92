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
	"github.com/resourcestack/autohealer/internal/probe/boot"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logmonitor"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// Unreadable is the reason of conditions whose log cannot be read.
const Unreadable = "LogUnreadable"

const (
	// The waits before a log that cannot be read is tried again.
	firstWait, longestWait = time.Second, 30 * time.Second
	// quiet is how long a log that could not be read must not complain until it is
	// believed that it can, though nothing is written to it.
	quiet = 2 * time.Second
)

// Memory is where positions and states are kept.
type Memory interface {
	Monitor(key string) (statefile.Entry, bool)
	Keep(key string, entry statefile.Entry, urgent bool)
}

// Config is what a watch needs to know.
type Config struct {
	// Key under which it is remembered.
	Key     string
	Monitor config.LogMonitor
	Boot    boot.Boot
	Memory  Memory
	Logger  *slog.Logger
	// Open opens the log. The one that the configuration names, if it is nil.
	Open func(from logs.Position, since time.Time) (logs.Reader, error)
}

// Watch is a monitor of a log.
type Watch struct {
	cfg Config

	mu      sync.Mutex // of what follows, which Counts wants to see as well
	monitor *logmonitor.Monitor
	reading Counts // of the present reader
	counts  Counts // of those before, and of monitors before
}

// Counts is what a watch has counted, in all of its runs.
type Counts struct {
	Lines, Unstamped, Lost uint64
	// Cut are lines that were too long to be read in full.
	Cut uint64
	// Gaps are the times when nobody knows how many lines were lost.
	Gaps uint64
	// Problems by reason, each reason of a rule included.
	Problems map[string]uint64
}

// New returns a watch that does nothing yet.
func New(cfg Config) *Watch {
	if cfg.Open == nil {
		cfg.Open = cfg.open
	}
	return &Watch{cfg: cfg, counts: Counts{Problems: map[string]uint64{}}}
}

// Run watches the log until ctx ends.
func (w *Watch) Run(ctx context.Context, desk supervise.Reporter) error {
	at, err := w.recall(time.Now())
	if err != nil {
		return err
	}
	// Also when it panics: then it is run again, and counts on.
	defer w.leave()
	start := time.Now()
	begins := &beginning{Reporter: desk}
	begins.Report(w.monitor.Start(start))
	last := time.AfterFunc(atLast, begins.over)
	defer func() {
		last.Stop()
		if ctx.Err() == nil { // it panics, and may do so whenever it is run
			begins.over()
		}
	}()
	w.keep(at, true)

	wait := firstWait
	for {
		err := w.read(ctx, begins, at)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if at.read {
			wait, at.read = firstWait, false
		}
		begins.Blind(Unreadable, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// place is how far a watch has come.
type place struct {
	position logs.Position
	since    time.Time
	read     bool // whether anything was since it was last opened

	state json.RawMessage // of the monitor, when it was last written
	text  json.RawMessage // what was written

	unknown *format.Rest // of the state
}

// kept is the state that is remembered of a watch.
type kept struct {
	// Since is from when on lines count.
	Since time.Time `json:"since"`
	// Boot in which that was said.
	Boot string `json:"boot"`
	// Log that was read; empty if it was not written down.
	Log     string          `json:"log,omitempty"`
	Monitor json.RawMessage `json:"monitor,omitempty"`
}

// recall makes the monitor as it was left.
func (w *Watch) recall(now time.Time) (*place, error) {
	entry, known := w.cfg.Memory.Monitor(w.cfg.Key)
	var was kept
	var unknown *format.Rest
	if known {
		var err error
		if unknown, err = format.ReadAll(entry.State, &was); err != nil {
			w.cfg.Logger.Warn("what was remembered of a monitor cannot be used", "monitor", w.cfg.Key, "err", err)
			known, entry = false, statefile.Entry{}
		}
	}
	if known && was.Log != "" && was.Log != w.log() {
		// How far the other was read, and since when, says nothing of this one. What was
		// found stands.
		w.cfg.Logger.Info("a monitor reads another log than before, and begins anew with it", "monitor", w.cfg.Key)
		known, entry, was.Monitor, unknown = false, statefile.Entry{}, withoutLines(was.Monitor), nil
	}
	at := &place{position: entry.Position, since: w.since(now, known, was), unknown: unknown}
	translator, err := translator(w.cfg.Monitor)
	if err != nil {
		return nil, err
	}
	monitor, err := logmonitor.New(logmonitor.Config{
		Monitor: w.cfg.Monitor, Translator: translator, Since: at.since, Boot: w.cfg.Boot.ID, Remembered: was.Monitor,
	})
	if err != nil {
		return nil, err
	}
	if err := monitor.Forgot(); err != nil {
		w.cfg.Logger.Warn("what was remembered of a monitor cannot be used", "monitor", w.cfg.Key, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.monitor = monitor
	return at, nil
}

// since says from when on lines count: from shortly before the very first start, and
// never from before the boot. Whoever was there before a reboot has missed nothing
// since, so that all of this boot counts.
func (w *Watch) since(now time.Time, known bool, was kept) time.Time {
	since := w.cfg.Boot.Time.Add(w.cfg.Monitor.Delay)
	if first := w.first(now, known, was); first.After(since) && (!known || was.Boot == w.cfg.Boot.ID) {
		since = first
	}
	if w.cfg.Monitor.Plugin == config.Filelog {
		// Stamps are mostly in whole seconds: what is written now seems to be older.
		since = since.Truncate(time.Second)
	}
	return since
}

// first says from when on lines count for the sake of the first start. What is still to
// come was said when the clock was ahead: then this is the first start.
func (w *Watch) first(now time.Time, known bool, was kept) time.Time {
	if !known || was.Since.After(now) {
		return now.Add(-w.cfg.Monitor.Lookback)
	}
	return was.Since
}

// read reads the log until ctx ends or it cannot be read.
func (w *Watch) read(ctx context.Context, desk *beginning, at *place) error {
	reader, err := w.cfg.Open(at.position, at.since)
	if err != nil {
		return err
	}
	defer w.close(reader)
	sees := false // whether the desk knows that the log can be read
	for {
		chunk, err := w.next(ctx, reader, sees, desk.lasts())
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded) && desk.lasts():
			desk.over()
		case errors.Is(err, context.DeadlineExceeded) && !sees:
			desk.Sees()
			sees = true
		case errors.Is(err, context.DeadlineExceeded):
			desk.Here()
			w.wake(desk, at, now)
		case errors.Is(err, logs.ErrNotExist):
			desk.Waits(w.name())
			sees, at.read = true, true // it is the reader that waits
		case err != nil:
			return err
		default:
			desk.Sees()
			sees, at.read = true, true
			w.take(desk, at, now, chunk)
			w.tally(reader)
			if !chunk.More {
				desk.over()
			}
		}
	}
}

// next waits for a chunk, but not for longer than nothing needs to be done or said.
func (w *Watch) next(ctx context.Context, reader logs.Reader, sees, begins bool) (logs.Chunk, error) {
	patience := supervise.CheckInterval
	switch {
	case begins:
		patience = soon
	case !sees:
		patience = quiet
	}
	if deadline, ok := w.monitor.Deadline(); ok {
		patience = min(patience, max(time.Until(deadline), time.Millisecond)) // to see what there is
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return reader.Next(ctx)
}

// take gives a chunk its meaning, hands that over, and remembers it.
func (w *Watch) take(desk supervise.Reporter, at *place, now time.Time, chunk logs.Chunk) {
	if chunk.Lost > 0 {
		w.cfg.Logger.Warn("records of a log were lost before they could be read", "monitor", w.cfg.Key, "records", chunk.Lost)
	}
	report := w.ask(func(m *logmonitor.Monitor) finding.Report { return m.Take(now, chunk) })
	if len(chunk.Next) > 0 {
		at.position = chunk.Next
	}
	if !report.IsEmpty() {
		desk.Report(report)
	}
	w.keep(at, !report.IsEmpty())
}

// ask asks the monitor while nobody else does.
func (w *Watch) ask(question func(*logmonitor.Monitor) finding.Report) finding.Report {
	w.mu.Lock()
	defer w.mu.Unlock() // also when it panics
	return question(w.monitor)
}

// wake lets time pass.
func (w *Watch) wake(desk supervise.Reporter, at *place, now time.Time) {
	report := w.ask(func(m *logmonitor.Monitor) finding.Report { return m.Wake(now) })
	if !report.IsEmpty() {
		desk.Report(report)
		w.keep(at, true)
	}
}

// keep remembers how far the watch has come. That is asked for at each chunk, which may
// be a line: what has not changed is not written anew.
func (w *Watch) keep(at *place, urgent bool) {
	if state := w.monitor.State(); at.text == nil || !same(state, at.state) {
		text, err := at.unknown.Write(kept{Since: at.since, Boot: w.cfg.Boot.ID, Log: w.log(), Monitor: state})
		if err != nil {
			w.cfg.Logger.Error("what is to be remembered of a monitor cannot be written", "monitor", w.cfg.Key, "err", err)
			return
		}
		at.state, at.text = state, text
	}
	w.cfg.Memory.Keep(w.cfg.Key, statefile.Entry{Position: at.position, State: at.text, UnknownInside: at.unknown.Len() + w.monitor.CountUnknown()}, urgent)
}

// same says whether two states are the same bytes at the same place.
func same(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// name of the log, for people.
func (w *Watch) name() string {
	if w.cfg.Monitor.LogPath != "" {
		return w.cfg.Monitor.LogPath
	}
	return "the log of " + w.cfg.Monitor.Plugin
}

// tally notes what the reader has counted.
func (w *Watch) tally(reader logs.Reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading.Cut, w.reading.Gaps = counted(reader)
}

// close ends the reading.
func (w *Watch) close(reader logs.Reader) {
	w.tally(reader)
	if err := reader.Close(); err != nil {
		w.cfg.Logger.Warn("a log cannot be closed", "monitor", w.cfg.Key, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.Cut += w.reading.Cut
	w.counts.Gaps += w.reading.Gaps
	w.reading = Counts{}
}

// leave keeps what the monitor has counted.
func (w *Watch) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts = w.sum()
	w.monitor = nil
}

// Counts may be asked for by anybody, at any time.
func (w *Watch) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sum()
}

// Problems returns how often each was found, by reason, each reason of a rule included.
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

// Check says what is wrong with a configuration that can only be found out by making a
// monitor of it, and otherwise which of its patterns must be tried on every line.
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
