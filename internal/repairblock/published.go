package repairblock

import "maps"

// published is the state that callers see, and what has changed in it since they took it.
type published struct {
	known, isThere bool // see Listed
	inForce        map[string]*Pool
	changed        map[string]bool
	all            bool
}

// set replaces the state. It reports whether callers have changes to take.
func (p *published) set(isThere bool, inForce map[string]*Pool) (isNews bool) {
	isNews = !p.known || p.isThere != isThere
	p.all = p.all || isNews
	for name := range p.inForce {
		if inForce[name] == nil {
			p.changed[name] = true
		}
	}
	for name, is := range inForce {
		if before := p.inForce[name]; isNews || before == nil || !before.isEqualTo(is) {
			p.changed[name] = true
		}
	}
	p.known, p.isThere, p.inForce = true, isThere, inForce
	return isNews || len(p.changed) > 0
}

// take returns the changes since the last call, as Store.Take does.
func (p *published) take() (changed map[string]*Pool, all bool) {
	changed, all = make(map[string]*Pool, len(p.changed)), p.all
	for name := range p.changed {
		if is := p.inForce[name]; is != nil || !all {
			changed[name] = is
		}
	}
	p.changed, p.all = map[string]bool{}, false
	return changed, all
}

// isEqualTo reports whether another Pool has no relevant change. A new resourceVersion alone is
// not relevant, because Karpenter counts nodes in the status.
func (p *Pool) isEqualTo(other *Pool) bool {
	return p.UID == other.UID && p.Problem == other.Problem && p.Lost == other.Lost && sameBlock(p.Block, other.Block) &&
		p.Generation == other.Generation && p.DeletionTimestamp.Equal(other.DeletionTimestamp) &&
		maps.Equal(p.Labels, other.Labels) && maps.Equal(p.Annotations, other.Annotations) && sameBlock(p.Spec.Repair, other.Spec.Repair)
}
