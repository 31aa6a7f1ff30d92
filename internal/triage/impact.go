package triage

import (
	"iter"
	"slices"
)

// MostNamed is how many nodes an [Impact] or a [Survey] names.
const MostNamed = 5

// Impact is what a rule would find among the known nodes if it were set now.
type Impact struct {
	Selected     int      // nodes that the rule selects
	Matching     int      // selected nodes that match now, whatever the durations
	ControlPlane int      // matching control-plane nodes
	First        []string // the first matching nodes by name, at most [MostNamed]
	// Open counts the selected nodes that do not match, but would match if their missing and
	// Unknown conditions had the right status.
	Open int
}

// Impact evaluates a rule against every node as if the rule were new. A node that one of the
// rules in beyond also matches does not count as matching. The rules do not need to be set.
// Impact changes nothing and may be called concurrently with itself. The error is that of
// [Rule.Validate].
func (c *Core) Impact(spec Rule, beyond ...Rule) (Impact, error) {
	asked, err := c.compile(spec)
	if err != nil {
		return Impact{}, err
	}
	others := make([]*rule, len(beyond))
	for i := range beyond {
		if others[i], err = c.compile(beyond[i]); err != nil {
			return Impact{}, err
		}
	}
	var found Impact
	for _, n := range c.allNodes {
		if !asked.selects(n) {
			continue
		}
		found.Selected++
		switch holding, open, missing := c.count(asked, n); {
		case asked.overall(holding, open) == holds:
			if !slices.ContainsFunc(others, func(other *rule) bool { return other.selects(n) && c.matches(other, n) }) {
				found.add(n)
			}
		case asked.overall(holding, open+missing) == unclear:
			found.Open++
		}
	}
	return found, nil
}

// Matching returns the names of all nodes that a rule selects and that match now, whatever
// the durations, in no order. Like [Core.Impact] it changes nothing. The core must not
// change during the iteration.
func (c *Core) Matching(spec Rule) (iter.Seq[string], error) {
	asked, err := c.compile(spec)
	if err != nil {
		return nil, err
	}
	return func(yield func(string) bool) {
		for _, n := range c.allNodes {
			if asked.selects(n) && c.matches(asked, n) && !yield(n.name) {
				return
			}
		}
	}, nil
}

// compile compiles a rule that is not set.
func (c *Core) compile(spec Rule) (*rule, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return &rule{spec: spec, definition: define(spec, c.symbols.find)}, nil
}

// add counts a matching node.
func (i *Impact) add(n *node) {
	i.Matching++
	if n.controlPlane {
		i.ControlPlane++
	}
	i.First = insertFirst(i.First, n.name)
}

// insertFirst adds a name to the first names in alphabetical order, and keeps at most
// [MostNamed]. That is cheaper than sorting all names.
func insertFirst(first []string, name string) []string {
	if len(first) == MostNamed {
		if name > first[MostNamed-1] {
			return first
		}
		first = first[:MostNamed-1]
	}
	at, _ := slices.BinarySearch(first, name)
	return slices.Insert(first, at, name)
}

// matches says whether a node that the rule selects matches it.
func (c *Core) matches(r *rule, n *node) bool {
	holding, open, _ := c.count(r, n)
	return r.overall(holding, open) == holds
}

// count returns the number of groups that match a node, that are unclear, and that do not
// match because the node does not report the condition.
func (c *Core) count(r *rule, n *node) (holding, open, missing int) {
	for i := range r.groups {
		g := &r.groups[i]
		switch v, _, row := c.evaluateGroup(g, n); {
		case v == holds:
			holding++
		case v == unclear:
			open++
		case row == nil && !g.fromCreation:
			missing++
		}
	}
	return holding, open, missing
}

// Reported returns the types of all conditions that nodes report, sorted and never nil. It
// may be called concurrently with itself.
func (c *Core) Reported() []string {
	types := make([]string, 0, len(c.reported))
	for kind := range c.reported {
		types = append(types, c.symbols.name(kind))
	}
	slices.Sort(types)
	return types
}

// Reports returns how many nodes report a condition type.
func (c *Core) Reports(conditionType string) int {
	kind, known := c.symbols.ids[conditionType]
	if !known {
		return 0
	}
	return c.reported[kind]
}
