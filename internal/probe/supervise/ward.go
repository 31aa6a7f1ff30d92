package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
)

const (
	// maxBlind is how long a monitor may be unable to look before it counts as dead.
	blindness = time.Minute
	// minUptime is how long a restarted monitor must run before it counts as alive. Otherwise a
	// monitor that ends repeatedly would make its conditions flap.
	proof = 10 * time.Second
	// maxMissed is how many CheckIntervals a monitor may be silent before it counts as dead.
	// Intervals are counted because time during which the agent itself was stopped is not silence.
	// The first interval may be short.
	silence = int(time.Minute/CheckInterval) + 1
	// The delays before an ended monitor is started again.
	firstWait, longestWait = time.Second, time.Minute
)

// runner runs a monitor and is its Reporter.
type ward struct {
	name    string
	monitor Monitor
	emit    func(finding.Report)
	log     *slog.Logger

	mu      sync.Mutex
	source  string
	said    map[string]finding.Condition // as the monitor reported them, by type
	shown   map[string]finding.Condition // as emitted, by type
	running bool
	silent  int         // check intervals since the last call of the monitor
	pulse   *time.Timer // until the next check interval
	waits   string
	blind   trouble // set as soon as the monitor cannot look
	since   time.Time
	timer   *time.Timer // until the monitor counts as dead
	dead    trouble
}

// failure is why a monitor cannot look.
type trouble struct {
	reason string
	err    error
}

func (t trouble) any() bool { return t.err != nil }

func newWard(name string, m Monitor, emit func(finding.Report), log *slog.Logger) *ward {
	return &ward{
		name: name, monitor: m, emit: emit, log: log.With("monitor", name),
		said: map[string]finding.Condition{}, shown: map[string]finding.Condition{},
	}
}

// run runs the monitor again and again until ctx ends.
func (w *ward) run(ctx context.Context) {
	wait := firstWait
	for {
		started := time.Now()
		w.begin()
		trust := time.AfterFunc(proof, w.trust)
		err := w.once(ctx)
		trust.Stop()
		if ctx.Err() != nil {
			w.rest()
			return
		}
		if time.Since(started) > longestWait {
			wait = firstWait
		}
		w.end(err, wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

var (
	errEnded = errors.New("it has ended by itself")
	errHangs = errors.New("it hangs: it has said nothing for a minute")
)

// runOnce runs the monitor and turns a panic into an error.
func (w *ward) once(ctx context.Context) (err error) {
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

func (w *ward) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running, w.silent = true, 0
	w.pulse = time.AfterFunc(CheckInterval, w.listen)
}

// end marks the monitor as ended.
func (w *ward) end(err error, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still()
	w.waits = ""
	w.log.Error("a monitor has ended and is run again", "err", err, "in", wait)
	w.die(trouble{Ended, err})
}

// stop stops the timers when the monitor has ended.
func (w *ward) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still()
}

// detach stops the timers and ignores all further reports.
func (w *ward) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still()
	w.emit = func(finding.Report) {}
}

// stopTimers stops the timers.
func (w *ward) still() {
	w.unblind()
	w.running = false
	if w.pulse != nil {
		w.pulse.Stop()
	}
}

// checkSilence runs after each check interval.
func (w *ward) listen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running {
		return
	}
	if w.silent++; w.silent >= silence && !w.dead.any() {
		w.log.Error("a monitor counts as dead", "reason", Hangs, "err", errHangs)
		w.die(trouble{Hangs, errHangs})
	}
	w.pulse.Reset(CheckInterval)
}

// confirm marks a restarted monitor as alive, because it has run long enough.
func (w *ward) trust() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running && w.dead.reason == Ended {
		w.live()
	}
}

// Report is called by the monitor.
func (w *ward) Report(r finding.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent, w.source = 0, r.Source
	for _, condition := range r.Conditions {
		w.said[condition.Type] = condition
	}
	r.Conditions, _ = w.show(time.Now())
	if !r.IsEmpty() {
		w.emit(r)
	}
}

// Here is called by the monitor.
func (w *ward) Here() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = 0
	if w.dead.reason == Hangs {
		w.live()
	}
}

// Sees is called by the monitor.
func (w *ward) Sees() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look("")
}

// Waits is called by the monitor.
func (w *ward) Waits(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(what)
}

// canLook records that the monitor can look, or waits for the thing to watch.
func (w *ward) look(waits string) {
	w.silent = 0
	if w.waits != waits && waits != "" {
		w.log.Info("a monitor waits for what it looks at", "for", waits)
	} else if w.waits != waits {
		w.log.Info("a monitor has found what it looks at")
	}
	w.waits = waits
	if w.blind.any() {
		w.log.Info("a monitor can look again")
		w.unblind()
	}
	// A monitor that has ended must run for minUptime first.
	if w.dead.any() && w.dead.reason != Ended {
		w.live()
	}
}

// Blind is called by the monitor.
func (w *ward) Blind(reason string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.blind.any() {
		w.since, w.timer = time.Now(), time.AfterFunc(blindness, w.despair)
	}
	if !w.blind.any() || w.blind.reason != reason || w.blind.err.Error() != err.Error() {
		w.log.Warn("a monitor cannot look", "reason", reason, "err", err)
	}
	w.silent, w.blind, w.waits = 0, trouble{reason, err}, ""
	if w.dead.reason == Hangs {
		w.die(w.blind) // it could not look the whole time
	}
}

// blindTimeout marks a monitor as dead that could not look for too long.
func (w *ward) despair() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blind.any() && !w.dead.any() && time.Since(w.since) >= blindness {
		w.log.Error("a monitor counts as dead", "reason", w.blind.reason, "err", w.blind.err)
		w.die(w.blind)
	}
}

// clearBlind records that the monitor can look.
func (w *ward) unblind() {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.blind, w.timer = trouble{}, nil
}

func (w *ward) die(why trouble) {
	w.dead = why
	w.tell()
}

func (w *ward) live() {
	w.log.Info("a monitor is alive again")
	w.dead = trouble{}
	w.tell()
}

// emitChanges emits the conditions that a change of the monitor's health changes.
func (w *ward) tell() {
	conditions, events := w.show(time.Now())
	if len(conditions) > 0 {
		w.emit(finding.Report{Source: w.source, Conditions: conditions, Events: events})
	}
}

// changes returns the conditions that differ from what was last emitted. It also returns Events for
// those that changed because of the monitor, not because of the node.
func (w *ward) show(now time.Time) (conditions []finding.Condition, events []finding.Event) {
	for _, kind := range slices.Sorted(maps.Keys(w.said)) {
		looks, was := w.said[kind], w.shown[kind]
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
		w.shown[kind] = looks
		conditions = append(conditions, looks)
		if (masked || unmasked) && was.Type != "" {
			events = append(events, w.event(looks, now))
		}
	}
	return conditions, events
}

// event returns the Event for a condition that changes because of the monitor.
func (w *ward) event(c finding.Condition, now time.Time) finding.Event {
	sum := sha256.Sum256([]byte(w.name + "\x00" + c.Type + "\x00" + string(c.Status) + "\x00" + strconv.FormatInt(now.UnixNano(), 10)))
	return finding.Event{
		ID: hex.EncodeToString(sum[:16]), Severity: finding.Info, Time: now, Reason: c.Reason, Condition: c.Type,
		Message: fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, c.Status, c.Reason, c.Message),
	}
}

// health returns the health of the monitor.
func (w *ward) health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := Health{Monitor: w.name, Waits: w.waits}
	if w.dead.any() {
		h.Dead = w.dead.err.Error()
	}
	return h
}
