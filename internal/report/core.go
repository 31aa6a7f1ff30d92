package report

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// The kinds of requests.
const (
	forRows  = "conditions"
	forErase = "erasure"
	forHand  = "handover"
	forSweep = "sweep"
	forLook  = "look"
	forLease = "lease"
	forEvent = "event"
)

// request is what is to be sent, and what it was made of.
type request struct {
	kubeapi.Request
	kind        string
	rows        map[string]row
	placeholder bool // stands for rows of which there are none
	parts       bool // leaves rows that were said
	reads       bool // the answer is to be a Node
	fresh       bool // and not from a cache
	litter      *litter
	lane        *lane
	event       *waiting
}

// core decides what to say next. Its caller hands over what was found (take), sends what
// it asks for (next) and tells it what came of that (answer), one request at a time.
type core struct {
	cfg    Config
	log    *slog.Logger
	random func() float64 // from 0 to 1

	began    time.Time
	complete bool // everybody has said what his conditions are
	rows     rows
	lanes    lanes
	counts   Counts
	refused  map[string]bool // conditions of which the log says that they are not written

	toldRejected bool // that an Event is not taken
	met          bool // another agent under our name
	doubt        bool // whether the server's cache follows
	stateChanged bool // since somebody asked

	outage       pace             // of all requests
	paces        map[string]*pace // of one kind
	lookAt       time.Time
	leased       time.Time // when the Lease is due
	leaseVersion string    // that our last renewal was given
	uid          string    // of the Node
	skew         time.Duration
}

func newCore(cfg Config, random func() float64, now time.Time) *core {
	c := &core{
		cfg: cfg, log: cfg.Logger, random: random, began: now, rows: newRows(cfg.TakeOver, cfg.Remembered),
		refused: map[string]bool{}, paces: map[string]*pace{}, leased: now,
		counts: Counts{Requests: map[Outcome]uint64{}, Dropped: map[Drop]uint64{}},
	}
	c.lanes = newLanes(&c.counts)
	for _, kind := range []string{forRows, forErase, forHand, forSweep, forLook, forLease, forEvent} {
		c.paces[kind] = &pace{}
	}
	c.lookAt = now.Add(c.lookEvery())
	c.stateChanged = len(cfg.Remembered.Yielded) != len(c.rows.state.Yielded) // what is taken anyway is left to nobody
	return c
}

// lookEvery spreads the looks of a cluster's agents.
func (c *core) lookEvery() time.Duration {
	return c.cfg.LookEvery/2 + time.Duration(c.random()*float64(c.cfg.LookEvery)/2)
}

// take notes what was found.
func (c *core) take(now time.Time, r finding.Report) {
	if !c.cfg.WithoutConditions {
		for _, kind := range r.Gone {
			delete(c.rows.want, kind)
		}
		for _, condition := range r.Conditions {
			if err := Writable(condition.Type); err != nil {
				why := "native"
				if len(condition.Type) > LongestType {
					why = "too long"
				}
				c.refuse(condition.Type, why, err)
				continue
			}
			if _, known := c.rows.want[condition.Type]; !known && len(c.rows.want) >= MostConditions {
				c.refuse(condition.Type, "too many", fmt.Errorf("this agent writes %d conditions already, and no more: remove some from its configuration", MostConditions))
				continue
			}
			c.rows.want[condition.Type] = rowFor(condition, now)
			delete(c.rows.kept, condition.Type)
		}
	}
	if !c.cfg.WithoutEvents {
		for _, event := range r.Events {
			c.lanes.post(now, r.Source, event)
		}
	}
}

func (c *core) refuse(kind, why string, err error) {
	c.counts.Dropped[Drop{Kind: "condition", Why: why}]++
	if !c.refused[kind] && len(c.refused) < mostLanes {
		c.refused[kind] = true
		c.log.Error("a condition is not written", "condition", kind, "err", err)
	}
}

// next returns what to send now, or when to ask again; never if that is zero.
func (c *core) next(now time.Time) (*request, time.Time) {
	if c.outage.until.After(now) {
		return nil, c.outage.until
	}
	var soonest time.Time
	for _, ask := range []func(time.Time) (*request, time.Time){c.nextRows, c.nextLease, c.nextLook, c.nextEvent} {
		asked, at := ask(now)
		if asked != nil {
			return asked, now
		}
		soonest = earlier(soonest, at)
	}
	return nil, soonest
}

func (c *core) nextRows(now time.Time) (*request, time.Time) {
	r := &c.rows
	// A row that is not said is removed: nothing is, before everybody has had his say. Who is
	// to say no conditions removes those of an earlier life.
	if due := c.began.Add(settleAfter); !c.complete && !c.cfg.WithoutConditions && due.After(now) {
		return nil, due
	}
	if r.spared.rows != nil && !r.spared.until.After(now) {
		r.spared.rows = nil
	}
	switch {
	case r.erase && (!r.dirty() || !c.paces[forErase].until.After(now)): // which must not hold up news
		due := latest(c.paces[forErase].until, r.budget.when(now))
		if due.After(now) {
			return nil, due
		}
		r.budget.take(now)
		return &request{Request: c.erase("", placeholder), kind: forErase}, now
	case r.dirty():
		return c.nextApply(now)
	}
	asked, due := c.nextSweep(now)
	if r.spared.rows != nil {
		due = earlier(due, r.spared.until)
	}
	if asked == nil && r.handing {
		var at time.Time
		asked, at = c.nextHand(now)
		due = earlier(due, at)
	}
	return asked, due
}

// nextApply says our rows, once what leaves with it may.
func (c *core) nextApply(now time.Time) (*request, time.Time) {
	r := &c.rows
	due := latest(c.paces[forRows].until, r.last.Add(coalesce), r.budget.when(now))
	switch {
	case due.After(now):
		return nil, due
	case !r.mayPart():
		return c.nextHand(now)
	}
	r.budget.take(now)
	r.last = now
	said, version, parts := r.shall(), "", len(r.leaving()) > 0
	if parts && r.parting != nil {
		version = r.parting.version
	}
	for _, kind := range r.crowdedOut(said) {
		c.refuse(kind, "too many", fmt.Errorf("with the conditions of an earlier configuration that still stand, this agent writes %d, and no more: it waits until some of them go", MostConditions))
	}
	wire := append(wireRows(said, now), r.asTheyWere(said)...)
	if r.held != nil {
		for kind := range said {
			r.held[kind] = true
		}
	}
	asked := c.applyRows(FieldManager, r.force, version, wire)
	return &request{Request: asked, kind: forRows, rows: said, parts: parts, placeholder: len(wire) == 0}, now
}

// nextHand looks at what others have of our rows and hands over what must be, before rows
// are no longer said.
func (c *core) nextHand(now time.Time) (*request, time.Time) {
	r := &c.rows
	due := c.paces[forHand].until
	if r.bequest != nil {
		due = latest(due, r.budget.when(now))
	}
	switch {
	case due.After(now):
		return nil, due
	case r.bequest == nil:
		return &request{Request: c.getNode(true), kind: forHand, reads: true, fresh: true}, now
	}
	r.budget.take(now)
	asked := c.applyRows(HandManager, false, r.bequest.version, r.bequest.rows)
	return &request{Request: asked, kind: forHand, placeholder: len(r.bequest.rows) == 0}, now
}

// nextSweep deletes rows that nobody keeps, once that is certain.
func (c *core) nextSweep(now time.Time) (*request, time.Time) {
	r := &c.rows
	if !r.stray {
		return nil, time.Time{}
	}
	due := c.paces[forSweep].until
	if r.litter != nil {
		due = latest(due, r.budget.when(now))
	}
	switch {
	case due.After(now):
		return nil, due
	case r.litter == nil:
		return &request{Request: c.getNode(true), kind: forSweep, reads: true, fresh: true}, now
	}
	r.budget.take(now)
	return &request{Request: c.erase(r.litter.version, r.litter.kinds...), kind: forSweep, litter: r.litter}, now
}

func (c *core) nextLease(now time.Time) (*request, time.Time) {
	if c.cfg.LeaseNamespace == "" {
		return nil, time.Time{}
	}
	due := latest(c.leased, c.paces[forLease].until)
	switch {
	case due.After(now):
		return nil, due
	case c.uid == "":
		return c.askLook(now) // without an owner it would outlive its node
	}
	return &request{Request: c.applyLease(now), kind: forLease}, now
}

// askLook looks at the Node, if that is not to be left alone for a while.
func (c *core) askLook(now time.Time) (*request, time.Time) {
	if wait := c.paces[forLook].until; wait.After(now) {
		return nil, wait
	}
	return &request{Request: c.getNode(c.doubt), kind: forLook, reads: true, fresh: c.doubt}, now
}

func (c *core) nextLook(now time.Time) (*request, time.Time) {
	if c.cfg.WithoutConditions || c.rows.said == nil {
		return nil, time.Time{} // there is nothing of ours to look at
	}
	if c.lookAt.After(now) {
		return nil, c.lookAt
	}
	return c.askLook(now)
}

func (c *core) nextEvent(now time.Time) (*request, time.Time) {
	if wait := c.paces[forEvent].until; wait.After(now) {
		return nil, wait
	}
	lane, event, at := c.lanes.next(now)
	if event == nil {
		return nil, at
	}
	return &request{Request: c.createEvent(event), kind: forEvent, lane: lane, event: event}, now
}

// figures are the counts, with what is so now.
func (c *core) figures() Counts {
	copied := c.counts.clone()
	copied.EventsQueued = c.lanes.queued
	copied.Yielded = c.rows.state.clone().Yielded
	copied.Pending = !c.cfg.WithoutConditions && c.rows.dirty()
	return copied
}
