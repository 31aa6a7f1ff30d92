package validate

import (
	"fmt"
	"slices"

	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/triage"
)

// mostPieces is in how many pieces the nodes are looked at that others leave. It takes
// several rivals that select by several labels each to come so far.
const mostPieces = 16

// surveyGoverned looks at the nodes that are left by those that go before, of which
// inPools are how many each pool has if that is nobody. Where it would take too long,
// nobody knows.
func (s *repairStudy) surveyGoverned(pools []triage.Selector, inPools []triage.Shared) {
	var before []triage.Selector
	for i, r := range s.rivals {
		if r.first && s.found.Shared[i].Nodes > 0 {
			before = append(before, r.who)
		}
	}
	if len(before) == 0 {
		s.governed, s.crowds = s.found, crowds(s.found.Selected, inPools)
		return
	}
	pieces, err := without(s.rule.Who, before)
	if err != nil || len(pieces) > mostPieces {
		return
	}
	left := triage.Survey{Shared: make([]triage.Shared, len(pools))}
	for _, piece := range pieces {
		rule := s.rule
		rule.Who = piece
		found, err := s.Survey(rule, pools...)
		if err != nil {
			return
		}
		left.Selected += found.Selected
		left.Matching += found.Matching
		left.First = append(left.First, found.First...)
		for i := range pools {
			left.Shared[i].Nodes += found.Shared[i].Nodes
		}
	}
	slices.Sort(left.First) // the first of all are among the first of each piece
	left.First = left.First[:min(len(left.First), manyNames)]
	s.governed, s.crowds = &left, crowds(left.Selected, left.Shared)
}

// crowds are how many of some nodes each pool has that has any, and then how many are of
// none.
func crowds(selected int, inPools []triage.Shared) (sizes []int) {
	rest := selected
	for _, pool := range inPools {
		if pool.Nodes > 0 {
			sizes = append(sizes, pool.Nodes)
			rest -= pool.Nodes
		}
	}
	if rest > 0 {
		sizes = append(sizes, rest)
	}
	return sizes
}

// poolSelectors are the nodes of each NodePool, if those of several are asked for.
func (s *repairStudy) poolSelectors() (list []triage.Selector) {
	for _, pool := range s.Pools {
		if s.hasPool || pool == nil {
			continue
		}
		if who, err := observe.PoolNodes(pool.Name); err == nil {
			list = append(list, who)
		}
	}
	return list
}

// pace tells how many are repaired at once, if not all are.
func (s *repairStudy) pace() string {
	limit := s.rule.Bound.Cap
	if len(s.crowds) < 2 {
		if most := limit.Of(s.governed.Selected); s.governed.Matching > most {
			return fmt.Sprintf(", no more than %d at once", most)
		}
		return ""
	}
	if s.governed.Matching <= limit.Of(slices.Min(s.crowds)) {
		return ""
	}
	return fmt.Sprintf(", no more than %s at once in each pool", limit)
}

// without returns the nodes of a selector that no other one chooses, in pieces that have
// none in common, and stops when these are too many. A node is left by another selector
// if it meets the first so many of its requirements, and not the next one.
func without(who triage.Selector, others []triage.Selector) ([]triage.Selector, error) {
	pieces := []triage.Selector{who}
	for _, other := range others {
		var left []triage.Selector
		for _, piece := range pieces {
			met := piece.Requirements()
			for _, demand := range other.Requirements() {
				next, err := triage.NewSelector(append(slices.Clone(met), opposite(demand))...)
				if err != nil {
					return nil, err
				}
				left, met = append(left, next), append(met, demand)
			}
		}
		if pieces = left; len(pieces) > mostPieces {
			break
		}
	}
	return pieces, nil
}

// opposite is the requirement that a node meets which does not meet this one.
func opposite(r triage.Requirement) triage.Requirement {
	switch r.Op {
	case triage.In:
		r.Op = triage.NotIn
	case triage.NotIn:
		r.Op = triage.In
	case triage.Exists:
		r.Op = triage.Absent
	case triage.Absent:
		r.Op = triage.Exists
	}
	return r
}
