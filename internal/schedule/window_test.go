package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestParserPanicBecomesAnError(t *testing.T) {
	// The parser panics on a time zone without a schedule.
	if _, err := parse("TZ=UTC"); err == nil || !strings.Contains(err.Error(), "five fields") {
		t.Errorf("says %v", err)
	}
}

// The parser accepts an empty list of minutes or hours.
func TestScheduleWithoutHitsIsNotSearched(t *testing.T) {
	now := time.Date(2026, time.November, 16, 9, 0, 0, 0, time.UTC)
	for _, schedule := range []string{", * * * *", "0 , * * *", "0 0 , * ,", "0 0 * , *"} {
		parsed, err := cron.ParseStandard("TZ=UTC " + schedule)
		testkit.Must(t, err)
		if hit := parsed.Next(now); !hit.IsZero() {
			t.Errorf("%s hits at %s", schedule, hit)
		}
		w := testkit.Value(New(schedule, "UTC", time.Hour)).Must(t)
		if _, isNever := w.hits.(never); !isNever || w.Hits(now) {
			t.Errorf("%s is searched as %T", schedule, w.hits)
		}
	}
}

// A window lasts as long as it says, also on the days on which the clocks change.
func TestWindow(t *testing.T) {
	tests := []struct {
		name, schedule, zone string
		length               time.Duration
		at                   string
		open                 bool
		until                string
	}{
		{"before the first hit of the day", "0 22 * * 1-5", "Europe/Berlin", 4 * time.Hour, "2026-11-18T20:59:59Z", false, "2026-11-18T21:00:00Z"},
		{"from the hit on", "0 22 * * 1-5", "Europe/Berlin", 4 * time.Hour, "2026-11-18T21:00:00Z", true, "2026-11-19T01:00:00Z"},
		{"past midnight", "0 22 * * 1-5", "Europe/Berlin", 4 * time.Hour, "2026-11-19T00:59:59.999999999Z", true, "2026-11-19T01:00:00Z"},
		{"until its end", "0 22 * * 1-5", "Europe/Berlin", 4 * time.Hour, "2026-11-19T01:00:00Z", false, "2026-11-19T21:00:00Z"},
		{"over the weekend", "0 22 * * 1-5", "Europe/Berlin", 4 * time.Hour, "2026-11-21T01:00:00Z", false, "2026-11-23T21:00:00Z"},
		{"in summer time", "0 22 * * *", "Europe/Berlin", time.Hour, "2026-07-01T12:00:00Z", false, "2026-07-01T20:00:00Z"},
		// On 29 March 2026 the clocks go from 02:00 to 03:00.
		{"through the night of 23 hours", "0 22 * * *", "Europe/Berlin", 8 * time.Hour, "2026-03-28T21:00:00Z", true, "2026-03-29T05:00:00Z"},
		{"a hit in the hour that is left out", "30 2 * * *", "Europe/Berlin", time.Hour, "2026-03-29T00:00:00Z", false, "2026-03-30T00:30:00Z"},
		// On 25 October 2026 the clocks go from 03:00 to 02:00.
		{"through the night of 25 hours", "0 22 * * *", "Europe/Berlin", 8 * time.Hour, "2026-10-24T20:00:00Z", true, "2026-10-25T04:00:00Z"},
		{"first of two hits in the hour that comes twice", "30 2 * * *", "Europe/Berlin", 30 * time.Minute, "2026-10-25T00:30:00Z", true, "2026-10-25T01:00:00Z"},
		{"second of two hits in the hour that comes twice", "30 2 * * *", "Europe/Berlin", 30 * time.Minute, "2026-10-25T01:00:00Z", false, "2026-10-25T01:30:00Z"},
		{"a window that two hits extend", "30 2 * * *", "Europe/Berlin", time.Hour, "2026-10-25T00:30:00Z", true, "2026-10-25T02:30:00Z"},
		{"a window that is always open", "* * * * *", "UTC", time.Hour, "2026-03-01T00:59:30Z", true, "2026-03-01T02:40:00Z"},
		{"a leap day", "0 0 29 2 *", "UTC", time.Hour, "2026-03-01T00:00:00Z", false, "2028-02-29T00:00:00Z"},
		{"a schedule that never hits", "0 0 30 2 *", "UTC", time.Hour, "2026-03-01T00:00:00Z", false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := testkit.Value(New(test.schedule, test.zone, test.length)).Must(t)
			at := testkit.Value(time.Parse(time.RFC3339Nano, test.at)).Must(t)
			var want time.Time
			if test.until != "" {
				want = testkit.Value(time.Parse(time.RFC3339, test.until)).Must(t)
			}
			open, until := w.Open(at)
			testkit.Same(t, open, test.open, "open")
			testkit.Check(t, until.Equal(want), "until %s, want %s", until, want)
		})
	}
}

// The answer for a moment agrees with a search through all minutes of two days.
func TestWindowAgreesWithItsHits(t *testing.T) {
	from := time.Date(2026, time.October, 24, 12, 0, 0, 0, time.UTC)
	for _, schedule := range []string{"0 22 * * 1-5", "*/20 1-3 * * *", "@daily"} {
		for _, length := range []time.Duration{time.Minute, 20 * time.Minute, 3 * time.Hour} {
			w := testkit.Value(New(schedule, "Europe/Berlin", length)).Must(t)
			isOpen := make([]bool, 48*60) // by minute
			for i := range isOpen {
				at := from.Add(time.Duration(i) * time.Minute)
				if !w.hits.Next(at.Add(-time.Second)).Equal(at) {
					continue
				}
				for j := i; j < min(i+int(length/time.Minute), len(isOpen)); j++ {
					isOpen[j] = true
				}
			}
			change := from.Add(48 * time.Hour)
			for i := len(isOpen) - 1; i >= int(length/time.Minute); i-- {
				at := from.Add(time.Duration(i) * time.Minute)
				if i+1 < len(isOpen) && isOpen[i] != isOpen[i+1] {
					change = at.Add(time.Minute)
				}
				open, until := w.Open(at)
				if open != isOpen[i] || !until.After(at) || change.Before(from.Add(48*time.Hour)) && until.After(change) {
					t.Fatalf("%q for %s at %s: open %t until %s, want %t until %s", schedule, length, at, open, until, isOpen[i], change)
				}
			}
		}
	}
}
