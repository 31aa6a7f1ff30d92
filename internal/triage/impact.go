package triage

import "slices"

// Impact is what a rule would find among the nodes that the core knows, were it
// followed now.
type Impact struct {
	Selected int      // nodes that it selects
	Limit    int      // how many of them its cap or gate allows, the lower if it has both; -1 without a bound
	Matching []string // nodes for which it holds now, however long, sorted by name
}

// Impact holds a rule against every node, as if it were new. The rule need not be
// one that is followed, and nothing changes: who only asks leaves no trace. The
// error is that of [Rule.Validate].
func (c *Core) Impact(spec Rule) (Impact, error) {
	if err := spec.Validate(); err != nil {
		return Impact{}, err
	}
	r := &rule{spec: spec, definition: define(spec, c.symbols.find)}
	found := Impact{Limit: -1}
	for _, n := range c.nodes {
		if !r.selects(n) {
			continue
		}
		found.Selected++
		if c.matches(r, n) {
			found.Matching = append(found.Matching, n.name)
		}
	}
	slices.Sort(found.Matching)
	for _, bound := range []*Limit{spec.Bound.Gate, spec.Bound.Cap} {
		if bound == nil {
			continue
		}
		if limit := bound.Of(found.Selected); found.Limit < 0 || limit < found.Limit {
			found.Limit = limit
		}
	}
	return found, nil
}

// matches says whether a rule that selects the node holds for it.
func (c *Core) matches(r *rule, n *node) bool {
	var holding, open int
	for i := range r.groups {
		switch v, _, _ := c.judgeGroup(&r.groups[i], n); v {
		case holds:
			holding++
		case unclear:
			open++
		case no:
		}
	}
	return r.overall(holding, open) == holds
}

// Reported returns the types of all conditions that some node has, sorted.
func (c *Core) Reported() []string {
	seen := make([]bool, len(c.symbols.names))
	var types []string
	for _, n := range c.nodes {
		for i := range n.conditions {
			if kind := n.conditions[i].kind; !seen[kind] {
				seen[kind] = true
				types = append(types, c.symbols.name(kind))
			}
		}
	}
	slices.Sort(types)
	return types
}
