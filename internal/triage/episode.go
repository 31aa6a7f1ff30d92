package triage

import "slices"

// episode is what goes on between a rule and a node: it opens when a signal
// begins to stand or a response is found, and closes when neither is left.
// Healthy nodes have none.
type episode struct {
	node   *node
	rule   *rule
	clocks []clock
	first  [2]clock // room for the clocks of most rules

	verdict  verdict
	sick     bool
	eligible int64 // while the verdict is holds
	decider  int   // the group that decides when

	active    bool   // the response takes its place
	present   bool   // the facts show a response
	placed    bool   // the facts show one that takes a place
	stands    Effect // strongest taint of the rule in the facts
	step      int
	seen      int // highest step that the facts showed when they last showed any, -1 for never
	stepSince int64
	failed    bool
	notBefore int64

	terminates bool // the step that was decided is a termination
	deletes    bool // a treatment in the facts is going to delete the node
	departure  *departure

	recovering   bool  // selected and not sick, but the treatment is not gone
	badUntil     int64 // when the rule last began to be clear that the node is well
	healthySince int64 // since when that counts for a treatment which stays, 0 if it does not

	alarm, place ticket
}

// clock tells since when a group has stood.
type clock struct {
	start
	group int
}

// start is when a clock began to run.
type start struct {
	since int64
	// toldBy is the transition time from which a core that starts anew would find
	// the same start, untold if it would find another.
	toldBy int64
}

const untold int64 = -1

func (ep *episode) clock(group int) *clock {
	if ep == nil {
		return nil
	}
	for i := range ep.clocks {
		if ep.clocks[i].group == group {
			return &ep.clocks[i]
		}
	}
	return nil
}

func (ep *episode) stop(group int) {
	ep.clocks = slices.DeleteFunc(ep.clocks, func(k clock) bool { return k.group == group })
}

// keepClocks carries the clocks over to a new definition, where it reads the
// condition as the old one did.
func (ep *episode) keepClocks(before, after []group) {
	kept := ep.clocks[:0]
	for _, k := range ep.clocks {
		for i := range after {
			if before[k.group].readsLike(&after[i]) {
				k.group = i
				kept = append(kept, k)
				break
			}
		}
	}
	ep.clocks = kept
}

func (n *node) episode(r *rule) *episode {
	for _, ep := range n.episodes {
		if ep.rule == r {
			return ep
		}
	}
	return nil
}

// openEpisode returns the episode between a node and a rule, opening it if there
// is none.
func (c *Core) openEpisode(n *node, r *rule) *episode {
	at, found := slices.BinarySearchFunc(n.episodes, r, func(ep *episode, r *rule) int { return compareRules(ep.rule, r) })
	if found {
		return n.episodes[at]
	}
	ep := c.newEpisode()
	*ep = episode{node: n, rule: r, seen: -1, decider: -1}
	ep.clocks = ep.first[:0]
	ep.alarm.episode, ep.place.episode = ep, ep
	n.episodes = slices.Insert(n.episodes, at, ep)
	r.episodes++
	return ep
}

// newEpisode takes a used one if there is one: episodes come and go with every
// flap of a condition.
func (c *Core) newEpisode() *episode {
	if last := len(c.closed) - 1; last >= 0 {
		ep := c.closed[last]
		c.closed = c.closed[:last]
		return ep
	}
	return &episode{}
}

// closeIfOver closes an episode of which nothing is left.
func (c *Core) closeIfOver(ep *episode) {
	if len(ep.clocks) > 0 || ep.sick || ep.active || ep.present {
		return
	}
	ep.alarm.leave()
	ep.place.leave()
	ep.node.episodes = slices.DeleteFunc(ep.node.episodes, func(other *episode) bool { return other == ep })
	if ep.rule.episodes--; ep.rule.gone {
		c.retire(ep.rule)
	}
	*ep = episode{} // it must not keep alive what it was about
	if len(c.closed) < maxClosed {
		c.closed = append(c.closed, ep)
	}
}

// maxClosed bounds how many episodes of a past storm are kept for the next.
const maxClosed = 1024

func (c *Core) setSick(ep *episode, sick bool) {
	if ep.sick == sick {
		return
	}
	ep.sick = sick
	by := -1
	if sick {
		by = 1
	}
	ep.rule.total.Sick += by
	ep.rule.zone(ep.node.zone).Sick += by
	c.touch(ep.rule)
}

func (c *Core) setRecovering(ep *episode, recovering bool) {
	if ep.recovering == recovering {
		return
	}
	ep.recovering = recovering
	by := -1
	if recovering {
		by = 1
	}
	ep.rule.total.Recovering += by
	ep.rule.zone(ep.node.zone).Recovering += by
	c.touch(ep.rule)
}

// tally counts a node in its zone, or takes it out.
func (c *Core) tally(n *node, by int) {
	for _, r := range n.rules {
		r.zone(n.zone).Selected += by
	}
	for _, r := range n.found.counted {
		r.zone(n.zone).Foreign += by
	}
	for _, ep := range n.episodes {
		if ep.sick {
			ep.rule.zone(n.zone).Sick += by
		}
		if ep.active {
			ep.rule.zone(n.zone).Treated += by
		}
		if ep.recovering {
			ep.rule.zone(n.zone).Recovering += by
		}
	}
}
