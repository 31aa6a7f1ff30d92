package triage

import "strings"

// queueItem is an element of a queue: an episode, a departure, a rule that waits for the end
// of its cooldown, a node, also for the end of its hold, or the pace of the rails.
type queueItem struct {
	episode   *episode
	departure *departure
	rule      *rule
	node      *node
	rails     bool // the pace of the rails
	in        *queue
	index     int
}

// queue is a priority queue, sorted by time and then in the order of service. It is a binary
// heap in which each item knows its index, so that items can be removed from the middle.
type queue struct {
	entries []entry
}

// entry keeps the time next to the item, so that most comparisons read nothing else.
type entry struct {
	at   int64
	item *queueItem
}

func (q *queue) len() int { return len(q.entries) }

func (q *queue) first() entry { return q.entries[0] }

func (q *queue) push(at int64, item *queueItem) {
	item.in, item.index = q, len(q.entries)
	q.entries = append(q.entries, entry{at, item})
	q.up(item.index)
}

// pop removes and returns the first item.
func (q *queue) pop() *queueItem {
	item := q.entries[0].item
	item.leave()
	return item
}

// leave removes the item from its queue, if it is in one.
func (item *queueItem) leave() {
	q := item.in
	if q == nil {
		return
	}
	last := len(q.entries) - 1
	gap := item.index
	q.set(gap, q.entries[last])
	q.entries[last] = entry{}
	q.entries = q.entries[:last]
	if gap < last && !q.up(gap) {
		q.down(gap)
	}
	item.in = nil
}

// walk visits the items up to a time, in no order. It costs as much as there are such items.
func (q *queue) walk(until int64, visit func(*queueItem)) { q.walkFrom(0, until, visit) }

func (q *queue) walkFrom(i int, until int64, visit func(*queueItem)) {
	if i < len(q.entries) && q.entries[i].at <= until {
		visit(q.entries[i].item)
		q.walkFrom(2*i+1, until, visit)
		q.walkFrom(2*i+2, until, visit)
	}
}

func (q *queue) set(i int, e entry) {
	q.entries[i] = e
	e.item.index = i
}

func (q *queue) up(i int) (moved bool) {
	e := q.entries[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(q.entries[parent]) {
			break
		}
		q.set(i, q.entries[parent])
		i, moved = parent, true
	}
	q.set(i, e)
	return moved
}

func (q *queue) down(i int) {
	e := q.entries[i]
	for {
		child := 2*i + 1
		if child >= len(q.entries) {
			break
		}
		if right := child + 1; right < len(q.entries) && q.entries[right].before(q.entries[child]) {
			child = right
		}
		if !q.entries[child].before(e) {
			break
		}
		q.set(i, q.entries[child])
		i = child
	}
	q.set(i, e)
}

func (a entry) before(b entry) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if d, other := a.item.departure, b.item.departure; d != nil && other != nil {
		return d.node < other.node
	}
	x, y := a.item.episode, b.item.episode
	if x == nil || y == nil {
		return x != nil // the order of timers with the same time does not matter
	}
	if x.rule != y.rule {
		return compareRules(x.rule, y.rule) < 0
	}
	return strings.Compare(x.node.name, y.node.name) < 0
}
