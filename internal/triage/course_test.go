package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/triage"
)

// coursesOfTreatment are what must have happened to treatments that were decided and
// had not been seen, and to those of nodes that were not sick any more.
var coursesOfTreatment = []string{
	"first steps called off: Unclear", "first steps called off: Pending", "first steps called off: OnHold", "first steps called off: Vetoed",
	"first steps called off: GateClosed", "first steps called off: CoolingDown", "first steps called off and begun after all",
	"later steps called off: while unclear", "later steps called off: on hold or vetoed", "later steps called off: the node recovers",
	"later steps called off with nothing there", "later steps called off and begun after all",
	"next steps that wait for a retry",
	"recoveries that wait for time", "recoveries that wait for somebody", "recoveries that wait for a condition to be known",
	"recoveries noted", "recoveries that ended by time", "recoveries that were confirmed",
	"stepped back at rest",
}

// provenCourses are what the invariants must have judged.
var provenCourses = []string{
	"treatments begun under a cooldown", "treatments that a cooldown held back", "recoveries proven", "steps asked for anew", "first steps asked for anew under a gate",
}

// ---- what may happen

// takeNote writes down with a treatment what its plan says.
func (h *history) takeNote(node *triage.Node, planned triage.PlannedTreatment) {
	for i := range node.Treatments {
		if t := &node.Treatments[i]; t.Rule == planned.Rule && t.Step == planned.Step {
			t.HealthySince = planned.HealthySince
		}
	}
}

// unseenTreatments lists the steps that were decided and that the core has not seen.
func (h *history) unseenTreatments() []triage.Grant {
	grants := slices.Clone(h.core().Grants())
	sortGrants(grants)
	return slices.DeleteFunc(grants, func(g triage.Grant) bool {
		node, there := h.heard[g.Node]
		_, known := h.rules[g.Rule]
		return !known || g.Rule.Kind == triage.ConditionSet || !g.Gone.IsZero() || !there || node.UID != g.UID ||
			h.nodes[g.Node] == nil || h.nodes[g.Node].UID != g.UID || shows(node, g.Rule, g.Step)
	})
}

// courseChanges turns what a treatment was decided from, mostly before it was seen.
func (h *history) courseChanges() {
	unseen := h.unseenTreatments()
	later := slices.DeleteFunc(slices.Clone(unseen), func(g triage.Grant) bool { return g.Step == 0 })
	if len(later) > 0 && !rare(h.t, 3) {
		unseen = later
	}
	if len(unseen) == 0 {
		h.sicken()
		return
	}
	g := pick(h.t, unseen)
	for range rapid.IntRange(1, 3).Draw(h.t, "") {
		turn := pick(h.t, []string{"condition", "duration", "hold", "veto", "recovers", "storm", "storm", "gate", "removed", "ends", "ends", "retry"})
		h.courseChangesAbout(g, turn)
		if !rare(h.t, 3) { // which often turns it back
			h.courseChangesAbout(g, turn)
		}
	}
	switch {
	case rare(h.t, 2):
		h.settle()
	case rare(h.t, 3):
		h.carryOut()
	}
}

func (h *history) courseChangesAbout(g triage.Grant, turn string) {
	node, rule := h.nodes[g.Node], h.rules[g.Rule]
	switch turn {
	case "retry":
		if !shows(*node, g.Rule, g.Step) {
			h.callAt(h.now, call{say: fmt.Sprintf("Abandon(%s, %s, retry in 30s)", g.Node, g.Rule), about: []string{g.Node}, do: func(d decider, now time.Time) {
				d.Abandon(now, g.Node, g.Rule, 30*time.Second)
			}})
		}
	case "condition":
		h.doubt(node, rule)
		h.observe(g.Node)
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
	case "veto":
		if len(node.Vetoes) > 0 {
			node.Vetoes = nil
		} else {
			node.Vetoes = []triage.Veto{{Reason: "hands off"}}
		}
		h.observe(g.Node)
	case "recovers":
		h.heal(node, rule)
		h.observe(g.Node)
	case "storm":
		if !rare(h.t, 4) {
			rule.Bound.Gate, rule.Bound.Cooldown = &triage.Limit{Number: 1}, 30*time.Second
			h.setRule(rule)
		}
		h.strike(rule, len(h.nodes))
		if !rare(h.t, 4) {
			h.pass(rule, g.Node)
		}
	case "gate":
		if rule.Bound.Gate == nil {
			rule.Bound.Gate, rule.Bound.Cooldown = &triage.Limit{}, 30*time.Second
		} else {
			rule.Bound.Gate, rule.Bound.Cooldown = nil, 0
		}
		h.setRule(rule)
	case "ends": // it is begun, and somebody ends it
		if g.Step > 0 && !shows(*node, g.Rule, g.Step) {
			node.Treatments = append(slices.Clone(node.Treatments), triage.Treatment{Rule: g.Rule, Step: g.Step, Since: h.now})
			h.observe(g.Node)
			node.Treatments = slices.Clone(node.Treatments[:len(node.Treatments)-1])
			h.observe(g.Node)
		}
	case "removed":
		node.Treatments = slices.DeleteFunc(slices.Clone(node.Treatments), func(t triage.Treatment) bool { return t.Rule == g.Rule })
		h.observe(g.Node)
	}
}

// sicken makes nodes sick under a rule with a ladder, or makes the treatment of one
// fail that is under way, so that there is a step to change one's mind about.
func (h *history) sicken() {
	var failing []string
	for _, name := range h.treated() {
		if plan := h.plans[name]; plan.Treatment != nil && plan.Treatment.Reason.Code == triage.Treating && plan.Treatment.Reason.Step < plan.Treatment.Reason.Steps {
			failing = append(failing, name)
		}
	}
	if len(failing) > 0 && rare(h.t, 2) {
		node := h.nodes[pick(h.t, failing)]
		for i := range node.Treatments {
			node.Treatments[i].Failed = true
		}
		h.observe(node.Name)
		return
	}
	if ids := h.ladders(); len(ids) > 0 && len(h.nodes) > 0 {
		h.strike(h.rules[pick(h.t, ids)], rapid.IntRange(1, 2).Draw(h.t, ""))
		return
	}
	h.storm()
}

// ladders lists the rules that treat.
func (h *history) ladders() []triage.RuleID {
	return slices.DeleteFunc(h.ids(), func(id triage.RuleID) bool { return id.Kind == triage.ConditionSet })
}

// strike makes up to so many nodes sick under a rule.
func (h *history) strike(rule triage.Rule, most int) {
	if len(h.nodes) == 0 {
		h.replacementArrives()
		return
	}
	names := some(h.t, h.names(), 2*most)
	for _, name := range names {
		if node := h.nodes[name]; selects(rule, *node) && !complains(rule, *node) {
			h.doubt(node, rule)
		}
	}
	h.observe(names...)
}

// pass lets all nodes recover from what a rule looks for but one, and those that are
// treated for it mostly be rid of that.
func (h *history) pass(rule triage.Rule, but string) {
	var names []string
	for _, name := range h.names() {
		node := h.nodes[name]
		if name == but || !selects(rule, *node) {
			continue
		}
		h.heal(node, rule)
		if !rare(h.t, 4) {
			node.Treatments = slices.DeleteFunc(slices.Clone(node.Treatments), func(t triage.Treatment) bool { return t.Rule == rule.ID })
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		h.observe(names...)
	}
}

// heal gives every condition of a rule a status that it does not look for.
func (h *history) heal(node *triage.Node, rule triage.Rule) {
	node.Conditions = slices.Clone(node.Conditions)
	for _, condition := range groups(rule) {
		well := []triage.Status{triage.True, triage.False, triage.Missing}
		for _, s := range signalsOf(rule, condition) {
			well = slices.DeleteFunc(well, func(status triage.Status) bool { return status == s.Status })
		}
		if len(well) == 0 {
			continue
		}
		setCondition(node, condition, well[0], "", h.now)
	}
}

// patientRecovers lets a node recover whose treatment is there, and then something
// come between, or nothing.
func (h *history) patientRecovers() {
	type course struct {
		node *triage.Node
		rule triage.Rule
	}
	var courses []course
	for _, name := range h.treated() {
		for _, t := range h.nodes[name].Treatments {
			if rule, known := h.rules[t.Rule]; known && !rule.DryRun && rule.Recovery != (triage.Recovery{}) && selects(rule, *h.nodes[name]) {
				courses = append(courses, course{h.nodes[name], rule})
			}
		}
	}
	for _, name := range h.names() { // or it is wanted, and comes just in time
		planned := h.plans[name].Treatment
		if len(courses) > 0 || planned == nil || h.plans[name].UID != h.nodes[name].UID || h.rules[planned.Rule].ID != planned.Rule {
			continue
		}
		rule, node := h.rules[planned.Rule], h.nodes[name]
		if rule.Recovery == (triage.Recovery{}) {
			h.drawRecovery(&rule)
			h.setRule(rule)
		}
		if !shows(*node, planned.Rule, planned.Step) {
			node.Treatments = append(slices.Clone(node.Treatments), triage.Treatment{Rule: planned.Rule, Step: planned.Step, Since: h.now})
		}
		h.observe(name)
		courses = append(courses, course{node, rule})
	}
	if len(courses) == 0 {
		h.sicken()
		return
	}
	c := pick(h.t, courses)
	h.heal(c.node, c.rule)
	h.observe(c.node.Name)
	for range rapid.IntRange(0, 5).Draw(h.t, "") {
		node := h.nodes[c.node.Name]
		plan, known := h.core().Plan(c.node.Name)
		if node == nil || !known || plan.UID != node.UID {
			return
		}
		switch pick(h.t, []string{"time", "time", "note", "note", "flap", "unseen flap", "unknown", "confirm", "confirm", "restart", "restart", "edit"}) {
		case "unseen flap":
			rows := slices.Clone(node.Conditions)
			for i := range rows {
				rows[i].Transition = h.now
			}
			node.Conditions = rows
			h.observe(node.Name)
		case "time":
			h.timePasses()
		case "note":
			if planned := plan.Treatment; planned != nil {
				h.takeNote(node, *planned)
				h.observe(node.Name)
			}
		case "flap":
			h.doubt(node, c.rule)
			h.observe(node.Name)
			if rare(h.t, 2) {
				h.heal(node, c.rule)
				h.observe(node.Name)
			}
		case "unknown":
			rows := slices.Clone(node.Conditions)
			for i := range rows {
				rows[i].Status, rows[i].Transition = triage.Unknown, h.now
			}
			node.Conditions = rows
			h.observe(node.Name)
			if rare(h.t, 2) {
				h.heal(node, c.rule)
				h.observe(node.Name)
			}
		case "confirm":
			node.Confirmed = !node.Confirmed
			h.observe(node.Name)
		case "restart": // mostly the note is there by then
			if planned := plan.Treatment; planned != nil && !rare(h.t, 4) {
				h.takeNote(node, *planned)
			}
			h.restart()
		case "edit":
			if rule, there := h.rules[c.rule.ID]; there {
				h.setRule(h.alterRule(rule))
			}
		}
	}
}

// weatherChanges makes a storm under a rule that has a cooldown, or lets it pass, and
// often the time after it.
func (h *history) weatherChanges() {
	ids := slices.DeleteFunc(h.ids(), func(id triage.RuleID) bool { return h.rules[id].Bound.Cooldown == 0 })
	if len(ids) == 0 || len(h.nodes) == 0 {
		h.sicken()
		return
	}
	rule := h.rules[pick(h.t, ids)]
	population, _ := h.core().Population(rule.ID)
	switch {
	case population.Storm && !population.CalmSince.IsZero() && !rare(h.t, 3):
		h.timePasses()
	case population.Storm && rare(h.t, 4): // as happens to a gate that was too narrow
		limit := h.drawLimit()
		rule.Bound.Gate = &limit
		h.setRule(rule)
	case population.Storm:
		but := ""
		if rare(h.t, 3) {
			but = pick(h.t, h.names())
		}
		h.pass(rule, but)
	default:
		h.strike(rule, len(h.nodes))
	}
}

// treatmentDeletes tells of a treatment that it is going to delete its node, or that
// it is not after all, and often the node goes.
func (h *history) treatmentDeletes() {
	names := h.treated()
	for _, name := range h.names() { // or it is wanted, and comes just in time
		planned, node := h.plans[name].Treatment, h.nodes[name]
		if len(names) == 0 && planned != nil && h.plans[name].UID == node.UID {
			node.Treatments = append(slices.Clone(node.Treatments), triage.Treatment{Rule: planned.Rule, Step: planned.Step, Since: h.now})
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		h.sicken()
		h.timePasses()
		return
	}
	node := h.nodes[pick(h.t, names)]
	t := &node.Treatments[rapid.IntRange(0, len(node.Treatments)-1).Draw(h.t, "")]
	t.Deletes = !t.Deletes || !rare(h.t, 3)
	rule := t.Rule
	h.observe(node.Name)
	switch {
	case rare(h.t, 3):
	case rare(h.t, 2):
		delete(h.nodes, node.Name)
		h.restart()
	default:
		delete(h.nodes, node.Name)
		h.forget(node.Name)
	}
	h.gateBeside(rule)
}

// gateBeside has a rule that keeps the places of nodes which are gone let no more be
// unwell than are, and one more fall sick.
func (h *history) gateBeside(id triage.RuleID) {
	rule, known := h.rules[id]
	counts, _ := h.core().Population(id)
	gone := 0
	for _, g := range h.core().Grants() {
		if g.Rule == id && !g.Gone.IsZero() {
			gone++
		}
	}
	if !known || rule.DryRun || gone == 0 || rare(h.t, 4) {
		return
	}
	unwell, all := counts.Sick+counts.Recovering+gone, counts.Selected+gone
	rule.Bound.Gate = pick(h.t, []*triage.Limit{
		{Number: unwell}, {Number: all - unwell, Healthy: true}, {Number: 100 * unwell / all, Percent: true, RoundUp: true},
		{Number: 100 * (all - unwell) / all, Percent: true, RoundUp: true, Healthy: true},
	})
	if rare(h.t, 2) {
		rule.Bound.Cooldown = 30 * time.Second
	}
	rule.Hold = ""
	h.setRule(rule)
	if !h.loaded {
		h.load()
	}
	if len(h.nodes) == 0 || rare(h.t, 2) {
		h.replacementArrives()
	}
	for range 3 {
		h.strike(rule, 1)
		h.timePasses()
	}
}

// stormsNow are the storms as a controller writes them down.
func (h *history) stormsNow() map[triage.RuleID]time.Time {
	storms := map[triage.RuleID]time.Time{}
	for _, id := range h.ids() {
		if population, _ := h.core().Population(id); population.Storm && !rare(h.t, 8) {
			storms[id] = population.CalmSince
		}
	}
	return storms
}

// stepsBack abandons one later step that a plan calls off, as a caller does that has
// made sure that it cannot arrive, and says whether there was one.
func (h *history) stepsBack(name string) bool {
	plan, known := h.core().Plan(name)
	node := h.nodes[name]
	if !known || node == nil || node.UID != plan.UID {
		return false
	}
	for _, reason := range plan.CallOff {
		for _, g := range h.unseenTreatments() {
			if g.Node != name || g.Rule != reason.Rule || shows(*node, g.Rule, g.Step) {
				continue
			}
			h.callAt(h.now, call{say: fmt.Sprintf("Abandon(%s, %s, at rest)", name, g.Rule), about: []string{name}, do: func(d decider, now time.Time) {
				d.Abandon(now, name, g.Rule, 0)
			}})
			after, _ := h.core().Plan(name)
			if slices.ContainsFunc(after.CallOff, func(r triage.Reason) bool { return r.Rule == g.Rule }) {
				h.tell("%s on %s", g.Rule, name)
				h.fail("what was abandoned because it was called off is called off again, and no time has passed")
			}
			h.saw["stepped back at rest"]++
			return true
		}
	}
	return false
}

// ---- what must hold

// unwell counts the nodes that are selected and seen to be sick or in treatment: at
// least so many the core must count.
func (h *history) unwell(rule triage.Rule) (unwell, selected int) {
	fromCreation := slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.FromCreation })
	held := map[string]bool{}
	for _, g := range h.core().Grants() {
		if g.Rule == rule.ID && g.Gone.IsZero() {
			held[g.Node] = true
		}
	}
	for name, node := range h.heard {
		if !selects(rule, node) {
			continue
		}
		selected++
		if held[name] || takesPlace(node, rule.ID) || !fromCreation && complains(rule, node) {
			unwell++
		}
	}
	return unwell, selected
}

// calms returns a check that nothing is begun under a rule with a cooldown before the
// time after the latest moment at which more nodes were seen unwell than its gate
// allows.
func (h *history) calms() func() {
	over := map[triage.RuleID]time.Time{}
	cooldowns := map[triage.RuleID]time.Duration{} // before the last call
	begun := map[string]bool{}
	var core *triage.Core
	return func() {
		if h.core() != core {
			// Who starts anew has only what was written down.
			core = h.core()
			clear(over)
			clear(begun)
		}
		for id, last := range over {
			cooldown := h.rules[id].Bound.Cooldown
			// A storm that is over does not come back because its cooldown is made longer.
			if longer := cooldown > cooldowns[id]; cooldown == 0 || longer && !h.told.Before(last.Add(cooldowns[id])) {
				delete(over, id)
			}
		}
		clear(cooldowns)
		for id, rule := range h.rules {
			cooldowns[id] = rule.Bound.Cooldown
		}
		before := maps.Clone(begun)
		clear(begun)
		for _, g := range core.Grants() {
			key := grantKey(triage.Grant{Rule: g.Rule, Node: g.Node, UID: g.UID})
			begun[key] = true
			last, was := over[g.Rule]
			rule, known := h.rules[g.Rule]
			if before[key] || !was || !known || g.Step > 0 || !h.loaded || !g.Gone.IsZero() || takesPlace(h.heard[g.Node], g.Rule) {
				continue
			}
			h.saw["treatments begun under a cooldown"]++
			if h.told.Before(last.Add(rule.Bound.Cooldown)) {
				h.tell("%s on %s; the storm was on at %s", g.Rule, g.Node, at(last))
				h.fail("a treatment is begun before the cooldown is over")
			}
		}
		if !h.loaded {
			return
		}
		for _, id := range h.ladders() {
			rule := h.rules[id]
			if rule.Bound.Cooldown == 0 {
				continue
			}
			unwell, selected := h.unwell(rule)
			population, _ := core.Population(id)
			if unwell > allows(rule.Bound.Gate, selected) {
				over[id] = h.told
				if !population.Storm || !population.CalmSince.IsZero() {
					h.tell("%s: %+v, with %d of %d unwell", id, population, unwell, selected)
					h.fail("more nodes are unwell than the gate allows, and it is no storm")
				}
			}
			if !population.CalmSince.IsZero() && !population.CalmUntil.After(h.told) {
				h.tell("%s: %+v", id, population)
				h.fail("a storm is not over although its cooldown is")
			}
			for _, plan := range h.plans {
				if slices.ContainsFunc(plan.Findings, func(r triage.Reason) bool { return r.Rule == id && r.Code == triage.CoolingDown }) {
					h.saw["treatments that a cooldown held back"]++
				}
			}
		}
	}
}

// recoveries returns a check that the treatment of a node which was seen sick, or of
// which nobody knew, is not taken back before it has been healthy for as long as its
// rule asks, unless somebody vouches for it.
func (h *history) recoveries() func() {
	type key struct {
		rule      triage.RuleID
		node, uid string
	}
	bad := map[key]time.Time{}
	var core *triage.Core
	return func() {
		if h.core() != core {
			core = h.core()
			clear(bad)
		}
		for _, name := range slices.Sorted(maps.Keys(h.heard)) {
			facts, plan := h.heard[name], h.plans[name]
			for _, t := range facts.Treatments {
				rule, known := h.rules[t.Rule]
				k := key{t.Rule, name, facts.UID}
				if !known || rule.DryRun || !selects(rule, facts) || rule.Recovery == (triage.Recovery{}) {
					delete(bad, k)
					continue
				}
				finding := h.finding(placement{t.Rule, name, facts.UID})
				if finding.Code != triage.Recovering && finding.Code != triage.Recovered {
					bad[k] = h.told
					continue
				}
				last, met := bad[k]
				released := slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return r.Rule == t.Rule })
				if complains(rule, facts) && !slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.FromCreation }) {
					h.tell("%s on %s: %s", t.Rule, name, finding)
					h.fail("a sick node is recovering")
				}
				if !released || facts.Confirmed || !met {
					continue
				}
				h.saw["recoveries proven"]++
				if rule.Recovery.ByHand || h.told.Before(last.Add(rule.Recovery.Delay)) {
					h.tell("%s on %s, not known to be healthy at %s", t.Rule, name, at(last))
					h.fail("a treatment is taken back too early")
				}
			}
		}
	}
}

// treatedOrCalledOff ends the history if a step that was decided and not seen is
// neither wanted nor taken back, or both; or if one is wanted that could not be begun
// now.
func (h *history) treatedOrCalledOff() {
	for _, g := range h.unseenTreatments() {
		plan, rule, facts := h.plans[g.Node], h.rules[g.Rule], h.heard[g.Node]
		names := func(reasons []triage.Reason) bool {
			return slices.ContainsFunc(reasons, func(r triage.Reason) bool { return r.Rule == g.Rule })
		}
		fails := func(what string) {
			h.tell("%s on %s, step %d: plan %+v", g.Rule, g.Node, g.Step, plan)
			h.fail(what)
		}
		released, called := names(plan.Release), names(plan.CallOff)
		wanted := plan.Treatment != nil && plan.Treatment.Rule == g.Rule && plan.Treatment.Step == g.Step
		another := plan.Treatment != nil && plan.Treatment.Rule != g.Rule
		_, vetoed := vetoOf(facts, g.Rule.Kind)
		switch {
		case released && called:
			fails("a treatment is released and called off")
		case called && g.Step == 0:
			fails("a first step is called off beside others")
		case (released || called) == wanted && !another && g.Step > highest(facts, g.Rule):
			fails("a step that has not been seen is neither wanted nor called off, or both")
		case !wanted:
			continue
		case rule.Hold != "" || rule.DryRun || vetoed || !complains(rule, facts):
			fails("a plan wants a step that could not be begun now")
		}
		h.saw["steps asked for anew"]++
		if g.Step > 0 || rule.Bound.Gate == nil || !h.loaded {
			continue
		}
		h.saw["first steps asked for anew under a gate"]++
		if unwell, selected := h.unwell(rule); unwell > allows(rule.Bound.Gate, selected) {
			fails("a plan wants a treatment while the gate is closed")
		}
	}
}

// highest is the highest step of a rule on a node, -1 for none.
func highest(node triage.Node, id triage.RuleID) int {
	step := -1
	for _, t := range node.Treatments {
		if t.Rule == id {
			step = max(step, t.Step)
		}
	}
	return step
}

// tallyCourses counts what has become of treatments that were decided and not seen,
// and of those that were recovering.
func (h *history) tallyCourses() {
	for _, name := range slices.Sorted(maps.Keys(h.heard)) {
		plan, before := h.plans[name], h.previous[name]
		if before.UID != plan.UID {
			continue
		}
		for _, reason := range plan.Release {
			switch reason.Code {
			case triage.Unclear, triage.Pending, triage.OnHold, triage.Vetoed, triage.GateClosed, triage.CoolingDown:
				if reason.Rule.Kind != triage.ConditionSet {
					h.saw["first steps called off: "+reason.Code.String()]++
				}
			case triage.Recovered:
				h.tallyRecovered(before, reason, h.heard[name])
			}
		}
		for _, reason := range plan.CallOff {
			switch {
			case plan.Treatment == nil:
				h.saw["later steps called off with nothing there"]++
			case reason.Code == triage.Recovering:
				h.saw["later steps called off: the node recovers"]++
			case reason.Other != "":
				h.saw["later steps called off: on hold or vetoed"]++
			default:
				h.saw["later steps called off: while unclear"]++
			}
		}
		if planned := plan.Treatment; planned != nil && !shows(h.heard[name], planned.Rule, planned.Step) {
			is := func(r triage.Reason) bool { return r.Rule == planned.Rule }
			switch {
			case slices.ContainsFunc(before.CallOff, is):
				h.saw["later steps called off and begun after all"]++
			case slices.ContainsFunc(before.Release, is):
				h.saw["first steps called off and begun after all"]++
			}
		}
		if planned := plan.Treatment; planned != nil && !planned.HealthySince.IsZero() && before.Treatment != nil && before.Treatment.HealthySince.IsZero() {
			h.saw["recoveries noted"]++
		}
		for _, reason := range plan.Findings {
			switch {
			case reason.Code == triage.Treating && reason.Other != "" && !reason.Until.IsZero():
				h.saw["next steps that wait for a retry"]++
			case reason.Code == triage.Recovering && reason.Until.IsZero():
				h.saw["recoveries that wait for somebody"]++
			case reason.Code == triage.Recovering:
				h.saw["recoveries that wait for time"]++
			case reason.Code == triage.Unclear && plan.Treatment != nil && plan.Treatment.Reason == reason:
				h.saw["recoveries that wait for a condition to be known"]++
			}
		}
	}
}

func (h *history) tallyRecovered(before triage.Plan, reason triage.Reason, facts triage.Node) {
	recovering := slices.ContainsFunc(before.Findings, func(r triage.Reason) bool { return r.Rule == reason.Rule && r.Code == triage.Recovering })
	switch {
	case recovering && facts.Confirmed:
		h.saw["recoveries that were confirmed"]++
	case recovering:
		h.saw["recoveries that ended by time"]++
	}
}
