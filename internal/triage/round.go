package triage

// controlPlane lets one control-plane node at a time be in treatment.
type controlPlane struct {
	holders map[string]int // by node; a terminated node may hold it beside its heir
	waiting queue
}

func (s *controlPlane) hold(node string) { s.holders[node]++ }

func (s *controlPlane) release(node string) {
	if s.holders[node]--; s.holders[node] <= 0 {
		delete(s.holders, node)
	}
}

// holder names the node in treatment, the first by name if there are several.
func (s *controlPlane) holder() (first string) {
	for name := range s.holders {
		if first == "" || name < first {
			first = name
		}
	}
	return first
}

// touch notes that the room under a rule's bounds may have changed.
func (c *Core) touch(r *rule) {
	if !r.isTouched {
		r.isTouched = true
		c.touched = append(c.touched, r)
	}
}

// consider puts an episode where it belongs now: among the candidates, under an
// alarm, or nowhere if only a change of its own node or rule can move it.
func (c *Core) consider(ep *episode) {
	ep.alarm.leave()
	ep.place.leave()
	takesPlaces := ep.rule.takesPlaces()
	switch {
	case c.keepsWhileRecovering(ep):
		if at := ep.recovered(); at > c.now {
			c.alarms.push(at, &ep.alarm)
		}
	case ep.unseen() && takesPlaces:
		if ep.step > 0 || ep.verdict != holds {
			break
		}
		if ep.eligible > c.now {
			c.alarms.push(ep.eligible, &ep.alarm)
		}
		ep.rule.unseen.push(ep.eligible, &ep.place)
	case ep.active && takesPlaces && ep.rule.treats():
		c.escalate(ep)
	case !ep.sick || ep.verdict != holds:
	case ep.active && takesPlaces: // a taint, which may have to wait although it was decided
		if ep.eligible > c.now {
			c.alarms.push(ep.eligible, &ep.alarm)
		}
	default:
		if at := nextAfter(c.now, ep.eligible, ep.notBefore); at != 0 && (takesPlaces || ep.eligible > c.now) {
			c.alarms.push(at, &ep.alarm)
		}
		if waits := max(ep.eligible, ep.notBefore); waits <= c.now && takesPlaces {
			c.candidates.push(waits, &ep.place)
		}
	}
}

// nextAfter returns the earliest of the times that is still to come, 0 if none.
func nextAfter(now int64, times ...int64) (next int64) {
	for _, at := range times {
		if at > now && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// escalate takes the next step when the current one has failed or its time is
// up, and otherwise waits for that time.
func (c *Core) escalate(ep *episode) {
	due, at := ep.due(c.now)
	if !due {
		if at != 0 {
			c.alarms.push(at, &ep.alarm)
		}
		return
	}
	if c.heldBack(ep) != 0 || ep.step+1 == len(ep.rule.spec.Response.Ladder) {
		return
	}
	if ep.notBefore > c.now {
		c.alarms.push(ep.notBefore, &ep.alarm)
		return
	}
	c.setStep(ep, ep.step+1, c.now)
	c.wake(ep.node)
}

// heldBack names what keeps a treatment from taking its next step, 0 for nothing.
func (c *Core) heldBack(ep *episode) Code {
	switch {
	case ep.verdict != holds:
		return Unclear
	case ep.rule.spec.Hold != "":
		return OnHold
	case ep.veto() != nil:
		return Vetoed
	}
	return 0
}

// calledOff names what keeps a step from beginning that was decided and was never
// seen, 0 for nothing. Before everybody is known the gate has nothing to say.
func (c *Core) calledOff(ep *episode) Code {
	switch {
	case ep.step > 0:
		return c.heldBack(ep)
	case ep.verdict == holds && ep.eligible > c.now:
		return Pending
	}
	if code := c.heldBack(ep); code != 0 || !c.loaded {
		return code
	}
	return ep.rule.shut()
}

// due says whether the current step is over without success, and if not, when it
// will be (0 for never).
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

// decide serves those who wait, as far as the bounds allow, in their order. It
// is enough to look at those whose obstacle has moved: a round only takes room
// and never makes any, so who was stopped by something else is stopped still.
func (c *Core) decide() {
	if !c.loaded {
		return
	}
	for _, r := range c.touched {
		r.isTouched = false
		c.judgeStorm(r)
		c.tellUnseen(r)
		c.offer(r)
	}
	c.touched = c.touched[:0]
	c.offerControlPlane()
	for c.candidates.len() > 0 {
		at := c.candidates.first().at
		ep := c.candidates.pop().episode
		switch c.obstacle(ep) {
		case 0:
			c.activate(ep, 0, c.now)
			ep.rule.takeAllowance()
			c.consider(ep)
			c.wake(ep.node)
		case ControlPlaneBusy:
			c.controlPlane.waiting.push(at, &ep.place)
		case GateClosed, CoolingDown:
			ep.rule.gate.push(at, &ep.place)
		case CapFull:
			ep.rule.full.push(at, &ep.place)
		case NotAllowed:
			ep.rule.barred.push(at, &ep.place)
		}
		c.offer(ep.rule)
		c.offerControlPlane()
	}
}

// offer lets the first of those who wait for a rule's bounds try, where there is
// room for it.
func (c *Core) offer(r *rule) {
	if r.gate.len() > 0 && r.shut() == 0 {
		c.move(&r.gate)
	}
	if r.full.len() > 0 && r.hasRoom() {
		c.move(&r.full)
	}
	if r.barred.len() > 0 && r.isAllowed() {
		c.move(&r.barred)
	}
}

func (c *Core) offerControlPlane() {
	if c.controlPlane.waiting.len() > 0 && len(c.controlPlane.holders) == 0 {
		c.move(&c.controlPlane.waiting)
	}
}

func (c *Core) move(from *queue) {
	at := from.first().at
	c.candidates.push(at, from.pop())
}

func (r *rule) hasRoom() bool {
	limit := r.spec.Bound.Cap
	return limit == nil || r.inTreatment() < limit.Of(r.basis())
}

// obstacle names what stops an eligible episode from getting its place, 0 for
// nothing.
func (c *Core) obstacle(ep *episode) Code {
	r, n := ep.rule, ep.node
	treats := r.treats()
	switch {
	case r.spec.Hold != "":
		return OnHold
	case treats && ep.veto() != nil:
		return Vetoed
	case treats && n.treating > 0:
		return Busy
	case treats && n.controlPlane && len(c.controlPlane.holders) > 0:
		return ControlPlaneBusy
	case !treats && ep.spared():
		return FellBack
	case !treats && r.hasForeign(n):
		return Tainted
	}
	if code := r.shut(); code != 0 {
		return code
	}
	if !r.hasRoom() {
		return CapFull
	}
	if treats && !r.isAllowed() {
		return NotAllowed
	}
	return 0
}

// spared says that the node is one of the control plane, on which the rule places
// no NoExecute.
func (ep *episode) spared() bool {
	taint := ep.rule.spec.Response.Taint
	return ep.node.controlPlane && taint.Effect == NoExecute && !taint.ControlPlane
}

// veto returns the first veto that concerns the episode.
func (ep *episode) veto() *Veto {
	for i := range ep.node.found.vetoes {
		if v := &ep.node.found.vetoes[i]; v.Kind == 0 || v.Kind == ep.rule.spec.ID.Kind {
			return v
		}
	}
	return nil
}
