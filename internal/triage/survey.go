package triage

import (
	"cmp"
	"slices"
)

// mostSurveyed is how many of the matching nodes a survey names.
const mostSurveyed = 5

// Survey is what a rule would find among the nodes that the core knows, were it
// followed now, and with whom it would share them.
type Survey struct {
	Selected     int      // nodes that it selects
	ControlPlane int      // those of them that are of the control plane
	Matching     int      // those of them for which it holds now, however long
	First        []string // the first of the matching nodes by name, at most five
	Shared       []Shared // what each of the other selectors has in common with it
}

// Shared are the nodes that a rule and another selector both choose.
type Shared struct {
	Nodes int
	First string // the first of them by name
}

// Survey holds a rule against every node, as if it were new, in one walk. Like
// [Core.Impact] it changes nothing, and the rule need not be one that is followed.
// The error is that of [Rule.Validate].
func (c *Core) Survey(spec Rule, others ...Selector) (Survey, error) {
	if err := spec.Validate(); err != nil {
		return Survey{}, err
	}
	asked := &rule{spec: spec, definition: define(spec, c.symbols.find)}
	beside := make([]*rule, len(others))
	for i, who := range others {
		beside[i] = &rule{definition: define(Rule{Who: who}, c.symbols.find)}
	}
	found := Survey{Shared: make([]Shared, len(others))}
	for _, n := range c.nodes {
		if !asked.selects(n) {
			continue
		}
		found.Selected++
		if n.controlPlane {
			found.ControlPlane++
		}
		if c.matches(asked, n) {
			found.add(n.name)
		}
		for i, other := range beside {
			if other.selects(n) {
				found.Shared[i].add(n.name)
			}
		}
	}
	return found, nil
}

// add counts a matching node. To name the first few costs less than to sort all.
func (s *Survey) add(name string) {
	s.Matching++
	if len(s.First) == mostSurveyed {
		if name > s.First[mostSurveyed-1] {
			return
		}
		s.First = s.First[:mostSurveyed-1]
	}
	at, _ := slices.BinarySearch(s.First, name)
	s.First = slices.Insert(s.First, at, name)
}

func (s *Shared) add(name string) {
	s.Nodes++
	s.First = min(cmp.Or(s.First, name), name)
}
