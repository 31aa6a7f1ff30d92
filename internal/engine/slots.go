package engine

import (
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
)

// SlotTaker is a write that takes slots: it waits until the ledger stores them, or has
// them. Slot takers are compared with ==.
type SlotTaker interface {
	// Request determines the entries that the next write needs, none if it needs no slot
	// any more.
	Request(now time.Time) []ledger.Entry
	// Requested returns the entries of the last request.
	Requested() []ledger.Entry
	// Granted returns the entries that the ledger names, unless the last request replaces
	// them.
	Granted() []ledger.Entry
	// HasGrant reports whether the ledger names a slot.
	HasGrant() bool
	// Grant tells that the ledger has stored the request.
	Grant()
	// NotGranted tells that it has not.
	NotGranted(now time.Time)
	// Proceed queues the next write.
	Proceed()
}

// laneSlot takes the one slot of a lane.
type laneSlot struct {
	tr   *taskRunner
	lane *Lane
}

// Request requests the slot of the next task.
func (s laneSlot) Request(now time.Time) []ledger.Entry {
	s.lane.requested = ledger.ObjectWrite{}
	if t, _ := s.tr.next(now, s.lane); t != nil {
		s.lane.requested = t.Slot
	}
	return s.Requested()
}

// Requested returns the requested slot.
func (s laneSlot) Requested() []ledger.Entry {
	if s.lane.requested == (ledger.ObjectWrite{}) {
		return nil
	}
	return []ledger.Entry{s.lane.requested}
}

// Granted returns the slot, unless it is requested again.
func (s laneSlot) Granted() []ledger.Entry {
	if !s.lane.HasSlot() || s.lane.requestsSlotAgain() {
		return nil
	}
	return []ledger.Entry{s.lane.granted}
}

// requestsSlotAgain reports whether the next snapshot requests the same slot, possibly
// for a later version of the object. In that case the write for the older version can
// never succeed.
func (lane *Lane) requestsSlotAgain() bool {
	before, after := lane.granted, lane.requested
	if before.ResourceVersion != "" {
		before.ResourceVersion, after.ResourceVersion = "", ""
		before.Since, after.Since = time.Time{}, time.Time{}
	}
	return before == after
}

// HasGrant reports whether the ledger names the slot.
func (s laneSlot) HasGrant() bool { return s.lane.HasSlot() }

// Grant records that the ledger has stored the requested slot.
func (s laneSlot) Grant() {
	s.lane.granted, s.lane.requested = s.lane.requested, ledger.ObjectWrite{}
}

// NotGranted records that the ledger has not stored the requested slot.
func (s laneSlot) NotGranted(now time.Time) {
	s.lane.requested = ledger.ObjectWrite{}
	s.tr.markStatusesStale(now, s.lane)
}

// Proceed queues the lane.
func (s laneSlot) Proceed() {
	s.lane.stage = Queued
	s.tr.queue = append(s.tr.queue, s.lane)
}
