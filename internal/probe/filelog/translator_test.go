package filelog

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// Translators of the default monitors and of common formats.
var (
	syslogConfig = map[string]string{
		"timestamp": "^.{15}", "message": `(?i)kernel: \[.*\] (.*)`, "timestampFormat": "Jan _2 15:04:05",
	}
	dockerConfig = map[string]string{
		"timestamp": `^time="(\S*)"`, "message": `(?i)msg="([^\n]*)"`, "timestampFormat": "2006-01-02T15:04:05.999999999-07:00",
	}
)

func berlin(t *testing.T) *time.Location {
	t.Helper()
	zone := testkit.Value(time.LoadLocation("Europe/Berlin")).Must(t)
	return zone
}

func newTranslator(t *testing.T, config map[string]string, zone *time.Location, now time.Time) *translator {
	t.Helper()
	made := testkit.Value(NewTranslator(config, func() time.Time { return now })).Must(t)
	tr, ok := made.(*translator)
	testkit.Require(t, ok, "a %T", made)
	tr.zone = zone
	return tr
}

func TestTranslate(t *testing.T) {
	zone := berlin(t)
	now := time.Date(2026, time.March, 3, 12, 0, 0, 0, zone)
	for _, c := range []struct {
		name    string
		config  map[string]string
		now     time.Time
		line    string
		at      time.Time // zero if the line does not match
		message string
	}{
		{name: "a kernel's line in syslog", config: syslogConfig, now: now,
			line: "Mar  2 10:11:12 node kernel: [ 123.4] task docker:7 blocked",
			at:   time.Date(2026, time.March, 2, 10, 11, 12, 0, zone), message: "task docker:7 blocked"},
		{name: "a carriage return is no part of the message", config: syslogConfig, now: now,
			line: "Mar  2 10:11:12 node kernel: [ 123.4] oops\r",
			at:   time.Date(2026, time.March, 2, 10, 11, 12, 0, zone), message: "oops"},
		{name: "a line of another process", config: syslogConfig, now: now, line: "Mar  2 10:11:12 node sshd: hello"},
		{name: "no stamp", config: syslogConfig, now: now, line: "hello kernel: [1] what is it?"},
		{name: "an empty line", config: syslogConfig, now: now, line: ""},
		{name: "December is last year's in January", config: syslogConfig, now: time.Date(2026, time.January, 1, 0, 0, 5, 0, zone),
			line: "Dec 31 23:59:59 node kernel: [1] late",
			at:   time.Date(2025, time.December, 31, 23, 59, 59, 0, zone), message: "late"},
		{name: "January is next year's for a clock that is behind", config: syslogConfig, now: time.Date(2025, time.December, 31, 23, 59, 58, 0, zone),
			line: "Jan  1 00:00:01 node kernel: [1] early",
			at:   time.Date(2026, time.January, 1, 0, 0, 1, 0, zone), message: "early"},
		{name: "a day and more ahead is last year's", config: syslogConfig, now: now,
			line: "Mar  4 12:00:01 node kernel: [1] old",
			at:   time.Date(2025, time.March, 4, 12, 0, 1, 0, zone), message: "old"},
		{name: "less than a day ahead is this year's", config: syslogConfig, now: now,
			line: "Mar  4 11:59:59 node kernel: [1] new",
			at:   time.Date(2026, time.March, 4, 11, 59, 59, 0, zone), message: "new"},
		{name: "29 February of the last leap year", config: syslogConfig, now: now,
			line: "Feb 29 12:00:00 node kernel: [1] leap",
			at:   time.Date(2024, time.February, 29, 12, 0, 0, 0, zone), message: "leap"},
		{name: "29 February over a century without one", config: syslogConfig, now: time.Date(2103, time.March, 3, 12, 0, 0, 0, zone),
			line: "Feb 29 12:00:00 node kernel: [1] leap",
			at:   time.Date(2096, time.February, 29, 12, 0, 0, 0, zone), message: "leap"},
		{name: "29 February today", config: syslogConfig, now: time.Date(2028, time.February, 29, 12, 0, 1, 0, zone),
			line: "Feb 29 12:00:00 node kernel: [1] leap",
			at:   time.Date(2028, time.February, 29, 12, 0, 0, 0, zone), message: "leap"},
		{name: "30 February is no day", config: syslogConfig, now: now, line: "Feb 30 12:00:00 node kernel: [1] leap"},
		{name: "a zone by its offset, without a year",
			config: map[string]string{"timestamp": `^(.{21}) `, "message": `\] (.*)`, "timestampFormat": "Jan _2 15:04:05 -0700"},
			now:    time.Date(2025, time.December, 31, 11, 0, 0, 0, time.UTC),
			line:   "Jan  1 00:30:00 +1400 kernel: [1] far",
			at:     time.Date(2025, time.December, 31, 10, 30, 0, 0, time.UTC), message: "far"},
		{name: "a zone by its name, without a year",
			config: map[string]string{"timestamp": `^(.{15} \w+) `, "message": `\] (.*)`, "timestampFormat": "Jan _2 15:04:05 MST"},
			now:    now, line: "Jul  1 12:00:00 CEST kernel: [1] summer",
			at: time.Date(2025, time.July, 1, 10, 0, 0, 0, time.UTC), message: "summer"},
		{name: "a day of the week does not make a year",
			config: map[string]string{"timestamp": `^.{19}`, "message": `\] (.*)`, "timestampFormat": "Mon Jan _2 15:04:05"},
			now:    now, line: "Mon Mar  2 10:11:12 kernel: [1] weekly",
			at: time.Date(2026, time.March, 2, 10, 11, 12, 0, zone), message: "weekly"},
		{name: "docker's stamp says its zone", config: dockerConfig, now: now,
			line: `time="2016-01-04T18:42:06.113015862+02:00" level=error msg="Error running"`,
			at:   time.Date(2016, time.January, 4, 16, 42, 6, 113015862, time.UTC), message: "Error running"},
		{name: "the last group wins", now: now,
			config: map[string]string{"timestamp": `^(at )(\S+)`, "message": `(is) (.*)`, "timestampFormat": "2006-01-02"},
			line:   "at 2026-01-02 is well", at: time.Date(2026, time.January, 2, 0, 0, 0, 0, zone), message: "well"},
		{name: "without a group the whole match counts", now: now,
			config: map[string]string{"timestamp": `\d{4}-\d\d-\d\d`, "message": `is .*`, "timestampFormat": "2006-01-02"},
			line:   "at 2026-01-02 is well", at: time.Date(2026, time.January, 2, 0, 0, 0, 0, zone), message: "is well"},
		{name: "a group that took no part is empty", now: now,
			config: map[string]string{"timestamp": `\d{4}-\d\d-\d\d`, "message": `well|(ill)`, "timestampFormat": "2006-01-02"},
			line:   "at 2026-01-02 is well", at: time.Date(2026, time.January, 2, 0, 0, 0, 0, zone), message: ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTranslator(t, c.config, zone, c.now)
			line := []byte(c.line)
			at, message, ok := tr.Translate(line)
			testkit.Require(t, ok != c.at.IsZero(), "ok is %v", ok)
			if !ok {
				return
			}
			testkit.Require(t, at.Equal(c.at) && string(message) == c.message, "got %s %q, want %s %q", at, message, c.at, c.message)
		})
	}
}

func TestInvalidTranslatorsAreRejected(t *testing.T) {
	for _, c := range []struct {
		name, key, value, want string
	}{
		{"no stamp", "timestamp", "", "pluginConfig.timestamp: is missing"},
		{"no message", "message", "", "pluginConfig.message: is missing"},
		{"no layout", "timestampFormat", "", "pluginConfig.timestampFormat: is missing"},
		{"half an expression", "message", "(", "pluginConfig.message: error parsing regexp"},
		{"only the time of day", "timestampFormat", "15:04:05", "has no month and day"},
		{"no month", "timestampFormat", "2006 _2 15:04:05", "has no month and day"},
		{"no day", "timestampFormat", "2006-01 15:04:05", "has no month and day"},
		{"a day of the week only", "timestampFormat", "Mon 15:04:05", "has no month and day"},
		{"a layout of another language", "timestampFormat", "%Y-%m-%d", "has no month and day"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := map[string]string{"timestamp": "^.{15}", "message": "(.*)", "timestampFormat": "Jan _2 15:04:05"}
			config[c.key] = c.value
			_, err := NewTranslator(config, time.Now)
			testkit.Require(t, err != nil && strings.Contains(err.Error(), c.want), "got %v, want %q", err, c.want)
		})
	}
	for _, layout := range []string{"2006-002 15:04:05", time.ANSIC, time.RFC3339Nano, time.StampMicro, "01/02 15:04:05"} {
		_, err := NewTranslator(map[string]string{"timestamp": "x", "message": "y", "timestampFormat": layout}, time.Now)
		testkit.Check(t, err == nil, "%s: %v", layout, err)
	}
}

func TestTimestampsWithoutAYearGetTheNearestYear(t *testing.T) {
	zone := berlin(t)
	first := time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC).Unix()
	around := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(first+rapid.Int64Range(0, 150*365*86400).Draw(t, "now"), 0).In(zone)
		if rapid.Bool().Draw(t, "New Year") {
			now = time.Date(now.Year(), time.January, 1, 0, 0, 0, 0, zone).Add(time.Duration(rapid.Int64Range(-90000, 90000).Draw(t, "seconds")) * time.Second)
		}
		// A leap day may be several years back. Any other day is at most a year back.
		at := now.Add(-time.Duration(rapid.Int64Range(-86399, 363*86400).Draw(t, "age")) * time.Second)
		if at.Year() != now.Year() {
			around["other year"]++
		}
		// An hour that occurs twice because of daylight saving time is ambiguous.
		if !time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), 0, zone).Equal(at) {
			t.Skip("an hour that comes twice")
		}
		tr := &translator{layout: time.Stamp, yearless: true, zone: zone, now: func() time.Time { return now }}
		got, err := tr.parse(at.Format(time.Stamp))
		testkit.Require(t, err == nil && got.Equal(at), "%s at %s is read as %s (%v)", at, now, got, err)
	})
	testkit.Check(t, around["other year"] != 0, "no timestamp was of another year than now")
	t.Logf("%d stamps of another year than now", around["other year"])
}

func FuzzTranslate(f *testing.F) {
	f.Add("^.{15}", "kernel: (.*)", time.Stamp, []byte("Mar  2 10:11:12 node kernel: x"))
	f.Add(`^time="(\S*)"`, `msg="([^\n]*)"`, time.RFC3339, []byte(`time="2016-01-04T18:42:06+02:00" msg="x"`))
	f.Add("(a)|(b)", "(c)?", "Jan 2 MST", []byte("\xffFeb 29 XYZ\x00\r"))
	now := time.Date(2026, time.March, 3, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, stamp, message, layout string, line []byte) {
		tr, err := NewTranslator(map[string]string{"timestamp": stamp, "message": message, "timestampFormat": layout}, func() time.Time { return now })
		if err != nil {
			return
		}
		before := bytes.Clone(line)
		at, found, ok := tr.Translate(line)
		testkit.MustBeSame(t, line, before, "the line is not changed")
		if !ok {
			return
		}
		testkit.Require(t, bytes.Contains(line, found), "the message %q is not in the line %q", found, line)
		made, is := tr.(*translator)
		testkit.Require(t, !is || !made.yearless || !at.After(now.Add(24*time.Hour)), "%s is in the future", at)
	})
}

func BenchmarkTranslate(b *testing.B) {
	tr := testkit.Value(NewTranslator(syslogConfig, time.Now)).Must(b)
	line := []byte("Mar  2 10:11:12 node-0123 kernel: [123456.789012] INFO: task docker:12345 blocked for more than 120 seconds.")
	b.ReportAllocs()
	for b.Loop() {
		_, _, ok := tr.Translate(line)
		testkit.Require(b, ok, "the line does not fit")
	}
}
