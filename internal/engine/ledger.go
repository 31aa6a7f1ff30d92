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
	// tidyAfter is how long a snapshot may keep entries that have ended and do not
	// mislead the next leader.
	tidyAfter = 10 * time.Second
)

// ledgerWriter writes snapshots of the ledger. All requests that arrive during one write
// are part of the next snapshot.
type ledgerWriter struct {
	engine         *Engine
	ledger         *ledger.Ledger
	restored       []ledger.Entry        // entries of the previous leader
	unknownEntries []ledger.UnknownEntry // entries of the previous leader of kinds that this version does not know

	queuedNodes    []*Node // wait for the next snapshot
	nodesWithSlots []*Node // named by the stored snapshot or the one being written
	writingNodes   []*Node // wait for the snapshot being written

	// The same for treatments that take a slot. Few treatments are named: one
	// control-plane node at a time, and entries of the previous leader.
	queuedLanes, writingLanes []*Lane
	lanesWithSlots            []*Lane
	replacements              awaitingReplacement
	stored                    []ledger.Entry // the stored snapshot
	next                      []ledger.Entry // the snapshot being written
	isOutdated                bool           // the stored snapshot is unknown or names launch failures that do not count any more
	tidyAt                    time.Time      // when to write a snapshot because of tidyAfter, zero for never
	writing                   bool
	done                      chan error

	notBefore time.Time
	failure   Failure // of the last snapshot
}

// restore resumes what the previous leader has stored in the ledger.
func (w *ledgerWriter) restore(now time.Time) {
	for _, e := range w.restored {
		if gone, is := e.(ledger.Replacement); is { // first, because these entries hold the time
			w.restoreReplacement(now, w.engine.nodeStates[gone.Node], gone)
		}
	}
	for _, e := range w.restored {
		switch e := e.(type) {
		case ledger.LaunchFailures:
			w.engine.repairs.restoreLaunchFailures(e)
		case ledger.ObjectWrite:
			w.restoreTreatment(now, w.engine.nodeStates[e.Node], e)
		case ledger.NodeWrite:
			w.engine.taints.restore(now, w.engine.nodeStates[e.Node], e)
		}
	}
	w.stored, w.restored = w.restored, nil
	w.tidyAt = now // remove outdated entries of the previous leader at once
	w.restoreUnknown(now)
	for _, node := range slices.Sorted(maps.Keys(w.engine.tasks.lanes)) {
		for _, t := range w.engine.tasks.treatments {
			t.Update(now, node)
		}
	}
}

// restore resumes a taint write that the previous leader may have sent. It may
// still succeed while the node has the version that the entry names.
func (w *taintWriter) restore(now time.Time, state *Node, e ledger.NodeWrite) {
	if state == nil || string(state.Object.UID) != e.UID || state.Object.ResourceVersion != e.ResourceVersion {
		return
	}
	rule := triage.RuleID(e.Rule)
	state.inFlight, state.unanswered = e.ResourceVersion, e.ResourceVersion
	state.granted.version, state.granted.unknown = e.ResourceVersion, e.Unknown
	state.granted.rules = append(state.granted.rules, rule)
	if !state.inLedger {
		state.inLedger = true
		w.engine.ledger.nodesWithSlots = append(w.engine.ledger.nodesWithSlots, state)
	}
	w.engine.core.Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Since: now, Taint: true})
	w.engine.cfg.Logger.Info("taint write restored", "node", e.Node, "rule", rule.String())
}

// restoreUnknown handles entries of a newer version that this version does not know. They
// stay in the ledger. Only one control-plane node may be treated at a time, by any kind
// of treatment, so the controller waits for writes that may still arrive.
func (w *ledgerWriter) restoreUnknown(now time.Time) {
	w.engine.cfg.Metrics.setUnknownEntries("ledger", w.ledger.CountUnknown(w.stored))
	for _, e := range w.unknownEntries {
		w.engine.cfg.Logger.Warn("ledger has an entry that this version does not know; keeping it", "node", e.Node, "rule", e.Rule.Name)
		if e.ControlPlane {
			w.engine.remediations.orphans.unknownUntil = now.Add(maxInFlight)
			w.engine.tasks.nextDue = times.Earliest(w.engine.tasks.nextDue, w.engine.remediations.orphans.unknownUntil)
		}
	}
}

// restoreTreatment resumes a treatment that the previous leader may have started. The
// write may still succeed for a while.
func (w *ledgerWriter) restoreTreatment(now time.Time, state *Node, e ledger.ObjectWrite) {
	lane := w.engine.tasks.of(e.Node)
	lane.granted, lane.sentAt = e, now
	if !w.engine.tasks.ownerOf(e).Restore(now, lane, state) {
		lane.Release()
		return
	}
	if e.ControlPlane {
		w.engine.remediations.orphans.add(e.Node)
	}
	w.lanesWithSlots = append(w.lanesWithSlots, lane)
}

// write writes the next snapshot if it is needed. It returns when to try again if
// the snapshot must wait.
func (w *ledgerWriter) write(ctx context.Context, now time.Time) (due time.Time) {
	entries, due := w.nextSnapshot(now)
	if entries == nil {
		return due
	}
	w.writing = true
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
	hasDepartures := w.hasReplacements(now)
	if w.writing {
		return nil, time.Time{}
	}
	hasEnded, due := w.hasEndedEntries(now)
	isStale := hasDepartures || hasEnded || w.isOutdated
	switch {
	case len(w.queuedNodes)+len(w.queuedLanes) == 0 && !isStale:
		return nil, due
	case now.Before(w.notBefore):
		return nil, w.notBefore
	}
	w.nodesWithSlots = slices.DeleteFunc(w.nodesWithSlots, func(state *Node) bool {
		state.inLedger = !state.gone && state.granted.version != ""
		return !state.inLedger
	})
	w.lanesWithSlots = slices.DeleteFunc(w.lanesWithSlots, func(lane *Lane) bool { return !lane.hasSlot() })
	w.writingNodes, w.writingLanes, w.replacements.requested = nil, nil, nil
	held := w.entries()
	room := w.ledger.Room()
	room.Add(append(held, w.engine.repairs.launchFailureEntries(now, held)...)...)
	isStale = w.requestReplacementEntries(now, room) || hasEnded || w.isOutdated
	w.isOutdated = false
	w.addNodes(now, room)
	w.addTreatments(now, room)
	if len(w.writingNodes)+len(w.writingLanes) == 0 && !isStale {
		return nil, due // the ledger is full, or no request is left
	}
	entries = w.entries()
	entries = append(entries, w.engine.repairs.launchFailureEntries(now, entries)...)
	w.next = entries
	return w.next, time.Time{}
}

// addNodes adds waiting nodes to the next snapshot, as far as there is room. A snapshot
// without any other write takes the first node even without room. Otherwise that node
// would wait forever; this way the API server's error is reported.
func (w *ledgerWriter) addNodes(now time.Time, room *ledger.Room) {
	waiting := w.queuedNodes
	w.queuedNodes = nil
	for i, state := range waiting {
		state.requested = grantedSlot{}
		if len(w.nodesWithSlots)+len(w.writingNodes)+len(w.replacements.requested) < maxNodesInSnapshot {
			state.requested = w.engine.taints.requestedSlot(state, now)
			if len(state.requested.rules) == 0 { // needs no slot any more
				state.stage = queued
				w.engine.taints.queue.push(state)
				continue
			}
			if room.Take(state.requested.entries(nil, state)...) || w.isEmpty() {
				w.writingNodes = append(w.writingNodes, state)
				continue
			}
			state.requested = grantedSlot{}
		}
		w.queuedNodes = append(w.queuedNodes, waiting[i:]...)
		return
	}
}

// addTreatments adds waiting treatments in the same way.
func (w *ledgerWriter) addTreatments(now time.Time, room *ledger.Room) {
	beginning := w.queuedLanes
	w.queuedLanes = nil
	for i, lane := range beginning {
		lane.requested = ledger.ObjectWrite{}
		if len(w.nodesWithSlots)+len(w.writingNodes)+len(w.replacements.requested)+len(w.lanesWithSlots)+len(w.writingLanes) < maxNodesInSnapshot {
			lane.requested = w.requestedTreatmentSlot(now, lane)
			if lane.requested == (ledger.ObjectWrite{}) { // needs no slot any more
				lane.stage = queued
				w.engine.tasks.queue.push(lane)
				continue
			}
			if room.Take(w.engine.repairs.withLaunchFailureEntry(now, lane.requested)...) || w.isEmpty() {
				w.writingLanes = append(w.writingLanes, lane)
				continue
			}
			lane.requested = ledger.ObjectWrite{}
		}
		w.queuedLanes = append(w.queuedLanes, beginning[i:]...)
		return
	}
}

// isEmpty reports whether the next snapshot names no write.
func (w *ledgerWriter) isEmpty() bool {
	return len(w.nodesWithSlots)+len(w.writingNodes)+len(w.lanesWithSlots)+len(w.writingLanes) == 0
}

// hasEndedEntries reports whether a new snapshot is due because stored entries have ended, or
// when it will be. An entry that would make the next leader keep a free slot is removed
// at once. Other entries are removed together later, so that a storm of taints does not
// double the number of snapshots.
func (w *ledgerWriter) hasEndedEntries(now time.Time) (isDue bool, due time.Time) {
	before, kept := w.engine.repairs.pendingLaunchFailures(w.stored), slotsOf(w.engine.core.AwaitingReplacement())
	isTidy := true
	for _, e := range w.stored {
		switch e := e.(type) {
		case ledger.Replacement: // hasReplacements removes entries that would mislead the next leader
			isTidy = isTidy && (kept[e.Slot] || w.engine.remediations.hasRemovingObject(e))
		case ledger.LaunchFailures:
			if count := w.engine.repairs.counts[e.Rule.Name]; count == nil || e.Failed > count.failures.failed+before[e.Rule.Name] {
				return true, time.Time{}
			}
		case ledger.ObjectWrite:
			if lane := w.engine.tasks.lanes[e.Node]; lane == nil || lane.granted != e {
				return true, time.Time{}
			}
		case ledger.NodeWrite: // the next leader sees by the node's version that nothing can arrive
			state := w.engine.nodeStates[e.Node]
			isTidy = isTidy && state != nil && string(state.Object.UID) == e.UID && state.granted.version == e.ResourceVersion
		}
	}
	switch {
	case isTidy:
		w.tidyAt = time.Time{}
	case w.tidyAt.IsZero():
		w.tidyAt = now.Add(tidyAfter)
	}
	return !isTidy && !now.Before(w.tidyAt), w.tidyAt
}

// entries returns the entries of the next snapshot for nodes and treatments.
func (w *ledgerWriter) entries() []ledger.Entry {
	entries := make([]ledger.Entry, 0, len(w.nodesWithSlots)+len(w.writingNodes))
	for _, state := range w.writingNodes {
		entries = state.requested.entries(entries, state)
	}
	for _, state := range w.nodesWithSlots {
		if state.requested.version != state.granted.version {
			entries = state.granted.entries(entries, state)
		}
	}
	for _, lane := range w.writingLanes {
		entries = append(entries, lane.requested)
	}
	for _, lane := range w.lanesWithSlots {
		if !lane.requestsSlotAgain() && !w.replacements.replacesEntry(lane.granted) {
			entries = append(entries, lane.granted)
		}
	}
	for _, gone := range w.replacements.requested {
		entries = append(entries, gone)
	}
	return entries // not nil, even if empty
}

// requestsSlotAgain reports whether the next snapshot requests the same slot, possibly
// for a later version of the claim. In that case the write for the older version can
// never succeed.
func (lane *Lane) requestsSlotAgain() bool {
	before, after := lane.granted, lane.requested
	if isClaim(before.Object) {
		before.ResourceVersion, after.ResourceVersion = "", ""
		before.Since, after.Since = time.Time{}, time.Time{}
	}
	return before == after
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

// requestedTreatmentSlot returns the entry that the ledger must store before the next
// task, an empty entry for none.
func (w *ledgerWriter) requestedTreatmentSlot(now time.Time, lane *Lane) ledger.ObjectWrite {
	t, _ := w.engine.tasks.next(now, lane)
	if t == nil {
		return ledger.ObjectWrite{}
	}
	return t.Slot
}

// SlotOf returns the slot of a node under the bound of a rule.
func SlotOf(rule triage.RuleID, node *corev1.Node) ledger.Slot {
	return ledger.Slot{Rule: ownership.Rule(rule), Node: node.Name, UID: string(node.UID)}
}

func (g grantedSlot) entries(to []ledger.Entry, state *Node) []ledger.Entry {
	for _, rule := range g.rules {
		to = append(to, ledger.NodeWrite{Slot: SlotOf(rule, state.Object), ResourceVersion: g.version, Unknown: g.unknown})
	}
	return to
}

// handleResult handles the result of a snapshot write and lets the named writes
// continue. A returned error ends the term. An unreadable ledger does not: it may still
// belong to this process, no new slot is granted meanwhile, and only this process knows
// its entries.
func (w *ledgerWriter) handleResult(err error) error {
	w.writing = false
	result := ledgerResult(err)
	w.engine.cfg.Metrics.CountWrite("ledger", result)
	if errors.Is(err, ledger.ErrDeposed) {
		return err
	}
	if err != nil {
		isNews := w.failure.Add(result, err)
		wait := RetryDelay(w.failure.Tries)
		w.notBefore = time.Now().Add(wait)
		if isNews {
			w.engine.cfg.Logger.Warn("ledger not written", "retryIn", wait.String(), "err", err)
		}
		for _, state := range w.writingNodes {
			state.requested = grantedSlot{}
			w.engine.markStatusesStale(time.Now(), state)
		}
		for _, lane := range w.writingLanes {
			lane.requested = ledger.ObjectWrite{}
			w.engine.tasks.markStatusesStale(time.Now(), lane)
		}
		w.isOutdated = true // the stored snapshot is unknown
		// If the API server rejects the snapshot because of an entry, the others go
		// first in the next snapshot.
		w.queuedNodes, w.writingNodes = append(w.queuedNodes, w.writingNodes...), nil
		w.queuedLanes, w.writingLanes = append(w.queuedLanes, w.writingLanes...), nil
		return nil // replacements request their entries again by themselves
	}
	if w.failure.Tries > 0 {
		w.engine.cfg.Logger.Info("ledger written after failures", "tries", w.failure.Tries)
	}
	w.notBefore, w.failure = time.Time{}, Failure{}
	for _, state := range w.writingNodes {
		if state.Object.ResourceVersion == state.requested.version {
			state.granted = state.requested
			if !state.inLedger {
				state.inLedger = true
				w.nodesWithSlots = append(w.nodesWithSlots, state)
			}
		}
		state.requested = grantedSlot{}
		state.stage = queued
		w.engine.taints.queue.push(state)
	}
	w.writingNodes = nil
	for _, lane := range w.writingLanes {
		if !lane.hasSlot() {
			w.lanesWithSlots = append(w.lanesWithSlots, lane)
		}
		lane.granted, lane.requested = lane.requested, ledger.ObjectWrite{}
		if lane.granted.ControlPlane {
			w.engine.remediations.orphans.add(lane.Node)
		}
		lane.stage = queued
		w.engine.tasks.queue.push(lane)
	}
	w.writingLanes = nil
	w.replacements.stored()
	w.stored, w.next, w.tidyAt = w.next, nil, time.Time{}
	w.engine.cfg.Metrics.setUnknownEntries("ledger", w.ledger.CountUnknown(w.stored))
	return nil
}

// ledgerResult classifies the result of a snapshot write. A ledger that another replica
// has claimed, or that is unreadable, was not overwritten.
func ledgerResult(err error) treat.Result {
	if errors.Is(err, ledger.ErrDeposed) || errors.Is(err, ledger.ErrUnreadable) {
		return treat.Refused
	}
	return treat.Classify(err)
}
