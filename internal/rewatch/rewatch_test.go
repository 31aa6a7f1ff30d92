package rewatch_test

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/rewatch"
)

func TestTheWaitsGrowAndEnd(t *testing.T) {
	backoff := rewatch.Backoff()
	for try := range 20 {
		wait := backoff.Step()
		if least := min(200*time.Millisecond<<try, 10*time.Second); wait < least || wait > least*3/2 {
			t.Errorf("wait %d is %s, want %s and half as much again at most", try, wait, least)
		}
	}
	if first := rewatch.Backoff().Step(); first > time.Second {
		t.Errorf("what another watch has waited counts for this one, which waits %s", first)
	}
}
