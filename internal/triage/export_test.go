package triage

import "slices"

// Closings returns a grant for each node that taints may close and that the facts do not show
// closed, sorted by node. A successor process needs them in addition to the facts.
func (c *Core) Closings() []Grant {
	var grants []Grant
	for _, n := range c.walk() {
		if n.mayClose && !n.isClosedByUs {
			grants = append(grants, Grant{Node: n.name, UID: n.uid, Taint: true, Closes: true})
		}
	}
	slices.SortFunc(grants, compareGrants)
	return grants
}
