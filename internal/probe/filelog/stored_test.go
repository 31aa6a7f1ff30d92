package filelog

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The agent's state file contains the position. This is version 1 of its format, as it was
// first written and with the optional fields that came later.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/position-v1.json", &filePosition{})
	golden.Check(t, "testdata/position-v1-born.json", &filePosition{})
}
