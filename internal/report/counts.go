package report

import (
	"maps"
	"time"
)

// Counts are the metrics of the reporter.
type Counts struct {
	// Requests counts requests by kind and result.
	Requests map[Outcome]uint64
	// EventsTaken is the number of Events passed to the reporter. Each of them is sent, merged
	// into an Event that was sent, dropped, or still queued.
	EventsTaken, EventsSent, EventsSummed, EventsQueued uint64
	// Dropped counts conditions and Events that are never written.
	Dropped map[Drop]uint64
	// TakenOver counts conditions that the agent took over from another manager. Restored counts
	// conditions that the agent wrote again after another manager changed them.
	TakenOver, Restored uint64
	// Yielded maps the type of each condition that the agent has yielded to the name of the
	// manager that writes it.
	Yielded map[string]string
	// Pending is true while the API server does not have the newest conditions.
	Pending bool
	// LastAnswer is when the API server last answered.
	LastAnswer time.Time
	// LeaseRenewed is when the Lease was last renewed, or zero.
	LeaseRenewed time.Time
}

// Outcome is a kind of request and its result.
type Outcome struct{ Kind, Result string }

// Drop is a kind of dropped object and the cause.
type Drop struct{ Kind, Why string }

func (c *Counts) clone() Counts {
	copied := *c
	copied.Requests, copied.Dropped, copied.Yielded = maps.Clone(c.Requests), maps.Clone(c.Dropped), maps.Clone(c.Yielded)
	return copied
}
