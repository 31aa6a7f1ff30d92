package report

import "slices"

// litter are rows without a status, as they were in a version of the Node.
//
// One from whom a row was taken keeps its type. When we no longer say the row, that is all
// there is of it: a condition without a status, which says nothing and never goes. The
// same becomes of a row that is said no longer by those who had shared it. Nobody's word
// is lost with such rows, and so they are deleted, whoever they were of: after a restart
// nobody may remember.
type litter struct {
	kinds   []string
	version string
}

// ownerless returns the rows, none of which we say, of whose status nobody is the owner.
func (r *rows) ownerless(v *view) []string {
	shall := r.shall()
	var found []string
	for kind, fields := range v.owners {
		if _, ours := shall[kind]; ours || len(fields["status"]) > 0 || r.swept[kind] || Writable(kind) != nil {
			continue
		}
		found = append(found, kind)
	}
	slices.Sort(found)
	return found
}

// strays returns those of them that have no status.
func (r *rows) strays(v *view) []string {
	return slices.DeleteFunc(r.ownerless(v), func(kind string) bool {
		row, there := v.rows[kind]
		return !there || row["status"] != ""
	})
}

// isSwept notes that rows are deleted. Who writes them without a status again means it so,
// and is not fought.
func (r *rows) isSwept(l *litter) {
	for _, kind := range l.kinds {
		r.swept[kind] = true
	}
	r.stray, r.litter = false, nil
}

// forgive forgets of rows that have a status again that they were deleted.
func (r *rows) forgive(v *view) {
	for kind := range r.swept {
		if len(v.owners[kind]["status"]) > 0 {
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
