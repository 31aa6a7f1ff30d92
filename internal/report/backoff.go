package report

import (
	"time"

	"github.com/resourcestack/autohealer/internal/times"
)

const (
	minBackoffWait = 500 * time.Millisecond
	maxBackoffWait = time.Minute
)

// backoff decides when to retry after a failure.
type backoff struct {
	failures int
	until    time.Time
	logged   bool      // the failure was logged
	began    time.Time // when the failures began
}

// fail doubles the wait up to a maximum, with a random reduction. All agents of a cluster lose
// the API server at the same moment, and must not return at the same moment.
func (p *backoff) fail(now time.Time, most time.Duration, random func() float64) {
	if p.failures == 0 {
		p.began = now
	}
	p.failures++
	wait := times.Backoff(p.failures, minBackoffWait, most)
	p.pause(now, wait/10+time.Duration(random()*float64(wait-wait/10)))
}

// failForbidden waits as fail does, and finally always about as long as the maximum. Missing
// permissions usually stay missing. But they may be granted shortly after the agent starts,
// and an API server that has just started may not know them yet.
func (p *backoff) failForbidden(now time.Time, most time.Duration, random func() float64) {
	if times.Backoff(p.failures+1, minBackoffWait, most) < most {
		p.fail(now, most, random)
		return
	}
	p.pause(now, jitter(most, random))
}

// pause delays the next attempt by wait.
func (p *backoff) pause(now time.Time, wait time.Duration) { p.until = now.Add(wait) }

// firstLog reports whether the failure is not logged yet, and marks it as logged.
func (p *backoff) firstLog() bool {
	first := !p.logged
	p.logged = true
	return first
}

// jitter returns a duration that is up to a tenth shorter.
func jitter(d time.Duration, random func() float64) time.Duration {
	return d - time.Duration(random()*float64(d)/10)
}
