package intake

import "time"

// tokenBucket is a rate limiter with a burst and a rate per second.
type tokenBucket struct {
	rate, burst float64
	tokens      float64 // negative after borrow
	updatedAt   time.Time
}

func newTokenBucket(rate, burst int, now time.Time) tokenBucket {
	return tokenBucket{rate: float64(rate), burst: float64(burst), tokens: float64(burst), updatedAt: now}
}

// setRate changes the limits.
func (b *tokenBucket) setRate(rate, burst int) {
	b.rate, b.burst = float64(rate), float64(burst)
	b.tokens = min(b.tokens, b.burst)
}

// take takes one token, and returns how long the caller must wait for it. If that is longer
// than maxWait, it takes none.
func (b *tokenBucket) take(now time.Time, maxWait time.Duration) (wait time.Duration, ok bool) {
	if passed := now.Sub(b.updatedAt); passed > 0 {
		b.tokens = min(b.burst, b.tokens+b.rate*passed.Seconds())
		b.updatedAt = now
	}
	if b.tokens < 1 {
		wait = time.Duration((1 - b.tokens) / b.rate * float64(time.Second))
	}
	if wait > maxWait {
		return wait, false
	}
	b.tokens--
	return wait, true
}

// borrow takes n tokens that may not be available yet, and returns how long later callers wait
// for them.
func (b *tokenBucket) borrow(n int) (wait time.Duration) {
	b.tokens -= float64(n)
	return time.Duration(max(0, 1-b.tokens) / b.rate * float64(time.Second))
}
