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
	// blindness is how long a monitor may be unable to look until it counts as dead.
	blindness = time.Minute
	// proof is how long a monitor that has ended must run until it is believed again:
	// one that ends over and over would otherwise make its conditions flap.
	proof = 10 * time.Second
	// silence is how many breaths long a monitor may say nothing until it counts as dead.
	// They are counted, as time in which the agent itself was stopped is no silence; the
	// first one may be short.
	silence = int(time.Minute/CheckInterval) + 1
	// The waits before a monitor that has ended is run again.
	firstWait, longestWait = time.Second, time.Minute
)

// ward is one monitor that is run, and the desk for it.
type ward struct {
	name    string
	monitor Monitor
	emit    func(finding.Report)
	log     *slog.Logger

	mu      sync.Mutex
	source  string
	said    map[string]finding.Condition // by the monitor, by type
	shown   map[string]finding.Condition // to the world
	running bool
	silent  int         // breaths since the monitor said something
	pulse   *time.Timer // until the next breath
	waits   string
	blind   trouble // whether it has lasted for too long or not
	since   time.Time
	timer   *time.Timer // until it has
	dead    trouble
}

// trouble is why a monitor cannot look.
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

// once runs the monitor, and makes an error of a panic.
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

// end notes that the monitor does not run.
func (w *ward) end(err error, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still()
	w.waits = ""
	w.log.Error("a monitor has ended and is run again", "err", err, "in", wait)
	w.die(trouble{Ended, err})
}

// rest stops what could still speak after the monitor.
func (w *ward) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still()
}

// leave has nobody hear the monitor any more.
func (w *ward) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still()
	w.emit = func(finding.Report) {}
}

// still stops the timers.
func (w *ward) still() {
	w.unblind()
	w.running = false
	if w.pulse != nil {
		w.pulse.Stop()
	}
}

// listen notes that another breath is over.
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

// trust notes that the monitor has run for long enough to be believed.
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

// look notes that the monitor looks, or would if there were anything.
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
	// One that has ended has to prove itself for longer.
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
		w.die(w.blind) // it could not look all the while
	}
}

// despair notes that the monitor could not look for too long.
func (w *ward) despair() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blind.any() && !w.dead.any() && time.Since(w.since) >= blindness {
		w.log.Error("a monitor counts as dead", "reason", w.blind.reason, "err", w.blind.err)
		w.die(w.blind)
	}
}

// unblind forgets that the monitor could not look.
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

// tell emits what the life or death of the monitor changes.
func (w *ward) tell() {
	conditions, events := w.show(time.Now())
	if len(conditions) > 0 {
		w.emit(finding.Report{Source: w.source, Conditions: conditions, Events: events})
	}
}

// show returns the conditions that look otherwise than they were last shown, and the
// events of those that do so because of the monitor and not of the node.
func (w *ward) show(now time.Time) (conditions []finding.Condition, events []finding.Event) {
	for _, kind := range slices.Sorted(maps.Keys(w.said)) {
		looks, was := w.said[kind], w.shown[kind]
		// What was found stands: that nobody looks does not cure it.
		masked := w.dead.any() && looks.Status != catalog.True
		if masked {
			looks.Status, looks.Reason, looks.Message, looks.Since = catalog.Unknown, w.dead.reason, w.dead.err.Error(), now
		}
		if was.Status == looks.Status && was.Reason == looks.Reason && (masked || was.Message == looks.Message) {
			continue
		}
		// When the monitor is alive again, that is since when the node is known to be well.
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

// event tells of a condition that changes because of the monitor.
func (w *ward) event(c finding.Condition, now time.Time) finding.Event {
	sum := sha256.Sum256([]byte(w.name + "\x00" + c.Type + "\x00" + string(c.Status) + "\x00" + strconv.FormatInt(now.UnixNano(), 10)))
	return finding.Event{
		ID: hex.EncodeToString(sum[:16]), Severity: finding.Info, Time: now, Reason: c.Reason, Condition: c.Type,
		Message: fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, c.Status, c.Reason, c.Message),
	}
}

// health tells how the monitor is.
func (w *ward) health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := Health{Monitor: w.name, Waits: w.waits}
	if w.dead.any() {
		h.Dead = w.dead.err.Error()
	}
	return h
}
