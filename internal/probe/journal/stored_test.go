package journal

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The place in the log is kept in the state file of the agent, of which this is version 1.
func TestTheStoredFormatIsWhatItWas(t *testing.T) {
	golden.Check(t, "testdata/position-v1.json", &position{})
}
