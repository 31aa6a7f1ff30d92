package logmonitor

import (
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/times"
)

// rule is a rule and its findings.
type rule struct {
	config.LogRule

	key     string
	pattern *search
	clear   *search // nil if it has no clearPattern

	times []time.Time // times of the last matches, at most Count, while matches are counted
	last  time.Time   // time of the latest match
	found *occurrence // nil if the rule is not active
}

// occurrence is the finding of an active permanent rule.
type occurrence struct {
	ID      string    `json:"id"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
	// Rank is lower for older occurrences. Timestamps may be wrong about that.
	Rank uint64 `json:"rank"`
}

// countMatch counts a match, and says whether the count is reached.
func (r *rule) countMatch(at time.Time) bool {
	if at.After(r.last) || r.found == nil && len(r.times) == 0 {
		r.last = at
	}
	if r.Count <= 1 {
		return true
	}
	// Times are in the order of the log. Sorted by time, a wrong timestamp would never leave
	// the list.
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

// clampTimes corrects times that were stored while the clock was ahead.
func (r *rule) clampTimes(now time.Time) {
	r.last = times.Min(r.last, now)
	for i, at := range r.times {
		r.times[i] = times.Min(at, now)
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

// deadline returns when the rule ends if it has no further match.
func (r *rule) deadline() (time.Time, bool) {
	switch {
	case r.found == nil:
		return time.Time{}, false
	case r.ClearAfter > 0:
		return r.last.Add(r.ClearAfter), true
	case r.Count > 1 && r.clear == nil && len(r.times) < r.Count:
		// The rule became active under another configuration, so its matches do not fill the
		// count.
		return r.last.Add(r.Window), true
	case r.Count > 1 && r.clear == nil:
		first, _ := r.span()
		return first.Add(r.Window), true
	}
	return time.Time{}, false
}

// endsByCount says that the rule ends when its matches become too few, not by clearAfter
// or clearPattern.
func (r *rule) endsByCount() bool { return r.ClearAfter <= 0 && r.clear == nil }
