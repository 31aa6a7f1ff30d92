package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxNodesInSnapshot limits the nodes that one ledger snapshot names. It is far more than are
	// treated at a time. The size of the stored object is another limit.
	maxNodesInSnapshot = 500
	// TidyAfter is how long a snapshot may keep entries that have ended and do not
	// mislead the next leader.
	TidyAfter = 10 * time.Second
)

// ledgerWriter writes snapshots of the ledger. All requests that arrive during one write
// are part of the next snapshot.
type ledgerWriter struct {
	engine         *Engine
	ledger         *ledger.Ledger
	restored       []ledger.Entry        // entries of the previous leader
	unknownEntries []ledger.UnknownEntry // entries of the previous leader of kinds that this version does not know
	unknownUntil   time.Time             // until when such a write may treat a control-plane node

	queued    []SlotTaker // wait for the next snapshot
	writing   []SlotTaker // wait for the snapshot being written
	withSlots []SlotTaker // named by the stored snapshot or the one being written

	replacements awaitingReplacement
	attempts     []ledger.Entry // of nodes that are deleted or in treatment, in the next snapshot
	stored       []ledger.Entry // the stored snapshot
	next         []ledger.Entry // the snapshot being written
	isOutdated   bool           // the stored snapshot is unknown or has entries of a policy that do not count any more
	tidyAt       time.Time      // when to write a snapshot because of TidyAfter, zero for never
	isWriting    bool
	done         chan error

	notBefore time.Time
	failure   Failure // of the last snapshot
}

// restore resumes what the previous leader has stored in the ledger.
func (w *ledgerWriter) restore(now time.Time) {
	for _, e := range w.restored {
		if gone, is := e.(ledger.DeletedNode); is { // first, because these entries hold the time
			w.restoreDeletedNode(now, w.engine.nodeStates[gone.Node], gone)
		}
	}
	for p := range implementing[Recorder](w.engine.policies) {
		p.RestoreEntries(w.restored)
	}
	w.restoreAttempts(now)
	for _, e := range w.restored {
		switch e := e.(type) {
		case ledger.ObjectWrite:
			w.restoreTreatment(now, w.engine.nodeStates[e.Node], e)
		case ledger.NodeWrite:
			if n := w.engine.nodeStates[e.Node]; n.isNamedBy(e) && n.Object.ResourceVersion == e.ResourceVersion {
				w.engine.nodeWriter.Restore(now, n, e)
			}
		}
	}
	w.stored, w.restored = w.restored, nil
	w.tidyAt = now // remove outdated entries of the previous leader at once
	w.restoreUnknown(now)
	for _, node := range slices.Sorted(maps.Keys(w.engine.tasks.byNode)) {
		for _, t := range w.engine.tasks.treatments {
			t.Update(now, node)
		}
	}
}

// restoreUnknown handles entries of a newer version that this version does not know. They
// stay in the ledger. Only one control-plane node may be treated at a time, by any kind
// of treatment, so the controller waits for writes that may still arrive.
func (w *ledgerWriter) restoreUnknown(now time.Time) {
	w.engine.cfg.Metrics.setUnknownEntries("ledger", w.ledger.CountUnknown(w.stored))
	for _, e := range w.unknownEntries {
		w.engine.cfg.Logger.Warn("ledger has an entry that this version does not know; keeping it", "node", e.Node, "rule", e.Rule.Name)
		if e.ControlPlane {
			w.unknownUntil = now.Add(MaxInFlight)
			w.engine.tasks.nextDue = times.Earliest(w.engine.tasks.nextDue, w.unknownUntil)
		}
	}
}

// restoreTreatment resumes a treatment that the previous leader may have started. The
// write may still succeed for a while.
func (w *ledgerWriter) restoreTreatment(now time.Time, state *Node, e ledger.ObjectWrite) {
	nodeTasks := w.engine.tasks.getOrCreate(e.Node)
	nodeTasks.granted, nodeTasks.sentAt = e, now
	owner := w.engine.tasks.ownerOf(e)
	if owner == nil {
		w.engine.Logger().Error("ledger names an object that no treatment owns", "node", e.Node, "object", e.Object.String())
	}
	if owner == nil || !owner.Restore(now, nodeTasks, state) {
		nodeTasks.clearSlot()
		return
	}
	w.addWithSlot(taskSlot{&w.engine.tasks, nodeTasks})
}

// write writes the next snapshot if it is needed. It returns when to try again if
// the snapshot must wait.
func (w *ledgerWriter) write(ctx context.Context, now time.Time) (due time.Time) {
	entries, due := w.nextSnapshot(now)
	if entries == nil {
		return due
	}
	w.isWriting = true
	w.engine.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
		defer cancel()
		w.done <- w.ledger.Write(ctx, entries)
	})
	return time.Time{}
}

// nextSnapshot returns the entries of the next snapshot, nil if none may be written now.
// In that case due is when to try again.
func (w *ledgerWriter) nextSnapshot(now time.Time) (entries []ledger.Entry, due time.Time) {
	hasNews := w.syncDeletedNodes(now)
	if w.isWriting {
		return nil, time.Time{}
	}
	hasEnded, due := w.hasEndedEntries(now)
	isStale := hasNews || hasEnded || w.isOutdated || w.lacksAttempts()
	switch {
	case len(w.queued) == 0 && !isStale:
		return nil, due
	case now.Before(w.notBefore):
		return nil, w.notBefore
	}
	w.withSlots = slices.DeleteFunc(w.withSlots, func(t SlotTaker) bool { return !t.HasGrant() })
	w.writing, w.replacements.requested, w.attempts = nil, nil, nil
	held := w.entries()
	room := w.ledger.Room()
	room.Add(w.withPolicyEntries(now, held)...)
	isStale = w.requestDeletedNodes(now, room) || hasEnded || w.isOutdated
	w.isOutdated = false
	w.addQueued(now, room)
	isStale = w.requestAttempts(now, room) || isStale
	if len(w.writing) == 0 && !isStale {
		return nil, due // the ledger is full, or no request is left
	}
	w.next = w.withPolicyEntries(now, w.entries())
	return w.next, time.Time{}
}

// withPolicyEntries adds the entries of policies to those of a snapshot.
func (w *ledgerWriter) withPolicyEntries(now time.Time, entries []ledger.Entry) []ledger.Entry {
	for p := range implementing[Recorder](w.engine.policies) {
		entries = append(entries, p.Entries(now, entries)...)
	}
	return entries
}

// addQueued adds waiting writes to the next snapshot, as far as there is room. A snapshot
// without any other write takes the first one even without room. Otherwise that write
// would wait forever; this way the API server's error is reported.
func (w *ledgerWriter) addQueued(now time.Time, room *ledger.Room) {
	waiting := w.queued
	w.queued = nil
	for i, t := range waiting {
		named := len(w.withSlots) + len(w.writing)
		if named+len(w.replacements.requested) < maxNodesInSnapshot {
			entries := t.Request(now)
			if len(entries) == 0 { // needs no slot any more
				t.Proceed()
				continue
			}
			for p := range implementing[Recorder](w.engine.policies) {
				entries = append(entries, p.EntriesFor(now, entries)...)
			}
			if room.Take(entries...) || named == 0 {
				w.writing = append(w.writing, t)
				continue
			}
			t.NotGranted(now)
		}
		w.queued = append(w.queued, waiting[i:]...)
		return
	}
}

// addWithSlot adds a write whose slot the ledger names.
func (w *ledgerWriter) addWithSlot(t SlotTaker) {
	if !slices.Contains(w.withSlots, t) {
		w.withSlots = append(w.withSlots, t)
	}
}

// hasEndedEntries reports whether a new snapshot is due because stored entries have ended, or
// when it will be. An entry that would make the next leader keep a free slot is removed
// at once. Other entries are removed together later, so that a storm of taints does not
// double the number of snapshots.
func (w *ledgerWriter) hasEndedEntries(now time.Time) (isDue bool, due time.Time) {
	for p := range implementing[Recorder](w.engine.policies) {
		if p.HasEnded(w.stored) {
			return true, time.Time{}
		}
	}
	kept := slotsOf(w.engine.core.AwaitingReplacement())
	isTidy := true
	for _, e := range w.stored {
		switch e := e.(type) {
		case ledger.DeletedNode: // syncDeletedNodes removes entries that would mislead the next leader
			isTidy = isTidy && (kept[e.Slot] || w.engine.showsRemoval(e.Slot))
		case ledger.Attempts:
			if w.engine.misleads(e) {
				return true, time.Time{}
			}
			isTidy = isTidy && w.engine.needsAttempts(e)
		case ledger.ObjectWrite:
			if nodeTasks := w.engine.tasks.byNode[e.Node]; nodeTasks == nil || nodeTasks.granted != e {
				return true, time.Time{}
			}
		case ledger.NodeWrite: // the next leader sees by the node's version that nothing can arrive
			state := w.engine.nodeStates[e.Node]
			isTidy = isTidy && state.isNamedBy(e) && w.engine.nodeWriter.MayArrive(state, e)
		}
	}
	switch {
	case isTidy:
		w.tidyAt = time.Time{}
	case w.tidyAt.IsZero():
		w.tidyAt = now.Add(TidyAfter)
	}
	return !isTidy && !now.Before(w.tidyAt), w.tidyAt
}

// entries returns the entries of the next snapshot, without those of policies.
func (w *ledgerWriter) entries() []ledger.Entry {
	entries := make([]ledger.Entry, 0, len(w.withSlots)+len(w.writing))
	for _, t := range w.writing {
		entries = append(entries, t.Requested()...)
	}
	for _, t := range w.withSlots {
		for _, e := range t.Granted() {
			if write, is := e.(ledger.ObjectWrite); !is || !w.replacements.replacesEntry(write) {
				entries = append(entries, e)
			}
		}
	}
	for _, gone := range w.replacements.requested {
		entries = append(entries, gone)
	}
	return append(entries, w.attempts...) // not nil, even if empty
}

// SlotOf returns the slot of a node under the bound of a rule.
func SlotOf(rule triage.RuleID, node *corev1.Node) ledger.Slot {
	return ledger.Slot{Rule: ownership.Rule(rule), Node: node.Name, UID: string(node.UID)}
}

// handleResult handles the result of a snapshot write and lets the named writes
// continue. A returned error ends the term. An unreadable ledger does not: it may still
// belong to this process, no new slot is granted meanwhile, and only this process knows
// its entries.
func (w *ledgerWriter) handleResult(err error) error {
	w.isWriting = false
	result := ledgerOutcome(err)
	w.engine.cfg.Metrics.CountWrite("ledger", result)
	if errors.Is(err, ledger.ErrDeposed) {
		return err
	}
	if err != nil {
		isNews := w.failure.Add(result, err)
		wait := w.engine.RetryDelay(w.failure.Tries)
		w.notBefore = time.Now().Add(wait)
		if isNews {
			w.engine.cfg.Logger.Warn("ledger not written", "retryIn", wait.String(), "err", err)
		}
		for _, t := range w.writing {
			t.NotGranted(time.Now())
		}
		w.isOutdated = true // the stored snapshot is unknown
		// If the API server rejects the snapshot because of an entry, the others go
		// first in the next snapshot.
		w.queued, w.writing = append(w.queued, w.writing...), nil
		return nil // replacements request their entries again by themselves
	}
	if w.failure.Tries > 0 {
		w.engine.cfg.Logger.Info("ledger written after failures", "tries", w.failure.Tries)
	}
	w.notBefore, w.failure = time.Time{}, Failure{}
	for _, t := range w.writing {
		if t.Grant(); t.HasGrant() {
			w.addWithSlot(t)
		}
		t.Proceed()
	}
	w.writing = nil
	w.replacements.stored()
	w.stored, w.next, w.tidyAt = w.next, nil, time.Time{}
	w.engine.cfg.Metrics.setUnknownEntries("ledger", w.ledger.CountUnknown(w.stored))
	return nil
}

// ledgerOutcome classifies the result of a snapshot write. A ledger that another replica
// has claimed, or that is unreadable, was not overwritten.
func ledgerOutcome(err error) treat.Outcome {
	if errors.Is(err, ledger.ErrDeposed) || errors.Is(err, ledger.ErrUnreadable) {
		return treat.Refused
	}
	return treat.Classify(err)
}
