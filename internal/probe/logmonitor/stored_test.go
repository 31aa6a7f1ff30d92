package logmonitor

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/config"
)

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
