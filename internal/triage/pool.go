package triage

import (
	"slices"
	"time"
)

// Allowance is somebody's word on how many more treatments may be begun: a
// disruption budget, for instance, that is counted elsewhere.
type Allowance struct {
	Places int    // how many more, none if it is not above zero
	Words  string // why no more, for who has to wait
}

// Allow tells how many more treatments a rule may begin until told otherwise; nil
// lets its bounds alone decide. Every treatment that is begun takes one place from
// the allowances of all rules that share the pool, whoever begins it, and nothing
// gives one back but the next word. It may be told before the rule is, outlives
// every change of the rule, and ends with it. Taints do not ask.
func (c *Core) Allow(now time.Time, id RuleID, a *Allowance) {
	c.pass(now)
	r := c.ruleOf(id)
	r.allowance = copied(a)
	c.touch(r)
	c.retire(r)
	c.decide()
}

// pool is the rules that share their caps. What a rule has under way counts for as
// long as it is there, also when the rule is gone.
type pool struct {
	name    string
	members []*rule
}

// poolName names the pool that a rule is in, also when the rule is gone.
func (r *rule) poolName() string {
	if r.pool == nil {
		return ""
	}
	return r.pool.name
}

// join puts a rule into the pool that it names, and takes it out of the one it was
// in. It brings along what it has under way, so that there is less room in the one
// and more in the other.
func (c *Core) join(r *rule, name string) {
	if r.pool != nil && r.pool.name == name {
		return
	}
	c.leavePool(r)
	if name == "" {
		return
	}
	p := c.pools[name]
	if p == nil {
		p = &pool{name: name}
		c.pools[name] = p
	}
	p.members = append(p.members, r)
	r.pool = p
}

func (c *Core) leavePool(r *rule) {
	p := r.pool
	if p == nil {
		return
	}
	c.touchPool(r)
	r.pool = nil
	p.members = slices.DeleteFunc(p.members, func(other *rule) bool { return other == r })
	if len(p.members) == 0 {
		delete(c.pools, p.name)
	}
}

// touchPool notes that a rule has given a place back, which any rule may take that
// shares it.
func (c *Core) touchPool(r *rule) {
	c.touch(r)
	if r.pool == nil {
		return
	}
	for _, other := range r.pool.members {
		c.touch(other)
	}
}

// inTreatment is how many places are taken of those that the rule's cap allows.
func (r *rule) inTreatment() (taken int) {
	if r.pool == nil {
		return r.total.Treated + r.total.Foreign
	}
	for _, member := range r.pool.members {
		taken += member.total.Treated
	}
	return taken
}

// basis is of how many nodes a cap is a share: of those that are selected. While nodes are
// being replaced their replacements are there beside them, and so would let more go, and
// then more: a half would come to be nearly all. So of those that were made since the first
// of them began to go, only those count that replace one that has gone. All of them are
// all, also of those that are gone: nobody who says so wants the second half to wait until
// the first one is replaced.
func (r *rule) basis() int {
	if limit := r.spec.Bound.Cap; limit != nil && limit.isAll() {
		return r.total.Selected + r.departed()
	}
	first := r.firstToGo()
	if r.ages == nil || first == 0 {
		return r.total.Selected
	}
	return r.ages.before(first)
}

// countsAges says whether the cap of a rule is a share of the nodes that are old enough.
func (r *rule) countsAges() bool {
	limit := r.spec.Bound.Cap
	return !r.gone && r.treats() && limit != nil && limit.Percent && !limit.isAll()
}

// age is the time by which a node counts as old enough. A node that stands in for another
// is always old enough.
func (n *node) age() int64 {
	if n.standsIn {
		return 0
	}
	return n.created
}

// firstToGo is when the first was decided of those that are to be replaced and those that
// have gone and are not yet, under all rules of the pool; zero if there are none. Creation
// times are whole seconds, so it is one, too.
func (r *rule) firstToGo() (first int64) {
	members := []*rule{r}
	if r.pool != nil {
		members = r.pool.members
	}
	for _, member := range members {
		if member.departures.len() > 0 {
			if at := member.departures.first().at; first == 0 || at < first {
				first = at
			}
		}
	}
	return wholeSeconds(first)
}

// departed is how many of those are gone and not replaced yet.
func (r *rule) departed() (gone int) {
	if r.pool == nil {
		return r.total.Departed
	}
	for _, member := range r.pool.members {
		gone += member.total.Departed
	}
	return gone
}

// isAllowed says whether somebody's word lets the rule begin another treatment.
func (r *rule) isAllowed() bool { return r.allowance == nil || r.allowance.Places > 0 }

// takeAllowance counts a treatment that the rule begins.
func (r *rule) takeAllowance() {
	if r.pool == nil {
		r.allowance.take()
		return
	}
	for _, member := range r.pool.members {
		if !member.gone {
			member.allowance.take()
		}
	}
}

func (a *Allowance) take() {
	if a != nil && a.Places > 0 {
		a.Places--
	}
}
