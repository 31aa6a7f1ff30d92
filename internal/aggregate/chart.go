package aggregate

import (
	"maps"
	"slices"
	"sync"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
)

// Aggregate combines the conditions of all sources of a node. It is safe for concurrent use. The
// zero value is empty.
type Aggregate struct {
	mu       sync.Mutex
	told     map[string]map[string]finding.Condition // by type and by source
	standing map[string]finding.Condition            // by type
}

// Add records the report of a source. It returns the report for the node as a whole: the events,
// the conditions that changed, and those that no source reports any more.
func (c *Aggregate) Add(from string, r finding.Report) finding.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told, c.standing = map[string]map[string]finding.Condition{}, map[string]finding.Condition{}
	}
	changed := map[string]bool{}
	for _, kind := range r.Gone {
		delete(c.told[kind], from)
		changed[kind] = true
	}
	for _, condition := range r.Conditions {
		if c.told[condition.Type] == nil {
			c.told[condition.Type] = map[string]finding.Condition{}
		}
		c.told[condition.Type][from] = condition
		changed[condition.Type] = true
	}
	r.Conditions, r.Gone = nil, nil
	for _, kind := range slices.Sorted(maps.Keys(changed)) {
		before, was := c.standing[kind]
		if len(c.told[kind]) == 0 {
			delete(c.told, kind)
			delete(c.standing, kind)
			if was {
				r.Gone = append(r.Gone, kind)
			}
			continue
		}
		if now := consolidate(c.told[kind]); !was || !same(before, now) {
			c.standing[kind] = now
			r.Conditions = append(r.Conditions, now)
		}
	}
	return r
}

func same(a, b finding.Condition) bool {
	since := a.Since.Equal(b.Since)
	a.Since = b.Since
	return since && a == b
}

// consolidate combines the states of a condition into one.
func consolidate(told map[string]finding.Condition) finding.Condition {
	var worst finding.Condition
	for _, from := range slices.Sorted(maps.Keys(told)) {
		next := told[from]
		if graver := gravity(next) - gravity(worst); graver > 0 || graver == 0 && next.Since.Before(worst.Since) {
			worst = next
		}
	}
	return worst
}

func gravity(c finding.Condition) int {
	return 1 + slices.Index([]catalog.Status{catalog.False, catalog.Unknown, catalog.True}, c.Status)
}

// Conditions returns all conditions sorted by type.
func (c *Aggregate) Conditions() []finding.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]finding.Condition, 0, len(c.standing))
	for _, kind := range slices.Sorted(maps.Keys(c.standing)) {
		list = append(list, c.standing[kind])
	}
	return list
}
