package filelog

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// The keys of a translator's configuration.
const (
	stampKey   = "timestamp"
	messageKey = "message"
	layoutKey  = "timestampFormat"
)

type translator struct {
	stamp, message *regexp.Regexp
	layout         string
	yearless       bool
	zone           *time.Location // of stamps that name none
	now            func() time.Time
}

// NewTranslator returns a translator of lines whose stamp and message are found by the
// regular expressions of pluginConfig. A stamp without a zone is in local time; one
// without a year is in that which puts it nearest before now, or less than a day after.
func NewTranslator(pluginConfig map[string]string, now func() time.Time) (logs.Translator, error) {
	t := &translator{layout: pluginConfig[layoutKey], zone: time.Local, now: now}
	var err error
	if t.stamp, err = expression(pluginConfig, stampKey); err != nil {
		return nil, err
	}
	if t.message, err = expression(pluginConfig, messageKey); err != nil {
		return nil, err
	}
	if t.layout == "" {
		return nil, fmt.Errorf(`pluginConfig.%s: is missing; write a layout of Go, such as "Jan _2 15:04:05"`, layoutKey)
	}
	if !tells(t.layout, time.October, 1) || !tells(t.layout, time.January, 8) {
		return nil, fmt.Errorf(`pluginConfig.%s: %q names no day, so nobody knows when a line was written; `+
			`write a layout of Go that names month and day, such as "Jan _2 15:04:05"`, layoutKey, t.layout)
	}
	// 2001 and 2007 are alike to the day of the week.
	t.yearless = day(2001, time.January, 1).Format(t.layout) == day(2007, time.January, 1).Format(t.layout)
	return t, nil
}

func expression(pluginConfig map[string]string, key string) (*regexp.Regexp, error) {
	text := pluginConfig[key]
	if text == "" {
		return nil, fmt.Errorf("pluginConfig.%s: is missing; write a regular expression that finds it in a line", key)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("pluginConfig.%s: %w", key, err)
	}
	return re, nil
}

func day(year int, month time.Month, d int) time.Time {
	return time.Date(year, month, d, 0, 0, 0, 0, time.UTC)
}

// tells says whether a layout tells a day of 2001 from its first, which is the same
// day of the week.
func tells(layout string, month time.Month, d int) bool {
	return day(2001, month, d).Format(layout) != day(2001, time.January, 1).Format(layout)
}

// Translate finds the stamp and the message in a line.
func (t *translator) Translate(line []byte) (time.Time, []byte, bool) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	stamp, ok := last(t.stamp, line)
	if !ok {
		return time.Time{}, nil, false
	}
	message, ok := last(t.message, line)
	if !ok {
		return time.Time{}, nil, false
	}
	at, err := t.parse(string(stamp))
	return at, message, err == nil
}

// last returns what the last group of an expression has found, or all of it if it has
// no group.
func last(re *regexp.Regexp, line []byte) ([]byte, bool) {
	found := re.FindSubmatchIndex(line)
	if found == nil {
		return nil, false
	}
	from, to := found[len(found)-2], found[len(found)-1]
	if from < 0 {
		return line[:0], true // the group took no part
	}
	return line[from:to], true
}

// mostYears is how far a 29 February may be back: 1904 was the next after 1896.
const mostYears = 8

func (t *translator) parse(stamp string) (time.Time, error) {
	at, err := time.ParseInLocation(t.layout, stamp, t.zone)
	if err != nil || !t.yearless {
		return at, err
	}
	// The year is put into the text, not into the time: without one, zones by their
	// names have no offset, and every 29 February is right.
	latest := t.now().Add(24 * time.Hour)
	year := latest.Add(24 * time.Hour).UTC().Year() // it may be a year further in the stamp's zone
	for range mostYears + 2 {
		at, err = time.ParseInLocation("2006 "+t.layout, strconv.Itoa(year)+" "+stamp, t.zone)
		if err == nil && !at.After(latest) {
			return at, nil
		}
		year--
	}
	return time.Time{}, fmt.Errorf("stamp %q is of no year", stamp)
}
