package triage

import "time"

// verdict is what a rule or one of its groups says of a node.
type verdict uint8

const (
	no verdict = iota
	unclear
	holds
)

// judgeGroup says whether the group holds for the node, and for how long it must.
func (c *Core) judgeGroup(g *group, n *node) (v verdict, stand time.Duration, row *condition) {
	if g.fromCreation && n.initialized {
		return no, 0, nil
	}
	row = n.condition(g.condition)
	var status Status
	var reason symbol
	if row != nil {
		status, reason = row.status, row.reason
	}
	specific := false // a signal that names the reason decides over one that takes any
	for i := range g.signals {
		s := &g.signals[i]
		if s.status != status || s.reason != 0 && s.reason != reason ||
			status == Unknown && reason == c.agentSilent && !s.evenSilent {
			continue
		}
		names := s.reason != 0
		if v != holds || names && !specific || names == specific && s.stand < stand {
			v, stand, specific = holds, s.stand, names
		}
	}
	if v == no && status == Unknown {
		v = unclear
	}
	return v, stand, row
}

// overall joins the verdicts of the groups.
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

// judge holds a rule against a node. First says that this definition of the rule
// has not met the node before.
func (c *Core) judge(n *node, r *rule, selected, first bool) {
	c.work.Judged++
	ep := n.episode(r)
	outcome, eligible, decider := no, int64(0), -1
	if selected {
		var holding, open int
		for i := range r.groups {
			g := &r.groups[i]
			v, stand, row := c.judgeGroup(g, n)
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
			at := later(running.since, stand)
			if decider < 0 || r.spec.When.All && at > eligible || !r.spec.When.All && at < eligible {
				eligible, decider = at, i
			}
		}
		outcome = r.overall(holding, open)
	} else if ep != nil {
		ep.clocks = ep.clocks[:0]
	}
	if ep == nil {
		return
	}
	sick := outcome == holds
	if outcome == unclear {
		sick = ep.sick
		if first { // it was sick if somebody has acted on it, or if its clocks say so
			sick = ep.active || ep.present || r.overall(len(ep.clocks), 0) == holds
		}
	}
	if ep.verdict != no && outcome == no {
		ep.badUntil = c.now
	}
	ep.verdict, ep.eligible, ep.decider = outcome, eligible, decider
	c.setSick(ep, sick)
	c.setRecovering(ep, selected && !sick && ep.active && r.treats())
	c.timeRecovery(ep, first)
	c.consider(ep)
	c.closeIfOver(ep)
}

// start says whether a clock begins to run, and from when.
func (c *Core) start(n *node, r *rule, g *group, v verdict, row *condition, first bool) (begin start, ok bool) {
	if g.fromCreation {
		return start{since: n.created}, v == holds
	}
	begin = start{since: c.now, toldBy: untold}
	if row == nil {
		return begin, v == holds
	}
	tells := row.current
	if first {
		begin.since, tells = row.changed, row.tells
		for _, m := range n.found.memories {
			if m.Rule == r.spec.ID && m.Condition == g.name && nanos(m.Transition) == row.transition {
				return start{since: min(nanos(m.Since), c.now), toldBy: untold}, true
			}
		}
	}
	if tells {
		begin.toldBy = row.transition
	}
	return begin, v == holds
}
