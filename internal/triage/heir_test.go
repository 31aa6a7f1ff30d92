package triage_test

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// inheritances are the ways in which a new core must have come by a clock.
var inheritances = []string{
	"clocks found by a stamp that came with the change", "clocks found by a memory of an earlier start than the stamp's",
	"clocks found by a memory of a later start than the stamp's", "clocks found by a memory where there is no stamp",
}

// arrivalOfStamp is when the core heard of the transition time that a condition
// has now.
type arrivalOfStamp struct {
	stamp, at time.Time
	backwards bool // it is older than the one before
}

// heirs returns a check that another core, built now from the facts and from what
// the plans ask to remember, finds the clocks of the rules that wait where they are,
// but for the time that the news of a change was on its way.
func (h *history) heirs(saw map[string]int) func() {
	type key struct{ node, uid, condition string }
	var arrived map[key]arrivalOfStamp
	var core *triage.Core
	return func() {
		if h.core() != core {
			core, arrived = h.core(), map[key]arrivalOfStamp{}
		}
		for name, node := range h.heard {
			for _, condition := range conditionTypes {
				row, _ := rowOf(node, condition) // one that is not there has no transition time
				k := key{name, node.UID, condition}
				old, met := arrived[k]
				if !met || !old.stamp.Equal(row.Transition) {
					arrived[k] = arrivalOfStamp{row.Transition, h.told, met && row.Transition.Before(old.stamp)}
				}
			}
		}
		heir := h.heir()
		for _, name := range slices.Sorted(maps.Keys(h.heard)) {
			inherited, _ := heir.Plan(name)
			for _, reason := range h.plans[name].Findings {
				rule := h.rules[reason.Rule]
				if rule.DryRun || reason.FromCreation || reason.Since.IsZero() || !wantsTime(rule, reason.Condition) {
					continue
				}
				at := slices.IndexFunc(inherited.Findings, func(r triage.Reason) bool { return r.Rule == reason.Rule && r.Condition == reason.Condition })
				if at < 0 {
					continue // another condition decides, since its stamp is all that is known of it
				}
				h.inherits(saw, name, reason, inherited.Findings[at], arrived[key{name, h.heard[name].UID, reason.Condition}])
			}
		}
	}
}

// heir is a core that knows what a restarted controller would, if everything had
// been written down.
func (h *history) heir() *triage.Core {
	heir := triage.New()
	for _, id := range h.ids() {
		if err := heir.SetRule(h.told, h.rules[id]); err != nil {
			h.fail(err.Error())
		}
	}
	for name, node := range h.heard {
		node.Memories = h.plans[name].Remember
		heir.Observe(h.told, node)
	}
	return heir
}

// wantsTime says whether a rule wants a condition to stand for some time.
func wantsTime(rule triage.Rule, condition string) bool {
	return slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.Condition == condition && s.For > 0 })
}

// inherits judges one clock of the core and of its heir.
func (h *history) inherits(saw map[string]int, name string, old, inherited triage.Reason, arrival arrivalOfStamp) {
	bad := func(what string) {
		h.tell("%s: %s; after a restart: %s; stamp %s, heard at %s", name, old, inherited, at(arrival.stamp), at(arrival.at))
		h.fail(what)
	}
	remembered := slices.ContainsFunc(h.plans[name].Remember, func(m triage.Memory) bool {
		return m.Rule == old.Rule && m.Condition == old.Condition
	})
	there := old.Status != triage.Missing
	cameAlong := !arrival.stamp.IsZero() && !arrival.backwards && arrival.at.Equal(old.Since) &&
		old.Since.Sub(arrival.stamp).Abs() <= time.Minute // else a clock is wrong
	young := old.Since.Sub(arrival.stamp) < 2*time.Second // it is in whole seconds
	switch {
	case remembered && !inherited.Since.Equal(old.Since):
		bad("something was remembered, and the restarted controller does not know it")
	case remembered && arrival.stamp.IsZero():
		saw[inheritances[3]]++
	case remembered && arrival.stamp.Before(old.Since):
		saw[inheritances[2]]++
	case remembered:
		saw[inheritances[1]]++
	case there && cameAlong:
		saw[inheritances[0]]++
	case there && !young && !inherited.Since.Equal(old.Since):
		bad("a restarted controller counts from another time, and nothing was to be remembered")
	}
}
