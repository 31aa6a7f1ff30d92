package logmonitor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// noon is a translator that costs nothing.
type noon struct{}

func (noon) Translate(line []byte) (time.Time, []byte, bool) {
	return day.Add(12 * time.Hour), line, true
}

// kernelMonitor returns node-problem-detector's kernel monitor for a file, with additional
// rules.
func kernelMonitor(tb testing.TB, more ...config.LogRule) config.LogMonitor {
	tb.Helper()
	file, _, err := config.Read("../config/testdata/node-problem-detector/kernel-monitor.json", config.SystemLog)
	testkit.Must(tb, err)
	m := *file.Log
	m.Plugin = config.Filelog
	m.Rules = append(m.Rules, config.LogRule{Reason: "TaskHungOften", Pattern: `task \S+:\w+ blocked for more than \w+ seconds\.`})
	m.Rules = append(m.Rules, more...)
	return m
}

func started(tb testing.TB, cfg Config) *Monitor {
	tb.Helper()
	m := testkit.Value(New(cfg)).Must(tb)
	testkit.Require(tb, m.RestoreError() == nil, "%v", m.RestoreError())
	m.Start(day)
	return m
}

func TestLinesWithoutAMatchAllocateNothing(t *testing.T) {
	crossing := config.LogRule{Reason: "Trace", Pattern: `Oops: .*\n(.*\n)*end trace`}
	// With kernelOnly all lines are scanned and no pattern is tried. The race detector
	// discards what regexp caches for its next match.
	dear := config.LogRule{Reason: "Dear", Pattern: `[0-9]{3}-[0-9]{3}`, KernelOnly: true}
	for name, more := range map[string][]config.LogRule{
		"by the kernel monitor":               nil,
		"by a pattern that spans lines":       {crossing},
		"by patterns that look at every line": {crossing, dear},
		"by a rule that is about to be clear": {{Permanent: true, Condition: "XfsShutdown", Reason: "Quiet", Pattern: "has been said", ClearAfter: time.Hour}},
		"by a pattern whose words are there":  {{Reason: "Nearly", Pattern: "usb 1-1: new device .*", KernelOnly: true}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Monitor: kernelMonitor(t, more...), Translator: noon{}}
			cfg.Monitor.Plugin = config.Kmsg
			m := started(t, cfg)
			m.Take(day, logs.Chunk{Text: []byte("it has been said\n")})
			text := bytes.Repeat([]byte("usb 1-1: new device again\nEXT4-fs (sda1): mounted\nOops: 1\nand so on\n"), 500)
			allocs := testing.AllocsPerRun(20, func() {
				testkit.Require(t, m.Take(day, logs.Chunk{Text: text}).IsEmpty(), "unexpected match")
			})
			testkit.Check(t, allocs == 0, "%v allocations for %d lines", allocs, bytes.Count(text, []byte("\n")))
		})
	}
}

func TestStateIsTheSameWhileNothingChanges(t *testing.T) {
	m := started(t, Config{Monitor: kernelMonitor(t), Translator: noon{}})
	before := m.State()
	m.Take(day, logs.Chunk{Text: []byte("nothing to see\nEXT4-fs\n")})
	testkit.Check(t, &before[0] == &m.State()[0], "the state was encoded again")
	m.Take(day, logs.Chunk{Text: []byte("XFS (sda1): Shutting down filesystem\n")})
	after := m.State()
	testkit.Check(t, !bytes.Equal(before, after), "the state does not contain the condition")
}

func TestStateStaysSmall(t *testing.T) {
	rule := config.LogRule{Permanent: true, Condition: "XfsShutdown", Reason: "Often", Pattern: `(?s)often.*again`, Count: 5, Window: time.Hour}
	m := started(t, Config{Monitor: kernelMonitor(t, rule), Translator: noon{}})
	line := "often " + strings.Repeat("x", 5000) + " again\n"
	for range 20 {
		m.Take(day, logs.Chunk{Text: []byte(line)})
	}
	testkit.Between(t, len(m.State()), 0, 2*maxStoredText, "bytes of the state")
	testkit.Same(t, len(m.rules[len(m.rules)-1].times), 5, "stored matches")
}

func TestInvalidStateIsReportedAndIgnored(t *testing.T) {
	m := testkit.Value(New(Config{Monitor: kernelMonitor(t), Translator: noon{}, Remembered: json.RawMessage(`{"rules":7}`)})).Must(t)
	testkit.Check(t, m.RestoreError() != nil && strings.Contains(m.RestoreError().Error(), "reading the state of the monitor kernel-monitor"),
		"the error is %v", m.RestoreError())
	report := m.Start(day)
	testkit.Check(t, len(report.Conditions) == 3 && len(report.Events) == 0, "Start returns %+v", report)
}

func TestEqualLinesAtDifferentOffsetsAreDifferentEvents(t *testing.T) {
	line := "EXT4-fs error (device sda1): bad\n"
	read := func(first uint64, text string) []finding.Event {
		return started(t, Config{Monitor: kernelMonitor(t), Translator: noon{}}).Take(day, logs.Chunk{First: first, Text: []byte(text)}).Events
	}
	both := read(100, line+line)
	testkit.Require(t, len(both) == 2 && both[0].ID != both[1].ID, "two lines are %+v", both)
	again := read(100+uint64(len(line)), line)
	if len(again) != 1 || again[0].ID != both[1].ID {
		t.Errorf("the second line, read again by itself, is %+v and was %+v", again, both[1])
	}
}

// A reader may correct its clock and assign another time to a record that it reads again.
func TestRecordIDDoesNotDependOnItsTimestamp(t *testing.T) {
	read := func(boot string, number uint64, at time.Time) string {
		text := []byte("EXT4-fs error (device sda1): bad\n")
		monitor := kernelMonitor(t)
		monitor.Plugin = config.Kmsg
		found := started(t, Config{Monitor: monitor, Boot: boot}).Take(day, logs.Chunk{
			Text: text, Records: []logs.Record{{End: len(text), Number: number, Time: at}},
		}).Events
		testkit.MustBeSame(t, len(found), 1, "found: %+v", found)
		return found[0].ID
	}
	first := read("a", 7, day)
	testkit.Same(t, read("a", 7, day.Add(-3*time.Second)), first, "another timestamp does not change the ID")
	testkit.Check(t, read("a", 8, day) != first && read("b", 7, day) != first, "another number or another boot does not change the ID")
}

func TestSimilarRulesHaveDifferentKeys(t *testing.T) {
	rule := config.LogRule{Permanent: true, Condition: "XfsShutdown", Reason: "Same", Pattern: "same"}
	often := rule
	often.Count, often.Window = 3, time.Hour
	m := started(t, Config{Monitor: kernelMonitor(t, rule, often), Translator: noon{}})
	seen := map[string]bool{}
	for _, r := range m.rules {
		testkit.Check(t, !seen[r.key], "%s has the same key as another rule", r.Reason)
		seen[r.key] = true
	}
}

// FuzzRemembered restores any state and continues from there.
func FuzzRemembered(f *testing.F) {
	cfg := Config{Boot: "a", Translator: noon{}, Monitor: config.LogMonitor{Plugin: config.Filelog, Source: "fuzz", BufferSize: 3,
		Conditions: []config.Condition{{Type: "First", Reason: "Fine"}, {Type: "Second", Reason: "Fine", SurvivesReboot: true}},
		Rules: []config.LogRule{
			{Permanent: true, Condition: "First", Reason: "Often", Pattern: "often", Count: 2, Window: time.Minute},
			{Permanent: true, Condition: "First", Reason: "Two", Pattern: "one\ntwo", ClearAfter: time.Minute},
			{Permanent: true, Condition: "Second", Reason: "Broken", Pattern: "broken", ClearPattern: "mended"},
		}}}
	m := started(f, cfg)
	f.Add([]byte(m.State()))
	m.Take(day.Add(12*time.Hour), logs.Chunk{Text: []byte("often\none\ntwo\noften\nbroken\n")})
	f.Add([]byte(m.State()))
	key := m.rules[0].key
	f.Add(fmt.Appendf(nil, `{"rules":{%q:{"found":{"id":"x"},"times":[]}},"window":[{"ago":18446744073709551615},{"ago":1},{"ago":95},{}]}`, key))
	f.Add(fmt.Appendf(nil, `{"rules":{%q:{"found":{"id":"x"},"last":"2099-01-01T00:00:00Z","times":["2099-01-01T00:00:00Z"]}}}`, m.rules[1].key))
	f.Fuzz(func(t *testing.T, remembered []byte) {
		cfg.Remembered = remembered
		m := testkit.Value(New(cfg)).Must(t)
		testkit.Same(t, len(m.Start(day).Conditions), 2, "Start")
		m.Take(day.Add(12*time.Hour), logs.Chunk{Text: []byte("two\noften\n")})
		m.Wake(day.Add(48 * time.Hour))
		_, ok := m.Deadline()
		testkit.Check(t, !ok, "a deadline in the past is still pending")
		testkit.Check(t, m.State() == nil || json.Valid(m.State()), "the state is not JSON")
	})
}

func TestMessage(t *testing.T) {
	long := strings.Repeat("a", finding.MaxMessage)
	for name, test := range map[string]struct{ lines, suffix, want string }{
		"contains the lines":              {"one\ntwo", "", "one\ntwo"},
		"ends with the suffix":            {"one", "call us", "one; call us"},
		"keeps percent signs":             {"100%s %d%%", "%v", "100%s %d%%; %v"},
		"replaces invalid UTF-8":          {"a\xffb\xc3", "\xfe", "a\uFFFDb\uFFFD; \uFFFD"},
		"may have the maximum length":     {long, "", long},
		"is truncated if too long":        {long + "b", "", long[:finding.MaxMessage-3] + "…"},
		"is truncated between characters": {strings.Repeat("ä", finding.MaxMessage), "", strings.Repeat("ä", (finding.MaxMessage-3)/2) + "…"},
		"is truncated before the suffix":  {long, "call us", long[:finding.MaxMessage-3-len("; call us")] + "…; call us"},
		"is limited with a long suffix":   {"one", long, truncate("…; "+long, finding.MaxMessage)},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Same(t, message([]byte(test.lines), test.suffix), test.want, "the message")
		})
	}
}

func TestMessageIsShortAndValidUTF8(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		odd := rapid.SampledFrom([]string{"a", "ä", "€", "😀", "\xff", "\n", "%", "", "some words"})
		line := strings.Repeat(odd.Draw(t, "first"), rapid.IntRange(0, finding.MaxMessage).Draw(t, "times")) + odd.Draw(t, "last")
		suffix := strings.Repeat(odd.Draw(t, "suffix"), rapid.IntRange(0, 2*finding.MaxMessage).Draw(t, "often"))
		got := message([]byte(line), suffix)
		testkit.Require(t, len(got) <= finding.MaxMessage && utf8.ValidString(got), "%d bytes, valid: %v", len(got), utf8.ValidString(got))
	})
}

// The agent's state file contains the state of each monitor. This is version 1 of its
// format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &state{})
}

// An agent that runs between two newer ones preserves their unknown fields.
func TestUnknownStateFieldsArePreserved(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		m := started(t, Config{Translator: noon{}, Boot: "6b7c", Remembered: text, Monitor: config.LogMonitor{
			Plugin: config.Filelog, LogPath: "/log", Source: "kernel-monitor", BufferSize: 10,
			Conditions: []config.Condition{{Type: "KernelDeadlock", Reason: "Fine"}},
			Rules:      []config.LogRule{{Permanent: true, Condition: "KernelDeadlock", Reason: "Hung", Pattern: "hung", Count: 1}},
		}})
		if m.conditions[0].reportedID != "x1" || m.rules[0].found == nil {
			t.Errorf("the active rule was lost; its key is %s", m.rules[0].key)
		}
		return m.State(), m.CountUnknown()
	})
}

// If many processes write to a file, other lines may be between two lines of one process.
func TestLinesThatDoNotCountAreNotInTheWindow(t *testing.T) {
	const size = 2
	cfg := Config{Boot: "a", Translator: clock{}, Monitor: config.LogMonitor{Plugin: config.Filelog, BufferSize: size, Source: "s",
		Rules: []config.LogRule{{Reason: "Two", Pattern: "the first\nthe second"}}}}
	for _, c := range []struct {
		between int
		want    int
	}{{0, 1}, {5, 1}, {recordsPerEntry*size - 2, 1}, {recordsPerEntry*size - 1, 0}} {
		noise := strings.Repeat("cron: the first, the second\n", c.between)
		whole := "12:00:01 the first\n" + noise + "12:00:03 the second\n"
		for name, cut := range map[string]int{"in one chunk": 0, "in two": 19, "in two, the second line by itself": 19 + len(noise)} {
			t.Run(fmt.Sprintf("%d lines between, %s", c.between, name), func(t *testing.T) {
				found := 0
				m := started(t, cfg)
				if cut > 0 {
					found = len(m.Take(day, logs.Chunk{Text: []byte(whole[:cut])}).Events)
					restarted := cfg
					restarted.Remembered = m.State()
					m = started(t, restarted)
				}
				found += len(m.Take(day, logs.Chunk{Text: []byte(whole[cut:])}).Events)
				testkit.Same(t, found, c.want, "events")
			})
		}
	}
}

// clearAfter works although other processes write to the log all the time.
func TestClearAfterWorksInABusyLog(t *testing.T) {
	m := started(t, Config{Translator: clock{}, Monitor: config.LogMonitor{Plugin: config.Filelog, BufferSize: 10, Source: "s",
		Conditions: []config.Condition{{Type: "C"}},
		Rules:      []config.LogRule{{Reason: "R", Permanent: true, Condition: "C", Pattern: "bad", ClearAfter: time.Minute}}}})
	bad := day.Add(time.Hour)
	m.Take(bad, logs.Chunk{Text: []byte("01:00:00 bad\n")})
	for now := bad; m.conditions[0].reportedID != ""; now = now.Add(time.Second / 2) {
		testkit.Require(t, !now.After(bad.Add(time.Hour)), "the rule is still active an hour later")
		m.Take(now, logs.Chunk{Text: []byte("cron: nothing that has a stamp\n")})
	}
	since := m.conditions[0].since
	testkit.Check(t, since.Equal(bad.Add(time.Minute)), "the rule has ended at %s", since)
}

// BenchmarkStateOfALargeWindow adds a line to a window of 10,000 and calls State, which
// contains only the newest part of the window.
func BenchmarkStateOfALargeWindow(b *testing.B) {
	m := started(b, Config{Translator: noon{}, Monitor: config.LogMonitor{Plugin: config.Filelog, BufferSize: 10000, Source: "s",
		Rules: []config.LogRule{{Reason: "Two", Pattern: "the first\nthe second"}}}})
	m.Take(day, logs.Chunk{Text: []byte(strings.Repeat("nothing to see here, and a lot of it\n", 20000))})
	line := []byte("one line more\n")
	b.ReportAllocs()
	for b.Loop() {
		m.Take(day, logs.Chunk{Text: line})
		testkit.Require(b, len(m.State()) != 0, "there is no state")
	}
}
