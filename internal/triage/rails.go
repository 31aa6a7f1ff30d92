package triage

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Rails limit what all rules together may do, in addition to the bounds of each rule. The
// zero value limits nothing.
type Rails struct {
	// Hold says by stage why the rules of the stage may begin nothing new, as [Rule.Hold]
	// does for one rule.
	Hold map[Stage]string
	// InTreatment limits how many nodes are in a disruptive treatment at once. Nil means no
	// limit.
	InTreatment *Limit
	// Unschedulable limits how many nodes are closed to new pods at once, by taints of the
	// rules or otherwise ([Node.Closed]). Nil means no limit.
	Unschedulable *Limit
	// Topology limits the share of each value of a label that is in a disruptive treatment at
	// once. A label with a single value is ignored.
	Topology []Share
	// Pace limits how many treatments begin within a period. Nil means no limit.
	Pace *Pace
	// CorrelatedFailure holds treatments of nodes that probably failed by a common cause. Nil means
	// that nothing is held.
	CorrelatedFailure *CorrelatedFailure
	// MaxAttempts limits how often a node is treated. Nil means no limit.
	MaxAttempts *MaxAttempts
	// KeepLast protects the last node that is ready for work and open to new pods from every
	// disruptive treatment and from taints that close it.
	KeepLast bool
}

// Stage is a group of rules that [Rails.Hold] stops together. The core only compares stages.
type Stage string

// Share is a limit on the nodes with the same value of a label.
type Share struct {
	Label string
	Limit Limit
}

// Pace is how many treatments may begin within a period. It is at least AtLeast.
type Pace struct {
	Limit   Limit
	AtLeast int
	Period  time.Duration
}

// Validate returns a *[FieldError] for the first invalid field.
func (r Rails) Validate() error {
	if err := r.InTreatment.validate(); err != nil {
		return within("inTreatment", err)
	}
	if err := r.Unschedulable.validate(); err != nil {
		return within("unschedulable", err)
	}
	seen := map[string]bool{}
	for i, share := range r.Topology {
		field := fmt.Sprintf("topology[%d]", i)
		switch err := share.Limit.validate(); {
		case err != nil:
			return within(field+".limit", err)
		case share.Label == "":
			return &FieldError{Field: field + ".label", Problem: "want the key of a label"}
		case seen[share.Label]:
			return &FieldError{Field: field + ".label", Value: share.Label, Problem: "a label can have one limit"}
		}
		seen[share.Label] = true
	}
	if err := r.CorrelatedFailure.validate(); err != nil {
		return within("correlatedFailure", err)
	}
	if err := r.MaxAttempts.validate(); err != nil {
		return within("maxAttempts", err)
	}
	if r.Pace == nil {
		return nil
	}
	switch err := r.Pace.Limit.validate(); {
	case err != nil:
		return within("pace.limit", err)
	case r.Pace.AtLeast < 0:
		return &FieldError{Field: "pace.atLeast", Value: strconv.Itoa(r.Pace.AtLeast), Problem: "a number cannot be negative"}
	case r.Pace.Period <= 0:
		return &FieldError{Field: "pace.period", Value: r.Pace.Period.String(), Problem: "want a positive duration"}
	}
	return nil
}

func (r Rails) clone() Rails {
	r.Hold, r.Topology = maps.Clone(r.Hold), slices.Clone(r.Topology)
	r.InTreatment, r.Unschedulable, r.Pace = copied(r.InTreatment), copied(r.Unschedulable), copied(r.Pace)
	r.CorrelatedFailure, r.MaxAttempts = r.CorrelatedFailure.clone(), copied(r.MaxAttempts)
	return r
}

// railState is the state of the rails: their limits, and the counts of the whole cluster.
type railState struct {
	spec    Rails
	treated int // nodes in a disruptive treatment, without deleted nodes
	open    int // nodes that are open, as in node.open
	closed  int // nodes that are closed, as in node.isClosed
	// unhealthy counts the nodes that are unhealthy under some rule.
	unhealthy int
	created   *sortedTimes // of all nodes
	going     queue        // all departures, in the order of decision
	// tried is what the waiting episodes were last tried for.
	tried    departures
	departed map[nodeID]*departedNode
	topology topology
	failures failures
	starts   []Start       // within the period of the pace, in order
	begun    int           // treatments in starts
	counted  time.Duration // how long the pace counts the treatments of an interval, from the start of it

	onHold                                         queue // because of Rails.Hold
	waitingForRoom, waitingForLast, waitingForPace queue
	waitingToClose, waitingToKeepClosed            queue // for nodes that are open, and that others have closed
	givenUp                                        queue // because of Rails.MaxAttempts
	respected                                      queue // because of a veto that is Respected

	attempted map[*node]bool // nodes with attempts

	timer queueItem // the next treatment that the pace allows
}

// departures is what [railState.base] reads from the queue of departures.
type departures struct {
	first int64
	count int
}

// nodeID identifies a node that may be deleted.
type nodeID struct{ name, uid string }

// init makes the state of rails that limit nothing.
func (s *railState) init() {
	s.created, s.departed = newSortedTimes(nil), map[nodeID]*departedNode{}
	s.topology.values, s.topology.domains = map[symbol]int{}, map[label]*domain{}
	s.timer.rails = true
	s.attempted = map[*node]bool{}
	s.failures.domains = map[label]*failureDomain{}
}

// SetRails sets the limits on all rules together. Existing responses stay.
func (c *Core) SetRails(now time.Time, rails Rails) error {
	if err := rails.Validate(); err != nil {
		return err
	}
	c.advanceTo(now)
	c.rails.spec = rails.clone()
	if pace := rails.Pace; pace != nil {
		c.rails.counted = pace.Period + pace.interval()
	}
	c.rails.dropStarts(c.now)
	c.loadTopology()
	c.loadFailures()
	for _, n := range c.walk() {
		for _, ep := range n.episodes {
			c.schedule(ep) // it may wait for a limit that has changed
			c.wake(n)
		}
	}
	c.sortWoken()
	c.decide()
	return nil
}

// LimitsTreatments says whether the rails limit how many or which nodes are in treatment, or how
// many treatments begin.
func (c *Core) LimitsTreatments() bool {
	spec := &c.rails.spec
	return spec.KeepLast || spec.InTreatment != nil && !spec.InTreatment.isAll() || len(spec.Topology) > 0 || spec.Pace != nil
}

// Topology returns the labels of a node that the rails name, as in [Grant].
func (c *Core) Topology(node string) string {
	if n := c.nodes[node]; n != nil {
		return c.topologyOf(n)
	}
	return ""
}

// updateTreatment updates the counts of nodes in treatment after a response of the node has
// begun or ended.
func (c *Core) updateTreatment(n *node) {
	if is := n.active > 0 || len(n.extra.countedBy) > 0; is != n.inTreatment {
		n.inTreatment = is
		by := sign(is)
		c.rails.treated += by
		c.rails.topology.count(n.domains, by)
		c.retryRails(n) // a node in treatment needs no other slot
	}
	c.updateOpen(n)
}

// countDeparted counts a deleted node as in treatment, until uncountDeparted.
func (c *Core) countDeparted(d *departure) {
	id := nodeID{d.node, d.uid}
	gone := c.rails.departed[id]
	if gone == nil {
		gone = &departedNode{topology: d.topology}
		c.rails.departed[id] = gone
		c.enterDomainsOf(gone)
	}
	gone.departures++
}

func (c *Core) uncountDeparted(d *departure) {
	id := nodeID{d.node, d.uid}
	if gone := c.rails.departed[id]; gone.departures > 1 {
		gone.departures--
	} else {
		c.leaveDomainsOf(gone)
		delete(c.rails.departed, id)
	}
}

// updateOpen updates whether the node is closed to new pods, and whether it is ready for
// work, open to new pods and not in treatment.
func (c *Core) updateOpen(n *node) {
	isClosed := !n.forgotten && (n.closed || n.mayClose)
	isOpen := !n.forgotten && c.isReady(n) && !isClosed && !n.dedicated && !n.inTreatment
	if isClosed == n.isClosed && isOpen == n.open {
		return
	}
	if isClosed != n.isClosed {
		n.isClosed = isClosed
		c.rails.closed += sign(isClosed)
	}
	if isOpen != n.open {
		n.open = isOpen
		c.rails.open += sign(isOpen)
	}
	c.retryRails(n)
}

// retryRails lets the episodes of a node that wait for a rail try again.
func (c *Core) retryRails(n *node) {
	for _, ep := range n.episodes {
		if ep.waitsForRail {
			c.schedule(ep)
		}
	}
}

func sign(plus bool) int {
	if plus {
		return 1
	}
	return -1
}

// rail returns the rail that prevents the response of an episode; 0 for none.
func (c *Core) rail(ep *episode) Code {
	s, n := &c.rails, ep.node
	if c.failureOf(n) != nil {
		return CorrelatedFailed
	}
	if !n.inTreatment {
		switch {
		case s.spec.KeepLast && n.open && s.open == 1:
			return LastNode
		case !s.hasRoom():
			return MaxInTreatment
		case s.fullDomain(n) != nil:
			return MaxInTopology
		}
	}
	if ep.rule.treats && !s.isPaceOpen() {
		return Paced
	}
	return 0
}

// waitForRail puts an episode into the queue of a rail.
func (c *Core) waitForRail(ep *episode, rail Code, at int64) {
	s := &c.rails
	ep.waitsForRail = true
	switch rail {
	case LastNode:
		s.waitingForLast.push(at, &ep.waiting)
	case MaxInTreatment:
		s.waitingForRoom.push(at, &ep.waiting)
	case MaxInTopology:
		s.fullDomain(ep.node).waiting.push(at, &ep.waiting)
	case CorrelatedFailed:
		c.failureOf(ep.node).waiting.push(at, &ep.waiting)
	case MaxUnschedulable:
		if ep.node.isClosed {
			s.waitingToKeepClosed.push(at, &ep.waiting)
		} else {
			s.waitingToClose.push(at, &ep.waiting)
		}
	default:
		s.waitingForPace.push(at, &ep.waiting)
	}
}

// retryWaitingForRails makes the first episode of each queue a candidate if its rail is open.
func (c *Core) retryWaitingForRails() {
	s := &c.rails
	if now := (departures{s.firstDeparture(), s.going.len()}); now != s.tried { // they change how many nodes the limits refer to
		s.tried = now
		for _, d := range s.topology.domains {
			s.topology.markChanged(d)
		}
	}
	if s.waitingForLast.len() > 0 && s.open > 1 {
		c.makeCandidate(&s.waitingForLast)
	}
	if s.waitingForRoom.len() > 0 && s.hasRoom() {
		c.makeCandidate(&s.waitingForRoom)
	}
	for _, d := range s.topology.changed {
		if d.waiting.len() > 0 && s.domainHasRoom(d) {
			c.makeCandidate(&d.waiting)
		}
	}
	if s.waitingToClose.len() > 0 && s.mayClose(false) {
		c.makeCandidate(&s.waitingToClose)
	}
	if s.waitingToKeepClosed.len() > 0 && s.mayClose(true) {
		c.makeCandidate(&s.waitingToKeepClosed)
	}
	if s.waitingForPace.len() > 0 && s.isPaceOpen() {
		c.makeCandidate(&s.waitingForPace)
	}
}

// inTreatment is the number of nodes in treatment, with deleted nodes that are not replaced
// yet.
func (s *railState) inTreatment() int { return s.treated + len(s.departed) }

func (s *railState) hasRoom() bool {
	limit := s.spec.InTreatment
	return limit == nil || s.inTreatment() < limit.Of(s.base(*limit, s.created, len(s.departed)))
}

// base is the number of nodes that a limit refers to, as in [rule.capBase]: nodes that are
// younger than the first departure count only if they replace a deleted node, or if there are
// more of them than departures.
func (s *railState) base(limit Limit, created *sortedTimes, departed int) int {
	return limit.base(created, departed, s.firstDeparture(), s.going.len())
}

func (l Limit) base(created *sortedTimes, departed int, firstDeparture int64, departures int) int {
	switch {
	case l.isAll():
		return created.total + departed
	case firstDeparture == 0:
		return created.total
	}
	return max(created.before(firstDeparture), created.total-departures) // a departure explains one more node
}

// firstDeparture is when the first current departure was decided, in whole seconds like
// creation times; 0 if there is none.
func (s *railState) firstDeparture() int64 {
	if s.going.len() == 0 {
		return 0
	}
	return wholeSeconds(s.going.first().at)
}

// Start is the number of treatments that began within one interval of the pace.
type Start struct {
	At         time.Time // the start of the interval
	Treatments int
}

// interval is the precision with which the pace counts treatments, so that few numbers have to
// be stored: a sixtieth of the period, at least a second.
func (p *Pace) interval() time.Duration { return max(p.Period/60, time.Second).Truncate(time.Second) }

// end is when the pace stops counting treatments that began within an interval.
func (s *railState) end(start Start) int64 { return later(nanos(start.At), s.counted) }

// Starts returns the treatments that the pace counts, in order. A successor process needs
// them.
func (c *Core) Starts() []Start { return slices.Clone(c.rails.starts) }

// ResumeStarts restores the treatments that the pace of the previous process counted.
func (c *Core) ResumeStarts(now time.Time, starts []Start) {
	c.advanceTo(now)
	for _, s := range starts {
		c.rails.addStart(s)
	}
	c.rails.dropStarts(c.now)
	c.decide()
}

// addStart counts treatments that began, and returns the interval that counts them; 0 for none.
func (s *railState) addStart(began Start) (interval int64) {
	if s.spec.Pace == nil {
		return 0
	}
	s.begun += began.Treatments
	began.At = began.At.Truncate(s.spec.Pace.interval()).UTC()
	at, found := slices.BinarySearchFunc(s.starts, began, func(a, b Start) int { return a.At.Compare(b.At) })
	if found {
		s.starts[at].Treatments += began.Treatments
	} else {
		s.starts = slices.Insert(s.starts, at, began)
	}
	return nanos(began.At)
}

// giveBack gives the place of a decision in the pace back: nothing was written for it.
func (s *railState) giveBack(ep *episode) {
	at := slices.IndexFunc(s.starts, func(start Start) bool { return nanos(start.At) == ep.paced })
	if ep.paced == 0 || at < 0 {
		return
	}
	s.begun--
	if s.starts[at].Treatments--; s.starts[at].Treatments == 0 {
		s.starts = slices.Delete(s.starts, at, at+1)
	}
}

// NoteSent tells that a write for a decided treatment may have been sent. The treatment then keeps its
// place in the pace, even if the caller abandons it.
func (c *Core) NoteSent(node string, id RuleID) {
	if ep := c.episode(node, id); ep != nil {
		ep.paced = 0
	}
}

// dropStarts forgets the treatments that the pace no longer counts.
func (s *railState) dropStarts(now int64) {
	ended := 0
	for ; ended < len(s.starts) && (s.spec.Pace == nil || s.end(s.starts[ended]) <= now); ended++ {
		s.begun -= s.starts[ended].Treatments
	}
	s.starts = slices.Delete(s.starts, 0, ended)
}

func (s *railState) pace() int {
	pace := s.spec.Pace
	return max(pace.AtLeast, pace.Limit.Of(s.base(pace.Limit, s.created, len(s.departed))))
}

func (s *railState) isPaceOpen() bool { return s.spec.Pace == nil || s.begun < s.pace() }

// paceOpensAt is when the pace allows another treatment; 0 if time alone does not open it.
func (s *railState) paceOpensAt() int64 {
	excess := s.begun - s.pace()
	for _, start := range s.starts {
		if excess -= start.Treatments; excess < 0 {
			return s.end(start)
		}
	}
	return 0
}

// timePace sets a timer for the next treatment that the pace allows.
func (c *Core) timePace() {
	s := &c.rails
	s.timer.leave()
	if s.waitingForPace.len() == 0 {
		return
	}
	if at := s.paceOpensAt(); at > c.now {
		c.timers.push(at, &s.timer)
	}
}

// nameRail adds the numbers of a rail to a reason.
func (c *Core) nameRail(reason *Reason, n *node, rail Code) {
	s := &c.rails
	count := func(limit Limit, treated, departed int, created *sortedTimes) {
		reason.Have, reason.Departed, reason.Of = treated, departed, s.base(limit, created, departed)
		reason.Limit = limit.Of(reason.Of)
	}
	switch rail {
	case MaxInTreatment:
		count(*s.spec.InTreatment, s.inTreatment(), len(s.departed), s.created)
	case MaxUnschedulable:
		count(*s.spec.Unschedulable, s.closed, 0, s.created)
	case MaxInTopology:
		d := s.fullDomain(n)
		count(d.limit, d.treated, d.departed, d.created)
		reason.Other = c.nameOf(d.label)
	case CorrelatedFailed:
		c.nameFailure(reason, n)
	case Paced:
		reason.Have, reason.Limit, reason.Other = s.begun, s.pace(), s.spec.Pace.Period.String()
		reason.Until = instant(s.paceOpensAt())
	}
}
