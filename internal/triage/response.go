package triage

import (
	"cmp"
	"maps"
	"slices"
)

// departure is a termination, or a treatment that deletes its node, until its slot is free.
type departure struct {
	rule        *rule
	node        string
	uid         string
	step        int
	episode     *episode // nil once the node is deleted
	replaced    bool     // a replacement has been counted for it
	replacement *node    // the replacement, if this core counted it

	since, gone int64
	readyNeeded int    // as in [Grant]
	topology    string // as in [Grant]

	controlPlane bool
	timer        queueItem
	inDepartures queueItem // in rule.departures
	inUnreplaced queueItem // in rule.unreplaced
	inGoing      queueItem // in going, the queue of all rules
	going        *queue
}

func (c *Core) newDeparture(r *rule, node, uid string, step int) *departure {
	d := &departure{rule: r, node: node, uid: uid, step: step, going: &c.rails.going}
	d.timer.departure, d.inDepartures.departure, d.inUnreplaced.departure, d.inGoing.departure = d, d, d, d
	return d
}

// compareDepartures compares deleted nodes by the time of their deletion.
func compareDepartures(a, b *departure) int {
	return cmp.Or(cmp.Compare(a.gone, b.gone), cmp.Compare(a.node, b.node), cmp.Compare(a.uid, b.uid))
}

// enqueue adds the departure to the queues of its rule, in the current order.
func (d *departure) enqueue() {
	d.leaveQueues()
	d.rule.departures.push(d.decidedAt(), &d.inDepartures)
	d.going.push(d.decidedAt(), &d.inGoing)
	if !d.replaced {
		d.rule.unreplaced.push(d.decidedAt(), &d.inUnreplaced)
	}
}

// syncResponses brings the episodes of a node in line with the responses in the facts. It
// ignores a response of another type than its rule has.
func (c *Core) syncResponses(n *node) {
	for _, t := range n.extra.taints {
		if r := c.ruleOf(t.Rule, false); !r.treats {
			c.openEpisode(n, r)
		}
	}
	for _, t := range n.extra.treatments {
		if r := c.ruleOf(t.Rule, true); r.treats {
			c.openEpisode(n, r)
		}
	}
	for _, ep := range n.episodes {
		c.syncResponse(ep)
	}
}

func (c *Core) syncResponse(ep *episode) {
	id := ep.rule.spec.ID
	ep.observedEffect = 0
	for _, t := range ep.node.extra.taints {
		if t.Rule == id {
			ep.observedEffect = max(ep.observedEffect, t.Effect)
		}
	}
	latest := ep.latestTreatment()
	treated := latest != nil
	tainted := ep.observedEffect > 0 && !ep.rule.treats
	ep.present = treated || tainted
	ep.slotObserved = treated || tainted && ep.observedEffect == NoExecute // whatever the rule wants now
	ep.deletes = treated && slices.ContainsFunc(ep.node.extra.treatments, func(t Treatment) bool { return t.Rule == id && t.Deletes })
	switch {
	case treated:
		step := ep.rule.clampStep(latest.Step)
		if !ep.active {
			since := nanos(latest.Since)
			if since == 0 {
				since = c.now
			}
			c.activate(ep, step, since)
		}
		ep.paced = 0
		// If the facts show a lower step than before, the higher step is over.
		if step > ep.step || step < ep.observedStep && ep.observedStep == ep.step {
			c.setStep(ep, step, c.now)
		}
		ep.observedStep = step
		if step == ep.step {
			ep.failed = latest.Failed
			if since := nanos(latest.Since); since != 0 && since != ep.stepSince {
				ep.stepSince = since
				c.reorderDeparture(ep)
			}
		}
	case ep.slotObserved:
		if !ep.active {
			c.activate(ep, 0, c.now)
		}
		ep.observedStep = 0
	case ep.active && ep.observedStep == ep.step:
		c.deactivate(ep)
		ep.notBefore = c.now
	}
	if ep.active {
		c.updateDeparture(ep)
	}
}

// latestTreatment returns the highest step of the ladder in the facts; nil for none.
func (ep *episode) latestTreatment() (latest *Treatment) {
	if !ep.rule.treats {
		return nil
	}
	for i := range ep.node.extra.treatments {
		t := &ep.node.extra.treatments[i]
		if t.Rule == ep.rule.spec.ID && (latest == nil || t.Step > latest.Step) {
			latest = t
		}
	}
	return latest
}

// isUnobserved says that the decided step has not been in the facts yet.
func (ep *episode) isUnobserved() bool {
	return ep.active && ep.rule.treats && ep.observedStep < ep.step
}

// revertStep returns to the step in the facts, as if the next step had not been decided.
func (c *Core) revertStep(ep *episode) {
	step := ep.rule.clampStep(ep.latestTreatment().Step)
	ep.observedStep = step
	c.setStep(ep, step, ep.stepSince)
	c.syncResponse(ep)
}

// clampStep limits a step to the ladder, which may have become shorter.
func (r *rule) clampStep(step int) int {
	if steps := len(r.spec.Response.Ladder); steps > 0 {
		step = min(step, steps-1)
	}
	return max(step, 0)
}

// adaptResponse adapts an episode to the new definition of its rule. An occupied slot stays
// occupied even if the rule takes no slots any more, because the decision may be in flight.
func (c *Core) adaptResponse(ep *episode) {
	if r := ep.rule; ep.active && r.treats && !r.gone {
		// A decided termination remains a termination, whatever action the step has now.
		if step := r.clampStep(ep.step); step != ep.step || !ep.terminates {
			failed := ep.failed && step == ep.step
			ep.observedStep = min(ep.observedStep, step)
			c.setStep(ep, step, ep.stepSince)
			ep.failed = failed
		}
	}
	c.syncResponse(ep)
}

// activate occupies the slot and, for a treatment, the node.
func (c *Core) activate(ep *episode, step int, since int64) {
	ep.active, ep.observedStep, ep.failed, ep.paced = true, -1, false, 0
	ep.rule.total.Treated++
	ep.rule.zone(ep.node.zone).Treated++
	ep.node.active++
	c.updateTreatment(ep.node)
	if ep.rule.treats {
		if ep.node.treating++; ep.node.treating == 1 && ep.node.controlPlane {
			c.controlPlane.acquire(ep.node.name)
		}
	} else {
		c.countForeign(ep.node)
	}
	c.setStep(ep, step, since)
}

// deactivate frees the slot and, for a treatment, the node.
func (c *Core) deactivate(ep *episode) {
	ep.active, ep.terminates, ep.healthySince = false, false, 0
	ep.rule.total.Treated--
	ep.rule.zone(ep.node.zone).Treated--
	ep.node.active--
	c.updateTreatment(ep.node)
	c.setRecovering(ep, false)
	c.markPoolDirty(ep.rule)
	c.dropDeparture(ep)
	if !ep.rule.treats {
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
			c.schedule(other)
		}
	}
}

// setStep moves the response to a step that is decided now.
func (c *Core) setStep(ep *episode, step int, since int64) {
	ep.step, ep.stepSince, ep.failed = step, since, false
	if !ep.rule.gone {
		ep.terminates = ep.rule.terminates(step)
	}
	c.reorderDeparture(ep)
	c.updateDeparture(ep)
}

// reorderDeparture updates the order of departures. The first departure decides which nodes
// are too young for the cap.
func (c *Core) reorderDeparture(ep *episode) {
	if ep.departure != nil {
		ep.departure.enqueue()
		c.markPoolDirty(ep.rule)
	}
}

// updateDeparture records whether the node has to be replaced when it is deleted.
func (c *Core) updateDeparture(ep *episode) {
	switch r := ep.rule; {
	case !ep.terminates && !ep.deletes:
		c.dropDeparture(ep)
	case ep.departure == nil:
		ep.departure = c.newDeparture(r, ep.node.name, ep.node.uid, ep.step)
		ep.departure.episode = ep
		ep.departure.enqueue()
	default:
		ep.departure.step = ep.step
	}
}

// dropDeparture removes the departure. Another one may then be the first.
func (c *Core) dropDeparture(ep *episode) {
	if d := ep.departure; d != nil {
		d.leaveQueues()
		ep.departure = nil
		c.markPoolDirty(ep.rule)
	}
}

// awaitReplacement keeps the slot of a deleted node until its replacement is ready.
func (c *Core) awaitReplacement(d *departure, gone int64) {
	if ep := d.episode; ep != nil {
		d.since, d.controlPlane, d.topology = ep.stepSince, ep.node.controlPlane, c.topologyOf(ep.node)
	}
	d.episode, d.gone = nil, gone
	if d.replaced {
		c.markReplacement(d.replacement)
		d.leaveQueues()
		return
	}
	d.enqueue()
	c.awaitingReplacement[d] = true
	at, _ := slices.BinarySearchFunc(d.rule.departed, d, compareDepartures)
	d.rule.departed = slices.Insert(d.rule.departed, at, d)
	c.countDeparted(d)
	d.rule.total.Treated++
	d.rule.total.Departed++
	c.markDirty(d.rule)
	if d.controlPlane {
		c.controlPlane.acquire(d.node)
	}
	c.timers.push(later(gone, ReplacementWait), &d.timer)
}

// recognizeReplacements frees the slots of nodes that were replaced while no process was
// running.
func (c *Core) recognizeReplacements() {
	restored := slices.SortedFunc(maps.Keys(c.awaitingReplacement), func(a, b *departure) int {
		return cmp.Or(cmp.Compare(b.gone, a.gone), cmp.Compare(a.node, b.node), a.rule.spec.ID.Compare(b.rule.spec.ID))
	})
	for _, d := range restored {
		ready, replacement := c.youngReady(d)
		if d.readyNeeded > 0 && replacement != nil && ready >= d.readyNeeded {
			c.endDeparture(d)
			c.markReplacement(replacement)
			c.countReadyForOther(replacement)
		}
	}
}

// countReadyForOther records for the departures that still wait that this ready node is not
// their replacement. A successor does not count it for them.
func (c *Core) countReadyForOther(n *node) {
	for _, r := range n.rules {
		for _, d := range r.departed {
			if d.readyNeeded > 0 && n.isYoungerThan(d) {
				d.readyNeeded++
			}
		}
	}
}

// isYoungerThan says whether the node was created after the decision to delete d.
func (n *node) isYoungerThan(d *departure) bool { return n.created >= wholeSeconds(d.decidedAt()) }

// youngReady counts the nodes that a rule selects, that were ready once, and that were created
// after the decision to delete d. It returns the first that is not a replacement yet.
func (c *Core) youngReady(d *departure) (ready int, first *node) {
	c.youngest.walk(-wholeSeconds(d.decidedAt()), func(item *queueItem) {
		n := item.node
		c.work.Young++
		if !n.wasReady || !n.selectedBy(d.rule) {
			return
		}
		ready++
		if !n.isReplacement && (first == nil || n.created < first.created || n.created == first.created && n.name < first.name) {
			first = n
		}
	})
	return ready, first
}

// endDeparture frees the slot of a deleted node.
func (c *Core) endDeparture(d *departure) {
	d.timer.leave()
	delete(c.awaitingReplacement, d)
	at, _ := slices.BinarySearchFunc(d.rule.departed, d, compareDepartures)
	d.rule.departed = slices.Delete(d.rule.departed, at, at+1)
	c.uncountDeparted(d)
	d.rule.total.Treated--
	d.rule.total.Departed--
	if d.controlPlane {
		c.controlPlane.release(d.node)
	}
	d.leaveQueues()
	c.markPoolDirty(d.rule)
	c.dropIfUnused(d.rule)
}

func (d *departure) leaveQueues() {
	d.inDepartures.leave()
	d.inUnreplaced.leave()
	d.inGoing.leave()
}

// grant is what a successor process needs to know about a deleted node.
func (d *departure) grant() Grant {
	return Grant{
		Rule: d.rule.spec.ID, Node: d.node, UID: d.uid, Step: d.step, Since: instant(d.since), Gone: instant(d.gone),
		ControlPlane: d.controlPlane, Pool: d.rule.poolName(), ReadyNeeded: d.readyNeeded, Topology: d.topology,
	}
}

// decidedAt is when the step began that deletes the node.
func (d *departure) decidedAt() int64 {
	if d.episode != nil {
		return d.episode.stepSince
	}
	return d.since
}

// countReplacement counts a node that has just become ready as the replacement for the
// oldest departure that it can belong to.
func (c *Core) countReplacement(n *node) {
	var oldest *departure
	for _, r := range n.rules {
		d := r.oldestUnreplaced(n)
		if d == nil || !n.isYoungerThan(d) {
			continue
		}
		if oldest == nil || d.decidedAt() < oldest.decidedAt() || d.decidedAt() == oldest.decidedAt() && d.node < oldest.node {
			oldest = d
		}
	}
	switch {
	case oldest == nil:
	case oldest.episode == nil:
		c.endDeparture(oldest)
		c.markReplacement(n)
	default:
		oldest.replaced, oldest.replacement = true, n
		oldest.enqueue()
	}
	c.countReadyForOther(n)
}

// oldestUnreplaced returns the departure that was decided first and has no replacement; nil
// for none. It skips the departures of the node itself.
func (r *rule) oldestUnreplaced(n *node) (oldest *departure) {
	var own []*queueItem
	for oldest == nil && r.unreplaced.len() > 0 {
		if d := r.unreplaced.first().item.departure; d.uid != n.uid {
			oldest = d
		} else {
			own = append(own, r.unreplaced.pop())
		}
	}
	for _, item := range own {
		r.unreplaced.push(item.departure.decidedAt(), item)
	}
	return oldest
}

// markReplacement counts a new node in place of the deleted node that it replaces. The node
// is nil if this core did not see it.
func (c *Core) markReplacement(n *node) {
	if n == nil || n.isReplacement || n.forgotten {
		return
	}
	before := n.countedCreation()
	n.isReplacement = true
	for _, r := range n.rules {
		if r.creationTimes != nil {
			r.creationTimes.move(before, n.countedCreation())
		}
		c.markDirty(r)
	}
	c.rails.created.move(before, n.countedCreation())
	for _, d := range n.domains {
		d.created.move(before, n.countedCreation())
		c.rails.topology.markChanged(d)
	}
}
