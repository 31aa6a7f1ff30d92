package report

import (
	"maps"
	"slices"
	"time"
)

// A row that is no longer said goes, unless another owns it as a whole; and one who has
// only written in it does not. So nothing is left out of an apply before a look at the
// node: what is another's now, or would be without a status, is handed over to a second
// manager of ours, and the apply counts only in the version of the node that was looked at.

const (
	// unkept is after how long without a change a row that was left to another is taken for
	// nobody's, the first time. node-problem-detector writes every five minutes.
	unkept        = 15 * time.Minute
	longestUnkept = 24 * time.Hour
)

// bequest is what is handed over, as it was in a version of the Node.
type bequest struct {
	rows    []wireRow
	version string
}

// parting are the rows that we leave, as they were in a version of the Node: what of them
// nobody else owns.
type parting struct {
	version string
	stubs   map[string]wireRow
	safe    bool // what others keep of them is handed over
}

// spared are rows that could not be left: they are said as they were, so that the others
// can be told.
type spared struct {
	rows  map[string]wireRow
	until time.Time
	times int  // in a row that the others could be told, and only then
	tried bool // whether they can is not known yet
}

// sighting is since when a row of another has been as it is.
type sighting struct {
	row   wireRow
	since time.Time
}

// leaving are the rows that we no longer say, and that the API server may have of us.
func (r *rows) leaving() []string {
	shall := r.shall()
	var found []string
	for kind := range r.held {
		_, ours := shall[kind]
		if !ours && !r.stays(kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// mayPart says whether all that leaves may, as far as anybody can know.
func (r *rows) mayPart() bool {
	switch leaving := r.leaving(); {
	case r.blind && len(r.shall()) > 0:
		return true
	case r.held == nil:
		return false
	case len(leaving) == 0:
		return true
	default:
		return r.parting != nil && r.parting.safe && !slices.ContainsFunc(leaving, func(kind string) bool { return r.parting.stubs[kind] == nil })
	}
}

// part notes what would become of the rows that we leave.
func (r *rows) part(v *view) {
	r.parting = &parting{version: v.version, stubs: map[string]wireRow{}}
	for _, kind := range r.leaving() {
		r.parting.stubs[kind] = v.alone(kind)
	}
}

// spare gives up leaving rows for a while, and returns which.
func (r *rows) spare(now time.Time) []string {
	leaving := r.leaving()
	if r.parting == nil || len(leaving) == 0 {
		return nil
	}
	kept := map[string]wireRow{}
	for _, kind := range leaving {
		if stub := r.parting.stubs[kind]; stub != nil {
			kept[kind] = stub
		}
	}
	maps.Copy(kept, r.spared.rows)
	r.spared = spared{rows: kept, until: now.Add(forbiddenWait), times: r.spared.times, tried: true}
	r.parting = nil
	return leaving
}

// proved notes that the others could be told: it was the spared ones that were refused,
// and not all, and so they are tried again ever more seldom.
func (s *spared) proved(now time.Time) {
	if s.tried {
		s.until, s.tried = now.Add(min(forbiddenWait<<min(s.times, 16), longestUnkept)), false
		s.times++
	}
}

// hasWriter says whether another has written a row of ours since we did: a heartbeat, or a
// status. What is ours too we said after him, unless he applies; and from one from whom
// the row was taken that would be no news.
func (r *rows) hasWriter(v *view, kind string) bool {
	if v.isForeign(kind, heartbeatTime) && !v.owns(FieldManager, kind, heartbeatTime) {
		return true
	}
	return slices.ContainsFunc(v.owners[kind]["status"], func(owner string) bool {
		return isForeign(owner) && (!v.owns(FieldManager, kind, "status") || !slices.Contains(r.state.Taken[kind], owner))
	})
}

// inherit works out what must be handed over, and whether that is not so yet: of the rows
// that are yielded, or that we leave and another writes, what nobody else owns; for a
// condition without a status is worse than an old one. What was handed over before goes
// on, until the row is said by us again or is nobody's but ours.
func (r *rows) inherit(v *view) (wanted []wireRow, differs bool) {
	shall := r.shall()
	kinds := map[string]bool{}
	for kind := range r.state.Yielded {
		kinds[kind] = true
	}
	handed := v.rowsOf(HandManager)
	for kind := range handed {
		_, ours := shall[kind]
		kinds[kind] = ours && !v.owns(FieldManager, kind, itself) || !ours && v.isKept(kind) || kinds[kind]
	}
	for _, kind := range r.leaving() {
		if r.hasWriter(v, kind) && (!v.isForeign(kind, itself) || !v.isForeign(kind, "status")) {
			kinds[kind] = true
		}
	}
	field := func(kind, name string) contest { return contest{kind, name} }
	hand := map[contest]bool{} // what is handed over now
	for kind := range handed {
		for name := range v.owners[kind] {
			if v.owns(HandManager, kind, name) {
				hand[field(kind, name)] = true
			}
		}
	}
	shallBe := map[contest]bool{}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		left := v.alone(kind)
		if !kinds[kind] || v.rows[kind] == nil || len(left) == 1 && v.isForeign(kind, itself) {
			continue
		}
		wanted = append(wanted, left)
		for name := range left {
			shallBe[field(kind, name)] = true
		}
	}
	return wanted, !maps.Equal(hand, shallBe)
}

// abandoned returns the yielded rows that nothing has moved in for long, and that we would
// say: whoever wrote them is gone. An owner who does not apply stays one for ever.
func (r *rows) abandoned(v *view, now time.Time) []string {
	var found []string
	for kind := range r.state.Yielded {
		seen, known := r.quiet[kind]
		if !known || !maps.Equal(seen.row, v.rows[kind]) {
			r.quiet[kind] = sighting{row: v.rows[kind], since: now}
			continue
		}
		wait := min(unkept<<min(max(r.state.Yields[kind]-1, 0), 16), longestUnkept)
		if _, wanted := r.want[kind]; wanted && now.Sub(seen.since) >= wait {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// reclaim has a row that was yielded be ours again.
func (r *rows) reclaim(kind string) {
	delete(r.state.Yielded, kind)
	delete(r.quiet, kind)
}
