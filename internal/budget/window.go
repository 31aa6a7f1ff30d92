package budget

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/resourcestack/autohealer/internal/karpenter"
)

// window is when a budget is active: for length after each hit of the schedule. Without a
// schedule it is always active.
type window struct {
	schedule cron.Schedule
	length   time.Duration
}

// readWindow parses the schedule of a budget with the parser of Karpenter and in UTC, so
// that both accept the same schedules.
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

// parse guards the cron parser. The parser has no maintainer any more, and is used only
// because Karpenter uses it (docs/design/2026-11-16-cron.md). A panic becomes an error. A
// schedule without a minute, such as ", * * * *", never hits; the search of the parser would
// take a tenth of a second to find that out each time.
func parse(schedule string, with func(string) (cron.Schedule, error)) (_ cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser of schedules fails on it (%v); write five fields such as \"0 9 * * mon-fri\"", r)
		}
	}()
	parsed, err := with(schedule)
	if spec, ok := parsed.(*cron.SpecSchedule); ok && (spec.Minute == 0 || spec.Hour == 0 || spec.Month == 0 || spec.Dom|spec.Dow == 0) {
		return neverSchedule{}, err
	}
	return parsed, err
}

// neverSchedule is a schedule that never hits.
type neverSchedule struct{}

// Next returns zero, which means no next hit.
func (neverSchedule) Next(time.Time) time.Time { return time.Time{} }

// maxHits limits the search for the end of a window that each hit extends. A window that is
// open all day is evaluated again later.
const maxHits = 100

// at says whether the window is open, and until when that cannot change; zero means for
// ever. The window opens at a hit and closes when its length has passed since the last hit.
// A schedule that never hits is always open, as in Karpenter.
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
	for range maxHits {
		next := w.schedule.Next(hit)
		if next.IsZero() || next.After(hit.Add(w.length)) {
			break
		}
		hit = next
	}
	return true, hit.Add(w.length)
}
