package logmonitor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
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
	m, err := New(cfg)
	testkit.Must(tb, err)
	if m.RestoreError() != nil {
		tb.Fatal(m.RestoreError())
	}
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
			if allocs := testing.AllocsPerRun(20, func() {
				if !m.Take(day, logs.Chunk{Text: text}).IsEmpty() {
					t.Fatal("unexpected match")
				}
			}); allocs > 0 {
				t.Errorf("%v allocations for %d lines", allocs, bytes.Count(text, []byte("\n")))
			}
		})
	}
}

func TestStateIsTheSameWhileNothingChanges(t *testing.T) {
	m := started(t, Config{Monitor: kernelMonitor(t), Translator: noon{}})
	before := m.State()
	m.Take(day, logs.Chunk{Text: []byte("nothing to see\nEXT4-fs\n")})
	if after := m.State(); &before[0] != &after[0] {
		t.Error("the state was encoded again")
	}
	m.Take(day, logs.Chunk{Text: []byte("XFS (sda1): Shutting down filesystem\n")})
	if after := m.State(); bytes.Equal(before, after) {
		t.Error("the state does not contain the condition")
	}
}

func TestStateStaysSmall(t *testing.T) {
	rule := config.LogRule{Permanent: true, Condition: "XfsShutdown", Reason: "Often", Pattern: `(?s)often.*again`, Count: 5, Window: time.Hour}
	m := started(t, Config{Monitor: kernelMonitor(t, rule), Translator: noon{}})
	line := "often " + strings.Repeat("x", 5000) + " again\n"
	for range 20 {
		m.Take(day, logs.Chunk{Text: []byte(line)})
	}
	if size := len(m.State()); size > 2*maxStoredText {
		t.Errorf("the state has %d bytes", size)
	}
	if kept := len(m.rules[len(m.rules)-1].times); kept != 5 {
		t.Errorf("%d matches are stored", kept)
	}
}

func TestInvalidStateIsReportedAndIgnored(t *testing.T) {
	m, err := New(Config{Monitor: kernelMonitor(t), Translator: noon{}, Remembered: json.RawMessage(`{"rules":7}`)})
	testkit.Must(t, err)
	if m.RestoreError() == nil || !strings.Contains(m.RestoreError().Error(), "reading the state of the monitor kernel-monitor") {
		t.Errorf("the error is %v", m.RestoreError())
	}
	if report := m.Start(day); len(report.Conditions) != 3 || len(report.Events) != 0 {
		t.Errorf("Start returns %+v", report)
	}
}

func TestEqualLinesAtDifferentOffsetsAreDifferentEvents(t *testing.T) {
	line := "EXT4-fs error (device sda1): bad\n"
	read := func(first uint64, text string) []finding.Event {
		return started(t, Config{Monitor: kernelMonitor(t), Translator: noon{}}).Take(day, logs.Chunk{First: first, Text: []byte(text)}).Events
	}
	both := read(100, line+line)
	if len(both) != 2 || both[0].ID == both[1].ID {
		t.Fatalf("two lines are %+v", both)
	}
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
		if len(found) != 1 {
			t.Fatalf("found: %+v", found)
		}
		return found[0].ID
	}
	first := read("a", 7, day)
	if read("a", 7, day.Add(-3*time.Second)) != first {
		t.Error("another timestamp changes the ID")
	}
	if read("a", 8, day) == first || read("b", 7, day) == first {
		t.Error("another number or another boot does not change the ID")
	}
}

func TestSimilarRulesHaveDifferentKeys(t *testing.T) {
	rule := config.LogRule{Permanent: true, Condition: "XfsShutdown", Reason: "Same", Pattern: "same"}
	often := rule
	often.Count, often.Window = 3, time.Hour
	m := started(t, Config{Monitor: kernelMonitor(t, rule, often), Translator: noon{}})
	seen := map[string]bool{}
	for _, r := range m.rules {
		if seen[r.key] {
			t.Errorf("%s has the same key as another rule", r.Reason)
		}
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
		m, err := New(cfg)
		testkit.Must(t, err)
		if report := m.Start(day); len(report.Conditions) != 2 {
			t.Errorf("Start returns %+v", report)
		}
		m.Take(day.Add(12*time.Hour), logs.Chunk{Text: []byte("two\noften\n")})
		m.Wake(day.Add(48 * time.Hour))
		if _, ok := m.Deadline(); ok {
			t.Error("a deadline in the past is still pending")
		}
		if m.State() != nil && !json.Valid(m.State()) {
			t.Error("the state is not JSON")
		}
	})
}
