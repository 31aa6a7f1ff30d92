package logmonitor

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// piece is a part of a pattern: as a user writes it, as the naive implementation needs it,
// and with texts that match it.
type piece struct {
	pattern, plain string
	sample         func(t *rapid.T) string
}

func fixed(pattern string, samples ...string) piece {
	return piece{pattern, pattern, func(t *rapid.T) string { return rapid.SampledFrom(samples).Draw(t, "sample") }}
}

// known returns patterns that users write, and some difficult ones.
func known() []piece {
	return []piece{
		fixed(`task [\S ]+:\w+ blocked for more than \w+ seconds\.`, "INFO: task kubelet:47 blocked for more than 120 seconds."),
		fixed(`task docker:\w+ blocked for more than \w+ seconds\.`, "task docker:7 blocked for more than 120 seconds."),
		fixed(`Killed process \d+ (.+) total-vm:\d+kB.*`, "Killed process 12 (a b) total-vm:1kB, and so on"),
		fixed(`XFS .* Shutting down filesystem.?`, "XFS (sda1): Shutting down filesystem", "XFS x Shutting down filesystem."),
		fixed(`.*\[Hardware Error\]: event severity: fatal$`, "{1}[Hardware Error]: event severity: fatal"),
		fixed(`apple pie|plum cake`, "an apple pie", "plum cake"),
		fixed(`Oops: .*\n(?:.*\n)?end trace`, "Oops: 1\nend trace", "Oops: 2\n at f\nend trace"),
		fixed(`start\s+stop`, "start stop", "start\nstop", "start \n\n stop"),
		fixed(`(?s)panic.*sync`, "panic - not sync", "panic\nlater\nsync"),
		fixed(`a very long beginning\n(.*\n)*\w`, "a very long beginning\nx", "a very long beginning\nand\nx"),
		fixed(`(?i)link (up|down)`, "eth0 LINK up", "Link Down"),
		fixed(`\d+`, "7", "x 12"),
		fixed(`[^a]+oops`, "b oops", "b\noops"),
		{`^begins.*`, `(?m:^)begins.*`, func(*rapid.T) string { return "begins well" }},
		{`^(one\n)?two`, `(?m:^)(one\n)?two`, func(t *rapid.T) string {
			return rapid.SampledFrom([]string{"one\ntwo", "two"}).Draw(t, "sample")
		}},
	}
}

// made builds a pattern from parts.
func made(t *rapid.T) piece {
	parts := rapid.SliceOfN(rapid.SampledFrom([]piece{
		fixed(`error`, "error"), fixed(`disk \w+`, "disk sda"), fixed(` `, " "), fixed(`\d*`, "", "42"),
		fixed(`.*`, "", "anything"), fixed(`(bad|worse)`, "bad", "worse"), fixed(`x?`, "", "x"), fixed(`\n`, "\n"),
		fixed(`\s`, " ", "\n"), fixed(`[ab]cd`, "acd", "bcd"), fixed(`(?i:Fail)`, "fail", "FAIL"), fixed(`\b`, ""),
		{`^`, `(?m:^)`, func(*rapid.T) string { return "" }},
	}), 1, 5).Draw(t, "parts")
	whole := piece{sample: func(t *rapid.T) string {
		var b strings.Builder
		for _, p := range parts {
			b.WriteString(p.sample(t))
		}
		return b.String()
	}}
	for _, p := range parts {
		whole.pattern += p.pattern
		whole.plain += p.plain
	}
	return whole
}

// fixture is a monitor, its naive counterpart, and a log for both.
type fixture struct {
	cfg     Config
	naive   *naive
	pieces  []piece
	records bool
	at      time.Time // time of the last line
	offset  uint64
	number  uint64
}

func newFixture(t *rapid.T) *fixture {
	w := &fixture{records: rapid.Bool().Draw(t, "records"), at: day.Add(6 * time.Hour)}
	since := w.at
	m := config.LogMonitor{Plugin: config.Filelog, Source: "equality", BufferSize: rapid.IntRange(1, 6).Draw(t, "bufferSize")}
	w.cfg = Config{Since: since, Boot: "a", Translator: clock{}}
	w.naive = newNaive(m.BufferSize, since)
	if w.records {
		m.Plugin, w.cfg.Translator = config.Kmsg, nil
	} else if rapid.Bool().Draw(t, "skips") {
		m.SkipList = []string{"audit"}
	}
	for i, name := range []string{"First", "Second"} {
		c := config.Condition{Type: name, Reason: "Fine", Message: "all is \"well\"", SurvivesReboot: i == 1}
		m.Conditions = append(m.Conditions, c)
		w.naive.defaults[name] = fmt.Sprintf("reason: %s, message: %q", c.Reason, c.Message)
		w.naive.told[name] = "False 0 " + w.naive.defaults[name]
		w.naive.survives[name] = c.SurvivesReboot
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "rules") {
		m.Rules = append(m.Rules, w.newRule(t, i))
	}
	w.cfg.Monitor = m
	return w
}

func (w *fixture) newPiece(t *rapid.T) piece {
	p := rapid.SampledFrom(known()).Draw(t, "known")
	if rapid.Bool().Draw(t, "made") {
		p = made(t)
	}
	w.pieces = append(w.pieces, p)
	return p
}

func (w *fixture) newRule(t *rapid.T, i int) config.LogRule {
	p := w.newPiece(t)
	r := config.LogRule{Reason: fmt.Sprintf("Reason%d", i), Pattern: p.pattern}
	n := &naiveRule{reason: r.Reason, pattern: regexp.MustCompile(`(?:` + p.plain + `)\z`)}
	if rapid.Bool().Draw(t, "suffix") {
		r.Suffix, n.suffix = "100%s sure", "100%s sure"
	}
	if rapid.Bool().Draw(t, "permanent") {
		r.Permanent = true
		r.Condition = rapid.SampledFrom([]string{"First", "Second"}).Draw(t, "condition")
		n.condition = r.Condition
		if rapid.Bool().Draw(t, "clearAfter") {
			r.ClearAfter = time.Duration(rapid.IntRange(1, 10).Draw(t, "minutes")) * time.Minute
			n.clearAfter = r.ClearAfter
		}
	}
	if rapid.Bool().Draw(t, "clearPattern") {
		c := w.newPiece(t)
		r.ClearPattern, n.clear = c.pattern, regexp.MustCompile(`(?:`+c.plain+`)\z`)
	}
	if rapid.IntRange(0, 2).Draw(t, "counts") == 0 {
		r.Count, r.Window = rapid.IntRange(2, 4).Draw(t, "count"), time.Duration(rapid.IntRange(1, 10).Draw(t, "window"))*time.Minute
		n.count, n.window = r.Count, r.Window
	}
	r.KernelOnly = w.records && rapid.IntRange(0, 3).Draw(t, "kernelOnly") == 0
	n.kernelOnly = r.KernelOnly
	w.naive.rules = append(w.naive.rules, n)
	return r
}

// text draws a text that matches a rule, or nearly does.
func (w *fixture) text(t *rapid.T) string {
	sample := func() string { return rapid.SampledFrom(w.pieces).Draw(t, "piece").sample(t) }
	text := sample()
	switch rapid.IntRange(0, 13).Draw(t, "change") {
	case 0:
		text += " and more"
	case 1:
		text = text[:rapid.IntRange(0, len(text)).Draw(t, "cut")]
	case 2:
		text = text[rapid.IntRange(0, len(text)).Draw(t, "cut"):]
	case 3:
		text += sample()
	case 4:
		i := rapid.IntRange(0, len(text)).Draw(t, "where")
		text = text[:i] + rapid.SampledFrom([]string{"\xff", "\x00", "ſ", "%", "\r"}).Draw(t, "odd") + text[i:]
	case 5:
		text = strings.ToUpper(text)
	case 6:
		text = "audit: " + text
	case 7:
		text = "nothing to see here"
	case 8:
		text = ""
	}
	return text
}

// chunk draws lines, for the monitor and for the naive implementation.
func (w *fixture) chunk(t *rapid.T) (logs.Chunk, []naiveLine) {
	var lines []naiveLine
	c := logs.Chunk{First: w.offset, More: rapid.Bool().Draw(t, "more")}
	for range rapid.IntRange(0, 8).Draw(t, "texts") {
		text := w.text(t)
		entries := []string{text}
		if !w.records || rapid.Bool().Draw(t, "apart") {
			entries = strings.Split(text, "\n")
		}
		for _, entry := range entries {
			for range w.noise(t) {
				lines = append(lines, w.oldLine(&c, entry))
			}
			lines = append(lines, w.line(t, &c, entry))
		}
	}
	w.offset += uint64(len(c.Text))
	return c, lines
}

// noise draws the number of lines that do not count before a line that may: sometimes
// about as many as the window reaches back.
func (w *fixture) noise(t *rapid.T) int {
	most := rapid.SampledFrom([]int{0, 0, 0, 3, 0, 0, 0, 0, 0, 32 * w.naive.size}).Draw(t, "noisy")
	return rapid.IntRange(most-min(most, 8), most).Draw(t, "noise")
}

// oldLine returns a line that is too old to count.
func (w *fixture) oldLine(c *logs.Chunk, text string) naiveLine {
	l := naiveLine{text: text, at: day.Add(5 * time.Hour), shown: true, kernel: true}
	w.write(c, l, logs.Kernel)
	return l
}

func (w *fixture) line(t *rapid.T, c *logs.Chunk, text string) naiveLine {
	w.at = w.at.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "later")) * time.Second)
	l := naiveLine{text: text, at: w.at, shown: true}
	switch rapid.IntRange(0, 19).Draw(t, "stamp") {
	case 0:
		l.at = day.Add(5 * time.Hour) // too old
	case 1:
		l.at = w.at.Add(-2 * time.Minute)
	case 2:
		l.at = w.at.Add(time.Hour)
	case 3:
		l.shown = w.records
	}
	facility := int16(logs.NoPriority)
	if w.records {
		facility = rapid.SampledFrom([]int16{logs.Kernel, logs.Kernel, 1, logs.NoPriority}).Draw(t, "facility")
		l.kernel = facility == 0
	}
	w.write(c, l, facility)
	if !w.records && len(w.cfg.Monitor.SkipList) > 0 && strings.Contains(text, "audit") {
		l.shown = false
	}
	return l
}

// write appends a line to a chunk.
func (w *fixture) write(c *logs.Chunk, l naiveLine, facility int16) {
	if w.records {
		w.number++
		c.Text = append(append(c.Text, l.text...), '\n')
		c.Records = append(c.Records, logs.Record{End: len(c.Text), Time: l.at, Number: w.number, Facility: facility})
		return
	}
	stamp := l.at.Format(time.TimeOnly)
	if !l.shown {
		stamp = "noon"
	}
	c.Text = fmt.Appendf(c.Text, "%s %s\n", stamp, l.text)
}

// describe formats events like the naive implementation.
func describe(events []finding.Event) []string {
	var lines []string
	for _, e := range events {
		line := fmt.Sprintf("%s %s ", e.Severity, e.Time.Format(time.TimeOnly))
		if e.Condition == "" {
			line += e.Reason + ": " + e.Message
		} else {
			line += strings.TrimPrefix(e.Message, "Node condition ")
		}
		lines = append(lines, line)
	}
	return lines
}

// taken is a step that may have to be repeated, and its result.
type taken struct {
	now    time.Time
	chunk  logs.Chunk
	wake   bool
	report finding.Report
}

func (s taken) again(m *Monitor) finding.Report {
	if s.wake {
		return m.Wake(s.now)
	}
	return m.Take(s.now, s.chunk)
}

func TestMonitorFindsWhatTheNaiveImplementationFinds(t *testing.T) {
	var runs, lines, hits, spanning, cleared, expired, restarts, replays, reboots int
	rapid.Check(t, func(t *rapid.T) {
		w := newFixture(t)
		m := testkit.Value(New(w.cfg)).Must(t)
		w.naive.lastLine, w.naive.behind = w.at, true
		conditions := map[string]finding.Condition{}
		note := func(report finding.Report) {
			for _, c := range report.Conditions {
				conditions[c.Type] = c
			}
		}
		note(m.Start(w.at))
		kept, keptAt, since := slices.Clone(m.State()), w.at, []taken(nil)
		seen := map[string]bool{}
		remember := func(remembered json.RawMessage) *Monitor {
			cfg := w.cfg
			cfg.Remembered = remembered
			next, err := New(cfg)
			testkit.Require(t, err == nil && next.RestoreError() == nil, "%v %v", err, next.RestoreError())
			return next
		}
		for range rapid.IntRange(6, 16).Draw(t, "steps") {
			step := taken{now: w.at}
			switch rapid.IntRange(0, 15).Draw(t, "step") {
			case 0: // Restart: position and state were stored.
				restarts++
				m = remember(m.State())
				kept, keptAt, since = slices.Clone(m.State()), w.at, nil
				before := fmt.Sprint(conditions)
				if report := m.Start(w.at); len(report.Events) > 0 {
					t.Fatalf("a restart produced events: %v", report.Events)
				} else if note(report); fmt.Sprint(conditions) != before {
					t.Fatalf("a restart changes conditions from %s to %v", before, conditions)
				}
				w.naive.lastLine, w.naive.behind = w.at, true
				continue
			case 1: // Crash: the stored state is old, so everything since then is read again.
				replays++
				m = remember(kept)
				m.Start(keptAt)
				for _, before := range since {
					diff := cmp.Diff(before.report, before.again(m))
					testkit.Require(t, diff == "", "reading again gave another result: %s", diff)
				}
				continue
			case 2:
				reboots++
				w.cfg.Boot += "b"
				w.naive.reboot()
				for _, c := range []string{"First", "Second"} {
					w.naive.tell(c, w.at)
				}
				m = remember(m.State())
				kept, keptAt, since = slices.Clone(m.State()), w.at, nil
				step.report = m.Start(w.at)
				w.naive.lastLine, w.naive.behind = w.at, true
			case 3:
				step.wake, step.now = true, w.at.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "wait"))*time.Second)
				w.at = step.now
				step.report = m.Wake(step.now)
				since = append(since, step)
				if !w.naive.behind || !step.now.Before(w.naive.lastLine.Add(time.Second)) {
					w.naive.pass(step.now)
				}
			default:
				chunk, plain := w.chunk(t)
				if rapid.IntRange(0, 9).Draw(t, "loses") == 0 {
					chunk.Lost, w.naive.log = 1, nil
				}
				step.now, step.chunk = w.at, chunk
				text := string(chunk.Text)
				handed := chunk
				handed.Text = slices.Clone(chunk.Text)
				step.report = m.Take(step.now, handed)
				clear(handed.Text) // the reader reuses it
				testkit.MustBeSame(t, string(chunk.Text), text, "the monitor does not modify the chunk")
				since = append(since, step)
				lines += len(plain)
				for _, l := range plain {
					w.naive.line(step.now, l)
				}
				w.naive.lastLine, w.naive.behind = step.now, chunk.More
				if !chunk.More {
					w.naive.pass(step.now)
				}
			}
			note(step.report)
			diff := cmp.Diff(w.naive.lines, describe(step.report.Events))
			testkit.Require(t, diff == "", "the monitor (+) and the naive implementation (-) differ: %s", diff)
			w.naive.lines = nil
			for _, e := range step.report.Events {
				testkit.Require(t, !seen[e.ID], "two events have the ID %s", e.ID)
				seen[e.ID] = true
			}
			for name, c := range conditions {
				if !strings.HasPrefix(w.naive.told[name], string(c.Status)) || !strings.HasSuffix(w.naive.told[name], fmt.Sprintf("reason: %s, message: %q", c.Reason, c.Message)) {
					t.Fatalf("the monitor reports %v, the naive implementation %s", c, w.naive.told[name])
				}
			}
			r, at := w.naive.nextEnd()
			if earliest := w.naive.lastLine.Add(time.Second); w.naive.behind && at.Before(earliest) {
				at = earliest
			}
			if deadline, ok := m.Deadline(); ok != (r != nil) || ok && !deadline.Equal(at) {
				t.Fatalf("the monitor wakes at %v (%v), the naive implementation at %v (%v)", deadline, ok, at, r != nil)
			}
		}
		runs++
		hits, spanning = hits+w.naive.hits, spanning+w.naive.spanning
		cleared, expired = cleared+w.naive.cleared, expired+w.naive.expired
	})
	t.Logf("%d runs, %d lines: %d hits, %d over several lines; %d cleared, %d expired; %d restarts, %d replays, %d reboots",
		runs, lines, hits, spanning, cleared, expired, restarts, replays, reboots)
	for name, n := range map[string]int{"hits": hits, "hits over several lines": spanning, "cleared": cleared, "expired": expired,
		"restarts": restarts, "replays": replays, "reboots": reboots} {
		testkit.Check(t, n != 0, "%s: never happened, so the test proves nothing", name)
	}
}
