// Package times compares points in time of which the zero time means never. Deadlines and
// timers of the controller and the agent use it to find what is due next.
package times

import "time"

// Earliest returns the earliest time that is not zero, or zero if all are.
func Earliest(all ...time.Time) (first time.Time) {
	for _, t := range all {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}
