package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/times"
)

const (
	// maxBlind is how long a monitor may be unable to look before it counts as dead.
	maxBlind = time.Minute
	// minUptime is how long a restarted monitor must run before it counts as alive. Otherwise a
	// monitor that ends repeatedly would make its conditions flap.
	minUptime = 10 * time.Second
	// maxMissed is how many CheckIntervals a monitor may be silent before it counts as dead.
	// Intervals are counted because time during which the agent itself was stopped is not silence.
	// The first interval may be short.
	maxMissed = int(time.Minute/CheckInterval) + 1
	// The delays before an ended monitor is started again.
	firstWait, longestWait = time.Second, time.Minute
)

// runner runs a monitor and is its Reporter.
type runner struct {
	name    string
	monitor Monitor
	emit    func(finding.Report)
	log     *slog.Logger

	mu         sync.Mutex
	source     string
	reported   map[string]finding.Condition // as the monitor reported them, by type
	emitted    map[string]finding.Condition // as emitted, by type
	running    bool
	missed     int         // check intervals since the last call of the monitor
	missTimer  *time.Timer // until the next check interval
	waits      string
	blind      failure // set as soon as the monitor cannot look
	since      time.Time
	blindTimer *time.Timer // until the monitor counts as dead
	dead       failure
}

// failure is why a monitor cannot look.
type failure struct {
	reason string
	err    error
}

func (t failure) any() bool { return t.err != nil }

func newRunner(name string, m Monitor, emit func(finding.Report), log *slog.Logger) *runner {
	return &runner{
		name: name, monitor: m, emit: emit, log: log.With("monitor", name),
		reported: map[string]finding.Condition{}, emitted: map[string]finding.Condition{},
	}
}

// run runs the monitor again and again until ctx ends.
func (w *runner) run(ctx context.Context) {
	failures := 0 // in a row
	for {
		started := time.Now()
		w.begin()
		trust := time.AfterFunc(minUptime, w.confirm)
		err := w.runOnce(ctx)
		trust.Stop()
		if ctx.Err() != nil {
			w.stop()
			return
		}
		if time.Since(started) > longestWait {
			failures = 0
		}
		failures++
		wait := times.Backoff(failures, firstWait, longestWait)
		w.end(err, wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

var (
	errEnded = errors.New("the monitor has ended unexpectedly")
	errHangs = errors.New("the monitor hangs: no sign of life for a minute")
)

// runOnce runs the monitor and turns a panic into an error.
func (w *runner) runOnce(ctx context.Context) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
			w.log.Error("a monitor panicked", "err", err, "stack", string(debug.Stack()))
		}
	}()
	if err := w.monitor.Run(ctx, w); err != nil {
		return err
	}
	return errEnded
}

func (w *runner) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running, w.missed = true, 0
	w.missTimer = time.AfterFunc(CheckInterval, w.checkSilence)
}

// end marks the monitor as ended.
func (w *runner) end(err error, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopTimers()
	w.waits = ""
	w.log.Error("a monitor has ended and will be restarted", "err", err, "in", wait)
	w.markDead(failure{Ended, err})
}

// stop stops the timers when the monitor has ended.
func (w *runner) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopTimers()
}

// detach stops the timers and ignores all further reports.
func (w *runner) detach() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopTimers()
	w.emit = func(finding.Report) {}
}

// stopTimers stops the timers.
func (w *runner) stopTimers() {
	w.clearBlind()
	w.running = false
	if w.missTimer != nil {
		w.missTimer.Stop()
	}
}

// checkSilence runs after each check interval.
func (w *runner) checkSilence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running {
		return
	}
	if w.missed++; w.missed >= maxMissed && !w.dead.any() {
		w.log.Error("a monitor counts as dead", "reason", Hangs, "err", errHangs)
		w.markDead(failure{Hangs, errHangs})
	}
	w.missTimer.Reset(CheckInterval)
}

// confirm marks a restarted monitor as alive, because it has run long enough.
func (w *runner) confirm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running && w.dead.reason == Ended {
		w.markAlive()
	}
}

// Report is called by the monitor.
func (w *runner) Report(r finding.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed, w.source = 0, r.Source
	for _, condition := range r.Conditions {
		w.reported[condition.Type] = condition
	}
	r.Conditions, _ = w.changes(time.Now())
	if !r.IsEmpty() {
		w.emit(r)
	}
}

// Heartbeat is called by the monitor.
func (w *runner) Heartbeat() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = 0
	if w.dead.reason == Hangs {
		w.markAlive()
	}
}

// CanObserve is called by the monitor.
func (w *runner) CanObserve() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.canLook("")
}

// WaitsFor is called by the monitor.
func (w *runner) WaitsFor(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.canLook(what)
}

// canLook records that the monitor can look, or waits for the thing to watch.
func (w *runner) canLook(waits string) {
	w.missed = 0
	if w.waits != waits && waits != "" {
		w.log.Info("a monitor waits", "for", waits)
	} else if w.waits != waits {
		w.log.Info("a monitor no longer waits")
	}
	w.waits = waits
	if w.blind.any() {
		w.log.Info("a monitor can look again")
		w.clearBlind()
	}
	// A monitor that has ended must run for minUptime first.
	if w.dead.any() && w.dead.reason != Ended {
		w.markAlive()
	}
}

// CannotObserve is called by the monitor.
func (w *runner) CannotObserve(reason string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.blind.any() {
		w.since, w.blindTimer = time.Now(), time.AfterFunc(maxBlind, w.blindTimeout)
	}
	if !w.blind.any() || w.blind.reason != reason || w.blind.err.Error() != err.Error() {
		w.log.Warn("a monitor cannot look", "reason", reason, "err", err)
	}
	w.missed, w.blind, w.waits = 0, failure{reason, err}, ""
	if w.dead.reason == Hangs {
		w.markDead(w.blind) // it could not look the whole time
	}
}

// blindTimeout marks a monitor as dead that could not look for too long.
func (w *runner) blindTimeout() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blind.any() && !w.dead.any() && time.Since(w.since) >= maxBlind {
		w.log.Error("a monitor counts as dead", "reason", w.blind.reason, "err", w.blind.err)
		w.markDead(w.blind)
	}
}

// clearBlind records that the monitor can look.
func (w *runner) clearBlind() {
	if w.blindTimer != nil {
		w.blindTimer.Stop()
	}
	w.blind, w.blindTimer = failure{}, nil
}

func (w *runner) markDead(why failure) {
	w.dead = why
	w.emitChanges()
}

func (w *runner) markAlive() {
	w.log.Info("a monitor is alive again")
	w.dead = failure{}
	w.emitChanges()
}

// emitChanges emits the conditions that a change of the monitor's health changes.
func (w *runner) emitChanges() {
	conditions, events := w.changes(time.Now())
	if len(conditions) > 0 {
		w.emit(finding.Report{Source: w.source, Conditions: conditions, Events: events})
	}
}

// changes returns the conditions that differ from what was last emitted. It also returns Events for
// those that changed because of the monitor, not because of the node.
func (w *runner) changes(now time.Time) (conditions []finding.Condition, events []finding.Event) {
	for _, kind := range slices.Sorted(maps.Keys(w.reported)) {
		looks, was := w.reported[kind], w.emitted[kind]
		// A problem stays True: without a monitor it is not known to have ended.
		masked := w.dead.any() && looks.Status != catalog.True
		if masked {
			looks.Status, looks.Reason, looks.Message, looks.Since = catalog.Unknown, w.dead.reason, w.dead.err.Error(), now
		}
		if was.Status == looks.Status && was.Reason == looks.Reason && (masked || was.Message == looks.Message) {
			continue
		}
		// When the monitor is alive again, the node is known to be healthy only from now on.
		unmasked := !masked && was.Status == catalog.Unknown && looks.Status != catalog.Unknown
		if unmasked && looks.Since.Before(was.Since) {
			looks.Since = now
		}
		w.emitted[kind] = looks
		conditions = append(conditions, looks)
		if (masked || unmasked) && was.Type != "" {
			id := finding.ID(w.name, looks.Type, string(looks.Status), strconv.FormatInt(now.UnixNano(), 10))
			events = append(events, looks.Changed(id, was.Status, now))
		}
	}
	return conditions, events
}

// health returns the health of the monitor.
func (w *runner) health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := Health{Monitor: w.name, Waits: w.waits}
	if w.dead.any() {
		h.Dead = w.dead.err.Error()
	}
	return h
}
