package triage

import "slices"

// hasForeign says whether the node has a foreign NoExecute taint with the key of the rule.
// The rule then places no taint.
func (r *rule) hasForeign(n *node) bool {
	if len(n.extra.foreign) == 0 || r.gone || r.treats {
		return false
	}
	taint := r.spec.Response.Taint
	return taint.Effect == NoExecute && slices.Contains(n.extra.foreign, taint.Key)
}

// countForeign updates the rules that count the node because of a foreign taint. A rule with
// a response on the node counts that response instead.
func (c *Core) countForeign(n *node) {
	if len(n.extra.foreign) == 0 && len(n.extra.countedBy) == 0 {
		return
	}
	var rules []*rule
	for _, r := range n.rules {
		if ep := n.episode(r); r.hasForeign(n) && (ep == nil || !ep.active) {
			rules = append(rules, r)
		}
	}
	count := func(r *rule, by int) {
		r.total.Foreign += by
		r.zone(n.zone).Foreign += by
		c.markDirty(r)
	}
	for _, r := range n.extra.countedBy {
		if !contains(rules, r) {
			count(r, -1)
		}
	}
	for _, r := range rules {
		if !contains(n.extra.countedBy, r) {
			count(r, +1)
		}
	}
	n.extra.countedBy = rules
	c.updateTreatment(n)
}
