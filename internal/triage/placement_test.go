package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/triage"
)

// placement is a NoExecute taint of a rule on a node. After the decision, the write of the
// caller may take effect at any time, even if the rule has changed, unless the placement was
// abandoned or the node is deleted.
type placement struct {
	rule      triage.RuleID
	node, uid string
}

func (p placement) String() string { return fmt.Sprintf("%s on %s %s", p.rule, p.node, p.uid) }

func comparePlacements(a, b placement) int { return strings.Compare(a.String(), b.String()) }

// placementTracker tracks the NoExecute taints that exist or may still be written,
// independently of the core.
type placementTracker struct {
	core *triage.Core
	// inFlight are the placements that were decided, are not on the node and were not
	// abandoned, with the key of the decision.
	inFlight map[placement]string
	// unexpected are abandoned placements that an old plan has written nevertheless. That is
	// an error of the caller, so bounds ignore them.
	unexpected map[placement]bool
	// slots are the placements with a slot in the core, and observed are those in the facts.
	slots, observed map[placement]bool
	// decided are the new placements of the last call.
	decided []placement
	// offBefore and off are the placements that were called off before and after the last
	// call.
	offBefore, off map[placement]triage.Reason
}

// trackPlacements updates the tracker after a call.
func (h *history) trackPlacements() {
	a := &h.placements
	held, shown := map[placement]bool{}, map[placement]bool{}
	for _, g := range h.core().Grants() {
		if p := (placement{g.Rule, g.Node, g.UID}); g.Taint {
			held[p] = true
			shown[p] = takesSlot(h.observed[g.Node], g.Rule)
		}
	}
	a.decided = nil
	if h.loaded && h.core() == a.core { // decisions at a start are older
		for p := range held {
			// A placement that the facts no longer show has lost its slot, and got a new
			// one.
			if again := a.observed[p]; !shown[p] && (!a.slots[p] || again) {
				a.decided = append(a.decided, p)
				if taint := h.rules[p.rule].Response.Taint; taint != nil {
					a.inFlight[p] = taint.Key
				}
			}
		}
	}
	slices.SortFunc(a.decided, comparePlacements)
	a.core, a.slots, a.observed = h.core(), held, shown
	maps.DeleteFunc(a.inFlight, func(p placement, _ string) bool { return !h.exists(p) || h.isOnNode(p) })
	maps.DeleteFunc(a.unexpected, func(p placement, _ bool) bool { return !h.exists(p) || !h.isOnNode(p) || held[p] })
}

func (h *history) exists(p placement) bool {
	node := h.nodes[p.node]
	return node != nil && node.UID == p.uid
}

// isOnNode says whether the taint is on the node, observed or not.
func (h *history) isOnNode(p placement) bool {
	return h.exists(p) && takesSlot(*h.nodes[p.node], p.rule)
}

// possible lists the placements that exist or may still be written without another decision.
func (h *history) possible() []placement {
	all := map[placement]bool{}
	for p := range h.placements.inFlight {
		if h.exists(p) {
			all[p] = true
		}
	}
	for name, node := range h.nodes {
		for _, t := range node.Taints {
			if p := (placement{t.Rule, name, node.UID}); t.Effect == triage.NoExecute && !h.placements.unexpected[p] {
				all[p] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), comparePlacements)
}

// ---- events

// changeEffect weakens the effect of a rule or makes it NoExecute again, mostly of a rule
// with a placement in flight. Sometimes it also changes the selector, or removes the rule.
func (h *history) changeEffect() {
	id, ok := h.drawRuleToChange()
	if !ok {
		h.carryOut()
		return
	}
	if rare(h.t, 4) {
		h.removeRule(id)
		return
	}
	r := h.withOtherEffect(h.rules[id])
	if rare(h.t, 3) {
		r.Selector = h.drawWho()
	}
	h.setRule(r)
}

// drawRuleToChange picks a rule, more likely one with many placements in flight.
func (h *history) drawRuleToChange() (id triage.RuleID, ok bool) {
	var taints, held, underWay []triage.RuleID
	for _, id := range h.ids() {
		if h.rules[id].Response.Taint == nil {
			continue
		}
		taints = append(taints, id)
		for p := range h.placements.slots {
			if p.rule == id {
				held = append(held, id)
				break
			}
		}
		if h.isInFlight(id) {
			underWay = append(underWay, id)
		}
	}
	for _, ids := range [][]triage.RuleID{underWay, held, taints} {
		if len(ids) > 0 && !rare(h.t, 8) {
			return pick(h.t, ids), true
		}
	}
	return triage.RuleID{}, false
}

func (h *history) isInFlight(id triage.RuleID) bool {
	for p := range h.placements.inFlight {
		if p.rule == id {
			return true
		}
	}
	return false
}

// withOtherEffect returns the rule with a weaker effect, or with NoExecute if its effect is
// weaker.
func (h *history) withOtherEffect(r triage.Rule) triage.Rule {
	taint := *r.Response.Taint
	if taint.Effect == triage.NoExecute {
		taint.Effect = pick(h.t, []triage.Effect{triage.NoSchedule, triage.PreferNoSchedule})
	} else {
		taint.Effect = triage.NoExecute
	}
	r.Response.Taint = &taint
	h.drawBound(&r)
	return r
}

// lateWriteSucceeds places a taint that was decided earlier, whatever the plan says now.
func (h *history) lateWriteSucceeds() {
	if p, ok := h.applyLateWrite(); ok && !rare(h.t, 8) {
		h.observe(p.node)
	} else if !ok {
		h.carryOut()
	}
}

func (h *history) applyLateWrite() (p placement, ok bool) {
	late := slices.SortedFunc(maps.Keys(h.placements.inFlight), comparePlacements)
	late = slices.DeleteFunc(late, func(p placement) bool { return !h.exists(p) || h.isOnNode(p) })
	if len(late) == 0 {
		return placement{}, false
	}
	p = pick(h.t, late)
	node := h.nodes[p.node]
	h.log("%s the write of %s arrives", at(h.now), p)
	node.Taints = append(slices.Clone(node.Taints), triage.Taint{Rule: p.rule, Key: h.placements.inFlight[p], Effect: triage.NoExecute})
	delete(h.placements.inFlight, p)
	h.saw["late writes"]++
	if r, known := h.rules[p.rule]; known && isWeakerThanNoExecute(r) {
		h.saw["late writes under a weaker effect"]++
	}
	return p, true
}

// recordAbandoned records that a placement can no longer be written.
func (h *history) recordAbandoned(node string, id triage.RuleID) {
	if n := h.nodes[node]; n != nil {
		p := placement{id, node, n.UID}
		delete(h.placements.inFlight, p)
		delete(h.placements.slots, p) // a slot after that is a new one
		h.giveBack(p)
	}
}

// trackOldPlan records which taints of an old plan no longer count.
func (h *history) trackOldPlan(old triage.Plan) {
	for _, taint := range old.Taints {
		p := placement{taint.Rule, old.Node, old.UID}
		if _, underWay := h.placements.inFlight[p]; taint.Effect == triage.NoExecute && !underWay && !h.placements.slots[p] && !h.isOnNode(p) {
			h.placements.unexpected[p] = true
		}
	}
}

// ---- invariants

// checkSlots returns a check that every NoExecute taint that exists or may still be written
// has a slot, that no decision exceeds the cap, and that unwritten placements are either
// wanted or called off. Changes of rules must not matter.
func (h *history) checkSlots() func() {
	effects := map[triage.RuleID]triage.Effect{}
	return func() {
		for id := range effects {
			if _, known := h.rules[id]; !known {
				delete(effects, id)
				if h.isInFlight(id) {
					h.saw["rules removed with taints in flight"]++
				}
			}
		}
		for _, id := range h.ids() {
			taint := h.rules[id].Response.Taint
			if taint == nil {
				continue
			}
			before := effects[id]
			effects[id] = taint.Effect
			switch underWay := h.isInFlight(id); {
			case before == 0 || !underWay:
			case before == triage.NoExecute && taint.Effect < before:
				h.saw["effects weakened with taints in flight"]++
			case before < taint.Effect && taint.Effect == triage.NoExecute:
				h.saw["effects strengthened with taints in flight"]++
			}
		}
		h.checkWantedOrReleased()
		if !h.loaded {
			return // not all nodes and grants are known
		}
		possible := h.possible()
		for _, p := range possible {
			if !h.placements.slots[p] {
				h.log("%s", p)
				h.fail("a NoExecute taint exists or is in flight without a slot")
			}
		}
		for _, p := range h.placements.decided {
			h.checkCap(p, possible)
		}
	}
}

// checkCap checks a decision against all placements that may exist with it.
func (h *history) checkCap(p placement, possible []placement) {
	rule, known := h.rules[p.rule]
	if !known || !wantsNoExecute(rule) {
		h.log("%s", p)
		h.fail("a rule without NoExecute has decided to place it")
	}
	selected, count := 0, 0
	for _, node := range h.observed {
		if selects(rule, node) {
			selected++
		}
	}
	for _, other := range possible {
		if other.rule == p.rule {
			count++
		}
	}
	limit := allows(rule.Bound.Cap, selected)
	if limit < 0 {
		return
	}
	h.saw["placements under a cap"]++
	if count > 1 {
		h.saw["placements beside others"]++
	}
	if count > limit {
		h.log("%s, one of %d of this rule that are in the cluster or may arrive; %d may be: %s", p, count, limit, possible)
		h.fail("the NoExecute taints on nodes and in flight exceed the cap")
	}
}

// checkWantedOrReleased ends the history if an unobserved placement is neither wanted nor
// called off, or both, or called off twice.
func (h *history) checkWantedOrReleased() {
	for _, p := range slices.SortedFunc(maps.Keys(h.placements.slots), comparePlacements) {
		plan := h.plans[p.node]
		wanted := slices.ContainsFunc(plan.Taints, func(t triage.PlannedTaint) bool { return t.Rule == p.rule && t.Effect == triage.NoExecute })
		weaker := slices.ContainsFunc(plan.Taints, func(t triage.PlannedTaint) bool { return t.Rule == p.rule && t.Effect < triage.NoExecute })
		released := 0
		for _, reason := range plan.Release {
			if reason.Rule == p.rule {
				released++
			}
		}
		rule, known := h.rules[p.rule]
		switch {
		case released > 1:
			h.log("%s: plan %+v", p, plan)
			h.fail("a response is called off twice")
		case !h.placements.observed[p] && wanted == (released > 0):
			h.log("%s: plan %+v", p, plan)
			h.fail("a placement in flight is neither wanted nor called off, or both")
		case known && isWeakerThanNoExecute(rule) && !h.placements.observed[p] && wanted:
			h.log("%s: plan %+v", p, plan)
			h.fail("a rule without NoExecute wants it on a node that has none")
		case h.placements.observed[p] && weaker && released > 0:
			h.log("%s: plan %+v", p, plan)
			h.fail("an existing taint is called off as if it was in flight")
		case known && isWeakerThanNoExecute(rule) && !h.placements.observed[p] && weaker:
			h.saw["weaker taints beside a placement called off"]++
		case known && isWeakerThanNoExecute(rule) && !h.placements.observed[p]:
			h.saw["placements called off alone under a weaker effect"]++
		case known && isWeakerThanNoExecute(rule):
			h.saw["NoExecute taints seen under a weaker effect"]++
		}
	}
}
