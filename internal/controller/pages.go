package controller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/record"
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

// pages is how the loop keeps the ledger. All who ask while one page is being
// written are on the next one together.
type pages struct {
	book      *ledger.Ledger
	inherited []ledger.Entry // of the one before
	kept      []ledger.Entry // likewise, of kinds that this version does not know

	entering []*patient // on the next page
	named    []*patient // on the page as it is, or as it is being written
	asked    []*patient // those of named who wait for the page

	// beginning and starting are the same as entering and asked for treatments that
	// take a place. Those that are named are few: one node of the control plane at a
	// time, and what the one before left.
	beginning, starting []*bed
	begun               []*bed
	departed            departures
	stored              []ledger.Entry // the page as it is
	next                []ledger.Entry // the page as it is being written
	isOutdated          bool           // the page names tries that count no more
	tidyAt              time.Time      // when the next page is due because of tidyAfter, zero for never
	busy                bool
	done                chan error

	notBefore time.Time
	trouble   trouble // of the last page
}

// takeInheritance takes up the placements that the one before may have sent. It
// may be made as long as the node has the version that it names.
func (l *loop) takeInheritance(now time.Time) {
	for _, e := range l.pages.inherited {
		if !e.Gone.IsZero() { // these first: they say when
			l.inheritDeparture(now, l.patients[e.Node], e)
		}
	}
	for _, e := range l.pages.inherited {
		p := l.patients[e.Node]
		switch {
		case !e.Gone.IsZero():
			continue
		case e.Tries > 0:
			l.inheritTries(e)
			continue
		case e.Object != "":
			l.inheritTreatment(now, p, e)
			continue
		}
		if p == nil || string(p.node.UID) != e.UID || p.node.ResourceVersion != e.ResourceVersion {
			continue
		}
		rule := triage.RuleID(e.Rule)
		p.onItsWay, p.lost = e.ResourceVersion, e.ResourceVersion
		p.granted.version, p.granted.unknown = e.ResourceVersion, e.Unknown
		p.granted.rules = append(p.granted.rules, rule)
		if !p.named {
			p.named = true
			l.pages.named = append(l.pages.named, p)
		}
		l.core.Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Since: now})
		l.cfg.Logger.Info("placement inherited", "node", e.Node, "rule", rule.String())
	}
	l.pages.stored, l.pages.inherited = l.pages.inherited, nil
	l.pages.tidyAt = now // what the one before has left goes at once
	l.inheritKept(now)
	for _, node := range slices.Sorted(maps.Keys(l.beds)) {
		l.findDepartures(now, l.beds[node])
	}
}

// inheritKept heeds what a newer version has named that this one does not know. It stays
// on the page. Of nodes of the control plane one is treated at a time, whatever the
// treatment: so what may be made yet is waited for.
func (l *loop) inheritKept(now time.Time) {
	pg := &l.pages
	l.cfg.Metrics.kept("ledger", pg.book.CountUnknown(pg.stored))
	for _, e := range pg.kept {
		l.cfg.Logger.Warn("ledger names what this version does not know; it is kept", "node", e.Node, "rule", e.Rule.Name)
		if e.ControlPlane {
			l.remains.keptUntil = now.Add(longestWay)
			l.bedAlarm = earliest(l.bedAlarm, l.remains.keptUntil)
		}
	}
}

// inheritTreatment takes up a treatment that the one before may have sent. It may be
// made for a while yet; where it has been, the object is known already.
func (l *loop) inheritTreatment(now time.Time, p *patient, e ledger.Entry) {
	if triage.RuleID(e.Rule).Kind == triage.NodeHealthCheck && l.checks.isBack {
		return
	}
	b := l.bedOf(e.Node)
	if _, arrived := b.objects[e.Object]; arrived {
		return
	}
	b.granted, b.sent = e, now
	if e.ControlPlane {
		l.remains.note(e.Node)
	}
	if claim, is := claimNamed(e.Object); is {
		l.inheritTermination(now, p, b, claim)
		return
	}
	l.pages.begun = append(l.pages.begun, b)
	rule := triage.RuleID(e.Rule)
	if !b.isGrantedTo(p) {
		l.cfg.Logger.Info("treatment of a node that is gone inherited", "node", e.Node, "rule", rule.String(), "object", e.Object)
		return
	}
	l.core.Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: now})
	l.cfg.Logger.Info("treatment inherited", "node", e.Node, "rule", rule.String(), "object", e.Object)
}

// writePage begins the next page if somebody waits for it, and returns when to
// try again if that must wait.
func (l *loop) writePage(ctx context.Context, now time.Time) (due time.Time) {
	pg := &l.pages
	entries, due := l.nextPage(now)
	if entries == nil {
		return due
	}
	pg.busy = true
	l.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		pg.done <- pg.book.Write(ctx, entries)
	})
	return time.Time{}
}

// nextPage returns the page as it is to be, nil if none is to be written now, and then
// when it may be if that must wait.
func (l *loop) nextPage(now time.Time) (entries []ledger.Entry, due time.Time) {
	pg := &l.pages
	hasDepartures := l.hasDepartures(now)
	if pg.busy {
		return nil, time.Time{}
	}
	hasEnded, due := l.hasEnded(now)
	isStale := hasDepartures || hasEnded || pg.isOutdated
	switch {
	case len(pg.entering)+len(pg.beginning) == 0 && !isStale:
		return nil, due
	case now.Before(pg.notBefore):
		return nil, pg.notBefore
	}
	pg.named = slices.DeleteFunc(pg.named, func(p *patient) bool {
		p.named = !p.gone && p.granted.version != ""
		return !p.named
	})
	pg.begun = slices.DeleteFunc(pg.begun, func(b *bed) bool { return b.granted.Object == "" })
	pg.asked, pg.starting, pg.departed.asked = nil, nil, nil
	held := pg.entries()
	room := pg.book.Room()
	room.Add(append(held, l.nameTries(now, held)...)...)
	isStale = l.nameDepartures(now, room) || hasEnded || pg.isOutdated
	pg.isOutdated = false
	l.enter(now, room)
	l.start(now, room)
	if len(pg.asked)+len(pg.starting) == 0 && !isStale {
		return nil, due // the page is full, or nobody needs it any more
	}
	entries = pg.entries()
	entries = append(entries, l.nameTries(now, entries)...)
	pg.next = entries
	return pg.next, time.Time{}
}

// enter puts nodes that wait for the page on the next one, as far as there is room. The
// first is put on a page that names no other write whether there is room or not: nothing
// would ever make any, and what the API server says of that page is told.
func (l *loop) enter(now time.Time, room *ledger.Room) {
	pg := &l.pages
	waiting := pg.entering
	pg.entering = nil
	for i, p := range waiting {
		p.asks = grant{}
		if len(pg.named)+len(pg.asked)+len(pg.departed.asked) < maxNamed {
			p.asks = l.asks(p, now)
			if len(p.asks.rules) == 0 { // it no longer takes a place
				p.stage = queued
				l.queue.push(p)
				continue
			}
			if room.Take(p.asks.entries(nil, p)...) || pg.isBare() {
				pg.asked = append(pg.asked, p)
				continue
			}
			p.asks = grant{}
		}
		pg.entering = append(pg.entering, waiting[i:]...)
		return
	}
}

// start does so with treatments.
func (l *loop) start(now time.Time, room *ledger.Room) {
	pg := &l.pages
	beginning := pg.beginning
	pg.beginning = nil
	for i, b := range beginning {
		b.asks = ledger.Entry{}
		if len(pg.named)+len(pg.asked)+len(pg.departed.asked)+len(pg.begun)+len(pg.starting) < maxNamed {
			b.asks = l.asksToBegin(now, b)
			if b.asks.Object == "" { // it no longer takes a place
				b.stage = queued
				l.errands.push(b)
				continue
			}
			if room.Take(l.withTry(now, b.asks)...) || pg.isBare() {
				pg.starting = append(pg.starting, b)
				continue
			}
			b.asks = ledger.Entry{}
		}
		pg.beginning = append(pg.beginning, beginning[i:]...)
		return
	}
}

// isBare says whether the next page names no write.
func (pg *pages) isBare() bool {
	return len(pg.named)+len(pg.asked)+len(pg.begun)+len(pg.starting) == 0
}

// hasEnded says whether the page is to be written again because it names something that
// has ended, or when it is. What would have a successor keep a place that is free goes at
// once, the rest together after a while: a storm of taints is not to cost twice the pages.
func (l *loop) hasEnded(now time.Time) (isDue bool, due time.Time) {
	pg := &l.pages
	before, kept := l.triesBefore(pg.stored), keptOf(l.core.Departures())
	isTidy := true
	for _, e := range pg.stored {
		switch {
		case !e.Gone.IsZero(): // where a successor would keep the place, hasReplaced says so
			isTidy = isTidy && (kept[departureOf(e)] || l.isLeft(e))
		case e.Tries > 0:
			if count := l.repairs.counts[e.Rule.Name]; count == nil || e.Tries > count.tries.failed+before[e.Rule.Name] {
				return true, time.Time{}
			}
		case e.Object != "":
			if b := l.beds[e.Node]; b == nil || b.granted != e {
				return true, time.Time{}
			}
		default: // a successor sees by the node's version that nothing can arrive
			p := l.patients[e.Node]
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
func (pg *pages) entries() []ledger.Entry {
	entries := make([]ledger.Entry, 0, len(pg.named)+len(pg.asked))
	for _, p := range pg.asked {
		entries = p.asks.entries(entries, p)
	}
	for _, p := range pg.named {
		if p.asks.version != p.granted.version {
			entries = p.granted.entries(entries, p)
		}
	}
	for _, b := range pg.starting {
		entries = append(entries, b.asks)
	}
	for _, b := range pg.begun {
		if !b.asksAgain() && !pg.departed.asks(b.granted) {
			entries = append(entries, b.granted)
		}
	}
	return append(entries, pg.departed.asked...) // which is a page, however empty
}

// asksAgain says whether what the next page names is what this one does, if of a later
// version: then the write that names the older one has not been made, and never will be.
func (b *bed) asksAgain() bool {
	before, after := b.granted, b.asks
	if _, isClaim := claimNamed(before.Object); isClaim {
		before.ResourceVersion, after.ResourceVersion = "", ""
		before.Since, after.Since = time.Time{}, time.Time{}
	}
	return before == after
}

// asks returns what a patient needs on the page now, beside what it has there.
func (l *loop) asks(p *patient, now time.Time) grant {
	if p.gone {
		return grant{}
	}
	plan, ok := l.planOf(p)
	if !ok {
		return grant{}
	}
	change, _ := l.next(p, plan, now)
	if change == nil || len(change.Takes) == 0 {
		return grant{}
	}
	g := grant{version: p.node.ResourceVersion, rules: change.Takes}
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

// asksToBegin returns what is to be on the page before a treatment may begin, nothing
// if none is to any more.
func (l *loop) asksToBegin(now time.Time, b *bed) ledger.Entry {
	e, _ := l.nextErrand(now, b)
	if e == nil || !e.takesPlace() {
		return ledger.Entry{}
	}
	return e.entry()
}

// takesPlace says whether an errand takes a place under a bound that nothing in the API
// tells of before it has been run.
func (e *errand) takesPlace() bool {
	switch e.task {
	case begin:
		return remediation.IsControlPlane(e.node) || isRepair(e.rule)
	case terminate:
		return !e.isMarked()
	default:
		return false
	}
}

// entry names an errand that takes a place.
func (e *errand) entry() ledger.Entry {
	entry := ledger.Entry{
		Rule: record.Rule(e.rule), Node: e.node.Name, UID: string(e.node.UID), Step: e.step,
		ControlPlane: remediation.IsControlPlane(e.node),
	}
	if e.task == terminate {
		entry.Object, entry.ResourceVersion, entry.Since = claimKey(e.claim.Name), e.claim.ResourceVersion, e.since.UTC()
		entry.Pool = e.pool
	} else {
		entry.Object = objectKey(remediation.Read(e.create))
	}
	return entry
}

func (g grant) entries(to []ledger.Entry, p *patient) []ledger.Entry {
	for _, rule := range g.rules {
		to = append(to, ledger.Entry{Rule: record.Rule(rule), Node: p.node.Name, UID: string(p.node.UID), ResourceVersion: g.version, Unknown: g.unknown})
	}
	return to
}

// turnPage lets those go on who are on the page that has been written. An error
// that it returns ends the reign. A page that somebody has made unreadable does
// not: it may still be ours, nobody takes a place meanwhile, and only this process
// knows what it has named.
func (l *loop) turnPage(err error) error {
	pg := &l.pages
	pg.busy = false
	fate := pageFate(err)
	l.cfg.Metrics.wrote("ledger", fate)
	if errors.Is(err, ledger.ErrDeposed) {
		return err
	}
	if err != nil {
		isNews := pg.trouble.meets(fate, err)
		wait := backOff(pg.trouble.tries)
		pg.notBefore = time.Now().Add(wait)
		if isNews {
			l.cfg.Logger.Warn("ledger not written", "retryIn", wait.String(), "err", err)
		}
		for _, p := range pg.asked {
			p.asks = grant{}
			l.restate(time.Now(), p)
		}
		for _, b := range pg.starting {
			b.asks = ledger.Entry{}
			l.restateBed(time.Now(), b)
		}
		pg.isOutdated = true // which page is there nobody knows
		// Should it be one of these that the API server refuses the page for, the others
		// are not to wait for it.
		pg.entering, pg.asked = append(pg.entering, pg.asked...), nil
		pg.beginning, pg.starting = append(pg.beginning, pg.starting...), nil
		return nil // departures ask again by themselves
	}
	if pg.trouble.tries > 0 {
		l.cfg.Logger.Info("ledger written after trouble", "tries", pg.trouble.tries)
	}
	pg.notBefore, pg.trouble = time.Time{}, trouble{}
	for _, p := range pg.asked {
		if p.node.ResourceVersion == p.asks.version {
			p.granted = p.asks
			if !p.named {
				p.named = true
				pg.named = append(pg.named, p)
			}
		}
		p.asks = grant{}
		p.stage = queued
		l.queue.push(p)
	}
	pg.asked = nil
	for _, b := range pg.starting {
		if b.granted.Object == "" {
			pg.begun = append(pg.begun, b)
		}
		b.granted, b.asks = b.asks, ledger.Entry{}
		if b.granted.ControlPlane {
			l.remains.note(b.node)
		}
		b.stage = queued
		l.errands.push(b)
	}
	pg.starting = nil
	pg.departed.turn()
	pg.stored, pg.next, pg.tidyAt = pg.next, nil, time.Time{}
	l.cfg.Metrics.kept("ledger", pg.book.CountUnknown(pg.stored))
	return nil
}

// pageFate tells what has become of a page. One that is not ours, or that cannot
// be read, was not written over.
func pageFate(err error) treat.Fate {
	if errors.Is(err, ledger.ErrDeposed) || errors.Is(err, ledger.ErrUnreadable) {
		return treat.Refused
	}
	return treat.FateOf(err)
}
