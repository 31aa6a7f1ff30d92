package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxAwaitingReplacement bounds how many nodes that are gone a page names, so that they leave
	// room for those that are there.
	maxAwaitingReplacement = maxNamed / 2
	// clockSkew is by how much the clocks of two controllers may differ without the
	// place of a node that is gone being free too soon.
	clockSkew = 5 * time.Minute
)

// awaitingReplacement are the nodes that remediators have taken away and that keep their place
// until they are replaced, as the ledger names them. When the remediation object is
// gone, too, nothing but that is left for an heir to know them by. A page is written when
// one has gone, and when its place is free: an heir that does not know would keep it once
// more. Of the second nobody waits for the answer.
type awaitingReplacement struct {
	inLedger  map[replacementOf]ledger.Entry // on the page as it is
	requested []ledger.Entry                 // on the next page, or as it is being written
	// awaited are nodes whose objects stay until the page names them, or their place
	// is free.
	awaited map[string]bool
}

// replacementOf is whose place is kept, and by which rule.
type replacementOf struct {
	rule      triage.RuleID
	node, uid string
}

func newReplacement(e ledger.Entry) replacementOf {
	return replacementOf{triage.RuleID(e.Rule), e.Node, e.UID}
}

// isBy says whether it was this object by which the node was taken away.
func (d replacementOf) isBy(o remediationObject) bool {
	return d.rule == ruleOf(o.Object) && d.node == o.Node && (o.NodeUID == "" || d.uid == string(o.NodeUID))
}

// noteReportedTreatments notes which objects the core has been told of as taking this node away: it
// keeps the place when the node goes.
func (l *loop) noteReportedTreatments(p *nodeState, facts *triage.Node) {
	b := l.treatments[p.node.Name]
	if b == nil {
		return
	}
	for key, o := range b.objects {
		isTold := slices.ContainsFunc(facts.Treatments, func(t triage.Treatment) bool { return t.Rule == ruleOf(o.Object) && t.Deletes })
		if o.IsOf(p.node) && o.reported != (o.DeletesNode && isTold) {
			o.reported = !o.reported
			b.objects[key] = o
		}
	}
}

// findReplacements tells the core of a node that is gone and was not known to be taken
// away: by a remediator that has said so, while nobody was here to hear it, or in words
// that came later than the node went. Nobody knows when that was, so it is now.
func (l *loop) findReplacements(now time.Time, b *nodeTreatments) {
	p := l.nodeStates[b.node]
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[key]
		c := l.policyOf(ruleOf(o.Object))
		if !l.isOurs(o.Object) || !o.DeletesNode || o.reported || o.isOf(p) || c == nil || c.owner != o.Owner {
			continue
		}
		isKnown := slices.ContainsFunc(slices.Collect(maps.Values(b.objects)), func(other remediationObject) bool {
			return other.reported && other.Owner == o.Owner && other.NodeUID == o.NodeUID
		})
		o.reported = true
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

// restoreReplacement takes up the place of a node that was seen to go by the one before.
// Its clock may be another: what it calls later than now was now at the latest, and
// what is over by less than clocks may differ is not over yet. So a wrong clock keeps a
// place for no longer than any is kept, counted from here, and frees it too soon only
// by as much as it is wrong beyond that.
func (l *loop) restoreReplacement(now time.Time, p *nodeState, e ledger.Entry) {
	if p != nil && string(p.node.UID) == e.UID {
		return // it is there
	}
	d := newReplacement(e)
	l.ledger.replacements.add(e)
	if b := l.treatments[e.Node]; b != nil {
		for key, o := range b.objects {
			if d.isBy(o) {
				o.reported = true
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

func (ds *awaitingReplacement) add(e ledger.Entry) {
	if ds.inLedger == nil {
		ds.inLedger = map[replacementOf]ledger.Entry{}
	}
	ds.inLedger[newReplacement(e)] = e
}

// isStored says whether the page as it is names a node that is gone.
func (ds *awaitingReplacement) isStored(g triage.Grant) bool {
	_, is := ds.inLedger[replacementOf{g.Rule, g.Node, g.UID}]
	return is
}

// entries says whether the next page tells that a node is gone whose claim was to be
// deleted, and with that all there is to know.
func (ds *awaitingReplacement) entries(granted ledger.Entry) bool {
	_, isClaim := claimNamed(granted.Object)
	return isClaim && slices.ContainsFunc(ds.requested, func(e ledger.Entry) bool { return newReplacement(e) == newReplacement(granted) })
}

// hasReplacements says whether a node is gone that the page does not name, or one keeps its
// place no more that it does. Who waited for the page, and need not any more, goes on.
func (l *loop) hasReplacements(now time.Time) bool {
	unnamed := map[string]bool{}
	departures := l.core.Departures()
	for _, g := range departures {
		if !l.ledger.replacements.isStored(g) {
			unnamed[g.Node] = true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(l.ledger.replacements.awaited)) {
		if !unnamed[node] {
			delete(l.ledger.replacements.awaited, node)
			l.reconcileTreatments(now, node)
		}
	}
	return len(unnamed) > 0 || l.ledger.replacements.hasReplaced(now, departures)
}

// hasReplaced says whether an heir would keep a place that is free.
func (ds *awaitingReplacement) hasReplaced(now time.Time, kept []triage.Grant) bool {
	isKept := leavingNode(kept)
	for d, e := range ds.inLedger {
		if !isKept[d] && !e.Replaced && now.Before(e.Gone.Add(clockSkew+triage.ReplacementWait)) {
			return true
		}
	}
	return false
}

func leavingNode(grants []triage.Grant) map[replacementOf]bool {
	kept := make(map[replacementOf]bool, len(grants))
	for _, g := range grants {
		kept[replacementOf{g.Rule, g.Node, g.UID}] = true
	}
	return kept
}

// isNotInLedger says whether an object is all that tells of a node that is gone.
func (l *loop) isNotInLedger(o remediationObject) bool {
	ds := &l.ledger.replacements
	is := slices.ContainsFunc(l.core.Departures(), func(g triage.Grant) bool {
		return replacementOf{g.Rule, g.Node, g.UID}.isBy(o) && !ds.isStored(g)
	})
	if is {
		if ds.awaited == nil {
			ds.awaited = map[string]bool{}
		}
		ds.awaited[o.Node] = true
	}
	return is
}

// isSlotNotInLedger says whether what the ledger names is all that tells of a node that is
// gone with its claim.
func (l *loop) isSlotNotInLedger(e ledger.Entry) bool {
	ds := &l.ledger.replacements
	is := slices.ContainsFunc(l.core.Departures(), func(g triage.Grant) bool {
		return newReplacement(e) == replacementOf{g.Rule, g.Node, g.UID} && !ds.isStored(g)
	})
	if is {
		if ds.awaited == nil {
			ds.awaited = map[string]bool{}
		}
		ds.awaited[e.Node] = true
	}
	return is
}

// requestReplacementEntries puts the nodes that are gone on the next page, and says whether that is
// news. If there are more than there is room for, those stay that are there, since their
// objects may be gone; the objects of the others stay.
func (l *loop) requestReplacementEntries(now time.Time, page *ledger.Room) (isNews bool) {
	pg := &l.ledger
	kept := l.core.Departures()
	isNews = pg.replacements.hasReplaced(now, kept)
	slices.SortStableFunc(kept, func(a, b triage.Grant) int {
		if is := pg.replacements.isStored(a); is != pg.replacements.isStored(b) {
			if is {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Gone.Compare(b.Gone), cmp.Compare(a.Node, b.Node))
	})
	room := min(maxAwaitingReplacement, max(0, maxNamed-len(pg.nodesWithSlots)))
	pg.replacements.requested = nil
	for _, g := range kept[:min(len(kept), room)] {
		e, isNamed := pg.replacements.inLedger[replacementOf{g.Rule, g.Node, g.UID}]
		if isNamed {
			page.Add(e)
		} else {
			e = ledger.Entry{
				Rule: ownership.Rule(g.Rule), Node: g.Node, UID: g.UID, Step: g.Step,
				Gone: g.Gone.UTC(), Since: g.Since.UTC(), ControlPlane: g.ControlPlane, Pool: g.Pool,
			}
			if !page.Take(e) {
				break
			}
			isNews = true
		}
		pg.replacements.requested = append(pg.replacements.requested, e)
	}
	for _, e := range slices.SortedFunc(maps.Values(pg.replacements.inLedger), func(a, b ledger.Entry) int { return b.Gone.Compare(a.Gone) }) {
		if len(pg.replacements.requested) < room && l.isStillAwaited(e) && !slices.Contains(pg.replacements.requested, e) && page.Take(e) {
			e.Replaced = true
			pg.replacements.requested = append(pg.replacements.requested, e)
		}
	}
	return isNews
}

// isStillAwaited says whether the object is still there by which a node was taken away. An heir
// that finds it, and no word of when the node went, would keep the place once more.
func (l *loop) isStillAwaited(e ledger.Entry) bool {
	b := l.treatments[e.Node]
	return b != nil && slices.ContainsFunc(slices.Collect(maps.Values(b.objects)), newReplacement(e).isBy)
}

// stored notes what the page names that has been written.
func (ds *awaitingReplacement) stored() {
	ds.inLedger = nil
	for _, e := range ds.requested {
		ds.add(e)
	}
	ds.requested = nil
}
