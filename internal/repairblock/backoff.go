package repairblock

import (
	"errors"
	"time"
)

const (
	// Reads and writes that fail are tried again after firstRetry, and then after twice
	// as long each time, up to longestRetry.
	firstRetry, longestRetry = time.Second, time.Minute
	// What somebody takes away again is put back after firstReturn, and then after
	// four times as long each time, up to longestReturn: four times in the first hour.
	firstReturn, longestReturn = time.Minute, time.Hour
)

// trouble is when something may be tried that has failed. The zero value is at once.
type trouble struct {
	at     time.Time
	wait   time.Duration // the last one
	isTold bool
}

// errEarly is that it is too early to try again.
var errEarly = errors.New("too early to try again")

// allows fails while it is too early.
func (t *trouble) allows(now time.Time) error {
	if now.Before(t.at) {
		return errEarly
	}
	return nil
}

// note takes in what became of a try, and returns when the next one may be, zero if
// there is no need.
func (t *trouble) note(now time.Time, err error) time.Time {
	switch {
	case err == nil:
		*t = trouble{}
	case !errors.Is(err, errEarly):
		t.wait = min(max(2*t.wait, firstRetry), longestRetry)
		t.at = now.Add(t.wait)
	}
	return t.at
}

// pace spaces the putting back of something, so that nobody has to fight. The zero
// value is at once.
type pace struct {
	at   time.Time
	wait time.Duration
}

// take says whether it is time, and if so, when it will be the next time.
func (p *pace) take(now time.Time) bool {
	if now.Before(p.at) {
		return false
	}
	if now.Sub(p.at) > longestReturn {
		p.wait = 0 // it has held for long
	}
	p.wait = min(max(4*p.wait, firstReturn), longestReturn)
	p.at = now.Add(p.wait)
	return true
}
