package triage

import "time"

// failureWindows knows how many nodes became unhealthy within a window, for all ends of the window.
// A node counts from the time at which it became unhealthy until a window later. So the number is a
// function of the end, and the tree has its changes, sorted by time. It is a treap: also a heap by
// pseudorandom weights, so that it stays balanced.
type failureWindows struct {
	window time.Duration
	root   *windowChange
}

// windowChange is a change of the number, with the totals of the tree below it.
type windowChange struct {
	at          int64
	by          int
	weight      uint64
	sum         int // of all changes
	most        int // the largest sum of the first changes, of one at least
	left, right *windowChange
}

// count adds or removes a node that became unhealthy at these times, which are sorted.
func (w *failureWindows) count(failures []int64, by int) {
	for i, at := range failures {
		if i == 0 || at > later(failures[i-1], w.window) { // a node counts once in a window
			w.root = w.root.change(at, by)
		}
		if end := later(at, w.window); i+1 == len(failures) || failures[i+1] > end {
			w.root = w.root.change(end+1, -by)
		}
	}
}

// most is the largest number of nodes that became unhealthy within a window.
func (w *failureWindows) most() int {
	if w.root == nil {
		return 0
	}
	return w.root.most
}

// first is the first end of a window in which this many nodes became unhealthy; at most most.
func (w *failureWindows) first(needed int) int64 {
	for c := w.root; ; c = c.right {
		for c.left != nil && c.left.most >= needed {
			c = c.left
		}
		if needed -= c.left.total() + c.by; needed <= 0 {
			return c.at
		}
	}
}

// change changes the number at a time, and returns the new root of the tree.
func (c *windowChange) change(at int64, by int) *windowChange {
	switch {
	case c == nil:
		return &windowChange{at: at, by: by, sum: by, most: by, weight: scramble(uint64(at))}
	case at < c.at:
		if c.left = c.left.change(at, by); c.left != nil && c.left.weight > c.weight {
			top := c.left
			c.left, top.right = top.right, c
			c.update()
			c = top
		}
	case at > c.at:
		if c.right = c.right.change(at, by); c.right != nil && c.right.weight > c.weight {
			top := c.right
			c.right, top.left = top.left, c
			c.update()
			c = top
		}
	default:
		if c.by += by; c.by == 0 {
			return join(c.left, c.right)
		}
	}
	c.update()
	return c
}

// join joins two trees, of which one is before the other.
func join(before, after *windowChange) *windowChange {
	switch {
	case before == nil:
		return after
	case after == nil:
		return before
	case before.weight > after.weight:
		before.right = join(before.right, after)
		before.update()
		return before
	}
	after.left = join(before, after.left)
	after.update()
	return after
}

// update counts the totals again.
func (c *windowChange) update() {
	here := c.left.total() + c.by
	c.sum, c.most = here, here
	if c.left != nil {
		c.most = max(c.most, c.left.most)
	}
	if c.right != nil {
		c.sum, c.most = here+c.right.sum, max(c.most, here+c.right.most)
	}
}

func (c *windowChange) total() int {
	if c == nil {
		return 0
	}
	return c.sum
}

// scramble spreads times over all weights (the finalizer of SplitMix64).
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
