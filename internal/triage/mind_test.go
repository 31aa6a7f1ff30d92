package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/triage"
)

// changesOfMind are what must have happened to NoExecute taints that were decided
// and had not been seen, or that stood where they may not be any more.
var changesOfMind = []string{
	"unseen, and turned: condition", "unseen, and turned: duration", "unseen, and turned: hold",
	"unseen, and turned: control plane", "unseen, and turned: inclusion",
	"called off: Unclear", "called off: Pending", "called off: OnHold",
	"called off beside a taint",
	"called off for the control plane", "called off for the control plane while nothing may begin",
	"called off and went on", "called off and arrived", "called off and freed",
	"exchanged on the control plane", "exchanged on the control plane while nothing may begin",
	"settled", "settled with something to call off", "settled with others to follow",
	"abandoned without retry and decided again", "abandoned without retry and passed over",
}

// mindChanges turns what a decision was made from, mostly while its NoExecute taint
// has not been seen, and often more than once: nobody knows any more whether the
// node is sick, the rule is put on hold, wants the condition to stand longer or
// spares the control plane, or the node becomes part of it.
func (h *history) mindChanges() {
	var unseen, standing []placement
	for _, p := range slices.SortedFunc(maps.Keys(h.arrivals.held), comparePlacements) {
		rule, known := h.rules[p.rule]
		switch {
		case !known || !wantsNoExecute(rule) || rule.DryRun || !h.exists(p):
		case h.arrivals.shown[p]:
			standing = append(standing, p)
		default:
			unseen = append(unseen, p)
		}
	}
	if len(unseen) == 0 || len(standing) > 0 && rare(h.t, 3) {
		unseen = standing
	}
	if len(unseen) == 0 {
		h.provoke()
		return
	}
	p := pick(h.t, unseen)
	if rare(h.t, 2) && !carries(*h.nodes[p.node], p.rule) { // the weaker taint had been placed
		node, taint := h.nodes[p.node], *h.rules[p.rule].Response.Taint
		node.Taints = append(slices.Clone(node.Taints), triage.Taint{Rule: p.rule, Key: taint.Key, Effect: triage.NoSchedule})
		h.observe(p.node)
	}
	for range rapid.IntRange(1, 4).Draw(h.t, "") {
		h.mindChangesAbout(p)
	}
	switch {
	case !rare(h.t, 3):
		h.settle()
	case rare(h.t, 2):
		h.lateWriteLands()
	}
}

// provoke makes nodes sick under a rule that places NoExecute, so that there is
// something to change one's mind about, and sometimes too few places.
func (h *history) provoke() {
	ids := slices.DeleteFunc(h.ids(), func(id triage.RuleID) bool { return !wantsNoExecute(h.rules[id]) })
	if len(ids) == 0 || len(h.nodes) == 0 {
		h.storm()
		return
	}
	rule := h.rules[pick(h.t, ids)]
	names := some(h.t, h.names(), 2*len(h.nodes))
	for _, name := range names {
		if node := h.nodes[name]; selects(rule, *node) && !complains(rule, *node) {
			h.doubt(node, rule)
		}
	}
	h.observe(names...)
}

func (h *history) mindChangesAbout(p placement) {
	node, rule := h.nodes[p.node], h.rules[p.rule]
	turn := pick(h.t, []string{"duration", "condition", "hold", "control plane", "inclusion"})
	if h.arrivals.held[p] && !h.arrivals.shown[p] {
		h.saw["unseen, and turned: "+turn]++
	}
	switch turn {
	case "condition":
		h.doubt(node, rule)
		h.observe(p.node)
	case "duration":
		long := slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.For > time.Minute })
		rule.When.Signals = slices.Clone(rule.When.Signals)
		for i := range rule.When.Signals {
			rule.When.Signals[i].For = map[bool]time.Duration{false: 10 * time.Minute}[long]
		}
		h.setRule(rule)
	case "hold":
		rule.Hold = map[bool]string{true: "paused"}[rule.Hold == ""]
		h.setRule(rule)
	case "control plane":
		node.ControlPlane = !node.ControlPlane
		h.observe(p.node)
	case "inclusion":
		taint := *rule.Response.Taint
		taint.ControlPlane = !taint.ControlPlane
		rule.Response.Taint = &taint
		h.setRule(rule)
	}
}

// doubt makes unknown what a rule holds for, or known again.
func (h *history) doubt(node *triage.Node, rule triage.Rule) {
	sick := complains(rule, *node)
	for _, s := range rule.When.Signals {
		row := triage.Condition{Type: s.Condition, Status: s.Status, Reason: s.Reason, Transition: h.now}
		if sick {
			row.Status, row.Reason = triage.Unknown, pick(h.t, reasons)
		}
		node.Conditions = slices.DeleteFunc(slices.Clone(node.Conditions), func(c triage.Condition) bool { return c.Type == s.Condition })
		if row.Status != triage.Missing {
			node.Conditions = append(node.Conditions, row)
		}
	}
}

// settle is a caller that sees to it that nothing of what the plans release is on
// its way, and abandons it, until nobody is woken any more. It must come to rest,
// whatever it finds, and leave nothing to be called off.
func (h *history) settle() {
	if !h.loaded {
		h.load()
		return
	}
	h.settling = true
	defer func() { h.settling = false }()
	abandoned := map[placement]bool{}
	before := len(h.core().Grants())
	todo := slices.Sorted(maps.Keys(h.heard))
	for asked := 0; len(todo) > 0; asked++ {
		if asked > 1000 {
			h.fail("a caller that abandons what is released finds no rest")
		}
		name := todo[0]
		todo = todo[1:]
		h.asked = append(h.asked, name)
		for {
			if h.stepsBack(name) {
				continue
			}
			p, ok := h.releasedUnseen(name)
			if !ok {
				break
			}
			if abandoned[p] {
				h.tell("%s", p)
				h.fail("what was abandoned because it was released is decided and released again, and no time has passed")
			}
			abandoned[p] = true
			h.abandoned(p.node, p.rule)
			h.callAt(h.now, call{say: fmt.Sprintf("Abandon(%s, %s, at rest)", p.node, p.rule), about: []string{p.node}, do: func(d decider, now time.Time) {
				d.Abandon(now, p.node, p.rule, 0)
			}})
			if h.holds(p) {
				h.tell("%s", p)
				h.fail("what was abandoned because it was released has its place again")
			}
		}
		for len(todo) == 0 {
			woken, ok := h.core().NextWoken()
			if !ok {
				break
			}
			todo = append(todo, woken)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.heard)) {
		if p, ok := h.releasedUnseen(name); ok || h.stepsBack(name) {
			h.tell("%s %s", name, p)
			h.fail("something is to be called off on a node that was not woken")
		}
	}
	h.saw["settled"]++
	if len(abandoned) > 0 {
		h.saw["settled with something to call off"]++
		if len(h.core().Grants()) > before-len(abandoned) {
			h.saw["settled with others to follow"]++
		}
	}
}

// releasedUnseen finds something on a node that holds a place, that nobody has
// seen, and that the plan releases.
func (h *history) releasedUnseen(name string) (p placement, ok bool) {
	plan, known := h.core().Plan(name)
	if !known || h.nodes[name] == nil || h.nodes[name].UID != plan.UID {
		return placement{}, false
	}
	for _, reason := range plan.Release {
		p := placement{reason.Rule, name, plan.UID}
		if h.holds(p) && !takesPlace(h.heard[name], p.rule) && !takesPlace(*h.nodes[name], p.rule) {
			return p, true
		}
	}
	return placement{}, false
}

// holds says whether a response holds a place in the core.
func (h *history) holds(p placement) bool {
	return slices.ContainsFunc(h.core().Grants(), func(g triage.Grant) bool {
		return g.Rule == p.rule && g.Node == p.node && g.UID == p.uid && g.Gone.IsZero()
	})
}

// beginsNothing ends the history if a plan wants a stronger taint than the one that
// is there of a rule which is on hold or does not hold, or NoExecute on a node of
// the control plane of a rule that spares it.
func (h *history) beginsNothing() {
	for _, name := range slices.Sorted(maps.Keys(h.heard)) {
		facts := h.heard[name]
		for _, taint := range h.plans[name].Taints {
			rule := h.rules[taint.Rule]
			bad := ""
			switch {
			case taint.Effect == triage.NoExecute && spares(rule, facts):
				bad = "a plan wants NoExecute on a node of the control plane that the rule does not include"
			case taint.Effect <= strongest(facts, taint.Rule):
			case rule.Hold != "":
				bad = "a plan wants something new of a rule on hold"
			case !complains(rule, facts):
				bad = "a plan wants something new of a rule that does not hold"
			case taint.Reason.Until.After(h.now) && taint.Reason.Code == triage.Tainted:
				bad = "a plan wants something new before its time"
			}
			if bad != "" {
				h.tell("%s: plan %+v", name, h.plans[name])
				h.fail(bad)
			}
		}
	}
}

// tallyCallOffs counts what has become of NoExecute taints that were decided and
// not seen.
func (h *history) tallyCallOffs() {
	a := &h.arrivals
	a.offBefore, a.off = a.off, map[placement]triage.Reason{}
	for p := range a.held {
		rule, known := h.rules[p.rule]
		plan := h.plans[p.node]
		if !known || !wantsNoExecute(rule) || rule.DryRun || plan.UID != p.uid {
			continue
		}
		facts := h.heard[p.node]
		planned := triage.Effect(0)
		for _, taint := range plan.Taints {
			if taint.Rule == p.rule {
				planned = taint.Effect
			}
		}
		if a.shown[p] {
			if _, was := a.offBefore[p]; was {
				h.saw["called off and arrived"]++
			}
			if planned == triage.NoSchedule && spares(rule, facts) {
				h.saw["exchanged on the control plane"]++
				if whyOff(rule, facts, h.finding(p)) != "" {
					h.saw["exchanged on the control plane while nothing may begin"]++
				}
			}
			continue
		}
		for _, reason := range plan.Release {
			if reason.Rule == p.rule && reason.Code != triage.Recovered && reason.Code != triage.Deselected {
				a.off[p] = reason
			}
		}
		reason, off := a.off[p]
		if _, was := a.offBefore[p]; was && planned == triage.NoExecute {
			h.saw["called off and went on"]++
		}
		if !off {
			continue
		}
		why := whyOff(rule, facts, reason)
		switch {
		case why == "":
			h.saw["called off for the control plane"]++
		case planned > 0:
			h.saw["called off beside a taint"]++
		default:
			h.saw["called off: "+why]++
		}
		if why != "" && spares(rule, facts) {
			h.saw["called off for the control plane while nothing may begin"]++
		}
	}
	for p := range a.offBefore {
		if h.exists(p) && !a.held[p] {
			h.saw["called off and freed"]++
		}
	}
}

// whyOff tells why a taint that was decided may not begin, empty if only the
// control plane is spared.
func whyOff(rule triage.Rule, facts triage.Node, reason triage.Reason) string {
	switch {
	case !complains(rule, facts) || reason.Code == triage.Unclear:
		return triage.Unclear.String()
	case !reason.Until.IsZero():
		return triage.Pending.String()
	case rule.Hold != "":
		return triage.OnHold.String()
	}
	return ""
}

// finding is what the plan of the node says about the rule.
func (h *history) finding(p placement) triage.Reason {
	for _, reason := range h.plans[p.node].Findings {
		if reason.Rule == p.rule {
			return reason
		}
	}
	return triage.Reason{}
}

func TestAbandonWithoutRetryEndsAnEarlierWait(t *testing.T) {
	core := triage.New()
	id := triage.RuleID{Kind: triage.ConditionSet, Name: "a"}
	if err := core.SetRule(dawn, triage.Rule{
		ID:       id,
		When:     triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "sick", Effect: triage.NoExecute}},
	}); err != nil {
		t.Fatal(err)
	}
	core.Observe(dawn, triage.Node{Name: "n", UID: "u", Conditions: []triage.Condition{{Type: "Disk", Status: triage.True, Transition: dawn}}})
	core.Loaded(dawn)
	grants := core.Grants()
	if len(grants) != 1 {
		t.Fatalf("%d taints are decided, want 1", len(grants))
	}
	core.Abandon(dawn, "n", id, time.Minute)
	if got := core.Grants(); len(got) != 0 {
		t.Fatalf("decided again before its time: %v", got)
	}
	core.Resume(dawn, grants[0]) // it was on its way after all
	core.Abandon(dawn, "n", id, 0)
	if got := core.Grants(); len(got) != 1 {
		t.Fatalf("%d taints are decided, want 1 again at once", len(got))
	}
}
