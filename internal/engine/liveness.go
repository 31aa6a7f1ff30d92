package engine

import (
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// maxSleep limits the time between two rounds, so that an idle leader also shows that
	// it is alive.
	maxSleep = 10 * time.Second
	// maxRound limits one round. The longest round, which takes in all nodes of a large
	// cluster, takes seconds even with little CPU.
	maxRound = time.Minute
)

// Liveness shows that the loop makes progress. The zero value is for a replica that does
// not lead.
type Liveness struct {
	due atomic.Pointer[time.Time] // when the next round starts at the latest; nil for never
}

// sleeping records the end of a round and the latest start of the next round.
func (v *Liveness) sleeping(until time.Time) { v.due.Store(&until) }

// stopped records that the loop has ended.
func (v *Liveness) stopped() { v.due.Store(nil) }

// Check returns an error if a restart would help: this replica leads and its loop hangs.
// Leader election goes on renewing the Lease in that case, so no other replica takes over.
// A replica that does not lead is healthy. So is an idle leader, or a leader whose API
// server does not answer, because requests run in their own goroutines and do not block
// the loop.
func (v *Liveness) Check(now time.Time) error {
	if due := v.due.Load(); due != nil && now.After(due.Add(maxRound)) {
		return fmt.Errorf("the loop hangs: its next round was due %s ago", now.Sub(*due).Round(time.Second))
	}
	return nil
}
