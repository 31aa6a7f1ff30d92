package logmonitor

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// All stories happen on the 15th.
var day = time.Date(2026, time.November, 15, 0, 0, 0, 0, time.UTC)

// clock is a translator of lines that begin with a time of that day.
type clock struct{}

func (clock) Translate(line []byte) (time.Time, []byte, bool) {
	stamp, message, _ := bytes.Cut(line, []byte(" "))
	at, err := timeOfDay(string(stamp))
	return at, message, err == nil
}

func timeOfDay(text string) (time.Time, error) {
	at, err := time.Parse(time.TimeOnly, text)
	return day.Add(at.Sub(at.Truncate(24 * time.Hour))), err
}

// story runs a monitor according to a transcript:
//
//	monitor [plugin=kmsg] [buffer=10] [skip=(words,...)]
//	  one condition or rule for each line that is not indented, and its fields below
//	start now=12:00:00 [boot=a] [since=12:00:00] [clear=(Disk,12:00:00)]
//	  a restart with the stored state, without what is cleared
//	take now=12:00:00 [lost=3] [more]
//	  a chunk of lines that begin with a time; with records, each begins with its number
//	  and facility, and | is a newline within it
//	wake now=12:00:00
//	counts, expensive
type story struct {
	cfg     Config
	monitor *Monitor
	offset  uint64
	ids     map[string]string // short names for IDs
}

func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		t.Helper()
		s := &story{ids: map[string]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			return s.run(t, d)
		})
	})
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var now time.Time
	if d.HasArg("now") {
		now = argument(t, d, "now")
	}
	switch d.Cmd {
	case "monitor":
		s.configure(t, d)
		if _, err := New(s.cfg); err != nil {
			return err.Error()
		}
		return "ok"
	case "start":
		return s.start(t, d, now)
	case "take":
		return s.tell(s.monitor.Take(now, s.chunk(t, d)))
	case "wake":
		return s.tell(s.monitor.Wake(now))
	case "counts":
		return fmt.Sprintf("%+v", s.monitor.Counts())
	case "expensive":
		return strings.Join(s.monitor.Expensive(), "\n")
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func argument(t *testing.T, d *datadriven.TestData, key string) time.Time {
	t.Helper()
	var text string
	d.ScanArgs(t, key, &text)
	at, err := timeOfDay(text)
	testkit.Require(t, err == nil, "%s: %v", d.Pos, err)
	return at
}

func (s *story) configure(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	m := config.LogMonitor{Plugin: config.Filelog, Source: "story", BufferSize: 10}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "plugin":
			m.Plugin = arg.Vals[0]
		case "buffer":
			m.BufferSize, _ = strconv.Atoi(arg.Vals[0])
		case "skip":
			m.SkipList = arg.Vals
		}
	}
	for line := range strings.Lines(d.Input) {
		field, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "  ")
		words := strings.SplitN(field, " ", 4)
		switch {
		case indented && words[0] == "healthyStatus":
			m.Conditions[len(m.Conditions)-1].Healthy = catalog.Status(words[1])
		case indented && words[0] == "survivesReboot":
			m.Conditions[len(m.Conditions)-1].SurvivesReboot = true
		case indented:
			key, value, _ := strings.Cut(field, " ")
			set(t, &m.Rules[len(m.Rules)-1], key, value)
		case words[0] == "condition":
			m.Conditions = append(m.Conditions, config.Condition{Type: words[1], Reason: words[2], Message: words[3]})
		case words[0] == "temporary":
			m.Rules = append(m.Rules, config.LogRule{Reason: words[1]})
		case words[0] == "permanent":
			m.Rules = append(m.Rules, config.LogRule{Permanent: true, Condition: words[1], Reason: words[2]})
		default:
			t.Fatalf("%s: %q is neither condition nor rule", d.Pos, field)
		}
	}
	s.cfg.Monitor, s.cfg.Translator = m, clock{}
}

func set(t *testing.T, r *config.LogRule, key, value string) {
	t.Helper()
	var err error
	switch key {
	case "pattern":
		r.Pattern = value
	case "clearPattern":
		r.ClearPattern = value
	case "clearAfter":
		r.ClearAfter, err = time.ParseDuration(value)
	case "count":
		r.Count, err = strconv.Atoi(value)
	case "window":
		r.Window, err = time.ParseDuration(value)
	case "suffix":
		r.Suffix = value
	case "kernelOnly":
		r.KernelOnly = true
	default:
		t.Fatalf("a rule has no %s", key)
	}
	testkit.Must(t, err)
}

func (s *story) start(t *testing.T, d *datadriven.TestData, now time.Time) string {
	t.Helper()
	s.cfg.Remembered = nil
	if s.monitor != nil {
		s.cfg.Remembered = s.monitor.State()
	}
	if d.HasArg("boot") {
		d.ScanArgs(t, "boot", &s.cfg.Boot)
	}
	if d.HasArg("since") {
		s.cfg.Since = argument(t, d, "since")
	}
	s.cfg.Clear = nil
	if d.HasArg("clear") {
		var kind, until string
		d.ScanArgs(t, "clear", &kind, &until)
		s.cfg.Clear = map[string]time.Time{kind: testkit.Value(timeOfDay(until)).Must(t)}
	}
	m, err := New(s.cfg)
	testkit.Require(t, err == nil, "%s: %v", d.Pos, err)
	testkit.Require(t, m.RestoreError() == nil, "%s: %v", d.Pos, m.RestoreError())
	s.monitor = m
	return s.tell(m.Start(now))
}

func (s *story) chunk(t *testing.T, d *datadriven.TestData) logs.Chunk {
	t.Helper()
	c := logs.Chunk{First: s.offset}
	c.More = d.HasArg("more")
	if d.HasArg("lost") {
		d.ScanArgs(t, "lost", &c.Lost)
	}
	if s.cfg.Monitor.Plugin == config.Filelog {
		if d.Input != "" {
			c.Text = []byte(d.Input + "\n")
		}
		s.offset += uint64(len(c.Text))
		return c
	}
	for line := range strings.Lines(d.Input) {
		words := strings.SplitN(strings.TrimRight(line, "\n"), " ", 4)
		number, err := strconv.ParseUint(words[0], 10, 64)
		testkit.Require(t, err == nil, "%s: %v", d.Pos, err)
		at, err := timeOfDay(words[1])
		testkit.Require(t, err == nil, "%s: %v", d.Pos, err)
		facility := map[string]int16{"kernel": logs.Kernel, "user": 1, "unsaid": logs.NoPriority}[words[2]]
		c.Text = append(append(c.Text, strings.ReplaceAll(words[3], "|", "\n")...), '\n')
		c.Records = append(c.Records, logs.Record{End: len(c.Text), Time: at, Number: number, Facility: facility})
	}
	return c
}

// tell formats a report. An event has a short name instead of its ID, so that a repeated
// event is recognizable.
func (s *story) tell(report finding.Report) string {
	var b strings.Builder
	for _, e := range report.Events {
		if s.ids[e.ID] == "" {
			s.ids[e.ID] = "e" + strconv.Itoa(len(s.ids)+1)
		}
		fmt.Fprintf(&b, "%s %s %s %s: %s\n", s.ids[e.ID], e.Severity, e.Time.Format(time.TimeOnly), e.Reason, strings.ReplaceAll(e.Message, "\n", "|"))
	}
	for _, c := range report.Conditions {
		fmt.Fprintf(&b, "%s %s since %s %s: %s\n", c.Type, c.Shown(), c.Since.Format(time.TimeOnly), c.Reason, strings.ReplaceAll(c.Message, "\n", "|"))
	}
	if at, ok := s.monitor.Deadline(); ok {
		fmt.Fprintf(&b, "wake at %s\n", at.Format(time.TimeOnly))
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}
