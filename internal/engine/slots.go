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

// taskSlot takes the one slot of a node.
type taskSlot struct {
	tr        *taskRunner
	nodeTasks *NodeTasks
}

// Request requests the slot of the next task.
func (s taskSlot) Request(now time.Time) []ledger.Entry {
	s.nodeTasks.requested = ledger.ObjectWrite{}
	if t, _ := s.tr.next(now, s.nodeTasks); t != nil {
		s.nodeTasks.requested = t.Slot
	}
	return s.Requested()
}

// Requested returns the requested slot.
func (s taskSlot) Requested() []ledger.Entry {
	if s.nodeTasks.requested == (ledger.ObjectWrite{}) {
		return nil
	}
	return []ledger.Entry{s.nodeTasks.requested}
}

// Granted returns the slot, unless it is requested again.
func (s taskSlot) Granted() []ledger.Entry {
	if !s.nodeTasks.HasSlot() || s.nodeTasks.requestsSlotAgain() {
		return nil
	}
	return []ledger.Entry{s.nodeTasks.granted}
}

// requestsSlotAgain reports whether the next snapshot requests the same slot, possibly
// for a later version of the object. In that case the write for the older version can
// never succeed.
func (nodeTasks *NodeTasks) requestsSlotAgain() bool {
	before, after := nodeTasks.granted, nodeTasks.requested
	if before.ResourceVersion != "" {
		before.ResourceVersion, after.ResourceVersion = "", ""
		before.Since, after.Since = time.Time{}, time.Time{}
	}
	return before == after
}

// HasGrant reports whether the ledger names the slot.
func (s taskSlot) HasGrant() bool { return s.nodeTasks.HasSlot() }

// Grant records that the ledger has stored the requested slot.
func (s taskSlot) Grant() {
	s.nodeTasks.recorded = s.nodeTasks.recorded && s.nodeTasks.requestsSlotAgain()
	s.nodeTasks.granted, s.nodeTasks.requested = s.nodeTasks.requested, ledger.ObjectWrite{}
}

// NotGranted records that the ledger has not stored the requested slot.
func (s taskSlot) NotGranted(now time.Time) {
	s.nodeTasks.requested = ledger.ObjectWrite{}
	s.tr.markStatusesStale(now, s.nodeTasks)
}

// Proceed queues the node.
func (s taskSlot) Proceed() {
	s.nodeTasks.progress = Queued
	s.tr.queue = append(s.tr.queue, s.nodeTasks)
}
