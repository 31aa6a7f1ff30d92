package logwatch

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The agent's state file contains the state of each watch. This is version 1 of its
// format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &storedState{})
}
