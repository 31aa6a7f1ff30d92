// Package schedule says when windows are open that begin at the hits of a cron schedule. It
// accepts the schedules that Karpenter and CronJobs accept. It has no clock.
package schedule

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// Window is open for a while after each hit of its schedule.
type Window struct {
	hits   cron.Schedule
	length time.Duration
}

// New returns a window that opens at the hits of a schedule in a time zone, for example UTC or
// Europe/Berlin, and closes when its length has passed since the last hit.
func New(schedule, zone string, length time.Duration) (Window, error) {
	hits, err := parse("TZ=" + zone + " " + schedule)
	return Window{hits, length}, err
}

// parse guards the cron parser. The parser has no maintainer any more, and is used only
// because Karpenter uses it (docs/contributing/design/2026-11-16-cron.md). A panic becomes an error. A
// schedule without a minute, for example ", * * * *", never hits; the search of the parser would
// take a tenth of a second to find that out each time.
func parse(schedule string) (_ cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser of schedules fails on it (%v); write five fields like \"0 9 * * mon-fri\"", r)
		}
	}()
	parsed, err := cron.ParseStandard(schedule)
	if spec, ok := parsed.(*cron.SpecSchedule); ok && (spec.Minute == 0 || spec.Hour == 0 || spec.Month == 0 || spec.Dom|spec.Dow == 0) {
		return never{}, err
	}
	return parsed, err
}

// never is a schedule that never hits.
type never struct{}

// Next returns zero, which means no next hit.
func (never) Next(time.Time) time.Time { return time.Time{} }

// Hits says whether a hit opens the window now, or within the next five years.
func (w Window) Hits(now time.Time) bool { return !w.hits.Next(now.Add(-w.length)).IsZero() }

// IsRegular says whether the hits follow the calendar. Those of @every do not.
func (w Window) IsRegular() bool {
	_, is := w.hits.(cron.ConstantDelaySchedule)
	return !is
}

// maxHits limits the search for the end of a window that each hit extends. A window that is
// open all day is evaluated again later.
const maxHits = 100

// Open says whether the window is open, and until when that cannot change; zero means for
// ever. For a closed window this is the next opening.
func (w Window) Open(now time.Time) (open bool, until time.Time) {
	hit := w.hits.Next(now.Add(-w.length))
	switch {
	case hit.IsZero(), hit.After(now) && w.length <= 0:
		return false, time.Time{}
	case hit.After(now):
		return false, hit.UTC()
	}
	for range maxHits {
		next := w.hits.Next(hit)
		if next.IsZero() || next.After(hit.Add(w.length)) {
			break
		}
		hit = next
	}
	return true, hit.Add(w.length).UTC()
}
