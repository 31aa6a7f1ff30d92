package report

import "slices"

// orphanConditions are conditions without a writer, as read from one version of the Node.
//
// A manager that loses a condition to the agent still owns its type, and its status if both
// wrote the same value. When the agent then stops writing the condition, only these fields
// remain, and they never change. The same happens to a condition that several managers shared
// and all stopped writing. The agent deletes these conditions regardless of their owner,
// because after a restart it may not know the owner.
type orphanConditions struct {
	kinds   []string
	version string
}

// orphans is the search for orphaned conditions.
type orphans struct {
	possible bool              // the Node may have orphaned conditions
	found    *orphanConditions // the conditions to delete; nil while unknown
	deleted  map[string]bool
}

// withoutWriter returns the conditions that the agent does not write and that have no other
// writer.
func (r *conditions) withoutWriter(v *nodeView) []string {
	toApply := r.toApply()
	var found []string
	for kind := range v.owners {
		if _, ours := toApply[kind]; !ours && !r.orphans.deleted[kind] && Writable(kind) == nil && !r.sharing.hasWriter(v, kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// orphaned returns the conditions without a writer that are safe to delete: either a manager
// owns the status and there is no heartbeat, or there is no status at all.
func (r *conditions) orphaned(v *nodeView) []string {
	return slices.DeleteFunc(r.withoutWriter(v), func(kind string) bool {
		fields, exists := v.conditions[kind]
		hasOwner := len(v.owners[kind]["status"]) > 0
		return !exists || hasOwner && fields[heartbeatTime] != "" || !hasOwner && fields["status"] != ""
	})
}

// markDeleted records that orphaned conditions were deleted. If a manager writes them in the
// same form again, the agent leaves them alone.
func (o *orphans) markDeleted(l *orphanConditions) {
	for _, kind := range l.kinds {
		o.deleted[kind] = true
	}
	o.possible, o.found = false, nil
}

// forgetDeleted removes the conditions that have a writer again from the record of deleted
// ones.
func (r *conditions) forgetDeleted(v *nodeView) {
	for kind := range r.orphans.deleted {
		if r.sharing.hasWriter(v, kind) {
			delete(r.orphans.deleted, kind)
		}
	}
}
