package dialect

import (
	"maps"
	"slices"
)

// Statements are what the providers of a cluster state.
type Statements struct {
	// Static is for nodes without a NodePool.
	Static []RepairStatement
	// Pools is for nodes of NodePools that ByNodeClass does not have.
	Pools []RepairStatement
	// ByNodeClass is for nodes of NodePools, by the API group of their node class.
	ByNodeClass map[string][]RepairStatement
}

// OfPool returns the statements for a NodePool whose node class has this API group.
func (s Statements) OfPool(nodeClass string) []RepairStatement {
	if own, ok := s.ByNodeClass[nodeClass]; ok {
		return own
	}
	return s.Pools
}

// All returns every statement once, with its longest toleration.
func (s Statements) All() []RepairStatement {
	stated := slices.Concat(s.Static, s.Pools)
	for _, nodeClass := range slices.Sorted(maps.Keys(s.ByNodeClass)) {
		stated = append(stated, s.ByNodeClass[nodeClass]...)
	}
	var all []RepairStatement
	for _, one := range stated {
		at := slices.IndexFunc(all, func(other RepairStatement) bool { return other.Type == one.Type && other.Status == one.Status })
		switch {
		case at < 0:
			all = append(all, one)
		case isLonger(one.Toleration, all[at].Toleration):
			all[at].Toleration = one.Toleration
		}
	}
	return all
}

// isLonger compares two tolerations. An invalid one counts as zero.
func isLonger(a, b string) bool {
	var f fields
	return f.toleration("", a) > f.toleration("", b)
}
