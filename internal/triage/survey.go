package triage

import "cmp"

// Survey is what a rule would find among the known nodes if it were set now, and its overlap
// with other selectors.
type Survey struct {
	Selected     int      // nodes that the rule selects
	ControlPlane int      // selected control-plane nodes
	Matching     int      // selected nodes that match now, whatever the durations
	First        []string // the first matching nodes by name, at most [MostNamed]
	Shared       []Shared // overlap with each of the other selectors
}

// Shared are the nodes that both a rule and another selector select.
type Shared struct {
	Nodes int
	First string // the first of them by name
}

// Survey evaluates a rule against every node as if the rule were new, in one loop. Like
// [Core.Impact] it changes nothing, and the rule does not need to be set. The error is that
// of [Rule.Validate].
func (c *Core) Survey(spec Rule, others ...Selector) (Survey, error) {
	asked, err := c.compile(spec)
	if err != nil {
		return Survey{}, err
	}
	compiledOthers := make([]*rule, len(others))
	for i, who := range others {
		compiledOthers[i] = &rule{definition: define(Rule{Selector: who}, c.symbols.find)}
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
		for i, other := range compiledOthers {
			if other.selects(n) {
				found.Shared[i].add(n.name)
			}
		}
	}
	return found, nil
}

// add counts a matching node.
func (s *Survey) add(name string) {
	s.Matching++
	s.First = insertFirst(s.First, name)
}

func (s *Shared) add(name string) {
	s.Nodes++
	s.First = min(cmp.Or(s.First, name), name)
}
