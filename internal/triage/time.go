package triage

import (
	"math"
	"time"
)

// Times are stored as nanoseconds; zero means no time.

func nanos(t time.Time) int64 {
	switch seconds := t.Unix(); {
	case seconds <= 0: // includes the zero time
		return 0
	case seconds >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return t.UnixNano()
}

func instant(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at).UTC()
}

// wholeSeconds truncates a time to seconds, the precision of creation times.
func wholeSeconds(at int64) int64 { return nanos(instant(at).Truncate(time.Second)) }

// secondsUp returns the seconds since 1970, rounded up.
func secondsUp(t time.Time) uint32 {
	seconds := later(nanos(t), time.Second-1) / int64(time.Second)
	return uint32(min(seconds, math.MaxUint32)) //nolint:gosec // bounded
}

// later adds a duration without overflow.
func later(at int64, d time.Duration) int64 {
	if sum := at + int64(d); sum >= at {
		return sum
	}
	return math.MaxInt64
}
