package triage_test

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// clockSources are the ways in which a restarted core must have found a clock.
var clockSources = []string{
	"clocks found by a transition time of the change", "clocks found by a memory before the transition time",
	"clocks found by a memory after the transition time", "clocks found by a memory without a transition time",
}

// transitionSeen is when the core first saw the current transition time of a condition.
type transitionSeen struct {
	transition, at time.Time
	backwards      bool // it is older than the transition time before
}

// checkSuccessors returns a check that a new core, built from the facts and the memories,
// finds the clocks with a duration as they are, except for the delay of a watch.
func (h *history) checkSuccessors(saw map[string]int) func() {
	type key struct{ node, uid, condition string }
	var arrived map[key]transitionSeen
	var core *triage.Core
	return func() {
		if h.core() != core {
			core, arrived = h.core(), map[key]transitionSeen{}
		}
		for name, node := range h.observed {
			for _, condition := range conditionTypes {
				row, _ := rowOf(node, condition) // a missing condition has no transition time
				k := key{name, node.UID, condition}
				old, met := arrived[k]
				if !met || !old.transition.Equal(row.Transition) {
					arrived[k] = transitionSeen{row.Transition, h.lastTime, met && row.Transition.Before(old.transition)}
				}
			}
		}
		successor := h.successor()
		for _, name := range slices.Sorted(maps.Keys(h.observed)) {
			restored, _ := successor.Plan(name)
			for _, reason := range h.plans[name].Findings {
				rule := h.rules[reason.Rule]
				if rule.DryRun || reason.FromCreation || reason.Since.IsZero() || !hasDuration(rule, reason.Condition) {
					continue
				}
				at := slices.IndexFunc(restored.Findings, func(r triage.Reason) bool { return r.Rule == reason.Rule && r.Condition == reason.Condition })
				if at < 0 {
					continue // another condition decides, because only its transition time is known
				}
				h.checkClock(saw, name, reason, restored.Findings[at], arrived[key{name, h.observed[name].UID, reason.Condition}])
			}
		}
	}
}

// successor is a core of a restarted controller that has stored everything.
func (h *history) successor() *triage.Core {
	successor := triage.New()
	for _, id := range h.ids() {
		if err := successor.SetRule(h.lastTime, h.rules[id]); err != nil {
			h.fail(err.Error())
		}
	}
	for name, node := range h.observed {
		node.Memories = h.plans[name].Remember
		successor.Observe(h.lastTime, node)
	}
	return successor
}

// hasDuration says whether a rule has a duration for a condition.
func hasDuration(rule triage.Rule, condition string) bool {
	return slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.Condition == condition && s.For > 0 && s.For < triage.Never })
}

// checkClock compares a clock of the core with the clock of its successor.
func (h *history) checkClock(saw map[string]int, name string, old, restored triage.Reason, arrival transitionSeen) {
	bad := func(what string) {
		h.log("%s: %s; after a restart: %s; stamp %s, heard at %s", name, old, restored, at(arrival.transition), at(arrival.at))
		h.fail(what)
	}
	remembered := slices.ContainsFunc(h.plans[name].Remember, func(m triage.Memory) bool {
		return m.Rule == old.Rule && m.Condition == old.Condition
	})
	there := old.Status != triage.Missing
	cameAlong := !arrival.transition.IsZero() && !arrival.backwards && arrival.at.Equal(old.Since) &&
		old.Since.Sub(arrival.transition).Abs() <= time.Minute // otherwise a clock is wrong
	young := old.Since.Sub(arrival.transition) <= 2*time.Second // transition times have whole seconds
	switch {
	case remembered && !restored.Since.Equal(old.Since):
		bad("a restarted controller ignores a memory")
	case remembered && arrival.transition.IsZero():
		saw[clockSources[3]]++
	case remembered && arrival.transition.Before(old.Since):
		saw[clockSources[2]]++
	case remembered:
		saw[clockSources[1]]++
	case there && cameAlong:
		saw[clockSources[0]]++
	case there && !young && !restored.Since.Equal(old.Since):
		bad("a restarted controller counts from another time, and the plan asked for no memory")
	}
}
