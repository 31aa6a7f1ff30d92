package report

import "time"

// tokenBucket is a rate limiter: it allows a burst of size, and then one token per interval.
type tokenBucket struct {
	size     int
	every    time.Duration
	tokens   int
	filledAt time.Time // when the last token was added
}

func newTokenBucket(most int, every time.Duration) tokenBucket {
	return tokenBucket{size: most, every: every, tokens: most}
}

// fill adds the tokens that have become available.
func (b *tokenBucket) fill(now time.Time) {
	if b.tokens < b.size && now.After(b.filledAt) {
		passed := now.Sub(b.filledAt)
		b.tokens = int(min(int64(b.size), int64(b.tokens)+int64(passed/b.every)))
		b.filledAt = now.Add(-(passed % b.every))
	}
	if b.tokens == b.size {
		b.filledAt = now
	}
}

func (b *tokenBucket) full(now time.Time) bool {
	b.fill(now)
	return b.tokens == b.size
}

// availableAt returns when a token can be taken.
func (b *tokenBucket) availableAt(now time.Time) time.Time {
	if b.fill(now); b.tokens > 0 {
		return now
	}
	return b.filledAt.Add(b.every)
}

func (b *tokenBucket) take(now time.Time) {
	b.fill(now)
	b.tokens--
}

// giveBack returns the token of an attempt that failed.
func (b *tokenBucket) giveBack() { b.tokens = min(b.tokens+1, b.size) }
