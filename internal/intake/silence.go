package intake

import "time"

// silenceTimer measures how long a condition, or the source as a whole, has not been reported.
type silenceTimer struct {
	lastHeard time.Time     // zero if not since the agent started
	elapsed   time.Duration // since lastHeard, or since the source was configured
	silent    bool          // elapsed exceeds the limit
}

// reset records a report. While rate limiting delays the source, its silence does not begin.
func (timer *silenceTimer) reset(now time.Time, delay time.Duration) {
	*timer = silenceTimer{lastHeard: now, elapsed: -delay}
}

// advance adds passed time, and reports whether the limit was just exceeded. The first tick
// may have been shorter than passed, so it does not count.
func (timer *silenceTimer) advance(passed, most time.Duration) bool {
	exceeded := timer.elapsed >= most && !timer.silent
	timer.silent = timer.elapsed >= most
	timer.elapsed += passed
	return exceeded
}

// elapsedToSave returns the elapsed silence if it is worth saving: if nothing was reported
// since the agent started, or a report is overdue. So a healthy source causes no writes.
func (timer *silenceTimer) elapsedToSave(most time.Duration) time.Duration {
	if timer.silent || !timer.lastHeard.IsZero() && timer.elapsed < most/3 {
		return 0
	}
	return max(0, timer.elapsed)
}

// silence measures how long a source has not reported.
type silence struct {
	source     silenceTimer             // of the source as a whole
	conditions map[string]*silenceTimer // by condition type
	saved      bool                     // the saved state contains an elapsed silence
}

func newSilence() silence { return silence{conditions: map[string]*silenceTimer{}} }

// watch adds timers for conditions that have none.
func (s *silence) watch(kinds []string) {
	for _, kind := range kinds {
		if s.conditions[kind] == nil {
			s.conditions[kind] = &silenceTimer{}
		}
	}
}

// advance adds passed time, and reports whether a condition has just exceeded the limit.
func (s *silence) advance(passed, most time.Duration) (exceeded bool) {
	s.source.advance(passed, most)
	for _, timer := range s.conditions {
		exceeded = timer.advance(passed, most) || exceeded
	}
	return exceeded
}

// mustSave reports whether a timer has an elapsed silence that is worth saving, or the saved
// state still contains one.
func (s *silence) mustSave(most time.Duration) bool {
	for _, timer := range s.conditions {
		if timer.elapsedToSave(most) > 0 {
			return true
		}
	}
	return s.saved || s.source.elapsedToSave(most) > 0
}
