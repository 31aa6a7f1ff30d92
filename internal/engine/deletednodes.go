package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// maxAwaitingReplacement limits the deleted nodes in a ledger snapshot, so that there is room
// for existing nodes.
const maxAwaitingReplacement = maxNodesInSnapshot / 2

// awaitingReplacement holds deleted nodes that keep their slot until they are replaced,
// as stored in the ledger. Once the remediation object is gone too, only the ledger tells
// the next leader about them. A snapshot is written when a node is deleted, and when its
// slot becomes free: otherwise the next leader would keep the slot again. Nothing waits
// for the second kind of snapshot.
type awaitingReplacement struct {
	inLedger  map[ledger.Slot]ledger.DeletedNode // in the stored snapshot
	requested []ledger.DeletedNode               // in the next snapshot, or the one being written
	// awaited holds nodes whose objects stay until the ledger names the nodes or their
	// slot is free.
	awaited map[string]bool
}

// slotOfGrant returns the slot that a grant keeps.
func slotOfGrant(g triage.Grant) ledger.Slot {
	return ledger.Slot{Rule: ownership.Rule(g.Rule), Node: g.Node, UID: g.UID}
}

// restoreDeletedNode resumes the slot of a node that the previous leader saw go. The
// clocks may differ. A time in the future counts as now, so a wrong clock keeps a slot at
// most for the usual time from now. A clock that is ahead frees it as much too early.
func (w *ledgerWriter) restoreDeletedNode(now time.Time, state *Node, e ledger.DeletedNode) {
	if state != nil && string(state.Object.UID) == e.UID {
		return // the node exists
	}
	w.replacements.add(e)
	for t := range implementing[Remover](w.engine.tasks.treatments) {
		t.RestoreRemoval(e.Slot)
	}
	if e.Replaced {
		return
	}
	gone := e.Gone
	if gone.After(now) {
		gone = now
	}
	w.engine.Core().Resume(now, triage.Grant{Rule: triage.RuleID(e.Rule), Node: e.Node, UID: e.UID, Step: e.Step, Since: e.Since, Gone: gone, ControlPlane: e.ControlPlane, Pool: e.Pool, ReadyNeeded: e.ReadyNeeded, Topology: e.Topology})
	w.engine.Logger().Info("wait for a replacement restored", "node", e.Node, "rule", triage.RuleID(e.Rule).String(), "gone", e.Gone.String())
}

func (awaiting *awaitingReplacement) add(e ledger.DeletedNode) {
	if awaiting.inLedger == nil {
		awaiting.inLedger = map[ledger.Slot]ledger.DeletedNode{}
	}
	awaiting.inLedger[e.Slot] = e
}

// isStored reports whether the stored snapshot names a deleted node.
func (awaiting *awaitingReplacement) isStored(g triage.Grant) bool {
	_, is := awaiting.inLedger[slotOfGrant(g)]
	return is
}

// replacesEntry reports whether the next snapshot names the deleted node of an entry instead
// of the entry. A write that names the version of its object cannot arrive any more once
// the object is gone with its node. Every other write may.
func (awaiting *awaitingReplacement) replacesEntry(granted ledger.ObjectWrite) bool {
	return granted.ResourceVersion != "" && awaiting.requests(granted.Slot)
}

// requests says whether the snapshot has an entry for the slot.
func (awaiting *awaitingReplacement) requests(slot ledger.Slot) bool {
	return slices.ContainsFunc(awaiting.requested, func(e ledger.DeletedNode) bool { return e.Slot == slot })
}

// syncDeletedNodes reports whether the ledger lacks a deleted node, or names a node whose
// slot is free. It also reconciles nodes that do not have to wait for the ledger any
// more.
func (w *ledgerWriter) syncDeletedNodes(now time.Time) bool {
	unnamed, isOutdated := map[string]bool{}, false
	kept := w.engine.Core().AwaitingReplacement()
	for _, g := range kept {
		if !w.replacements.isStored(g) {
			unnamed[g.Node] = true
		} else if w.replacements.inLedger[slotOfGrant(g)].ReadyNeeded != g.ReadyNeeded {
			isOutdated = true // the next leader could take a replacement of another node for that of this node
		}
	}
	for _, node := range slices.Sorted(maps.Keys(w.replacements.awaited)) {
		if !unnamed[node] {
			delete(w.replacements.awaited, node)
			w.engine.tasks.reconcile(now, node)
		}
	}
	return len(unnamed) > 0 || isOutdated || w.replacements.hasReplaced(now, kept)
}

// hasReplaced reports whether the next leader would keep a slot that is free.
func (awaiting *awaitingReplacement) hasReplaced(now time.Time, kept []triage.Grant) bool {
	isKept := slotsOf(kept)
	for d, e := range awaiting.inLedger {
		if !isKept[d] && !e.Replaced && now.Before(e.Gone.Add(triage.ReplacementWait)) {
			return true
		}
	}
	return false
}

func slotsOf(grants []triage.Grant) map[ledger.Slot]bool {
	kept := make(map[ledger.Slot]bool, len(grants))
	for _, g := range grants {
		kept[slotOfGrant(g)] = true
	}
	return kept
}

// LedgerLacks reports whether the ledger lacks a deleted node that keeps its slot. If so,
// the node's treatments are reconciled when the ledger names the node.
func (l *Engine) LedgerLacks(node string, isNode func(ledger.Slot) bool) bool {
	awaiting := &l.ledger.replacements
	is := slices.ContainsFunc(l.core.AwaitingReplacement(), func(g triage.Grant) bool { return isNode(slotOfGrant(g)) && !awaiting.isStored(g) })
	if is {
		if awaiting.awaited == nil {
			awaiting.awaited = map[string]bool{}
		}
		awaiting.awaited[node] = true
	}
	return is
}

// requestDeletedNodes adds the deleted nodes to the next snapshot, and reports
// whether that changes it. If there is not enough room, nodes in the stored snapshot
// stay, because their objects may be gone. The objects of the others are kept.
func (w *ledgerWriter) requestDeletedNodes(now time.Time, ledgerRoom *ledger.Room) (isNews bool) {
	kept := w.engine.Core().AwaitingReplacement()
	isNews = w.replacements.hasReplaced(now, kept)
	slices.SortStableFunc(kept, func(a, b triage.Grant) int {
		if is := w.replacements.isStored(a); is != w.replacements.isStored(b) {
			if is {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Gone.Compare(b.Gone), cmp.Compare(a.Node, b.Node))
	})
	room := min(maxAwaitingReplacement, max(0, maxNodesInSnapshot-len(w.withSlots)))
	w.replacements.requested = nil
	for _, g := range kept[:min(len(kept), room)] {
		e, isNamed := w.replacements.inLedger[slotOfGrant(g)]
		if isNamed {
			isNews = isNews || e.ReadyNeeded != g.ReadyNeeded
			e.ReadyNeeded = g.ReadyNeeded
			ledgerRoom.Add(e)
		} else {
			e = ledger.DeletedNode{
				Slot: slotOfGrant(g), Step: g.Step,
				Gone: g.Gone.UTC(), Since: g.Since.UTC(), ControlPlane: g.ControlPlane, Pool: g.Pool, ReadyNeeded: g.ReadyNeeded, Topology: g.Topology,
			}
			if !ledgerRoom.Take(e) {
				break
			}
			isNews = true
		}
		w.replacements.requested = append(w.replacements.requested, e)
	}
	for _, e := range slices.SortedFunc(maps.Values(w.replacements.inLedger), func(a, b ledger.DeletedNode) int { return b.Gone.Compare(a.Gone) }) {
		if len(w.replacements.requested) < room && w.engine.showsRemoval(e.Slot) && !w.replacements.requests(e.Slot) && ledgerRoom.Take(e) {
			e.Replaced = true
			w.replacements.requested = append(w.replacements.requested, e)
		}
	}
	return isNews
}

// showsRemoval reports whether an object shows that a treatment removed the node of a slot.
// The next leader would find it without the time of deletion and keep the slot again.
func (l *Engine) showsRemoval(slot ledger.Slot) bool {
	for t := range implementing[Remover](l.tasks.treatments) {
		if t.ShowsRemoval(slot) {
			return true
		}
	}
	return false
}

// stored records that the ledger has stored the snapshot.
func (awaiting *awaitingReplacement) stored() {
	awaiting.inLedger = nil
	for _, e := range awaiting.requested {
		awaiting.add(e)
	}
	awaiting.requested = nil
}
