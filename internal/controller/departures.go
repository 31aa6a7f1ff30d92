package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/record"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxDeparted bounds how many nodes that are gone a page names, so that they leave
	// room for those that are there.
	maxDeparted = maxNamed / 2
	// clockSkew is by how much the clocks of two controllers may differ without the
	// place of a node that is gone being free too soon.
	clockSkew = 5 * time.Minute
)

// departures are the nodes that remediators have taken away and that keep their place
// until they are replaced, as the ledger names them. When the remediation object is
// gone, too, nothing but that is left for an heir to know them by. A page is written when
// one has gone, and when its place is free: an heir that does not know would keep it once
// more. Of the second nobody waits for the answer.
type departures struct {
	named map[departure]ledger.Entry // on the page as it is
	asked []ledger.Entry             // on the next page, or as it is being written
	// awaited are nodes whose objects stay until the page names them, or their place
	// is free.
	awaited map[string]bool
}

// departure is whose place is kept, and by which rule.
type departure struct {
	rule      triage.RuleID
	node, uid string
}

func departureOf(e ledger.Entry) departure {
	return departure{triage.RuleID(e.Rule), e.Node, e.UID}
}

// isBy says whether it was this object by which the node was taken away.
func (d departure) isBy(o treatment) bool {
	return d.rule == ruleOf(o.Object) && d.node == o.Node && (o.NodeUID == "" || d.uid == string(o.NodeUID))
}

// noteTold notes which objects the core has been told of as taking this node away: it
// keeps the place when the node goes.
func (l *loop) noteTold(p *patient, facts *triage.Node) {
	b := l.beds[p.node.Name]
	if b == nil {
		return
	}
	for key, o := range b.objects {
		isTold := slices.ContainsFunc(facts.Treatments, func(t triage.Treatment) bool { return t.Rule == ruleOf(o.Object) && t.Deletes })
		if o.IsOf(p.node) && o.told != (o.DeletesNode && isTold) {
			o.told = !o.told
			b.objects[key] = o
		}
	}
}

// findDepartures tells the core of a node that is gone and was not known to be taken
// away: by a remediator that has said so, while nobody was here to hear it, or in words
// that came later than the node went. Nobody knows when that was, so it is now.
func (l *loop) findDepartures(now time.Time, b *bed) {
	p := l.patients[b.node]
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[key]
		c := l.careOf(ruleOf(o.Object))
		if !l.isOurs(o.Object) || !o.DeletesNode || o.told || o.isOf(p) || c == nil || c.owner != o.Owner {
			continue
		}
		isKnown := slices.ContainsFunc(slices.Collect(maps.Values(b.objects)), func(other treatment) bool {
			return other.told && other.Owner == o.Owner && other.NodeUID == o.NodeUID
		})
		o.told = true
		b.objects[key] = o
		if isKnown {
			continue
		}
		step, _ := o.Step(c.ladder)
		l.core.Resume(now, triage.Grant{
			Rule: ruleOf(o.Object), Node: o.Node, UID: string(o.NodeUID), Step: step, Since: o.Created, Gone: now, ControlPlane: o.ControlPlane,
		})
		l.cfg.Logger.Info("departure found", "node", b.node, "rule", ruleOf(o.Object).String(), "object", key)
	}
}

// inheritDeparture takes up the place of a node that was seen to go by the one before.
// Its clock may be another: what it calls later than now was now at the latest, and
// what is over by less than clocks may differ is not over yet. So a wrong clock keeps a
// place for no longer than any is kept, counted from here, and frees it too soon only
// by as much as it is wrong beyond that.
func (l *loop) inheritDeparture(now time.Time, p *patient, e ledger.Entry) {
	if p != nil && string(p.node.UID) == e.UID {
		return // it is there
	}
	d := departureOf(e)
	l.pages.departed.name(e)
	if b := l.beds[e.Node]; b != nil {
		for key, o := range b.objects {
			if d.isBy(o) {
				o.told = true
				b.objects[key] = o
			}
		}
	}
	if e.Replaced {
		return
	}
	gone := e.Gone.Add(clockSkew)
	if gone.After(now) {
		gone = now
	}
	l.core.Resume(now, triage.Grant{Rule: d.rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: e.Since, Gone: gone, ControlPlane: e.ControlPlane, Pool: e.Pool})
	l.cfg.Logger.Info("departure inherited", "node", e.Node, "rule", d.rule.String(), "gone", e.Gone.String())
}

func (ds *departures) name(e ledger.Entry) {
	if ds.named == nil {
		ds.named = map[departure]ledger.Entry{}
	}
	ds.named[departureOf(e)] = e
}

// isNamed says whether the page as it is names a node that is gone.
func (ds *departures) isNamed(g triage.Grant) bool {
	_, is := ds.named[departure{g.Rule, g.Node, g.UID}]
	return is
}

// asks says whether the next page tells that a node is gone whose claim was to be
// deleted, and with that all there is to know.
func (ds *departures) asks(granted ledger.Entry) bool {
	_, isClaim := claimNamed(granted.Object)
	return isClaim && slices.ContainsFunc(ds.asked, func(e ledger.Entry) bool { return departureOf(e) == departureOf(granted) })
}

// hasDepartures says whether a node is gone that the page does not name, or one keeps its
// place no more that it does. Who waited for the page, and need not any more, goes on.
func (l *loop) hasDepartures(now time.Time) bool {
	unnamed := map[string]bool{}
	departures := l.core.Departures()
	for _, g := range departures {
		if !l.pages.departed.isNamed(g) {
			unnamed[g.Node] = true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(l.pages.departed.awaited)) {
		if !unnamed[node] {
			delete(l.pages.departed.awaited, node)
			l.tend(now, node)
		}
	}
	return len(unnamed) > 0 || l.pages.departed.hasReplaced(now, departures)
}

// hasReplaced says whether an heir would keep a place that is free.
func (ds *departures) hasReplaced(now time.Time, kept []triage.Grant) bool {
	isKept := keptOf(kept)
	for d, e := range ds.named {
		if !isKept[d] && !e.Replaced && now.Before(e.Gone.Add(clockSkew+triage.ReplacementWait)) {
			return true
		}
	}
	return false
}

func keptOf(grants []triage.Grant) map[departure]bool {
	kept := make(map[departure]bool, len(grants))
	for _, g := range grants {
		kept[departure{g.Rule, g.Node, g.UID}] = true
	}
	return kept
}

// isUnnamed says whether an object is all that tells of a node that is gone.
func (l *loop) isUnnamed(o treatment) bool {
	ds := &l.pages.departed
	is := slices.ContainsFunc(l.core.Departures(), func(g triage.Grant) bool {
		return departure{g.Rule, g.Node, g.UID}.isBy(o) && !ds.isNamed(g)
	})
	if is {
		if ds.awaited == nil {
			ds.awaited = map[string]bool{}
		}
		ds.awaited[o.Node] = true
	}
	return is
}

// isUnnamedGrant says whether what the ledger names is all that tells of a node that is
// gone with its claim.
func (l *loop) isUnnamedGrant(e ledger.Entry) bool {
	ds := &l.pages.departed
	is := slices.ContainsFunc(l.core.Departures(), func(g triage.Grant) bool {
		return departureOf(e) == departure{g.Rule, g.Node, g.UID} && !ds.isNamed(g)
	})
	if is {
		if ds.awaited == nil {
			ds.awaited = map[string]bool{}
		}
		ds.awaited[e.Node] = true
	}
	return is
}

// nameDepartures puts the nodes that are gone on the next page, and says whether that is
// news. If there are more than there is room for, those stay that are there, since their
// objects may be gone; the objects of the others stay.
func (l *loop) nameDepartures(now time.Time, page *ledger.Room) (isNews bool) {
	pg := &l.pages
	kept := l.core.Departures()
	isNews = pg.departed.hasReplaced(now, kept)
	slices.SortStableFunc(kept, func(a, b triage.Grant) int {
		if is := pg.departed.isNamed(a); is != pg.departed.isNamed(b) {
			if is {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Gone.Compare(b.Gone), cmp.Compare(a.Node, b.Node))
	})
	room := min(maxDeparted, max(0, maxNamed-len(pg.named)))
	pg.departed.asked = nil
	for _, g := range kept[:min(len(kept), room)] {
		e, isNamed := pg.departed.named[departure{g.Rule, g.Node, g.UID}]
		if isNamed {
			page.Add(e)
		} else {
			e = ledger.Entry{
				Rule: record.Rule(g.Rule), Node: g.Node, UID: g.UID, Step: g.Step,
				Gone: g.Gone.UTC(), Since: g.Since.UTC(), ControlPlane: g.ControlPlane, Pool: g.Pool,
			}
			if !page.Take(e) {
				break
			}
			isNews = true
		}
		pg.departed.asked = append(pg.departed.asked, e)
	}
	for _, e := range slices.SortedFunc(maps.Values(pg.departed.named), func(a, b ledger.Entry) int { return b.Gone.Compare(a.Gone) }) {
		if len(pg.departed.asked) < room && l.isLeft(e) && !slices.Contains(pg.departed.asked, e) && page.Take(e) {
			e.Replaced = true
			pg.departed.asked = append(pg.departed.asked, e)
		}
	}
	return isNews
}

// isLeft says whether the object is still there by which a node was taken away. An heir
// that finds it, and no word of when the node went, would keep the place once more.
func (l *loop) isLeft(e ledger.Entry) bool {
	b := l.beds[e.Node]
	return b != nil && slices.ContainsFunc(slices.Collect(maps.Values(b.objects)), departureOf(e).isBy)
}

// turn notes what the page names that has been written.
func (ds *departures) turn() {
	ds.named = nil
	for _, e := range ds.asked {
		ds.name(e)
	}
	ds.asked = nil
}
