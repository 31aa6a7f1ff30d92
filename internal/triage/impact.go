package triage

import (
	"iter"
	"slices"
	"strings"
)

// MostNamed is how many nodes an impact names.
const MostNamed = 5

// Impact is what a rule would find among the nodes that the core knows, were it
// followed now.
type Impact struct {
	Selected     int      // nodes that it selects
	Matching     int      // those of them for which it holds now, however long
	ControlPlane int      // the matching nodes of the control plane
	First        []string // the first of the matching nodes by name, at most [MostNamed]
	// Open are those for which it does not hold, and would hold if the conditions that
	// they do not report, or report as Unknown, had the status that it asks for.
	Open int
}

// Impact holds a rule against every node, as if it were new. Where others are given,
// a node for which one of them holds too does not count as matching: what is left is
// what the rule would add to them. The rules need not be followed, and nothing
// changes: who only asks leaves no trace, and several may ask at once. The error is
// that of [Rule.Validate].
func (c *Core) Impact(spec Rule, beyond ...Rule) (Impact, error) {
	asked, err := c.hypothesis(spec)
	if err != nil {
		return Impact{}, err
	}
	others := make([]*rule, len(beyond))
	for i := range beyond {
		if others[i], err = c.hypothesis(beyond[i]); err != nil {
			return Impact{}, err
		}
	}
	var found Impact
	for _, n := range c.everybody {
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

// Matching returns the names of all nodes that a rule selects and for which it holds
// now, however long, in no order. Like [Core.Impact] it leaves no trace. The core must
// not change while the names are taken.
func (c *Core) Matching(spec Rule) (iter.Seq[string], error) {
	asked, err := c.hypothesis(spec)
	if err != nil {
		return nil, err
	}
	return func(yield func(string) bool) {
		for _, n := range c.everybody {
			if asked.selects(n) && c.matches(asked, n) && !yield(n.name) {
				return
			}
		}
	}, nil
}

// hypothesis compiles a rule that nobody follows.
func (c *Core) hypothesis(spec Rule) (*rule, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return &rule{spec: spec, definition: define(spec, c.symbols.find)}, nil
}

// add counts a matching node. To name the first few costs less than to sort all.
func (i *Impact) add(n *node) {
	i.Matching++
	if n.controlPlane {
		i.ControlPlane++
	}
	if len(i.First) == MostNamed {
		if strings.Compare(n.name, i.First[MostNamed-1]) > 0 {
			return
		}
		i.First = i.First[:MostNamed-1]
	}
	at, _ := slices.BinarySearch(i.First, n.name)
	i.First = slices.Insert(i.First, at, n.name)
}

// matches says whether a rule that selects the node holds for it.
func (c *Core) matches(r *rule, n *node) bool {
	holding, open, _ := c.count(r, n)
	return r.overall(holding, open) == holds
}

// count returns how many groups of a rule hold for a node, how many are unclear, and how
// many do not hold because the node does not report their condition.
func (c *Core) count(r *rule, n *node) (holding, open, missing int) {
	for i := range r.groups {
		g := &r.groups[i]
		switch v, _, row := c.judgeGroup(g, n); {
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

// Reported returns the types of all conditions that some node has, sorted, and never
// nil. Several may ask at once.
func (c *Core) Reported() []string {
	types := make([]string, 0, len(c.reported))
	for kind := range c.reported {
		types = append(types, c.symbols.name(kind))
	}
	slices.Sort(types)
	return types
}

// Reports returns how many conditions of a type nodes report.
func (c *Core) Reports(conditionType string) int {
	kind, known := c.symbols.ids[conditionType]
	if !known {
		return 0
	}
	return c.reported[kind]
}
