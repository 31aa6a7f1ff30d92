package triage

import (
	"slices"
	"time"
)

// rule is a rule as it is followed, with what it sees of the cluster.
type rule struct {
	spec Rule
	gone bool // removed, but a response of it is still around
	definition

	total      Counts
	zones      map[symbol]*Counts
	gate, full queue // who waits for the gate to open, and for room in the cap
	barred     queue // who waits for somebody's word
	unseen     queue // whose first step was decided and never seen
	departures queue // all of them, the first that was decided first
	unreplaced queue // those of them for which no replacement has been counted
	ages       *ages // of the selected nodes, nil unless the cap depends on them
	episodes   int
	isTouched  bool
	pool       *pool      // with whom it shares its cap, nil for nobody
	allowance  *Allowance // somebody's word, nil for none

	isShut    bool // as far as the unseen have heard, the gate is closed
	storm     bool // the gate is closed, and stays so until the cooldown is over
	calmSince int64
	alarm     ticket // the end of the cooldown
}

// definition is what a rule asks of a node, in symbols.
type definition struct {
	demands []demand
	groups  []group
	reads   conditionMask
}

// group is the signals of a rule that name one condition.
type group struct {
	condition    symbol
	name         string
	fromCreation bool
	waits        bool // some signal must stand for a while
	signals      []signal
}

type signal struct {
	status     Status
	reason     symbol // zero for any
	evenSilent bool
	stand      time.Duration
}

func (c *Core) newRule(id RuleID) *rule {
	r := &rule{spec: Rule{ID: id}, gone: true, zones: map[symbol]*Counts{}}
	r.alarm.rule = r
	c.rules[id] = r
	return r
}

// load compiles a definition into the rule. The old one is let go last, so that
// names which both use keep their symbols, by which clocks are carried over.
func (c *Core) load(r *rule, spec Rule) {
	compiled := define(spec, c.symbols.hold)
	storm, calmSince := r.storm && spec.Bound.Cooldown > 0, r.calmSince
	c.unload(r)
	r.spec, r.gone, r.definition = spec, false, compiled
	if storm {
		r.storm, r.calmSince = true, calmSince
	}
	c.index.add(r)
	c.join(r, spec.Bound.Pool)
	c.touch(r) // its bounds may be others
}

// unload takes the definition away, but not what the rule has under way.
func (c *Core) unload(r *rule) {
	if r.gone {
		return
	}
	c.index.remove(r)
	r.release(c.symbols.drop)
	r.demands, r.groups, r.gone = nil, nil, true
	r.endStorm()
}

// define compiles what a rule asks of a node. Every symbol that it needs it asks
// for once for each place that it stands in, as release gives them back.
func define(spec Rule, symbolOf func(name string) symbol) (d definition) {
	d.demands = make([]demand, 0, len(spec.Who.requirements))
	for _, requirement := range spec.Who.requirements {
		wants := demand{key: symbolOf(requirement.Key), op: requirement.Op}
		for _, value := range requirement.Values {
			wants.values = append(wants.values, symbolOf(value))
		}
		d.demands = append(d.demands, wants)
	}
	for _, s := range spec.When.Signals {
		at := slices.IndexFunc(d.groups, func(g group) bool { return g.name == s.Condition })
		if at < 0 {
			at = len(d.groups)
			d.groups = append(d.groups, group{condition: symbolOf(s.Condition), name: s.Condition, fromCreation: s.FromCreation})
			d.reads |= maskOf(d.groups[at].condition)
		}
		d.groups[at].waits = d.groups[at].waits || s.For > 0
		d.groups[at].signals = append(d.groups[at].signals,
			signal{status: s.Status, reason: symbolOf(s.Reason), evenSilent: s.EvenSilent, stand: s.For})
	}
	return d
}

// release gives back every symbol that define has asked for.
func (d *definition) release(drop func(symbol)) {
	for _, wants := range d.demands {
		drop(wants.key)
		for _, value := range wants.values {
			drop(value)
		}
	}
	for _, g := range d.groups {
		drop(g.condition)
		for _, s := range g.signals {
			drop(s.reason)
		}
	}
}

// retire forgets a rule of which nothing is left but what is told before the rule is.
func (c *Core) retire(r *rule) {
	if r.gone && r.episodes == 0 && r.departures.len() == 0 {
		c.leavePool(r)
		delete(c.rules, r.spec.ID)
		if r.allowance != nil {
			c.newRule(r.spec.ID).allowance = r.allowance
		}
	}
}

// treats says whether the rule's response takes the whole node.
func (r *rule) treats() bool { return r.spec.ID.Kind != ConditionSet }

// takesPlaces says whether what the rule begins takes a place. One that was taken
// does not ask: it is held until the response is gone.
func (r *rule) takesPlaces() bool {
	return !r.gone && !r.spec.DryRun && (r.treats() || r.spec.Response.Taint.Effect == NoExecute)
}

// waitsForRecovery says whether a treatment of the rule stays on a node that is not
// sick any more.
func (r *rule) waitsForRecovery() bool {
	return !r.gone && !r.spec.DryRun && r.spec.Recovery != Recovery{}
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

func (g *group) readsLike(other *group) bool {
	return g.name == other.name && g.fromCreation == other.fromCreation &&
		slices.EqualFunc(g.signals, other.signals, func(a, b signal) bool {
			a.stand, b.stand = 0, 0
			return a == b
		})
}
