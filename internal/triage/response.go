package triage

import "slices"

// departure is a termination, or a treatment that deletes its node, until its place
// is free again.
type departure struct {
	rule     *rule
	node     string
	uid      string
	step     int
	episode  *episode // nil once the node has gone
	replaced bool     // a replacement has been counted for it
	by       *node    // that, if it was counted here

	since, gone  int64
	controlPlane bool
	alarm        ticket
	place        ticket // among the departures of the rule
	open         ticket // among those that are to be replaced
}

func newDeparture(r *rule, node, uid string, step int) *departure {
	d := &departure{rule: r, node: node, uid: uid, step: step}
	d.alarm.departure, d.place.departure, d.open.departure = d, d, d
	return d
}

// enqueue puts the departure where it belongs among those of its rule.
func (d *departure) enqueue() {
	d.forget()
	d.rule.departures.push(d.decided(), &d.place)
	if !d.replaced {
		d.rule.unreplaced.push(d.decided(), &d.open)
	}
}

// takeUp brings the episodes of a node in line with the responses found on it.
func (c *Core) takeUp(n *node) {
	for _, t := range n.found.taints {
		if t.Rule.Kind == ConditionSet { // no other kind places taints
			c.openEpisode(n, c.ruleOf(t.Rule))
		}
	}
	for _, t := range n.found.treatments {
		if t.Rule.Kind != ConditionSet {
			c.openEpisode(n, c.ruleOf(t.Rule))
		}
	}
	for _, ep := range n.episodes {
		c.takeUpResponse(ep)
	}
}

// ruleOf returns the rule of that name, also of one that is not known (any
// more): what it left behind still takes the node.
func (c *Core) ruleOf(id RuleID) *rule {
	if r := c.rules[id]; r != nil {
		return r
	}
	return c.newRule(id)
}

func (c *Core) takeUpResponse(ep *episode) {
	id := ep.rule.spec.ID
	ep.stands = 0
	for _, t := range ep.node.found.taints {
		if t.Rule == id {
			ep.stands = max(ep.stands, t.Effect)
		}
	}
	latest := ep.latest()
	treated := latest != nil
	tainted := ep.stands > 0 && !ep.rule.treats()
	ep.present = treated || tainted
	ep.placed = treated || tainted && ep.stands == NoExecute // whatever the rule wants now
	ep.deletes = treated && slices.ContainsFunc(ep.node.found.treatments, func(t Treatment) bool { return t.Rule == id && t.Deletes })
	switch {
	case treated:
		step := ep.rule.fit(latest.Step)
		if !ep.active {
			since := nanos(latest.Since)
			if since == 0 {
				since = c.now
			}
			c.activate(ep, step, since)
		}
		// If it is below one that was seen, that one is over.
		if step > ep.step || step < ep.seen && ep.seen == ep.step {
			c.setStep(ep, step, c.now)
		}
		ep.seen = step
		if step == ep.step {
			ep.failed = latest.Failed
			if since := nanos(latest.Since); since != 0 && since != ep.stepSince {
				ep.stepSince = since
				c.touchGoing(ep)
			}
		}
	case ep.placed:
		if !ep.active {
			c.activate(ep, 0, c.now)
		}
		ep.seen = 0
	case ep.active && ep.seen == ep.step:
		c.deactivate(ep)
		ep.notBefore = c.now
	}
	if ep.active {
		c.fitDeparture(ep)
	}
}

// latest returns the highest step of the rule's ladder that the facts show, nil for
// none.
func (ep *episode) latest() (latest *Treatment) {
	if !ep.rule.treats() {
		return nil
	}
	for i := range ep.node.found.treatments {
		t := &ep.node.found.treatments[i]
		if t.Rule == ep.rule.spec.ID && (latest == nil || t.Step > latest.Step) {
			latest = t
		}
	}
	return latest
}

// unseen says that the step which was decided is not known to have begun.
func (ep *episode) unseen() bool { return ep.active && ep.rule.treats() && ep.seen < ep.step }

// stepBack returns to the step that the facts show, as if the one after it had not
// been decided.
func (c *Core) stepBack(ep *episode) {
	step := ep.rule.fit(ep.latest().Step)
	ep.seen = step
	c.setStep(ep, step, ep.stepSince)
	c.takeUpResponse(ep)
}

// fit brings a step into the rule's ladder, which may have become shorter.
func (r *rule) fit(step int) int {
	if steps := len(r.spec.Response.Ladder); steps > 0 {
		step = min(step, steps-1)
	}
	return max(step, 0)
}

// refit brings an episode in line with its rule's new definition. A place stays
// taken also if the rule takes none any more: what was decided may be on its way.
func (c *Core) refit(ep *episode) {
	if r := ep.rule; ep.active && r.treats() && !r.gone {
		// A termination that was decided stays one, whatever the step is now.
		if step := r.fit(ep.step); step != ep.step || !ep.terminates {
			failed := ep.failed && step == ep.step
			ep.seen = min(ep.seen, step)
			c.setStep(ep, step, ep.stepSince)
			ep.failed = failed
		}
	}
	c.takeUpResponse(ep)
}

// activate takes the place, and for a treatment the node.
func (c *Core) activate(ep *episode, step int, since int64) {
	ep.active, ep.seen, ep.failed = true, -1, false
	ep.rule.total.Treated++
	ep.rule.zone(ep.node.zone).Treated++
	if ep.rule.treats() {
		if ep.node.treating++; ep.node.treating == 1 && ep.node.controlPlane {
			c.controlPlane.hold(ep.node.name)
		}
	} else {
		c.countForeign(ep.node)
	}
	c.setStep(ep, step, since)
}

// deactivate frees the place, and for a treatment the node.
func (c *Core) deactivate(ep *episode) {
	ep.active, ep.terminates, ep.healthySince = false, false, 0
	ep.rule.total.Treated--
	ep.rule.zone(ep.node.zone).Treated--
	c.setRecovering(ep, false)
	c.touchPool(ep.rule)
	c.dropDeparture(ep)
	if !ep.rule.treats() {
		c.countForeign(ep.node)
		return
	}
	if ep.node.treating--; ep.node.treating > 0 {
		return
	}
	if ep.node.controlPlane {
		c.controlPlane.release(ep.node.name)
	}
	for _, other := range ep.node.episodes {
		if other != ep {
			c.consider(other)
		}
	}
}

// setStep moves the response to a step that is on its way from now on.
func (c *Core) setStep(ep *episode, step int, since int64) {
	ep.step, ep.stepSince, ep.failed = step, since, false
	if !ep.rule.gone {
		ep.terminates = ep.rule.terminates(step)
	}
	c.touchGoing(ep)
	c.fitDeparture(ep)
}

// touchGoing notes that another may be the first to go now, after which nodes must not be
// made to count.
func (c *Core) touchGoing(ep *episode) {
	if ep.departure != nil {
		ep.departure.enqueue()
		c.touchPool(ep.rule)
	}
}

// fitDeparture notes whether the node is to be replaced if it goes.
func (c *Core) fitDeparture(ep *episode) {
	switch r := ep.rule; {
	case !ep.terminates && !ep.deletes:
		c.dropDeparture(ep)
	case ep.departure == nil:
		ep.departure = newDeparture(r, ep.node.name, ep.node.uid, ep.step)
		ep.departure.episode = ep
		ep.departure.enqueue()
	default:
		ep.departure.step = ep.step
	}
}

// dropDeparture notes that it is not. With that another may be the first to go.
func (c *Core) dropDeparture(ep *episode) {
	if d := ep.departure; d != nil {
		d.forget()
		ep.departure = nil
		c.touchPool(ep.rule)
	}
}

// depart keeps the place of a node that has gone, until its replacement is ready.
func (c *Core) depart(d *departure, gone int64) {
	if ep := d.episode; ep != nil {
		d.since, d.controlPlane = ep.stepSince, ep.node.controlPlane
	}
	d.episode, d.gone = nil, gone
	if d.replaced {
		c.standIn(d.by)
		d.forget()
		return
	}
	d.enqueue()
	c.vacancies[d] = true
	d.rule.total.Treated++
	d.rule.total.Departed++
	c.touch(d.rule)
	if d.controlPlane {
		c.controlPlane.hold(d.node)
	}
	c.alarms.push(later(gone, ReplacementWait), &d.alarm)
}

// fill frees the place of a node that has gone.
func (c *Core) fill(d *departure) {
	d.alarm.leave()
	delete(c.vacancies, d)
	d.rule.total.Treated--
	d.rule.total.Departed--
	if d.controlPlane {
		c.controlPlane.release(d.node)
	}
	d.forget()
	c.touchPool(d.rule)
	c.retire(d.rule)
}

func (d *departure) forget() {
	d.place.leave()
	d.open.leave()
}

// grant is what an heir needs to know of a node that has gone.
func (d *departure) grant() Grant {
	return Grant{
		Rule: d.rule.spec.ID, Node: d.node, UID: d.uid, Step: d.step, Since: instant(d.since), Gone: instant(d.gone),
		ControlPlane: d.controlPlane, Pool: d.rule.poolName(),
	}
}

// decided is when what takes the node away began.
func (d *departure) decided() int64 {
	if d.episode != nil {
		return d.episode.stepSince
	}
	return d.since
}

// countReplacement lets a node that has just become ready stand in for the
// oldest departure that it can have been made for.
func (c *Core) countReplacement(n *node) {
	var oldest *departure
	for _, r := range n.rules {
		d := r.oldestUnreplaced(n)
		if d == nil || n.created < wholeSeconds(d.decided()) {
			continue
		}
		if oldest == nil || d.decided() < oldest.decided() || d.decided() == oldest.decided() && d.node < oldest.node {
			oldest = d
		}
	}
	switch {
	case oldest == nil:
	case oldest.episode == nil:
		c.fill(oldest)
		c.standIn(n)
	default:
		oldest.replaced, oldest.by = true, n
		oldest.enqueue()
	}
}

// oldestUnreplaced returns the departure of the rule that was decided first and waits for
// a replacement, other than the node's own; nil for none.
func (r *rule) oldestUnreplaced(n *node) (oldest *departure) {
	var own []*ticket
	for oldest == nil && r.unreplaced.len() > 0 {
		if d := r.unreplaced.first().ticket.departure; d.uid != n.uid {
			oldest = d
		} else {
			own = append(own, r.unreplaced.pop())
		}
	}
	for _, t := range own {
		r.unreplaced.push(t.departure.decided(), t)
	}
	return oldest
}

// standIn has a new node count for the one that has gone, which it replaces; nil is one of
// which nobody knows.
func (c *Core) standIn(n *node) {
	if n == nil || n.standsIn {
		return
	}
	before := n.age()
	n.standsIn = true
	for _, r := range n.rules {
		if r.ages != nil {
			r.ages.remove(before)
			r.ages.add(n.age())
		}
		c.touch(r)
	}
}
