package triage

import "slices"

// A taint with NoSchedule or NoExecute closes its node to new pods. The rails limit how many
// nodes are closed at once, so the core decides for each node whether taints may close it. A
// node keeps this permission until the facts have shown such a taint and stop showing it, or
// until the caller abandons it.

// closes says whether the rule of an episode closes the node to new pods. A foreign taint does
// so already, unless the rule places NoSchedule instead of it.
func (ep *episode) closes() bool {
	r := ep.rule
	return !r.gone && !r.treats && !r.spec.DryRun && r.spec.Response.Taint.Effect >= NoSchedule && (!r.hasForeign(ep.node) || ep.excludesNoExecute())
}

// setMayClose gives the node the permission to be closed by taints, or takes it away.
func (c *Core) setMayClose(n *node, may bool) {
	if n.mayClose == may {
		return
	}
	n.mayClose = may
	c.updateOpen(n)
	for _, ep := range n.episodes {
		if !ep.rule.treats {
			c.schedule(ep)
		}
	}
	c.wake(n)
}

// syncClosed updates the permission after a change of the taints on the node: the facts
// replace a decision that they have shown.
func (c *Core) syncClosed(n *node) {
	is := slices.ContainsFunc(n.extra.taints, func(t Taint) bool { return t.Effect >= NoSchedule })
	was := n.isClosedByUs
	n.isClosedByUs = is
	if is || was {
		c.setMayClose(n, is || slices.ContainsFunc(n.episodes, func(ep *episode) bool { return ep.active && !ep.rule.treats }))
	}
}

// closingRail returns the rail that prevents a taint which closes the node; 0 for none.
func (c *Core) closingRail(n *node) Code {
	s := &c.rails
	switch {
	case n.isClosed: // another taint changes nothing
	case s.spec.KeepLast && n.open && s.open == 1:
		return LastNode
	case !s.mayCloseAnother():
		return MaxUnschedulable
	}
	return 0
}

func (s *railState) mayCloseAnother() bool {
	limit := s.spec.Unschedulable
	return limit == nil || s.closed < limit.Of(s.base(*limit, s.created, 0))
}

// holdsUnusedPermission says that the node may be closed, but has no taint that closes it and
// none is decided.
func (c *Core) holdsUnusedPermission(n *node) bool {
	return n.mayClose && !n.isClosedByUs && !slices.ContainsFunc(n.episodes, func(ep *episode) bool {
		return !ep.rule.treats && (ep.active || c.wantedEffect(ep) >= NoSchedule)
	})
}

// reopen takes away a permission that the node does not need.
func (c *Core) reopen(n *node) {
	if c.holdsUnusedPermission(n) {
		c.setMayClose(n, false)
	}
}

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

// whyNotClosed says why a taint that closes the node is not placed.
func (c *Core) whyNotClosed(reason *Reason, ep *episode) {
	switch {
	case c.hold(ep.rule) != "":
		reason.Code, reason.Other = OnHold, c.hold(ep.rule)
	case ep.notBefore > c.now:
		reason.Code, reason.Until = Retrying, instant(ep.notBefore)
	case !c.loaded:
		reason.Code, reason.Other = OnHold, nodesLoading
	default:
		c.nameObstacle(reason, ep, c.closingRail(ep.node))
	}
}
