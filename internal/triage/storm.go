package triage

// overrun says whether more nodes are sick, still in treatment, or gone and not
// replaced yet than the gate allows.
func (r *rule) overrun() bool {
	gate := r.spec.Bound.Gate
	return gate != nil && r.total.Unwell() > gate.Of(r.total.Meant())
}

// shut names what keeps the gate closed, 0 if it is open.
func (r *rule) shut() Code {
	switch {
	case r.overrun():
		return GateClosed
	case r.storm:
		return CoolingDown
	}
	return 0
}

// judgeStorm sees whether a storm has begun, calmed down or ended. It is asked once
// for every call, when all that the call brought has been counted: in between a
// count means nothing.
func (c *Core) judgeStorm(r *rule) {
	if r.gone || r.spec.Bound.Cooldown == 0 {
		return
	}
	r.alarm.leave()
	switch {
	case r.overrun():
		r.storm, r.calmSince = true, 0
		return
	case !r.storm:
		return
	case r.calmSince == 0:
		r.calmSince = c.now
	}
	if at := r.calmUntil(); at > c.now {
		c.alarms.push(at, &r.alarm)
	} else {
		r.endStorm()
	}
}

// calmUntil is when the cooldown is over, 0 while there is none.
func (r *rule) calmUntil() int64 {
	if r.calmSince == 0 {
		return 0
	}
	return later(r.calmSince, r.spec.Bound.Cooldown)
}

func (r *rule) endStorm() {
	r.alarm.leave()
	r.storm, r.calmSince = false, 0
}

// tellUnseen wakes the nodes whose treatment was decided and may not have begun,
// when the gate has closed or opened: it may no longer begin, or may again.
func (c *Core) tellUnseen(r *rule) {
	shut := r.shut() != 0
	if shut == r.isShut {
		return
	}
	r.isShut = shut
	for _, waiting := range r.unseen.entries {
		c.wake(waiting.ticket.episode.node)
	}
}
