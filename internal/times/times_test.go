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
