package repairblock

import (
	"errors"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
)

const (
	// Failed reads and writes are retried after firstRetry. The delay doubles each time,
	// up to longestRetry.
	firstRetry, longestRetry = time.Second, time.Minute
	// If a restored object disappears again, the store restores it after firstReturn. The
	// delay quadruples each time, up to longestReturn: four times in the first hour.
	firstReturn, longestReturn = time.Minute, time.Hour
)

// backoff is the backoff of an operation that failed. The zero value allows it at once.
type backoff struct {
	at       time.Time
	failures int // in a row
	isTold   bool
}

// errEarly says that it is too early to retry.
var errEarly = errors.New("too early to try again")

// allows fails while it is too early to retry.
func (t *backoff) allows(now time.Time) error {
	if now.Before(t.at) {
		return errEarly
	}
	return nil
}

// note records the outcome of an attempt and returns when to retry; zero if there is no
// need.
func (t *backoff) note(now time.Time, err error) time.Time {
	switch {
	case err == nil:
		*t = backoff{}
	case !errors.Is(err, errEarly):
		t.failures++
		t.at = now.Add(times.Backoff(t.failures, firstRetry, longestRetry))
	}
	return t.at
}

// restorePace spaces repeated restores, so that the store does not fight with another writer. The
// zero value allows the first at once.
type restorePace struct {
	at   time.Time
	wait time.Duration
}

// take reports whether a restore is due, and if so starts the next delay.
func (p *restorePace) take(now time.Time) bool {
	if now.Before(p.at) {
		return false
	}
	if now.Sub(p.at) > longestReturn {
		p.wait = 0 // the last restore has lasted long enough
	}
	p.wait = min(max(4*p.wait, firstReturn), longestReturn)
	p.at = now.Add(p.wait)
	return true
}
