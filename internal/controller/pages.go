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

// maxNamed bounds how many nodes a page of the ledger names. It is far more than
// are under way at a time, and far less than an object may hold.
const maxNamed = 500

// pages is how the loop keeps the ledger. All who ask while one page is being
// written are on the next one together.
type pages struct {
	book      *ledger.Ledger
	inherited []ledger.Entry // of the one before

	entering []*patient // on the next page
	named    []*patient // on the page as it is, or as it is being written
	asked    []*patient // those of named who wait for the page

	// beginning and starting are the same as entering and asked for treatments that
	// take a place. Those that are named are few: one node of the control plane at a
	// time, and what the one before left.
	beginning, starting []*bed
	begun               []*bed
	departed            departures
	busy                bool
	done                chan error

	notBefore time.Time
	trouble   trouble // of the last page
}

// takeInheritance takes up the placements that the one before may have sent. It
// may be made as long as the node has the version that it names.
func (l *loop) takeInheritance(now time.Time) {
	for _, e := range l.pages.inherited {
		p := l.patients[e.Node]
		switch {
		case !e.Gone.IsZero():
			l.inheritDeparture(now, p, e)
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
		p.granted.version = e.ResourceVersion
		p.granted.rules = append(p.granted.rules, rule)
		if !p.named {
			p.named = true
			l.pages.named = append(l.pages.named, p)
		}
		l.core.Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Since: now})
		l.cfg.Logger.Info("placement inherited", "node", e.Node, "rule", rule.String())
	}
	l.pages.inherited = nil
	for _, node := range slices.Sorted(maps.Keys(l.beds)) {
		l.findDepartures(now, l.beds[node])
	}
}

// inheritTreatment takes up a treatment that the one before may have sent. It may be
// made for a while yet; where it has been, the object is known already.
func (l *loop) inheritTreatment(now time.Time, p *patient, e ledger.Entry) {
	if l.checks.isBack {
		return
	}
	b := l.bedOf(e.Node)
	if _, arrived := b.objects[e.Object]; arrived {
		return
	}
	b.granted, b.sent = e, now
	l.remains.note(e.Node)
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
	switch {
	case pg.busy || len(pg.entering)+len(pg.beginning) == 0 && !hasDepartures:
		return nil, time.Time{}
	case now.Before(pg.notBefore):
		return nil, pg.notBefore
	}
	pg.named = slices.DeleteFunc(pg.named, func(p *patient) bool {
		p.named = !p.gone && p.granted.version != ""
		return !p.named
	})
	waiting := pg.entering
	pg.entering, pg.asked = nil, nil
	isDeparture := l.nameDepartures(now)
	for i, p := range waiting {
		if len(pg.named)+len(pg.asked)+len(pg.departed.asked) >= maxNamed {
			pg.entering = append(pg.entering, waiting[i:]...)
			break
		}
		if p.asks = l.asks(p, now); len(p.asks.rules) > 0 {
			pg.asked = append(pg.asked, p)
		} else { // it no longer takes a place
			p.stage = queued
			l.queue.push(p)
		}
	}
	pg.begun = slices.DeleteFunc(pg.begun, func(b *bed) bool { return b.granted.Object == "" })
	pg.starting, pg.beginning = pg.beginning, nil
	for _, b := range slices.Clone(pg.starting) {
		if b.asks = l.asksToBegin(now, b); b.asks.Object == "" { // it no longer takes a place
			pg.starting = slices.DeleteFunc(pg.starting, func(other *bed) bool { return other == b })
			b.stage = queued
			l.errands.push(b)
		}
	}
	if len(pg.asked)+len(pg.starting) == 0 && !isDeparture {
		return nil, time.Time{} // the page is full, or nobody needs it any more
	}
	return pg.entries(), time.Time{}
}

// entries returns the page as it is to be.
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
		if b.granted != b.asks {
			entries = append(entries, b.granted)
		}
	}
	return append(entries, pg.departed.asked...)
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
	if e == nil || e.task != begin {
		return ledger.Entry{}
	}
	return e.entry()
}

// entry names an errand that makes an object.
func (e *errand) entry() ledger.Entry {
	return ledger.Entry{
		Rule: record.Rule(e.rule), Node: e.node.Name, UID: string(e.node.UID),
		Object: objectKey(remediation.Read(e.create)), Step: e.step,
	}
}

func (g grant) entries(to []ledger.Entry, p *patient) []ledger.Entry {
	for _, rule := range g.rules {
		to = append(to, ledger.Entry{Rule: record.Rule(rule), Node: p.node.Name, UID: string(p.node.UID), ResourceVersion: g.version})
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
		pg.entering, pg.asked = append(pg.asked, pg.entering...), nil
		pg.beginning, pg.starting = append(pg.starting, pg.beginning...), nil
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
		l.remains.note(b.node)
		b.stage = queued
		l.errands.push(b)
	}
	pg.starting = nil
	pg.departed.turn()
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
