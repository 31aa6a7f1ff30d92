package report

import "slices"

// orphanConditions are conditions without a writer, as read from one version of the Node.
//
// A manager that loses a condition to the agent still owns its type, and its status if both
// wrote the same value. When the agent then stops writing the condition, only these fields
// remain, and they never change. The same happens to a condition that several managers shared
// and all stopped writing. The agent deletes these conditions whoever owned them, because
// after a restart it may not remember.
type orphanConditions struct {
	kinds   []string
	version string
}

// withoutWriter returns the conditions that the agent does not write and that have no other
// writer.
func (r *conditions) withoutWriter(v *nodeView) []string {
	toApply := r.toApply()
	var found []string
	for kind := range v.owners {
		if _, ours := toApply[kind]; !ours && !r.deletedOrphans[kind] && Writable(kind) == nil && !r.hasWriter(v, kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// hasWriter reports whether another manager writes a condition: the status has an owner, and
// the agent did not take the condition over from it. After a take-over, a manager must also
// own the heartbeat, because a live writer sets it with every write. A yielded condition needs
// no heartbeat.
func (r *conditions) hasWriter(v *nodeView, kind string) bool {
	_, yielded := r.state.Yielded[kind]
	fields := v.owners[kind]
	return len(fields["status"]) > 0 && (yielded || len(fields[heartbeatTime]) > 0 ||
		slices.ContainsFunc(fields["status"], func(owner string) bool { return !slices.Contains(r.state.Taken[kind], owner) }))
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
func (r *conditions) markDeleted(l *orphanConditions) {
	for _, kind := range l.kinds {
		r.deletedOrphans[kind] = true
	}
	r.mayHaveOrphans, r.orphans = false, nil
}

// forgetDeleted removes the conditions that have a writer again from the record of deleted
// ones.
func (r *conditions) forgetDeleted(v *nodeView) {
	for kind := range r.deletedOrphans {
		if r.hasWriter(v, kind) {
			delete(r.deletedOrphans, kind)
		}
	}
}

// released returns the yielded conditions that no other manager owns any more.
func (r *conditions) released(v *nodeView) []string {
	var found []string
	for kind := range r.state.Yielded {
		if !v.hasOtherOwner(kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}
