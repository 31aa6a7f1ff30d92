package report

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
)

const (
	maxSources = 64 // two queues per source; further sources share one

	sourceBurst = 30
	sourceEvery = 3 * time.Second // per source

	changesBurst = 60
	changesEvery = time.Second // for all conditions of one source

	nodeBurst = 60
	nodeEvery = time.Second // for all sources, more than one source may use
)

// sourceQueue holds the Events of one source, or the changes of its conditions. A daemon may
// invent any number of reasons; separate queues keep it from displacing the Events of other
// sources.
type sourceQueue struct {
	source     string
	change     bool
	budget     tokenBucket
	reasons    []*reasonQueue
	lastServed uint64 // the turn in which it last sent an Event
}

func newSourceQueue(source string, change bool) *sourceQueue {
	r := &sourceQueue{source: source, change: change, budget: newTokenBucket(sourceBurst, sourceEvery)}
	if change {
		r.budget = newTokenBucket(changesBurst, changesEvery)
	}
	return r
}

func (r *sourceQueue) idle(now time.Time) bool {
	return r.budget.full(now) && !slices.ContainsFunc(r.reasons, func(l *reasonQueue) bool { return !l.idle(now) })
}

func (r *sourceQueue) kind() string {
	if r.change {
		return "change"
	}
	return "event"
}

// eventCount returns how many Events wait, without merged ones.
func (r *sourceQueue) eventCount() int {
	n := 0
	for _, queue := range r.reasons {
		n += len(queue.events)
	}
	return n
}

// next returns the queue whose turn it is, or when the next one may send.
func (r *sourceQueue) next(now time.Time) (chosen *reasonQueue, soonest time.Time) {
	for _, queue := range r.reasons {
		if queue.empty() {
			continue
		}
		at := latest(r.budget.availableAt(now), queue.budget.availableAt(now))
		switch {
		case at.After(now):
			soonest = times.Earliest(soonest, at)
		case chosen == nil || queue.lastServed < chosen.lastServed:
			chosen = queue
		}
	}
	return chosen, soonest
}

// queueFor returns the queue of a reason or a condition.
func (r *sourceQueue) queueFor(now time.Time, name string) *reasonQueue {
	if found := r.find(name); found != nil {
		return found
	}
	var room bool
	if r.reasons, room = makeRoom(r.reasons, maxReasons, now); !room {
		if found := r.find(""); found != nil {
			return found
		}
		name = ""
	}
	made := &reasonQueue{parent: r, name: name, budget: newTokenBucket(reasonBurst, reasonEvery)}
	if r.change {
		made.budget = newTokenBucket(reasonBurst, changeEvery)
	}
	r.reasons = append(r.reasons, made)
	return made
}

func (r *sourceQueue) find(name string) *reasonQueue {
	if at := slices.IndexFunc(r.reasons, func(l *reasonQueue) bool { return l.name == name }); at >= 0 {
		return r.reasons[at]
	}
	return nil
}

// queueFor returns the queue of a source, either for its Events or for changes of its
// conditions.
func (l *eventQueues) queueFor(now time.Time, source string, change bool) *sourceQueue {
	if found := l.find(source, change); found != nil {
		return found
	}
	var room bool
	if l.sources, room = makeRoom(l.sources, maxSources, now); !room {
		if found := l.find("", change); found != nil {
			return found
		}
		source = ""
	}
	made := newSourceQueue(source, change)
	l.sources = append(l.sources, made)
	return made
}

func (l *eventQueues) find(source string, change bool) *sourceQueue {
	if at := slices.IndexFunc(l.sources, func(r *sourceQueue) bool { return r.source == source && r.change == change }); at >= 0 {
		return l.sources[at]
	}
	return nil
}

// makeRoom removes an idle queue from a full list, and reports whether the list has room for
// another one.
func makeRoom[T interface{ idle(now time.Time) bool }](list []T, most int, now time.Time) ([]T, bool) {
	if len(list) < most {
		return list, true
	}
	at := slices.IndexFunc(list, func(one T) bool { return one.idle(now) })
	if at < 0 {
		return list, false
	}
	return slices.Delete(list, at, at+1), true
}
