package triage

import (
	"slices"
	"time"
)

// node is the state of a node in the core.
type node struct {
	name, uid string
	index     int // in Core.allNodes
	zone      symbol
	created   int64

	controlPlane  bool
	initialized   bool
	starting      bool
	confirmed     bool
	wasReady      bool
	isReplacement bool // it replaces a deleted node
	isWoken       bool
	forgotten     bool
	closed        bool // as in [Node]
	dedicated     bool // as in [Node]
	mayClose      bool // taints that close the node are decided or in the facts
	isClosedByUs  bool // the facts show a taint of a rule that closes the node
	isClosed      bool // closed or mayClose
	inTreatment   bool // a disruptive response occupies a slot, or a rule counts a foreign taint
	open          bool // ready for work, open to new pods and not in treatment

	labels     []label
	assigned   []RuleID // as in [Node]
	conditions []condition
	unknowns   int // number of Unknown conditions
	extra      *extraFacts
	rules      []*rule    // rules that select the node, sorted
	episodes   []*episode // sorted by rule
	treating   int        // episodes with a treatment in progress
	active     int        // episodes whose response occupies a slot
	unhealthy  int        // episodes in which the node is unhealthy
	domains    []*domain  // of its labels that the rails name
	byAge      queueItem  // in Core.youngest
	image      symbol     // noSymbol if it is not known
	// failures is since when each rule has found the node unhealthy, as correlated failures count
	// it, in order and without duplicates.
	failures       []int64
	failureDomains []failureMember

	// Storage for the labels, conditions and rules of most nodes, next to the other fields.
	// In a large cluster a cache miss costs more than the evaluation itself.
	inlineLabels     [24]label
	inlineConditions [16]condition
	inlineRules      [12]*rule
}

// extraFacts are facts that only few nodes have.
type extraFacts struct {
	taints     []Taint
	treatments []Treatment
	vetoes     []Veto
	remediates []RuleID
	memories   []Memory
	attempts   []Attempt
	foreign    []string
	countedBy  []*rule // rules whose cap counts the node because of a foreign taint

	hold      string // as in [Node]
	holdUntil int64
	holdEnds  queueItem // in Core.timers
}

var noExtraFacts = &extraFacts{}

// condition is a condition of a node, with what the core observed about it.
type condition struct {
	kind, reason         symbol
	status               Status
	transitionIsAccurate bool // the transition time is when the status changed
	transitionMoved      bool // this observation has a later transition time and the same status
	// lastOther is when the last version arrived that had another status, in whole seconds since
	// 1970, rounded up. Unknown does not count, because it does not show that the node was
	// healthy. A transition time says nothing about the reason: if only the reason has changed,
	// lastOther is when the core saw it. Zero means that there was no such version.
	lastOther   uint32
	transition  int64
	statusSince int64 // when the condition got its status
}

// transitionPrecision is the difference up to which a transition time and the arrival of a
// version count as the same. Transition times have whole seconds, and a watch has some delay.
const transitionPrecision = 2 * time.Second

// maxClockDrift is how far in the future a transition time can be and still be correct, because
// clocks differ.
const maxClockDrift = time.Minute

// since returns when a condition got its status and reason. This is its transition time, but not
// before lastOther and never in the future. If the condition was reported at once, its arrival is
// more precise than a transition time in whole seconds. accurate means that a restarted core,
// which knows only the transition time, would find nearly the same.
func (row *condition) since(now int64) (since int64, accurate bool) {
	lastOther := int64(row.lastOther) * int64(time.Second)
	if row.transition == 0 {
		return now, false
	}
	accurate = row.transition <= later(now, maxClockDrift) && later(row.transition, transitionPrecision) >= lastOther
	if later(row.transition, transitionPrecision) > now {
		return now, accurate
	}
	return min(max(row.transition, lastOther), now), accurate
}

// Observe sets all facts of some nodes.
func (c *Core) Observe(now time.Time, nodes ...Node) {
	c.advanceTo(now)
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
		n = &node{name: facts.Name, uid: facts.UID, created: nanos(facts.Created), extra: noExtraFacts, image: noSymbol}
		n.labels, n.conditions, n.rules = n.inlineLabels[:0], n.inlineConditions[:0], n.inlineRules[:0]
		if n.created == 0 {
			n.created = c.now
		}
		n.zone = c.symbols.acquire(facts.Zone)
		n.index = len(c.allNodes)
		c.nodes[n.name], c.allNodes = n, append(c.allNodes, n)
		n.byAge.node = n
		c.youngest.push(-n.created, &n.byAge)
		c.rails.created.add(n.countedCreation())
	}
	concerns := c.updateConditions(n, facts)
	found, moved := c.updateExtraFacts(n, facts), c.updatePosition(n, facts)
	if found || moved {
		concerns = everyCondition
	}
	relabelled, reassigned := c.updateLabels(n, facts) || isNew, n.updateAssigned(facts)
	if concerns == 0 && !relabelled && !reassigned {
		return
	}
	known := n.rules
	if relabelled || reassigned {
		concerns = everyCondition
		known = c.reselect(n)
	}
	if relabelled {
		c.leaveDomains(n)
		c.enterDomains(n)
		c.enterFailureDomains(n)
	}
	c.syncResponses(n)
	c.syncClosed(n)
	c.countForeign(n)
	for _, r := range n.rules {
		if r.reads&concerns != 0 || len(r.groups) == 0 { // a rule without groups may have a response to end
			c.evaluate(n, r, true, !contains(known, r))
		}
	}
	for i := len(n.episodes) - 1; i >= 0; i-- { // from the end, because evaluate may close an episode
		if r := n.episodes[i].rule; !n.selectedBy(r) {
			c.evaluate(n, r, false, false)
		}
	}
	for i := range n.conditions {
		n.conditions[i].transitionMoved = false
	}
	if !n.wasReady && c.isReady(n) {
		n.wasReady = true
		if c.loaded { // the previous process counted nodes that were ready before
			c.countReplacement(n)
		}
	}
	c.updateOpen(n)
	c.wake(n)
}

// conditionMask is a set of changed conditions. Rules that read none of them need no
// evaluation. Two conditions may share a bit; that costs only an extra evaluation.
type conditionMask uint64

const everyCondition = ^conditionMask(0)

func maskOf(kind symbol) conditionMask { return 1 << (kind % 64) }

// updateConditions updates the conditions and returns those with a change that rules can
// notice.
func (c *Core) updateConditions(n *node, facts *Node) (changed conditionMask) {
	rows, previous := facts.Conditions, secondsUp(facts.Previous)
	if len(rows) != len(n.conditions) {
		c.replaceConditions(n, rows, previous)
		changed = everyCondition
	}
	for i := range rows {
		row, reported := &n.conditions[i], &rows[i]
		if c.symbols.name(row.kind) != reported.Type {
			c.replaceConditions(n, rows, previous) // keeps the comparisons so far
			changed = everyCondition
			row = &n.conditions[i]
		}
		transition := nanos(reported.Transition)
		sameReason := c.symbols.name(row.reason) == reported.Reason
		if row.status == reported.Status && row.transition == transition && sameReason {
			continue
		}
		changed |= maskOf(row.kind)
		before, moved := row.status, transition != row.transition
		row.transitionMoved = before == reported.Status && transition > row.transition
		row.status, row.transition = reported.Status, transition
		switch {
		case before == reported.Status && !sameReason:
			row.lastOther = secondsUp(instant(c.now))
		case before != reported.Status && before != Unknown && before != Missing:
			row.lastOther = previous
		}
		if before != reported.Status {
			row.statusSince, row.transitionIsAccurate = row.since(c.now)
			n.unknowns += isUnknown(reported.Status) - isUnknown(before)
		} else if moved {
			row.transitionIsAccurate = false
		}
		if !sameReason {
			c.symbols.release(row.reason)
			row.reason = c.symbols.acquire(reported.Reason)
		}
	}
	return changed
}

// absentCondition is a condition that a node no longer reports. It may return with an old transition
// time, and must not count from before the last version that showed it healthy.
type absentCondition struct {
	kind, reason string
	status       Status
	lastOther    uint32
	lastSeen     uint32 // when the last version with the condition arrived, like lastOther
}

// maxAbsent is how many absent conditions of a node the core remembers.
const maxAbsent = 16

// noteAbsent remembers a condition that the node no longer reports. If the node reported it twice,
// the first counts.
func (c *Core) noteAbsent(n *node, row *condition, lastSeen uint32) {
	kind := c.symbols.name(row.kind)
	if slices.ContainsFunc(c.absent[n], func(a absentCondition) bool { return a.kind == kind }) {
		return
	}
	c.absent[n] = append(c.absent[n], absentCondition{kind, c.symbols.name(row.reason), row.status, row.lastOther, lastSeen})
	c.absent[n] = c.absent[n][max(0, len(c.absent[n])-maxAbsent):]
}

// takeAbsent returns lastOther of a condition that the node reports for the first time, or again.
func (c *Core) takeAbsent(n *node, reported *Condition) (lastOther uint32) {
	at := slices.IndexFunc(c.absent[n], func(a absentCondition) bool { return a.kind == reported.Type })
	if at < 0 {
		return 0
	}
	a := c.absent[n][at]
	if c.absent[n] = slices.Delete(c.absent[n], at, at+1); len(c.absent[n]) == 0 {
		delete(c.absent, n)
	}
	switch {
	case a.status == reported.Status && a.reason != reported.Reason:
		return secondsUp(instant(c.now))
	case a.status != reported.Status && a.status != Unknown:
		return a.lastSeen
	}
	return a.lastOther
}

// replaceConditions rebuilds the conditions in the new order and keeps what is known about
// each. Conditions are rarely added, removed or reordered. previous is when the last version
// arrived.
func (c *Core) replaceConditions(n *node, rows []Condition, previous uint32) {
	old := slices.Clone(n.conditions)
	n.conditions, n.unknowns = slices.Grow(n.conditions[:0], len(rows))[:len(rows)], 0
	for i := range rows {
		n.conditions[i] = condition{}
		at := slices.IndexFunc(old, func(o condition) bool { return c.symbols.name(o.kind) == rows[i].Type })
		if at >= 0 {
			n.conditions[i] = old[at]
			n.conditions[i].reason = c.symbols.acquire(c.symbols.name(old[at].reason))
			n.unknowns += isUnknown(old[at].status)
		} else {
			n.conditions[i].reason = c.symbols.acquire("")
			n.conditions[i].lastOther = c.takeAbsent(n, &rows[i])
		}
		n.conditions[i].kind = c.symbols.acquire(rows[i].Type)
		c.reported[n.conditions[i].kind]++
	}
	for i := range old {
		if kind := c.symbols.name(old[i].kind); !slices.ContainsFunc(rows, func(row Condition) bool { return row.Type == kind }) {
			c.noteAbsent(n, &old[i], previous)
		}
		c.dropRow(&old[i])
	}
}

// dropRow releases the symbols of a condition.
func (c *Core) dropRow(row *condition) {
	if c.reported[row.kind]--; c.reported[row.kind] == 0 {
		delete(c.reported, row.kind)
	}
	c.symbols.release(row.kind)
	c.symbols.release(row.reason)
}

func isUnknown(s Status) int {
	if s == Unknown {
		return 1
	}
	return 0
}

func (c *Core) updateExtraFacts(n *node, facts *Node) (changed bool) {
	f := n.extra
	if slices.Equal(f.taints, facts.Taints) && slices.Equal(f.treatments, facts.Treatments) &&
		slices.Equal(f.vetoes, facts.Vetoes) && slices.Equal(f.remediates, facts.Remediates) && slices.Equal(f.memories, facts.Memories) && slices.Equal(f.foreign, facts.Foreign) &&
		slices.Equal(f.attempts, facts.Attempts) && f.hold == facts.Hold && f.holdUntil == nanos(facts.HoldUntil) {
		return false
	}
	f.holdEnds.leave()
	n.extra = &extraFacts{
		taints:     slices.Clone(facts.Taints),
		treatments: slices.Clone(facts.Treatments),
		vetoes:     slices.Clone(facts.Vetoes),
		remediates: slices.Clone(facts.Remediates),
		memories:   slices.Clone(facts.Memories),
		attempts:   slices.Clone(facts.Attempts),
		foreign:    slices.Clone(facts.Foreign),
		countedBy:  f.countedBy,
		hold:       facts.Hold,
		holdUntil:  nanos(facts.HoldUntil),
	}
	c.timeHold(n)
	c.noteAttempts(n)
	return true
}

// updatePosition updates the zone, the role and the readiness of the node.
func (c *Core) updatePosition(n *node, facts *Node) (changed bool) {
	if n.starting != facts.Starting {
		n.starting = facts.Starting
		changed = true
	}
	if !n.initialized && (facts.Initialized || c.isReady(n)) {
		n.initialized = true
		changed = true
	}
	if n.closed != facts.Closed || n.dedicated != facts.Dedicated {
		n.closed, n.dedicated = facts.Closed, facts.Dedicated
		changed = true
	}
	if n.confirmed != facts.Confirmed {
		n.confirmed = facts.Confirmed
		changed = true
	}
	if c.symbols.name(n.zone) != facts.Zone {
		c.countInZone(n, -1)
		c.symbols.release(n.zone)
		n.zone = c.symbols.acquire(facts.Zone)
		c.countInZone(n, +1)
		changed = true
	}
	if n.controlPlane != facts.ControlPlane {
		if n.treating > 0 && n.controlPlane {
			c.controlPlane.release(n.name)
		}
		n.controlPlane = facts.ControlPlane
		if n.treating > 0 && n.controlPlane {
			c.controlPlane.acquire(n.name)
		}
		changed = true
	}
	return changed
}

// Forget reports that a node is deleted.
func (c *Core) Forget(now time.Time, name string) {
	c.advanceTo(now)
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
	delete(c.absent, n)
	var departures []*departure
	for len(n.episodes) > 0 {
		ep := n.episodes[len(n.episodes)-1]
		c.setUnhealthy(ep, false)
		if ep.active {
			departure := ep.departure
			ep.departure = nil
			c.deactivate(ep)
			if departure != nil {
				c.awaitReplacement(departure, c.now)
				departures = append(departures, departure)
			}
		}
		ep.clocks, ep.present = ep.clocks[:0], false
		c.schedule(ep)
		c.closeIfOver(ep)
	}
	for _, d := range departures {
		if !d.rule.gone {
			ready, _ := c.youngReady(d)
			d.readyNeeded = ready + 1
		}
	}
	c.leaveFailureDomains(n)
	for _, l := range n.labels {
		c.releaseLabel(l)
	}
	if n.image != noSymbol {
		c.symbols.release(n.image)
	}
	for i := range n.conditions {
		c.dropRow(&n.conditions[i])
	}
	c.symbols.release(n.zone)
	n.forgotten = true
	n.extra.holdEnds.leave()
	delete(c.rails.attempted, n)
	c.updateOpen(n)
	c.leaveDomains(n)
	c.rails.created.remove(n.countedCreation())
	n.byAge.leave()
	delete(c.nodes, n.name)
	last := len(c.allNodes) - 1
	c.allNodes[n.index] = c.allNodes[last]
	c.allNodes[n.index].index = n.index
	c.allNodes[last] = nil
	c.allNodes = c.allNodes[:last]
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
