package periodic

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The state of a monitor is part of the agent's state file, version 1.
func TestTheStoredFormatDoesNotChange(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &state{})
}

// An older agent between two newer ones keeps fields that it does not know.
func TestUnknownFieldsOfTheStateAreKept(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		b := newRuleStates(Config{Boot: "6b7c", Conditions: []config.Condition{{Type: "T"}}, Rules: []Rule{{Permanent: true, Condition: "T", Reason: "R"}}})
		testkit.Must(t, b.restore(time.Unix(2e9, 0), text))
		if b.rules[0].since.IsZero() {
			t.Errorf("what stood is forgotten; the key of the rule is %s", b.rules[0].key)
		}
		again, err := b.state()
		testkit.Must(t, err)
		return again, b.unknown.Len()
	})
}
