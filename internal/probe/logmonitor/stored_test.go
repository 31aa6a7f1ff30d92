package logmonitor

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/config"
)

// The state of a monitor is kept in the state file of the agent, of which this is version 1.
func TestTheStoredFormatIsWhatItWas(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &state{})
}

// An agent between two newer ones loses nothing of what they keep.
func TestTheStateOfANewerMonitorIsKept(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		m := started(t, Config{Translator: noon{}, Boot: "6b7c", Remembered: text, Monitor: config.LogMonitor{
			Plugin: config.Filelog, LogPath: "/log", Source: "kernel-monitor", BufferSize: 10,
			Conditions: []config.Condition{{Type: "KernelDeadlock", Reason: "Fine"}},
			Rules:      []config.LogRule{{Permanent: true, Condition: "KernelDeadlock", Reason: "Hung", Pattern: "hung", Count: 1}},
		}})
		if m.conditions[0].told != "x1" || m.rules[0].found == nil {
			t.Errorf("what stood is forgotten; the key of the rule is %s", m.rules[0].key)
		}
		return m.State(), m.CountUnknown()
	})
}
