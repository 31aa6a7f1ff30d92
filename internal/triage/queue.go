package triage

import "strings"

// ticket is a place in a queue: that of an episode, of a departure, or of a rule that
// waits for the end of a storm.
type ticket struct {
	episode   *episode
	departure *departure
	rule      *rule
	in        *queue
	index     int
}

// queue holds tickets in the order of their time, and among equals in the order
// in which rules and nodes are served. It is a binary heap that knows where each
// ticket stands, so that one can leave from the middle.
type queue struct {
	entries []entry
}

// entry keeps the time beside the ticket, so that most comparisons touch
// nothing else.
type entry struct {
	at     int64
	ticket *ticket
}

func (q *queue) len() int { return len(q.entries) }

func (q *queue) first() entry { return q.entries[0] }

func (q *queue) push(at int64, t *ticket) {
	t.in, t.index = q, len(q.entries)
	q.entries = append(q.entries, entry{at, t})
	q.up(t.index)
}

// pop takes the first ticket out.
func (q *queue) pop() *ticket {
	t := q.entries[0].ticket
	t.leave()
	return t
}

// leave takes the ticket out of the queue that it is in, if it is in one.
func (t *ticket) leave() {
	q := t.in
	if q == nil {
		return
	}
	last := len(q.entries) - 1
	gap := t.index
	q.place(gap, q.entries[last])
	q.entries[last] = entry{}
	q.entries = q.entries[:last]
	if gap < last && !q.up(gap) {
		q.down(gap)
	}
	t.in = nil
}

func (q *queue) place(i int, e entry) {
	q.entries[i] = e
	e.ticket.index = i
}

func (q *queue) up(i int) (moved bool) {
	e := q.entries[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(q.entries[parent]) {
			break
		}
		q.place(i, q.entries[parent])
		i, moved = parent, true
	}
	q.place(i, e)
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
		q.place(i, q.entries[child])
		i = child
	}
	q.place(i, e)
}

func (a entry) before(b entry) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if d, other := a.ticket.departure, b.ticket.departure; d != nil && other != nil {
		return d.node < other.node
	}
	x, y := a.ticket.episode, b.ticket.episode
	if x == nil || y == nil {
		return x != nil // among alarms of one time the order is of no consequence
	}
	if x.rule != y.rule {
		return x.rule.spec.ID.compare(y.rule.spec.ID) < 0
	}
	return strings.Compare(x.node.name, y.node.name) < 0
}
