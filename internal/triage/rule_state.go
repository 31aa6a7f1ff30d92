package triage

import (
	"slices"
	"time"
)

// rule is the state of a rule: its definition and its counts in the cluster.
type rule struct {
	spec Rule
	gone bool // removed, but a response of it remains
	// treats says that the response is a treatment, which excludes other treatments of the
	// node. Otherwise it is a taint. If the rule is not set, the facts or a grant say it.
	treats bool
	definition

	total                         Counts
	zones                         map[symbol]*Counts
	waitingForGate, waitingForCap queue // episodes that wait for the gate and for the cap
	waitingForAllowance           queue // episodes that wait for the allowance
	unobserved                    queue // episodes whose latest step or taint was decided and never observed
	window                        windowState
	departed                      []*departure // deleted nodes that are not replaced yet, in the order of deletion
	departures                    queue        // all departures, in the order of decision
	unreplaced                    queue        // departures without a counted replacement
	creationTimes                 *sortedTimes // creation times of the selected nodes; nil if the cap does not need them
	episodes                      int
	isDirty                       bool
	pool                          *pool      // pool that shares the cap; nil for none
	allowance                     *Allowance // nil for no limit

	gateWasClosed bool // gate state that the unobserved episodes were last woken for
	storm         bool // the gate is closed until the cooldown is over
	calmSince     int64
	timer         queueItem // end of the cooldown
}

// definition is the compiled selector and signals of a rule.
type definition struct {
	requirements []compiledRequirement
	groups       []group
	reads        conditionMask
}

// group is the signals of a rule for one condition.
type group struct {
	condition    symbol
	name         string
	fromCreation bool
	hasDuration  bool // a signal has a duration
	signals      []signal
}

type signal struct {
	status     Status
	reason     symbol // zero for any
	evenSilent bool
	urgent     bool
	duration   time.Duration
}

func (c *Core) newRule(id RuleID) *rule {
	r := &rule{spec: Rule{ID: id}, gone: true, zones: map[symbol]*Counts{}}
	r.timer.rule, r.window.timer.rule = r, r
	c.rules[id] = r
	return r
}

// ruleOf returns the state of a rule. It creates the state of a rule that is not set, because
// its responses still count. The argument treats is the type of the response in the facts, or
// that of a new rule. A rule that is already in use keeps its type.
func (c *Core) ruleOf(id RuleID, treats bool) *rule {
	r := c.rules[id]
	if r == nil {
		r = c.newRule(id)
	}
	if r.isUnused() {
		r.treats = treats
	}
	return r
}

// setPrecedence changes the precedence of a rule, and restores every order that depends on
// it. The caller schedules the episodes of the rule again.
func (c *Core) setPrecedence(r *rule, precedence int) {
	if r.spec.Precedence == precedence {
		return
	}
	var nodes []*node // no node knows a new rule
	if r.episodes > 0 || r.total.Selected > 0 {
		nodes = c.walk()
	}
	for _, n := range nodes {
		if ep := n.episode(r); ep != nil {
			ep.waiting.leave() // the heap relies on the order, which is about to change
		}
	}
	r.spec.Precedence = precedence
	for _, n := range nodes {
		slices.SortFunc(n.rules, compareRules)
		slices.SortFunc(n.episodes, func(a, b *episode) int { return compareRules(a.rule, b.rule) })
	}
}

// load sets the definition of a rule. It releases the old definition last, so that names in
// both keep their symbols. Clocks are kept by symbol.
func (c *Core) load(r *rule, spec Rule) {
	compiled := define(spec, c.symbols.acquire)
	storm, calmSince := r.storm && spec.Bound.Cooldown > 0, r.calmSince
	c.unload(r)
	r.spec, r.gone, r.definition = spec, false, compiled
	if storm {
		r.storm, r.calmSince = true, calmSince
	}
	c.readWindow(r)
	c.index.add(r)
	c.joinPool(r, spec.Bound.Pool)
	c.markDirty(r) // its bounds may differ
}

// unload removes the definition. The responses of the rule stay.
func (c *Core) unload(r *rule) {
	if r.gone {
		return
	}
	c.index.remove(r)
	r.release(c.symbols.release)
	r.requirements, r.groups, r.gone = nil, nil, true
	r.endStorm()
	c.readWindow(r)
}

// define compiles the selector and the signals of a rule. It calls symbolOf once for each
// use of a symbol, as release expects.
func define(spec Rule, symbolOf func(name string) symbol) (d definition) {
	d.requirements = make([]compiledRequirement, 0, len(spec.Selector.requirements))
	for _, requirement := range spec.Selector.requirements {
		compiled := compiledRequirement{key: symbolOf(requirement.Key), op: requirement.Op}
		for _, value := range requirement.Values {
			compiled.values = append(compiled.values, symbolOf(value))
		}
		d.requirements = append(d.requirements, compiled)
	}
	for _, s := range spec.When.Signals {
		// A condition that the rule leaves out altogether is not unclear while it is Unknown.
		if !slices.ContainsFunc(spec.When.Signals, func(other Signal) bool { return other.Condition == s.Condition && other.For < Never }) {
			continue
		}
		at := slices.IndexFunc(d.groups, func(g group) bool { return g.name == s.Condition })
		if at < 0 {
			at = len(d.groups)
			d.groups = append(d.groups, group{condition: symbolOf(s.Condition), name: s.Condition, fromCreation: s.FromCreation})
			d.reads |= maskOf(d.groups[at].condition)
		}
		d.groups[at].hasDuration = d.groups[at].hasDuration || s.For > 0 && s.For < Never
		d.groups[at].signals = append(d.groups[at].signals,
			signal{status: s.Status, reason: symbolOf(s.Reason), evenSilent: s.EvenSilent, urgent: s.Urgent, duration: s.For})
	}
	return d
}

// release releases every symbol that define acquired.
func (d *definition) release(drop func(symbol)) {
	for _, requirement := range d.requirements {
		drop(requirement.key)
		for _, value := range requirement.values {
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

// isUnused says that the rule is not set and has no responses.
func (r *rule) isUnused() bool { return r.gone && r.episodes == 0 && r.departures.len() == 0 }

// dropIfUnused deletes the state of an unused rule. It keeps an allowance, which may be set
// before the rule.
func (c *Core) dropIfUnused(r *rule) {
	if r.isUnused() {
		c.leavePool(r)
		delete(c.rules, r.spec.ID)
		if r.allowance != nil {
			c.newRule(r.spec.ID).allowance = r.allowance
		}
	}
}

// takesSlots says whether a new response of the rule takes a slot. An occupied slot stays
// occupied until the response is gone.
func (r *rule) takesSlots() bool {
	return !r.gone && !r.spec.DryRun && (r.treats || r.spec.Response.Taint.Effect == NoExecute)
}

// waitsForRecovery says whether treatments of the rule stay for a while on a healthy node.
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
			isSame := (a.duration == Never) == (b.duration == Never) // Never decides what the group matches
			a.duration, b.duration, a.urgent, b.urgent = 0, 0, false, false
			return isSame && a == b
		})
}
