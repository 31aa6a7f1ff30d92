package report

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
)

// An apply removes a condition that it no longer contains, unless another manager owns the
// list entry. A manager that only updated fields does not own the entry. So the agent reads
// the Node before it leaves a condition out. It hands fields that another manager still needs
// over to HandManager, and applies only against the version of the Node that it read.

// handover is what HandManager applies, based on one version of the Node.
type handover struct {
	conditions []apiCondition
	version    string
}

// conditionRemoval describes the obsolete conditions in one version of the Node: for each the
// fields that no other manager owns.
type conditionRemoval struct {
	version  string
	unshared map[string]apiCondition
	safe     bool // the fields that other managers need are handed over
}

// unremovableConditions are obsolete conditions that the API server did not let the agent
// remove. The agent keeps applying them unchanged, so that it can write the other conditions.
type unremovableConditions struct {
	conditions map[string]apiCondition
	until      time.Time
	times      int  // how often in a row only these conditions were refused
	tried      bool // no apply has succeeded with them yet
}

// removal is how the obsolete conditions of the agent leave the Node.
type removal struct {
	plan          *conditionRemoval // what happens to obsolete conditions; nil while unknown
	unremovable   unremovableConditions
	needsHandover bool      // the fields that are handed over must change
	handover      *handover // what to hand over; nil while unknown
	readForbidden bool      // the agent may not read the Node
}

// obsolete returns the conditions that the agent no longer writes and that the API server may
// still have from it.
func (r *conditions) obsolete() []string {
	toApply := r.toApply()
	var found []string
	for kind := range r.owned {
		_, ours := toApply[kind]
		if !ours && !r.isPreserved(kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// mayRemove reports whether all obsolete conditions may be removed, as far as the agent can
// know.
func (r *conditions) mayRemove() bool {
	switch leaving := r.obsolete(); {
	case r.removal.readForbidden && len(r.toApply()) > 0:
		return true
	case r.owned == nil:
		return false
	case len(leaving) == 0:
		return true
	default:
		plan := r.removal.plan
		return plan != nil && plan.safe && !slices.ContainsFunc(leaving, func(kind string) bool { return plan.unshared[kind] == nil })
	}
}

// planRemoval records what remains of each obsolete condition.
func (r *conditions) planRemoval(v *nodeView) {
	r.removal.plan = &conditionRemoval{version: v.version, unshared: map[string]apiCondition{}}
	for _, kind := range r.obsolete() {
		r.removal.plan.unshared[kind] = v.unsharedFields(kind)
	}
}

// keepUnremovable stops removing the obsolete conditions for a while, and returns their types.
func (r *conditions) keepUnremovable(now time.Time) []string {
	leaving := r.obsolete()
	plan, before := r.removal.plan, r.removal.unremovable
	if plan == nil || len(leaving) == 0 {
		return nil
	}
	kept := map[string]apiCondition{}
	for _, kind := range leaving {
		if stub := plan.unshared[kind]; stub != nil {
			kept[kind] = stub
		}
	}
	maps.Copy(kept, before.conditions)
	r.removal.unremovable = unremovableConditions{conditions: kept, until: now.Add(forbiddenWait), times: before.times, tried: true}
	r.removal.plan = nil
	return leaving
}

// othersAccepted records that an apply with the unremovable conditions succeeded. So only
// their removal was refused, and the agent retries it less and less often.
func (s *unremovableConditions) othersAccepted(now time.Time) {
	if s.tried {
		s.until, s.tried = now.Add(times.Backoff(s.times+1, forbiddenWait, maxAbandonedAfter)), false
		s.times++
	}
}

// fieldsToHandOver returns what HandManager must apply, and whether that differs from what it
// applies now. It includes the unshared fields of conditions that are yielded, or that are
// obsolete and have another writer: a condition without a status is worse than an outdated
// one. Fields stay handed over until the agent writes the condition again or no other manager
// owns any of it.
func (r *conditions) fieldsToHandOver(v *nodeView) (wanted []apiCondition, differs bool) {
	toApply := r.toApply()
	kinds := map[string]bool{}
	for kind := range r.sharing.state.Yielded {
		kinds[kind] = true
	}
	handed := v.conditionsOwnedBy(HandManager)
	for kind := range handed {
		_, ours := toApply[kind]
		kinds[kind] = ours && !v.owns(FieldManager, kind, entryKey) || !ours && v.hasOtherOwner(kind) || kinds[kind]
	}
	for _, kind := range r.obsolete() {
		if r.sharing.hasOtherWriter(v, kind) && (!v.ownedByOther(kind, entryKey) || !v.ownedByOther(kind, "status")) {
			kinds[kind] = true
		}
	}
	type field struct{ kind, name string }
	current := map[field]bool{}
	for kind := range handed {
		for name := range v.owners[kind] {
			if v.owns(HandManager, kind, name) {
				current[field{kind, name}] = true
			}
		}
	}
	needed := map[field]bool{}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		left := v.unsharedFields(kind)
		if !kinds[kind] || v.conditions[kind] == nil || len(left) == 1 && v.ownedByOther(kind, entryKey) {
			continue
		}
		wanted = append(wanted, left)
		for name := range left {
			needed[field{kind, name}] = true
		}
	}
	return wanted, !maps.Equal(current, needed)
}
