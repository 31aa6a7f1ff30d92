package report

import "slices"

// litter are rows that nobody keeps, as they were in a version of the Node.
//
// One from whom a row was taken keeps its type, and its status if we say the same. When
// we no longer say the row, that is all there is of it: a condition that never changes
// and never goes. The same becomes of a row that is said no longer by those who had
// shared it. Such rows are deleted, whoever they were of: after a restart nobody may
// remember.
type litter struct {
	kinds   []string
	version string
}

// keeperless returns the rows, none of which we say, that nobody keeps.
func (r *rows) keeperless(v *view) []string {
	shall := r.shall()
	var found []string
	for kind := range v.owners {
		if _, ours := shall[kind]; !ours && !r.swept[kind] && Writable(kind) == nil && !r.hasKeeper(v, kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// hasKeeper says whether somebody keeps a row: he owns its status, and it was not taken
// from him, or he has given it a heartbeat since. Who is alive does so with all he writes.
func (r *rows) hasKeeper(v *view, kind string) bool {
	_, yielded := r.state.Yielded[kind]
	fields := v.owners[kind]
	return len(fields["status"]) > 0 && (yielded || len(fields[heartbeatTime]) > 0 ||
		slices.ContainsFunc(fields["status"], func(owner string) bool { return !slices.Contains(r.state.Taken[kind], owner) }))
}

// strays returns those of them that have no heartbeat, nor a status that is nobody's.
func (r *rows) strays(v *view) []string {
	return slices.DeleteFunc(r.keeperless(v), func(kind string) bool {
		row, there := v.rows[kind]
		isAnyones := len(v.owners[kind]["status"]) > 0
		return !there || isAnyones && row[heartbeatTime] != "" || !isAnyones && row["status"] != ""
	})
}

// isSwept notes that rows are deleted. Who writes them like that again means it so, and is
// not fought.
func (r *rows) isSwept(l *litter) {
	for _, kind := range l.kinds {
		r.swept[kind] = true
	}
	r.stray, r.litter = false, nil
}

// forgive forgets of rows that somebody keeps again that they were deleted.
func (r *rows) forgive(v *view) {
	for kind := range r.swept {
		if r.hasKeeper(v, kind) {
			delete(r.swept, kind)
		}
	}
}

// released returns the yielded rows that nobody else keeps any more.
func (r *rows) released(v *view) []string {
	var found []string
	for kind := range r.state.Yielded {
		if !v.isKept(kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}
