// Package times has the arithmetic of deadlines, timers and retries of the controller and the
// agent.
package times

import "time"

// Earliest returns the earliest time that is not zero, or zero if all are. Zero means never.
func Earliest(all ...time.Time) (first time.Time) {
	for _, t := range all {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// Min returns the earlier of two times.
func Min(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Backoff returns the wait after a number of failures in a row. It is first after one failure,
// doubles with each further one, and is at most the given longest.
func Backoff(failures int, first, longest time.Duration) time.Duration {
	doublings := max(failures-1, 0)
	if first > longest>>doublings { // first<<doublings could overflow
		return longest
	}
	return first << doublings
}
