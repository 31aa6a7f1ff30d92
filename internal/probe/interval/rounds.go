package interval

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// The reasons for results that the monitor creates itself.
const (
	Hangs    = "ExamHangs"
	Panicked = "ExamPanicked"
)

const (
	// grace is how long after its timeout a check may still answer. Ending a program that hangs
	// takes a moment.
	grace = 2 * time.Second
	// firstReportTimeout is how long the first report waits for results. stopTimeout is how long
	// Run waits for checks that are still running when it ends.
	patience, farewell = 8 * time.Second, 2 * time.Second
)

// Monitor runs the checks of a configuration file.
type Monitor struct {
	cfg     Config
	turns   []*turn     // in the order of the rules
	answers chan answer // has room for one result of each rule
	runs    int

	kept json.RawMessage

	mu   sync.Mutex // guards states, which Problems also reads
	book *book
}

// schedule is the timing of a rule.
type turn struct {
	*rule
	due   time.Time
	asked bool      // its check has not returned yet
	until time.Time // until when it occupies one of the Concurrency slots; zero if it occupies none
}

// outcome is a result that a check has returned.
type answer struct {
	turn *turn
	run  int
	checkresult.Result
}

// New returns a monitor that does not run yet. It fails if the configuration is invalid.
func New(cfg Config) (*Monitor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Monitor{cfg: cfg, book: newBook(cfg), answers: make(chan answer, len(cfg.Rules))}
	for _, rule := range r.book.rules {
		r.turns = append(r.turns, &turn{rule: rule})
	}
	return r, nil
}

// Problems returns the number of problems by reason. It counts each time a temporary rule finds the
// node unhealthy, and each time a permanent rule becomes unhealthy. Every reason of a rule is
// present from the start. Problems is safe for concurrent use.
func (r *Monitor) Problems() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.book.problems)
}

// Run runs the checks until ctx ends.
func (r *Monitor) Run(ctx context.Context, desk supervise.Reporter) error {
	now := time.Now()
	r.begin(now)
	for first := now.Add(patience); ; now = time.Now() {
		waits := !r.book.begun && !r.book.ready()
		if !r.book.begun && (!waits || !r.cfg.SkipInitialStatus && !now.Before(first)) {
			waits = false
			r.tell(desk, func(b *book) finding.Report { return b.begin(now) })
		}
		r.giveUp(now, desk)
		r.ask(ctx, now)
		wait := min(supervise.CheckInterval, r.next(now))
		if waits && !r.cfg.SkipInitialStatus {
			wait = min(wait, first.Sub(now))
		}
		select {
		case <-ctx.Done():
			r.leave()
			return ctx.Err()
		case a := <-r.answers:
			r.take(ctx, desk, a)
		case <-time.After(wait):
		}
		desk.Here()
	}
}

// begin makes all rules due. In the first run it restores the stored state.
func (r *Monitor) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs++; r.runs == 1 && r.cfg.Memory != nil {
		if entry, ok := r.cfg.Memory.Monitor(r.cfg.Key); ok {
			if err := r.book.remember(now, entry.State); err != nil {
				r.cfg.Logger.Warn("what was remembered of a monitor cannot be used", "monitor", r.cfg.Key, "err", err)
			}
		}
	}
	r.book.begun = false
	for _, t := range r.turns {
		t.due, t.until = now, time.Time{}
	}
}

// update changes the states with do, sends the resulting report and stores the new state.
func (r *Monitor) tell(desk supervise.Reporter, do func(*book) finding.Report) {
	r.mu.Lock()
	report := do(r.book)
	state, err := r.book.state()
	unknown := r.book.unknown.Len()
	r.mu.Unlock()
	if !report.IsEmpty() {
		desk.Report(report)
	}
	switch {
	case r.cfg.Memory == nil, !r.book.begun: // a state that was never reported is not stored
	case err != nil:
		r.cfg.Logger.Error("what is to be remembered of a monitor cannot be written", "monitor", r.cfg.Key, "err", err)
	case !bytes.Equal(state, r.kept):
		r.cfg.Memory.Keep(r.cfg.Key, statefile.Entry{State: state, UnknownInside: unknown}, len(report.Conditions) > 0)
		r.kept = state
	}
}

// startDue starts the checks that are due while there are free slots. The check that has waited
// longest starts first.
func (r *Monitor) ask(ctx context.Context, now time.Time) {
	for r.taken() < r.cfg.Concurrency {
		t := r.first()
		if t == nil || t.due.After(now) {
			return
		}
		t.asked, t.until = true, now.Add(t.Timeout+grace)
		// Missed runs are not caught up.
		t.due = now.Add(t.Interval - now.Sub(t.due)%t.Interval)
		go func(run int) { r.answers <- answer{t, run, r.examine(ctx, t.Rule)} }(r.runs)
	}
}

// usedSlots returns how many slots are occupied.
func (r *Monitor) taken() int {
	sum := 0
	for _, t := range r.turns {
		if !t.until.IsZero() {
			sum++
		}
	}
	return sum
}

// nextDue returns the rule that is due next, nil if all checks are running.
func (r *Monitor) first() *turn {
	var first *turn
	for _, t := range r.turns {
		if !t.asked && (first == nil || t.due.Before(first.due)) {
			first = t
		}
	}
	return first
}

// nextWait returns how long the monitor can wait for results before it has something else to do.
func (r *Monitor) next(now time.Time) time.Duration {
	wait := supervise.CheckInterval
	if t := r.first(); t != nil && r.taken() < r.cfg.Concurrency {
		wait = t.due.Sub(now)
	}
	for _, t := range r.turns {
		if !t.until.IsZero() {
			wait = min(wait, t.until.Sub(now))
		}
	}
	return wait
}

// runCheck runs the check of a rule and turns a panic into a result.
func (r *Monitor) examine(ctx context.Context, rule Rule) (a checkresult.Result) {
	defer func() {
		if fault := recover(); fault != nil {
			r.cfg.Logger.Error("an exam panicked", "monitor", r.cfg.Key, "rule", rule.Name, "err", fault, "stack", string(debug.Stack()))
			a = checkresult.Result{Reason: Panicked, Message: fmt.Sprintf("panic: %v; this is a mistake of the agent, report it", fault)}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, rule.Timeout)
	defer cancel()
	return rule.Exam(ctx)
}

// handleOutcome records a result. It ignores a result that arrives too late, because the node may
// have changed, or after ctx has ended.
func (r *Monitor) take(ctx context.Context, desk supervise.Reporter, a answer) {
	waited := !a.turn.until.IsZero() && a.run == r.runs
	if a.turn.asked = false; !waited {
		r.cfg.Logger.Info("an exam that hung has ended", "monitor", r.cfg.Key, "rule", a.turn.Name)
		return
	}
	a.turn.until = time.Time{}
	if ctx.Err() == nil {
		r.enter(desk, a.turn, a.Result)
	}
}

// expireHung frees the slots of checks that should have answered by now. Such a check does not
// start again before it has ended.
func (r *Monitor) giveUp(now time.Time, desk supervise.Reporter) {
	for _, t := range r.turns {
		if !t.until.IsZero() && !now.Before(t.until) {
			t.until = time.Time{}
			r.cfg.Logger.Warn("an exam hangs, and is not begun again before it has ended", "monitor", r.cfg.Key, "rule", t.Name, "timeout", t.Timeout)
			r.enter(desk, t, checkresult.Result{Reason: Hangs, Message: fmt.Sprintf("the examination was to end after %s and has not; it is not begun again before it has", t.Timeout)})
		}
	}
}

func (r *Monitor) enter(desk supervise.Reporter, t *turn, a checkresult.Result) {
	r.tell(desk, func(b *book) finding.Report {
		b.enter(time.Now(), t.rule, a)
		return b.report()
	})
}

// waitForChecks waits for running checks, for at most stopTimeout, so that the programs they
// started have ended when Run returns.
func (r *Monitor) leave() {
	late := time.After(farewell)
	for r.taken() > 0 {
		select {
		case a := <-r.answers:
			a.turn.asked, a.turn.until = false, time.Time{}
		case <-late:
			return
		}
	}
}
