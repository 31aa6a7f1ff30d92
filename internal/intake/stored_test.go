package intake

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/format/golden"
)

// The state of a source is kept in the state file of the agent, of which this is version 1.
func TestTheStoredFormatIsWhatItWas(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &state{})
}

// An agent between two newer ones loses nothing of what they keep.
func TestTheStateOfANewerSourceIsKept(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		d := newDesk(source("s", "T"), time.Now())
		if err := d.recall(text, "6b7c"); err != nil {
			t.Fatal(err)
		}
		again, err := d.keep("6b7c")
		if err != nil {
			t.Fatal(err)
		}
		return again, d.unknown.Len()
	})
}
