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
		status: c.Status, reason: cut(c.Reason, LongestReason), message: cut(c.Message, LongestMessage),
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

// State is the part of the conditions' state that must survive a restart.
type State struct {
	// Taken maps the type of a condition to the managers that the agent took it over from. The
	// agent does not take it over from them a second time.
	Taken map[string][]string `json:"taken,omitempty"`
	// Yielded maps the type of a yielded condition to the manager that writes it.
	Yielded map[string]string `json:"yielded,omitempty"`
	// Yields counts how often each condition was yielded. The higher the count, the longer its
	// writer may pause before the condition counts as abandoned.
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

// conditions are the agent's conditions of the Node, as they should be and as they are.
type conditions struct {
	takeOver bool
	wanted   map[string]condition
	applied  map[string]condition // accepted by the API server; nil while unknown
	owned    map[string]bool      // types that the API server may have from the agent; nil while unknown
	state    State

	needsRewrite    bool              // another manager changed an applied condition, or a write may have failed
	changedByOthers []string          // types of the changed conditions
	hasPlaceholder  bool              // the Node has the placeholder, which must be deleted
	force           bool              // the next apply overrides conflicts
	needsHandover   bool              // the fields that are handed over must change
	readForbidden   bool              // the agent may not read the Node
	handover        *handover         // what to hand over; nil while unknown
	removal         *conditionRemoval // what happens to obsolete conditions; nil while unknown
	unremovable     unremovableConditions
	awaited         map[string]bool         // conditions that a source will report, but has not yet
	awaitedValues   map[string]apiCondition // current values of awaited conditions, which the agent applies meanwhile
	overLimit       map[string]bool         // wanted conditions for which the last apply had no room
	lastChanges     map[string]observation
	lastApply       time.Time         // when the last apply began
	mayHaveOrphans  bool              // the Node may have orphaned conditions
	orphans         *orphanConditions // the orphaned conditions; nil while unknown
	deletedOrphans  map[string]bool
	budget          tokenBucket
	version         string // resourceVersion of the Node after the agent's last write
}

func newConditions(takeOver bool, remembered State) conditions {
	r := conditions{
		takeOver: takeOver, wanted: map[string]condition{}, deletedOrphans: map[string]bool{}, lastChanges: map[string]observation{},
		budget: newTokenBucket(writeBurst, writeEvery), state: remembered.clone(),
	}
	if takeOver {
		clear(r.state.Yielded)
	}
	return r
}

// toApply returns the conditions to apply: all wanted ones that are not yielded, as far as
// there is room besides the preserved ones. The admission policy refuses an apply with too
// many conditions as a whole. New conditions wait first; conditions that the API server
// already has stay.
func (r *conditions) toApply() map[string]condition {
	result := maps.Clone(r.wanted)
	for kind := range r.state.Yielded {
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
		if _, yielded := r.state.Yielded[kind]; isApplied || yielded || r.isPreserved(kind) {
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

// await sets which conditions have not been reported yet.
func (r *conditions) await(kinds []string) {
	r.awaited = map[string]bool{}
	for _, kind := range kinds {
		r.awaited[kind] = true
	}
	maps.DeleteFunc(r.awaitedValues, func(kind string, _ apiCondition) bool { return !r.awaited[kind] })
}

// saveAwaited records the current values of awaited conditions. It skips a condition whose
// status another manager owns.
func (r *conditions) saveAwaited(v *nodeView) {
	r.awaitedValues = map[string]apiCondition{}
	toApply := r.toApply()
	for _, kind := range slices.Sorted(maps.Keys(r.owned)) {
		_, isApplied := toApply[kind]
		if fields := v.unsharedFields(kind); r.awaited[kind] && !isApplied && fields["status"] != "" && len(r.awaitedValues) < MostConditions {
			r.awaitedValues[kind] = fields
		}
	}
}

// preserved returns the conditions that the agent applies with their current values, because
// no source reports them.
func (r *conditions) preserved(applied map[string]condition) []apiCondition {
	if len(r.awaitedValues)+len(r.unremovable.conditions) == 0 {
		return nil
	}
	current := maps.Clone(r.awaitedValues)
	if current == nil {
		current = map[string]apiCondition{}
	}
	maps.Copy(current, r.unremovable.conditions)
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
	return r.unremovable.conditions[kind] != nil || r.awaitedValues[kind] != nil
}

// dirty reports whether the conditions must be written.
func (r *conditions) dirty() bool {
	return r.needsRewrite || r.applied == nil || !maps.Equal(r.toApply(), r.applied) || len(r.obsolete()) > 0
}

// resolveConflicts decides on conditions that another manager has written. The agent takes
// each condition over once from each manager, and then yields it, unless takeOver is set. It
// returns the conditions that it takes over, takes over again, and yields.
func (r *conditions) resolveConflicts(conflicts []fieldConflict) (taken, retaken, yielded []fieldConflict) {
	r.removal = nil
	toApply := r.toApply()
	again := map[string]bool{} // conditions written again by a manager they were taken from
	for _, c := range conflicts {
		again[c.kind] = again[c.kind] || slices.Contains(r.state.Taken[c.kind], c.manager)
	}
	for _, c := range conflicts {
		if _, ours := toApply[c.kind]; !ours {
			r.unremovable.conditions = nil // another manager writes a preserved condition: read it again
			delete(r.awaitedValues, c.kind)
			continue
		}
		if isOurs(c.manager) { // the agent handed these fields over and now takes them back
			r.force = true
			continue
		}
		if !slices.Contains(r.state.Taken[c.kind], c.manager) {
			if again[c.kind] && !r.takeOver {
				continue // yield the whole condition
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
		delete(r.lastChanges, c.kind)
		yielded = append(yielded, c)
	}
	return taken, retaken, yielded
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
