package report

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The agent's state file contains the state of the reporter. This is version 1 of the format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &State{})
}
