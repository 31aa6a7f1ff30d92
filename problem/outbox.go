package problem

import (
	"slices"
	"time"
)

// A condition that the agent does not take is left out for so long, lest it hold up all
// others. The agent may be told to take it meanwhile.
const banishment = time.Minute

// outbox is what waits to be told. It has no clock and no connection.
type outbox struct {
	room       int
	events     []Event     // from the one that was reported first on
	flying     []Event     // those of the status that is on its way
	conditions []*standing // in the order in which they were first set
	news       bool        // something was set or reported since the last status was made
	dropped    uint64      // events for which there was no room, or that did not get there
	refused    uint64      // events that the agent did not take
	delivered  uint64
}

// standing is a condition that the source keeps, as it is told.
type standing struct {
	Condition
	asked    Condition // as the daemon has set it
	banished time.Time // until when it is left out
}

func (o *outbox) report(e Event) {
	o.events = append(o.events, e)
	o.news = true
	o.trim()
}

// trim makes room.
func (o *outbox) trim() {
	if over := len(o.events) - o.room; over > 0 {
		o.dropped += uint64(over)
		o.events = slices.Delete(o.events, 0, over)
	}
}

// set notes how a condition stands. Without a transition it is the present if the status
// is another one, and else what it was.
func (o *outbox) set(c Condition, now time.Time) {
	i := slices.IndexFunc(o.conditions, func(s *standing) bool { return s.Type == c.Type })
	if i < 0 {
		o.conditions = append(o.conditions, &standing{})
		i = len(o.conditions) - 1
	}
	known, asked := o.conditions[i], c
	if known.asked == asked {
		return
	}
	if c.Transition.IsZero() {
		if c.Transition = now; known.Type != "" && known.Status == c.Status {
			c.Transition = known.Transition
		}
	}
	o.news = o.news || known.Condition != c
	o.conditions[i] = &standing{Condition: c, asked: asked} // whoever sets it anew may have put it right
}

// restamp says of all that is to come that it is now. It says whether there was any.
func (o *outbox) restamp(now time.Time) (done bool) {
	for i := range o.flying {
		if e := &o.flying[i]; e.Timestamp.After(now) {
			e.Timestamp, done = now, true
		}
	}
	for _, c := range o.conditions {
		if c.Transition.After(now) {
			c.Transition, done = now, true
		}
	}
	return done
}

// load makes the next status, with so many events at most. What is in it is on its way
// until land or fail is called.
func (o *outbox) load(source string, most int, now time.Time) Status {
	status := Status{Source: source, Events: []Event{}, Conditions: []Condition{}}
	n := min(most, len(o.events))
	o.flying = slices.Clone(o.events[:n])
	o.events = slices.Delete(o.events, 0, n)
	slices.SortStableFunc(o.flying, func(a, b Event) int { return a.Timestamp.Compare(b.Timestamp) })
	status.Events = append(status.Events, o.flying...)
	for _, c := range o.conditions {
		if !now.Before(c.banished) {
			status.Conditions = append(status.Conditions, c.Condition)
		}
	}
	o.news = len(o.events) > 0
	return status
}

// land notes that the status got there.
func (o *outbox) land() {
	o.delivered += uint64(len(o.flying))
	o.flying = nil
}

// back returns what is on its way to those that wait, to be sent again.
func (o *outbox) back() {
	o.events = slices.Concat(o.flying, o.events)
	o.flying = nil
	o.news = true
	o.trim()
}

// lose gives up the events that are on their way. The conditions are told again.
func (o *outbox) lose() {
	o.dropped += uint64(len(o.flying))
	o.flying = nil
	o.news = o.news || len(o.conditions) > 0
}

// withdraw gives up events that the agent does not take: one by its place, or all.
func (o *outbox) withdraw(place int) {
	if place >= 0 && place < len(o.flying) {
		o.flying = slices.Delete(o.flying, place, place+1)
		o.refused++
		return
	}
	o.refused += uint64(len(o.flying))
	o.flying = nil
	o.news = o.news || len(o.conditions) > 0
}

// find returns a condition as it is by now, nil if it is not the one that was told.
func (o *outbox) find(told Condition) *standing {
	for _, c := range o.conditions {
		if c.Condition == told {
			return c
		}
	}
	return nil
}
