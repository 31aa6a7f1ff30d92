package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// callOffEvents must have happened to NoExecute taints that were decided and not observed,
// or that are on excluded nodes.
var callOffEvents = []string{
	"unobserved and changed: condition", "unobserved and changed: duration", "unobserved and changed: hold", "unobserved and changed: pause",
	"unobserved and changed: control plane", "unobserved and changed: inclusion", "unobserved and changed: key",
	"called off: Unclear", "called off: Pending", "called off: OnHold", "called off: NodePaused",
	"called off beside a taint",
	"called off for the control plane", "called off for the control plane while nothing may begin",
	"called off and went on", "called off and arrived", "called off and freed",
	"exchanged on the control plane", "exchanged on the control plane while nothing may begin",
	"settled", "settled with something to call off", "settled with others to follow",
	"abandoned without retry and decided again", "abandoned without retry and passed over",
}

// changeDecisionInputs changes what a decision was based on, mostly while its NoExecute
// taint is not observed, and often several times. The condition becomes Unknown, the rule is
// put on hold, gets a longer duration or excludes the control plane, or the node joins the
// control plane. The key of the taint may change, too.
func (h *history) changeDecisionInputs() {
	var unseen, standing []placement
	for _, p := range slices.SortedFunc(maps.Keys(h.placements.slots), comparePlacements) {
		_, known := h.rules[p.rule]
		rule := h.ruleInForce(p.rule)
		switch {
		case !known || !wantsNoExecute(rule) || rule.DryRun || !h.exists(p):
		case h.placements.observed[p]:
			standing = append(standing, p)
		default:
			unseen = append(unseen, p)
		}
	}
	if len(unseen) == 0 || len(standing) > 0 && rare(h.t, 3) {
		unseen = standing
	}
	if len(unseen) == 0 {
		h.makeTaintDue()
		return
	}
	p := pick(h.t, unseen)
	if rare(h.t, 2) && !carries(*h.nodes[p.node], p.rule) { // the weaker taint was placed
		node, taint := h.nodes[p.node], *h.rules[p.rule].Response.Taint
		node.Taints = append(slices.Clone(node.Taints), triage.Taint{Rule: p.rule, Key: taint.Key, Effect: triage.NoSchedule})
		h.observe(p.node)
	}
	for range rapid.IntRange(1, 4).Draw(h.t, "") {
		h.changeInputsOf(p)
	}
	switch {
	case !rare(h.t, 3):
		h.abandonReleases()
	case rare(h.t, 2):
		h.lateWriteSucceeds()
	}
}

// makeTaintDue makes nodes unhealthy under a rule with NoExecute, sometimes more than there
// are slots.
func (h *history) makeTaintDue() {
	ids := slices.DeleteFunc(h.ids(), func(id triage.RuleID) bool { return !wantsNoExecute(h.rules[id]) })
	if len(ids) == 0 || len(h.nodes) == 0 {
		h.startStorm()
		return
	}
	h.makeUnhealthy(h.rules[pick(h.t, ids)], len(h.nodes))
}

func (h *history) changeInputsOf(p placement) {
	node, rule := h.nodes[p.node], h.rules[p.rule]
	turn := pick(h.t, []string{"duration", "condition", "hold", "pause", "window", "control plane", "inclusion", "key"})
	if h.placements.slots[p] && !h.placements.observed[p] {
		h.saw["unobserved and changed: "+turn]++
	}
	switch turn {
	case "control plane":
		node.ControlPlane = !node.ControlPlane
		h.observe(p.node)
	case "key":
		taint := *rule.Response.Taint
		taint.Key = map[bool]string{false: "unhealthy", true: "worn"}[taint.Key == "unhealthy"]
		rule.Response.Taint = &taint
		h.setRule(rule)
	case "inclusion":
		taint := *rule.Response.Taint
		taint.ControlPlane = !taint.ControlPlane
		rule.Response.Taint = &taint
		h.setRule(rule)
	default:
		h.changeInput(node, rule, turn)
	}
}

// changeInput changes an input of every decision: the condition becomes Unknown or known, the
// duration longer or shorter, the rule or the node is put on hold or continues, or the window of
// the rule closes or opens.
func (h *history) changeInput(node *triage.Node, rule triage.Rule, turn string) {
	switch turn {
	case "condition":
		h.toggleUnknown(node, rule)
		h.observe(node.Name)
	case "duration":
		long := slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.For > time.Minute })
		rule.When.Signals = slices.Clone(rule.When.Signals)
		for i := range rule.When.Signals {
			rule.When.Signals[i].For = map[bool]time.Duration{false: 10 * time.Minute}[long]
		}
		h.setRule(rule)
	case "pause":
		h.togglePause(node)
		h.observe(node.Name)
	case "hold":
		rule.Hold = map[bool]string{true: "paused"}[rule.Hold == ""]
		h.setRule(rule)
	case "window":
		h.turnWindow(rule)
	}
}

// toggleUnknown makes the conditions of a rule Unknown, or known again.
func (h *history) toggleUnknown(node *triage.Node, rule triage.Rule) {
	unhealthy := matchesNow(rule, *node)
	for _, s := range rule.When.Signals {
		row := triage.Condition{Type: s.Condition, Status: s.Status, Reason: s.Reason, Transition: h.now}
		if unhealthy {
			row.Status, row.Reason = triage.Unknown, pick(h.t, reasons)
		}
		node.Conditions = slices.DeleteFunc(slices.Clone(node.Conditions), func(c triage.Condition) bool { return c.Type == s.Condition })
		if row.Status != triage.Missing {
			node.Conditions = append(node.Conditions, row)
		}
	}
}

// abandonReleases is a caller that abandons all releases until no node is woken. It must
// come to rest, and nothing may remain to be called off.
func (h *history) abandonReleases() {
	if !h.loaded {
		h.load()
		return
	}
	h.settling = true
	defer func() { h.settling = false }()
	abandoned := map[placement]bool{}
	before := len(h.core().Grants())
	todo := slices.Sorted(maps.Keys(h.observed))
	for asked := 0; len(todo) > 0; asked++ {
		if asked > 1000 {
			h.fail("a caller that abandons all releases does not come to rest")
		}
		name := todo[0]
		todo = todo[1:]
		h.asked = append(h.asked, name)
		for {
			if h.abandonCalledOffStep(name) {
				continue
			}
			if h.plans[name].Reopen {
				h.reopen(name)
				if h.plans[name].Reopen {
					h.fail("a node that was reopened has the permission to be closed again")
				}
				continue
			}
			p, ok := h.releasedUnobserved(name)
			if !ok {
				break
			}
			if abandoned[p] {
				h.log("%s", p)
				h.fail("an abandoned release is decided and released again at the same time")
			}
			abandoned[p] = true
			h.recordAbandoned(p.node, p.rule)
			h.callAt(h.now, call{say: fmt.Sprintf("Abandon(%s, %s, at rest)", p.node, p.rule), about: []string{p.node}, do: func(d decider, now time.Time) {
				d.Abandon(now, p.node, p.rule, 0)
			}})
			if h.hasSlot(p) {
				h.log("%s", p)
				h.fail("an abandoned release has its slot again")
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
	for _, name := range slices.Sorted(maps.Keys(h.observed)) {
		if p, ok := h.releasedUnobserved(name); ok || h.abandonCalledOffStep(name) {
			h.log("%s %s", name, p)
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

// releasedUnobserved finds a response on a node that occupies a slot, was never observed and
// is released by the plan.
func (h *history) releasedUnobserved(name string) (p placement, ok bool) {
	plan, known := h.core().Plan(name)
	if !known || h.nodes[name] == nil || h.nodes[name].UID != plan.UID {
		return placement{}, false
	}
	for _, reason := range plan.Release {
		p := placement{reason.Rule, name, plan.UID}
		if h.hasSlot(p) && !takesSlot(h.observed[name], p.rule) && !takesSlot(*h.nodes[name], p.rule) {
			return p, true
		}
	}
	return placement{}, false
}

// hasSlot says whether a response occupies a slot in the core.
func (h *history) hasSlot(p placement) bool {
	return slices.ContainsFunc(h.core().Grants(), func(g triage.Grant) bool {
		return g.Rule == p.rule && g.Node == p.node && g.UID == p.uid && g.Gone.IsZero()
	})
}

// checkNothingBegins ends the history if a plan wants a stronger taint than the existing one
// for a rule that is on hold or not matched, or NoExecute on a control-plane node that the
// rule excludes.
func (h *history) checkNothingBegins() {
	for _, name := range slices.Sorted(maps.Keys(h.observed)) {
		facts := h.observed[name]
		for _, taint := range h.plans[name].Taints {
			rule := h.ruleInForce(taint.Rule)
			bad := ""
			switch {
			case taint.Effect == triage.NoExecute && excludesNode(rule, facts):
				bad = "a plan wants NoExecute on a node of the control plane that the rule does not include"
			case taint.Effect <= strongest(facts, taint.Rule):
			case rule.Hold != "":
				bad = "a plan wants something new of a rule on hold"
			case h.isPaused(facts):
				bad = "a plan wants something new on a paused node"
			case !matchesNow(rule, facts):
				bad = "a plan wants something new of a rule that does not hold"
			case taint.Reason.Until.After(h.now) && taint.Reason.Code == triage.Tainted:
				bad = "a plan wants something new before its time"
			}
			if bad != "" {
				h.log("%s: plan %+v", name, h.plans[name])
				h.fail(bad)
			}
		}
	}
}

// countCallOffs counts what happened to NoExecute taints that were decided and not observed.
func (h *history) countCallOffs() {
	a := &h.placements
	a.offBefore, a.off = a.off, map[placement]triage.Reason{}
	for p := range a.slots {
		_, known := h.rules[p.rule]
		rule := h.ruleInForce(p.rule)
		plan := h.plans[p.node]
		if !known || !wantsNoExecute(rule) || rule.DryRun || plan.UID != p.uid {
			continue
		}
		facts := h.observed[p.node]
		planned := triage.Effect(0)
		for _, taint := range plan.Taints {
			if taint.Rule == p.rule {
				planned = taint.Effect
			}
		}
		if a.observed[p] {
			if _, was := a.offBefore[p]; was {
				h.saw["called off and arrived"]++
			}
			if planned == triage.NoSchedule && excludesNode(rule, facts) {
				h.saw["exchanged on the control plane"]++
				if h.whyCalledOff(rule, facts, h.finding(p)) != "" {
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
		why := h.whyCalledOff(rule, facts, reason)
		switch {
		case why == "":
			h.saw["called off for the control plane"]++
		case planned > 0:
			h.saw["called off beside a taint"]++
		default:
			h.saw["called off: "+why]++
		}
		if why != "" && excludesNode(rule, facts) {
			h.saw["called off for the control plane while nothing may begin"]++
		}
	}
	for p := range a.offBefore {
		if h.exists(p) && !a.slots[p] {
			h.saw["called off and freed"]++
		}
	}
}

// whyCalledOff says why a decided taint may not begin; empty if only the exclusion of the
// control plane prevents it.
func (h *history) whyCalledOff(rule triage.Rule, facts triage.Node, reason triage.Reason) string {
	switch {
	case !matchesNow(rule, facts) || reason.Code == triage.Unclear:
		return triage.Unclear.String()
	case !reason.Until.IsZero() && reason.Code != triage.NodePaused:
		return triage.Pending.String()
	case rule.Hold != "":
		return triage.OnHold.String()
	case h.isPaused(facts):
		return triage.NodePaused.String()
	}
	return ""
}

// finding is the finding of the rule in the plan of the node.
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
	id := triage.RuleID{Kind: policykind.ConditionSet, Name: "a"}
	if err := core.SetRule(startTime, triage.Rule{
		ID:       id,
		Stage:    policykind.StageTaint,
		When:     triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "unhealthy", Effect: triage.NoExecute}},
	}); err != nil {
		t.Fatal(err)
	}
	core.Observe(startTime, triage.Node{Name: "n", UID: "u", Conditions: []triage.Condition{{Type: "Disk", Status: triage.True, Transition: startTime}}})
	core.Loaded(startTime)
	grants := core.Grants()
	if len(grants) != 1 {
		t.Fatalf("%d taints are decided, want 1", len(grants))
	}
	core.Abandon(startTime, "n", id, time.Minute)
	if got := core.Grants(); len(got) != 0 {
		t.Fatalf("decided again before its time: %v", got)
	}
	core.Resume(startTime, grants[0]) // it was in flight after all
	core.Abandon(startTime, "n", id, 0)
	if got := core.Grants(); len(got) != 1 {
		t.Fatalf("%d taints are decided, want 1 again at once", len(got))
	}
}

// A decision to delete a node lowers the number of nodes that a percentage refers to. A decision that
// the core would make again does not exceed the rails, or the caller would call it off for ever.
func TestATerminationDoesNotExceedTheRailsByItself(t *testing.T) {
	core := triage.New()
	rule := func(name string, response triage.Response) triage.RuleID {
		id := triage.RuleID{Kind: policykind.Repair, Name: name}
		testkit.Must(t, core.SetRule(startTime, triage.Rule{ID: id, Stage: policykind.StageRemediate, When: triage.When{Signals: []triage.Signal{{Condition: name, Status: triage.True}}}, Response: response}))
		return id
	}
	terminate := rule("Disk", triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}})
	remediate := rule("Net", triage.Response{Ladder: []triage.Step{{Action: triage.Remediate}}})
	testkit.Must(t, core.SetRails(startTime, triage.Rails{InTreatment: &triage.Limit{Number: 50, Percent: true}}))
	created := startTime.Add(-time.Hour)
	node := func(name, condition string, treatments ...triage.Treatment) triage.Node {
		return triage.Node{Name: name, UID: name, Created: created, Treatments: treatments, Conditions: []triage.Condition{{Type: condition, Status: triage.True, Transition: created}}}
	}
	core.Observe(startTime, node("n1", "Disk", triage.Treatment{Rule: terminate, Since: startTime}), node("n2", "Net", triage.Treatment{Rule: remediate, Since: startTime}), node("n3", ""))
	core.Loaded(startTime)
	created = startTime.Add(time.Minute) // after the first termination
	core.Observe(created, node("n4", ""), node("n5", ""), node("n6", ""), node("n7", ""))
	failing := node("n3", "Disk")
	failing.Created = startTime.Add(-time.Hour)
	core.Observe(created, failing)
	testkit.Same(t, len(core.Grants()), 3, "decisions")
	testkit.Check(t, !core.ExceedsRails("n3"), "the termination exceeds the rails")
	core.CallOff(created, "n3", false)
	testkit.Same(t, len(core.Grants()), 3, "decisions afterwards")

	testkit.Must(t, core.SetRails(created, triage.Rails{InTreatment: &triage.Limit{Number: 2}}))
	testkit.Check(t, core.ExceedsRails("n3"), "the termination does not exceed the lowered limit")
	core.CallOff(created, "n3", false)
	testkit.Same(t, len(core.Grants()), 2, "decisions under the lowered limit")
}
