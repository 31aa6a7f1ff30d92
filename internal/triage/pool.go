package triage

import (
	"iter"
	"slices"
	"time"
)

// Allowance is a limit from another component, for example a disruption budget, on how many
// more treatments may begin.
type Allowance struct {
	Remaining int    // how many more; zero or less means none
	Reason    string // why no more may begin
}

// Allow sets how many more treatments a rule may begin, until the next call; nil removes the
// limit. Each new treatment takes one from the allowances of all rules in the pool. Only the
// next call gives one back. Allow may be called before the rule is set. The allowance
// survives changes of the rule and ends with it. Taints ignore it.
func (c *Core) Allow(now time.Time, id RuleID, a *Allowance) {
	c.advanceTo(now)
	r := c.ruleOf(id, true)
	r.allowance = copied(a)
	c.markDirty(r)
	c.dropIfUnused(r)
	c.decide()
}

// pool is a group of rules that share their caps. The treatments of a removed rule count
// while they exist.
type pool struct {
	name    string
	members []*rule
}

// poolName returns the pool of a rule, even if the rule is removed.
func (r *rule) poolName() string {
	if r.pool == nil {
		return ""
	}
	return r.pool.name
}

// joinPool moves a rule to a pool, together with its treatments. That changes the free slots
// in both pools.
func (c *Core) joinPool(r *rule, name string) {
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
	c.markPoolDirty(r)
	r.pool = nil
	p.members = slices.DeleteFunc(p.members, func(other *rule) bool { return other == r })
	if len(p.members) == 0 {
		delete(c.pools, p.name)
	}
}

// markPoolDirty records that a slot became free, which any rule of the pool may use.
func (c *Core) markPoolDirty(r *rule) {
	c.markDirty(r)
	if r.pool == nil {
		return
	}
	for _, other := range r.pool.members {
		c.markDirty(other)
	}
}

// inTreatment is the number of occupied slots under the cap of the rule.
func (r *rule) inTreatment() (taken int) {
	if r.pool == nil {
		return r.total.Treated + r.total.Foreign
	}
	for _, member := range r.pool.members {
		taken += member.total.Treated
	}
	return taken
}

// capBase is the number of nodes that the percentage of a cap refers to: the selected nodes.
// While nodes are being replaced, their replacements exist beside them. If they counted, the
// cap would rise, more nodes could go, and 50% would become nearly all. So nodes that were
// created after the first departure count only if they replace a deleted node. A cap of 100%
// also counts the deleted nodes, so that no node has to wait for the replacement of another.
func (r *rule) capBase() int {
	if limit := r.spec.Bound.Cap; limit != nil && limit.isAll() {
		return r.total.Selected + r.departedInPool()
	}
	first := r.firstDeparture()
	if r.creationTimes == nil || first == 0 {
		return r.total.Selected
	}
	return r.creationTimes.before(first)
}

// needsCreationTimes says whether the cap of the rule is a percentage of the nodes that are
// old enough.
func (r *rule) needsCreationTimes() bool {
	limit := r.spec.Bound.Cap
	return !r.gone && r.treats && limit != nil && limit.Percent && !limit.isAll()
}

// countedCreation is the creation time that decides whether a node is old enough. A
// replacement is always old enough.
func (n *node) countedCreation() int64 {
	if n.isReplacement {
		return 0
	}
	return n.created
}

// firstDeparture is when the first current departure in the pool was decided; zero if there
// is none. It is in whole seconds like creation times.
func (r *rule) firstDeparture() (first int64) {
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

// departedInOrder returns the deleted nodes that keep a slot in the pool, in the order of their
// deletion.
func (r *rule) departedInOrder() iter.Seq[*departure] {
	return func(yield func(*departure) bool) {
		rest := [][]*departure{r.departed}
		if r.pool != nil {
			rest = rest[:0]
			for _, member := range r.pool.members {
				rest = append(rest, member.departed)
			}
		}
		for {
			first := -1
			for i, departed := range rest {
				if len(departed) > 0 && (first < 0 || compareDepartures(departed[0], rest[first][0]) < 0) {
					first = i
				}
			}
			if first < 0 || !yield(rest[first][0]) {
				return
			}
			rest[first] = rest[first][1:]
		}
	}
}

// departedInPool is the number of deleted nodes in the pool that are not replaced yet.
func (r *rule) departedInPool() (gone int) {
	if r.pool == nil {
		return r.total.Departed
	}
	for _, member := range r.pool.members {
		gone += member.total.Departed
	}
	return gone
}

// isAllowed says whether the allowance lets the rule begin another treatment.
func (r *rule) isAllowed() bool { return r.allowance == nil || r.allowance.Remaining > 0 }

// takeAllowance counts a new treatment of the rule.
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
	if a != nil && a.Remaining > 0 {
		a.Remaining--
	}
}
