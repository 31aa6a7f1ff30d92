package triage_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// turns is a window that is closed at first, and opens and closes at these times in turn.
type turns []time.Time

func (w turns) Open(at time.Time) (open bool, until time.Time) {
	passed := 0
	for passed < len(w) && !w[passed].After(at) {
		passed++
	}
	if passed < len(w) {
		until = w[passed]
	}
	return passed%2 == 1, until
}

func (w turns) String() string {
	var times []string
	for _, t := range w {
		times = append(times, at(t))
	}
	return "[" + strings.Join(times, " ") + "]"
}

// ---- the naive core

// outsideWindow says whether a step has to wait for the window of its rule.
func (t *naiveCore) outsideWindow(p *nodeState, rule triage.Rule, step int) (triage.Reason, bool) {
	if rule.Window == nil || step < len(rule.Response.Ladder) && rule.Response.Ladder[step].Urgent {
		return triage.Reason{}, false
	}
	open, until := rule.Window.Open(t.now)
	for _, condition := range groups(rule) {
		due, isUrgent := t.urgentAt(p, rule, condition)
		switch {
		case !isUrgent:
		case !due.After(t.now):
			open = true
		case until.IsZero() || due.Before(until):
			until = due
		}
	}
	return triage.Reason{Code: triage.OutsideWindow, Other: rule.Window.String(), Until: until}, !open
}

// urgentAt is when an urgent condition has matched long enough.
func (t *naiveCore) urgentAt(p *nodeState, rule triage.Rule, condition string) (at time.Time, isUrgent bool) {
	v, wait := t.group(p, rule, condition)
	if v != holds {
		return at, false
	}
	row, _ := rowOf(p.facts, condition)
	var matching []triage.Signal
	for _, s := range signalsOf(rule, condition) {
		silent := row.Status == triage.Unknown && row.Reason == triage.AgentSilent
		if s.Status == row.Status && (s.Reason == "" || s.Reason == row.Reason) && (!silent || s.EvenSilent) {
			matching = append(matching, s)
		}
	}
	isNamed := slices.ContainsFunc(matching, func(s triage.Signal) bool { return s.Reason != "" })
	decides := slices.IndexFunc(matching, func(s triage.Signal) bool { return s.For == wait && (s.Reason != "") == isNamed })
	return p.ruleState(rule.ID).clocks[condition].at.Add(wait), matching[decides].Urgent
}

// ---- histories

// windowEvents must have happened in random histories.
var windowEvents = []string{
	"windows opened", "windows closed", "first steps called off: OutsideWindow", "later steps called off: outside the window",
	"NoExecute called off: outside the window", "next steps that wait for the window", "fallbacks outside the window",
	"begun outside the window by an urgent step", "begun outside the window by an urgent condition",
}

// drawWindow draws a window with changes about now, mostly none.
func (h *history) drawWindow() triage.Window {
	if !rare(h.t, 4) {
		return nil
	}
	var w turns
	at := h.now.Add(pick(h.t, []time.Duration{-time.Minute, 0, 10 * time.Second}))
	for range pick(h.t, []int{0, 1, 2, 3, 4, 8}) {
		w = append(w, at)
		at = at.Add(pick(h.t, timeSteps))
	}
	return w
}

// turnWindow closes the window of a rule for a while, or opens it for a while.
func (h *history) turnWindow(rule triage.Rule) {
	soon := h.now.Add(pick(h.t, []time.Duration{time.Nanosecond, 10 * time.Second, time.Minute}))
	if rule.Window != nil && !h.isOpen(rule) {
		rule.Window = turns{h.now, soon}
	} else {
		rule.Window = turns{soon, soon.Add(time.Minute)}
	}
	h.setRule(rule)
	if rare(h.t, 2) {
		h.timePasses()
	}
}

func (h *history) isOpen(rule triage.Rule) bool {
	if rule.Window == nil {
		return true
	}
	open, _ := rule.Window.Open(h.lastTime)
	return open
}

// mayBeginOutside says whether a step is urgent, as far as the caller can see.
func (h *history) mayBeginOutside(rule triage.Rule, facts triage.Node, step int) bool {
	if step < len(rule.Response.Ladder) && rule.Response.Ladder[step].Urgent {
		h.saw["begun outside the window by an urgent step"]++
		return true
	}
	isUrgent := slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool {
		row, _ := rowOf(facts, s.Condition)
		return s.Urgent && s.Status == row.Status && (s.Reason == "" || s.Reason == row.Reason)
	})
	if isUrgent {
		h.saw["begun outside the window by an urgent condition"]++
	}
	return isUrgent
}

// checkWindows ends the history if a plan wants a disruptive step that has not begun, outside the
// window of its rule, unless the step is urgent.
func (h *history) checkWindows() {
	for _, g := range h.unobservedTreatments() {
		rule, planned := h.rules[g.Rule], h.plans[g.Node].Treatment
		if planned == nil || planned.Rule != g.Rule || planned.Step != g.Step || h.isOpen(rule) {
			continue
		}
		if !h.mayBeginOutside(rule, h.observed[g.Node], g.Step) {
			h.log("%s on %s, step %d, window %s", g.Rule, g.Node, g.Step, rule.Window)
			h.fail("a plan wants a step outside the window")
		}
	}
	for name, facts := range h.observed {
		for _, taint := range h.plans[name].Taints {
			rule := h.rules[taint.Rule]
			if taint.Effect < triage.NoExecute || strongest(facts, taint.Rule) == triage.NoExecute || h.isOpen(rule) {
				continue
			}
			if !h.mayBeginOutside(rule, facts, 0) {
				h.log("%s on %s, window %s", taint.Rule, name, rule.Window)
				h.fail("a plan wants NoExecute outside the window")
			}
		}
	}
}

// countWindows returns a function that counts what windows have done.
func (h *history) countWindows() func() {
	was := map[triage.RuleID]bool{}
	return func() {
		for id, rule := range h.rules {
			if is := h.isOpen(rule); rule.Window != nil && is != was[id] {
				was[id] = is
				h.saw["windows "+map[bool]string{true: "opened", false: "closed"}[is]]++
			}
		}
		isOutside := func(r triage.Reason) bool { return strings.HasPrefix(r.Other, "outside the window ") }
		for _, plan := range h.plans {
			for _, r := range plan.Findings {
				switch {
				case r.Code == triage.Treating && isOutside(r):
					h.saw["next steps that wait for the window"]++
				case r.Code == triage.FellBack && isOutside(r):
					h.saw["fallbacks outside the window"]++
				}
			}
			if slices.ContainsFunc(plan.Cancel, isOutside) {
				h.saw["later steps called off: outside the window"]++
			}
			for _, r := range plan.Release {
				if h.isOpen(h.rules[r.Rule]) || !r.Taint || r.Code != triage.FellBack || r.Until.IsZero() {
					continue
				}
				h.saw["NoExecute called off: outside the window"]++
			}
		}
	}
}

// ---- cost

// A window that opens or closes costs as much as there are episodes that wait for it.
func TestWindowWakesOnlyNodesThatWait(t *testing.T) {
	for _, size := range []int{100, 10_000} {
		core, now := triage.New(), benchStart
		repair := validRule()
		repair.Bound = triage.Bound{}
		repair.When.Signals = []triage.Signal{{Condition: "Broken", Status: triage.True}}
		opens, closes := now.Add(time.Hour), now.Add(2*time.Hour)
		repair.Window = turns{opens, closes}
		mustSet(t, core, now, repair)
		eviction := validRule()
		eviction.ID, eviction.Window = triage.RuleID{Kind: policykind.ConditionSet, Name: "evicts"}, repair.Window
		eviction.When, eviction.Response, eviction.Bound = repair.When, triage.Response{Taint: &triage.TaintResponse{Key: "example.com/broken", Effect: triage.NoExecute}}, triage.Bound{}
		mustSet(t, core, now, eviction)
		for i := range size {
			node := triage.Node{Name: fmt.Sprintf("worker-%d", i), UID: strconv.Itoa(i), Conditions: []triage.Condition{{Type: "Broken", Status: triage.False}}}
			if i < 3 {
				node.Conditions[0].Status = triage.True
			}
			core.Observe(now, node)
		}
		core.Loaded(now)
		settle(core)
		for _, at := range []time.Time{opens, closes} {
			if next, _ := core.Deadline(); !next.Equal(at) {
				t.Errorf("at %d nodes the deadline is %s, want %s", size, next, at)
			}
			before := core.Work()
			core.Advance(at)
			settle(core)
			after := core.Work()
			got := triage.Work{Touched: after.Touched - before.Touched, Walked: after.Walked - before.Walked, Judged: after.Judged - before.Judged}
			testkit.Same(t, got, triage.Work{Touched: 3}, "the work at %d nodes", size)
		}
	}
}

// A node that waits for a rail or for another control-plane node wakes when the window closes,
// because its reason changes.
func TestTheEndOfAWindowWakesNodesThatWaitForOthers(t *testing.T) {
	for name, rails := range map[string]triage.Rails{"a rail": {InTreatment: &triage.Limit{Number: 1}}, "the control plane": {}} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			core := triage.New()
			testkit.Must(t, core.SetRails(now, rails))
			testkit.Must(t, core.SetRule(now, triage.Rule{
				ID: triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "a"}, Stage: policykind.StageRemediate, When: triage.When{Signals: []triage.Signal{{Condition: "Sick", Status: triage.True}}},
				Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate}}}, Window: turns{now, now.Add(time.Hour)},
			}))
			for _, node := range []string{"a", "b"} {
				core.Observe(now, triage.Node{Name: node, UID: node, ControlPlane: true, Conditions: []triage.Condition{{Type: "Sick", Status: triage.True, Transition: now}}})
			}
			core.Loaded(now)
			for _, ok := core.NextWoken(); ok; _, ok = core.NextWoken() {
			}
			core.Advance(now.Add(time.Hour))
			var woken []string
			for name, ok := core.NextWoken(); ok; name, ok = core.NextWoken() {
				woken = append(woken, name)
			}
			testkit.Check(t, slices.Contains(woken, "b"), "woken: %v", woken)
		})
	}
}

// The next step of a treatment may become due in an open window while the nodes are still being
// loaded. It must not begin if the window closes before they are.
func TestAWindowClosesWhileNodesAreLoaded(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	core := triage.New()
	id := triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "a"}
	testkit.Must(t, core.SetRule(now, triage.Rule{
		ID: id, Stage: policykind.StageRemediate, When: triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate}, {Action: triage.Terminate}}},
		Window:   turns{now.Add(-time.Hour), now.Add(time.Second)},
	}))
	core.Observe(now, triage.Node{
		Name: "worker-1", UID: "1",
		Conditions: []triage.Condition{{Type: "Broken", Status: triage.True, Transition: now.Add(-time.Minute)}},
		Treatments: []triage.Treatment{{Rule: id, Since: now.Add(-time.Minute), Failed: true}},
	})
	core.Loaded(now.Add(time.Second))
	plan, _ := core.Plan("worker-1")
	testkit.Check(t, plan.Treatment.Step == 0 && plan.Cancel == nil, "outside the window the plan is %+v", plan.Treatment)
}
