package intake

import "time"

// bucket allows so many at once, and then so many a second.
type bucket struct {
	rate, most float64
	left       float64 // negative while something is owed
	at         time.Time
}

func newBucket(rate, burst int, now time.Time) bucket {
	return bucket{rate: float64(rate), most: float64(burst), left: float64(burst), at: now}
}

// retune changes what is allowed from now on.
func (b *bucket) retune(rate, burst int) {
	b.rate, b.most = float64(rate), float64(burst)
	b.left = min(b.left, b.most)
}

// take takes one, and says how long the taker has to wait for it. If that is more than
// patience nothing is taken.
func (b *bucket) take(now time.Time, patience time.Duration) (wait time.Duration, ok bool) {
	if passed := now.Sub(b.at); passed > 0 {
		b.left = min(b.most, b.left+b.rate*passed.Seconds())
		b.at = now
	}
	if b.left < 1 {
		wait = time.Duration((1 - b.left) / b.rate * float64(time.Second))
	}
	if wait > patience {
		return wait, false
	}
	b.left--
	return wait, true
}

// owe takes more, which those who come later wait for. It returns for how long.
func (b *bucket) owe(n int) (wait time.Duration) {
	b.left -= float64(n)
	return time.Duration(max(0, 1-b.left) / b.rate * float64(time.Second))
}
