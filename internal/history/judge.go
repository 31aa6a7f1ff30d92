package history

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// writing is a write of ours to a node: what it placed and took away.
type writing struct {
	node            *node
	placed, removed []deed
	evicted         map[string]bool // sets whose NoExecute the node had before, under whatever key
}

// deed is one taint of one set.
type deed struct {
	set *set
	entry
}

// judgeWrite judges a write of ours by the node as it stood just before.
func (r *replay) judgeWrite(n *node, after facts) *writing {
	r.report.Writes++
	w := &writing{node: n, evicted: map[string]bool{}}
	for _, part := range notOurs(n.object, after.object) {
		r.tell(ForeignTouched, n.name, "", "we changed the "+part+" of the node")
	}
	if n.note.fence != after.note.fence {
		r.report.Fences++
	}
	if takesConfirmation(n.object, after.object) {
		r.judgeConfirmation(n)
	}
	r.judgeTaints(n, after)
	for set, entries := range n.carried {
		w.evicted[set] = n.carries(set, noExecute)
		for _, e := range without(entries, after.carried[set]) {
			w.removed = append(w.removed, deed{r.set(set), e})
		}
	}
	for set, entries := range after.carried {
		for _, e := range without(entries, n.carried[set]) {
			w.placed = append(w.placed, deed{r.set(set), e})
		}
	}
	inOrder(w.removed)
	inOrder(w.placed)
	for _, d := range w.removed {
		r.judgeRemoval(n, after, d)
	}
	for _, d := range w.placed {
		r.judgePlacement(n, after, d)
	}
	r.judgeNeed(n, after, w)
	return w
}

func inOrder(deeds []deed) {
	slices.SortFunc(deeds, func(a, b deed) int {
		return strings.Compare(a.set.name+" "+a.String(), b.set.name+" "+b.String())
	})
}

// judgeTaints looks at the taints that others put there, and whether record and
// taints agree afterwards.
func (r *replay) judgeTaints(n *node, after facts) {
	unreadable := after.note.problem != nil
	if unreadable {
		r.tell(Misrecorded, n.name, "", "the record cannot be read: "+after.note.problem.Error())
	}
	changed := map[spot]bool{}
	for _, t := range without(n.taints, after.taints) {
		if n.note.owns(t) {
			continue
		}
		changed[spot{t.key, t.effect}] = true
		r.tell(ForeignTouched, n.name, "", fmt.Sprintf("we changed or removed the taint %s, which was not ours", t))
	}
	for _, t := range after.taints {
		before, ours := slices.Contains(n.taints, t), after.note.owns(t)
		switch {
		case before && ours && !n.note.owns(t):
			r.tell(ForeignTouched, n.name, "", fmt.Sprintf("we claimed the taint %s, which was not ours", t))
		case before && !ours && n.note.owns(t) && !unreadable:
			r.tell(Misrecorded, n.name, "", fmt.Sprintf("the taint %s is still there, but the record no longer tells of it", t))
		case before || ours || changed[spot{t.key, t.effect}]:
		case n.took[t]:
			r.tell(ForeignTouched, n.name, "", fmt.Sprintf("we brought back the taint %s, which somebody else had removed", t))
		case !unreadable:
			r.tell(Misrecorded, n.name, "", fmt.Sprintf("we placed the taint %s, and the record does not tell of it", t))
		}
	}
	for _, e := range after.note.entries {
		there := slices.Contains(after.taints, e.taint())
		// One whose taint somebody else has removed may stay a while.
		inherited := slices.Contains(n.note.entries, e) && !slices.Contains(n.taints, e.taint())
		if !there && !inherited {
			r.tell(Misrecorded, n.name, setOf(e.rule), fmt.Sprintf("the record tells of the taint %s, which is not there", e))
		}
	}
}

// judgePlacement says whether a set asked for a taint that we placed.
func (r *replay) judgePlacement(n *node, after facts, d deed) {
	r.report.Placements++
	c := n.course(d.set.name)
	again := slices.ContainsFunc(n.carried[d.set.name], func(e entry) bool { return e.spot() == d.spot() })
	if again {
		r.tell(DoneTwice, n.name, d.set.name, fmt.Sprintf("we placed the taint %s anew while it was there", d))
		return
	}
	why := ""
	for _, view := range r.views(d.set) {
		objection := r.objection(n, after, d, view)
		if objection == "" {
			why = ""
			break
		}
		if why == "" {
			why = objection // of the newest view
		}
	}
	if why != "" {
		r.tell(Unlawful, n.name, d.set.name, fmt.Sprintf("we placed the taint %s, but %s", d, why))
	}
	if before, twice := c.placed[d.spot()]; twice && before == r.world(n, d.set) && !c.told[d.spot()] && why == "" {
		r.tell(DoneTwice, n.name, d.set.name, fmt.Sprintf("we placed the taint %s again, and nothing has changed since the last time", d))
	}
	takesPlace := d.effect == noExecute && !n.carries(d.set.name, noExecute)
	if takesPlace && r.cfg.Ledger.Name != "" && !slices.Contains(r.page.Grants, grant{d.rule, n.name, string(n.uid), n.object.GetResourceVersion(), ""}) {
		r.tell(Unrecorded, n.name, d.set.name, fmt.Sprintf("we placed the taint %s, and the ledger does not name it for version %s of the node", d, n.object.GetResourceVersion()))
	}
}

// objection is what one version of a set has to say against a placement.
func (r *replay) objection(n *node, after facts, d deed, view *rule) string {
	// While nothing may start, what stands may still be brought in line with a
	// set that was edited.
	adjusts := slices.ContainsFunc(n.carried[d.set.name], func(e entry) bool { return strength[e.effect] >= strength[d.effect] })
	f := n.find(view)
	stays := n.carries(d.set.name, d.effect) && f.verdict != not && !f.surely(r.at.Time, r.cfg.Lag)
	switch {
	case view == nil:
		return "there is no such set"
	case view.refused != "":
		return "the set cannot be followed: " + view.refused
	case view.dryRun:
		return "the set is on dry run"
	case !view.allows(d.key, d.effect) && (d.key != view.key || !stays):
		return fmt.Sprintf("the set asks for %s:%s", view.key, view.effect)
	case !view.selects(n.labels):
		return "the set does not select the node"
	case d.effect == noExecute && view.spares(n.labels) && !stays:
		return "the node is of the control plane, which the set does not ask for"
	case f.verdict == not:
		return "the conditions of the set do not stand"
	case f.verdict == unclear && !adjusts:
		return "a condition is Unknown, which the set does not name: nothing may start"
	case f.verdict == holds && !f.maybe(r.at.Time, r.cfg.Lag) && !adjusts:
		return "the conditions of the set have not stood long enough: not before " + f.earliest.UTC().Format(time.TimeOnly)
	}
	if by := r.superseder(n, after, d.set, view); by != "" {
		return "the set is superseded by " + by
	}
	return ""
}

// superseder names a set that surely stands on the node with a higher effect.
func (r *replay) superseder(n *node, after facts, s *set, view *rule) string {
	for _, name := range r.names {
		if name == s.name {
			continue
		}
		views := r.views(r.sets[name])
		stands := !slices.ContainsFunc(views, func(other *rule) bool {
			if !other.places() || strength[other.effect] <= strength[view.effect] {
				return true
			}
			f := n.find(other)
			stays := f.verdict != not && len(n.carried[name]) > 0 && len(after.carried[name]) > 0
			return !stays && !f.surely(r.at.Time, r.cfg.Lag)
		})
		if stands {
			return name
		}
	}
	return ""
}

// maybeSuperseded says that some other set may have been thought to stand on the
// node with a higher effect.
func (r *replay) maybeSuperseded(n *node, after facts, s *set, view *rule) bool {
	for _, name := range r.names {
		if name == s.name {
			continue
		}
		carried := len(n.carried[name]) > 0 || len(after.carried[name]) > 0
		if slices.ContainsFunc(r.views(r.sets[name]), func(other *rule) bool {
			if other != nil && other.refused != "" {
				return carried
			}
			if !other.places() || strength[other.effect] <= strength[view.effect] {
				return false
			}
			f := n.find(other)
			return f.maybe(r.at.Time, r.cfg.Lag) || f.verdict != not && carried
		}) {
			return true
		}
	}
	return false
}

// judgeRemoval says whether there was a reason to take a taint of ours away.
func (r *replay) judgeRemoval(n *node, after facts, d deed) {
	r.report.Removals++
	if slices.ContainsFunc(after.carried[d.set.name], func(e entry) bool { return e.spot() == d.spot() }) {
		return // placed anew, which is told there
	}
	views := r.views(d.set)
	for _, view := range views {
		if r.mayGo(n, after, d, view) {
			return
		}
	}
	n.course(d.set.name).told[d.spot()] = true
	f := n.find(views[0])
	state := "the conditions of the set stand"
	if f.verdict == unclear {
		state = "a condition is Unknown, and what stands stays"
	}
	r.tell(Unlawful, n.name, d.set.name, fmt.Sprintf("we took the taint %s away, but %s", d, state))
}

// mayGo says whether one version of a set lets a taint go.
func (r *replay) mayGo(n *node, after facts, d deed, view *rule) bool {
	if !view.places() || !view.allows(d.key, d.effect) || !view.selects(n.labels) {
		return true
	}
	f := n.find(view)
	switch {
	case f.verdict == not:
		return true
	case r.maybeSuperseded(n, after, d.set, view):
		return true
	case d.effect == noExecute && view.spares(n.labels) && after.carries(d.set.name, noSchedule):
		return true
	case f.verdict == unclear:
		return n.course(d.set.name).disturbed
	case !f.surely(r.at.Time, r.cfg.Lag):
		return true
	case after.foreign(view.key, view.effect):
		return true // somebody else's serves
	}
	smallest, _ := r.boundsOf(d.set)
	switch {
	case view.effect != noExecute:
		return false
	case d.effect == noSchedule:
		return after.carries(d.set.name, noExecute)
	default:
		return after.carries(d.set.name, noSchedule) && d.set.evicting > smallest
	}
}

// judgeNeed says whether a write was needed at all.
func (r *replay) judgeNeed(n *node, after facts, w *writing) {
	if !sameItems(n.taints, after.taints) || len(w.placed)+len(w.removed) > 0 || n.note.fence != after.note.fence {
		return
	}
	if n.note.says(after.note) {
		if len(notOurs(n.object, after.object)) == 0 && !takesConfirmation(n.object, after.object) {
			r.tell(DoneTwice, n.name, "", "we wrote to the node and changed nothing")
		}
		return
	}
	// What the record remembers is about what others did.
	horizon := n.wrote.Add(-r.cfg.Lag)
	memoriesOnly := sameItems(n.note.entries, after.note.entries) && !sameItems(n.note.memories, after.note.memories)
	if memoriesOnly && !n.wrote.IsZero() && n.caused.Before(horizon) && r.edited.Before(horizon) {
		r.tell(DoneTwice, n.name, "", "we changed what the record remembers again, and nothing has changed since the last time")
	}
}

// world tells what had happened by now that could be a cause to place a taint.
func (r *replay) world(n *node, s *set) world {
	w := world{causes: n.causes, edits: r.edits}
	if s.counted.follows() && s.counted.effect == noExecute {
		w.room = s.moves - n.course(s.name).moves
	}
	return w
}

// judgeNumbers looks at the bounds and the queues once the write is made.
func (r *replay) judgeNumbers(w *writing) {
	n := w.node
	for _, d := range w.placed {
		c := n.course(d.set.name)
		c.placed[d.spot()] = r.world(n, d.set)
		c.disturbed = false
		delete(c.told, d.spot())
		switch {
		case d.effect == noExecute:
			r.report.Evictions++
		case d.set.counted.follows() && d.set.counted.effect == noExecute:
			r.report.Fallbacks++
		}
		if d.effect != noExecute || w.evicted[d.set.name] {
			continue // it takes no place, or the one that it had
		}
		if _, largest := r.boundsOf(d.set); c.selected && d.set.evicting+r.foreignOf(d.set) > largest {
			r.tell(CapExceeded, n.name, d.set.name, fmt.Sprintf("we placed the taint %s: %d of %d selected nodes carry it, at most %d may", d, d.set.evicting+r.foreignOf(d.set), d.set.selected, largest))
		}
		if !r.cfg.AnyTurn {
			r.judgeTurn(n, d.set)
		}
	}
}

// foreignOf counts the nodes of a set that have its NoExecute without a record that we
// placed it, for so long that the writer must know.
func (r *replay) foreignOf(s *set) (nodes int) {
	horizon := r.at.Time.Add(-r.cfg.Lag)
	for _, n := range r.nodes {
		if c := n.course(s.name); !c.foreignSince.IsZero() && c.foreignSince.Before(horizon) {
			nodes++
		}
	}
	return nodes
}

// judgeTurn says whether another node should have gone first. Each is given the
// benefit of the doubt: the one that waits is taken to wait since the latest
// moment that one may believe, the other since the earliest.
func (r *replay) judgeTurn(n *node, s *set) {
	if len(r.views(s)) > 1 || !s.rule.follows() {
		return
	}
	// Stamps of conditions are whole seconds.
	served := n.find(s.rule).earliest.Add(-time.Second - r.cfg.Lag)
	horizon := r.at.Time.Add(-r.cfg.Lag)
	longest, since := "", time.Time{}
	for name, other := range r.nodes {
		c := other.course(s.name)
		if other == n || !settled(c.waitsSince, horizon) || !settled(c.holdsSince, horizon) || s.rule.spares(other.labels) {
			continue
		}
		if other.foreign(s.rule.key, noExecute) {
			continue // somebody else's serves there
		}
		f := other.find(s.rule)
		waits := last(last(f.latest, c.lostPlace), c.selectedSince)
		if !f.surely(r.at.Time, r.cfg.Lag) || !waits.Before(served) {
			continue
		}
		if longest == "" || waits.Before(since) || waits.Equal(since) && name < longest {
			longest, since = name, waits
		}
	}
	if longest != "" {
		r.tell(OutOfTurn, n.name, s.name, fmt.Sprintf("the node got NoExecute, while %s has waited for it since %s", longest, since.UTC().Format(time.TimeOnly)))
	}
}

// settled says that something has been so since before a moment.
func settled(since, moment time.Time) bool { return !since.IsZero() && since.Before(moment) }

// judgeSetWrite looks at a write of ours to a set: the status is all that we own
// of it.
func (r *replay) judgeSetWrite(s *set, change testbed.Change) {
	r.report.Statuses++
	switch {
	case isDeleted(change):
		r.tell(ForeignTouched, "", s.name, "we deleted the set")
	case s.object == nil:
		r.tell(ForeignTouched, "", s.name, "we created the set")
	default:
		parts := notStatus(s.object, change.Object)
		for _, part := range parts {
			r.tell(ForeignTouched, "", s.name, "we changed the "+part+" of the set")
		}
		if len(parts) == 0 && reflect.DeepEqual(s.object.Object["status"], change.Object.Object["status"]) {
			r.tell(DoneTwice, "", s.name, "we wrote to the set and changed nothing")
		}
	}
}
