package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
)

const (
	mostLanes   = 64 // of one road; what has none of its own shares one
	mostWaiting = 64 // changes of one condition

	burst       = 10
	eventEvery  = 10 * time.Second // of one reason
	changeEvery = time.Second      // of one condition
)

// waiting is an Event that is on its way.
type waiting struct {
	finding.Event
	source string
	more   uint64 // that are summed up in it
	since  time.Time
}

// words are the Event's message, with what is summed up in it.
func (w *waiting) words() string {
	var more string
	if w.more > 0 {
		more = fmt.Sprintf(" (and %d more since %s)", w.more, w.since.UTC().Format("15:04:05Z"))
	}
	return cut(w.Message, LongestMessage-len(more)) + more
}

// stands is for how many it stands.
func (w *waiting) stands() uint64 { return w.more + 1 }

// lane keeps the Events of one reason, or of the changes of one condition, apart from all
// others of the same source.
type lane struct {
	road    *road
	name    string
	budget  bucket
	waiting []*waiting
	// held is the newest of those for which there was no room, and stands for all of them.
	// Changes of a condition are never summed up.
	held   *waiting
	away   bool   // one is being sent
	served uint64 // when it had its turn
}

func (l *lane) idle(now time.Time) bool {
	return l.empty() && !l.away && l.budget.full(now)
}

func (l *lane) empty() bool { return len(l.waiting) == 0 && l.held == nil }

// lanes are all Events that wait. None of their queues is without bound.
type lanes struct {
	roads  []*road
	budget bucket // of all Events but changes
	turns  uint64 // that were had
	queued uint64 // with those that are summed up
	counts *Counts
}

func newLanes(counts *Counts) lanes {
	return lanes{budget: newBucket(nodeBurst, nodeEvery), counts: counts}
}

// post takes an Event in.
func (l *lanes) post(now time.Time, source string, event finding.Event) {
	event.Message, event.Reason = cut(event.Message, LongestMessage), cut(event.Reason, LongestReason)
	event.Time = stamp(event.Time, now)
	l.counts.EventsTaken++
	l.queued++
	one := &waiting{Event: event, source: source}
	change := event.Condition != ""
	name := event.Reason
	if change {
		name = event.Condition
	}
	lane := l.road(now, source, change).lane(now, name)
	switch {
	case change:
		lane.waiting = append(lane.waiting, one)
		l.trim(lane)
	case lane.held == nil && lane.hasRoom(now):
		lane.waiting = append(lane.waiting, one)
	case lane.held == nil:
		lane.held = one
	default:
		// The newest is told, and how many there were.
		one.more, one.since = lane.held.more+1, lane.held.since
		if lane.held.more == 0 {
			one.since = lane.held.Time
		}
		lane.held = one
	}
}

// hasRoom says whether one more may go as it is, and need not be summed up.
func (l *lane) hasRoom(now time.Time) bool {
	l.budget.fill(now)
	l.road.budget.fill(now)
	return len(l.waiting) < l.budget.left && l.road.waiting() < l.road.budget.left
}

// trim drops the oldest of a queue that is too long.
func (l *lanes) trim(lane *lane) {
	if len(lane.waiting) > mostWaiting {
		l.drop(lane, lane.waiting[0], "queue full")
		lane.waiting = slices.Delete(lane.waiting, 0, 1)
	}
}

// drop counts an Event as dropped, and with it all that are summed up in it.
func (l *lanes) drop(lane *lane, one *waiting, why string) {
	l.queued -= one.stands()
	l.counts.Dropped[Drop{Kind: lane.road.kind(), Why: why}] += one.stands()
}

// next returns an Event that may go now, and otherwise when one may: changes of conditions
// first, and then every source in its turn.
func (l *lanes) next(now time.Time) (*lane, *waiting, time.Time) {
	var soonest time.Time
	for _, change := range []bool{true, false} {
		var chosen *lane
		for _, road := range l.roads {
			if road.change != change {
				continue
			}
			lane, at := road.next(now)
			if lane != nil && !change {
				at = l.budget.when(now)
			}
			switch {
			case lane == nil || at.After(now):
				soonest = earlier(soonest, at)
			case chosen == nil || road.served < chosen.road.served:
				chosen = lane
			}
		}
		if chosen != nil {
			return chosen, l.take(now, chosen), now
		}
	}
	return nil, nil, soonest
}

// take takes the next Event out of a lane.
func (l *lanes) take(now time.Time, lane *lane) *waiting {
	l.turns++
	lane.served, lane.road.served = l.turns, l.turns
	lane.budget.take(now)
	lane.road.budget.take(now)
	if !lane.road.change {
		l.budget.take(now)
	}
	lane.away = true
	one := lane.held
	if len(lane.waiting) > 0 {
		one = lane.waiting[0]
		lane.waiting = slices.Delete(lane.waiting, 0, 1)
	} else {
		lane.held = nil
	}
	return one
}

// delivered notes that an Event is in the API server.
func (l *lanes) delivered(lane *lane, one *waiting) {
	lane.away = false
	l.queued -= one.stands()
	l.counts.EventsSent++
	l.counts.EventsSummed += one.more // which is not so before it is told
}

// refused notes that nobody will ever take an Event.
func (l *lanes) refused(lane *lane, one *waiting) {
	lane.away = false
	l.drop(lane, one, "refused")
}

// failed puts an Event back, to be sent again.
func (l *lanes) failed(lane *lane, one *waiting) {
	lane.away = false
	lane.budget.giveBack()
	lane.road.budget.giveBack()
	if !lane.road.change {
		l.budget.giveBack()
	}
	lane.waiting = slices.Insert(lane.waiting, 0, one)
	l.trim(lane)
}

// abandon counts what is left as dropped.
func (l *lanes) abandon(why string) {
	for _, road := range l.roads {
		for _, lane := range road.lanes {
			for _, one := range lane.waiting {
				l.drop(lane, one, why)
			}
			lane.waiting = nil
			if lane.held != nil {
				l.drop(lane, lane.held, why)
				lane.held = nil
			}
		}
	}
}

// earlier is the earlier of two times, of which a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
