package triage

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// A controller runs for months while thousands of nodes come and go. It must not keep
// anything about deleted nodes.
func TestDeletedNodesLeaveNothingBehind(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	core := New()
	untouched := core.Symbols()
	pool := testkit.Value(ParseSelector("pool in (a,b),!spot")).Must(t)
	rule := Rule{
		ID:       RuleID{Kind: "Kind", Name: "default"},
		Stage:    "Toy",
		Selector: pool,
		When:     When{Signals: []Signal{{Condition: "Ready", Status: False, Reason: "DiskGone"}}},
		Bound:    Bound{Cap: &Limit{Number: 2}},
		Response: Response{Ladder: []Step{{Action: Terminate}}},
	}
	for generation := range 3 {
		rule.Selector.requirements[0].Values = []string{"a", "b", fmt.Sprintf("c-%d", generation)}
		testkit.Must(t, core.SetRule(now, rule))
		core.Loaded(now)
		for i := range 50 {
			name := fmt.Sprintf("worker-%d-%d", generation, i)
			node := Node{
				Name: name, UID: name, Zone: fmt.Sprintf("zone-%d", i%3), Created: now,
				Labels:     map[string]string{"pool": "a", "host": name},
				Conditions: []Condition{{Type: "Ready", Status: True}, {Type: "Disk" + name, Status: False, Reason: "R" + name}},
			}
			core.Observe(now, node)
			node.Conditions = []Condition{{Type: "Ready", Status: False, Reason: "DiskGone"}, {Type: "Net" + name, Status: Unknown}}
			node.Labels["host"] = name + "-renamed"
			core.Observe(now, node)
		}
		for i := range 50 {
			core.Forget(now, fmt.Sprintf("worker-%d-%d", generation, i))
		}
		core.RemoveRule(now, rule.ID)
		now = now.Add(ReplacementWait)
		core.Advance(now)
	}
	for _, ok := core.NextWoken(); ok; _, ok = core.NextWoken() {
		t.Error("a node was named that is gone")
	}
	if left := core.Symbols(); !maps.Equal(left, untouched) || core.size() != 0 {
		t.Errorf("%d objects and the names %v are left, want none and %v", core.size(), left, untouched)
	}
}

// size counts everything except names that could remain.
func (c *Core) size() (objects int) {
	return len(c.nodes) + len(c.rules) + len(c.index.byLabel) + len(c.index.others) +
		c.timers.len() + c.candidates.len() + c.controlPlane.waiting.len() + len(c.controlPlane.holders)
}

// Symbols returns the number of uses of every name.
func (c *Core) Symbols() map[string]uint32 {
	uses := map[string]uint32{}
	for name, id := range c.symbols.ids {
		uses[name] = c.symbols.uses[id]
	}
	return uses
}
