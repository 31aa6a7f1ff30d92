package history

import (
	"fmt"
	"maps"
	"slices"

	"github.com/resourcestack/autohealer/internal/naive"
)

// judgeEnd reports differences between the final state of the cluster and what the sets ask
// for.
func (r *replay) judgeEnd() {
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[name]
		r.judgeRecord(n)
		if n.record.problem == nil {
			r.judgeFinalTaints(n)
		}
	}
	for _, name := range r.names {
		r.judgeRoom(r.sets[name])
	}
	r.judgeCheckEnd()
	r.judgeRepairEnd()
}

// judgeRecord reports leftovers in the record of a node.
func (r *replay) judgeRecord(n *node) {
	if n.record.problem != nil {
		r.addViolation(WrongEnd, n.name, "", "the record cannot be read: "+n.record.problem.Error())
		return
	}
	if n.record.fence != "" {
		r.addViolation(WrongEnd, n.name, "", fmt.Sprintf("the record still has the fence %q", n.record.fence))
	}
	for _, e := range n.record.entries {
		if !slices.Contains(n.taints, e.taint()) {
			r.addViolation(WrongEnd, n.name, setOf(e.rule), fmt.Sprintf("the record has the taint %s, which is not there", e))
		}
	}
	for _, m := range n.record.memories {
		if !r.remembersRightly(n, m) {
			r.addViolation(WrongEnd, n.name, setOf(m.rule), fmt.Sprintf("the record remembers a start time for %s, which does not match", m.condition))
		}
	}
	if n.record.exists && len(n.record.entries)+len(n.record.memories) == 0 && n.record.fence+n.record.rest == "" {
		r.addViolation(WrongEnd, n.name, "", "the record is empty but still exists")
	}
}

// remembersRightly reports whether the record still needs a remembered condition: for its
// set, or for the policy that repairs the node.
func (r *replay) remembersRightly(n *node, m memory) bool {
	if g, is := r.rule(n, m.rule); is {
		return n.find(g.block.when).verdict != not
	}
	s := r.sets[setOf(m.rule)]
	if s == nil || s.rule == nil {
		return false
	}
	if !s.rule.isValid() {
		return true // unspecified
	}
	if !s.rule.selects(n.labels) {
		return false
	}
	signals := naive.SignalsOf(s.rule.when, m.condition)
	v, _ := naive.Group(signals, n.row(m.condition))
	return len(signals) > 0 && v != not
}

// judgeFinalTaints compares our taints on a node with what the sets ask for.
func (r *replay) judgeFinalTaints(n *node) {
	highest := 0
	for _, name := range r.names {
		s := r.sets[name]
		if s.rule != nil && s.rule.invalid != "" && len(n.carried[name]) > 0 {
			return // unspecified which sets it supersedes
		}
		if sure, maybe := r.isWanted(n, s); sure || maybe {
			highest = max(highest, strength[s.rule.effect])
		}
	}
	for _, name := range r.names {
		s, carried := r.sets[name], n.carried[name]
		sure, maybe := r.isWanted(n, s)
		switch {
		case !sure && !maybe:
			for _, e := range carried {
				r.addViolation(WrongEnd, n.name, name, fmt.Sprintf("the taint %s still exists: %s", e, r.whyGone(n, s)))
			}
		case strength[s.rule.effect] < highest:
			for _, e := range carried {
				r.addViolation(WrongEnd, n.name, name, fmt.Sprintf("the taint %s still exists, although a set with a higher effect matches", e))
			}
		case len(carried) == 0:
			isForeign := func(t taint) bool { return s.rule.allows(t.key, t.effect) && !n.record.owns(t) }
			if !r.rails.mayHold() && !r.mayBePaused(n) && !slices.ContainsFunc(n.taints, isForeign) { // else a rail may hold it, or a taint of another writer is in place
				r.addViolation(WrongEnd, n.name, name, fmt.Sprintf("the taint %s:%s is missing: the conditions of the set match", s.rule.key, s.rule.effect))
			}
		case len(carried) > 1:
			r.addViolation(WrongEnd, n.name, name, fmt.Sprintf("the set has %d taints on the node: %v", len(carried), carried))
		case carried[0].key != s.rule.key, sure && !s.rule.allows(carried[0].key, carried[0].effect):
			r.addViolation(WrongEnd, n.name, name, fmt.Sprintf("the taint is %s, the set asks for %s:%s", carried[0], s.rule.key, s.rule.effect))
		case sure && carried[0].effect == noExecute && s.rule.exempts(n.labels):
			r.addViolation(WrongEnd, n.name, name, fmt.Sprintf("the taint %s is on a node of the control plane, which the set does not ask for", carried[0]))
		}
	}
}

// isWanted reports whether a set asks for its taint on a node at the end, and whether an
// existing taint may stay.
func (r *replay) isWanted(n *node, s *set) (sure, maybe bool) {
	if !s.rule.placesTaints() {
		return false, false
	}
	f := n.findSet(s.rule)
	return !s.rule.paused && f.surely(r.at.Time, r.cfg.Lag), f.verdict != not && len(n.carried[s.name]) > 0
}

func (r *replay) whyGone(n *node, s *set) string {
	switch {
	case s.rule == nil:
		return "the set does not exist"
	case s.rule.dryRun:
		return "the set is in dry run"
	case !s.rule.selects(n.labels):
		return "the set does not select the node"
	}
	return "the conditions of the set do not match"
}

// judgeRoom reports a node that waits although the bound has room for it.
func (r *replay) judgeRoom(s *set) {
	if !s.rule.placesTaints() || s.rule.paused || s.rule.effect != noExecute || r.areClosed(s.rule.windows) || r.rails.mayHold() {
		return
	}
	var waiting []string
	taken := s.evicting
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[name]
		evicting := n.carries(s.name, noExecute)
		fellBack := n.carries(s.name, noSchedule)
		sure, _ := r.isWanted(n, s)
		switch {
		case n.foreign(s.rule.key, noExecute):
			taken++ // a taint of another writer is in place, and may use up the room
		case sure && fellBack && !evicting && !s.rule.exempts(n.labels) && !r.mayBePaused(n):
			waiting = append(waiting, name)
		}
	}
	if len(waiting) > 0 && taken < s.bound {
		r.addViolation(WrongEnd, waiting[0], s.name, fmt.Sprintf("the node waits with NoSchedule, although %d of %d selected nodes carry NoExecute and %d may (%d nodes wait)",
			s.evicting, s.selected, s.bound, len(waiting)))
	}
}
