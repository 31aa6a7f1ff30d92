package repair

import (
	"testing"
	"time"
)

func TestLaunchFailuresDoubleTheWait(t *testing.T) {
	last := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		failed        int
		timeout, want time.Duration
	}{
		{3, 10 * time.Minute, 20 * time.Minute},
		{4, 10 * time.Minute, 40 * time.Minute},
		{6, 10 * time.Minute, 160 * time.Minute},
		{9, 10 * time.Minute, 6 * time.Hour},
		{1000, 10 * time.Minute, 6 * time.Hour},
		{5, time.Second, 8 * time.Second},
		{4, 24 * time.Hour, 48 * time.Hour}, // the failure is known no earlier
	} {
		if got := (launchFailures{failed: test.failed, last: last}).next(test.timeout).Sub(last); got != test.want {
			t.Errorf("after %d of %s each: %s, want %s", test.failed, test.timeout, got, test.want)
		}
	}
	for failed := range 3 {
		if next := (launchFailures{failed: failed, last: last}).next(time.Minute); !next.IsZero() {
			t.Errorf("after %d tries the next one is at %s, and not when it is due", failed, next)
		}
	}
}
