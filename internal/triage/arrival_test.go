package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/triage"
)

// placement is a NoExecute taint of a rule on a node. Once it is decided, the
// caller's write may arrive at any later time, whatever has become of the rule
// by then, unless the placement was abandoned or the node is gone.
type placement struct {
	rule      triage.RuleID
	node, uid string
}

func (p placement) String() string { return fmt.Sprintf("%s on %s %s", p.rule, p.node, p.uid) }

func comparePlacements(a, b placement) int { return strings.Compare(a.String(), b.String()) }

// arrivals is the history's own account of the NoExecute taints that are in the
// cluster or may come to be there.
type arrivals struct {
	core *triage.Core
	// underWay are those that were decided, have not arrived and were not
	// abandoned, each with the key that it was decided with.
	underWay map[placement]string
	// astray are those that an old plan has put on a node although they had been
	// abandoned: the caller's fault, and no matter of bounds.
	astray map[placement]bool
	// held have a place in the core, and shown are in the facts that it heard.
	held, shown map[placement]bool
	// decided are new since the call before.
	decided []placement
	// offBefore were called off before the last call, and off are so after it.
	offBefore, off map[placement]triage.Reason
}

// follow keeps the account after a call.
func (h *history) follow() {
	a := &h.arrivals
	held, shown := map[placement]bool{}, map[placement]bool{}
	for _, g := range h.core().Grants() {
		if p := (placement{g.Rule, g.Node, g.UID}); g.Rule.Kind == triage.ConditionSet {
			held[p] = true
			shown[p] = takesPlace(h.heard[g.Node], g.Rule)
		}
	}
	a.decided = nil
	if h.loaded && h.core() == a.core { // what a start brings was decided before
		for p := range held {
			// One that is no longer shown has lost its place, and got it again.
			if again := a.shown[p]; !shown[p] && (!a.held[p] || again) {
				a.decided = append(a.decided, p)
				if taint := h.rules[p.rule].Response.Taint; taint != nil {
					a.underWay[p] = taint.Key
				}
			}
		}
	}
	slices.SortFunc(a.decided, comparePlacements)
	a.core, a.held, a.shown = h.core(), held, shown
	maps.DeleteFunc(a.underWay, func(p placement, _ string) bool { return !h.exists(p) || h.carried(p) })
	maps.DeleteFunc(a.astray, func(p placement, _ bool) bool { return !h.exists(p) || !h.carried(p) || held[p] })
}

func (h *history) exists(p placement) bool {
	node := h.nodes[p.node]
	return node != nil && node.UID == p.uid
}

// carried says whether the taint is on the node, heard of or not.
func (h *history) carried(p placement) bool {
	return h.exists(p) && takesPlace(*h.nodes[p.node], p.rule)
}

// possible lists the placements that are in the cluster or may come to be there
// without another decision.
func (h *history) possible() []placement {
	all := map[placement]bool{}
	for p := range h.arrivals.underWay {
		if h.exists(p) {
			all[p] = true
		}
	}
	for name, node := range h.nodes {
		for _, t := range node.Taints {
			if p := (placement{t.Rule, name, node.UID}); t.Effect == triage.NoExecute && !h.arrivals.astray[p] {
				all[p] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), comparePlacements)
}

// ---- what may happen

// effectTurns weakens the effect of a rule or makes it NoExecute again, mostly
// of one that has a placement under way, and sometimes changes whom it selects in
// the same edit, or removes it.
func (h *history) effectTurns() {
	id, ok := h.drawTurning()
	if !ok {
		h.carryOut()
		return
	}
	if rare(h.t, 4) {
		h.removeRule(id)
		return
	}
	r := h.turned(h.rules[id])
	if rare(h.t, 3) {
		r.Who = h.drawWho()
	}
	h.setRule(r)
}

// drawTurning picks a rule whose effect is to turn, the more it has under way the
// rather.
func (h *history) drawTurning() (id triage.RuleID, ok bool) {
	var taints, held, underWay []triage.RuleID
	for _, id := range h.ids() {
		if h.rules[id].Response.Taint == nil {
			continue
		}
		taints = append(taints, id)
		for p := range h.arrivals.held {
			if p.rule == id {
				held = append(held, id)
				break
			}
		}
		if h.isUnderWay(id) {
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

func (h *history) isUnderWay(id triage.RuleID) bool {
	for p := range h.arrivals.underWay {
		if p.rule == id {
			return true
		}
	}
	return false
}

// turned returns the rule with a weaker effect, or with NoExecute if it has one.
func (h *history) turned(r triage.Rule) triage.Rule {
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

// lateWriteLands puts a taint on its node that was decided some time ago,
// whatever the plan says now.
func (h *history) lateWriteLands() {
	if p, ok := h.land(); ok && !rare(h.t, 8) {
		h.observe(p.node)
	} else if !ok {
		h.carryOut()
	}
}

func (h *history) land() (p placement, ok bool) {
	late := slices.SortedFunc(maps.Keys(h.arrivals.underWay), comparePlacements)
	late = slices.DeleteFunc(late, func(p placement) bool { return !h.exists(p) || h.carried(p) })
	if len(late) == 0 {
		return placement{}, false
	}
	p = pick(h.t, late)
	node := h.nodes[p.node]
	h.tell("%s the write of %s arrives", at(h.now), p)
	node.Taints = append(slices.Clone(node.Taints), triage.Taint{Rule: p.rule, Key: h.arrivals.underWay[p], Effect: triage.NoExecute})
	delete(h.arrivals.underWay, p)
	h.saw["late writes"]++
	if r, known := h.rules[p.rule]; known && lenient(r) {
		h.saw["late writes under a weaker effect"]++
	}
	return p, true
}

// abandoned notes that a placement can no longer arrive.
func (h *history) abandoned(node string, id triage.RuleID) {
	if n := h.nodes[node]; n != nil {
		p := placement{id, node, n.UID}
		delete(h.arrivals.underWay, p)
		delete(h.arrivals.held, p) // if it has a place after that, it is a new one
	}
}

// strays notes which taints of an old plan nobody counts with any more.
func (h *history) strays(old triage.Plan) {
	for _, taint := range old.Taints {
		p := placement{taint.Rule, old.Node, old.UID}
		if _, underWay := h.arrivals.underWay[p]; taint.Effect == triage.NoExecute && !underWay && !h.arrivals.held[p] && !h.carried(p) {
			h.arrivals.astray[p] = true
		}
	}
}

// ---- what must hold

// places returns a check that every NoExecute taint that is in the cluster or may
// yet arrive there has its place, that no decision lets there be more of them
// than the cap allows, and that what has not arrived is either wanted or called
// off. Edits of rules must not matter.
func (h *history) places() func() {
	effects := map[triage.RuleID]triage.Effect{}
	return func() {
		for id := range effects {
			if _, known := h.rules[id]; !known {
				delete(effects, id)
				if h.isUnderWay(id) {
					h.saw["rules removed with something under way"]++
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
			switch underWay := h.isUnderWay(id); {
			case before == 0 || !underWay:
			case before == triage.NoExecute && taint.Effect < before:
				h.saw["effects weakened with something under way"]++
			case before < taint.Effect && taint.Effect == triage.NoExecute:
				h.saw["effects strengthened with something under way"]++
			}
		}
		h.wantedOrReleased()
		if !h.loaded {
			return // not all nodes and grants have been told
		}
		possible := h.possible()
		for _, p := range possible {
			if !h.arrivals.held[p] {
				h.tell("%s", p)
				h.fail("a NoExecute taint is in the cluster, or may arrive there, that has no place")
			}
		}
		for _, p := range h.arrivals.decided {
			h.hasRoom(p, possible)
		}
	}
}

// hasRoom judges one decision by all placements that there can be with it.
func (h *history) hasRoom(p placement, possible []placement) {
	rule, known := h.rules[p.rule]
	if !known || !wantsNoExecute(rule) {
		h.tell("%s", p)
		h.fail("a rule that asks for no NoExecute has decided to place it")
	}
	selected, count := 0, 0
	for _, node := range h.heard {
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
		h.tell("%s, one of %d of this rule that are in the cluster or may arrive; %d may be: %s", p, count, limit, possible)
		h.fail("more nodes may come to carry NoExecute than the cap allows")
	}
}

// wantedOrReleased ends the history if a placement that the core has not seen is
// neither wanted by the plan nor called off, or both, or called off twice.
func (h *history) wantedOrReleased() {
	for _, p := range slices.SortedFunc(maps.Keys(h.arrivals.held), comparePlacements) {
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
			h.tell("%s: plan %+v", p, plan)
			h.fail("a response is called off twice")
		case !h.arrivals.shown[p] && wanted == (released > 0):
			h.tell("%s: plan %+v", p, plan)
			h.fail("a placement that has not arrived is neither wanted nor called off, or both")
		case known && lenient(rule) && !h.arrivals.shown[p] && wanted:
			h.tell("%s: plan %+v", p, plan)
			h.fail("a rule that asks for less than NoExecute wants it on a node that has none")
		case h.arrivals.shown[p] && weaker && released > 0:
			h.tell("%s: plan %+v", p, plan)
			h.fail("a taint that is exchanged for a weaker one is called off as if it had not arrived")
		case known && lenient(rule) && !h.arrivals.shown[p] && weaker:
			h.saw["weaker taints beside a placement called off"]++
		case known && lenient(rule) && !h.arrivals.shown[p]:
			h.saw["placements called off alone under a weaker effect"]++
		case known && lenient(rule):
			h.saw["NoExecute taints seen under a weaker effect"]++
		}
	}
}
