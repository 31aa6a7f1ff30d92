package report

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/times"
)

// The kinds of requests. They are labels of a metric.
const (
	requestConditions  = "conditions"
	requestPlaceholder = "placeholder"
	requestHandover    = "handover"
	requestOrphans     = "orphans"
	requestRead        = "read"
	requestLease       = "lease"
	requestEvent       = "event"
)

// request is a request to the API server, with the data that it was built from.
type request struct {
	kubeapi.Request
	kind        string
	conditions  map[string]condition
	placeholder bool // the request writes the placeholder, because there is no condition to write
	removes     bool // the request no longer contains conditions that the agent wrote before
	readsNode   bool // the response must be a Node
	fresh       bool // the read must bypass the API server's watch cache
	orphans     *orphanConditions
	queue       *reasonQueue
	event       *queuedEvent
	repeats     bool // the request raises the count of a stored Event
	retry       bool // an earlier attempt to send the Event may have succeeded
}

// core decides which request to send next. The Reporter passes findings to take, sends the
// request that next returns, and passes the result to answer, one request at a time.
type core struct {
	cfg    Config
	log    *slog.Logger
	random func() float64 // from 0 to 1

	began      time.Time
	complete   bool // every source has reported its conditions once
	conditions conditions
	events     eventQueues
	counts     Counts
	logged     logged

	outage      backoff             // for all requests
	backoffs    map[string]*backoff // by kind of request
	checkAt     time.Time
	bypassCache bool // the API server's watch cache may be stale
	lease       lease
	uid         string // of the Node
	// missing and forbidden say why the API server takes no conditions: there is no such node, or
	// the agent lacks the right. Both are empty if it takes them.
	missing, forbidden string
}

// logged is what the log already says.
type logged struct {
	dropped     map[string]bool // conditions that are not written
	rejected    bool            // the API server rejects an Event
	uncounted   bool            // the API server forbids to raise the count of an Event
	secondAgent bool            // a second agent uses this field manager
}

// lease is the Lease of the agent.
type lease struct {
	dueAt   time.Time
	version string        // the resourceVersion after the last renewal
	skew    time.Duration // how far the API server's clock is ahead
}

// setClock compares the clock with the API server's. The Date header is zero if the API server
// did not send it.
func (l *lease) setClock(now, date time.Time) {
	if date.IsZero() {
		return
	}
	if l.skew = date.Sub(now); l.skew.Abs() <= maxClockError {
		l.skew = 0
	}
}

func newCore(cfg Config, random func() float64, now time.Time) *core {
	c := &core{
		cfg: cfg, log: cfg.Logger, random: random, began: now, conditions: newConditions(cfg.TakeOver, cfg.Remembered),
		logged: logged{dropped: map[string]bool{}}, backoffs: map[string]*backoff{}, lease: lease{dueAt: now},
		counts: Counts{Requests: map[Outcome]uint64{}, Dropped: map[Drop]uint64{}},
	}
	c.events = newEventQueues(&c.counts)
	for _, kind := range []string{requestConditions, requestPlaceholder, requestHandover, requestOrphans, requestRead, requestLease, requestEvent} {
		c.backoffs[kind] = &backoff{}
	}
	c.checkAt = now.Add(c.checkInterval())
	return c
}

// checkInterval returns a random time until the next check of the Node, so that the agents of
// a cluster do not read their Nodes at the same moment.
func (c *core) checkInterval() time.Duration {
	return c.cfg.LookEvery/2 + time.Duration(c.random()*float64(c.cfg.LookEvery)/2)
}

// take adds the findings of one source.
func (c *core) take(now time.Time, r finding.Report) {
	if !c.cfg.WithoutConditions {
		for _, kind := range r.Gone {
			delete(c.conditions.wanted, kind)
		}
		for _, condition := range r.Conditions {
			if err := Writable(condition.Type); err != nil {
				why := "native"
				if len(condition.Type) > LongestType {
					why = "too long"
				}
				c.dropCondition(condition.Type, why, err)
				continue
			}
			if _, known := c.conditions.wanted[condition.Type]; !known && len(c.conditions.wanted) >= MostConditions {
				c.dropCondition(condition.Type, "too many", fmt.Errorf("the agent already writes %d conditions, the maximum: remove some from its configuration", MostConditions))
				continue
			}
			c.conditions.wanted[condition.Type] = toCondition(condition, now)
			delete(c.conditions.awaited.values, condition.Type)
		}
	}
	if !c.cfg.WithoutEvents {
		for _, event := range r.Events {
			c.events.add(now, r.Source, event)
		}
	}
}

func (c *core) dropCondition(kind, why string, err error) {
	c.counts.Dropped[Drop{Kind: "condition", Why: why}]++
	if !c.logged.dropped[kind] && len(c.logged.dropped) < maxReasons {
		c.logged.dropped[kind] = true
		c.log.Error("condition not written", "condition", kind, "err", err)
	}
}

// next returns the request to send now. If there is none, it returns when to call next again;
// the zero time means not before new findings.
func (c *core) next(now time.Time) (*request, time.Time) {
	if c.outage.until.After(now) {
		return nil, c.outage.until
	}
	var soonest time.Time
	for _, ask := range []func(time.Time) (*request, time.Time){c.nextConditions, c.nextLease, c.nextCheck, c.nextEvent} {
		req, at := ask(now)
		if req != nil {
			return req, now
		}
		soonest = times.Earliest(soonest, at)
	}
	return nil, soonest
}

func (c *core) nextConditions(now time.Time) (*request, time.Time) {
	r := &c.conditions
	// An apply removes the conditions that it leaves out, so the first apply waits until every
	// source has reported. With WithoutConditions there is nothing to wait for: the apply
	// removes the conditions of an earlier run.
	if due := c.began.Add(maxStartupWait); !c.complete && !c.cfg.WithoutConditions && due.After(now) {
		return nil, due
	}
	if r.removal.unremovable.conditions != nil && !r.removal.unremovable.until.After(now) {
		r.removal.unremovable.conditions = nil
	}
	switch {
	case r.hasPlaceholder && (!r.dirty() || !c.backoffs[requestPlaceholder].until.After(now)): // a failing deletion must not delay new conditions
		due := latest(c.backoffs[requestPlaceholder].until, r.budget.availableAt(now))
		if due.After(now) {
			return nil, due
		}
		r.budget.take(now)
		return &request{Request: c.deleteConditions("", placeholder), kind: requestPlaceholder}, now
	case r.dirty():
		return c.nextApply(now)
	}
	req, due := c.nextOrphans(now)
	if r.removal.unremovable.conditions != nil {
		due = times.Earliest(due, r.removal.unremovable.until)
	}
	if req == nil && r.removal.needsHandover {
		var at time.Time
		req, at = c.nextHandover(now)
		due = times.Earliest(due, at)
	}
	return req, due
}

// nextApply applies the conditions of the agent, as soon as the conditions that it leaves out
// may be removed.
func (c *core) nextApply(now time.Time) (*request, time.Time) {
	r := &c.conditions
	due := latest(c.backoffs[requestConditions].until, r.lastApply.Add(coalesce), r.budget.availableAt(now))
	switch {
	case due.After(now):
		return nil, due
	case !r.mayRemove():
		return c.nextHandover(now)
	}
	r.budget.take(now)
	r.lastApply = now
	toApply, version, removes := r.toApply(), "", len(r.obsolete()) > 0
	if removes && r.removal.plan != nil {
		version = r.removal.plan.version
	}
	for _, kind := range r.newlyOverLimit(toApply) {
		c.dropCondition(kind, "too many", fmt.Errorf("the agent already writes %d conditions, the maximum, including conditions of an earlier configuration: it writes this one when some of them are removed", MostConditions))
	}
	list := append(toAPIConditions(toApply, now), r.preserved(toApply)...)
	if r.owned != nil {
		for kind := range toApply {
			r.owned[kind] = true
		}
	}
	req := c.applyConditions(FieldManager, r.force, version, list)
	return &request{Request: req, kind: requestConditions, conditions: toApply, removes: removes, placeholder: len(list) == 0}, now
}

// nextHandover reads which fields of the agent's conditions other managers own, and hands over
// the fields that must not vanish when the agent removes its conditions.
func (c *core) nextHandover(now time.Time) (*request, time.Time) {
	r := &c.conditions
	due := c.backoffs[requestHandover].until
	if r.removal.handover != nil {
		due = latest(due, r.budget.availableAt(now))
	}
	switch {
	case due.After(now):
		return nil, due
	case r.removal.handover == nil:
		return &request{Request: c.getNode(true), kind: requestHandover, readsNode: true, fresh: true}, now
	}
	r.budget.take(now)
	req := c.applyConditions(HandManager, false, r.removal.handover.version, r.removal.handover.conditions)
	return &request{Request: req, kind: requestHandover, placeholder: len(r.removal.handover.conditions) == 0}, now
}

// nextOrphans deletes orphaned conditions, after a read that bypasses the cache has confirmed
// them.
func (c *core) nextOrphans(now time.Time) (*request, time.Time) {
	r := &c.conditions
	if !r.orphans.possible {
		return nil, time.Time{}
	}
	due := c.backoffs[requestOrphans].until
	if r.orphans.found != nil {
		due = latest(due, r.budget.availableAt(now))
	}
	switch {
	case due.After(now):
		return nil, due
	case r.orphans.found == nil:
		return &request{Request: c.getNode(true), kind: requestOrphans, readsNode: true, fresh: true}, now
	}
	r.budget.take(now)
	return &request{Request: c.deleteConditions(r.orphans.found.version, r.orphans.found.kinds...), kind: requestOrphans, orphans: r.orphans.found}, now
}

func (c *core) nextLease(now time.Time) (*request, time.Time) {
	if c.cfg.LeaseNamespace == "" {
		return nil, time.Time{}
	}
	due := latest(c.lease.dueAt, c.backoffs[requestLease].until)
	switch {
	case due.After(now):
		return nil, due
	case c.uid == "":
		return c.requestNode(now) // a Lease without an owner reference would outlive its Node
	}
	return &request{Request: c.applyLease(now), kind: requestLease}, now
}

// requestNode reads the Node, unless earlier reads failed and the backoff has not ended.
func (c *core) requestNode(now time.Time) (*request, time.Time) {
	if wait := c.backoffs[requestRead].until; wait.After(now) {
		return nil, wait
	}
	return &request{Request: c.getNode(c.bypassCache), kind: requestRead, readsNode: true, fresh: c.bypassCache}, now
}

func (c *core) nextCheck(now time.Time) (*request, time.Time) {
	if c.cfg.WithoutConditions || c.conditions.applied == nil {
		return nil, time.Time{} // the agent has written no condition that could be checked
	}
	if c.checkAt.After(now) {
		return nil, c.checkAt
	}
	return c.requestNode(now)
}

func (c *core) nextEvent(now time.Time) (*request, time.Time) {
	if wait := c.backoffs[requestEvent].until; wait.After(now) {
		return nil, wait
	}
	queue, event, at := c.events.next(now)
	if event == nil {
		return nil, at
	}
	req := &request{kind: requestEvent, queue: queue, event: event, retry: event.stored != nil}
	if !req.retry {
		id, key := event.ID, finding.ID(c.uid, event.source, string(event.Severity), event.Reason, event.message())
		if n := event.count(); n > 1 {
			id = finding.ID(id, strconv.FormatUint(n, 10)) // the Event of one of them may exist already
		}
		event.stored = c.events.findStored(now, key, eventName(c.cfg.Node, id))
	}
	if req.repeats = event.stored.count > 0; req.repeats {
		req.Request = c.updateEvent(event)
	} else {
		req.Request = c.createEvent(event)
	}
	return req, now
}

// snapshot returns a copy of the counts, with the values that are computed on demand.
func (c *core) snapshot() Counts {
	copied := c.counts.clone()
	copied.EventsQueued = c.events.queued
	copied.Yielded = c.conditions.sharing.state.clone().Yielded
	copied.Pending = !c.cfg.WithoutConditions && c.conditions.dirty()
	return copied
}
