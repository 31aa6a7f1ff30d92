package triage

import "slices"

// hasForeign says whether the node has the NoExecute taint that the rule places, and
// nothing proves that this system placed it. The rule then wants no other.
func (r *rule) hasForeign(n *node) bool {
	if len(n.found.foreign) == 0 || r.gone || r.treats() {
		return false
	}
	taint := r.spec.Response.Taint
	return taint.Effect == NoExecute && slices.Contains(n.found.foreign, taint.Key)
}

// countForeign brings up to date under which rules the node counts because of a taint
// that nothing proves to be ours. A node on which the rule has a response counts for that.
func (c *Core) countForeign(n *node) {
	if len(n.found.foreign) == 0 && len(n.found.counted) == 0 {
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
		c.touch(r)
	}
	for _, r := range n.found.counted {
		if !contains(rules, r) {
			count(r, -1)
		}
	}
	for _, r := range rules {
		if !contains(n.found.counted, r) {
			count(r, +1)
		}
	}
	n.found.counted = rules
}
