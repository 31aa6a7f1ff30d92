package triage

import (
	"cmp"
	"slices"
	"time"
)

// RailTotals are the numbers of the whole cluster.
type RailTotals struct {
	Nodes         int
	Unhealthy     int // nodes that are unhealthy under some rule
	InTreatment   int // with deleted nodes that are not replaced yet
	Unschedulable int
}

// RailUse is the use of the rails.
type RailUse struct {
	RailTotals
	Held    int // nodes with a response that another rail than MaxAttempts holds, or a veto that is Respected
	GivenUp int // nodes that have had all of their attempts
	Rails   []RailCount
	Next    time.Time // when a count of Paced or GivenUp changes by time alone; zero for never
}

// RailCount is the use of one rail.
type RailCount struct {
	Rail   Code
	Domain string // of MaxInTopology and CorrelatedFailure, for example zone=a
	// Limit and Used are nodes; those of Paced are treatments, and those of GivenUp attempts of
	// the node that has most.
	Limit, Used, Held int
}

// HasLimit says whether Limit and Used have a meaning.
func (r RailCount) HasLimit() bool { return r.Rail != OnHold && r.Rail != LastNode && r.Rail != Vetoed }

// RailTotals returns the numbers of the whole cluster at small cost. If they change, so does RailUse.
// In other respects RailUse changes only with the plan of a node, or at its Next.
func (c *Core) RailTotals() RailTotals {
	s := &c.rails
	return RailTotals{Nodes: len(c.allNodes), Unhealthy: s.unhealthy, InTreatment: s.inTreatment(), Unschedulable: s.closed}
}

// RailUse returns the use of all rails that have a limit, of LastNode, and of [Rails.Hold]. Of the domains of a
// label it returns those with nodes in treatment or held, and those in which at least two thirds as
// many nodes are unhealthy as a correlated failure needs. Vetoed is the nodes with a [Veto] that is Respected, if there are any.
func (c *Core) RailUse() RailUse {
	s := &c.rails
	use := RailUse{RailTotals: c.RailTotals(), Next: instant(c.nextRailCount())}
	held := map[*node]bool{}
	add := func(rail RailCount, queues ...*queue) {
		here := map[*node]bool{}
		for _, q := range queues {
			for _, e := range q.entries {
				here[e.item.episode.node] = true
				if rail.Rail != GivenUp {
					held[e.item.episode.node] = true
				}
			}
		}
		rail.Held = len(here)
		use.Rails = append(use.Rails, rail)
	}
	if len(s.spec.Hold) > 0 {
		add(RailCount{Rail: OnHold}, &s.onHold)
	}
	if limit := s.spec.InTreatment; limit != nil {
		add(RailCount{Rail: MaxInTreatment, Limit: limit.Of(s.base(*limit, s.created, len(s.departed))), Used: s.inTreatment()}, &s.waitingForRoom)
	}
	if limit := s.spec.Unschedulable; limit != nil {
		add(RailCount{Rail: MaxUnschedulable, Limit: limit.Of(s.base(*limit, s.created, 0)), Used: s.closed}, &s.waitingToClose, &s.waitingToKeepClosed)
	}
	if s.spec.Pace != nil {
		add(RailCount{Rail: Paced, Limit: s.pace(), Used: s.begun}, &s.waitingForPace)
	}
	if limit := s.spec.MaxAttempts; limit != nil {
		add(RailCount{Rail: GivenUp, Limit: limit.Limit, Used: c.mostAttempts()}, &s.givenUp)
		use.GivenUp = use.Rails[len(use.Rails)-1].Held
	}
	if s.spec.KeepLast {
		add(RailCount{Rail: LastNode}, &s.waitingForLast)
	}
	if s.respected.len() > 0 {
		add(RailCount{Rail: Vetoed}, &s.respected)
	}
	for _, d := range s.topology.domains {
		if !s.topology.isIgnored(d.key) && (d.treated > 0 || d.waiting.len() > 0) {
			add(RailCount{Rail: MaxInTopology, Domain: c.nameOf(d.label), Limit: d.limit.Of(s.base(d.limit, d.created, d.departed)), Used: d.treated}, &d.waiting)
		}
	}
	for _, d := range s.failures.domains {
		if d.holds || d.windows != nil {
			add(RailCount{Rail: CorrelatedFailed, Domain: c.nameOf(d.label), Limit: s.spec.CorrelatedFailure.needed(d.nodes) - 1, Used: d.failedTogether()}, &d.waiting)
		}
	}
	slices.SortStableFunc(use.Rails, func(a, b RailCount) int { return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rail, b.Rail)) })
	use.Held = len(held)
	return use
}

// nextRailCount is when a treatment or an attempt no longer counts; 0 for never.
func (c *Core) nextRailCount() (next int64) {
	s := &c.rails
	add := func(end int64) { next = nextAfter(c.now, next, end) }
	if s.spec.Pace != nil {
		for _, start := range s.starts {
			add(s.end(start))
		}
	}
	if s.spec.MaxAttempts != nil {
		for n := range s.attempted {
			for _, a := range n.extra.attempts {
				add(later(nanos(a.Began), s.spec.MaxAttempts.Window))
			}
		}
	}
	return next
}
