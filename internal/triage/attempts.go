package triage

import (
	"slices"
	"strconv"
	"time"
)

// Attempt is a treatment of a node that a rule has begun. All steps of one episode are one
// attempt.
type Attempt struct {
	Rule  RuleID
	Began time.Time
	// Inherited says that the attempt was for an earlier node, which this node replaces.
	Inherited bool
}

// MaxAttempts is how many attempts a node may have within a window.
type MaxAttempts struct {
	Limit  int
	Window time.Duration
}

func (m *MaxAttempts) validate() error {
	switch {
	case m == nil:
		return nil
	case m.Limit < 1:
		return &FieldError{Field: "limit", Value: strconv.Itoa(m.Limit), Problem: "want at least one attempt"}
	case m.Window <= 0:
		return &FieldError{Field: "window", Value: m.Window.String(), Problem: "want a positive duration"}
	}
	return nil
}

// MaxAttempts returns how many attempts a node may have, nil for any number.
func (c *Core) MaxAttempts() *MaxAttempts { return copied(c.rails.spec.MaxAttempts) }

// IsNewAttempt says whether a treatment of a rule on a node would be another attempt. It is none
// if the facts have an attempt of the rule from after the time at which its conditions began to
// match: then the treatment continues that attempt. If it is not certain that it is from after that
// time, it counts as another attempt, so that there are never too many.
func (c *Core) IsNewAttempt(node string, id RuleID) bool {
	ep := c.episode(node, id)
	return ep == nil || !ep.hasAttempt()
}

// hasAttempt says whether the facts have the attempt of the episode.
func (ep *episode) hasAttempt() bool {
	since := ep.matchedSince()
	if since == wholeSeconds(since) { // a transition time: it was any time within that second
		since = later(since, time.Second)
	}
	return slices.ContainsFunc(ep.node.extra.attempts, func(a Attempt) bool {
		return !a.Inherited && a.Rule == ep.rule.spec.ID && nanos(a.Began) >= since
	})
}

// isGivenUp says whether an episode may not begin because its node has had all of its attempts,
// how many lie within the window, and when enough of them have left it.
func (c *Core) isGivenUp(ep *episode) (is bool, attempts int, until int64) {
	limit, known := c.rails.spec.MaxAttempts, ep.node.extra.attempts
	if limit == nil || !ep.rule.treats || len(known) < limit.Limit || ep.hasAttempt() {
		return false, 0, 0
	}
	var ends []int64
	for _, a := range known {
		if end := later(nanos(a.Began), limit.Window); end > c.now {
			ends = append(ends, end)
		}
	}
	if len(ends) < limit.Limit {
		return false, 0, 0
	}
	slices.Sort(ends)
	return true, len(ends), ends[len(ends)-limit.Limit]
}

// noteAttempts records whether a node has attempts.
func (c *Core) noteAttempts(n *node) {
	if len(n.extra.attempts) > 0 {
		c.rails.attempted[n] = true
	} else {
		delete(c.rails.attempted, n)
	}
}

// mostAttempts is the largest number of attempts of a node within the window.
func (c *Core) mostAttempts() (most int) {
	for n := range c.rails.attempted {
		within := 0
		for _, a := range n.extra.attempts {
			if later(nanos(a.Began), c.rails.spec.MaxAttempts.Window) > c.now {
				within++
			}
		}
		most = max(most, within)
	}
	return most
}

// giveUp lets an episode wait until enough attempts have left the window.
func (c *Core) giveUp(ep *episode, at int64) {
	c.rails.givenUp.push(at, &ep.waiting)
	ep.timer.leave()
	_, _, until := c.isGivenUp(ep)
	c.setTimer(ep, until)
}

// nameAttempts adds the attempts of a node to a reason.
func (c *Core) nameAttempts(reason *Reason, ep *episode) {
	_, attempts, until := c.isGivenUp(ep)
	limit := c.rails.spec.MaxAttempts
	reason.Have, reason.Limit, reason.Other, reason.Until = attempts, limit.Limit, limit.Window.String(), instant(until)
}
