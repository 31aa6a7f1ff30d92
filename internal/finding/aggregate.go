package finding

import (
	"maps"
	"slices"
	"sync"

	"github.com/resourcestack/autohealer/catalog"
)

// Aggregate combines the conditions of all sources of a node. It is safe for concurrent use. The
// zero value is empty.
type Aggregate struct {
	mu       sync.Mutex
	reported map[string]map[string]Condition // by type and by source
	current  map[string]Condition            // by type
}

// Add records the report of a source. It returns the report for the node as a whole: the events,
// the conditions that changed, and those that no source reports any more.
func (a *Aggregate) Add(from string, r Report) Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reported == nil {
		a.reported, a.current = map[string]map[string]Condition{}, map[string]Condition{}
	}
	changed := map[string]bool{}
	for _, kind := range r.Gone {
		delete(a.reported[kind], from)
		changed[kind] = true
	}
	for _, condition := range r.Conditions {
		if a.reported[condition.Type] == nil {
			a.reported[condition.Type] = map[string]Condition{}
		}
		a.reported[condition.Type][from] = condition
		changed[condition.Type] = true
	}
	r.Conditions, r.Gone = nil, nil
	for _, kind := range slices.Sorted(maps.Keys(changed)) {
		before, was := a.current[kind]
		if len(a.reported[kind]) == 0 {
			delete(a.reported, kind)
			delete(a.current, kind)
			if was {
				r.Gone = append(r.Gone, kind)
			}
			continue
		}
		if now := consolidate(a.reported[kind]); !was || !same(before, now) {
			a.current[kind] = now
			r.Conditions = append(r.Conditions, now)
		}
	}
	return r
}

func same(a, b Condition) bool {
	since := a.Since.Equal(b.Since)
	a.Since = b.Since
	return since && a == b
}

// consolidate combines the states of a condition into one.
func consolidate(reported map[string]Condition) Condition {
	var worst Condition
	for _, from := range slices.Sorted(maps.Keys(reported)) {
		next := reported[from]
		if graver := gravity(next) - gravity(worst); graver > 0 || graver == 0 && next.Since.Before(worst.Since) {
			worst = next
		}
	}
	return worst
}

func gravity(c Condition) int {
	return 1 + slices.Index([]catalog.Status{catalog.False, catalog.Unknown, catalog.True}, c.Status)
}

// Conditions returns all conditions sorted by type.
func (a *Aggregate) Conditions() []Condition {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]Condition, 0, len(a.current))
	for _, kind := range slices.Sorted(maps.Keys(a.current)) {
		list = append(list, a.current[kind])
	}
	return list
}
