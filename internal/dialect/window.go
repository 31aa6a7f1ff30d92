package dialect

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/schedule"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Window is a time in which the disruptive steps of a policy may begin.
type Window struct {
	Schedule string // cron, for example "0 22 * * 1-5"
	TimeZone string // like Europe/Berlin; empty means UTC
	Duration string // how long the window is open after each hit of the schedule
}

// MaxWindows is how many windows a policy may have.
const MaxWindows = 16

// longestWindow is the longest duration of a window.
const longestWindow = 365 * 24 * time.Hour

// windows are the windows of a policy. They are open while one of them is.
type windows []window

type window struct {
	text string
	schedule.Window
}

// Open says whether a window is open, and until when that does not change.
func (w windows) Open(at time.Time) (open bool, until time.Time) {
	for _, one := range w {
		switch isOpen, change := one.Open(at); {
		case isOpen && (!open || change.After(until)): // the last to close
			open, until = true, change
		case !isOpen && !open && (until.IsZero() || !change.IsZero() && change.Before(until)): // the first to open
			until = change
		}
	}
	return open, until
}

func (w windows) String() string {
	texts := make([]string, 0, len(w))
	for _, one := range w {
		texts = append(texts, one.text)
	}
	return strings.Join(texts, "; ")
}

// leapYear begins a time in which every day of the calendar occurs.
var leapYear = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// windows compiles the windows of a policy; nil for none.
func (f *fields) windows(path string, given []Window) triage.Window {
	if len(given) == 0 {
		return nil
	}
	if len(given) > MaxWindows {
		f.fail(path, strconv.Itoa(len(given)), fmt.Sprintf("want at most %d windows", MaxWindows))
	}
	list := make(windows, 0, len(given))
	for i, one := range given {
		list = append(list, f.window(fmt.Sprintf("%s[%d]", path, i), one))
	}
	return list
}

const (
	wantSchedule = `want five fields of a cron schedule that occurs, for example "0 22 * * 1-5"`
	wantZone     = "want the name of a time zone, for example UTC or Europe/Berlin"
)

func (f *fields) window(path string, w Window) window {
	zone := orDefault(w.TimeZone, "UTC")
	if _, err := time.LoadLocation(zone); err != nil || zone == "Local" {
		f.fail(path+".timeZone", w.TimeZone, wantZone)
		return window{}
	}
	length, err := triage.ParseDuration(w.Duration)
	if err != nil || length <= 0 || length > longestWindow {
		f.fail(path+".duration", w.Duration, "want a duration with its unit, for example 4h, that is more than zero and at most 8760h")
	}
	read, err := schedule.New(w.Schedule, zone, length)
	switch {
	case strings.Contains(w.Schedule, "TZ="):
		f.fail(path+".schedule", w.Schedule, "want the time zone in timeZone, and the five fields of the schedule alone")
	case err != nil:
		f.fail(path+".schedule", w.Schedule, wantSchedule+": "+err.Error())
	case !read.IsRegular():
		f.fail(path+".schedule", w.Schedule, "@every has no fixed times; "+wantSchedule)
	case !read.Hits(leapYear):
		f.fail(path+".schedule", w.Schedule, "this date never comes; "+wantSchedule)
	}
	text := w.Schedule + " for " + w.Duration
	if zone != "UTC" {
		text += " in " + zone
	}
	return window{text, read}
}

// ParseWindows parses windows in the text of an annotation: "0 22 * * 1-5 for 4h in
// Europe/Berlin", separated by semicolons.
func ParseWindows(text string) ([]Window, error) {
	var list []Window
	for one := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";") {
		schedule, rest, isWindow := strings.Cut(one, " for ")
		duration, zone, _ := strings.Cut(rest, " in ")
		if !isWindow {
			return nil, &triage.FieldError{Value: text, Problem: `want a schedule and a duration, for example "0 22 * * 1-5 for 4h in Europe/Berlin"; separate several by semicolons`}
		}
		list = append(list, Window{strings.TrimSpace(schedule), strings.TrimSpace(zone), strings.TrimSpace(duration)})
	}
	return list, nil
}
