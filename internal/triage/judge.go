package triage

import (
	"slices"
	"time"
)

// verdict is what a rule or one of its groups says of a node.
type verdict uint8

const (
	no verdict = iota
	unclear
	holds
)

// rule is a rule as it is followed, with what it sees of the cluster.
type rule struct {
	spec    Rule
	gone    bool // removed, but a response of it is still around
	demands []demand
	groups  []group
	reads   conditionMask

	total      Counts
	zones      map[symbol]*Counts
	gate, full queue // who waits for the gate to open, and for room in the cap
	departures []*departure
	episodes   int
	isTouched  bool
}

// group is the signals of a rule that name one condition.
type group struct {
	condition    symbol
	name         string
	fromCreation bool
	signals      []signal
}

type signal struct {
	status     Status
	reason     symbol // zero for any
	evenSilent bool
	stand      time.Duration
}

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
	seen      int // highest step that the facts have shown, -1 for none
	stepSince int64
	failed    bool
	notBefore int64
	departure *departure

	alarm, place ticket
}

// clock tells since when a group has stood.
type clock struct {
	since   int64
	group   int
	carried bool // the node's own stamps would tell a later start
}

func (c *Core) newRule(id RuleID) *rule {
	r := &rule{spec: Rule{ID: id}, gone: true, zones: map[symbol]*Counts{}}
	c.rules[id] = r
	return r
}

// load compiles a definition into the rule. The old one is let go last, so that
// names which both use keep their symbols, by which clocks are carried over.
func (c *Core) load(r *rule, spec Rule) {
	demands := make([]demand, 0, len(spec.Who.requirements))
	for _, requirement := range spec.Who.requirements {
		d := demand{key: c.symbols.hold(requirement.Key), op: requirement.Op}
		for _, value := range requirement.Values {
			d.values = append(d.values, c.symbols.hold(value))
		}
		demands = append(demands, d)
	}
	var groups []group
	var reads conditionMask
	for _, s := range spec.When.Signals {
		at := slices.IndexFunc(groups, func(g group) bool { return g.name == s.Condition })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{condition: c.symbols.hold(s.Condition), name: s.Condition, fromCreation: s.FromCreation})
			reads |= maskOf(groups[at].condition)
		}
		groups[at].signals = append(groups[at].signals,
			signal{status: s.Status, reason: c.symbols.hold(s.Reason), evenSilent: s.EvenSilent, stand: s.For})
	}
	c.unload(r)
	r.spec, r.gone, r.demands, r.groups, r.reads = spec, false, demands, groups, reads
	c.index.add(r)
}

// unload takes the definition away, but not what the rule has under way.
func (c *Core) unload(r *rule) {
	if r.gone {
		return
	}
	c.index.remove(r)
	for _, d := range r.demands {
		c.symbols.drop(d.key)
		for _, value := range d.values {
			c.symbols.drop(value)
		}
	}
	for _, g := range r.groups {
		c.symbols.drop(g.condition)
		for _, s := range g.signals {
			c.symbols.drop(s.reason)
		}
	}
	r.demands, r.groups, r.gone = nil, nil, true
}

// retire forgets a rule of which nothing is left.
func (c *Core) retire(r *rule) {
	if r.gone && r.episodes == 0 && len(r.departures) == 0 {
		delete(c.rules, r.spec.ID)
	}
}

// treats says whether the rule's response takes the whole node.
func (r *rule) treats() bool { return r.spec.ID.Kind != ConditionSet }

// takesPlace says whether the rule's response is counted. Of a rule that is gone
// the stronger is assumed.
func (r *rule) takesPlace() bool {
	return r.treats() || r.gone || r.spec.Response.Taint.Effect == NoExecute
}

func (r *rule) terminates(step int) bool {
	steps := r.spec.Response.Ladder
	return step >= 0 && step < len(steps) && steps[step].Action == Terminate
}

func (r *rule) zone(zone symbol) *Counts {
	counts := r.zones[zone]
	if counts == nil {
		counts = &Counts{}
		r.zones[zone] = counts
	}
	return counts
}

// judgeGroup says whether the group holds for the node, and for how long it must.
func (c *Core) judgeGroup(g *group, n *node) (v verdict, stand time.Duration, row *condition) {
	if g.fromCreation && n.initialized {
		return no, 0, nil
	}
	row = n.condition(g.condition)
	var status Status
	var reason symbol
	if row != nil {
		status, reason = row.status, row.reason
	}
	specific := false // a signal that names the reason decides over one that takes any
	for i := range g.signals {
		s := &g.signals[i]
		if s.status != status || s.reason != 0 && s.reason != reason ||
			status == Unknown && reason == c.agentSilent && !s.evenSilent {
			continue
		}
		names := s.reason != 0
		if v != holds || names && !specific || names == specific && s.stand < stand {
			v, stand, specific = holds, s.stand, names
		}
	}
	if v == no && status == Unknown {
		v = unclear
	}
	return v, stand, row
}

// overall joins the verdicts of the groups.
func (r *rule) overall(holding, open int) verdict {
	switch all := len(r.groups); {
	case r.spec.When.All && holding == all, !r.spec.When.All && holding > 0:
		return holds
	case r.spec.When.All && holding+open == all, !r.spec.When.All && open > 0:
		return unclear
	default:
		return no
	}
}

// judge holds a rule against a node. First says that this definition of the rule
// has not met the node before.
func (c *Core) judge(n *node, r *rule, selected, first bool) {
	c.work.Judged++
	ep := n.episode(r)
	outcome, eligible, decider := no, int64(0), -1
	if selected {
		var holding, open int
		for i := range r.groups {
			g := &r.groups[i]
			v, stand, row := c.judgeGroup(g, n)
			if v == no {
				if ep != nil {
					ep.stop(i)
				}
				continue
			}
			running := ep.clock(i)
			if running == nil {
				if start, carried, ok := c.start(n, r, g, v, row, first); ok {
					ep = c.openEpisode(n, r)
					ep.clocks = append(ep.clocks, clock{since: start, group: i, carried: carried})
					running = ep.clock(i)
				}
			} else if row != nil && row.moved && !g.fromCreation {
				running.carried = true
			}
			if v == unclear {
				open++
				continue
			}
			holding++
			at := later(running.since, stand)
			if decider < 0 || r.spec.When.All && at > eligible || !r.spec.When.All && at < eligible {
				eligible, decider = at, i
			}
		}
		outcome = r.overall(holding, open)
	} else if ep != nil {
		ep.clocks = ep.clocks[:0]
	}
	if ep == nil {
		return
	}
	sick := outcome == holds
	if outcome == unclear {
		sick = ep.sick
		if first { // it was sick if somebody has acted on it, or if its clocks say so
			sick = ep.active || ep.present || r.overall(len(ep.clocks), 0) == holds
		}
	}
	ep.verdict, ep.eligible, ep.decider = outcome, eligible, decider
	c.setSick(ep, sick)
	c.consider(ep)
	c.closeIfOver(ep)
}

// start says whether a clock begins to run, and from when.
func (c *Core) start(n *node, r *rule, g *group, v verdict, row *condition, first bool) (since int64, carried, ok bool) {
	if g.fromCreation {
		return n.created, false, v == holds
	}
	if !first {
		return c.now, false, v == holds
	}
	since, stamp := c.now, int64(0)
	if row != nil {
		since, stamp = row.changed, row.transition
	}
	for _, m := range n.found.memories {
		if m.Rule == r.spec.ID && m.Condition == g.name && nanos(m.Transition) == stamp {
			return min(nanos(m.Since), c.now), true, true
		}
	}
	return since, false, v == holds
}

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

func (g *group) readsLike(other *group) bool {
	return g.name == other.name && g.fromCreation == other.fromCreation &&
		slices.EqualFunc(g.signals, other.signals, func(a, b signal) bool {
			a.stand, b.stand = 0, 0
			return a == b
		})
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

// tally counts a node in its zone, or takes it out.
func (c *Core) tally(n *node, by int) {
	for _, r := range n.rules {
		r.zone(n.zone).Selected += by
	}
	for _, ep := range n.episodes {
		if ep.sick {
			ep.rule.zone(n.zone).Sick += by
		}
		if ep.active {
			ep.rule.zone(n.zone).Treated += by
		}
	}
}
