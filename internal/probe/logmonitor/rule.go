package logmonitor

import (
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/match"
)

// sought is a pattern, and how far it must be tried.
type sought struct {
	*match.Pattern

	words string
	reach uint64 // over how many entries a match can go
	depth uint64 // over how many records, with those that do not count
	until bound  // what it must be tried on
}

// bound is the last of the entries that are to be looked at, by its place and by its
// ordinal, whichever comes first.
type bound struct{ place, ordinal uint64 }

// or returns a bound that is no nearer than either.
func (b bound) or(other bound) bound {
	return bound{max(b.place, other.place), max(b.ordinal, other.ordinal)}
}

// rule is one rule and what it has found.
type rule struct {
	config.LogRule

	key     string
	pattern *sought
	clear   *sought // nil if there is none

	times []time.Time // of the last matches, Count at most, while they are counted
	last  time.Time   // the latest match, of those that are counted or stand
	found *occurrence // nil if the rule does not stand
}

// occurrence is what a permanent rule has found, as long as it stands.
type occurrence struct {
	ID      string    `json:"id"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
	// Rank is lower for what has stood for longer. Stamps may lie about that.
	Rank uint64 `json:"rank"`
}

// tally counts a match, and says whether there are enough of them.
func (r *rule) tally(at time.Time) bool {
	if at.After(r.last) || r.found == nil && len(r.times) == 0 {
		r.last = at
	}
	if r.Count <= 1 {
		return true
	}
	// The order is that of the log: with that of the stamps, a wrong one would stay
	// for ever.
	if len(r.times) == r.Count {
		r.times = append(r.times[:0], r.times[1:]...)
	}
	r.times = append(r.times, at)
	if len(r.times) < r.Count {
		return false
	}
	first, last := r.span()
	return last.Sub(first) < r.Window
}

// noLaterThan corrects what was remembered by a clock that was ahead.
func (r *rule) noLaterThan(now time.Time) {
	r.last = earlier(r.last, now)
	for i, at := range r.times {
		r.times[i] = earlier(at, now)
	}
}

// span returns the earliest and the latest of the counted matches.
func (r *rule) span() (first, last time.Time) {
	first, last = r.times[0], r.times[0]
	for _, at := range r.times[1:] {
		if at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return first, last
}

// deadline is when the rule stops to stand, if nothing more is found.
func (r *rule) deadline() (time.Time, bool) {
	switch {
	case r.found == nil:
		return time.Time{}, false
	case r.ClearAfter > 0:
		return r.last.Add(r.ClearAfter), true
	case r.Count > 1 && r.clear == nil && len(r.times) < r.Count:
		// It was found when it had another count, which is in no window of this one.
		return r.last.Add(r.Window), true
	case r.Count > 1 && r.clear == nil:
		first, _ := r.span()
		return first.Add(r.Window), true
	}
	return time.Time{}, false
}

// countsOut says that the rule ends because its matches have become too few, not
// because somebody has said that all is well.
func (r *rule) countsOut() bool { return r.ClearAfter <= 0 && r.clear == nil }
