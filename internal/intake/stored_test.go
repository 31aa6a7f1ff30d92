package intake

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The agent's state file contains the state of each source. This is version 1 of the format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &savedState{})
}

// An older agent between two newer ones keeps the fields that it does not know.
func TestUnknownFieldsOfTheStateAreKept(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		src := newSourceState(source("s", "T"), time.Now())
		testkit.Must(t, src.restore(text, "6b7c"))
		again, err := src.save("6b7c")
		testkit.Must(t, err)
		return again, src.unknownFields.Len()
	})
}
