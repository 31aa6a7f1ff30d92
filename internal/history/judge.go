package history

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// nodeWrite is a write of ours to a node, with the placed and removed taints.
type nodeWrite struct {
	node            *node
	placed, removed []setTaint
	evicted         map[string]bool // sets whose NoExecute the node had before, under any key

	wasTreated, wasClosed bool // in treatment, and closed to new pods by us, before
	before                *unstructured.Unstructured
}

// setTaint is a taint of a set.
type setTaint struct {
	set *set
	entry
}

// judgeWrite judges a write of ours by the state of the node just before.
func (r *replay) judgeWrite(n *node, after facts) *nodeWrite {
	r.report.Writes++
	w := &nodeWrite{node: n, evicted: map[string]bool{}, wasTreated: r.isTreated(n), wasClosed: n.closedByUs(), before: n.object}
	for _, part := range r.notOurs(n.object, after.object) {
		r.addViolation(ForeignTouched, n.name, "", "we changed the "+part+" of the node")
	}
	if n.record.fence != after.record.fence {
		r.report.Fences++
	}
	if takesConfirmation(n.object, after.object) {
		r.judgeConfirmation(n)
	}
	r.judgeAttempts(n, after.object)
	r.judgeTaints(n, after)
	for set, entries := range n.carried {
		w.evicted[set] = n.carries(set, noExecute)
		for _, e := range without(entries, after.carried[set]) {
			w.removed = append(w.removed, setTaint{r.set(set), e})
		}
	}
	for set, entries := range after.carried {
		for _, e := range without(entries, n.carried[set]) {
			w.placed = append(w.placed, setTaint{r.set(set), e})
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

func inOrder(deeds []setTaint) {
	slices.SortFunc(deeds, func(a, b setTaint) int {
		return strings.Compare(a.set.name+" "+a.String(), b.set.name+" "+b.String())
	})
}

// judgeTaints judges changes to the taints of other writers, and whether the record matches
// the taints afterwards.
func (r *replay) judgeTaints(n *node, after facts) {
	unreadable := after.record.problem != nil
	if unreadable {
		r.addViolation(Misrecorded, n.name, "", "the record cannot be read: "+after.record.problem.Error())
	}
	changed := map[taintID]bool{}
	for _, t := range without(n.taints, after.taints) {
		if n.record.owns(t) {
			continue
		}
		changed[taintID{t.key, t.effect}] = true
		r.addViolation(ForeignTouched, n.name, "", fmt.Sprintf("we changed or removed the taint %s, which was not ours", t))
	}
	for _, t := range after.taints {
		before, ours := slices.Contains(n.taints, t), after.record.owns(t)
		switch {
		case before && ours && !n.record.owns(t):
			r.addViolation(ForeignTouched, n.name, "", fmt.Sprintf("we claimed the taint %s, which was not ours", t))
		case before && !ours && n.record.owns(t) && !unreadable:
			r.addViolation(Misrecorded, n.name, "", fmt.Sprintf("the taint %s is still there, but the record no longer has it", t))
		case before || ours || changed[taintID{t.key, t.effect}]:
		case n.took[t]:
			r.addViolation(ForeignTouched, n.name, "", fmt.Sprintf("we placed again the taint %s, which another writer had removed", t))
		case !unreadable:
			r.addViolation(Misrecorded, n.name, "", fmt.Sprintf("we placed the taint %s, and the record does not have it", t))
		}
	}
	for _, e := range after.record.entries {
		there := slices.Contains(after.taints, e.taint())
		// An entry may stay for a while after another writer has removed its taint.
		inherited := slices.Contains(n.record.entries, e) && !slices.Contains(n.taints, e.taint())
		if !there && !inherited {
			r.addViolation(Misrecorded, n.name, setOf(e.rule), fmt.Sprintf("the record has the taint %s, which is not there", e))
		}
	}
}

// judgePlacement judges whether a set asked for a taint that we placed.
func (r *replay) judgePlacement(n *node, after facts, d setTaint) {
	r.report.Placements++
	c := n.set(d.set.name)
	again := slices.ContainsFunc(n.carried[d.set.name], func(e entry) bool { return e.id() == d.id() })
	if again {
		r.addViolation(DoneTwice, n.name, d.set.name, fmt.Sprintf("we placed the taint %s again while it existed", d))
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
			why = objection // of the newest version
		}
	}
	if why != "" {
		r.addViolation(Unjustified, n.name, d.set.name, fmt.Sprintf("we placed the taint %s, but %s", d, why))
	}
	if before, twice := c.placed[d.id()]; twice && before == r.causes(n, d.set) && !c.reported[d.id()] && why == "" {
		r.addViolation(DoneTwice, n.name, d.set.name, fmt.Sprintf("we placed the taint %s again, and nothing has changed since the last time", d))
	}
	takesPlace := d.effect == noExecute && !n.carries(d.set.name, noExecute)
	if takesPlace && r.cfg.Ledger.Name != "" && !slices.Contains(r.ledger.Grants, grant{d.rule, n.name, string(n.uid), n.object.GetResourceVersion(), ""}) {
		r.addViolation(Unrecorded, n.name, d.set.name, fmt.Sprintf("we placed the taint %s, and the ledger does not name it for version %s of the node", d, n.object.GetResourceVersion()))
	}
}

// objection returns the reason that a version of a set gives against a placement.
func (r *replay) objection(n *node, after facts, d setTaint, view *rule) string {
	if view != nil && view.lastValid != nil {
		view = view.lastValid
	}
	// Even while no new taint may start, the controller may adjust an existing taint to an
	// edited set.
	adjusts := slices.ContainsFunc(n.carried[d.set.name], func(e entry) bool { return strength[e.effect] >= strength[d.effect] })
	f := n.findSet(view)
	stays := n.carries(d.set.name, d.effect) && f.verdict != not && !f.surely(r.at.Time, r.cfg.Lag)
	switch {
	case view == nil:
		return "the set does not exist"
	case view.invalid != "":
		return "the set is invalid: " + view.invalid
	case view.dryRun:
		return "the set is in dry run"
	case view.paused && !adjusts:
		return "the set is paused"
	case !view.allows(d.key, d.effect) && (d.key != view.key || !stays):
		return fmt.Sprintf("the set asks for %s:%s", view.key, view.effect)
	case !view.selects(n.labels):
		return "the set does not select the node"
	case d.effect == noExecute && view.exempts(n.labels) && !stays:
		return "the node is of the control plane, which the set does not ask for"
	case d.effect == noExecute && !n.carries(d.set.name, noExecute) && r.areClosed(view.windows):
		return "the windows of the set are closed"
	case f.verdict == not:
		return "the conditions of the set do not match"
	case f.verdict == unclear && !adjusts:
		return "a condition is Unknown, which the set does not name: nothing may start"
	case f.verdict == holds && !f.maybe(r.at.Time, r.cfg.Lag) && !adjusts:
		return "the conditions of the set have not matched long enough: not before " + f.earliest.UTC().Format(time.TimeOnly)
	}
	if by := r.superseder(n, after, d.set, view); by != "" {
		return "the set is superseded by " + by
	}
	return ""
}

// superseder returns the name of a set that certainly matches the node with a higher
// effect.
func (r *replay) superseder(n *node, after facts, s *set, view *rule) string {
	for _, name := range r.names {
		if name == s.name {
			continue
		}
		views := r.views(r.sets[name])
		stands := !slices.ContainsFunc(views, func(other *rule) bool {
			if !other.placesTaints() || other.paused || strength[other.effect] <= strength[view.effect] {
				return true
			}
			f := n.findSet(other)
			stays := f.verdict != not && len(n.carried[name]) > 0 && len(after.carried[name]) > 0
			return !stays && !f.surely(r.at.Time, r.cfg.Lag)
		})
		if stands {
			return name
		}
	}
	return ""
}

// maybeSuperseded reports whether another set with a higher effect may have matched the
// node in the writer's view.
func (r *replay) maybeSuperseded(n *node, after facts, s *set, view *rule) bool {
	for _, name := range r.names {
		if name == s.name {
			continue
		}
		carried := len(n.carried[name]) > 0 || len(after.carried[name]) > 0
		if slices.ContainsFunc(r.views(r.sets[name]), func(other *rule) bool {
			if other != nil && other.invalid != "" {
				return carried
			}
			if !other.placesTaints() || strength[other.effect] <= strength[view.effect] {
				return false
			}
			f := n.findSet(other)
			return f.maybe(r.at.Time, r.cfg.Lag) || f.verdict != not && carried
		}) {
			return true
		}
	}
	return false
}

// judgeRemoval judges whether there was a reason to remove our taint.
func (r *replay) judgeRemoval(n *node, after facts, d setTaint) {
	r.report.Removals++
	if slices.ContainsFunc(after.carried[d.set.name], func(e entry) bool { return e.id() == d.id() }) {
		return // placed again, which is judged there
	}
	views := r.views(d.set)
	for _, view := range views {
		if r.mayGo(n, after, d, view) {
			return
		}
	}
	n.set(d.set.name).reported[d.id()] = true
	f := n.findSet(views[0])
	state := "the conditions of the set match"
	if f.verdict == unclear {
		state = "a condition is Unknown, so existing taints stay"
	}
	r.addViolation(Unjustified, n.name, d.set.name, fmt.Sprintf("we removed the taint %s, but %s", d, state))
}

// mayGo reports whether a version of a set allows the removal of a taint.
func (r *replay) mayGo(n *node, after facts, d setTaint, view *rule) bool {
	if !view.placesTaints() || !view.allows(d.key, d.effect) || !view.selects(n.labels) {
		return true
	}
	f := n.findSet(view)
	switch {
	case f.verdict == not:
		return true
	case r.maybeSuperseded(n, after, d.set, view):
		return true
	case d.effect == noExecute && view.exempts(n.labels) && after.carries(d.set.name, noSchedule):
		return true
	case f.verdict == unclear:
		return n.set(d.set.name).disturbed
	case !f.surely(r.at.Time, r.cfg.Lag):
		return true
	case after.foreign(view.key, view.effect):
		return true // a taint of another writer is in place
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

// judgeNeed judges whether a write was necessary.
func (r *replay) judgeNeed(n *node, after facts, w *nodeWrite) {
	if !sameItems(n.taints, after.taints) || len(w.placed)+len(w.removed) > 0 || n.record.fence != after.record.fence {
		return
	}
	if n.record.equals(after.record) {
		if len(r.notOurs(n.object, after.object)) == 0 && !r.takesPause(n.object, after.object) && !takesConfirmation(n.object, after.object) && !changesAttempts(n.object, after.object) {
			r.addViolation(DoneTwice, n.name, "", "we wrote to the node and changed nothing")
		}
		return
	}
	// The memories of the record depend on what other writers did.
	horizon := n.wrote.Add(-r.cfg.Lag)
	memoriesOnly := sameItems(n.record.entries, after.record.entries) && !sameItems(n.record.memories, after.record.memories)
	if memoriesOnly && !n.wrote.IsZero() && n.caused.Before(horizon) && r.edited.Before(horizon) {
		r.addViolation(DoneTwice, n.name, "", "we changed what the record remembers again, and nothing has changed since the last time")
	}
}

// causes returns the number of changes so far that may justify a placement.
func (r *replay) causes(n *node, s *set) causeCounts {
	w := causeCounts{causes: n.causes, edits: r.edits}
	if s.counted.isValid() && s.counted.effect == noExecute {
		w.room = s.moves - n.set(s.name).moves
	}
	return w
}

// judgeNumbers judges bounds and queues after the write.
func (r *replay) judgeNumbers(w *nodeWrite) {
	n := w.node
	for _, d := range w.placed {
		c := n.set(d.set.name)
		c.placed[d.id()] = r.causes(n, d.set)
		c.disturbed = false
		delete(c.reported, d.id())
		switch {
		case d.effect == noExecute:
			r.report.Evictions++
		case d.set.counted.isValid() && d.set.counted.effect == noExecute:
			r.report.Fallbacks++
		}
		if d.effect != noExecute || w.evicted[d.set.name] {
			continue // it uses no room, or had room already
		}
		if _, largest := r.boundsOf(d.set); c.selected && d.set.evicting+r.foreignOf(d.set) > largest {
			r.addViolation(CapExceeded, n.name, d.set.name, fmt.Sprintf("we placed the taint %s: %d of %d selected nodes carry it, at most %d may", d, d.set.evicting+r.foreignOf(d.set), d.set.selected, largest))
		}
		if !r.cfg.AnyTurn {
			r.judgeTurn(n, d.set)
		}
	}
	r.judgeTaintSteps(w)
}

// foreignOf counts the nodes of a set that have its NoExecute taint without our record, for
// so long that the writer must know.
func (r *replay) foreignOf(s *set) (nodes int) {
	horizon := r.at.Time.Add(-r.cfg.Lag)
	for _, n := range r.nodes {
		if c := n.set(s.name); !c.foreignSince.IsZero() && c.foreignSince.Before(horizon) {
			nodes++
		}
	}
	return nodes
}

// judgeTurn reports that another node should have been served first. Both nodes get the
// benefit of the doubt: the waiting node waits since the latest possible time, the served
// node since the earliest.
func (r *replay) judgeTurn(n *node, s *set) {
	if len(r.views(s)) > 1 || !s.rule.isValid() {
		return
	}
	// Timestamps of conditions have whole seconds.
	served := n.findSet(s.rule).earliest.Add(-time.Second - r.cfg.Lag)
	horizon := r.at.Time.Add(-r.cfg.Lag)
	longest, since := "", time.Time{}
	for name, other := range r.nodes {
		c := other.set(s.name)
		if other == n || !settled(c.waitsSince, horizon) || !settled(c.holdsSince, horizon) || s.rule.exempts(other.labels) {
			continue
		}
		if other.foreign(s.rule.key, noExecute) || r.mayBeHeld(other) {
			continue // a taint of another writer is in place there, or something holds the node
		}
		f := other.findSet(s.rule)
		waits := last(last(f.latest, c.lostPlace), c.selectedSince)
		if !f.surely(r.at.Time, r.cfg.Lag) || !waits.Before(served) {
			continue
		}
		if longest == "" || waits.Before(since) || waits.Equal(since) && name < longest {
			longest, since = name, waits
		}
	}
	if longest != "" {
		r.addViolation(OutOfTurn, n.name, s.name, fmt.Sprintf("the node got NoExecute, while %s has waited for it since %s", longest, since.UTC().Format(time.TimeOnly)))
	}
}

// settled reports whether a state began before a time.
func settled(since, moment time.Time) bool { return !since.IsZero() && since.Before(moment) }

// judgeStatusWrite judges a write of ours to a policy. We own only its status. It reports
// whether we wrote a status.
func judgeStatusWrite(what string, before *unstructured.Unstructured, change testbed.Change, tell func(Kind, string)) bool {
	switch {
	case isDeleted(change):
		tell(ForeignTouched, "we deleted the "+what)
		return false
	case before == nil:
		tell(ForeignTouched, "we created the "+what)
		return false
	}
	parts := notStatus(before, change.Object)
	for _, part := range parts {
		tell(ForeignTouched, "we changed the "+part+" of the "+what)
	}
	if len(parts) == 0 && reflect.DeepEqual(before.Object["status"], change.Object.Object["status"]) {
		tell(DoneTwice, "we wrote to the "+what+" and changed nothing")
	}
	return true
}
