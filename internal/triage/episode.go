package triage

import "slices"

// episode is the state of a rule on a node. It opens when a condition begins to match or
// when the facts show a response. It closes when neither is left. Healthy nodes have none.
type episode struct {
	node         *node
	rule         *rule
	clocks       []clock
	inlineClocks [2]clock // storage for the clocks of most rules

	verdict       verdict
	unhealthy     bool
	eligible      int64 // valid while the verdict is holds
	urgentAt      int64 // from when an urgent signal lets it ignore the window; 0 for never
	decidingGroup int   // the group that decides eligible

	active         bool   // the response occupies a slot
	present        bool   // the facts show a response
	slotObserved   bool   // the facts show a response that occupies a slot
	observedEffect Effect // strongest taint of the rule in the facts
	step           int
	observedStep   int // highest step in the facts when they last showed a step; -1 for never
	stepSince      int64
	failed         bool
	notBefore      int64
	paced          int64 // the interval of the pace that counts the decision; 0 if its place is not given back

	terminates bool // the decided step is a termination
	deletes    bool // a treatment in the facts is going to delete the node
	departure  *departure

	recovering      bool  // selected and healthy, but the treatment still exists
	notMatchedSince int64 // when the rule last changed to not matched
	healthySince    int64 // when the recovery delay began; 0 if there is none

	timer, waiting queueItem
	waitsForRail   bool // it waits in a queue of the rails
}

// clock holds since when a group has matched.
type clock struct {
	start
	group int
}

// start is the start of a clock.
type start struct {
	since int64
	// derivableFrom is the transition time from which a restarted core would derive the same
	// start. It is notDerivable if a restarted core would derive another start.
	derivableFrom int64
}

const notDerivable int64 = -1

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

// keepClocks keeps the clocks of the conditions that the new definition matches as the old
// one did.
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

// openEpisode returns the episode of a rule on a node, and creates it if necessary.
func (c *Core) openEpisode(n *node, r *rule) *episode {
	at, found := slices.BinarySearchFunc(n.episodes, r, func(ep *episode, r *rule) int { return compareRules(ep.rule, r) })
	if found {
		return n.episodes[at]
	}
	ep := c.newEpisode()
	*ep = episode{node: n, rule: r, observedStep: -1, decidingGroup: -1}
	ep.clocks = ep.inlineClocks[:0]
	ep.timer.episode, ep.waiting.episode = ep, ep
	n.episodes = slices.Insert(n.episodes, at, ep)
	r.episodes++
	return ep
}

// newEpisode reuses a closed episode, because episodes open and close with every flap of a
// condition.
func (c *Core) newEpisode() *episode {
	if last := len(c.freeEpisodes) - 1; last >= 0 {
		ep := c.freeEpisodes[last]
		c.freeEpisodes = c.freeEpisodes[:last]
		return ep
	}
	return &episode{}
}

// closeIfOver closes an episode without clocks and responses.
func (c *Core) closeIfOver(ep *episode) {
	if len(ep.clocks) > 0 || ep.unhealthy || ep.active || ep.present {
		return
	}
	ep.timer.leave()
	ep.waiting.leave()
	ep.node.episodes = slices.DeleteFunc(ep.node.episodes, func(other *episode) bool { return other == ep })
	if ep.rule.episodes--; ep.rule.gone {
		c.dropIfUnused(ep.rule)
	}
	*ep = episode{} // release its pointers
	if len(c.freeEpisodes) < maxFreeEpisodes {
		c.freeEpisodes = append(c.freeEpisodes, ep)
	}
}

// maxFreeEpisodes limits how many closed episodes are kept after a storm.
const maxFreeEpisodes = 1024

func (c *Core) setUnhealthy(ep *episode, unhealthy bool) {
	if ep.unhealthy == unhealthy {
		return
	}
	ep.unhealthy = unhealthy
	by := -1
	if unhealthy {
		by = 1
	}
	if n := ep.node; unhealthy {
		if n.unhealthy++; n.unhealthy == 1 {
			c.rails.unhealthy++
		}
	} else if n.unhealthy--; n.unhealthy == 0 {
		c.rails.unhealthy--
	}
	ep.rule.total.Unhealthy += by
	ep.rule.zone(ep.node.zone).Unhealthy += by
	c.markDirty(ep.rule)
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
	c.markDirty(ep.rule)
}

// countInZone adds a node to the counts of its zone, or removes it.
func (c *Core) countInZone(n *node, by int) {
	for _, r := range n.rules {
		r.zone(n.zone).Selected += by
	}
	for _, r := range n.extra.countedBy {
		r.zone(n.zone).Foreign += by
	}
	for _, ep := range n.episodes {
		if ep.unhealthy {
			ep.rule.zone(n.zone).Unhealthy += by
		}
		if ep.active {
			ep.rule.zone(n.zone).Treated += by
		}
		if ep.recovering {
			ep.rule.zone(n.zone).Recovering += by
		}
	}
}
