package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/symptom"
)

const (
	mostLanes   = 64 // of each kind; what has none of its own shares one
	mostWaiting = 64 // changes of one condition

	burst       = 10
	eventEvery  = 10 * time.Second // of one reason
	changeEvery = time.Second      // of one condition
)

// waiting is an Event that is on its way.
type waiting struct {
	symptom.Event
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
	return cut(w.Message, longestEventMessage-len(more)) + more
}

// stands is for how many it stands.
func (w *waiting) stands() uint64 { return w.more + 1 }

// lane keeps the Events of one reason, or of the changes of one condition, apart from all
// others.
type lane struct {
	key     laneKey
	budget  bucket
	waiting []*waiting
	// held is the newest of those for which there was no room, and stands for all of them.
	// Changes of a condition are never summed up.
	held *waiting
	away bool // one is being sent
}

type laneKey struct {
	change bool
	name   string
}

func newLane(key laneKey) *lane {
	every := eventEvery
	if key.change {
		every = changeEvery
	}
	return &lane{key: key, budget: newBucket(burst, every)}
}

func (l *lane) idle(now time.Time) bool {
	l.budget.fill(now)
	return len(l.waiting) == 0 && l.held == nil && !l.away && l.budget.left == l.budget.most
}

// lanes are all Events that wait. None of their queues is without bound.
type lanes struct {
	list   []*lane
	by     map[laneKey]*lane
	turn   int    // whose it is
	queued uint64 // with those that are summed up
	counts *Counts
}

// post takes an Event in.
func (l *lanes) post(now time.Time, source string, event symptom.Event) {
	event.Message, event.Reason = cut(event.Message, longestEventMessage), cut(event.Reason, longestReason)
	event.Time = stamp(event.Time, now)
	l.counts.EventsTaken++
	l.queued++
	one := &waiting{Event: event, source: source}
	key := laneKey{change: event.Condition != "", name: event.Reason}
	if key.change {
		key.name = event.Condition
	}
	lane := l.lane(now, key)
	lane.budget.fill(now)
	switch {
	case key.change:
		lane.waiting = append(lane.waiting, one)
		l.trim(lane)
	case lane.held == nil && len(lane.waiting) < lane.budget.left:
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
	l.counts.Dropped[Drop{Kind: lane.key.kind(), Why: why}] += one.stands()
}

func (k laneKey) kind() string {
	if k.change {
		return "change"
	}
	return "event"
}

// lane returns the lane of a reason or of a condition.
func (l *lanes) lane(now time.Time, key laneKey) *lane {
	if found := l.by[key]; found != nil {
		return found
	}
	peers, idle := 0, -1
	for i, other := range l.list {
		if other.key.change == key.change && other.key.name != "" {
			peers++
			if other.idle(now) {
				idle = i
			}
		}
	}
	switch {
	case peers < mostLanes:
	case idle >= 0:
		delete(l.by, l.list[idle].key)
		l.list = slices.Delete(l.list, idle, idle+1)
	default:
		key.name = ""
		if found := l.by[key]; found != nil {
			return found
		}
	}
	made := newLane(key)
	l.by[key] = made
	l.list = append(l.list, made)
	return made
}

// next returns an Event that may go now, and otherwise when one may: changes of conditions
// first, and then every lane in its turn.
func (l *lanes) next(now time.Time) (*lane, *waiting, time.Time) {
	var soonest time.Time
	for _, change := range []bool{true, false} {
		for i := range l.list {
			at := (l.turn + i) % len(l.list)
			lane := l.list[at]
			if lane.key.change != change || (len(lane.waiting) == 0 && lane.held == nil) {
				continue
			}
			if when := lane.budget.when(now); when.After(now) {
				soonest = earlier(soonest, when)
				continue
			}
			l.turn = at + 1
			lane.budget.take(now)
			lane.away = true
			if len(lane.waiting) > 0 {
				one := lane.waiting[0]
				lane.waiting = slices.Delete(lane.waiting, 0, 1)
				return lane, one, now
			}
			one := lane.held
			lane.held = nil
			return lane, one, now
		}
	}
	return nil, nil, soonest
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
	lane.waiting = slices.Insert(lane.waiting, 0, one)
	l.trim(lane)
}

// abandon counts what is left as dropped.
func (l *lanes) abandon(why string) {
	for _, lane := range l.list {
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

// earlier is the earlier of two times, of which a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
