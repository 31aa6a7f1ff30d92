package logmonitor

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The state of a monitor is kept in the state file of the agent, of which this is version 1.
func TestTheStoredFormatIsWhatItWas(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &state{})
}
