package report

import (
	"maps"
	"time"
)

// Counts are the figures of the reporter.
type Counts struct {
	// Requests by what they were for and what came of them.
	Requests map[Outcome]uint64
	// EventsTaken were handed over. Each of them is sent, summed up in one that was sent,
	// dropped or still queued.
	EventsTaken, EventsSent, EventsSummed, EventsQueued uint64
	// Dropped is what nobody will see.
	Dropped map[Drop]uint64
	// TakenOver are rows that were another manager's, and Mended rows that somebody had
	// changed.
	TakenOver, Mended uint64
	// Yielded are the rows that are left to another manager, by type, with his name.
	Yielded map[string]string
	// Pending says that the API server does not have the newest conditions yet.
	Pending bool
	// LastAnswer is when the API server answered last.
	LastAnswer time.Time
	// LeaseRenewed is when the Lease was renewed last; zero if it never was.
	LeaseRenewed time.Time
}

// Outcome is a kind of request, and what came of it.
type Outcome struct{ Kind, Result string }

// Drop is a kind of things that were dropped, and why.
type Drop struct{ Kind, Why string }

func (c *Counts) clone() Counts {
	copied := *c
	copied.Requests, copied.Dropped, copied.Yielded = maps.Clone(c.Requests), maps.Clone(c.Dropped), maps.Clone(c.Yielded)
	return copied
}
