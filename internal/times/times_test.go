package times

import (
	"testing"
	"time"
)

func TestEarliest(t *testing.T) {
	never, one, two := time.Time{}, time.Unix(1, 0), time.Unix(2, 0)
	for _, c := range []struct {
		all  []time.Time
		want time.Time
	}{
		{nil, never},
		{[]time.Time{never, never}, never},
		{[]time.Time{never, two}, two},
		{[]time.Time{two, never}, two},
		{[]time.Time{two, one, never}, one},
	} {
		if got := Earliest(c.all...); !got.Equal(c.want) {
			t.Errorf("of %v the earliest is %v, want %v", c.all, got, c.want)
		}
	}
}

func TestBackoffDoublesUpToItsMaximum(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 7: time.Minute, 1 << 30: time.Minute} {
		if got := Backoff(failures, time.Second, time.Minute); got != want {
			t.Errorf("after %d failures the wait is %s, want %s", failures, got, want)
		}
	}
	if got := Backoff(60, 48*time.Hour, 720*time.Hour); got != 720*time.Hour {
		t.Errorf("with a long first wait the wait is %s, want %s", got, 720*time.Hour)
	}
}
