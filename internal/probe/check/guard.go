package check

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/exam"
	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/symptom"
)

// Units is systemd, as far as a guard needs it.
type Units interface {
	Look(ctx context.Context, name string) (unit.Unit, error)
	Restart(ctx context.Context, name string) error
}

// Repairs sees to it that one service is restarted at a time. An agent has one of it.
type Repairs struct {
	mu   sync.Mutex
	last string // the unit that was restarted last
}

// Care is what is done about an examination that finds its object sick.
type Care struct {
	// Unit of systemd that runs what is examined. None means that nothing is known of it.
	Unit string
	// Grace is how long after the start of the node, or of the unit, nothing is sick yet.
	Grace time.Duration
	// Repair restarts the unit when it is sick.
	Repair bool
	// Cooldown is how long a unit must have been as it is until it is restarted. Systemd
	// knows since when, so that no restart of the agent forgets it.
	Cooldown time.Duration
}

// Guard stands between an examination and whoever believes it.
type Guard struct {
	Care

	Boot    time.Time // of the node; zero if it is not known
	Units   Units
	Repairs *Repairs
	// Tell hears of restarts. Nil means that nobody does.
	Tell func(symptom.Event)
	Now  func() time.Time
}

// Around returns the examination with a guard around it. What is well costs nothing more.
func (g Guard) Around(examine exam.Exam) exam.Exam {
	return func(ctx context.Context) exam.Answer {
		answer := examine(ctx)
		if answer.Verdict != exam.Sick || ctx.Err() != nil {
			return answer
		}
		var runs unit.Unit
		var err error
		if g.Unit != "" && (g.Grace > 0 || g.Repair) {
			runs, err = g.Units.Look(ctx, g.Unit)
		}
		now := g.Now()
		if why, starting := g.starting(now, g.Boot, runs); starting {
			return unknown(startingUp, "%s; %s", answer.Message, why)
		}
		switch {
		case !g.Repair:
		case err != nil:
			answer.Message += fmt.Sprintf("; not restarted: %v", err)
		default:
			answer.Message += "; " + g.repair(ctx, now, runs, answer.Message)
		}
		return answer
	}
}

// starting says whether it is too early to call something sick. A unit that systemd keeps
// restarting by itself is not starting: it is failing.
func (c Care) starting(now, boot time.Time, runs unit.Unit) (why string, starting bool) {
	switch {
	case within(now, boot, c.Grace):
		return fmt.Sprintf("the node started %s ago, and has %s to do so", now.Sub(boot).Round(time.Second), c.Grace), true
	case runs.Known() && runs.Restarts == 0 && within(now, runs.Started, c.Grace) && runs.Active != "failed" && runs.Active != "inactive":
		return fmt.Sprintf("%s started %s ago, and has %s to do so", runs.Name, now.Sub(runs.Started).Round(time.Second), c.Grace), true
	}
	return "", false
}

// within says whether something was less than so long ago. What lies in the future, after
// the clock was set back, does not count as recent for ever: it is not believed.
func within(now, then time.Time, length time.Duration) bool {
	return !then.IsZero() && !then.After(now) && now.Sub(then) < length
}

// mayRestart says whether a unit may be restarted now, and if not, why.
func (c Care) mayRestart(now time.Time, runs unit.Unit) (why string, may bool) {
	switch {
	case !runs.Known():
		return fmt.Sprintf("there is no unit %s (%s)", runs.Name, runs.Load), false
	case runs.Active == "inactive":
		return runs.Name + " was stopped by somebody", false
	case runs.Busy:
		return runs.Name + " is " + doing(runs), false
	case now.Before(runs.Changed):
		return fmt.Sprintf("%s changed at %s, which is yet to come", runs.Name, runs.Changed.UTC().Format(time.RFC3339)), false
	case now.Sub(runs.Changed) <= c.Cooldown:
		return fmt.Sprintf("%s changed %s ago, and is left alone for %s", runs.Name, now.Sub(runs.Changed).Round(time.Second), c.Cooldown), false
	}
	return "", true
}

func doing(runs unit.Unit) string {
	switch runs.Active {
	case "active", "failed":
		return "about to change"
	}
	return runs.Active
}

// repair restarts the unit if it may be, and returns what was done.
func (g Guard) repair(ctx context.Context, now time.Time, runs unit.Unit, found string) string {
	if why, may := g.mayRestart(now, runs); !may {
		return "not restarted: " + why
	}
	if !g.Repairs.mu.TryLock() {
		return "not restarted: another unit is being restarted"
	}
	defer g.Repairs.mu.Unlock()
	if last := g.Repairs.last; last != "" && last != runs.Name {
		if other, err := g.Units.Look(ctx, last); err != nil || other.Busy {
			return "not restarted: " + last + " is being restarted"
		}
	}
	if err := g.Units.Restart(ctx, runs.Name); err != nil {
		g.tell(now, symptom.Warn, "UnitRestartFailed", fmt.Sprintf("%s: %v", found, err), runs)
		return fmt.Sprintf("not restarted: %v", err)
	}
	g.Repairs.last = runs.Name
	g.tell(now, symptom.Warn, "UnitRestarted", fmt.Sprintf("%s was restarted: %s", runs.Name, found), runs)
	return runs.Name + " was restarted"
}

func (g Guard) tell(now time.Time, severity symptom.Severity, reason, message string, runs unit.Unit) {
	if g.Tell == nil {
		return
	}
	g.Tell(symptom.Event{
		ID: fmt.Sprintf("%s-%s-%d", reason, runs.Name, now.UnixNano()), Severity: severity, Time: now, Reason: reason, Message: message,
	})
}

// Validate says what is wrong.
func (c Care) Validate() error {
	if c.Repair && c.Unit == "" {
		return errors.New("to repair, the unit must be named that is restarted")
	}
	return nil
}
