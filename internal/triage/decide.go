package triage

// controlPlane lets one control-plane node at a time be in treatment.
type controlPlane struct {
	holders map[string]int // by node; a deleted node can be a holder beside its replacement
	waiting queue
}

func (s *controlPlane) acquire(node string) { s.holders[node]++ }

func (s *controlPlane) release(node string) {
	if s.holders[node]--; s.holders[node] <= 0 {
		delete(s.holders, node)
	}
}

// holder returns the node in treatment; the first by name if there are several.
func (s *controlPlane) holder() (first string) {
	for name := range s.holders {
		if first == "" || name < first {
			first = name
		}
	}
	return first
}

// markDirty records that the free slots or the gate of a rule may have changed.
func (c *Core) markDirty(r *rule) {
	if !r.isDirty {
		r.isDirty = true
		c.dirty = append(c.dirty, r)
	}
}

// schedule puts an episode into the candidates, sets a timer for it, or does neither if only
// a change of its node or rule can affect it.
func (c *Core) schedule(ep *episode) {
	ep.timer.leave()
	ep.waiting.leave()
	ep.waitsForRail = false
	c.updateFailure(ep.node)
	takesPlaces := ep.rule.takesSlots()
	switch {
	case c.keepsWhileRecovering(ep):
		if at := ep.recoveredAt(); at > c.now {
			c.timers.push(at, &ep.timer)
		}
	case ep.isUnobserved() && takesPlaces:
		if ep.verdict != holds {
			break
		}
		begins, freed := int64(0), int64(0)
		if ep.step == 0 {
			begins = ep.eligible
			_, _, freed = c.isGivenUp(ep)
		}
		c.setTimer(ep, begins, ep.urgentAt, freed)
		ep.rule.unobserved.push(ep.eligible, &ep.waiting)
	case ep.active && takesPlaces && ep.rule.treats:
		c.escalate(ep)
	case !ep.unhealthy || ep.verdict != holds:
	case ep.active && takesPlaces && ep.node.mayClose: // a taint may have to wait although it was decided
		c.setTimer(ep, ep.eligible, ep.urgentAt)
		if !ep.slotObserved {
			ep.rule.unobserved.push(ep.eligible, &ep.waiting)
		}
	default:
		isCandidate := takesPlaces || ep.closes() && !ep.node.mayClose
		if isCandidate || ep.eligible > c.now {
			c.setTimer(ep, ep.eligible, ep.notBefore, ep.urgentAt)
		}
		if waits := max(ep.eligible, ep.notBefore); waits <= c.now && isCandidate {
			c.candidates.push(waits, &ep.waiting)
		}
	}
}

// setTimer sets the timer of an episode to the earliest of the times that is still to come.
func (c *Core) setTimer(ep *episode, times ...int64) {
	if at := nextAfter(c.now, times...); at != 0 {
		c.timers.push(at, &ep.timer)
	}
}

// nextAfter returns the earliest of the times after now; 0 if none.
func nextAfter(now int64, times ...int64) (next int64) {
	for _, at := range times {
		if at > now && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// escalate lets decide begin the next step if the current step failed or timed out. Otherwise it
// sets a timer for the timeout.
func (c *Core) escalate(ep *episode) {
	due, at := ep.due(c.now)
	if !due {
		if at != 0 {
			c.timers.push(at, &ep.timer)
		}
		return
	}
	if ep.step+1 == len(ep.rule.spec.Response.Ladder) {
		return
	}
	switch held := c.heldBack(ep); {
	case held == OutsideWindow:
		c.setTimer(ep, ep.urgentAt)
		ep.rule.window.waiting.push(ep.eligible, &ep.waiting)
	case held != 0:
	case ep.notBefore > c.now:
		c.timers.push(ep.notBefore, &ep.timer)
	default:
		c.escalating.push(c.now, &ep.waiting)
	}
}

// beginNextSteps begins the next steps of treatments, after all changes of the call are counted.
func (c *Core) beginNextSteps() {
	for c.escalating.len() > 0 {
		ep := c.escalating.pop().episode
		c.setStep(ep, ep.step+1, c.now)
		c.schedule(ep)
		c.wake(ep.node)
	}
}

// heldBack returns what prevents the next step of a treatment; 0 for nothing.
func (c *Core) heldBack(ep *episode) Code {
	if ep.verdict != holds {
		return Unclear
	}
	if code := c.onHold(ep); code != 0 {
		return code
	}
	switch {
	case c.isOutsideWindow(ep, ep.nextStep()):
		return OutsideWindow
	case ep.veto() != nil:
		return Vetoed
	case c.failureOf(ep.node) != nil:
		return CorrelatedFailed
	}
	return 0
}

// calledOff returns what prevents a decided, unobserved step from beginning; 0 for nothing.
// The gate does not count before all nodes are known.
func (c *Core) calledOff(ep *episode) Code {
	switch {
	case ep.step > 0:
		return c.heldBack(ep)
	case ep.verdict == holds && ep.eligible > c.now:
		return Pending
	}
	if code := c.heldBack(ep); code != 0 {
		return code
	}
	if is, _, _ := c.isGivenUp(ep); is {
		return GivenUp
	}
	if !c.loaded {
		return 0
	}
	return ep.rule.gateClosedBy()
}

// due says whether the current step failed or timed out. If not, it returns when the step
// times out (0 for never).
func (ep *episode) due(now int64) (due bool, at int64) {
	if ep.failed {
		return true, 0
	}
	timeout := ep.rule.spec.Response.Ladder[ep.step].Timeout
	if timeout == 0 {
		return false, 0
	}
	at = later(ep.stepSince, timeout)
	return at <= now, at
}

// decide begins treatments within the bounds, in the order of service. It checks only the
// episodes whose obstacle may have changed. Beginning a treatment only takes slots, so an
// episode with another obstacle is still blocked.
func (c *Core) decide() {
	if !c.loaded {
		return
	}
	c.updateFailures()
	c.beginNextSteps()
	for _, r := range c.dirty {
		r.isDirty = false
		c.updateStorm(r)
		c.wakeUnobserved(r)
		c.retryWaiting(r)
	}
	c.dirty = c.dirty[:0]
	c.retryControlPlane()
	c.retryWaitingForRails()
	for c.candidates.len() > 0 {
		at := c.candidates.first().at
		ep := c.candidates.pop().episode
		obstacle := c.obstacle(ep)
		if ep.closes() && !ep.node.mayClose && c.onHold(ep) == 0 {
			if obstacle = c.closingRail(ep.node); obstacle == 0 {
				c.setMayClose(ep.node, true) // the episode is a candidate again if it wants NoExecute
				c.retryWaitingForRails()
				continue
			}
		}
		switch obstacle {
		case 0:
			c.activate(ep, 0, c.now)
			if ep.rule.treats {
				ep.rule.takeAllowance()
				ep.paced = c.rails.addStart(Start{instant(c.now), 1})
			}
			c.schedule(ep)
			c.wake(ep.node)
		case OnHold:
			if ep.rule.spec.Hold == "" { // SetRails lets it try again
				c.rails.onHold.push(at, &ep.waiting)
			}
		case OutsideWindow:
			ep.rule.window.waiting.push(at, &ep.waiting)
			c.wake(ep.node) // its reason has changed
		case Vetoed:
			if ep.veto().Respected {
				c.rails.respected.push(at, &ep.waiting)
			}
		case GivenUp:
			c.giveUp(ep, at)
		case ControlPlaneBusy:
			c.controlPlane.waiting.push(at, &ep.waiting)
		case GateClosed, CoolingDown:
			ep.rule.waitingForGate.push(at, &ep.waiting)
		case CapFull:
			ep.rule.waitingForCap.push(at, &ep.waiting)
		case NotAllowed:
			ep.rule.waitingForAllowance.push(at, &ep.waiting)
		case LastNode, MaxInTreatment, MaxUnschedulable, MaxInTopology, Paced, CorrelatedFailed:
			c.waitForRail(ep, obstacle, at)
		}
		c.retryWaiting(ep.rule)
		c.retryControlPlane()
		c.retryWaitingForRails()
	}
	c.rails.topology.unmark()
	c.timePace()
}

// retryWaiting makes the first episode of each waiting queue a candidate if its obstacle is
// gone.
func (c *Core) retryWaiting(r *rule) {
	if r.waitingForGate.len() > 0 && r.gateClosedBy() == 0 {
		c.makeCandidate(&r.waitingForGate)
	}
	if r.waitingForCap.len() > 0 && r.hasRoom() {
		c.makeCandidate(&r.waitingForCap)
	}
	if r.waitingForAllowance.len() > 0 && r.isAllowed() {
		c.makeCandidate(&r.waitingForAllowance)
	}
}

func (c *Core) retryControlPlane() {
	if c.controlPlane.waiting.len() > 0 && len(c.controlPlane.holders) == 0 {
		c.makeCandidate(&c.controlPlane.waiting)
	}
}

func (c *Core) makeCandidate(from *queue) {
	at := from.first().at
	c.candidates.push(at, from.pop())
}

func (r *rule) hasRoom() bool {
	limit := r.spec.Bound.Cap
	return limit == nil || r.inTreatment() < limit.Of(r.capBase())
}

// obstacle returns what prevents an eligible episode from getting a slot; 0 for nothing.
func (c *Core) obstacle(ep *episode) Code {
	if code := c.onHold(ep); code != 0 {
		return code
	}
	return c.limit(ep)
}

// limit returns what prevents an eligible episode from getting a slot if nothing is on hold; 0 for
// nothing.
func (c *Core) limit(ep *episode) Code {
	r, n := ep.rule, ep.node
	treats := r.treats
	switch {
	case treats && c.isOutsideWindow(ep, 0):
		return OutsideWindow
	case treats && ep.veto() != nil:
		return Vetoed
	case treats && n.treating > 0:
		return Busy
	}
	if is, _, _ := c.isGivenUp(ep); is {
		return GivenUp
	}
	switch {
	case treats && n.controlPlane && len(c.controlPlane.holders) > 0:
		return ControlPlaneBusy
	case !treats && ep.excludesNoExecute():
		return FellBack
	case !treats && r.hasForeign(n):
		return Tainted
	case !treats && c.isOutsideWindow(ep, 0):
		return OutsideWindow
	}
	if code := r.gateClosedBy(); code != 0 {
		return code
	}
	if !r.hasRoom() {
		return CapFull
	}
	if treats && !r.isAllowed() {
		return NotAllowed
	}
	return c.rail(ep)
}

// excludesNoExecute says that the node is a control-plane node and the rule excludes it from
// NoExecute.
func (ep *episode) excludesNoExecute() bool {
	taint := ep.rule.spec.Response.Taint
	return ep.node.controlPlane && taint.Effect == NoExecute && !taint.ControlPlane
}

// veto returns the first veto of the next step.
func (ep *episode) veto() *Veto {
	steps, next := ep.rule.spec.Response.Ladder, ep.nextStep()
	for i := range ep.node.extra.vetoes {
		if v := &ep.node.extra.vetoes[i]; v.Action == 0 || next < len(steps) && v.Action == steps[next].Action {
			return v
		}
	}
	return nil
}
