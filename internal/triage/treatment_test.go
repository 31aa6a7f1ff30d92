package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/triage"
)

// treatmentEvents must have happened to treatments that were decided and not observed, and
// to treatments of healthy nodes.
var treatmentEvents = []string{
	"first steps called off: Unclear", "first steps called off: Pending", "first steps called off: OnHold", "first steps called off: NodePaused", "first steps called off: Vetoed",
	"first steps called off: GateClosed", "first steps called off: GivenUp", "first steps called off: CoolingDown", "first steps called off and begun after all",
	"later steps called off: while unclear", "later steps called off: on hold or vetoed", "later steps called off: on a paused node", "later steps called off: the node recovers",
	"later steps called off with nothing there", "later steps called off and begun after all",
	"next steps that wait for a retry",
	"recoveries that wait for time", "recoveries that wait for a user", "recoveries that wait for a condition to be known",
	"recoveries noted", "recoveries that ended by time", "recoveries that were confirmed",
	"stepped back at rest",
}

// checkedTreatmentEvents must have been checked by the invariants.
var checkedTreatmentEvents = []string{
	"treatments begun under a cooldown", "treatments that a cooldown held back", "recoveries proven", "steps asked for anew", "first steps asked for anew under a gate",
}

// ---- events

// storeHealthySince stores the HealthySince of the plan with the treatment.
func (h *history) storeHealthySince(node *triage.Node, planned triage.PlannedTreatment) {
	for i := range node.Treatments {
		if t := &node.Treatments[i]; t.Rule == planned.Rule && t.Step == planned.Step {
			t.HealthySince = planned.HealthySince
		}
	}
}

// unobservedTreatments lists the steps that were decided and not observed by the core.
func (h *history) unobservedTreatments() []triage.Grant {
	grants := slices.Clone(h.core().Grants())
	sortGrants(grants)
	return slices.DeleteFunc(grants, func(g triage.Grant) bool {
		node, there := h.observed[g.Node]
		_, known := h.rules[g.Rule]
		return !known || g.Taint || !g.Gone.IsZero() || !there || node.UID != g.UID ||
			h.nodes[g.Node] == nil || h.nodes[g.Node].UID != g.UID || hasStep(node, g.Rule, g.Step)
	})
}

// changeTreatmentInputs changes what a treatment was based on, mostly before it is observed.
func (h *history) changeTreatmentInputs() {
	unseen := h.unobservedTreatments()
	later := slices.DeleteFunc(slices.Clone(unseen), func(g triage.Grant) bool { return g.Step == 0 })
	if len(later) > 0 && !rare(h.t, 3) {
		unseen = later
	}
	if len(unseen) == 0 {
		h.makeTreatmentDue()
		return
	}
	g := pick(h.t, unseen)
	for range rapid.IntRange(1, 3).Draw(h.t, "") {
		turn := pick(h.t, []string{"condition", "duration", "hold", "pause", "window", "veto", "recovers", "storm", "storm", "gate", "removed", "ends", "ends", "retry"})
		h.changeTreatmentInputsOf(g, turn)
		if !rare(h.t, 3) { // which often reverts the change
			h.changeTreatmentInputsOf(g, turn)
		}
	}
	switch {
	case rare(h.t, 2):
		h.abandonReleases()
	case rare(h.t, 3):
		h.carryOut()
	}
}

func (h *history) changeTreatmentInputsOf(g triage.Grant, turn string) {
	node, rule := h.nodes[g.Node], h.rules[g.Rule]
	switch turn {
	case "retry":
		if !hasStep(*node, g.Rule, g.Step) {
			h.recordAbandoned(g.Node, g.Rule)
			h.callAt(h.now, call{say: fmt.Sprintf("Abandon(%s, %s, retry in 30s)", g.Node, g.Rule), about: []string{g.Node}, do: func(d decider, now time.Time) {
				d.Abandon(now, g.Node, g.Rule, 30*time.Second)
			}})
		}
	case "condition", "duration", "hold", "pause", "window":
		h.changeInput(node, rule, turn)
	case "veto":
		if len(node.Vetoes) > 0 {
			node.Vetoes = nil
		} else {
			node.Vetoes = []triage.Veto{{Reason: "hands off"}}
		}
		h.observe(g.Node)
	case "recovers":
		h.makeHealthy(node, rule)
		h.observe(g.Node)
	case "storm":
		if !rare(h.t, 4) {
			rule.Bound.Gate, rule.Bound.Cooldown = &triage.Limit{Number: 1}, 30*time.Second
			h.setRule(rule)
		}
		h.makeUnhealthy(rule, len(h.nodes))
		if !rare(h.t, 4) {
			h.recoverOthers(rule, g.Node)
		}
	case "gate":
		if rule.Bound.Gate == nil {
			rule.Bound.Gate, rule.Bound.Cooldown = &triage.Limit{}, 30*time.Second
		} else {
			rule.Bound.Gate, rule.Bound.Cooldown = nil, 0
		}
		h.setRule(rule)
	case "ends": // it begins and is ended
		if g.Step > 0 && !hasStep(*node, g.Rule, g.Step) {
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

// makeTreatmentDue makes nodes unhealthy under a rule with a ladder, or lets a treatment
// fail, so that a step is due.
func (h *history) makeTreatmentDue() {
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
		h.makeUnhealthy(h.rules[pick(h.t, ids)], rapid.IntRange(1, 2).Draw(h.t, ""))
		return
	}
	h.startStorm()
}

// ladders lists the rules with a ladder.
func (h *history) ladders() []triage.RuleID {
	return slices.DeleteFunc(h.ids(), func(id triage.RuleID) bool { return h.rules[id].Response.Taint != nil })
}

// makeUnhealthy makes up to the given number of nodes unhealthy under a rule.
func (h *history) makeUnhealthy(rule triage.Rule, most int) {
	if len(h.nodes) == 0 {
		h.replacementArrives()
		return
	}
	names := some(h.t, h.names(), 2*most)
	for _, name := range names {
		if node := h.nodes[name]; selects(rule, *node) && !matchesNow(rule, *node) {
			h.toggleUnknown(node, rule)
		}
	}
	h.observe(names...)
}

// recoverOthers lets all nodes except one recover under a rule, and mostly removes their
// treatments.
func (h *history) recoverOthers(rule triage.Rule, but string) {
	var names []string
	for _, name := range h.names() {
		node := h.nodes[name]
		if name == but || !selects(rule, *node) {
			continue
		}
		h.makeHealthy(node, rule)
		if !rare(h.t, 4) {
			node.Treatments = slices.DeleteFunc(slices.Clone(node.Treatments), func(t triage.Treatment) bool { return t.Rule == rule.ID })
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		h.observe(names...)
	}
}

// makeHealthy gives every condition of a rule a status that the rule does not match.
func (h *history) makeHealthy(node *triage.Node, rule triage.Rule) {
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

// treatedNodeRecovers lets a node with a treatment recover, and may interrupt the recovery.
func (h *history) treatedNodeRecovers() {
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
	for _, name := range h.names() { // or it is wanted and begins now
		planned := h.plans[name].Treatment
		if len(courses) > 0 || planned == nil || h.plans[name].UID != h.nodes[name].UID || h.rules[planned.Rule].ID != planned.Rule {
			continue
		}
		rule, node := h.rules[planned.Rule], h.nodes[name]
		if rule.Recovery == (triage.Recovery{}) {
			h.drawRecovery(&rule)
			h.setRule(rule)
		}
		if !hasStep(*node, planned.Rule, planned.Step) {
			node.Treatments = append(slices.Clone(node.Treatments), triage.Treatment{Rule: planned.Rule, Step: planned.Step, Since: h.now})
		}
		h.observe(name)
		courses = append(courses, course{node, rule})
	}
	if len(courses) == 0 {
		h.makeTreatmentDue()
		return
	}
	c := pick(h.t, courses)
	h.makeHealthy(c.node, c.rule)
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
				h.storeHealthySince(node, *planned)
				h.observe(node.Name)
			}
		case "flap":
			h.toggleUnknown(node, c.rule)
			h.observe(node.Name)
			if rare(h.t, 2) {
				h.makeHealthy(node, c.rule)
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
				h.makeHealthy(node, c.rule)
				h.observe(node.Name)
			}
		case "confirm":
			node.Confirmed = !node.Confirmed
			h.observe(node.Name)
		case "restart": // mostly HealthySince is stored by then
			if planned := plan.Treatment; planned != nil && !rare(h.t, 4) {
				h.storeHealthySince(node, *planned)
			}
			h.restart()
		case "edit":
			if rule, there := h.rules[c.rule.ID]; there {
				h.setRule(h.alterRule(rule))
			}
		}
	}
}

// stormChanges starts a storm under a rule with a cooldown, or ends it, and often lets the
// cooldown pass.
func (h *history) stormChanges() {
	ids := slices.DeleteFunc(h.ids(), func(id triage.RuleID) bool { return h.rules[id].Bound.Cooldown == 0 })
	if len(ids) == 0 || len(h.nodes) == 0 {
		h.makeTreatmentDue()
		return
	}
	rule := h.rules[pick(h.t, ids)]
	population, _ := h.core().Population(rule.ID)
	switch {
	case population.Storm && !population.CalmSince.IsZero() && !rare(h.t, 3):
		h.timePasses()
	case population.Storm && rare(h.t, 4): // as if the gate was too narrow
		limit := h.drawLimit()
		rule.Bound.Gate = &limit
		h.setRule(rule)
	case population.Storm:
		but := ""
		if rare(h.t, 3) {
			but = pick(h.t, h.names())
		}
		h.recoverOthers(rule, but)
	default:
		h.makeUnhealthy(rule, len(h.nodes))
	}
}

// treatmentDeletes marks a treatment as deleting its node, or removes the mark. Often the
// node is deleted.
func (h *history) treatmentDeletes() {
	names := h.treated()
	for _, name := range h.names() { // or it is wanted and begins now
		planned, node := h.plans[name].Treatment, h.nodes[name]
		if len(names) == 0 && planned != nil && h.plans[name].UID == node.UID {
			node.Treatments = append(slices.Clone(node.Treatments), triage.Treatment{Rule: planned.Rule, Step: planned.Step, Since: h.now})
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		h.makeTreatmentDue()
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
	h.tightenGate(rule)
}

// tightenGate lowers the gate of a rule with deleted, unreplaced nodes to its current count,
// and makes another node unhealthy.
func (h *history) tightenGate(id triage.RuleID) {
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
	unwell, all := counts.Unhealthy+counts.Recovering+gone, counts.Selected+gone
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
		h.makeUnhealthy(rule, 1)
		h.timePasses()
	}
}

// currentStorms are the storms as a controller stores them.
func (h *history) currentStorms() map[triage.RuleID]time.Time {
	storms := map[triage.RuleID]time.Time{}
	for _, id := range h.ids() {
		if population, _ := h.core().Population(id); population.Storm && !rare(h.t, 8) {
			storms[id] = population.CalmSince
		}
	}
	return storms
}

// abandonCalledOffStep abandons a later step that a plan calls off, and says whether there
// was one.
func (h *history) abandonCalledOffStep(name string) bool {
	plan, known := h.core().Plan(name)
	node := h.nodes[name]
	if !known || node == nil || node.UID != plan.UID {
		return false
	}
	for _, reason := range plan.Cancel {
		for _, g := range h.unobservedTreatments() {
			if g.Node != name || g.Rule != reason.Rule || hasStep(*node, g.Rule, g.Step) {
				continue
			}
			h.recordAbandoned(name, g.Rule)
			h.callAt(h.now, call{say: fmt.Sprintf("Abandon(%s, %s, at rest)", name, g.Rule), about: []string{name}, do: func(d decider, now time.Time) {
				d.Abandon(now, name, g.Rule, 0)
			}})
			after, _ := h.core().Plan(name)
			if slices.ContainsFunc(after.Cancel, func(r triage.Reason) bool { return r.Rule == g.Rule }) {
				h.log("%s on %s", g.Rule, name)
				h.fail("an abandoned step is called off again at the same time")
			}
			h.saw["stepped back at rest"]++
			return true
		}
	}
	return false
}

// ---- invariants

// countUnhealthy counts the selected nodes that are visibly unhealthy or in treatment. The
// core must count at least as many.
func (h *history) countUnhealthy(rule triage.Rule) (unwell, selected int) {
	fromCreation := slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.FromCreation })
	held := map[string]bool{}
	for _, g := range h.core().Grants() {
		if g.Rule == rule.ID && g.Gone.IsZero() {
			held[g.Node] = true
		}
	}
	for name, node := range h.observed {
		if !selects(rule, node) {
			continue
		}
		selected++
		if held[name] || takesSlot(node, rule.ID) || !fromCreation && matchesNow(rule, node) {
			unwell++
		}
	}
	return unwell, selected
}

// checkCooldowns returns a check that nothing begins under a rule with a cooldown until the
// cooldown has passed since its gate was last exceeded.
func (h *history) checkCooldowns() func() {
	over := map[triage.RuleID]time.Time{}
	cooldowns := map[triage.RuleID]time.Duration{} // before the last call
	begun := map[string]bool{}
	var core *triage.Core
	return func() {
		if h.core() != core {
			// A restarted core has only what was stored.
			core = h.core()
			clear(over)
			clear(begun)
		}
		for id, last := range over {
			cooldown := h.rules[id].Bound.Cooldown
			// A longer cooldown does not bring back a storm that is over.
			if longer := cooldown > cooldowns[id]; cooldown == 0 || longer && !h.lastTime.Before(last.Add(cooldowns[id])) {
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
			if before[key] || !was || !known || g.Step > 0 || !h.loaded || !g.Gone.IsZero() || takesSlot(h.observed[g.Node], g.Rule) {
				continue
			}
			h.saw["treatments begun under a cooldown"]++
			if h.lastTime.Before(last.Add(rule.Bound.Cooldown)) {
				h.log("%s on %s; the storm was on at %s", g.Rule, g.Node, at(last))
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
			unwell, selected := h.countUnhealthy(rule)
			population, _ := core.Population(id)
			if unwell > allows(rule.Bound.Gate, selected) {
				over[id] = h.lastTime
				if !population.Storm || !population.CalmSince.IsZero() {
					h.log("%s: %+v, with %d of %d unwell", id, population, unwell, selected)
					h.fail("more nodes are unwell than the gate allows, and it is no storm")
				}
			}
			if !population.CalmSince.IsZero() && !population.CalmUntil.After(h.lastTime) {
				h.log("%s: %+v", id, population)
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

// checkRecoveries returns a check that the treatment of a node that was unhealthy or unclear
// stays until the node has been healthy for the recovery delay, unless a user confirms.
func (h *history) checkRecoveries() func() {
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
		for _, name := range slices.Sorted(maps.Keys(h.observed)) {
			facts, plan := h.observed[name], h.plans[name]
			for _, t := range facts.Treatments {
				rule, known := h.rules[t.Rule]
				k := key{t.Rule, name, facts.UID}
				if !known || rule.DryRun || !selects(rule, facts) || rule.Recovery == (triage.Recovery{}) {
					delete(bad, k)
					continue
				}
				finding := h.finding(placement{t.Rule, name, facts.UID})
				if finding.Code != triage.Recovering && finding.Code != triage.Recovered {
					bad[k] = h.lastTime
					continue
				}
				last, met := bad[k]
				released := slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return r.Rule == t.Rule })
				if matchesNow(rule, facts) && !slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.FromCreation }) {
					h.log("%s on %s: %s", t.Rule, name, finding)
					h.fail("an unhealthy node is recovering")
				}
				if !released || facts.Confirmed || !met {
					continue
				}
				h.saw["recoveries proven"]++
				if rule.Recovery.ByHand || h.lastTime.Before(last.Add(rule.Recovery.Delay)) {
					h.log("%s on %s, not known to be healthy at %s", t.Rule, name, at(last))
					h.fail("a treatment is taken back too early")
				}
			}
		}
	}
}

// checkTreatedOrCalledOff ends the history if a decided, unobserved step is neither wanted
// nor released, or both, or if a step is wanted that may not begin now.
func (h *history) checkTreatedOrCalledOff() {
	for _, g := range h.unobservedTreatments() {
		plan, rule, facts := h.plans[g.Node], h.ruleInForce(g.Rule), h.observed[g.Node]
		names := func(reasons []triage.Reason) bool {
			return slices.ContainsFunc(reasons, func(r triage.Reason) bool { return r.Rule == g.Rule })
		}
		fails := func(what string) {
			h.log("%s on %s, step %d: plan %+v", g.Rule, g.Node, g.Step, plan)
			h.fail(what)
		}
		released, called := names(plan.Release), names(plan.Cancel)
		wanted := plan.Treatment != nil && plan.Treatment.Rule == g.Rule && plan.Treatment.Step == g.Step
		another := plan.Treatment != nil && plan.Treatment.Rule != g.Rule
		_, vetoed := vetoOf(facts, rule, g.Step)
		switch {
		case released && called:
			fails("a treatment is released and called off")
		case called && g.Step == 0:
			fails("a first step is called off beside others")
		case (released || called) == wanted && !another && g.Step > highestStep(facts, g.Rule):
			fails("a step that has not been seen is neither wanted nor called off, or both")
		case !wanted:
			continue
		case rule.Hold != "" || h.isPaused(facts) || rule.DryRun || vetoed || !matchesNow(rule, facts):
			fails("a plan wants a step that could not be begun now")
		}
		h.saw["steps asked for anew"]++
		if g.Step > 0 || rule.Bound.Gate == nil || !h.loaded {
			continue
		}
		h.saw["first steps asked for anew under a gate"]++
		if unwell, selected := h.countUnhealthy(rule); unwell > allows(rule.Bound.Gate, selected) {
			fails("a plan wants a treatment while the gate is closed")
		}
	}
}

// highestStep is the highest step of a rule on a node; -1 for none.
func highestStep(node triage.Node, id triage.RuleID) int {
	step := -1
	for _, t := range node.Treatments {
		if t.Rule == id {
			step = max(step, t.Step)
		}
	}
	return step
}

// countTreatmentEvents counts what happened to treatments that were decided and not
// observed, or that were recovering.
func (h *history) countTreatmentEvents() {
	for _, name := range slices.Sorted(maps.Keys(h.observed)) {
		plan, before := h.plans[name], h.previous[name]
		if before.UID != plan.UID {
			continue
		}
		for _, reason := range plan.Release {
			switch reason.Code {
			case triage.Unclear, triage.Pending, triage.OnHold, triage.NodePaused, triage.OutsideWindow, triage.Vetoed, triage.GateClosed, triage.CoolingDown, triage.GivenUp:
				if !reason.Taint {
					h.saw["first steps called off: "+reason.Code.String()]++
				}
			case triage.Recovered:
				h.countRecovered(before, reason, h.observed[name])
			}
		}
		for _, reason := range plan.Cancel {
			switch {
			case plan.Treatment == nil:
				h.saw["later steps called off with nothing there"]++
			case reason.Code == triage.Recovering:
				h.saw["later steps called off: the node recovers"]++
			case reason.Other != "" && h.isPaused(h.observed[name]):
				h.saw["later steps called off: on a paused node"]++
			case reason.Other != "":
				h.saw["later steps called off: on hold or vetoed"]++
			default:
				h.saw["later steps called off: while unclear"]++
			}
		}
		if planned := plan.Treatment; planned != nil && !hasStep(h.observed[name], planned.Rule, planned.Step) {
			is := func(r triage.Reason) bool { return r.Rule == planned.Rule }
			switch {
			case slices.ContainsFunc(before.Cancel, is):
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
			case reason.Code == triage.Treating && reason.Other != "" && !reason.Until.IsZero() && !h.isPaused(h.observed[name]):
				h.saw["next steps that wait for a retry"]++
			case reason.Code == triage.Recovering && reason.Until.IsZero():
				h.saw["recoveries that wait for a user"]++
			case reason.Code == triage.Recovering:
				h.saw["recoveries that wait for time"]++
			case reason.Code == triage.Unclear && plan.Treatment != nil && plan.Treatment.Reason == reason:
				h.saw["recoveries that wait for a condition to be known"]++
			}
		}
	}
}

func (h *history) countRecovered(before triage.Plan, reason triage.Reason, facts triage.Node) {
	recovering := slices.ContainsFunc(before.Findings, func(r triage.Reason) bool { return r.Rule == reason.Rule && r.Code == triage.Recovering })
	switch {
	case recovering && facts.Confirmed:
		h.saw["recoveries that were confirmed"]++
	case recovering:
		h.saw["recoveries that ended by time"]++
	}
}
