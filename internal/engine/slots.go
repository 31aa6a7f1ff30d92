package engine

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
)

// The lane of a node takes one slot.

func (lane *Lane) request(l *Engine, now time.Time) []ledger.Entry {
	lane.requested = ledger.ObjectWrite{}
	if t, _ := l.tasks.next(now, lane); t != nil {
		lane.requested = t.Slot
	}
	return lane.requestedEntries()
}

func (lane *Lane) requestedEntries() []ledger.Entry {
	if lane.requested == (ledger.ObjectWrite{}) {
		return nil
	}
	return []ledger.Entry{lane.requested}
}

func (lane *Lane) grantedEntries() []ledger.Entry {
	if !lane.HasSlot() || lane.requestsSlotAgain() {
		return nil
	}
	return []ledger.Entry{lane.granted}
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

func (lane *Lane) hasGrant() bool { return lane.HasSlot() }

func (lane *Lane) grant() { lane.granted, lane.requested = lane.requested, ledger.ObjectWrite{} }

func (lane *Lane) notGranted(l *Engine, now time.Time) {
	lane.requested = ledger.ObjectWrite{}
	l.tasks.markStatusesStale(now, lane)
}

func (lane *Lane) proceed(l *Engine) {
	lane.stage = queued
	l.tasks.queue.push(lane)
}

// A taint write takes the slots of all rules whose NoExecute taint it adds.

func (state *Node) request(l *Engine, now time.Time) []ledger.Entry {
	state.requested = l.taints.requestedSlot(state, now)
	return state.requestedEntries()
}

func (state *Node) requestedEntries() []ledger.Entry { return state.requested.entries(state) }

func (state *Node) grantedEntries() []ledger.Entry {
	if state.requested.version == state.granted.version {
		return nil
	}
	return state.granted.entries(state)
}

func (state *Node) hasGrant() bool { return !state.gone && state.granted.version != "" }

func (state *Node) grant() {
	if state.Object.ResourceVersion == state.requested.version {
		state.granted = state.requested
	}
	state.requested = grantedSlot{}
}

func (state *Node) notGranted(l *Engine, now time.Time) {
	state.requested = grantedSlot{}
	l.markStatusesStale(now, state)
}

func (state *Node) proceed(l *Engine) {
	state.stage = queued
	l.taints.queue.push(state)
}

func (g grantedSlot) entries(state *Node) (entries []ledger.Entry) {
	for _, rule := range g.rules {
		entries = append(entries, ledger.NodeWrite{Slot: SlotOf(rule, state.Object), ResourceVersion: g.version, Unknown: g.unknown})
	}
	return entries
}

// requestedSlot returns the slots that a node needs in the ledger, including those it
// has.
func (w *taintWriter) requestedSlot(state *Node, now time.Time) grantedSlot {
	if state.gone {
		return grantedSlot{}
	}
	plan, ok := w.engine.planOf(state)
	if !ok {
		return grantedSlot{}
	}
	change, _ := w.nextChange(state, plan, now)
	if change == nil || len(change.Takes) == 0 {
		return grantedSlot{}
	}
	g := grantedSlot{version: state.Object.ResourceVersion, rules: change.Takes}
	if state.granted.version == g.version {
		g.unknown = state.granted.unknown
	}
	for _, rule := range state.granted.rules {
		if !slices.Contains(g.rules, rule) {
			g.rules = append(g.rules, rule)
		}
	}
	return g
}
