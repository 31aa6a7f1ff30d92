package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/times"
)

const (
	maxReasons       = 64 // per source; further reasons share one queue
	maxQueuedChanges = 64 // per condition

	reasonBurst = 10
	reasonEvery = 10 * time.Second // per reason
	changeEvery = time.Second      // per condition

	// repeatWithin is the time after a write of an Event within which a repetition raises its
	// count. The API server deletes an Event an hour after the last write by default.
	repeatWithin = 30 * time.Minute
	maxStored    = 256 // Events whose count the agent remembers
)

// queuedEvent is an Event that is waiting to be sent.
type queuedEvent struct {
	finding.Event
	source  string
	repeats uint64 // how many earlier Events with the same text this Event stands for
	merged  uint64 // how many other earlier Events this Event stands for
	since   time.Time
	// stored is what the first attempt to send this Event wrote to. The attempt may have
	// succeeded although its response was lost. So this Event takes no more repetitions, and
	// each further attempt sends the same.
	stored *storedEvent
	// forbidden is how often the API server has forbidden to send this Event again.
	forbidden int
}

// maxForbidden is how often the agent sends an Event again that the API server forbids.
const maxForbidden = 8

// storedEvent is an Event of the API server. Only the agent writes it, so the agent knows its
// count, and can send an update of the whole count twice.
type storedEvent struct {
	key   string // identifies Events with the same text about the same Node
	name  string
	count uint64    // of the Events that the API server has confirmed; 0 before it has created this one
	until time.Time // a later repetition becomes a new Event
}

// message returns the message of the Event, with the number of merged Events.
func (w *queuedEvent) message() string {
	var more string
	if w.merged > 0 {
		more = fmt.Sprintf(" (and %d more since %s)", w.merged, w.since.UTC().Format("15:04:05Z"))
	}
	return text.Message(w.Message, LongestMessage-len(more)) + more
}

// count returns how many Events this Event stands for, including itself.
func (w *queuedEvent) count() uint64 { return w.repeats + w.merged + 1 }

// isRepeatedBy reports whether this Event can also count an Event with the same text. The same
// occurrence, found again, is not: the API server recognizes it by its name.
func (w *queuedEvent) isRepeatedBy(e *queuedEvent) bool {
	return w.stored == nil && w.merged == 0 && w.ID != e.ID &&
		w.source == e.source && w.Severity == e.Severity && w.Reason == e.Reason && w.Message == e.Message
}

// reasonQueue holds the Events of a reason, or the changes of a condition, from one source.
// Each has its own rate limit.
type reasonQueue struct {
	parent *sourceQueue
	name   string
	budget tokenBucket
	events []*queuedEvent
	// overflow is the newest Event that exceeded the rate limit. It stands for all Events that
	// did. Changes of a condition are never merged.
	overflow   *queuedEvent
	sending    bool   // one of the Events is being sent
	lastServed uint64 // the turn in which it last sent an Event
}

func (l *reasonQueue) idle(now time.Time) bool {
	return l.empty() && !l.sending && l.budget.full(now)
}

func (l *reasonQueue) empty() bool { return len(l.events) == 0 && l.overflow == nil }

// eventQueues holds all Events that are waiting. Every queue has a bound.
type eventQueues struct {
	sources []*sourceQueue
	budget  tokenBucket // for all Events except changes of conditions
	turns   uint64      // number of Events taken so far
	queued  uint64      // including merged Events
	counts  *Counts
	stored  []*storedEvent // the last written one at the end
}

func newEventQueues(counts *Counts) eventQueues {
	return eventQueues{budget: newTokenBucket(nodeBurst, nodeEvery), counts: counts}
}

// add queues an Event.
func (l *eventQueues) add(now time.Time, source string, found finding.Event) {
	found.Message, found.Reason = text.Message(found.Message, LongestMessage), text.Message(found.Reason, LongestReason)
	found.Time = validTime(found.Time, now)
	l.counts.EventsTaken++
	l.queued++
	event := &queuedEvent{Event: found, source: source, since: found.Time}
	change := found.Condition != ""
	name := found.Reason
	if change {
		name = found.Condition
	}
	queue := l.queueFor(now, source, change).queueFor(now, name)
	repeated := queue.repeatedBy(event)
	switch {
	case repeated != nil:
		repeated.Event = found
		repeated.repeats++
	case change:
		queue.events = append(queue.events, event)
		l.trim(queue)
	case queue.overflow == nil && queue.hasRoom(now):
		queue.events = append(queue.events, event)
	case queue.overflow == nil:
		queue.overflow = event
	default:
		// Keep the newest Event, and count the others.
		event.merged, event.since = queue.overflow.count(), queue.overflow.since
		queue.overflow = event
	}
}

// repeatedBy returns the waiting Event that an Event repeats, or nil.
func (l *reasonQueue) repeatedBy(e *queuedEvent) *queuedEvent {
	if at := slices.IndexFunc(l.events, func(w *queuedEvent) bool { return w.isRepeatedBy(e) }); at >= 0 {
		return l.events[at]
	}
	if l.overflow != nil && l.overflow.isRepeatedBy(e) {
		return l.overflow
	}
	return nil
}

// hasRoom reports whether the rate limits allow another Event without merging.
func (l *reasonQueue) hasRoom(now time.Time) bool {
	l.budget.fill(now)
	l.parent.budget.fill(now)
	return len(l.events) < l.budget.tokens && l.parent.eventCount() < l.parent.budget.tokens
}

// trim drops the oldest Event of a queue that is too long.
func (l *eventQueues) trim(queue *reasonQueue) {
	if len(queue.events) > maxQueuedChanges {
		l.drop(queue, queue.events[0], "queue full")
		queue.events = slices.Delete(queue.events, 0, 1)
	}
}

// drop counts an Event, and all Events merged into it, as dropped.
func (l *eventQueues) drop(queue *reasonQueue, event *queuedEvent, why string) {
	l.queued -= event.count()
	l.counts.Dropped[Drop{Kind: queue.parent.kind(), Why: why}] += event.count()
}

// next returns an Event that may be sent now, or the time of the next Event. Changes of
// conditions go first; then sources take turns.
func (l *eventQueues) next(now time.Time) (*reasonQueue, *queuedEvent, time.Time) {
	var soonest time.Time
	for _, change := range []bool{true, false} {
		var chosen *reasonQueue
		for _, source := range l.sources {
			if source.change != change {
				continue
			}
			queue, at := source.next(now)
			if queue != nil && !change {
				at = l.budget.availableAt(now)
			}
			switch {
			case queue == nil || at.After(now):
				soonest = times.Earliest(soonest, at)
			case chosen == nil || source.lastServed < chosen.parent.lastServed:
				chosen = queue
			}
		}
		if chosen != nil {
			return chosen, l.take(now, chosen), now
		}
	}
	return nil, nil, soonest
}

// take removes the next Event from a queue.
func (l *eventQueues) take(now time.Time, queue *reasonQueue) *queuedEvent {
	l.turns++
	queue.lastServed, queue.parent.lastServed = l.turns, l.turns
	queue.budget.take(now)
	queue.parent.budget.take(now)
	if !queue.parent.change {
		l.budget.take(now)
	}
	queue.sending = true
	event := queue.overflow
	if len(queue.events) > 0 {
		event = queue.events[0]
		queue.events = slices.Delete(queue.events, 0, 1)
	} else {
		queue.overflow = nil
	}
	return event
}

// findStored returns the Event to write a queued Event to: a stored Event that it repeats, or a
// new Event with this name.
func (l *eventQueues) findStored(now time.Time, key, name string) *storedEvent {
	at := slices.IndexFunc(l.stored, func(s *storedEvent) bool { return s.key == key })
	if at >= 0 && now.Before(l.stored[at].until) && l.stored[at].name != name {
		return l.stored[at]
	}
	return &storedEvent{key: key, name: name}
}

// remember records that a stored Event counts a queued Event.
func (l *eventQueues) remember(now time.Time, s *storedEvent, count uint64) {
	s.count, s.until = s.count+count, now.Add(repeatWithin)
	l.stored = slices.DeleteFunc(l.stored, func(other *storedEvent) bool { return other.key == s.key })
	if len(l.stored) == maxStored {
		l.stored = slices.Delete(l.stored, 0, 1)
	}
	l.stored = append(l.stored, s)
}

// delivered records that the API server has stored an Event.
func (l *eventQueues) delivered(queue *reasonQueue, event *queuedEvent) {
	queue.sending = false
	l.queued -= event.count()
	l.counts.EventsSent++
	l.counts.EventsSummed += event.count() - 1 // counted only after delivery
}

// rejected drops an Event that the API server will never accept.
func (l *eventQueues) rejected(queue *reasonQueue, event *queuedEvent) {
	queue.sending = false
	l.drop(queue, event, "refused")
}

// requeue puts an Event back to the front, to be sent again.
func (l *eventQueues) requeue(queue *reasonQueue, event *queuedEvent) {
	queue.sending = false
	queue.budget.giveBack()
	queue.parent.budget.giveBack()
	if !queue.parent.change {
		l.budget.giveBack()
	}
	queue.events = slices.Insert(queue.events, 0, event)
	l.trim(queue)
}

// dropAll counts all queued Events as dropped.
func (l *eventQueues) dropAll(why string) {
	for _, source := range l.sources {
		for _, queue := range source.reasons {
			for _, event := range queue.events {
				l.drop(queue, event, why)
			}
			queue.events = nil
			if queue.overflow != nil {
				l.drop(queue, queue.overflow, why)
				queue.overflow = nil
			}
		}
	}
}
