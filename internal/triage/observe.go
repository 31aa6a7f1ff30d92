package triage

import (
	"slices"
	"time"
)

// node is what the core keeps of a node.
type node struct {
	name, uid string
	place     int // in the list of everybody
	zone      symbol
	created   int64

	controlPlane bool
	initialized  bool
	starting     bool
	confirmed    bool
	wasReady     bool
	standsIn     bool // for one that has gone
	isWoken      bool
	forgotten    bool

	labels     []label
	conditions []condition
	unknowns   int // conditions that are Unknown
	found      *found
	rules      []*rule    // that select the node, in their order
	episodes   []*episode // in the order of their rules
	treating   int        // episodes that have a treatment under way

	// Room for what most nodes have, beside what is looked at with it: in a
	// large cluster the way to a node's memory costs more than what is done
	// there.
	roomForLabels     [24]label
	roomForConditions [16]condition
	roomForRules      [12]*rule
}

// found is what only few nodes have.
type found struct {
	taints     []Taint
	treatments []Treatment
	vetoes     []Veto
	memories   []Memory
	foreign    []string
	counted    []*rule // whose cap counts the node because of a foreign taint
}

var nothingFound = &found{}

// condition is a row of a node's conditions with what the core itself saw of it.
type condition struct {
	kind, reason symbol
	status       Status
	current      bool // the transition time is of what this observation brought
	tells        bool // the transition time tells when the status changed
	restamped    bool // this observation brought a later transition time and the same status
	transition   int64
	changed      int64 // since when the status is what it is
}

// stampGrain is how young a transition time is that may be of the latest change
// although it did not move with it: it is written in whole seconds, and news of it
// takes a moment.
const stampGrain = 2 * time.Second

// clockDrift is how far a transition time may be from when the change was seen and
// still tell it: news takes a while, and clocks differ. One that is further away
// would have a core that starts anew count from a time that nobody here has seen.
const clockDrift = time.Minute

// Observe takes in all that is known of some nodes now.
func (c *Core) Observe(now time.Time, nodes ...Node) {
	c.pass(now)
	for i := range nodes {
		c.observe(&nodes[i])
	}
	c.decide()
}

func (c *Core) observe(facts *Node) {
	n := c.nodes[facts.Name]
	if n != nil && n.uid != facts.UID {
		c.forget(n)
		n = nil
	}
	isNew := n == nil
	if isNew {
		n = &node{name: facts.Name, uid: facts.UID, created: nanos(facts.Created), found: nothingFound}
		n.labels, n.conditions, n.rules = n.roomForLabels[:0], n.roomForConditions[:0], n.roomForRules[:0]
		if n.created == 0 {
			n.created = c.now
		}
		n.zone = c.symbols.hold(facts.Zone)
		n.place = len(c.everybody)
		c.nodes[n.name], c.everybody = n, append(c.everybody, n)
	}
	concerns := c.updateConditions(n, facts.Conditions, isNew)
	found, moved := c.updateFound(n, facts), c.updatePosition(n, facts)
	if found || moved {
		concerns = everyCondition
	}
	relabelled := c.updateLabels(n, facts.Labels) || isNew
	if concerns == 0 && !relabelled {
		return
	}
	known := n.rules
	if relabelled {
		concerns = everyCondition
		known = c.reselect(n)
	}
	c.takeUp(n)
	c.countForeign(n)
	for _, r := range n.rules {
		if r.reads&concerns != 0 {
			c.judge(n, r, true, !contains(known, r))
		}
	}
	for i := len(n.episodes) - 1; i >= 0; i-- { // from the end: judging may close one
		if r := n.episodes[i].rule; !n.selectedBy(r) {
			c.judge(n, r, false, false)
		}
	}
	for i := range n.conditions {
		n.conditions[i].current, n.conditions[i].restamped = false, false
	}
	if !n.wasReady && c.isReady(n) {
		n.wasReady = true
		if c.loaded { // one that was ready before has been counted before
			c.countReplacement(n)
		}
	}
	c.wake(n)
}

// conditionMask tells apart which conditions changed, so that a rule that reads
// none of them need not be asked. Two conditions may share a bit, which costs a
// question and no more.
type conditionMask uint64

const everyCondition = ^conditionMask(0)

func maskOf(kind symbol) conditionMask { return 1 << (kind % 64) }

// updateConditions brings the rows up to date and returns which of them changed
// in a way that a rule could notice.
func (c *Core) updateConditions(n *node, rows []Condition, isNew bool) (changed conditionMask) {
	if len(rows) != len(n.conditions) {
		c.replaceConditions(n, rows)
		changed = everyCondition
	}
	for i := range rows {
		row, told := &n.conditions[i], &rows[i]
		if c.symbols.name(row.kind) != told.Type {
			c.replaceConditions(n, rows) // what was compared so far is kept as it is now
			changed = everyCondition
			row = &n.conditions[i]
		}
		transition := nanos(told.Transition)
		sameReason := c.symbols.name(row.reason) == told.Reason
		if row.status == told.Status && row.transition == transition && sameReason {
			continue
		}
		changed |= maskOf(row.kind)
		row.restamped = row.status == told.Status && transition > row.transition
		row.current = (transition > row.transition || later(transition, stampGrain) > c.now) &&
			(isNew || later(transition, clockDrift) >= c.now && later(c.now, clockDrift) >= transition)
		if row.status != told.Status {
			row.changed, row.tells = c.now, row.current
			if isNew && transition != 0 {
				row.changed = min(transition, c.now)
			}
			n.unknowns += isUnknown(told.Status) - isUnknown(row.status)
		} else if row.transition != transition {
			row.tells = false
		}
		row.status, row.transition = told.Status, transition
		if !sameReason {
			c.symbols.drop(row.reason)
			row.reason = c.symbols.hold(told.Reason)
		}
	}
	return changed
}

// replaceConditions makes a place for every row that is told, in its order, with
// what is known of it: rows came, went or changed places, which is rare.
func (c *Core) replaceConditions(n *node, rows []Condition) {
	old := slices.Clone(n.conditions)
	n.conditions, n.unknowns = slices.Grow(n.conditions[:0], len(rows))[:len(rows)], 0
	for i := range rows {
		n.conditions[i] = condition{}
		at := slices.IndexFunc(old, func(o condition) bool { return c.symbols.name(o.kind) == rows[i].Type })
		if at >= 0 {
			n.conditions[i] = old[at]
			n.conditions[i].reason = c.symbols.hold(c.symbols.name(old[at].reason))
			n.unknowns += isUnknown(old[at].status)
		} else {
			n.conditions[i].reason = c.symbols.hold("")
		}
		n.conditions[i].kind = c.symbols.hold(rows[i].Type)
		c.reported[n.conditions[i].kind]++
	}
	for i := range old {
		c.dropRow(&old[i])
	}
}

// dropRow forgets what a row was known by.
func (c *Core) dropRow(row *condition) {
	if c.reported[row.kind]--; c.reported[row.kind] == 0 {
		delete(c.reported, row.kind)
	}
	c.symbols.drop(row.kind)
	c.symbols.drop(row.reason)
}

func isUnknown(s Status) int {
	if s == Unknown {
		return 1
	}
	return 0
}

func (c *Core) updateFound(n *node, facts *Node) (changed bool) {
	f := n.found
	if slices.Equal(f.taints, facts.Taints) && slices.Equal(f.treatments, facts.Treatments) &&
		slices.Equal(f.vetoes, facts.Vetoes) && slices.Equal(f.memories, facts.Memories) && slices.Equal(f.foreign, facts.Foreign) {
		return false
	}
	n.found = &found{
		taints:     slices.Clone(facts.Taints),
		treatments: slices.Clone(facts.Treatments),
		vetoes:     slices.Clone(facts.Vetoes),
		memories:   slices.Clone(facts.Memories),
		foreign:    slices.Clone(facts.Foreign),
		counted:    f.counted,
	}
	return true
}

// updatePosition takes over where in the cluster the node stands.
func (c *Core) updatePosition(n *node, facts *Node) (changed bool) {
	if n.starting != facts.Starting {
		n.starting = facts.Starting
		changed = true
	}
	if !n.initialized && (facts.Initialized || c.isReady(n)) {
		n.initialized = true
		changed = true
	}
	if n.confirmed != facts.Confirmed {
		n.confirmed = facts.Confirmed
		changed = true
	}
	if c.symbols.name(n.zone) != facts.Zone {
		c.tally(n, -1)
		c.symbols.drop(n.zone)
		n.zone = c.symbols.hold(facts.Zone)
		c.tally(n, +1)
		changed = true
	}
	if n.controlPlane != facts.ControlPlane {
		if n.treating > 0 && n.controlPlane {
			c.controlPlane.release(n.name)
		}
		n.controlPlane = facts.ControlPlane
		if n.treating > 0 && n.controlPlane {
			c.controlPlane.hold(n.name)
		}
		changed = true
	}
	return changed
}

// Forget tells that a node no longer exists.
func (c *Core) Forget(now time.Time, name string) {
	c.pass(now)
	if n := c.nodes[name]; n != nil {
		c.forget(n)
	}
	c.decide()
}

func (c *Core) forget(n *node) {
	for _, r := range slices.Clone(n.rules) {
		c.selectNode(n, r, true, false)
	}
	c.countForeign(n)
	for len(n.episodes) > 0 {
		ep := n.episodes[len(n.episodes)-1]
		c.setSick(ep, false)
		if ep.active {
			vacancy := ep.departure
			ep.departure = nil
			c.deactivate(ep)
			if vacancy != nil {
				c.depart(vacancy, c.now)
			}
		}
		ep.clocks, ep.present = ep.clocks[:0], false
		c.consider(ep)
		c.closeIfOver(ep)
	}
	for _, l := range n.labels {
		c.symbols.drop(l.key)
		c.symbols.drop(l.value)
	}
	for i := range n.conditions {
		c.dropRow(&n.conditions[i])
	}
	c.symbols.drop(n.zone)
	n.forgotten = true
	delete(c.nodes, n.name)
	last := len(c.everybody) - 1
	c.everybody[n.place] = c.everybody[last]
	c.everybody[n.place].place = n.place
	c.everybody[last] = nil
	c.everybody = c.everybody[:last]
}

// isReady says whether the node is ready for work.
func (c *Core) isReady(n *node) bool { return !n.starting && n.status(c.ready) == True }

func (n *node) status(kind symbol) Status {
	if row := n.condition(kind); row != nil {
		return row.status
	}
	return Missing
}

func (n *node) condition(kind symbol) *condition {
	for i := range n.conditions {
		if n.conditions[i].kind == kind {
			return &n.conditions[i]
		}
	}
	return nil
}
