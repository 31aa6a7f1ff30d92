package triage

import "slices"

// A taint with NoSchedule or NoExecute closes its node to new pods. The rails limit how many
// nodes are closed at once, so the core decides for each node whether taints may close it. A
// node keeps this permission until the facts have shown such a taint and stop showing it, or
// until the caller abandons it.

// closes says whether the rule of an episode closes the node to new pods. A foreign taint does
// so already, unless the rule places NoSchedule instead of it.
func (ep *episode) closes() bool { return !ep.rule.spec.DryRun && ep.wouldClose() }

// wouldClose is closes for a rule that may be on dry run.
func (ep *episode) wouldClose() bool {
	r := ep.rule
	return !r.gone && !r.treats && r.spec.Response.Taint.Effect >= NoSchedule && (!r.hasForeign(ep.node) || ep.excludesNoExecute())
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
		c.setMayClose(n, is || n.hasActiveTaint())
	}
}

// hasActiveTaint says that a NoExecute taint is decided or on the node.
func (n *node) hasActiveTaint() bool {
	return slices.ContainsFunc(n.episodes, func(ep *episode) bool { return ep.active && !ep.rule.treats })
}

// closingRail returns the rail that prevents a taint which closes the node; 0 for none.
func (c *Core) closingRail(n *node) Code {
	s := &c.rails
	switch {
	case s.spec.KeepLast && n.open && s.open == 1:
		return LastNode
	case !s.mayClose(n.isClosed):
		return MaxUnschedulable
	}
	return 0
}

// mayClose says whether a taint may close another node. A node that others have closed counts
// already, but the taint would keep it closed after they have opened it.
func (s *railState) mayClose(isClosed bool) bool {
	limit := s.spec.Unschedulable
	if limit == nil {
		return true
	}
	room := limit.Of(s.base(*limit, s.created, 0)) - s.closed
	return room > 0 || room == 0 && isClosed
}

// holdsUnusedPermission says that the node may be closed, but has no taint that closes it and
// none is decided.
func (c *Core) holdsUnusedPermission(n *node) bool {
	return n.mayClose && !n.isClosedByUs && !n.hasActiveTaint() && !slices.ContainsFunc(n.episodes, func(ep *episode) bool {
		return c.wantedEffect(ep) >= NoSchedule
	})
}

// LimitsClosing says whether the rails limit how many or which nodes are closed to new pods.
func (c *Core) LimitsClosing() bool {
	limit := c.rails.spec.Unschedulable
	return c.rails.spec.KeepLast || limit != nil && !limit.isAll()
}

// ExceedsClosing says whether more nodes are closed than the rails allow now, and this node is
// one of them only because of a decision that the facts do not show.
func (c *Core) ExceedsClosing(node string) bool {
	n, limit := c.nodes[node], c.rails.spec.Unschedulable
	return n != nil && limit != nil && n.mayClose && !n.isClosedByUs && c.rails.closed > limit.Of(c.rails.base(*limit, c.rails.created, 0))
}

// reopen takes away a permission that the node does not need.
func (c *Core) reopen(n *node) {
	if c.holdsUnusedPermission(n) {
		c.setMayClose(n, false)
	}
}

// whyNotClosed says why a taint that closes the node is not placed.
func (c *Core) whyNotClosed(reason *Reason, ep *episode) {
	switch {
	case c.onHold(ep) != 0:
		c.nameObstacle(reason, ep, c.onHold(ep))
	case ep.notBefore > c.now:
		reason.Code, reason.Until = Retrying, instant(ep.notBefore)
	case !c.loaded:
		reason.Code, reason.Other = OnHold, nodesLoading
	default:
		c.nameObstacle(reason, ep, c.closingRail(ep.node))
	}
}
