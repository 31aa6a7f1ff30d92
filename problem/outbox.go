package problem

import (
	"slices"
	"time"
)

// pauseRefused is how long a condition that the agent refused is left out, so that it does not
// block the others. The agent's configuration may change in the meantime.
const pauseRefused = time.Minute

// outbox contains what waits to be sent. It has no clock and no connection.
type outbox struct {
	capacity   int
	events     []Event           // oldest first
	sending    []Event           // the events of the status that is being sent
	conditions []*conditionEntry // in the order in which they were first set
	news       bool              // there are changes since the last status
	dropped    uint64            // events that were dropped because of a full queue or a failure
	refused    uint64            // events that the agent refused
	delivered  uint64
}

// conditionEntry is a condition of the source in the form in which it is sent.
type conditionEntry struct {
	Condition
	set         Condition // as the daemon has set it
	pausedUntil time.Time // it is left out until then
}

func (o *outbox) report(e Event) {
	o.events = append(o.events, e)
	o.news = true
	o.trim()
}

// trim drops the oldest events if the queue is full.
func (o *outbox) trim() {
	if over := len(o.events) - o.capacity; over > 0 {
		o.dropped += uint64(over)
		o.events = slices.Delete(o.events, 0, over)
	}
}

// set records a condition. The default transition is now if the status changes, and otherwise the
// previous transition.
func (o *outbox) set(c Condition, now time.Time) {
	i := slices.IndexFunc(o.conditions, func(s *conditionEntry) bool { return s.Type == c.Type })
	if i < 0 {
		o.conditions = append(o.conditions, &conditionEntry{})
		i = len(o.conditions) - 1
	}
	known, asked := o.conditions[i], c
	if known.set == asked {
		return
	}
	if c.Transition.IsZero() {
		if c.Transition = now; known.Type != "" && known.Status == c.Status {
			c.Transition = known.Transition
		}
	}
	o.news = o.news || known.Condition != c
	o.conditions[i] = &conditionEntry{Condition: c, set: asked} // a new condition may be valid, so it is sent at once
}

// restamp moves all times that are in the future to now. It returns whether there were any.
func (o *outbox) restamp(now time.Time) (done bool) {
	for i := range o.sending {
		if e := &o.sending[i]; e.Timestamp.After(now) {
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

// load builds the next status with at most most events. They count as being sent until land, back,
// lose or withdraw is called.
func (o *outbox) load(source string, most int, now time.Time) Status {
	status := Status{Source: source, Events: []Event{}, Conditions: []Condition{}}
	n := min(most, len(o.events))
	o.sending = slices.Clone(o.events[:n])
	o.events = slices.Delete(o.events, 0, n)
	slices.SortStableFunc(o.sending, func(a, b Event) int { return a.Timestamp.Compare(b.Timestamp) })
	status.Events = append(status.Events, o.sending...)
	for _, c := range o.conditions {
		if !now.Before(c.pausedUntil) {
			status.Conditions = append(status.Conditions, c.Condition)
		}
	}
	o.news = len(o.events) > 0
	return status
}

// land records that the status was delivered.
func (o *outbox) land() {
	o.delivered += uint64(len(o.sending))
	o.sending = nil
}

// back returns the events that were being sent to the queue.
func (o *outbox) back() {
	o.events = slices.Concat(o.sending, o.events)
	o.sending = nil
	o.news = true
	o.trim()
}

// lose drops the events that were being sent. Conditions are sent again.
func (o *outbox) lose() {
	o.dropped += uint64(len(o.sending))
	o.sending = nil
	o.news = o.news || len(o.conditions) > 0
}

// withdraw drops events that the agent refused: the one at an index, or all if it is negative.
func (o *outbox) withdraw(place int) {
	if place >= 0 && place < len(o.sending) {
		o.sending = slices.Delete(o.sending, place, place+1)
		o.refused++
		return
	}
	o.refused += uint64(len(o.sending))
	o.sending = nil
	o.news = o.news || len(o.conditions) > 0
}

// find returns the current entry of a condition, nil if it has changed since it was sent.
func (o *outbox) find(told Condition) *conditionEntry {
	for _, c := range o.conditions {
		if c.Condition == told {
			return c
		}
	}
	return nil
}
