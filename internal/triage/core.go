package triage

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// Core keeps the facts, the rules and the decisions of one cluster. Its zero
// value is of no use; see [New].
type Core struct {
	now    int64
	loaded bool

	symbols     symbols
	agentSilent symbol
	ready       symbol

	nodes     map[string]*node
	everybody []*node        // the same, for who looks at all: a map is slow to walk through
	reported  map[symbol]int // how many rows of nodes have a condition type

	rules map[RuleID]*rule
	pools map[string]*pool
	index selectorIndex

	alarms       queue // what time alone will change
	candidates   queue // who may be served in this round
	touched      []*rule
	vacancies    map[*departure]bool // of nodes that have gone
	controlPlane controlPlane
	woken        []*node
	wokenHead    int
	closed       []*episode // to be used again
	work         Work
}

// Work counts what the core has done, so that tests can hold its cost to what
// has changed.
type Work struct {
	Judged  int // times that a rule was held against a node
	Touched int // times that a node was named as woken
	Walked  int // nodes that were looked at in a walk through all of them
}

// Counts are the nodes of a population.
type Counts struct {
	Selected, Sick, Treated int
	// Recovering are selected and not sick, and their treatment is not gone yet. The
	// gate counts them with the sick.
	Recovering int
	// Departed are gone, and their place is kept for a replacement. The gate counts
	// them with the sick, and with the selected nodes.
	Departed int
	// Foreign are selected, are not among Treated, and have a NoExecute taint with the
	// key of the rule that this system cannot prove to be its own. The cap counts them
	// with the treated.
	Foreign int
}

// Unwell is how many nodes the gate counts.
func (n Counts) Unwell() int { return n.Sick + n.Recovering + n.Departed }

// Ailing says what those are whom the gate counts.
func (n Counts) Ailing() string { return ailing(n.Recovering, n.Departed) }

// Meant is of how many nodes: those that are selected, and those that are to be
// replaced. So when a node goes that is in treatment, the gate counts what it counted
// before, and allows as many; had it been counted among those that it is a share of no
// more, a gate in shares or in healthy nodes would close by that alone. A node that was
// no longer selected is counted from when it goes. That cannot open a gate either: one
// node more of those that there should be lets no more than one more be sick.
func (n Counts) Meant() int { return n.Selected + n.Departed }

// Population is what a rule sees of the cluster.
type Population struct {
	Counts
	// Zones splits the counts by zone. A node that has gone and keeps its place is
	// in no zone.
	Zones map[string]Counts
	// Gate and Cap are how many may be unwell and in treatment now, -1 for any
	// number.
	Gate, Cap int
	// Pooled is how many are in treatment of those whom the cap counts: under this
	// rule, with its foreign taints, and under all that share it.
	Pooled int
	// Storm says that the gate of a rule with a cooldown is closed: by more nodes
	// than it allows, or since CalmSince by fewer, until CalmUntil.
	Storm                bool
	CalmSince, CalmUntil time.Time
}

// Grant is a decision that holds a place.
type Grant struct {
	Rule  RuleID
	Node  string
	UID   string
	Step  int
	Since time.Time
	Gone  time.Time // when the node went, zero while it is there

	ControlPlane bool // the node is, or was, one of the control plane
	Replaced     bool // its replacement has been counted
	Deletes      bool // the treatment is going to delete the node

	// Pool is the one that the rule shares its caps in. Whoever takes the grant up asks
	// for it only if the rule is gone: what it has under way counts there still.
	Pool string
}

// New returns a core that knows nothing yet.
func New() *Core {
	c := &Core{
		symbols:  symbols{ids: map[string]symbol{}},
		nodes:    map[string]*node{},
		reported: map[symbol]int{},
		rules:    map[RuleID]*rule{},
		pools:    map[string]*pool{},

		vacancies: map[*departure]bool{},
		index:     selectorIndex{byLabel: map[label][]*rule{}},
	}
	c.symbols.hold("")
	c.agentSilent = c.symbols.hold(AgentSilent)
	c.ready = c.symbols.hold(Ready)
	c.controlPlane.holders = map[string]int{}
	return c
}

// SetRule adds a rule or changes it. A changed rule keeps its running responses,
// unless it is on dry run, and the clocks of the conditions that it reads as
// before.
func (c *Core) SetRule(now time.Time, spec Rule) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	c.pass(now)
	r := c.rules[spec.ID]
	if r != nil && !r.gone && reflect.DeepEqual(r.spec, spec) {
		c.decide()
		return nil
	}
	if r == nil {
		r = c.newRule(spec.ID)
	}
	c.change(r, func() { c.load(r, spec.clone()) })
	c.decide()
	return nil
}

// RemoveRule drops a rule. Its responses are to be taken back.
func (c *Core) RemoveRule(now time.Time, id RuleID) {
	c.pass(now)
	if r := c.rules[id]; r != nil {
		r.allowance = nil
		if !r.gone {
			c.change(r, func() { c.unload(r) })
		}
		c.retire(r)
	}
	c.decide()
}

// change replaces a rule's definition and judges every node that it selected or
// now selects, and with that reconsiders everybody who waits under it.
func (c *Core) change(r *rule, redefine func()) {
	before := r.groups
	redefine()
	r.ages = nil
	var ages []int64
	for _, n := range c.walk() {
		was, is := n.selectedBy(r), !r.gone && r.selects(n)
		ep := n.episode(r)
		if !was && !is && ep == nil {
			continue
		}
		c.selectNode(n, r, was, is)
		c.countForeign(n)
		if is && r.countsAges() {
			ages = append(ages, n.age())
		}
		if ep != nil {
			ep.keepClocks(before, r.groups)
			c.refit(ep)
		}
		c.judge(n, r, is, true)
		if ep != nil || n.episode(r) != nil {
			c.wake(n)
		}
	}
	if r.countsAges() {
		r.ages = newAges(ages)
	}
	slices.SortFunc(c.woken[c.wokenHead:], func(a, b *node) int { return strings.Compare(a.name, b.name) })
}

// walk returns all nodes, and counts that they are looked at. Questions that change
// nothing may be asked at the same time, so they do not count.
func (c *Core) walk() []*node {
	c.work.Walked += len(c.everybody)
	return c.everybody
}

// Abandon tells that a response which was decided is not on the node and is not
// on its way: its place is free at once. If it is still wanted, it is decided
// again no sooner than after retry, and its turn counts from then; with no retry
// it may be decided again at once, and in its old turn. Where the facts show the
// response, Abandon does nothing: the next observation will tell. Where they show
// an earlier step of it only, that one keeps the place, and the step after it is
// what is decided again.
func (c *Core) Abandon(now time.Time, node string, id RuleID, retry time.Duration) {
	c.pass(now)
	if ep := c.episode(node, id); ep != nil && ep.active && (!ep.placed || ep.unseen()) {
		if ep.placed {
			c.stepBack(ep)
		} else {
			c.deactivate(ep)
		}
		ep.notBefore = min(ep.notBefore, c.now) // that is its old turn
		if retry > 0 {
			ep.notBefore = later(c.now, retry)
		}
		c.consider(ep)
		c.wake(ep.node)
		c.closeIfOver(ep)
	}
	c.decide()
}

// Resume takes up a decision of an earlier process that may be on its way still, or
// whose node has gone. To be told of the same departure again changes nothing while its
// place is kept; once that is free it is another one.
func (c *Core) Resume(now time.Time, g Grant) {
	c.pass(now)
	n, r := c.nodes[g.Node], c.ruleOf(g.Rule)
	if n != nil && n.uid != g.UID {
		n = nil
	}
	if r.gone && g.Pool != "" {
		c.join(r, g.Pool)
	}
	switch {
	case !g.Gone.IsZero():
		c.resumeVacancy(r, g)
	case n == nil:
		if !r.gone && !g.Replaced && (g.Deletes || r.terminates(r.fit(g.Step))) {
			g.Gone = instant(c.now)
			c.resumeVacancy(r, g)
		}
	default:
		ep := c.openEpisode(n, r)
		if !ep.active {
			c.activate(ep, r.fit(g.Step), nanos(g.Since))
			c.judge(n, r, n.selectedBy(r), true)
			c.wake(n)
		} else if step := r.fit(g.Step); !r.gone && step > ep.step { // the facts show an earlier one
			c.setStep(ep, step, nanos(g.Since))
			c.consider(ep)
			c.wake(n)
		}
		if d := ep.departure; d != nil {
			d.replaced = g.Replaced
			if !g.Replaced {
				d.by = nil
			}
			d.enqueue()
		}
	}
	c.retire(r)
	c.decide()
}

func (c *Core) resumeVacancy(r *rule, g Grant) {
	gone := nanos(g.Gone)
	isKnown := func(e entry) bool {
		d := e.ticket.departure
		return d.episode == nil && d.node == g.Node && d.uid == g.UID
	}
	if later(gone, ReplacementWait) <= c.now || slices.ContainsFunc(r.departures.entries, isKnown) {
		return // it has waited long enough, or does so already
	}
	d := newDeparture(r, g.Node, g.UID, g.Step)
	d.since, d.controlPlane = nanos(g.Since), g.ControlPlane
	c.depart(d, gone)
}

// ResumeStorm takes up a storm that an earlier process saw, and since when it was
// over; zero if it was not. It is for a rule that has been told, before Loaded:
// afterwards the rule may have begun something already. A storm that is on stays
// what it is, and a rule without a cooldown has none.
func (c *Core) ResumeStorm(now time.Time, id RuleID, calmSince time.Time) {
	c.pass(now)
	if r := c.rules[id]; r != nil && !r.gone && r.spec.Bound.Cooldown > 0 && !r.storm {
		r.storm, r.calmSince = true, min(nanos(calmSince), c.now)
		c.touch(r)
	}
	c.decide()
}

// Loaded tells that all rules and nodes have been told. Decisions begin here.
func (c *Core) Loaded(now time.Time) {
	c.pass(now)
	c.loaded = true
	c.decide()
}

// Advance tells that time has passed.
func (c *Core) Advance(now time.Time) {
	c.pass(now)
	c.decide()
}

// pass lets time strike. It never runs backwards.
func (c *Core) pass(now time.Time) {
	c.now = max(c.now, nanos(now))
	for c.alarms.len() > 0 && c.alarms.first().at <= c.now {
		switch t := c.alarms.pop(); {
		case t.departure != nil:
			c.fill(t.departure)
		case t.rule != nil:
			c.touch(t.rule)
		default:
			c.consider(t.episode)
			c.wake(t.episode.node)
		}
	}
}

// Deadline is when to call Advance, if nothing else happens before.
func (c *Core) Deadline() (at time.Time, ok bool) {
	if c.alarms.len() == 0 {
		return time.Time{}, false
	}
	return instant(c.alarms.first().at), true
}

// NextWoken names a node whose plan may ask for something else than before. It
// names each once, and nothing when all have been named.
func (c *Core) NextWoken() (name string, ok bool) {
	for c.wokenHead < len(c.woken) {
		n := c.woken[c.wokenHead]
		c.woken[c.wokenHead] = nil
		c.wokenHead++
		n.isWoken = false
		if !n.forgotten {
			return n.name, true
		}
	}
	c.woken, c.wokenHead = c.woken[:0], 0
	return "", false
}

func (c *Core) wake(n *node) {
	if !n.isWoken {
		n.isWoken = true
		c.woken = append(c.woken, n)
		c.work.Touched++
	}
}

// Work returns how much has been done so far.
func (c *Core) Work() Work { return c.work }

// Population returns what a rule sees of the cluster.
func (c *Core) Population(id RuleID) (Population, bool) {
	r := c.rules[id]
	if r == nil || r.gone {
		return Population{}, false
	}
	p := Population{Counts: r.total, Zones: make(map[string]Counts, len(r.zones)), Gate: -1, Cap: -1, Pooled: r.inTreatment()}
	for zone, counts := range r.zones {
		if *counts != (Counts{}) {
			p.Zones[c.symbols.name(zone)] = *counts
		}
	}
	if r.spec.Bound.Gate != nil {
		p.Gate = r.spec.Bound.Gate.Of(r.total.Meant())
	}
	if r.spec.Bound.Cap != nil {
		p.Cap = r.spec.Bound.Cap.Of(r.basis())
	}
	p.Storm, p.CalmSince, p.CalmUntil = r.storm, instant(r.calmSince), instant(r.calmUntil())
	return p, true
}

// Grants returns every decision that holds a place, in the order of rules and
// nodes: what an heir needs to know beside the facts.
func (c *Core) Grants() []Grant {
	var grants []Grant
	for _, n := range c.walk() {
		for _, ep := range n.episodes {
			if ep.active {
				grants = append(grants, Grant{
					Rule: ep.rule.spec.ID, Node: n.name, UID: n.uid, Step: ep.step, Since: instant(ep.stepSince),
					ControlPlane: n.controlPlane, Replaced: ep.departure != nil && ep.departure.replaced, Deletes: ep.deletes,
					Pool: ep.rule.poolName(),
				})
			}
		}
	}
	for d := range c.vacancies {
		grants = append(grants, d.grant())
	}
	slices.SortFunc(grants, compareGrants)
	return grants
}

// Departures returns those of the grants whose node has gone. To ask for them costs
// nothing while there are none.
func (c *Core) Departures() []Grant {
	if len(c.vacancies) == 0 {
		return nil
	}
	grants := make([]Grant, 0, len(c.vacancies))
	for d := range c.vacancies {
		grants = append(grants, d.grant())
	}
	slices.SortFunc(grants, compareGrants)
	return grants
}

func compareGrants(a, b Grant) int {
	if byRule := a.Rule.compare(b.Rule); byRule != 0 {
		return byRule
	}
	if byName := strings.Compare(a.Node, b.Node); byName != 0 {
		return byName
	}
	return strings.Compare(a.UID, b.UID)
}

func (c *Core) episode(node string, id RuleID) *episode {
	n, r := c.nodes[node], c.rules[id]
	if n == nil || r == nil {
		return nil
	}
	return n.episode(r)
}
