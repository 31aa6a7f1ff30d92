package triage

import (
	"slices"
	"time"
)

// Window says when the disruptive steps of a rule may begin. A window does not change, and two
// windows with the same meaning are deeply equal.
type Window interface {
	// Open says whether the window is open, and until when that does not change. For a closed
	// window this is the next opening. The zero time means for ever.
	Open(at time.Time) (open bool, until time.Time)
	// String names the window in messages.
	String() string
}

// windowState is what the window of a rule says now.
type windowState struct {
	closed  bool
	until   int64     // when the window has to be asked again; 0 for never
	timer   queueItem // in Core.windows
	waiting queue     // episodes that wait for the window
}

// readWindow asks the window of a rule. A rule without a window may begin at any time.
func (c *Core) readWindow(r *rule) {
	w := &r.window
	w.timer.leave()
	w.closed, w.until = false, 0
	if r.gone || r.spec.Window == nil {
		return
	}
	open, until := r.spec.Window.Open(instant(c.now))
	w.closed, w.until = !open, nanos(until)
	if w.until > c.now {
		c.windows.push(w.until, &w.timer)
	}
}

// turnWindows opens and closes the windows whose time has come. It visits only the episodes that
// wait, and those with a decided step that has not begun.
func (c *Core) turnWindows() {
	for c.windows.len() > 0 && c.windows.first().at <= c.now {
		r := c.windows.pop().rule
		wasClosed := r.window.closed
		c.readWindow(r)
		if r.window.closed == wasClosed {
			continue
		}
		for _, e := range r.unobserved.entries {
			c.wake(e.item.episode.node)
		}
		if r.window.closed { // the window is the first obstacle now
			for _, q := range []*queue{&r.waitingForGate, &r.waitingForCap, &r.waitingForAllowance} {
				for q.len() > 0 {
					c.makeCandidate(q)
				}
			}
			c.retryShared(r)
			continue
		}
		for r.window.waiting.len() > 0 {
			ep := r.window.waiting.pop().episode
			c.schedule(ep)
			c.wake(ep.node)
		}
	}
}

// retryShared lets the episodes of a rule try again that wait for something that all rules share.
func (c *Core) retryShared(r *rule) {
	s := &c.rails
	retry := func(q *queue) {
		for _, e := range slices.Clone(q.entries) {
			if e.item.episode.rule == r {
				c.schedule(e.item.episode)
			}
		}
	}
	for _, q := range []*queue{&c.escalating, &c.controlPlane.waiting, &s.waitingForRoom, &s.waitingForLast, &s.waitingForPace, &s.waitingToClose, &s.waitingToKeepClosed, &s.respected} {
		retry(q)
	}
	for _, d := range s.topology.domains {
		retry(&d.waiting)
	}
	for _, d := range s.failures.domains {
		retry(&d.waiting)
	}
}

// isOutsideWindow says that a disruptive step of an episode has to wait for the window.
func (c *Core) isOutsideWindow(ep *episode, step int) bool {
	if !ep.rule.window.closed || ep.urgentAt != 0 && ep.urgentAt <= c.now {
		return false
	}
	steps := ep.rule.spec.Response.Ladder
	return step >= len(steps) || !steps[step].Urgent
}

// nextStep is the step that has not begun yet.
func (ep *episode) nextStep() int {
	switch {
	case !ep.active:
		return 0
	case ep.isUnobserved():
		return ep.step
	}
	return ep.step + 1
}

// nameWindow adds the window to a reason, and when the step may begin.
func (c *Core) nameWindow(reason *Reason, ep *episode) {
	reason.Other = ep.rule.spec.Window.String()
	reason.Until = instant(nextAfter(c.now, ep.rule.window.until, ep.urgentAt))
}
