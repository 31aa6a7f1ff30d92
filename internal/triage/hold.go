package triage

// A hold stops everything new: of a rule ([Rule.Hold]), of all rules of a stage ([Rails.Hold]),
// or on a node ([Node.Hold]). Existing responses stay until the node recovers.

// Hold returns why a rule may begin no further step on a node; empty if it may. Callers ask before
// steps that are not in a plan.
func (c *Core) Hold(node string, id RuleID) string {
	r, n := c.rules[id], c.nodes[node]
	if r != nil && c.hold(r) != "" {
		return c.hold(r)
	}
	if n != nil && c.isPaused(n) {
		return n.extra.hold
	}
	if ep := c.episode(node, id); r != nil && r.window.closed && (ep == nil || c.isOutsideWindow(ep, ep.step)) {
		return outsideWindow + r.spec.Window.String()
	}
	if n == nil || c.failureOf(n) == nil {
		return ""
	}
	failure := Reason{Code: CorrelatedFailed}
	c.nameFailure(&failure, n)
	return failure.railText()
}

// HoldFirst returns why a rule may begin no first step on a node; empty if it may. It also asks the
// gate, which does not count before all nodes are known.
func (c *Core) HoldFirst(node string, id RuleID) string {
	if why := c.Hold(node, id); why != "" {
		return why
	}
	r := c.rules[id]
	if r == nil || !c.loaded {
		return ""
	}
	reason := r.reason()
	if reason.Code = r.gateClosedBy(); reason.Code == 0 {
		return ""
	}
	c.nameGate(&reason, r)
	return reason.waitText()
}

// hold returns why a rule may begin nothing new on any node; empty if it may.
func (c *Core) hold(r *rule) string {
	if r.spec.Hold != "" {
		return r.spec.Hold
	}
	return c.rails.spec.Hold[r.spec.Stage]
}

// isPaused says that the node is on hold.
func (c *Core) isPaused(n *node) bool {
	until := n.extra.holdUntil
	return n.extra.hold != "" && (until == 0 || until > c.now)
}

// onHold says whether the rule or the node of an episode is on hold; 0 if neither is.
func (c *Core) onHold(ep *episode) Code {
	switch {
	case c.hold(ep.rule) != "":
		return OnHold
	case c.isPaused(ep.node):
		return NodePaused
	}
	return 0
}

// timeHold sets a timer for the end of the hold of a node.
func (c *Core) timeHold(n *node) {
	if f := n.extra; f.holdUntil != 0 && c.isPaused(n) {
		f.holdEnds.node = n
		c.timers.push(f.holdUntil, &f.holdEnds)
	}
}

// endHold lets responses begin on a node whose hold has ended.
func (c *Core) endHold(n *node) {
	for _, ep := range n.episodes {
		c.schedule(ep)
	}
	c.wake(n)
}
