package triage

import (
	"slices"
	"time"
)

// ExceedsRails says whether more nodes are in treatment than the rails allow now, and this node
// is one of them only because of decisions that the facts do not show. A limit may have been
// lowered since, or nodes may have gone. It also says so if these decisions take the last node
// that is ready and open. The caller asks immediately before it carries out such a decision.
func (c *Core) ExceedsRails(node string) bool {
	n := c.nodes[node]
	return n != nil && (c.exceedsTreatment(n) || c.takesLast(n))
}

// exceedsTreatment says whether a limit on nodes in treatment is exceeded, and the node is in
// treatment only because of decisions that the facts do not show. The core would not make these
// decisions now.
func (c *Core) exceedsTreatment(n *node) bool {
	s := &c.rails
	if n.active == 0 || n.hasObservedTreatment() {
		return false
	}
	var first int64 // of the other departures: those of this node would lower the limit
	departures := 0
	for _, e := range s.going.entries {
		if d := e.item.departure; d.episode == nil || d.episode.node != n {
			departures++
			if at := wholeSeconds(e.at); first == 0 || at < first {
				first = at
			}
		}
	}
	limit := s.spec.InTreatment
	return limit != nil && s.inTreatment() > limit.Of(limit.base(s.created, len(s.departed), first, departures)) ||
		slices.ContainsFunc(n.domains, func(d *domain) bool {
			return !s.topology.isIgnored(d.key) && d.treated > d.limit.Of(d.limit.base(d.created, d.departed, first, departures))
		})
}

// takesLast says whether no node is ready and open, and this one would be without decisions that
// the facts do not show.
func (c *Core) takesLast(n *node) bool {
	return c.rails.spec.KeepLast && c.rails.open == 0 && c.isReady(n) && !n.closed && !n.isClosedByUs && !n.dedicated && !n.hasObservedTreatment()
}

// hasObservedTreatment says that the facts show the node in a disruptive treatment.
func (n *node) hasObservedTreatment() bool {
	return len(n.extra.countedBy) > 0 || slices.ContainsFunc(n.episodes, func(ep *episode) bool { return ep.active && ep.slotObserved })
}

// CallOff abandons the decisions of a node that exceed the rails now, and that are neither on the
// node nor in flight. It abandons them together, because a node with a decision needs no further
// room: the core would decide one of them again while it has the other. If a treatment is in
// flight, CallOff abandons only taints that close the node.
func (c *Core) CallOff(now time.Time, node string, treatmentInFlight bool) {
	c.advanceTo(now)
	if n := c.nodes[node]; n != nil {
		last := !treatmentInFlight && c.takesLast(n)
		treats, closes := last || !treatmentInFlight && c.exceedsTreatment(n), last || c.ExceedsClosing(node)
		for _, ep := range slices.Clone(n.episodes) {
			if ep.active && !ep.slotObserved && (treats || closes && !ep.rule.treats) {
				c.abandon(ep, 0)
				c.closeIfOver(ep)
			}
		}
		if closes && !n.isClosedByUs {
			c.setMayClose(n, false)
		}
	}
	c.decide()
}
