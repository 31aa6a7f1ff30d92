package history

import (
	"fmt"
	"maps"
	"slices"
)

// judgeEnd says whether the cluster looks in the end exactly as the sets ask for.
func (r *replay) judgeEnd() {
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[name]
		r.judgeRecord(n)
		if n.note.problem == nil {
			r.judgeLooks(n)
		}
	}
	for _, name := range r.names {
		r.judgeRoom(r.sets[name])
	}
	r.judgeCareEnd()
	r.judgeRepairEnd()
}

// judgeRecord looks for leftovers in a record.
func (r *replay) judgeRecord(n *node) {
	if n.note.problem != nil {
		r.tell(WrongEnd, n.name, "", "the record cannot be read: "+n.note.problem.Error())
		return
	}
	if n.note.fence != "" {
		r.tell(WrongEnd, n.name, "", fmt.Sprintf("the record still has the fence %q", n.note.fence))
	}
	for _, e := range n.note.entries {
		if !slices.Contains(n.taints, e.taint()) {
			r.tell(WrongEnd, n.name, setOf(e.rule), fmt.Sprintf("the record tells of the taint %s, which is not there", e))
		}
	}
	for _, m := range n.note.memories {
		if !r.remembersRightly(n, m) {
			r.tell(WrongEnd, n.name, setOf(m.rule), fmt.Sprintf("the record remembers since when %s has stood, which it does not", m.condition))
		}
	}
	if n.note.there && len(n.note.entries)+len(n.note.memories) == 0 && n.note.fence+n.note.rest == "" {
		r.tell(WrongEnd, n.name, "", "the record is empty and still there")
	}
}

// remembersRightly says whether a memory is of a condition that its set, or the policy
// by which the node is repaired, still has reason to ask about.
func (r *replay) remembersRightly(n *node, m memory) bool {
	if g, is := r.rule(n, m.rule); is {
		return n.ails(g.block).verdict != not
	}
	s := r.sets[setOf(m.rule)]
	if s == nil || s.rule == nil {
		return false
	}
	if !s.rule.follows() {
		return true // nobody says what becomes of it
	}
	if !s.rule.selects(n.labels) {
		return false
	}
	at := slices.IndexFunc(s.rule.wants, func(w want) bool { return w.condition == m.condition })
	if at < 0 {
		return false
	}
	c, there := n.conditions[m.condition]
	return s.rule.wants[at].look.of(c, there) != not
}

// judgeLooks compares the taints of ours on a node with what the sets ask for.
func (r *replay) judgeLooks(n *node) {
	highest := 0
	for _, name := range r.names {
		s := r.sets[name]
		if s.rule != nil && s.rule.refused != "" && len(n.carried[name]) > 0 {
			return // nobody says what it supersedes
		}
		if sure, maybe := r.stands(n, s); sure || maybe {
			highest = max(highest, strength[s.rule.effect])
		}
	}
	for _, name := range r.names {
		s, carried := r.sets[name], n.carried[name]
		sure, maybe := r.stands(n, s)
		switch {
		case !sure && !maybe:
			for _, e := range carried {
				r.tell(WrongEnd, n.name, name, fmt.Sprintf("the taint %s is still there: %s", e, r.whyGone(n, s)))
			}
		case strength[s.rule.effect] < highest:
			for _, e := range carried {
				r.tell(WrongEnd, n.name, name, fmt.Sprintf("the taint %s is still there, although a set with a higher effect stands", e))
			}
		case len(carried) == 0:
			if !slices.ContainsFunc(n.taints, func(t taint) bool { return s.rule.allows(t.key, t.effect) && !n.note.owns(t) }) { // else somebody else's serves
				r.tell(WrongEnd, n.name, name, fmt.Sprintf("the taint %s:%s is missing: the conditions of the set stand", s.rule.key, s.rule.effect))
			}
		case len(carried) > 1:
			r.tell(WrongEnd, n.name, name, fmt.Sprintf("the set has %d taints on the node: %v", len(carried), carried))
		case carried[0].key != s.rule.key, sure && !s.rule.allows(carried[0].key, carried[0].effect):
			r.tell(WrongEnd, n.name, name, fmt.Sprintf("the taint is %s, the set asks for %s:%s", carried[0], s.rule.key, s.rule.effect))
		case sure && carried[0].effect == noExecute && s.rule.spares(n.labels):
			r.tell(WrongEnd, n.name, name, fmt.Sprintf("the taint %s is on a node of the control plane, which the set does not ask for", carried[0]))
		}
	}
}

// stands says whether a set asks for its taint on a node at the end, and whether
// it may be one that just stays.
func (r *replay) stands(n *node, s *set) (sure, maybe bool) {
	if !s.rule.places() {
		return false, false
	}
	f := n.find(s.rule)
	return f.surely(r.at.Time, r.cfg.Lag), f.verdict != not && len(n.carried[s.name]) > 0
}

func (r *replay) whyGone(n *node, s *set) string {
	switch {
	case s.rule == nil:
		return "there is no such set"
	case s.rule.dryRun:
		return "the set is on dry run"
	case !s.rule.selects(n.labels):
		return "the set does not select the node"
	}
	return "the conditions of the set do not stand"
}

// judgeRoom says whether a node waits although there is room for it.
func (r *replay) judgeRoom(s *set) {
	if !s.rule.places() || s.rule.effect != noExecute {
		return
	}
	var waiting []string
	taken := s.evicting
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[name]
		evicting := n.carries(s.name, noExecute)
		fellBack := n.carries(s.name, noSchedule)
		sure, _ := r.stands(n, s)
		switch {
		case n.foreign(s.rule.key, noExecute):
			taken++ // somebody else's taint serves there, and may hold the place
		case sure && fellBack && !evicting && !s.rule.spares(n.labels):
			waiting = append(waiting, name)
		}
	}
	if len(waiting) > 0 && taken < s.bound {
		r.tell(WrongEnd, waiting[0], s.name, fmt.Sprintf("the node waits with NoSchedule, although %d of %d selected nodes carry NoExecute and %d may (%d nodes wait)",
			s.evicting, s.selected, s.bound, len(waiting)))
	}
}
