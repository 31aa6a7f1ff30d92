package watch

import (
	"testing"
	"time"
)

func TestBackoffGrowsToItsCap(t *testing.T) {
	backoff := Backoff()
	for try := range 20 {
		wait := backoff.Step()
		if least := min(200*time.Millisecond<<try, 10*time.Second); wait < least || wait > least*3/2 {
			t.Errorf("wait %d is %s, want between %s and 1.5 times that", try, wait, least)
		}
	}
	if first := Backoff().Step(); first > time.Second {
		t.Errorf("a second backoff starts with %s: it shares state with the first", first)
	}
}
