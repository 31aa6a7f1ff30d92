package triage

// timeRecovery updates since when a treated node is healthy, if the rule has a recovery. The
// argument first says that this definition of the rule has not been evaluated against the
// node before. Then the stored time counts, but not earlier than the last status change of
// the conditions of the rule. A later transition time with the same status means an
// unnoticed flap.
func (c *Core) timeRecovery(ep *episode, first bool) {
	if !ep.recovering || !ep.present || ep.verdict != no || !ep.rule.waitsForRecovery() {
		ep.healthySince = 0
		return
	}
	since := ep.healthySince
	if since == 0 {
		since = c.now
		if noted := nanos(ep.latestTreatment().HealthySince); first && noted != 0 {
			since = max(min(noted, c.now), ep.notMatchedSince)
		}
	}
	for i := range ep.rule.groups {
		row := ep.node.condition(ep.rule.groups[i].condition)
		if row != nil && first {
			since = max(since, row.statusSince)
		}
		if row != nil && row.transitionMoved {
			since = c.now
		}
	}
	ep.healthySince = since
}

// keepsWhileRecovering says whether the treatment stays on a healthy node: until the delay
// has passed or a user confirms, and always while the rule is unclear.
func (c *Core) keepsWhileRecovering(ep *episode) bool {
	switch {
	case !ep.recovering || !ep.present || !ep.rule.waitsForRecovery():
		return false
	case ep.verdict == unclear:
		return true
	case ep.node.confirmed:
		return false
	}
	return ep.rule.spec.Recovery.ByHand || ep.recoveredAt() > c.now
}

// recoveredAt is when the recovery delay ends; 0 if time alone does not end it.
func (ep *episode) recoveredAt() int64 {
	if ep.healthySince == 0 || ep.rule.spec.Recovery.ByHand {
		return 0
	}
	return later(ep.healthySince, ep.rule.spec.Recovery.Delay)
}
