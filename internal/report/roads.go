package report

import (
	"slices"
	"time"
)

const (
	mostRoads = 64 // of all sources, two of each; what has none of its own shares one

	sourceBurst = 30
	sourceEvery = 3 * time.Second // of one source

	changesBurst = 60
	changesEvery = time.Second // of all conditions of one source

	nodeBurst = 60
	nodeEvery = time.Second // of all sources, which is more than one of them may use
)

// road keeps the Events of one source, or the changes of its conditions, apart from those
// of all others: a daemon may invent reasons as it likes, and must not be heard instead of
// the kernel.
type road struct {
	source string
	change bool
	budget bucket
	lanes  []*lane
	served uint64 // when it had its turn
}

func newRoad(source string, change bool) *road {
	r := &road{source: source, change: change, budget: newBucket(sourceBurst, sourceEvery)}
	if change {
		r.budget = newBucket(changesBurst, changesEvery)
	}
	return r
}

func (r *road) idle(now time.Time) bool {
	return r.budget.full(now) && !slices.ContainsFunc(r.lanes, func(l *lane) bool { return !l.idle(now) })
}

func (r *road) kind() string {
	if r.change {
		return "change"
	}
	return "event"
}

// waiting is how many wait that are not summed up.
func (r *road) waiting() int {
	n := 0
	for _, lane := range r.lanes {
		n += len(lane.waiting)
	}
	return n
}

// next returns the lane whose turn it is, and otherwise when one has it.
func (r *road) next(now time.Time) (chosen *lane, soonest time.Time) {
	for _, lane := range r.lanes {
		if lane.empty() {
			continue
		}
		at := latest(r.budget.when(now), lane.budget.when(now))
		switch {
		case at.After(now):
			soonest = earlier(soonest, at)
		case chosen == nil || lane.served < chosen.served:
			chosen = lane
		}
	}
	return chosen, soonest
}

// lane returns the lane of a reason or of a condition.
func (r *road) lane(now time.Time, name string) *lane {
	if found := r.find(name); found != nil {
		return found
	}
	var room bool
	if r.lanes, room = makeRoom(r.lanes, mostLanes, now); !room {
		if found := r.find(""); found != nil {
			return found
		}
		name = ""
	}
	made := &lane{road: r, name: name, budget: newBucket(burst, eventEvery)}
	if r.change {
		made.budget = newBucket(burst, changeEvery)
	}
	r.lanes = append(r.lanes, made)
	return made
}

func (r *road) find(name string) *lane {
	if at := slices.IndexFunc(r.lanes, func(l *lane) bool { return l.name == name }); at >= 0 {
		return r.lanes[at]
	}
	return nil
}

// road returns the road of a source, for what happens or for changes.
func (l *lanes) road(now time.Time, source string, change bool) *road {
	if found := l.find(source, change); found != nil {
		return found
	}
	var room bool
	if l.roads, room = makeRoom(l.roads, mostRoads, now); !room {
		if found := l.find("", change); found != nil {
			return found
		}
		source = ""
	}
	made := newRoad(source, change)
	l.roads = append(l.roads, made)
	return made
}

func (l *lanes) find(source string, change bool) *road {
	if at := slices.IndexFunc(l.roads, func(r *road) bool { return r.source == source && r.change == change }); at >= 0 {
		return l.roads[at]
	}
	return nil
}

// makeRoom takes one that is idle out of a list that is full, and says whether there is
// room for another.
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
