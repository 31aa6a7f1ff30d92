package engine

// queueStage is the progress of the next write for a node.
type queueStage int

const (
	idle           queueStage = iota
	queued                    // has something to do
	awaitingLedger            // waits until the ledger stores its slot
	running                   // sent, not answered
)

// queue is a first-in, first-out queue.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) pop() T {
	item := q.items[q.head]
	clear(q.items[q.head : q.head+1])
	q.head++
	if q.head > len(q.items)/2 {
		q.items, q.head = q.items[:copy(q.items, q.items[q.head:])], 0
	}
	return item
}
