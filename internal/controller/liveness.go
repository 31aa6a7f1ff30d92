package controller

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// maxSleep is how long the loop rests at most: who leads shows that it is
	// alive also where there is nothing to do.
	maxSleep = 10 * time.Second
	// maxRound is how long a round may take. The longest, which takes in all
	// nodes of a large cluster, is over in seconds even where the processor is scarce.
	maxRound = time.Minute
)

// liveness shows from outside that the loop goes on. The zero value is that of a
// replica that does not lead.
type liveness struct {
	due atomic.Pointer[time.Time] // when the next round begins at the latest; nil for never
}

// sleeping notes that a round is over, and when the next one begins at the latest.
func (p *liveness) sleeping(until time.Time) { p.due.Store(&until) }

// stopped notes that there will be no more rounds.
func (p *liveness) stopped() { p.due.Store(nil) }

func (p *liveness) check(now time.Time) error {
	if due := p.due.Load(); due != nil && now.After(due.Add(maxRound)) {
		return fmt.Errorf("the loop hangs: it was to look again %s ago", now.Sub(*due).Round(time.Second))
	}
	return nil
}

// Healthy says whether a restart would not help. It would if this replica leads
// and its loop hangs: its lease is renewed all the same, so nobody else takes
// over. A replica that does not lead is healthy, and so is one that has nothing to
// do, or whose API server does not answer: requests have goroutines of their own,
// and the loop goes on without them.
func (c *Controller) Healthy(*http.Request) error { return c.liveness.check(time.Now()) }
