package triage

// timeRecovery keeps since when a treated node has been healthy, where its rule asks
// for how long. First says that this definition of the rule has not met the node
// before: then what was noted counts, but nothing from before a condition of the
// rule came to be what it is. A later stamp on the same status tells of a flap that
// nobody saw.
func (c *Core) timeRecovery(ep *episode, first bool) {
	if !ep.recovering || !ep.present || ep.verdict != no || !ep.rule.waitsForRecovery() {
		ep.healthySince = 0
		return
	}
	since := ep.healthySince
	if since == 0 {
		since = c.now
		if noted := nanos(ep.latest().HealthySince); first && noted != 0 {
			since = max(min(noted, c.now), ep.badUntil)
		}
	}
	for i := range ep.rule.groups {
		row := ep.node.condition(ep.rule.groups[i].condition)
		if row != nil && first {
			since = max(since, row.changed)
		}
		if row != nil && row.restamped {
			since = c.now
		}
	}
	ep.healthySince = since
}

// keepsWhileRecovering says whether the treatment stays on a node that is not sick:
// until it has been healthy for long enough or somebody confirms it, and in any case
// while nobody knows.
func (c *Core) keepsWhileRecovering(ep *episode) bool {
	switch {
	case !ep.recovering || !ep.present || !ep.rule.waitsForRecovery():
		return false
	case ep.verdict == unclear:
		return true
	case ep.node.confirmed:
		return false
	}
	return ep.rule.spec.Recovery.ByHand || ep.recovered() > c.now
}

// recovered is when a node that is recovering has been healthy for long enough, 0 if
// time alone will not do.
func (ep *episode) recovered() int64 {
	if ep.healthySince == 0 || ep.rule.spec.Recovery.ByHand {
		return 0
	}
	return later(ep.healthySince, ep.rule.spec.Recovery.Delay)
}
