package filelog

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// Keys of a translator's configuration.
const (
	stampKey   = "timestamp"
	messageKey = "message"
	layoutKey  = "timestampFormat"
)

type translator struct {
	stamp, message *regexp.Regexp
	layout         string
	yearless       bool
	zone           *time.Location // for timestamps without a zone
	now            func() time.Time
}

// NewTranslator returns a translator that finds timestamp and message with the regular
// expressions of pluginConfig. A timestamp without a zone is in local time. A timestamp
// without a year gets the latest year that puts it at most a day after now.
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
		return nil, fmt.Errorf(`pluginConfig.%s: is missing; set a Go time layout, for example "Jan _2 15:04:05"`, layoutKey)
	}
	if !distinguishes(t.layout, time.October, 1) || !distinguishes(t.layout, time.January, 8) {
		return nil, fmt.Errorf(`pluginConfig.%s: %q has no month and day, so the time of a line is unknown; `+
			`use a Go time layout with month and day, for example "Jan _2 15:04:05"`, layoutKey, t.layout)
	}
	// 2001 and 2007 have the same weekdays.
	t.yearless = day(2001, time.January, 1).Format(t.layout) == day(2007, time.January, 1).Format(t.layout)
	return t, nil
}

func expression(pluginConfig map[string]string, key string) (*regexp.Regexp, error) {
	text := pluginConfig[key]
	if text == "" {
		return nil, fmt.Errorf("pluginConfig.%s: is missing; set a regular expression that finds it in a line", key)
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

// distinguishes says whether a layout distinguishes a day of 2001 from its first day,
// which has the same weekday.
func distinguishes(layout string, month time.Month, d int) bool {
	return day(2001, month, d).Format(layout) != day(2001, time.January, 1).Format(layout)
}

// Translate finds the timestamp and the message in a line.
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

// last returns the text of the last group of an expression, or of the whole match if it
// has no group.
func last(re *regexp.Regexp, line []byte) ([]byte, bool) {
	found := re.FindSubmatchIndex(line)
	if found == nil {
		return nil, false
	}
	from, to := found[len(found)-2], found[len(found)-1]
	if from < 0 {
		return line[:0], true // the group did not participate in the match
	}
	return line[from:to], true
}

// maxYears is the longest time between two leap days: 1896 to 1904.
const maxYears = 8

func (t *translator) parse(stamp string) (time.Time, error) {
	at, err := time.ParseInLocation(t.layout, stamp, t.zone)
	if err != nil || !t.yearless {
		return at, err
	}
	// Parse the year as part of the text. Without a year, named zones have no offset, and 29
	// February is always valid.
	latest := t.now().Add(24 * time.Hour)
	year := latest.Add(24 * time.Hour).UTC().Year() // it may be a later year in the timestamp's zone
	for range maxYears + 2 {
		at, err = time.ParseInLocation("2006 "+t.layout, strconv.Itoa(year)+" "+stamp, t.zone)
		if err == nil && !at.After(latest) {
			return at, nil
		}
		year--
	}
	return time.Time{}, fmt.Errorf("timestamp %q is valid in no recent year", stamp)
}
