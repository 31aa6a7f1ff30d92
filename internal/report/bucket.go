package report

import "time"

// bucket allows so many at once, and then one every so often.
type bucket struct {
	most  int
	every time.Duration
	left  int
	since time.Time // when the last one was filled in
}

func newBucket(most int, every time.Duration) bucket {
	return bucket{most: most, every: every, left: most}
}

// fill puts in what has come due.
func (b *bucket) fill(now time.Time) {
	if b.left < b.most && now.After(b.since) {
		passed := now.Sub(b.since)
		b.left = int(min(int64(b.most), int64(b.left)+int64(passed/b.every)))
		b.since = now.Add(-(passed % b.every))
	}
	if b.left == b.most {
		b.since = now
	}
}

func (b *bucket) full(now time.Time) bool {
	b.fill(now)
	return b.left == b.most
}

// when is the time at which one may be taken.
func (b *bucket) when(now time.Time) time.Time {
	if b.fill(now); b.left > 0 {
		return now
	}
	return b.since.Add(b.every)
}

func (b *bucket) take(now time.Time) {
	b.fill(now)
	b.left--
}

// giveBack undoes a take that came to nothing.
func (b *bucket) giveBack() { b.left = min(b.left+1, b.most) }
