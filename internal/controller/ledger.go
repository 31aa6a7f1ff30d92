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
	// maxNamed bounds how many nodes a page of the ledger names. It is far more than
	// are under way at a time. What a page can hold bounds it as well.
	maxNamed = 500
	// tidyAfter is how long a page may name what has ended and misleads no successor.
	tidyAfter = 10 * time.Second
)

// ledgerWriter is how the loop keeps the ledger. All who ask while one page is being
// written are on the next one together.
type ledgerWriter struct {
	ledger   *ledger.Ledger
	restored []ledger.Entry // of the one before
	kept     []ledger.Entry // likewise, of kinds that this version does not know

	queuedNodes    []*nodeState // on the next page
	nodesWithSlots []*nodeState // on the page as it is, or as it is being written
	writingNodes   []*nodeState // those of named who wait for the page

	// queuedTreatments and starting are the same as entering and asked for treatments that
	// take a place. Those that are named are few: one node of the control plane at a
	// time, and what the one before left.
	queuedTreatments, writingTreatments []*nodeTreatments
	treatmentsWithSlots                 []*nodeTreatments
	replacements                        awaitingReplacement
	stored                              []ledger.Entry // the page as it is
	next                                []ledger.Entry // the page as it is being written
	isOutdated                          bool           // the page names tries that count no more
	tidyAt                              time.Time      // when the next page is due because of tidyAfter, zero for never
	busy                                bool
	done                                chan error

	notBefore time.Time
	trouble   writeFailure // of the last page
}

// restore takes up the placements that the one before may have sent. It
// may be made as long as the node has the version that it names.
func (l *loop) restore(now time.Time) {
	for _, e := range l.ledger.restored {
		if !e.Gone.IsZero() { // these first: they say when
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
	l.ledger.tidyAt = now // what the one before has left goes at once
	l.restoreUnknown(now)
	for _, node := range slices.Sorted(maps.Keys(l.treatments)) {
		l.findReplacements(now, l.treatments[node])
	}
}

// restoreUnknown heeds what a newer version has named that this one does not know. It stays
// on the page. Of nodes of the control plane one is treated at a time, whatever the
// treatment: so what may be made yet is waited for.
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

// restoreTreatment takes up a treatment that the one before may have sent. It may be
// made for a while yet; where it has been, the object is known already.
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

// writeLedger begins the next page if somebody waits for it, and returns when to
// try again if that must wait.
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

// nextSnapshot returns the page as it is to be, nil if none is to be written now, and then
// when it may be if that must wait.
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
		return nil, due // the page is full, or nobody needs it any more
	}
	entries = pg.entries()
	entries = append(entries, l.launchFailureEntries(now, entries)...)
	pg.next = entries
	return pg.next, time.Time{}
}

// addNodes puts nodes that wait for the page on the next one, as far as there is room. The
// first is put on a page that names no other write whether there is room or not: nothing
// would ever make any, and what the API server says of that page is told.
func (l *loop) addNodes(now time.Time, room *ledger.Room) {
	pg := &l.ledger
	waiting := pg.queuedNodes
	pg.queuedNodes = nil
	for i, p := range waiting {
		p.asks = grantedSlot{}
		if len(pg.nodesWithSlots)+len(pg.writingNodes)+len(pg.replacements.requested) < maxNamed {
			p.asks = l.requestedSlot(p, now)
			if len(p.asks.rules) == 0 { // it no longer takes a place
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

// addTreatments does so with treatments.
func (l *loop) addTreatments(now time.Time, room *ledger.Room) {
	pg := &l.ledger
	beginning := pg.queuedTreatments
	pg.queuedTreatments = nil
	for i, b := range beginning {
		b.asks = ledger.Entry{}
		if len(pg.nodesWithSlots)+len(pg.writingNodes)+len(pg.replacements.requested)+len(pg.treatmentsWithSlots)+len(pg.writingTreatments) < maxNamed {
			b.asks = l.requestedTreatmentSlot(now, b)
			if b.asks.Object == "" { // it no longer takes a place
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

// isEmpty says whether the next page names no write.
func (pg *ledgerWriter) isEmpty() bool {
	return len(pg.nodesWithSlots)+len(pg.writingNodes)+len(pg.treatmentsWithSlots)+len(pg.writingTreatments) == 0
}

// hasEnded says whether the page is to be written again because it names something that
// has ended, or when it is. What would have a successor keep a place that is free goes at
// once, the rest together after a while: a storm of taints is not to cost twice the pages.
func (l *loop) hasEnded(now time.Time) (isDue bool, due time.Time) {
	pg := &l.ledger
	before, kept := l.launchFailuresBefore(pg.stored), leavingNode(l.core.Departures())
	isTidy := true
	for _, e := range pg.stored {
		switch {
		case !e.Gone.IsZero(): // where a successor would keep the place, hasReplaced says so
			isTidy = isTidy && (kept[newReplacement(e)] || l.isStillAwaited(e))
		case e.Tries > 0:
			if count := l.repairs.counts[e.Rule.Name]; count == nil || e.Tries > count.failures.failed+before[e.Rule.Name] {
				return true, time.Time{}
			}
		case e.Object != "":
			if b := l.treatments[e.Node]; b == nil || b.granted != e {
				return true, time.Time{}
			}
		default: // a successor sees by the node's version that nothing can arrive
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

// entries returns what the page is to say of nodes.
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
	return append(entries, pg.replacements.requested...) // which is a page, however empty
}

// requestsSlotAgain says whether what the next page names is what this one does, if of a later
// version: then the write that names the older one has not been made, and never will be.
func (b *nodeTreatments) requestsSlotAgain() bool {
	before, after := b.granted, b.asks
	if _, isClaim := claimNamed(before.Object); isClaim {
		before.ResourceVersion, after.ResourceVersion = "", ""
		before.Since, after.Since = time.Time{}, time.Time{}
	}
	return before == after
}

// requestedSlot returns what a patient needs on the page now, beside what it has there.
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

// requestedTreatmentSlot returns what is to be on the page before a treatment may begin, nothing
// if none is to any more.
func (l *loop) requestedTreatmentSlot(now time.Time, b *nodeTreatments) ledger.Entry {
	e, _ := l.nextTask(now, b)
	if e == nil || !e.takesSlot() {
		return ledger.Entry{}
	}
	return e.ledgerEntry()
}

// takesSlot says whether an errand takes a place under a bound that nothing in the API
// tells of before it has been run.
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

// ledgerEntry names an errand that takes a place.
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

// snapshotStored lets those go on who are on the page that has been written. An error
// that it returns ends the reign. A page that somebody has made unreadable does
// not: it may still be ours, nobody takes a place meanwhile, and only this process
// knows what it has named.
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
		pg.isOutdated = true // which page is there nobody knows
		// Should it be one of these that the API server refuses the page for, the others
		// are not to wait for it.
		pg.queuedNodes, pg.writingNodes = append(pg.queuedNodes, pg.writingNodes...), nil
		pg.queuedTreatments, pg.writingTreatments = append(pg.queuedTreatments, pg.writingTreatments...), nil
		return nil // departures ask again by themselves
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

// ledgerResult tells what has become of a page. One that is not ours, or that cannot
// be read, was not written over.
func ledgerResult(err error) treat.Result {
	if errors.Is(err, ledger.ErrDeposed) || errors.Is(err, ledger.ErrUnreadable) {
		return treat.Refused
	}
	return treat.Classify(err)
}
