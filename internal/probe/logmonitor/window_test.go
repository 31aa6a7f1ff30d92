package logmonitor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

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
				if found != c.want {
					t.Errorf("%d events, want %d", found, c.want)
				}
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
		if now.After(bad.Add(time.Hour)) {
			t.Fatal("the rule is still active an hour later")
		}
		m.Take(now, logs.Chunk{Text: []byte("cron: nothing that has a stamp\n")})
	}
	if since := m.conditions[0].since; !since.Equal(bad.Add(time.Minute)) {
		t.Errorf("the rule has ended at %s", since)
	}
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
		if len(m.State()) == 0 {
			b.Fatal("there is no state")
		}
	}
}
