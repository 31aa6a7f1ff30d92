package report

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/text"
)

const (
	writeBurst     = 10 // condition writes at once; afterwards one per second
	writeEvery     = time.Second
	coalesce       = 10 * time.Millisecond
	maxStartupWait = 10 * time.Second
)

// agentSilentReason is the reason that the controller sets on the conditions of a silent
// agent.
const agentSilentReason = "AgentSilent"

// heartbeatTime is the field of a condition that changes with every write.
const heartbeatTime = "lastHeartbeatTime"

// condition is a condition as the agent writes it.
type condition struct {
	status          catalog.Status
	reason, message string
	since           int64 // Unix seconds, the resolution of the API server
}

func toCondition(c finding.Condition, now time.Time) condition {
	return condition{
		status: c.Shown(), reason: text.Message(c.Reason, LongestReason), message: text.Message(c.Message, LongestMessage),
		since: validTime(c.Since, now).Unix(),
	}
}

// toAPI returns the condition in the form of the API. It includes empty fields, because an
// apply leaves fields that it does not contain to other managers.
func (r condition) toAPI(kind string, now time.Time) apiCondition {
	return apiCondition{
		"type": kind, "status": string(r.status), "reason": r.reason, "message": r.message,
		"lastTransitionTime": time.Unix(r.since, 0).UTC().Format(time.RFC3339),
		heartbeatTime:        now.UTC().Format(time.RFC3339),
	}
}

// conditions are the agent's conditions of the Node, as they should be and as they are.
type conditions struct {
	wanted  map[string]condition
	awaited awaited
	applied map[string]condition // accepted by the API server; nil while unknown
	owned   map[string]bool      // types that the API server may have from the agent; nil while unknown
	version string               // resourceVersion of the Node after the agent's last write

	needsRewrite    bool            // another manager changed an applied condition, or a write may have failed
	changedByOthers []string        // types of the changed conditions
	force           bool            // the next apply overrides conflicts
	hasPlaceholder  bool            // the Node has the placeholder, which must be deleted
	overLimit       map[string]bool // wanted conditions for which the last apply had no room
	lastApply       time.Time       // when the last apply began
	budget          tokenBucket

	sharing sharing
	removal removal
	orphans orphans
}

// awaited are conditions that a source will report, but has not yet.
type awaited struct {
	kinds  map[string]bool
	values map[string]apiCondition // current values, which the agent applies meanwhile
}

// set replaces the awaited conditions.
func (a *awaited) set(kinds []string) {
	a.kinds = map[string]bool{}
	for _, kind := range kinds {
		a.kinds[kind] = true
	}
	maps.DeleteFunc(a.values, func(kind string, _ apiCondition) bool { return !a.kinds[kind] })
}

func newConditions(takeOver bool, remembered State) conditions {
	return conditions{
		wanted: map[string]condition{}, budget: newTokenBucket(writeBurst, writeEvery),
		sharing: newSharing(takeOver, remembered), orphans: orphans{deleted: map[string]bool{}},
	}
}

// toApply returns the conditions to apply: all wanted conditions that are not yielded, as far as
// there is room besides the preserved ones. The admission policy refuses an apply with too
// many conditions as a whole. New conditions wait first; conditions that the API server
// already has stay.
func (r *conditions) toApply() map[string]condition {
	result := maps.Clone(r.wanted)
	for kind := range r.sharing.state.Yielded {
		delete(result, kind)
	}
	over := len(result) + len(r.preserved(result)) - MostConditions
	if over <= 0 {
		return result
	}
	kinds := slices.SortedFunc(maps.Keys(result), func(a, b string) int {
		switch {
		case r.owned[a] == r.owned[b]:
			return strings.Compare(b, a)
		case r.owned[a]:
			return 1
		}
		return -1
	})
	kinds = slices.DeleteFunc(kinds, r.isPreserved)
	for _, kind := range kinds[:min(over, len(kinds))] {
		delete(result, kind)
	}
	return result
}

// newlyOverLimit returns the wanted conditions for which an apply of the given ones has no
// room, unless the previous apply had no room for them either.
func (r *conditions) newlyOverLimit(applied map[string]condition) (found []string) {
	before := r.overLimit
	r.overLimit = map[string]bool{}
	for kind := range r.wanted {
		_, isApplied := applied[kind]
		if _, yielded := r.sharing.state.Yielded[kind]; isApplied || yielded || r.isPreserved(kind) {
			continue
		}
		r.overLimit[kind] = true
		if !before[kind] {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// saveAwaited records the current values of awaited conditions. It skips a condition whose
// status another manager owns.
func (r *conditions) saveAwaited(v *nodeView) {
	r.awaited.values = map[string]apiCondition{}
	toApply := r.toApply()
	for _, kind := range slices.Sorted(maps.Keys(r.owned)) {
		_, isApplied := toApply[kind]
		if fields := v.unsharedFields(kind); r.awaited.kinds[kind] && !isApplied && fields["status"] != "" && len(r.awaited.values) < MostConditions {
			r.awaited.values[kind] = fields
		}
	}
}

// preserved returns the conditions that the agent applies with their current values, because
// no source reports them.
func (r *conditions) preserved(applied map[string]condition) []apiCondition {
	if len(r.awaited.values)+len(r.removal.unremovable.conditions) == 0 {
		return nil
	}
	current := maps.Clone(r.awaited.values)
	if current == nil {
		current = map[string]apiCondition{}
	}
	maps.Copy(current, r.removal.unremovable.conditions)
	var list []apiCondition
	for _, kind := range slices.Sorted(maps.Keys(current)) {
		if _, isApplied := applied[kind]; !isApplied {
			list = append(list, current[kind])
		}
	}
	return list
}

// isPreserved reports whether the agent applies a condition with its current values.
func (r *conditions) isPreserved(kind string) bool {
	return r.removal.unremovable.conditions[kind] != nil || r.awaited.values[kind] != nil
}

// dirty reports whether the conditions must be written.
func (r *conditions) dirty() bool {
	return r.needsRewrite || r.applied == nil || !maps.Equal(r.toApply(), r.applied) || len(r.obsolete()) > 0
}

// resolveConflicts decides on conditions that another manager has written. The agent takes
// each condition over once from each manager, and then yields it, unless takeOver is set. It
// returns the conditions that it takes over, takes over again, and yields.
func (r *conditions) resolveConflicts(conflicts []fieldConflict) (taken, retaken, yielded []fieldConflict) {
	r.removal.plan = nil
	toApply := r.toApply()
	again := map[string]bool{} // conditions written again by a manager they were taken from
	for _, c := range conflicts {
		again[c.kind] = again[c.kind] || r.sharing.isTaken(c)
	}
	for _, c := range conflicts {
		if _, ours := toApply[c.kind]; !ours {
			r.removal.unremovable.conditions = nil // another manager writes a preserved condition: read it again
			delete(r.awaited.values, c.kind)
			continue
		}
		if isOurs(c.manager) { // the agent handed these fields over and now takes them back
			r.force = true
			continue
		}
		if !r.sharing.isTaken(c) {
			if again[c.kind] && !r.sharing.takeOver {
				continue // yield the whole condition
			}
			r.sharing.take(c)
			r.force = true
			taken = append(taken, c)
			continue
		}
		if r.sharing.takeOver {
			r.force = true
			retaken = append(retaken, c)
			continue
		}
		r.sharing.yield(c)
		yielded = append(yielded, c)
	}
	return taken, retaken, yielded
}

// abandoned returns the abandoned conditions that a source reports.
func (r *conditions) abandoned(v *nodeView, now time.Time) []string {
	return slices.DeleteFunc(r.sharing.abandoned(v, now), func(kind string) bool {
		_, reported := r.wanted[kind]
		return !reported
	})
}

// writtenByOtherAgent returns the conditions under the agent's field manager that differ from
// what this agent wrote. It ignores conditions that the controller has marked as silent.
func (r *conditions) writtenByOtherAgent(v *nodeView) []string {
	var found []string
	for kind := range v.conditionsOwnedBy(FieldManager) {
		written, ours := r.applied[kind]
		if r.isPreserved(kind) || v.conditions[kind]["reason"] == agentSilentReason {
			continue
		}
		if !ours {
			found = append(found, kind)
			continue
		}
		for field, value := range written.toAPI(kind, time.Time{}) {
			if field != heartbeatTime && value != v.conditions[kind][field] && v.owns(FieldManager, kind, field) {
				found = append(found, kind)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// changed returns the conditions that differ from what the agent wrote, or in which it no
// longer owns every field. A manager that updates a field takes over its ownership.
func (r *conditions) changed(v *nodeView) []string {
	var found []string
	for kind, written := range r.applied {
		for field, value := range written.toAPI(kind, time.Time{}) {
			if !v.owns(FieldManager, kind, field) || (field != heartbeatTime && value != v.conditions[kind][field]) {
				found = append(found, kind)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}
