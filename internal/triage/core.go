package triage

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// Core holds the facts, the rules and the decisions of one cluster. Create it with [New].
type Core struct {
	now    int64
	loaded bool

	symbols     symbols
	agentSilent symbol
	ready       symbol

	nodes    map[string]*node
	allNodes []*node        // the values of nodes; a slice is faster to iterate
	youngest queue          // the values of nodes, youngest first
	reported map[symbol]int // number of reported conditions by type
	absent   map[*node][]absentCondition

	rules map[RuleID]*rule
	keeps map[Kind]func(RuleID) bool // see Keep
	pools map[string]*pool
	index selectorIndex

	timers              queue // changes that happen by time alone
	windows             queue // rules whose window opens or closes
	candidates          queue // episodes that may begin in this call
	escalating          queue // treatments whose next step may begin in this call
	dirty               []*rule
	awaitingReplacement map[*departure]bool // departures of deleted nodes
	controlPlane        controlPlane
	rails               railState
	woken               []*node
	wokenHead           int
	freeEpisodes        []*episode // closed episodes for reuse
	work                Work
}

// Work counts the operations of the core. Tests use it to check that the cost follows the
// size of a change.
type Work struct {
	Judged  int // evaluations of a rule against a node
	Touched int // nodes added to the woken list
	Walked  int // nodes visited in loops over all nodes
	Young   int // nodes visited in loops over those that were created after a decision
}

// Counts are numbers of nodes under a rule: selected, unhealthy and in treatment.
type Counts struct {
	Selected, Unhealthy, Treated int
	// Recovering nodes are selected and healthy, but their treatment still exists. The gate
	// counts them as unhealthy.
	Recovering int
	// Departed nodes are deleted and occupy a slot until they are replaced. The gate counts
	// them as unhealthy and as selected.
	Departed int
	// Foreign nodes are selected, not Treated, and have a NoExecute taint with the key of
	// the rule that Autohealer cannot prove to be its own. The cap counts them as treated.
	Foreign int
}

// GateUnhealthy is the number of nodes that the gate counts as unhealthy.
func (n Counts) GateUnhealthy() int { return n.Unhealthy + n.Recovering + n.Departed }

// GateUnhealthyText describes in words the nodes that the gate counts as unhealthy.
func (n Counts) GateUnhealthyText() string { return unhealthyText(n.Recovering, n.Departed) }

// GateTotal is the number of nodes that the limit of the gate refers to: the selected nodes and
// the deleted nodes that are not replaced yet. So the gate does not change when a node in
// treatment is deleted. Without the deleted nodes, a gate with a percentage or with a
// minimum of healthy nodes would close by the deletion alone. A node that the rule no longer
// selected is counted from its deletion on. That cannot open a gate: one more node raises
// the limit by at most one.
func (n Counts) GateTotal() int { return n.Selected + n.Departed }

// Population is the state of a rule across the cluster.
type Population struct {
	Counts
	// Zones splits the counts by zone. Deleted nodes are in no zone.
	Zones map[string]Counts
	// Gate and Cap are the limits in nodes for unhealthy nodes and for nodes in treatment.
	// -1 means no limit.
	Gate, Cap int
	// Pooled is the number of occupied slots that the cap counts: those of this rule with
	// its foreign taints, and those of all rules in its pool.
	Pooled int
	// Storm says that the gate of a rule with a cooldown is closed. Either the gate is
	// exceeded, or it has not been exceeded since CalmSince and stays closed until
	// CalmUntil.
	Storm                bool
	CalmSince, CalmUntil time.Time
}

// Grant is a decision that occupies a slot.
type Grant struct {
	Rule  RuleID
	Node  string
	UID   string
	Step  int
	Since time.Time
	Gone  time.Time // when the node was deleted; zero while it exists

	ControlPlane bool // the node is, or was, a control-plane node
	Replaced     bool // a replacement has been counted for the node
	Deletes      bool // the treatment is going to delete the node

	// ReadyNeeded is for a deleted node: how many nodes that the rule selects, and that were
	// created after the decision, must have been ready, so that one of them replaces the
	// node. The others were ready before, or replace other nodes. 0 means unknown.
	ReadyNeeded int
	// Topology has the labels of the node that the rails name, for example "zone=a,rack=7".
	Topology string
	// Pool is the pool of the rule. [Core.Resume] uses it only if the rule is removed,
	// because its treatments still count in that pool.
	Pool string
	// Taint says that the response is a taint, not a treatment.
	Taint bool
	// Closes says that the decision is only to close the node to new pods, with taints of any
	// rule.
	Closes bool
}

// New returns an empty core.
func New() *Core {
	c := &Core{
		symbols:  symbols{ids: map[string]symbol{}},
		nodes:    map[string]*node{},
		absent:   map[*node][]absentCondition{},
		reported: map[symbol]int{},
		rules:    map[RuleID]*rule{},
		pools:    map[string]*pool{},

		awaitingReplacement: map[*departure]bool{},
		index:               selectorIndex{assignedOnly: map[RuleID]*rule{}, byLabel: map[label][]*rule{}},
	}
	c.symbols.acquire("")
	c.agentSilent = c.symbols.acquire(AgentSilent)
	c.ready = c.symbols.acquire(Ready)
	c.controlPlane.holders = map[string]int{}
	c.rails.init()
	return c
}

// SetRule adds or changes a rule. A changed rule keeps its responses, except on dry run. It
// also keeps the clocks of the conditions that it matches as before. It cannot change between
// a taint and a ladder: that needs another ID, or [Core.RemoveRule] and the end of its
// responses.
func (c *Core) SetRule(now time.Time, spec Rule) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	c.advanceTo(now)
	defer c.decide()
	r := c.ruleOf(spec.ID, spec.Response.Taint == nil)
	switch {
	case r.treats != (spec.Response.Taint == nil):
		return &FieldError{Field: "response", Value: spec.ID.String(), Problem: "a rule cannot change between a taint and a ladder; want another name"}
	case r.gone || !reflect.DeepEqual(r.spec, spec):
		c.change(r, spec.Precedence, func() { c.load(r, spec.clone()) })
	}
	return nil
}

// RemoveRule removes a rule. The plans then release its responses.
func (c *Core) RemoveRule(now time.Time, id RuleID) {
	c.advanceTo(now)
	if r := c.rules[id]; r != nil {
		r.allowance = nil
		if !r.gone {
			c.change(r, 0, func() { c.unload(r) })
		}
		c.dropIfUnused(r)
	}
	c.decide()
}

// Keep tells the core which rules of a kind cannot be read now: keeps reports whether a rule
// that is not set may exist nevertheless. The core plans the taints and memories of such a
// rule as the facts show them, instead of releasing them. It calls off a decided NoExecute
// taint that the facts do not show. The caller calls Keep again
// whenever an answer of keeps has changed.
func (c *Core) Keep(now time.Time, kind Kind, keeps func(RuleID) bool) {
	c.advanceTo(now)
	if c.keeps == nil {
		c.keeps = map[Kind]func(RuleID) bool{}
	}
	c.keeps[kind] = keeps
	for _, n := range c.walk() {
		if len(n.extra.taints) > 0 || len(n.extra.memories) > 0 {
			c.wake(n)
		}
	}
	c.sortWoken()
	c.decide()
}

// isKept reports whether a rule is not set because it cannot be read now.
func (c *Core) isKept(id RuleID) bool {
	if r := c.rules[id]; r != nil && !r.gone {
		return false
	}
	keeps := c.keeps[id.Kind]
	return keeps != nil && keeps(id)
}

// sortWoken sorts the woken nodes after a loop over all nodes.
func (c *Core) sortWoken() {
	slices.SortFunc(c.woken[c.wokenHead:], func(a, b *node) int { return strings.Compare(a.name, b.name) })
}

// change replaces the definition of a rule and evaluates every node that the rule selected
// or now selects.
func (c *Core) change(r *rule, precedence int, redefine func()) {
	c.setPrecedence(r, precedence)
	before := r.groups
	redefine()
	r.creationTimes = nil
	var times []int64
	for _, n := range c.walk() {
		was, is := n.selectedBy(r), !r.gone && r.selects(n)
		ep := n.episode(r)
		if !was && !is && ep == nil {
			continue
		}
		c.selectNode(n, r, was, is)
		c.countForeign(n)
		if is && r.needsCreationTimes() {
			times = append(times, n.countedCreation())
		}
		if ep != nil {
			ep.keepClocks(before, r.groups)
			c.adaptResponse(ep)
		}
		c.evaluate(n, r, is, true)
		if ep != nil || n.episode(r) != nil {
			c.wake(n)
		}
	}
	if r.needsCreationTimes() {
		r.creationTimes = newSortedTimes(times)
	}
	c.sortWoken()
}

// walk returns all nodes and counts them as visited. Read-only methods may run concurrently,
// so they do not use it.
func (c *Core) walk() []*node {
	c.work.Walked += len(c.allNodes)
	return c.allNodes
}

// Abandon reports that a decided response is neither on the node nor in flight. Its slot
// becomes free at once, and its place in the pace too, unless [Core.NoteSent] was called. If the
// rule still wants the response, the core decides it again after retry, and its turn counts from
// then. Without retry the core may decide it again at once, in its old turn.
//
// Abandon does nothing if the facts show the response. If the facts show only an earlier
// step, that step keeps the slot, and the step after it is decided again.
func (c *Core) Abandon(now time.Time, node string, id RuleID, retry time.Duration) {
	c.advanceTo(now)
	if ep := c.episode(node, id); ep != nil && ep.active && (!ep.slotObserved || ep.isUnobserved()) {
		c.abandon(ep, retry)
		if !ep.rule.treats { // no taint is in flight either
			c.reopen(ep.node)
		}
		c.closeIfOver(ep)
	}
	c.decide()
}

// abandon frees the slot of a decided response, or of its next step, that the facts do not show.
func (c *Core) abandon(ep *episode, retry time.Duration) {
	if ep.slotObserved {
		c.revertStep(ep)
	} else {
		c.rails.giveBack(ep)
		c.deactivate(ep)
	}
	ep.notBefore = min(ep.notBefore, c.now) // its old turn
	if retry > 0 {
		ep.notBefore = later(c.now, retry)
	}
	c.schedule(ep)
	c.wake(ep.node)
}

// Reopen reports that a decided taint that closes the node is neither on the node nor in
// flight, as Abandon does for a response with a slot. If a rule still wants the taint, the core
// decides it again after retry, or without retry in its old turn.
func (c *Core) Reopen(now time.Time, node string, retry time.Duration) {
	c.advanceTo(now)
	if n := c.nodes[node]; n != nil && n.mayClose && !n.isClosedByUs && !n.hasActiveTaint() {
		for _, ep := range n.episodes {
			if retry > 0 && ep.unhealthy && ep.closes() {
				ep.notBefore = later(c.now, retry)
			}
		}
		c.setMayClose(n, false)
	}
	c.decide()
}

// Resume restores a decision of the previous process that may be in flight, or whose node
// was deleted. Repeating the grant of a deleted node changes nothing while the node occupies
// its slot.
func (c *Core) Resume(now time.Time, g Grant) {
	c.advanceTo(now)
	n, r := c.nodes[g.Node], c.ruleOf(g.Rule, !g.Taint)
	if n != nil && n.uid != g.UID {
		n = nil
	}
	if r.gone && g.Pool != "" {
		c.joinPool(r, g.Pool)
	}
	switch {
	case !g.Gone.IsZero():
		c.resumeDeparture(r, g)
	case n == nil:
		if !r.gone && !g.Replaced && (g.Deletes || r.terminates(r.clampStep(g.Step))) {
			g.Gone = instant(c.now)
			c.resumeDeparture(r, g)
		}
	default:
		if g.Taint {
			c.setMayClose(n, true)
		}
		if g.Closes {
			break
		}
		ep := c.openEpisode(n, r)
		if !ep.active {
			c.activate(ep, r.clampStep(g.Step), nanos(g.Since))
			c.evaluate(n, r, n.selectedBy(r), true)
			c.wake(n)
		} else if step := r.clampStep(g.Step); !r.gone && step > ep.step { // the facts show an earlier step
			c.setStep(ep, step, nanos(g.Since))
			c.schedule(ep)
			c.wake(n)
		}
		if d := ep.departure; d != nil {
			d.replaced = g.Replaced
			if !g.Replaced {
				d.replacement = nil
			}
			d.enqueue()
		}
	}
	c.dropIfUnused(r)
	c.decide()
}

func (c *Core) resumeDeparture(r *rule, g Grant) {
	gone := nanos(g.Gone)
	isKnown := func(e entry) bool {
		d := e.item.departure
		return d.episode == nil && d.node == g.Node && d.uid == g.UID
	}
	if later(gone, ReplacementWait) <= c.now || slices.ContainsFunc(r.departures.entries, isKnown) {
		return // the wait is over, or this departure is already known
	}
	d := c.newDeparture(r, g.Node, g.UID, g.Step)
	d.since, d.controlPlane, d.readyNeeded, d.topology = nanos(g.Since), g.ControlPlane, g.ReadyNeeded, g.Topology
	c.awaitReplacement(d, gone)
}

// ResumeStorm restores a storm of the previous process. The argument calmSince is zero if
// the storm had not calmed down. The rule must be set, and [Core.Loaded] must not have been
// called, because the rule could already have begun a treatment. A current storm does not
// change, and a rule without a cooldown has no storm.
func (c *Core) ResumeStorm(now time.Time, id RuleID, calmSince time.Time) {
	c.advanceTo(now)
	if r := c.rules[id]; r != nil && !r.gone && r.spec.Bound.Cooldown > 0 && !r.storm {
		r.storm, r.calmSince = true, min(nanos(calmSince), c.now)
		c.markDirty(r)
	}
	c.decide()
}

// Loaded reports that all rules and nodes are known. From here on the core begins
// treatments.
func (c *Core) Loaded(now time.Time) {
	c.advanceTo(now)
	c.loaded = true
	c.recognizeReplacements()
	c.decide()
}

// Advance reports the current time.
func (c *Core) Advance(now time.Time) {
	c.advanceTo(now)
	c.decide()
}

// advanceTo sets the time and handles expired timers. The time never goes back.
func (c *Core) advanceTo(now time.Time) {
	c.now = max(c.now, nanos(now))
	c.rails.dropStarts(c.now)
	c.turnWindows() // the timers depend on them
	for c.timers.len() > 0 && c.timers.first().at <= c.now {
		switch item := c.timers.pop(); {
		case item.departure != nil:
			c.endDeparture(item.departure)
		case item.rule != nil:
			c.markDirty(item.rule)
		case item.node != nil:
			c.endHold(item.node)
		case item.rails: // decide lets the next treatment begin
		default:
			c.schedule(item.episode)
			c.wake(item.episode.node)
		}
	}
}

// Deadline is the time at which to call [Core.Advance] if no other call comes first.
func (c *Core) Deadline() (at time.Time, ok bool) {
	var next int64
	for _, q := range []*queue{&c.timers, &c.windows} {
		if q.len() > 0 && (next == 0 || q.first().at < next) {
			next = q.first().at
		}
	}
	return instant(next), next != 0
}

// NextWoken returns a node whose plan may have changed, each node once. It returns false
// when no node is left.
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

// Work returns the number of operations so far.
func (c *Core) Work() Work { return c.work }

// Population returns the state of a rule across the cluster.
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
		p.Gate = r.spec.Bound.Gate.Of(r.total.GateTotal())
	}
	if r.spec.Bound.Cap != nil {
		p.Cap = r.spec.Bound.Cap.Of(r.capBase())
	}
	p.Storm, p.CalmSince, p.CalmUntil = r.storm, instant(r.calmSince), instant(r.calmUntil())
	return p, true
}

// Grants returns every decision that occupies a slot, sorted by rule and node. A successor
// process needs them in addition to the facts.
func (c *Core) Grants() []Grant {
	var grants []Grant
	for _, n := range c.walk() {
		for _, ep := range n.episodes {
			if ep.active {
				grants = append(grants, Grant{
					Rule: ep.rule.spec.ID, Node: n.name, UID: n.uid, Step: ep.step, Since: instant(ep.stepSince),
					ControlPlane: n.controlPlane, Replaced: ep.departure != nil && ep.departure.replaced, Deletes: ep.deletes,
					Pool: ep.rule.poolName(), Taint: !ep.rule.treats, Topology: c.topologyOf(n),
				})
			}
		}
	}
	for d := range c.awaitingReplacement {
		grants = append(grants, d.grant())
	}
	slices.SortFunc(grants, compareGrants)
	return grants
}

// AwaitingReplacement returns the grants of deleted nodes. It costs nothing while there are none.
func (c *Core) AwaitingReplacement() []Grant {
	if len(c.awaitingReplacement) == 0 {
		return nil
	}
	grants := make([]Grant, 0, len(c.awaitingReplacement))
	for d := range c.awaitingReplacement {
		grants = append(grants, d.grant())
	}
	slices.SortFunc(grants, compareGrants)
	return grants
}

func compareGrants(a, b Grant) int {
	if byRule := a.Rule.Compare(b.Rule); byRule != 0 {
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
