package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// Units is the part of systemd that a guard uses.
type Units interface {
	Look(ctx context.Context, name string) (unit.Unit, error)
	Restart(ctx context.Context, name string) error
}

// GuardConfig defines the reaction to an unhealthy check.
type GuardConfig struct {
	// Check is the name of the check, unique on the node.
	Check string
	// Unit is the systemd unit that runs the checked component. It may be empty.
	Unit string
	// Grace is how long after the start of the node or of the unit the check is not unhealthy yet.
	// A unit that was restarted because it was unhealthy gets no grace until its attempts are
	// reset.
	Grace time.Duration
	// Repair restarts the unit when the check is unhealthy.
	Repair bool
	// Cooldown is how long a unit must be unchanged, and must not have been restarted, before it is
	// restarted. It doubles with each restart, until the unit has been healthy for that long.
	Cooldown time.Duration
}

// Guard wraps a check. It applies the grace periods and repairs.
type Guard struct {
	GuardConfig

	Boot    time.Time // start of the node; zero if not known
	Units   Units
	Repairs *Repairs
	// Tell receives an Event for each restart. It may be nil.
	Tell func(finding.Event)
	Now  func() time.Time
}

// Around returns the check with the guard applied. A healthy unit that was never restarted costs
// nothing extra.
func (g Guard) Around(examine periodic.Check) periodic.Check {
	return func(ctx context.Context) periodic.Result {
		answer := examine(ctx)
		if answer.Verdict != periodic.Unknown && g.Repair && ctx.Err() == nil {
			now := g.Now()
			g.Repairs.updateIfChanged(unit.Name(g.Unit), func(t attempt) attempt { return g.updated(now, t, answer.Verdict) })
		}
		if answer.Verdict != periodic.Unhealthy || ctx.Err() != nil {
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

// unitView is what is known of a unit at a moment.
type unitView struct {
	now      time.Time
	unit     unit.Unit
	attempts attempts // of all units
}

// look reads the state of the unit and its restarts.
func (g Guard) look(ctx context.Context) (unitView, error) {
	if g.Unit == "" || g.Grace == 0 && !g.Repair {
		return unitView{now: g.Now()}, nil
	}
	runs, err := g.Units.Look(ctx, g.Unit)
	seen := unitView{unit: runs}
	if g.Repairs != nil {
		var forgotten error
		seen.attempts, forgotten = g.Repairs.load()
		err = errors.Join(err, forgotten)
	}
	seen.now = g.Now()
	return seen, err
}

func (s unitView) attempt() attempt { return s.attempts[s.unit.Name] }

// starting returns whether it is too early to call the component unhealthy. A unit that systemd
// keeps restarting is failing, not starting. The same is true for a unit that the agent has
// restarted and that is still unhealthy.
func (c GuardConfig) starting(boot time.Time, seen unitView) (why string, starting bool) {
	now, runs := seen.now, seen.unit
	switch {
	case within(now, boot, c.Grace):
		return fmt.Sprintf("the node started at %s and has %s to become healthy", formatTime(boot), c.Grace), true
	case !runs.Known() || runs.Restarts > 0 || runs.Active == "failed" || runs.Active == "inactive" || seen.attempt().Times > 0:
		return "", false
	case within(now, runs.Started, c.Grace):
		return fmt.Sprintf("%s started at %s and has %s to become healthy", runs.Name, formatTime(runs.Started), c.Grace), true
	}
	return "", false
}

// formatTime writes an absolute time. A duration would make a different message each time.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// within returns whether then is less than length ago. A time in the future, after the clock was
// set back, does not count.
func within(now, then time.Time, length time.Duration) bool {
	return !then.IsZero() && !then.After(now) && now.Sub(then) < length
}

// minCooldown and maxCooldown bound the cool-down.
const (
	minCooldown = 10 * time.Second
	maxCooldown = time.Hour
)

// cooldown returns the cool-down of a unit after a number of restarts without success.
func (c GuardConfig) cooldown(times int) time.Duration {
	rest := max(c.Cooldown, minCooldown)
	for ; times > 1 && rest < maxCooldown; times-- {
		rest = min(2*rest, maxCooldown)
	}
	return rest
}

// mayRestart returns whether a unit may be restarted now, and if not, why.
func (c GuardConfig) mayRestart(seen unitView) (why string, may bool) {
	now, runs, try := seen.now, seen.unit, seen.attempt()
	rest := c.cooldown(try.Times)
	switch {
	case !runs.Known():
		return fmt.Sprintf("there is no unit %s (%s)", runs.Name, runs.Load), false
	case runs.Active == "inactive":
		return runs.Name + " was stopped by a user", false
	case runs.Busy:
		return runs.Name + " is " + doing(runs), false
	case now.Before(runs.Changed):
		return fmt.Sprintf("%s changed at %s, which is in the future", runs.Name, formatTime(runs.Changed)), false
	case now.Before(try.At):
		return fmt.Sprintf("%s was restarted at %s, which is in the future", runs.Name, formatTime(try.At)), false
	case now.Sub(try.At) <= rest:
		return fmt.Sprintf("%s was restarted at %s (%s); the next restart is possible after a cool-down of %s", runs.Name, formatTime(try.At), outcome(try), rest), false
	case now.Sub(runs.Changed) <= rest:
		return fmt.Sprintf("%s changed at %s; a restart is possible after a cool-down of %s", runs.Name, formatTime(runs.Changed), rest), false
	}
	return "", true
}

// updated returns the attempt of a unit after a new result. A single healthy result does not reset
// the attempts: the unit must be healthy for its whole cool-down and grace period. A shorter time
// would let the grace period hide that the unit is unhealthy again. Only the check that requested
// the restart counts, unless it has not reported for a long time.
func (c GuardConfig) updated(now time.Time, t attempt, verdict periodic.Verdict) attempt {
	rest := c.cooldown(t.Times)
	switch {
	case t.Times == 0:
	case verdict == periodic.Unhealthy:
		t.Well = time.Time{}
	case t.By != c.Check && now.Sub(t.At) <= 2*rest:
	case t.Well.IsZero(), now.Before(t.Well):
		t.Well = now.Round(0)
	case now.Sub(t.Well) >= max(rest, c.Grace):
		return attempt{At: t.At}
	}
	return t
}

func outcome(t attempt) string {
	switch t.Times {
	case 0:
		return "and has been healthy since"
	case 1:
		return "without success"
	}
	return fmt.Sprintf("%d times without success", t.Times)
}

func doing(runs unit.Unit) string {
	switch runs.Active {
	case "active", "failed":
		return "about to change"
	}
	return runs.Active
}

// repair restarts the unit if it may, and returns what was done.
func (g Guard) repair(ctx context.Context, seen unitView, found string) string {
	if why, may := g.mayRestart(seen); !may {
		return "not restarted: " + why
	}
	unlock, err := g.Repairs.lock()
	if err != nil {
		return fmt.Sprintf("not restarted: %v", err)
	}
	defer unlock()
	// Another process may have restarted the unit before this one got the lock.
	if seen, err = g.look(ctx); err != nil {
		return fmt.Sprintf("not restarted: %v", err)
	}
	if why, may := g.mayRestart(seen); !may {
		return "not restarted: " + why
	}
	if why, away := g.isAnotherRestarting(ctx, seen); away {
		return "not restarted: " + why
	}
	return g.restart(ctx, seen, found)
}

// isAnotherRestarting returns whether another restarted unit is not back yet.
func (g Guard) isAnotherRestarting(ctx context.Context, seen unitView) (why string, away bool) {
	for _, name := range seen.attempts.mayBeRestarting(seen.now, seen.unit.Name) {
		other, err := g.Units.Look(ctx, name)
		switch {
		case err != nil:
			return fmt.Sprintf("cannot determine whether %s is back: %v", name, err), true
		case other.Busy:
			return name + " is being restarted", true
		}
	}
	return "", false
}

// restart restarts the unit. It records the attempt first: an attempt that is not recorded would be
// repeated by later checks and processes.
func (g Guard) restart(ctx context.Context, seen unitView, found string) string {
	name, now := seen.unit.Name, seen.now
	tries := func(was attempt) attempt { return attempt{At: now.Round(0), Times: was.Times + 1, By: g.Check} }
	if err := g.Repairs.update(name, tries); err != nil {
		return fmt.Sprintf("not restarted: %v", err)
	}
	if err := g.Units.Restart(ctx, name); err != nil {
		g.tell(now, finding.Warn, "UnitRestartFailed", fmt.Sprintf("%s: %v", found, err), seen.unit)
		return fmt.Sprintf("not restarted: %v", err)
	}
	g.tell(now, finding.Warn, "UnitRestarted", fmt.Sprintf("%s was restarted: %s", name, found), seen.unit)
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

// Validate returns what is wrong with the configuration.
func (c GuardConfig) Validate() error {
	if c.Repair && c.Unit == "" {
		return errors.New("repair needs the name of the unit to restart; set unit")
	}
	return nil
}
