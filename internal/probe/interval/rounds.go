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

// The reasons of what rounds find out about exams.
const (
	Hangs    = "ExamHangs"
	Panicked = "ExamPanicked"
)

const (
	// grace is how long after its timeout an exam may answer: it takes a moment to end
	// what hangs.
	grace = 2 * time.Second
	// patience is how long the first report waits for answers, and the end of the rounds
	// for exams to end.
	patience, farewell = 8 * time.Second, 2 * time.Second
)

// Monitor is a monitor.
type Monitor struct {
	cfg     Config
	turns   []*turn     // in the order of the rules
	answers chan answer // with room for one of each
	runs    int

	kept json.RawMessage

	mu   sync.Mutex // of what follows, which Problems wants to see as well
	book *book
}

// turn is when it is a rule's turn.
type turn struct {
	*rule
	due   time.Time
	asked bool      // its exam has not come back
	until time.Time // until when it holds a place among those that are asked; zero if it does not
}

// answer is one that has come back.
type answer struct {
	turn *turn
	run  int
	checkresult.Result
}

// New returns rounds that nobody makes yet. What is wrong with the configuration is an
// error.
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

// Problems returns how often each was found, by reason: the events of temporary rules
// that found the node sick, and how often permanent rules began to. Every reason of a
// rule is there from the start. It may be asked for by anybody, at any time.
func (r *Monitor) Problems() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.book.problems)
}

// Run makes the rounds until ctx ends.
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

// begin makes it everybody's turn. In the first run it is recalled what the life before
// knew.
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

// tell hands over what the book has to say after something has been done to it, and
// remembers it.
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
	case r.cfg.Memory == nil, !r.book.begun: // what was never told is no memory
	case err != nil:
		r.cfg.Logger.Error("what is to be remembered of a monitor cannot be written", "monitor", r.cfg.Key, "err", err)
	case !bytes.Equal(state, r.kept):
		r.cfg.Memory.Keep(r.cfg.Key, statefile.Entry{State: state, UnknownInside: unknown}, len(report.Conditions) > 0)
		r.kept = state
	}
}

// ask examines those whose turn it is, as long as there are places, and first those who
// have waited longest.
func (r *Monitor) ask(ctx context.Context, now time.Time) {
	for r.taken() < r.cfg.Concurrency {
		t := r.first()
		if t == nil || t.due.After(now) {
			return
		}
		t.asked, t.until = true, now.Add(t.Timeout+grace)
		// What was missed meanwhile is not made up for.
		t.due = now.Add(t.Interval - now.Sub(t.due)%t.Interval)
		go func(run int) { r.answers <- answer{t, run, r.examine(ctx, t.Rule)} }(r.runs)
	}
}

// taken returns how many places are taken.
func (r *Monitor) taken() int {
	sum := 0
	for _, t := range r.turns {
		if !t.until.IsZero() {
			sum++
		}
	}
	return sum
}

// first returns whose turn is next, nil if all are asked.
func (r *Monitor) first() *turn {
	var first *turn
	for _, t := range r.turns {
		if !t.asked && (first == nil || t.due.Before(first.due)) {
			first = t
		}
	}
	return first
}

// next returns how long there is nothing to do but to wait for answers.
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

// examine asks an exam, and makes an answer of a panic.
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

// take enters an answer. One that comes too late says nothing of the node as it is, and
// one that comes when all is to end says nothing at all.
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

// giveUp gives the places of those to others who should have answered by now. They are
// not asked again before they have.
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

// leave waits for those who are asked, but not for long: what they have started should
// be over when nobody looks any more.
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
