package triage

// exceedsGate says whether more nodes are unhealthy, still in treatment, or deleted and not
// replaced yet than the gate allows.
func (r *rule) exceedsGate() bool {
	gate := r.spec.Bound.Gate
	return gate != nil && r.total.GateUnhealthy() > gate.Of(r.total.GateTotal())
}

// gateClosedBy returns what keeps the gate closed; 0 if it is open.
func (r *rule) gateClosedBy() Code {
	switch {
	case r.exceedsGate():
		return GateClosed
	case r.storm:
		return CoolingDown
	}
	return 0
}

// updateStorm checks whether a storm has begun, calmed down or ended. It runs once per call,
// after all changes of the call are counted, because intermediate counts mean nothing.
func (c *Core) updateStorm(r *rule) {
	if r.gone || r.spec.Bound.Cooldown == 0 {
		return
	}
	r.timer.leave()
	switch {
	case r.exceedsGate():
		r.storm, r.calmSince = true, 0
		return
	case !r.storm:
		return
	case r.calmSince == 0:
		r.calmSince = c.now
	}
	if at := r.calmUntil(); at > c.now {
		c.timers.push(at, &r.timer)
	} else {
		r.endStorm()
	}
}

// calmUntil is when the cooldown ends; 0 if it has not begun.
func (r *rule) calmUntil() int64 {
	if r.calmSince == 0 {
		return 0
	}
	return later(r.calmSince, r.spec.Bound.Cooldown)
}

func (r *rule) endStorm() {
	r.timer.leave()
	r.storm, r.calmSince = false, 0
}

// wakeUnobserved wakes the nodes with a decided, unobserved treatment when the gate opens or
// closes, because the treatment may now begin, or may not.
func (c *Core) wakeUnobserved(r *rule) {
	closed := r.gateClosedBy() != 0
	if closed == r.gateWasClosed {
		return
	}
	r.gateWasClosed = closed
	for _, waiting := range r.unobserved.entries {
		c.wake(waiting.item.episode.node)
	}
}
