package validate

import (
	"fmt"
	"slices"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/triage"
)

// maxPieces limits the number of selectors that surveyGoverned evaluates. Only several
// policies with several labels each reach this limit.
const maxPieces = 16

// surveyGoverned surveys the nodes that no policy with precedence selects. inPools has the
// number of selected nodes per pool. If the survey is too expensive, s.governed stays nil.
func (s *repairAnalysis) surveyGoverned(pools []triage.Selector, inPools []triage.Shared) {
	var before []triage.Selector
	for i, r := range s.otherPolicies {
		if r.first && s.found.Shared[i].Nodes > 0 {
			before = append(before, r.who)
		}
	}
	if len(before) == 0 {
		s.governed, s.poolSizes = s.found, poolSizes(s.found.Selected, inPools)
		return
	}
	pieces, err := subtract(s.rule.Selector, before)
	if err != nil || len(pieces) > maxPieces {
		return
	}
	left := triage.Survey{Shared: make([]triage.Shared, len(pools))}
	for _, piece := range pieces {
		rule := s.rule
		rule.Selector = piece
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
	slices.Sort(left.First) // each piece has its own first names, so these include the overall first
	left.First = left.First[:min(len(left.First), maxNames)]
	s.governed, s.poolSizes = &left, poolSizes(left.Selected, left.Shared)
}

// poolSizes returns the number of nodes of each pool that has any, followed by the number of
// nodes without a pool.
func poolSizes(selected int, inPools []triage.Shared) (sizes []int) {
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

// selectablePools returns the NodePools with a selector for each, if the policy may select
// several pools.
func (s *repairAnalysis) selectablePools() (pools []*karpenter.NodePool, selectors []triage.Selector) {
	for _, pool := range s.Pools {
		if s.hasPool || pool == nil {
			continue
		}
		if who, err := observe.PoolNodes(pool.Name); err == nil {
			pools, selectors = append(pools, pool), append(selectors, who)
		}
	}
	return pools, selectors
}

// selectedNodes are selected nodes with the same provider.
type selectedNodes struct {
	name       string // for messages
	statements []dialect.RepairStatement
}

// noteSelected notes which nodes a policy with a selector selects now.
func (s *repairAnalysis) noteSelected(pools []*karpenter.NodePool, inPools []triage.Shared) {
	if s.hasPool || s.Pools == nil { // without the pools, the provider of a node is unknown
		return
	}
	rest := s.found.Selected
	for i, pool := range pools {
		if rest -= inPools[i].Nodes; inPools[i].Nodes > 0 {
			s.selected = append(s.selected, selectedNodes{"NodePool " + truncate(pool.Name), s.statementsOf(pool)})
		}
	}
	if rest > 0 {
		s.selected = append(s.selected, selectedNodes{"nodes without a NodePool", s.Statements.Static})
	}
}

// rateNote says how many nodes are repaired at a time, if not all of them.
func (s *repairAnalysis) rateNote() string {
	limit := s.rule.Bound.Cap
	if len(s.poolSizes) < 2 {
		if most := limit.Of(s.governed.Selected); s.governed.Matching > most {
			return fmt.Sprintf(", no more than %d at once", most)
		}
		return ""
	}
	if s.governed.Matching <= limit.Of(slices.Min(s.poolSizes)) {
		return ""
	}
	note := fmt.Sprintf(", no more than %s at once in each pool", limit)
	if gate := s.rule.Bound.Gate; gate.Of(slices.Max(s.poolSizes)) < slices.Max(s.poolSizes) {
		note += ", and none in a pool in which more are unhealthy than unhealthyThreshold allows"
	}
	return note
}

// subtract returns disjoint selectors for the nodes that match who and none of the others.
// It stops when there are too many. Each selector requires the first n requirements of
// another selector and the opposite of the next one.
func subtract(who triage.Selector, others []triage.Selector) ([]triage.Selector, error) {
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
		if pieces = left; len(pieces) > maxPieces {
			break
		}
	}
	return pieces, nil
}

// opposite returns the requirement that exactly the nodes meet that do not meet r.
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
