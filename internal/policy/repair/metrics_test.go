package repair

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestMetricsOfRepairBlocks(t *testing.T) {
	m := NewMetrics()
	m.SetBlocks(repairblock.Counts{InForce: 5, Refused: 4, Lost: 3, Vanished: 2, NotSaved: 1})
	m.SetBlocks(repairblock.Counts{InForce: 6, Refused: 5, Lost: 4, Vanished: 3, NotSaved: 2})
	if err := testutil.CollectAndCompare(m, strings.NewReader(`
# HELP autohealer_nodepool_repair_blocks NodePools by the state of their repair block: in_force, invalid, schema_lost (the CRD has lost the schema of blocks), block_lost (the block is gone with the schema), not_saved (in force, but the controller has not saved a copy yet). In all but the first the last valid block is in force.
# TYPE autohealer_nodepool_repair_blocks gauge
autohealer_nodepool_repair_blocks{state="block_lost"} 3
autohealer_nodepool_repair_blocks{state="in_force"} 6
autohealer_nodepool_repair_blocks{state="invalid"} 5
autohealer_nodepool_repair_blocks{state="not_saved"} 2
autohealer_nodepool_repair_blocks{state="schema_lost"} 4
`), "autohealer_nodepool_repair_blocks"); err != nil {
		t.Error(err)
	}
}

func TestMetricsAreNamedAsPeopleExpect(t *testing.T) {
	m := NewMetrics()
	m.setEligible(poolRuleID("pool"), "pool", map[string]time.Time{"node": time.Now()}, nil)
	m.setPoolHeld("pool", true)
	problems, err := testutil.CollectAndLint(m)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v: %v", err, problems)
	}
}

// The time from due to begun does not include the time under the bound.
func TestDueToRepairHasNoTimeUnderTheBound(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.makeUnhealthy("b") // of a and b one at a time
		h.terminates("a")
		h.goes("a")
		h.advance(5 * time.Minute)
		h.launches("default", "d") // replaces a
		h.terminates("b")
		is := slices.DeleteFunc(collect(t, h.PolicyMetrics()), func(m measure) bool { return m.count == 0 })
		testkit.Check(t, len(is) == 1 && is[0].count == 2 && is[0].value < 2, "the delays are %+v", is)
	})
}
