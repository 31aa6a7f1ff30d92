package report

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
)

const (
	mostWrites  = 10 // of conditions at once; a node that flaps then has one a second
	writeEvery  = time.Second
	coalesce    = 10 * time.Millisecond
	settleAfter = 10 * time.Second
)

// silentReason is what the controller says of the rows of an agent that is silent.
const silentReason = "AgentSilent"

// heartbeatTime is the field of a row that changes with everything that is written of it.
const heartbeatTime = "lastHeartbeatTime"

// row is a condition as it is told.
type row struct {
	status          catalog.Status
	reason, message string
	since           int64 // to the second, as the API server has it
}

func rowFor(c finding.Condition, now time.Time) row {
	return row{
		status: c.Status, reason: cut(c.Reason, LongestReason), message: cut(c.Message, LongestMessage),
		since: stamp(c.Since, now).Unix(),
	}
}

// wire is the row as it is written now. What is empty is said too: what is not said stays
// as others have written it.
func (r row) wire(kind string, now time.Time) wireRow {
	return wireRow{
		"type": kind, "status": string(r.status), "reason": r.reason, "message": r.message,
		"lastTransitionTime": time.Unix(r.since, 0).UTC().Format(time.RFC3339),
		heartbeatTime:        now.UTC().Format(time.RFC3339),
	}
}

// State is what of conditions outlives a restart.
type State struct {
	// Taken are the managers from whom a row was taken over, by the row's type: from none
	// of them is it taken again.
	Taken map[string][]string `json:"taken,omitempty"`
	// Yielded are the rows that are left to another manager, by type.
	Yielded map[string]string `json:"yielded,omitempty"`
	// Yields are how often each was: the more often, the longer its writer may be quiet
	// before it is taken for nobody's.
	Yields map[string]int `json:"yields,omitempty"`
}

func (s State) clone() State {
	taken := make(map[string][]string, len(s.Taken))
	for kind, managers := range s.Taken {
		taken[kind] = slices.Clone(managers)
	}
	copied := State{Taken: taken, Yielded: maps.Clone(s.Yielded), Yields: maps.Clone(s.Yields)}
	if copied.Yielded == nil {
		copied.Yielded = map[string]string{}
	}
	if copied.Yields == nil {
		copied.Yields = map[string]int{}
	}
	return copied
}

// rows are the conditions of the node that are ours, as they shall be and as they are.
type rows struct {
	takeOver bool
	want     map[string]row
	said     map[string]row  // that the API server has taken; nil as long as nothing is known
	held     map[string]bool // rows that the API server may have of us; nil as long as nothing is known
	state    State

	mend    bool     // somebody has changed what was said
	broken  []string // which
	erase   bool     // there is a placeholder
	force   bool     // the next apply takes over what is contested
	handing bool     // something is to be handed over, or no longer
	blind   bool     // the node may not be looked at
	bequest *bequest // what is to be handed over, once that is known
	parting *parting // what becomes of rows that we no longer say, once that is known
	spared  spared
	awaited map[string]bool    // conditions that nobody has told yet, and somebody will
	kept    map[string]wireRow // what stands of them under our name, as it is said meanwhile
	crowded map[string]bool    // wanted, and the last apply had no room for them
	quiet   map[string]sighting
	last    time.Time // when the last apply began
	stray   bool      // there may be rows that nobody keeps
	litter  *litter   // which, once that is known
	swept   map[string]bool
	budget  bucket
	version string // of the Node, after what we wrote last
}

func newRows(takeOver bool, remembered State) rows {
	r := rows{
		takeOver: takeOver, want: map[string]row{}, swept: map[string]bool{}, quiet: map[string]sighting{},
		budget: newBucket(mostWrites, writeEvery), state: remembered.clone(),
	}
	if takeOver {
		clear(r.state.Yielded)
	}
	return r
}

// shall are the rows that we say: all that are wanted and not left to somebody else, as
// far as there is room beside those that are said as they stand. With one row too many the
// guard refuses all. New rows wait first, and what the API server has of us stays.
func (r *rows) shall() map[string]row {
	told := maps.Clone(r.want)
	for kind := range r.state.Yielded {
		delete(told, kind)
	}
	over := len(told) + len(r.asTheyWere(told)) - MostConditions
	if over <= 0 {
		return told
	}
	kinds := slices.SortedFunc(maps.Keys(told), func(a, b string) int {
		switch {
		case r.held[a] == r.held[b]:
			return strings.Compare(b, a)
		case r.held[a]:
			return 1
		}
		return -1
	})
	kinds = slices.DeleteFunc(kinds, r.stays)
	for _, kind := range kinds[:min(over, len(kinds))] {
		delete(told, kind)
	}
	return told
}

// crowdedOut returns the rows for which the apply that says the given ones has no room,
// and the one before it had, or did not know of them.
func (r *rows) crowdedOut(said map[string]row) (news []string) {
	before := r.crowded
	r.crowded = map[string]bool{}
	for kind := range r.want {
		_, told := said[kind]
		if _, yielded := r.state.Yielded[kind]; told || yielded || r.stays(kind) {
			continue
		}
		r.crowded[kind] = true
		if !before[kind] {
			news = append(news, kind)
		}
	}
	slices.Sort(news)
	return news
}

// await notes whose conditions are not known yet.
func (r *rows) await(kinds []string) {
	r.awaited = map[string]bool{}
	for _, kind := range kinds {
		r.awaited[kind] = true
	}
	maps.DeleteFunc(r.kept, func(kind string, _ wireRow) bool { return !r.awaited[kind] })
}

// keep notes what stands of rows that are awaited. One whose status is another's is his.
func (r *rows) keep(v *view) {
	r.kept = map[string]wireRow{}
	shall := r.shall()
	for _, kind := range slices.Sorted(maps.Keys(r.held)) {
		_, told := shall[kind]
		if row := v.alone(kind); r.awaited[kind] && !told && row["status"] != "" && len(r.kept) < MostConditions {
			r.kept[kind] = row
		}
	}
}

// asTheyWere are the rows that are said as they stand, though nobody has told them.
func (r *rows) asTheyWere(said map[string]row) []wireRow {
	if len(r.kept)+len(r.spared.rows) == 0 {
		return nil
	}
	rows := maps.Clone(r.kept)
	if rows == nil {
		rows = map[string]wireRow{}
	}
	maps.Copy(rows, r.spared.rows)
	var wire []wireRow
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		if _, wanted := said[kind]; !wanted {
			wire = append(wire, rows[kind])
		}
	}
	return wire
}

// stays says whether a row is said as it stands.
func (r *rows) stays(kind string) bool { return r.spared.rows[kind] != nil || r.kept[kind] != nil }

// dirty says whether the API server has to be told something.
func (r *rows) dirty() bool {
	return r.mend || r.said == nil || !maps.Equal(r.shall(), r.said) || len(r.leaving()) > 0
}

// settle decides on rows that another manager has written: each is taken over once, and
// from then on it is his, unless all are to be taken each time. It returns those that are
// taken, those of them that are taken again, and those that are yielded.
func (r *rows) settle(contested []contest) (taken, retaken, yielded []contest) {
	r.parting = nil
	shall := r.shall()
	again := map[string]bool{} // rows that somebody has written from whom they were taken
	for _, c := range contested {
		again[c.kind] = again[c.kind] || slices.Contains(r.state.Taken[c.kind], c.manager)
	}
	for _, c := range contested {
		if _, ours := shall[c.kind]; !ours {
			r.spared.rows = nil // somebody writes what stays as it was: look at it again
			delete(r.kept, c.kind)
			continue
		}
		if isOurs(c.manager) { // what we have handed over, and want back
			r.force = true
			continue
		}
		if !slices.Contains(r.state.Taken[c.kind], c.manager) {
			if again[c.kind] && !r.takeOver {
				continue // the row is yielded, and nothing of it taken
			}
			r.state.Taken[c.kind] = append(r.state.Taken[c.kind], c.manager)
			r.force = true
			taken = append(taken, c)
			continue
		}
		if r.takeOver {
			r.force = true
			retaken = append(retaken, c)
			continue
		}
		if _, already := r.state.Yielded[c.kind]; !already {
			r.state.Yields[c.kind]++
		}
		r.state.Yielded[c.kind] = c.manager
		delete(r.quiet, c.kind)
		yielded = append(yielded, c)
	}
	return taken, retaken, yielded
}

// forged returns the rows that are under our name and not as we have said, and not said of
// us as of one who is silent.
func (r *rows) forged(v *view) []string {
	var found []string
	for kind := range v.rowsOf(FieldManager) {
		said, ours := r.said[kind]
		if r.stays(kind) || v.rows[kind]["reason"] == silentReason {
			continue
		}
		if !ours {
			found = append(found, kind)
			continue
		}
		for field, value := range said.wire(kind, time.Time{}) {
			if field != heartbeatTime && value != v.rows[kind][field] && v.owns(FieldManager, kind, field) {
				found = append(found, kind)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// changed returns the rows that are not as we have said, or not ours in full any more. A
// row that was written by another is no longer ours in what he has changed.
func (r *rows) changed(v *view) []string {
	var found []string
	for kind, said := range r.said {
		for field, value := range said.wire(kind, time.Time{}) {
			if !v.owns(FieldManager, kind, field) || (field != heartbeatTime && value != v.rows[kind][field]) {
				found = append(found, kind)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}
