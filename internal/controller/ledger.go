package controller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxNamed limits the nodes that one ledger snapshot names. It is far more than are
	// treated at a time. The size of the stored object is another limit.
	maxNamed = 500
	// tidyAfter is how long a snapshot may keep entries that have ended and do not
	// mislead the next leader.
	tidyAfter = 10 * time.Second
)

// ledgerWriter writes snapshots of the ledger. All requests that arrive during one write
// are part of the next snapshot.
type ledgerWriter struct {
	ledger   *ledger.Ledger
	restored []ledger.Entry // entries of the previous leader
	kept     []ledger.Entry // entries of the previous leader of kinds that this version does not know

	queuedNodes    []*nodeState // wait for the next snapshot
	nodesWithSlots []*nodeState // named by the stored snapshot or the one being written
	writingNodes   []*nodeState // wait for the snapshot being written

	// The same for treatments that take a slot. Few treatments are named: one
	// control-plane node at a time, and entries of the previous leader.
	queuedTreatments, writingTreatments []*nodeTreatments
	treatmentsWithSlots                 []*nodeTreatments
	replacements                        awaitingReplacement
	stored                              []ledger.Entry // the stored snapshot
	next                                []ledger.Entry // the snapshot being written
	isOutdated                          bool           // the stored snapshot is unknown or names launch failures that do not count any more
	tidyAt                              time.Time      // when to write a snapshot because of tidyAfter, zero for never
	busy                                bool
	done                                chan error

	notBefore time.Time
	trouble   writeFailure // of the last snapshot
}

// restore resumes the taint writes that the previous leader may have sent. They may still
// succeed while the node has the version that the entry names.
func (l *loop) restore(now time.Time) {
	for _, e := range l.ledger.restored {
		if !e.Gone.IsZero() { // first, because these entries hold the time
			l.restoreReplacement(now, l.nodeStates[e.Node], e)
		}
	}
	for _, e := range l.ledger.restored {
		p := l.nodeStates[e.Node]
		switch {
		case !e.Gone.IsZero():
			continue
		case e.Tries > 0:
			l.restoreLaunchFailures(e)
			continue
		case e.Object != "":
			l.restoreTreatment(now, p, e)
			continue
		}
		if p == nil || string(p.node.UID) != e.UID || p.node.ResourceVersion != e.ResourceVersion {
			continue
		}
		rule := triage.RuleID(e.Rule)
		p.inFlight, p.lost = e.ResourceVersion, e.ResourceVersion
		p.granted.version, p.granted.unknown = e.ResourceVersion, e.Unknown
		p.granted.rules = append(p.granted.rules, rule)
		if !p.named {
			p.named = true
			l.ledger.nodesWithSlots = append(l.ledger.nodesWithSlots, p)
		}
		l.core.Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Since: now})
		l.cfg.Logger.Info("placement inherited", "node", e.Node, "rule", rule.String())
	}
	l.ledger.stored, l.ledger.restored = l.ledger.restored, nil
	l.ledger.tidyAt = now // remove outdated entries of the previous leader at once
	l.restoreUnknown(now)
	for _, node := range slices.Sorted(maps.Keys(l.treatments)) {
		l.findReplacements(now, l.treatments[node])
	}
}

// restoreUnknown handles entries of a newer version that this version does not know. They
// stay in the ledger. Only one control-plane node may be treated at a time, by any kind
// of treatment, so the controller waits for writes that may still arrive.
func (l *loop) restoreUnknown(now time.Time) {
	pg := &l.ledger
	l.cfg.Metrics.unknownEntries("ledger", pg.ledger.CountUnknown(pg.stored))
	for _, e := range pg.kept {
		l.cfg.Logger.Warn("ledger names what this version does not know; it is kept", "node", e.Node, "rule", e.Rule.Name)
		if e.ControlPlane {
			l.orphans.keptUntil = now.Add(maxInFlight)
			l.nextTreatmentDue = earliest(l.nextTreatmentDue, l.orphans.keptUntil)
		}
	}
}

// restoreTreatment resumes a treatment that the previous leader may have started. The
// write may still succeed for a while. If it has succeeded, the object is known already.
func (l *loop) restoreTreatment(now time.Time, p *nodeState, e ledger.Entry) {
	if triage.RuleID(e.Rule).Kind == triage.NodeHealthCheck && l.checks.deferring {
		return
	}
	b := l.treatmentsOf(e.Node)
	if _, arrived := b.objects[e.Object]; arrived {
		return
	}
	b.granted, b.sent = e, now
	if e.ControlPlane {
		l.orphans.add(e.Node)
	}
	if claim, is := claimNamed(e.Object); is {
		l.restoreTermination(now, p, b, claim)
		return
	}
	l.ledger.treatmentsWithSlots = append(l.ledger.treatmentsWithSlots, b)
	rule := triage.RuleID(e.Rule)
	if !b.hasSlotFor(p) {
		l.cfg.Logger.Info("treatment of a node that is gone inherited", "node", e.Node, "rule", rule.String(), "object", e.Object)
		return
	}
	l.core.Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: now})
	l.cfg.Logger.Info("treatment inherited", "node", e.Node, "rule", rule.String(), "object", e.Object)
}

// writeLedger writes the next snapshot if one is needed. It returns when to try again if
// the snapshot must wait.
func (l *loop) writeLedger(ctx context.Context, now time.Time) (due time.Time) {
	pg := &l.ledger
	entries, due := l.nextSnapshot(now)
	if entries == nil {
		return due
	}
	pg.busy = true
	l.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		pg.done <- pg.ledger.Write(ctx, entries)
	})
	return time.Time{}
}

// nextSnapshot returns the entries of the next snapshot, nil if none may be written now.
// In that case due is when to try again.
func (l *loop) nextSnapshot(now time.Time) (entries []ledger.Entry, due time.Time) {
	pg := &l.ledger
	hasDepartures := l.hasReplacements(now)
	if pg.busy {
		return nil, time.Time{}
	}
	hasEnded, due := l.hasEnded(now)
	isStale := hasDepartures || hasEnded || pg.isOutdated
	switch {
	case len(pg.queuedNodes)+len(pg.queuedTreatments) == 0 && !isStale:
		return nil, due
	case now.Before(pg.notBefore):
		return nil, pg.notBefore
	}
	pg.nodesWithSlots = slices.DeleteFunc(pg.nodesWithSlots, func(p *nodeState) bool {
		p.named = !p.gone && p.granted.version != ""
		return !p.named
	})
	pg.treatmentsWithSlots = slices.DeleteFunc(pg.treatmentsWithSlots, func(b *nodeTreatments) bool { return b.granted.Object == "" })
	pg.writingNodes, pg.writingTreatments, pg.replacements.requested = nil, nil, nil
	held := pg.entries()
	room := pg.ledger.Room()
	room.Add(append(held, l.launchFailureEntries(now, held)...)...)
	isStale = l.requestReplacementEntries(now, room) || hasEnded || pg.isOutdated
	pg.isOutdated = false
	l.addNodes(now, room)
	l.addTreatments(now, room)
	if len(pg.writingNodes)+len(pg.writingTreatments) == 0 && !isStale {
		return nil, due // the ledger is full, or no request is left
	}
	entries = pg.entries()
	entries = append(entries, l.launchFailureEntries(now, entries)...)
	pg.next = entries
	return pg.next, time.Time{}
}

// addNodes adds waiting nodes to the next snapshot, as far as there is room. A snapshot
// without any other write takes the first node even without room. Otherwise that node
// would wait forever; this way the API server's error is reported.
func (l *loop) addNodes(now time.Time, room *ledger.Room) {
	pg := &l.ledger
	waiting := pg.queuedNodes
	pg.queuedNodes = nil
	for i, p := range waiting {
		p.asks = grantedSlot{}
		if len(pg.nodesWithSlots)+len(pg.writingNodes)+len(pg.replacements.requested) < maxNamed {
			p.asks = l.requestedSlot(p, now)
			if len(p.asks.rules) == 0 { // needs no slot any more
				p.stage = queued
				l.writeQueue.push(p)
				continue
			}
			if room.Take(p.asks.entries(nil, p)...) || pg.isEmpty() {
				pg.writingNodes = append(pg.writingNodes, p)
				continue
			}
			p.asks = grantedSlot{}
		}
		pg.queuedNodes = append(pg.queuedNodes, waiting[i:]...)
		return
	}
}

// addTreatments adds waiting treatments in the same way.
func (l *loop) addTreatments(now time.Time, room *ledger.Room) {
	pg := &l.ledger
	beginning := pg.queuedTreatments
	pg.queuedTreatments = nil
	for i, b := range beginning {
		b.asks = ledger.Entry{}
		if len(pg.nodesWithSlots)+len(pg.writingNodes)+len(pg.replacements.requested)+len(pg.treatmentsWithSlots)+len(pg.writingTreatments) < maxNamed {
			b.asks = l.requestedTreatmentSlot(now, b)
			if b.asks.Object == "" { // needs no slot any more
				b.stage = queued
				l.taskQueue.push(b)
				continue
			}
			if room.Take(l.withLaunchFailure(now, b.asks)...) || pg.isEmpty() {
				pg.writingTreatments = append(pg.writingTreatments, b)
				continue
			}
			b.asks = ledger.Entry{}
		}
		pg.queuedTreatments = append(pg.queuedTreatments, beginning[i:]...)
		return
	}
}

// isEmpty reports whether the next snapshot names no write.
func (pg *ledgerWriter) isEmpty() bool {
	return len(pg.nodesWithSlots)+len(pg.writingNodes)+len(pg.treatmentsWithSlots)+len(pg.writingTreatments) == 0
}

// hasEnded reports whether a new snapshot is due because stored entries have ended, or
// when it will be. An entry that would make the next leader keep a free slot is removed
// at once. Other entries are removed together later, so that a storm of taints does not
// double the number of snapshots.
func (l *loop) hasEnded(now time.Time) (isDue bool, due time.Time) {
	pg := &l.ledger
	before, kept := l.launchFailuresBefore(pg.stored), leavingNode(l.core.Departures())
	isTidy := true
	for _, e := range pg.stored {
		switch {
		case !e.Gone.IsZero(): // hasReplacements removes entries that would mislead the next leader
			isTidy = isTidy && (kept[newReplacement(e)] || l.isStillAwaited(e))
		case e.Tries > 0:
			if count := l.repairs.counts[e.Rule.Name]; count == nil || e.Tries > count.failures.failed+before[e.Rule.Name] {
				return true, time.Time{}
			}
		case e.Object != "":
			if b := l.treatments[e.Node]; b == nil || b.granted != e {
				return true, time.Time{}
			}
		default: // the next leader sees by the node's version that nothing can arrive
			p := l.nodeStates[e.Node]
			isTidy = isTidy && p != nil && string(p.node.UID) == e.UID && p.granted.version == e.ResourceVersion
		}
	}
	switch {
	case isTidy:
		pg.tidyAt = time.Time{}
	case pg.tidyAt.IsZero():
		pg.tidyAt = now.Add(tidyAfter)
	}
	return !isTidy && !now.Before(pg.tidyAt), pg.tidyAt
}

// entries returns the entries of the next snapshot for nodes and treatments.
func (pg *ledgerWriter) entries() []ledger.Entry {
	entries := make([]ledger.Entry, 0, len(pg.nodesWithSlots)+len(pg.writingNodes))
	for _, p := range pg.writingNodes {
		entries = p.asks.entries(entries, p)
	}
	for _, p := range pg.nodesWithSlots {
		if p.asks.version != p.granted.version {
			entries = p.granted.entries(entries, p)
		}
	}
	for _, b := range pg.writingTreatments {
		entries = append(entries, b.asks)
	}
	for _, b := range pg.treatmentsWithSlots {
		if !b.requestsSlotAgain() && !pg.replacements.entries(b.granted) {
			entries = append(entries, b.granted)
		}
	}
	return append(entries, pg.replacements.requested...) // not nil, even if empty
}

// requestsSlotAgain reports whether the next snapshot requests the same slot, possibly
// for a later version of the claim. In that case the write for the older version can
// never succeed.
func (b *nodeTreatments) requestsSlotAgain() bool {
	before, after := b.granted, b.asks
	if _, isClaim := claimNamed(before.Object); isClaim {
		before.ResourceVersion, after.ResourceVersion = "", ""
		before.Since, after.Since = time.Time{}, time.Time{}
	}
	return before == after
}

// requestedSlot returns the slots that a node needs in the ledger, including those it
// has.
func (l *loop) requestedSlot(p *nodeState, now time.Time) grantedSlot {
	if p.gone {
		return grantedSlot{}
	}
	plan, ok := l.planOf(p)
	if !ok {
		return grantedSlot{}
	}
	change, _ := l.next(p, plan, now)
	if change == nil || len(change.Takes) == 0 {
		return grantedSlot{}
	}
	g := grantedSlot{version: p.node.ResourceVersion, rules: change.Takes}
	if p.granted.version == g.version {
		g.unknown = p.granted.unknown
	}
	for _, rule := range p.granted.rules {
		if !slices.Contains(g.rules, rule) {
			g.rules = append(g.rules, rule)
		}
	}
	return g
}

// requestedTreatmentSlot returns the entry that the ledger must store before the next
// task, an empty entry for none.
func (l *loop) requestedTreatmentSlot(now time.Time, b *nodeTreatments) ledger.Entry {
	e, _ := l.nextTask(now, b)
	if e == nil || !e.takesSlot() {
		return ledger.Entry{}
	}
	return e.ledgerEntry()
}

// takesSlot reports whether the task takes a slot under a bound that no API object shows
// before the task has run.
func (e *task) takesSlot() bool {
	switch e.kind {
	case createRemediation:
		return remediation.IsControlPlane(e.node) || isRepair(e.rule)
	case terminateClaim:
		return !e.isMarked()
	default:
		return false
	}
}

// ledgerEntry returns the entry for a task that takes a slot.
func (e *task) ledgerEntry() ledger.Entry {
	entry := ledger.Entry{
		Rule: ownership.Rule(e.rule), Node: e.node.Name, UID: string(e.node.UID), Step: e.step,
		ControlPlane: remediation.IsControlPlane(e.node),
	}
	if e.kind == terminateClaim {
		entry.Object, entry.ResourceVersion, entry.Since = claimKey(e.claim.Name), e.claim.ResourceVersion, e.since.UTC()
		entry.Pool = e.pool
	} else {
		entry.Object = objectKey(remediation.Read(e.create))
	}
	return entry
}

func (g grantedSlot) entries(to []ledger.Entry, p *nodeState) []ledger.Entry {
	for _, rule := range g.rules {
		to = append(to, ledger.Entry{Rule: ownership.Rule(rule), Node: p.node.Name, UID: string(p.node.UID), ResourceVersion: g.version, Unknown: g.unknown})
	}
	return to
}

// snapshotStored handles the result of a snapshot write and lets the named writes
// continue. A returned error ends the term. An unreadable ledger does not: it may still
// belong to this process, no new slot is granted meanwhile, and only this process knows
// its entries.
func (l *loop) snapshotStored(err error) error {
	pg := &l.ledger
	pg.busy = false
	fate := ledgerResult(err)
	l.cfg.Metrics.wrote("ledger", fate)
	if errors.Is(err, ledger.ErrDeposed) {
		return err
	}
	if err != nil {
		isNews := pg.trouble.add(fate, err)
		wait := backOff(pg.trouble.tries)
		pg.notBefore = time.Now().Add(wait)
		if isNews {
			l.cfg.Logger.Warn("ledger not written", "retryIn", wait.String(), "err", err)
		}
		for _, p := range pg.writingNodes {
			p.asks = grantedSlot{}
			l.restate(time.Now(), p)
		}
		for _, b := range pg.writingTreatments {
			b.asks = ledger.Entry{}
			l.restateTreatments(time.Now(), b)
		}
		pg.isOutdated = true // the stored snapshot is unknown
		// If the API server rejects the snapshot because of one of these, the others go
		// first in the next one.
		pg.queuedNodes, pg.writingNodes = append(pg.queuedNodes, pg.writingNodes...), nil
		pg.queuedTreatments, pg.writingTreatments = append(pg.queuedTreatments, pg.writingTreatments...), nil
		return nil // replacements request their entries again by themselves
	}
	if pg.trouble.tries > 0 {
		l.cfg.Logger.Info("ledger written after trouble", "tries", pg.trouble.tries)
	}
	pg.notBefore, pg.trouble = time.Time{}, writeFailure{}
	for _, p := range pg.writingNodes {
		if p.node.ResourceVersion == p.asks.version {
			p.granted = p.asks
			if !p.named {
				p.named = true
				pg.nodesWithSlots = append(pg.nodesWithSlots, p)
			}
		}
		p.asks = grantedSlot{}
		p.stage = queued
		l.writeQueue.push(p)
	}
	pg.writingNodes = nil
	for _, b := range pg.writingTreatments {
		if b.granted.Object == "" {
			pg.treatmentsWithSlots = append(pg.treatmentsWithSlots, b)
		}
		b.granted, b.asks = b.asks, ledger.Entry{}
		if b.granted.ControlPlane {
			l.orphans.add(b.node)
		}
		b.stage = queued
		l.taskQueue.push(b)
	}
	pg.writingTreatments = nil
	pg.replacements.stored()
	pg.stored, pg.next, pg.tidyAt = pg.next, nil, time.Time{}
	l.cfg.Metrics.unknownEntries("ledger", pg.ledger.CountUnknown(pg.stored))
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
