package intake

import "github.com/resourcestack/autohealer/problem"

// maxRecentEvents is how many events of a source are remembered. A source that repeats a
// status after a lost response must not produce an event twice.
const maxRecentEvents = 4 * problem.MaxEvents

// recentEvents are the last events of a source.
type recentEvents struct {
	ids   map[string]bool
	order []string // the same IDs, as a ring
	next  int
}

func newRecentEvents() recentEvents { return recentEvents{ids: map[string]bool{}} }

// add remembers an event, and reports whether it is new.
func (r *recentEvents) add(id string) bool {
	if r.ids[id] {
		return false
	}
	r.ids[id] = true
	if len(r.order) < maxRecentEvents {
		r.order = append(r.order, id)
		return true
	}
	delete(r.ids, r.order[r.next])
	r.order[r.next] = id
	r.next = (r.next + 1) % maxRecentEvents
	return true
}
