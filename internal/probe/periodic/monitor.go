package periodic

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
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// The reasons for results that the monitor creates itself.
const (
	checkHangs    = "CheckHangs"
	checkPanicked = "CheckPanicked"
)

const (
	// grace is how long after its timeout a check may still answer. Ending a program that hangs
	// takes a moment.
	grace = 2 * time.Second
	// firstReportTimeout is how long the first report waits for results. stopTimeout is how long
	// Run waits for checks that are still running when it ends.
	firstReportTimeout, stopTimeout = 8 * time.Second, 2 * time.Second
)

// Monitor runs the checks of a configuration file.
type Monitor struct {
	cfg       Config
	schedules []*schedule  // in the order of the rules
	outcomes  chan outcome // has room for one result of each rule
	runs      int

	stored json.RawMessage

	mu     sync.Mutex // guards states, which Problems also reads
	states *ruleStates
}

// schedule is the timing of a rule.
type schedule struct {
	*rule
	due       time.Time
	running   bool      // its check has not returned yet
	slotUntil time.Time // until when it occupies one of the Concurrency slots; zero if it occupies none
}

// outcome is a result that a check has returned.
type outcome struct {
	schedule *schedule
	run      int
	Result
}

// New returns a monitor that does not run yet. It fails if the configuration is invalid.
func New(cfg Config) (*Monitor, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Monitor{cfg: cfg, states: newRuleStates(cfg), outcomes: make(chan outcome, len(cfg.Rules))}
	for _, rule := range r.states.rules {
		r.schedules = append(r.schedules, &schedule{rule: rule})
	}
	return r, nil
}

// Problems returns the number of problems by reason. It counts each time a temporary rule finds the
// node unhealthy, and each time a permanent rule becomes unhealthy. Every reason of a rule is
// present from the start. Problems is safe for concurrent use.
func (r *Monitor) Problems() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.states.problems)
}

// Run runs the checks until ctx ends.
func (r *Monitor) Run(ctx context.Context, reporter supervise.Reporter) error {
	now := time.Now()
	r.begin(now)
	for first := now.Add(firstReportTimeout); ; now = time.Now() {
		waits := !r.states.begun && !r.states.ready()
		if !r.states.begun && (!waits || !r.cfg.SkipInitialStatus && !now.Before(first)) {
			waits = false
			r.update(reporter, func(b *ruleStates) finding.Report { return b.firstReport(now) })
		}
		r.expireHung(now, reporter)
		r.startDue(ctx, now)
		wait := min(supervise.CheckInterval, r.nextWait(now))
		if waits && !r.cfg.SkipInitialStatus {
			wait = min(wait, first.Sub(now))
		}
		select {
		case <-ctx.Done():
			r.waitForChecks()
			return ctx.Err()
		case a := <-r.outcomes:
			r.handleOutcome(ctx, reporter, a)
		case <-time.After(wait):
		}
		reporter.Heartbeat()
	}
}

// begin makes all rules due. In the first run it restores the stored state.
func (r *Monitor) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs++; r.runs == 1 && r.cfg.Memory != nil {
		if entry, ok := r.cfg.Memory.Monitor(r.cfg.Key); ok {
			if err := r.states.restore(now, entry.State); err != nil {
				r.cfg.Logger.Warn("the stored state of a monitor cannot be used", "monitor", r.cfg.Key, "err", err)
			}
		}
	}
	r.states.begun = false
	for _, t := range r.schedules {
		t.due, t.slotUntil = now, time.Time{}
	}
}

// update changes the states with do, sends the resulting report and stores the new state.
func (r *Monitor) update(reporter supervise.Reporter, do func(*ruleStates) finding.Report) {
	r.mu.Lock()
	report := do(r.states)
	state, err := r.states.state()
	unknown := r.states.unknown.Len()
	r.mu.Unlock()
	if !report.IsEmpty() {
		reporter.Report(report)
	}
	switch {
	case r.cfg.Memory == nil, !r.states.begun: // a state that was never reported is not stored
	case err != nil:
		r.cfg.Logger.Error("the state of a monitor cannot be encoded", "monitor", r.cfg.Key, "err", err)
	case !bytes.Equal(state, r.stored):
		r.cfg.Memory.Keep(r.cfg.Key, statefile.Entry{State: state, UnknownInside: unknown}, len(report.Conditions) > 0)
		r.stored = state
	}
}

// startDue starts the checks that are due while there are free slots. The check that has waited
// longest starts first.
func (r *Monitor) startDue(ctx context.Context, now time.Time) {
	for r.usedSlots() < r.cfg.Concurrency {
		t := r.nextDue()
		if t == nil || t.due.After(now) {
			return
		}
		t.running, t.slotUntil = true, now.Add(t.Timeout+grace)
		// Missed runs are not caught up.
		t.due = now.Add(t.Interval - now.Sub(t.due)%t.Interval)
		go func(run int) { r.outcomes <- outcome{t, run, r.runCheck(ctx, t.Rule)} }(r.runs)
	}
}

// usedSlots returns how many slots are occupied.
func (r *Monitor) usedSlots() int {
	sum := 0
	for _, t := range r.schedules {
		if !t.slotUntil.IsZero() {
			sum++
		}
	}
	return sum
}

// nextDue returns the rule that is due next, nil if all checks are running.
func (r *Monitor) nextDue() *schedule {
	var first *schedule
	for _, t := range r.schedules {
		if !t.running && (first == nil || t.due.Before(first.due)) {
			first = t
		}
	}
	return first
}

// nextWait returns how long the monitor can wait for results before it has something else to do.
func (r *Monitor) nextWait(now time.Time) time.Duration {
	wait := supervise.CheckInterval
	if t := r.nextDue(); t != nil && r.usedSlots() < r.cfg.Concurrency {
		wait = t.due.Sub(now)
	}
	for _, t := range r.schedules {
		if !t.slotUntil.IsZero() {
			wait = min(wait, t.slotUntil.Sub(now))
		}
	}
	return wait
}

// runCheck runs the check of a rule and turns a panic into a result.
func (r *Monitor) runCheck(ctx context.Context, rule Rule) (a Result) {
	defer func() {
		if fault := recover(); fault != nil {
			r.cfg.Logger.Error("a check panicked", "monitor", r.cfg.Key, "rule", rule.Name, "err", fault, "stack", string(debug.Stack()))
			a = Result{Reason: checkPanicked, Message: fmt.Sprintf("panic: %v; this is a bug of the agent, please report it", fault)}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, rule.Timeout)
	defer cancel()
	return rule.Check(ctx)
}

// handleOutcome records a result. It ignores a result that arrives too late, because the node may
// have changed, or after ctx has ended.
func (r *Monitor) handleOutcome(ctx context.Context, reporter supervise.Reporter, a outcome) {
	waited := !a.schedule.slotUntil.IsZero() && a.run == r.runs
	if a.schedule.running = false; !waited {
		r.cfg.Logger.Info("a check that hung has ended", "monitor", r.cfg.Key, "rule", a.schedule.Name)
		return
	}
	a.schedule.slotUntil = time.Time{}
	if ctx.Err() == nil {
		r.record(reporter, a.schedule, a.Result)
	}
}

// expireHung frees the slots of checks that should have answered by now. Such a check does not
// start again before it has ended.
func (r *Monitor) expireHung(now time.Time, reporter supervise.Reporter) {
	for _, t := range r.schedules {
		if !t.slotUntil.IsZero() && !now.Before(t.slotUntil) {
			t.slotUntil = time.Time{}
			r.cfg.Logger.Warn("a check hangs and does not start again before it has ended", "monitor", r.cfg.Key, "rule", t.Name, "timeout", t.Timeout)
			r.record(reporter, t, Result{Reason: checkHangs, Message: fmt.Sprintf("the check has exceeded its timeout of %s; it does not start again before it has ended", t.Timeout)})
		}
	}
}

func (r *Monitor) record(reporter supervise.Reporter, t *schedule, a Result) {
	r.update(reporter, func(b *ruleStates) finding.Report {
		b.record(time.Now(), t.rule, a)
		return b.report()
	})
}

// waitForChecks waits for running checks, for at most stopTimeout, so that the programs they
// started have ended when Run returns.
func (r *Monitor) waitForChecks() {
	late := time.After(stopTimeout)
	for r.usedSlots() > 0 {
		select {
		case a := <-r.outcomes:
			a.schedule.running, a.schedule.slotUntil = false, time.Time{}
		case <-late:
			return
		}
	}
}
