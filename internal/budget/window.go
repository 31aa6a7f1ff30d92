package budget

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/resourcestack/autohealer/internal/karpenter"
)

// window is when a budget holds: from each hit of a schedule for a while. Without a
// schedule it always does.
type window struct {
	schedule cron.Schedule
	length   time.Duration
}

// readWindow reads a budget's schedule with the parser that Karpenter has, in UTC as
// Karpenter does, so that both take and refuse the same.
func readWindow(budget karpenter.Budget) (window, error) {
	if budget.Schedule == nil && budget.Duration == "" {
		return window{}, nil
	}
	var w window
	var schedule string
	if budget.Schedule != nil {
		schedule = *budget.Schedule
	}
	var err error
	if w.schedule, err = parse("TZ=UTC "+schedule, cron.ParseStandard); err != nil {
		return window{}, fmt.Errorf("its schedule %q: %w", schedule, err)
	}
	if budget.Duration != "" {
		if w.length, err = time.ParseDuration(budget.Duration); err != nil {
			return window{}, fmt.Errorf("its duration: want one such as 8h, not %q", budget.Duration)
		}
	}
	return w, nil
}

// parse is the fence around the parser, which has no maintainer any more and which only
// Karpenter's use of it keeps here (docs/design/2026-11-16-cron.md). What panics cannot be
// read, and a schedule without a minute, such as ", * * * *", never hits: to find that out
// would take the parser's own search a tenth of a second each time.
func parse(schedule string, with func(string) (cron.Schedule, error)) (_ cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser of schedules fails on it (%v); write five fields such as \"0 9 * * mon-fri\"", r)
		}
	}()
	parsed, err := with(schedule)
	if spec, ok := parsed.(*cron.SpecSchedule); ok && (spec.Minute == 0 || spec.Hour == 0 || spec.Month == 0 || spec.Dom|spec.Dow == 0) {
		return never{}, err
	}
	return parsed, err
}

// never is a schedule that does not hit.
type never struct{}

// Next returns zero, as schedules do that have no next hit.
func (never) Next(time.Time) time.Time { return time.Time{} }

// farthest is after how many hits nobody looks for the end of a window that each of
// them makes longer: one that holds all day is asked about again.
const farthest = 100

// at says whether the window is open, and until when at least that cannot change;
// zero stands for ever. It is open at a hit, and no longer when its length has
// passed since the last one. A schedule that never hits is always open: that is how
// Karpenter sees it.
func (w window) at(now time.Time) (open bool, changes time.Time) {
	if w.schedule == nil {
		return true, time.Time{}
	}
	hit := w.schedule.Next(now.Add(-w.length))
	switch {
	case hit.IsZero():
		return true, time.Time{}
	case hit.After(now) && w.length <= 0:
		return false, time.Time{}
	case hit.After(now):
		return false, hit
	}
	for range farthest {
		next := w.schedule.Next(hit)
		if next.IsZero() || next.After(hit.Add(w.length)) {
			break
		}
		hit = next
	}
	return true, hit.Add(w.length)
}
