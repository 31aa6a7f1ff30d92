package controller

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

func TestAFullPageWaitsForAnAnswerAndDoesNotSpin(t *testing.T) {
	l := &loop{core: triage.New()}
	for range maxNamed {
		l.pages.named = append(l.pages.named, &patient{named: true, granted: grant{version: "7"}})
	}
	waiting := &patient{stage: entered}
	l.pages.entering = []*patient{waiting}
	if due := l.writePage(t.Context(), time.Now()); !due.IsZero() || l.pages.busy {
		t.Errorf("a full page is due again at %v", due)
	}
	if len(l.pages.entering) != 1 || waiting.stage != entered {
		t.Error("who waited for the page no longer does")
	}
}

func TestFifoKeepsItsOrderAndNoMoreThanItHolds(t *testing.T) {
	var q fifo[*patient]
	a, b := &patient{}, &patient{}
	q.push(a)
	for range 1000 { // there is always one waiting
		q.push(b)
		if q.pop() != a {
			t.Fatal("out of order")
		}
		a, b = b, a
	}
	if len(q.items) > 4 {
		t.Errorf("a queue of one holds %d places", len(q.items))
	}
}
