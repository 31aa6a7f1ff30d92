package journal

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The agent's state file contains the position. This is version 1 of its format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/position-v1.json", &position{})
}
