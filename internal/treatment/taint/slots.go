package taint

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// slotSet is the permission, stored in the ledger, to take slots with one write: those
// of all rules whose NoExecute taint the write adds, and to close the node to new pods.
type slotSet struct {
	version string // of the node
	rules   []triage.RuleID
	closes  triage.RuleID  // the rule whose weaker taint closes the node; zero for none
	unknown format.Unknown // fields that a newer version of the controller stored
}

// covers reports whether everything that a change takes is granted. A slot of NoExecute
// includes the permission to close the node.
func (g slotSet) covers(change *treat.Change) bool {
	isMissing := func(rule triage.RuleID) bool { return !slices.Contains(g.rules, rule) }
	return g.version == change.Node.ResourceVersion && !slices.ContainsFunc(change.Takes, isMissing) &&
		(change.Closes == triage.RuleID{} || g.closes != triage.RuleID{} || len(g.rules) > 0)
}

// takesSlots reports whether a change needs an entry in the ledger.
func takesSlots(change *treat.Change) bool {
	return len(change.Takes) > 0 || change.Closes != triage.RuleID{}
}

func (g slotSet) entries(n *engine.Node) (entries []ledger.Entry) {
	for _, rule := range g.rules {
		entries = append(entries, ledger.NodeWrite{Slot: engine.SlotOf(rule, n.Object), ResourceVersion: g.version, Unknown: g.unknown})
	}
	if g.closes != (triage.RuleID{}) {
		entries = append(entries, ledger.NodeWrite{Slot: engine.SlotOf(g.closes, n.Object), ResourceVersion: g.version, Closes: true, Unknown: g.unknown})
	}
	return entries
}

// Request requests the slots that the node needs in the ledger, including those it has.
func (wr *nodeWrite) Request(now time.Time) []ledger.Entry {
	wr.requested = slotSet{}
	if wr.gone {
		return nil
	}
	plan, ok := wr.writer.host.Plan(wr.node)
	if !ok {
		return nil
	}
	change := wr.nextChange(now, plan)
	if change == nil || !takesSlots(change) {
		return nil
	}
	g := slotSet{version: wr.node.Object.ResourceVersion, rules: change.Takes, closes: change.Closes}
	if wr.granted.version == g.version {
		g.unknown = wr.granted.unknown
		if g.closes == (triage.RuleID{}) {
			g.closes = wr.granted.closes
		}
	}
	for _, rule := range wr.granted.rules {
		if !slices.Contains(g.rules, rule) {
			g.rules = append(g.rules, rule)
		}
	}
	wr.requested = g
	return wr.Requested()
}

// Requested returns the entries of the last request.
func (wr *nodeWrite) Requested() []ledger.Entry { return wr.requested.entries(wr.node) }

// Granted returns the entries that the ledger names, unless the last request replaces them.
func (wr *nodeWrite) Granted() []ledger.Entry {
	if wr.requested.version == wr.granted.version {
		return nil
	}
	return wr.granted.entries(wr.node)
}

// HasGrant reports whether the ledger names a slot.
func (wr *nodeWrite) HasGrant() bool { return !wr.gone && wr.granted.version != "" }

// Grant records that the ledger has stored the request.
func (wr *nodeWrite) Grant() {
	if wr.node.Object.ResourceVersion == wr.requested.version {
		wr.granted = wr.requested
	}
	wr.requested = slotSet{}
}

// NotGranted records that the ledger has not stored the request.
func (wr *nodeWrite) NotGranted(now time.Time) {
	wr.requested = slotSet{}
	wr.writer.host.MarkStatusesStale(now, wr.node)
}

// Proceed queues the write.
func (wr *nodeWrite) Proceed() {
	wr.progress = engine.Queued
	wr.writer.queue = append(wr.writer.queue, wr)
}

// Restore resumes a write that the previous leader may have sent. It may still succeed
// while the node has the version that the entry names.
func (w *Writer) Restore(now time.Time, n *engine.Node, e ledger.NodeWrite) {
	rule, wr := triage.RuleID(e.Rule), w.getOrCreate(n)
	wr.sentFor, wr.unansweredFor = e.ResourceVersion, e.ResourceVersion
	wr.granted.version, wr.granted.unknown = e.ResourceVersion, e.Unknown
	if e.Closes {
		wr.granted.closes = rule
	} else {
		wr.granted.rules = append(wr.granted.rules, rule)
	}
	w.host.RestoreSlot(wr)
	w.host.Core().Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Since: now, Taint: true, Closes: e.Closes})
	w.host.Logger().Info("taint write restored", "node", e.Node, "rule", rule.String())
}

// MayArrive reports whether the write of an entry may still arrive: the node has the version
// that the entry names.
func (w *Writer) MayArrive(n *engine.Node, e ledger.NodeWrite) bool {
	wr := w.writes[n]
	return wr != nil && wr.granted.version == e.ResourceVersion
}

// MayTakeSlot reports whether a write that takes a slot may have been sent to the node and may
// still arrive.
func (w *Writer) MayTakeSlot(n *engine.Node) bool {
	wr := w.writes[n]
	return wr != nil && wr.sentFor != ""
}
