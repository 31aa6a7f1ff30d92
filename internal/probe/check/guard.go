package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// Units is systemd, as far as a guard needs it.
type Units interface {
	Look(ctx context.Context, name string) (unit.Unit, error)
	Restart(ctx context.Context, name string) error
}

// Care is what is done about an examination that finds its object sick.
type Care struct {
	// Check is the examination, by a name of its own on the node.
	Check string
	// Unit of systemd that runs what is examined. None means that nothing is known of it.
	Unit string
	// Grace is how long after the start of the node, or of the unit, nothing is sick yet.
	// A unit that was restarted because it was sick has none until that is forgiven.
	Grace time.Duration
	// Repair restarts the unit when it is sick.
	Repair bool
	// Cooldown is how long a unit must have been as it is, and have been left alone, until
	// it is restarted. It doubles with each restart, until the unit was well for as long.
	Cooldown time.Duration
}

// Guard stands between an examination and whoever believes it.
type Guard struct {
	Care

	Boot    time.Time // of the node; zero if it is not known
	Units   Units
	Repairs *Repairs
	// Tell hears of restarts. Nil means that nobody does.
	Tell func(finding.Event)
	Now  func() time.Time
}

// Around returns the examination with a guard around it. What is well and was never
// restarted costs nothing more.
func (g Guard) Around(examine checkresult.Check) checkresult.Check {
	return func(ctx context.Context) checkresult.Result {
		answer := examine(ctx)
		if answer.Verdict != checkresult.Unknown && g.Repair && ctx.Err() == nil {
			now := g.Now()
			g.Repairs.revise(unit.Name(g.Unit), func(t try) try { return g.hear(now, t, answer.Verdict) })
		}
		if answer.Verdict != checkresult.Sick || ctx.Err() != nil {
			return answer
		}
		seen, err := g.look(ctx)
		if why, starting := g.starting(g.Boot, seen); starting {
			return unknown(startingUp, "%s; %s", answer.Message, why)
		}
		switch {
		case !g.Repair:
		case err != nil:
			answer.Message += fmt.Sprintf("; not restarted: %v", err)
		default:
			answer.Message += "; " + g.repair(ctx, seen, answer.Message)
		}
		return answer
	}
}

// sight is what is known of a unit at a time.
type sight struct {
	now   time.Time
	runs  unit.Unit
	tried tried // with all units
}

// look finds out how the unit is, and what was tried with it.
func (g Guard) look(ctx context.Context) (sight, error) {
	if g.Unit == "" || g.Grace == 0 && !g.Repair {
		return sight{now: g.Now()}, nil
	}
	runs, err := g.Units.Look(ctx, g.Unit)
	seen := sight{runs: runs}
	if g.Repairs != nil {
		var forgotten error
		seen.tried, forgotten = g.Repairs.recall()
		err = errors.Join(err, forgotten)
	}
	seen.now = g.Now()
	return seen, err
}

func (s sight) try() try { return s.tried[s.runs.Name] }

// starting says whether it is too early to call something sick. A unit that systemd keeps
// restarting by itself is not starting: it is failing. So is one that was restarted
// because it was sick, and still is.
func (c Care) starting(boot time.Time, seen sight) (why string, starting bool) {
	now, runs := seen.now, seen.runs
	switch {
	case within(now, boot, c.Grace):
		return fmt.Sprintf("the node started at %s, and has %s to do so", clock(boot), c.Grace), true
	case !runs.Known() || runs.Restarts > 0 || runs.Active == "failed" || runs.Active == "inactive" || seen.try().Times > 0:
		return "", false
	case within(now, runs.Started, c.Grace):
		return fmt.Sprintf("%s started at %s, and has %s to do so", runs.Name, clock(runs.Started), c.Grace), true
	}
	return "", false
}

// clock writes a time. How long ago that is would be another message each time.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// within says whether something was less than so long ago. What lies in the future, after
// the clock was set back, does not count as recent for ever: it is not believed.
func within(now, then time.Time, length time.Duration) bool {
	return !then.IsZero() && !then.After(now) && now.Sub(then) < length
}

// No cool-down is shorter than least, and none grows beyond longest.
const (
	least   = 10 * time.Second
	longest = time.Hour
)

// cooldown is that of a unit that was restarted so often in vain.
func (c Care) cooldown(times int) time.Duration {
	rest := max(c.Cooldown, least)
	for ; times > 1 && rest < longest; times-- {
		rest = min(2*rest, longest)
	}
	return rest
}

// mayRestart says whether a unit may be restarted now, and if not, why.
func (c Care) mayRestart(seen sight) (why string, may bool) {
	now, runs, try := seen.now, seen.runs, seen.try()
	rest := c.cooldown(try.Times)
	switch {
	case !runs.Known():
		return fmt.Sprintf("there is no unit %s (%s)", runs.Name, runs.Load), false
	case runs.Active == "inactive":
		return runs.Name + " was stopped by somebody", false
	case runs.Busy:
		return runs.Name + " is " + doing(runs), false
	case now.Before(runs.Changed):
		return fmt.Sprintf("%s changed at %s, which is yet to come", runs.Name, clock(runs.Changed)), false
	case now.Before(try.At):
		return fmt.Sprintf("%s was to be restarted at %s, which is yet to come", runs.Name, clock(try.At)), false
	case now.Sub(try.At) <= rest:
		return fmt.Sprintf("%s was to be restarted at %s (%s), and is left alone for %s", runs.Name, clock(try.At), inVain(try), rest), false
	case now.Sub(runs.Changed) <= rest:
		return fmt.Sprintf("%s changed at %s, and is left alone for %s", runs.Name, clock(runs.Changed), rest), false
	}
	return "", true
}

// hear returns what is to be remembered of a unit after an answer about it. One good answer
// cures nobody: what it was restarted for is forgiven once it has been well for its whole
// cool-down, and for its grace, which would else hide that it is sick again. Whichever
// examination had it restarted must say so, unless that has not been heard of for long.
func (c Care) hear(now time.Time, t try, verdict checkresult.Verdict) try {
	rest := c.cooldown(t.Times)
	switch {
	case t.Times == 0:
	case verdict == checkresult.Sick:
		t.Well = time.Time{}
	case t.By != c.Check && now.Sub(t.At) <= 2*rest:
	case t.Well.IsZero(), now.Before(t.Well):
		t.Well = now.Round(0)
	case now.Sub(t.Well) >= max(rest, c.Grace):
		return try{At: t.At}
	}
	return t
}

func inVain(t try) string {
	switch t.Times {
	case 0:
		return "and was well since"
	case 1:
		return "in vain"
	}
	return fmt.Sprintf("%d times in vain", t.Times)
}

func doing(runs unit.Unit) string {
	switch runs.Active {
	case "active", "failed":
		return "about to change"
	}
	return runs.Active
}

// repair restarts the unit if it may be, and returns what was done.
func (g Guard) repair(ctx context.Context, seen sight, found string) string {
	if why, may := g.mayRestart(seen); !may {
		return "not restarted: " + why
	}
	unlock, err := g.Repairs.lock()
	if err != nil {
		return fmt.Sprintf("not restarted: %v", err)
	}
	defer unlock()
	// Somebody else may have restarted it before the lock was ours.
	if seen, err = g.look(ctx); err != nil {
		return fmt.Sprintf("not restarted: %v", err)
	}
	if why, may := g.mayRestart(seen); !may {
		return "not restarted: " + why
	}
	if why, away := g.isAnotherAway(ctx, seen); away {
		return "not restarted: " + why
	}
	return g.restart(ctx, seen, found)
}

// isAnotherAway says whether a unit that was restarted is not back yet.
func (g Guard) isAnotherAway(ctx context.Context, seen sight) (why string, away bool) {
	for _, name := range seen.tried.away(seen.now, seen.runs.Name) {
		other, err := g.Units.Look(ctx, name)
		switch {
		case err != nil:
			return fmt.Sprintf("nobody knows whether %s is back: %v", name, err), true
		case other.Busy:
			return name + " is being restarted", true
		}
	}
	return "", false
}

// restart restarts the unit. That it was to be is noted before: what cannot be noted would
// be done again and again by those who come after.
func (g Guard) restart(ctx context.Context, seen sight, found string) string {
	name, now := seen.runs.Name, seen.now
	tries := func(was try) try { return try{At: now.Round(0), Times: was.Times + 1, By: g.Check} }
	if err := g.Repairs.note(name, tries); err != nil {
		return fmt.Sprintf("not restarted: %v", err)
	}
	if err := g.Units.Restart(ctx, name); err != nil {
		g.tell(now, finding.Warn, "UnitRestartFailed", fmt.Sprintf("%s: %v", found, err), seen.runs)
		return fmt.Sprintf("not restarted: %v", err)
	}
	g.tell(now, finding.Warn, "UnitRestarted", fmt.Sprintf("%s was restarted: %s", name, found), seen.runs)
	return name + " was restarted"
}

func (g Guard) tell(now time.Time, severity finding.Severity, reason, message string, runs unit.Unit) {
	if g.Tell == nil {
		return
	}
	g.Tell(finding.Event{
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
