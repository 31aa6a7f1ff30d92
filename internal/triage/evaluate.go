package triage

// verdict is the result of evaluating a rule or a group against a node.
type verdict uint8

const (
	no verdict = iota
	unclear
	holds
)

// evaluateGroup evaluates a group against a node. It returns the matching signal and the
// condition.
func (c *Core) evaluateGroup(g *group, n *node) (v verdict, matching *signal, row *condition) {
	if g.fromCreation && n.initialized {
		return no, nil, nil
	}
	row = n.condition(g.condition)
	var status Status
	var reason symbol
	if row != nil {
		status, reason = row.status, row.reason
	}
	specific := false // a signal that names the reason wins over one for any reason
	for i := range g.signals {
		s := &g.signals[i]
		if s.status != status || s.reason != 0 && s.reason != reason ||
			status == Unknown && reason == c.agentSilent && !s.evenSilent {
			continue
		}
		names := s.reason != 0
		if v != holds || names && !specific || names == specific && s.duration < matching.duration {
			v, matching, specific = holds, s, names
		}
	}
	switch {
	case v == holds && matching.duration == Never:
		v = no
	case v == no && status == Unknown:
		v = unclear
	}
	return v, matching, row
}

// overall combines the verdicts of the groups.
func (r *rule) overall(holding, open int) verdict {
	switch all := len(r.groups); {
	case r.spec.When.All && holding == all, !r.spec.When.All && holding > 0:
		return holds
	case r.spec.When.All && holding+open == all, !r.spec.When.All && open > 0:
		return unclear
	default:
		return no
	}
}

// evaluate evaluates a rule against a node and updates the episode. The argument first says
// that this definition of the rule has not been evaluated against the node before.
func (c *Core) evaluate(n *node, r *rule, selected, first bool) {
	c.work.Judged++
	ep := n.episode(r)
	outcome, eligible, urgentAt, decidingGroup := no, int64(0), int64(0), -1
	if selected {
		var holding, open int
		for i := range r.groups {
			g := &r.groups[i]
			v, matching, row := c.evaluateGroup(g, n)
			if v == no {
				if ep != nil {
					ep.stop(i)
				}
				continue
			}
			running := ep.clock(i)
			if running == nil {
				if begin, ok := c.start(n, r, g, v, row, first); ok {
					ep = c.openEpisode(n, r)
					ep.clocks = append(ep.clocks, clock{begin, i})
					running = ep.clock(i)
				}
			}
			if v == unclear {
				open++
				continue
			}
			holding++
			at := later(running.since, matching.duration)
			if matching.urgent && (urgentAt == 0 || at < urgentAt) {
				urgentAt = at
			}
			if decidingGroup < 0 || r.spec.When.All && at > eligible || !r.spec.When.All && at < eligible {
				eligible, decidingGroup = at, i
			}
		}
		outcome = r.overall(holding, open)
	} else if ep != nil {
		ep.clocks = ep.clocks[:0]
	}
	if ep == nil {
		return
	}
	unhealthy := outcome == holds
	if outcome == unclear {
		unhealthy = ep.unhealthy
		if first { // a response or the clocks show that it was unhealthy
			unhealthy = ep.active || ep.present || r.overall(len(ep.clocks), 0) == holds
		}
	}
	if ep.verdict != no && outcome == no {
		ep.notMatchedSince = c.now
	}
	if r.spec.Window == nil {
		urgentAt = 0
	}
	ep.verdict, ep.eligible, ep.urgentAt, ep.decidingGroup = outcome, eligible, urgentAt, decidingGroup
	c.setUnhealthy(ep, unhealthy)
	c.setRecovering(ep, selected && !unhealthy && ep.active && r.treats)
	c.timeRecovery(ep, first)
	c.schedule(ep)
	c.closeIfOver(ep)
}

// start returns the start of a clock, and whether the clock begins to run.
func (c *Core) start(n *node, r *rule, g *group, v verdict, row *condition, first bool) (begin start, ok bool) {
	if g.fromCreation {
		return start{since: n.created}, v == holds
	}
	begin = start{since: c.now, derivableFrom: notDerivable}
	if row == nil {
		return begin, v == holds
	}
	var isAccurate bool
	begin.since, isAccurate = row.since(c.now)
	if first {
		begin.since, isAccurate = row.statusSince, row.transitionIsAccurate
		for _, m := range n.extra.memories {
			if m.Rule == r.spec.ID && m.Condition == g.name && nanos(m.Transition) == row.transition {
				return start{since: min(nanos(m.Since), c.now), derivableFrom: notDerivable}, true
			}
		}
	}
	if isAccurate {
		begin.derivableFrom = row.transition
	}
	return begin, v == holds
}
