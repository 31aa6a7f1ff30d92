package report

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
)

const (
	// abandonedAfter is the time without a change after which a yielded condition counts as
	// abandoned, the first time. node-problem-detector writes every five minutes.
	abandonedAfter    = 15 * time.Minute
	maxAbandonedAfter = 24 * time.Hour
)

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

// observation is the value of another manager's condition, and since when it has not changed.
type observation struct {
	fields apiCondition
	since  time.Time
}

// sharing decides which conditions the agent leaves to other managers, and which it takes
// over from them.
type sharing struct {
	takeOver     bool // never leave a condition to another manager
	state        State
	stateChanged bool                   // since Reporter last passed the state to Remember
	lastChanges  map[string]observation // of yielded conditions
}

func newSharing(takeOver bool, remembered State) sharing {
	s := sharing{takeOver: takeOver, state: remembered.clone(), lastChanges: map[string]observation{}}
	if takeOver {
		s.stateChanged = len(s.state.Yielded) > 0
		clear(s.state.Yielded)
	}
	return s
}

// isTaken reports whether the agent has taken a condition over from a manager.
func (s *sharing) isTaken(c fieldConflict) bool {
	return slices.Contains(s.state.Taken[c.kind], c.manager)
}

// take records that the agent takes a condition over from a manager.
func (s *sharing) take(c fieldConflict) {
	s.state.Taken[c.kind] = append(s.state.Taken[c.kind], c.manager)
	s.stateChanged = true
}

// yield leaves a condition to a manager.
func (s *sharing) yield(c fieldConflict) {
	if _, already := s.state.Yielded[c.kind]; !already {
		s.state.Yields[c.kind]++
	}
	s.state.Yielded[c.kind] = c.manager
	delete(s.lastChanges, c.kind)
	s.stateChanged = true
}

// reclaim makes a yielded condition the agent's again. It returns the manager that had it.
func (s *sharing) reclaim(kind string) (manager string, yielded bool) {
	manager, yielded = s.state.Yielded[kind]
	if yielded {
		delete(s.state.Yielded, kind)
		delete(s.lastChanges, kind)
		s.stateChanged = true
	}
	return manager, yielded
}

// released returns the yielded conditions that no other manager owns any more.
func (s *sharing) released(v *nodeView) []string {
	var found []string
	for kind := range s.state.Yielded {
		if !v.hasOtherOwner(kind) {
			found = append(found, kind)
		}
	}
	slices.Sort(found)
	return found
}

// abandoned returns the yielded conditions that have not changed for long, so their writer is
// gone. Ownership alone does not show it: a manager that updates owns its fields forever.
func (s *sharing) abandoned(v *nodeView, now time.Time) []string {
	var found []string
	for kind := range s.state.Yielded {
		seen, known := s.lastChanges[kind]
		if !known || !maps.Equal(seen.fields, v.conditions[kind]) {
			s.lastChanges[kind] = observation{fields: v.conditions[kind], since: now}
			continue
		}
		wait := times.Backoff(s.state.Yields[kind], abandonedAfter, maxAbandonedAfter)
		if now.Sub(seen.since) >= wait {
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
func (s *sharing) hasWriter(v *nodeView, kind string) bool {
	_, yielded := s.state.Yielded[kind]
	fields := v.owners[kind]
	return len(fields["status"]) > 0 && (yielded || len(fields[heartbeatTime]) > 0 ||
		slices.ContainsFunc(fields["status"], func(owner string) bool { return !slices.Contains(s.state.Taken[kind], owner) }))
}

// hasOtherWriter reports whether another manager has written a heartbeat or a status of the
// agent's condition after the agent did. If both own a field, the agent wrote last, unless the
// other manager applies. A manager from which the agent took the condition over does not count
// in that case.
func (s *sharing) hasOtherWriter(v *nodeView, kind string) bool {
	if v.ownedByOther(kind, heartbeatTime) && !v.owns(FieldManager, kind, heartbeatTime) {
		return true
	}
	return slices.ContainsFunc(v.owners[kind]["status"], func(owner string) bool {
		return isOther(owner) && (!v.owns(FieldManager, kind, "status") || !slices.Contains(s.state.Taken[kind], owner))
	})
}
