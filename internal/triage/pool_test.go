package triage_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// poolEvents must have happened to rules that share a cap, to allowances and to nodes with
// startup taints.
var poolEvents = []string{
	"held: by another rule of the pool", "pools changed with treatments", "slots of a pool taken by a removed rule",
	"pools of removed rules, found after a restart", "newcomers that make no room", "gone ones among all", "replacements of one node where two rules of a pool miss one",
	"allowances taken", "allowances taken by another rule of the pool", "allowances set before the rule", "begun by an allowance", "rules allowed while they were gone",
	"ready before the startup taints are gone", "startup taints gone from a ready node", "eligible for startup taints on a ready node",
}

// ---- events

// poolChanges sets the allowance of a rule again, or moves a rule to another pool.
func (h *history) poolChanges() {
	ladders := h.ladders()
	barred := slices.DeleteFunc(slices.Clone(ladders), func(id triage.RuleID) bool {
		for _, plan := range h.plans {
			if slices.ContainsFunc(plan.Findings, func(r triage.Reason) bool { return r.Rule == id && r.Code == triage.NotAllowed }) {
				return false
			}
		}
		return true
	})
	switch {
	case len(barred) > 0 && !rare(h.t, 3):
		h.allow(allowanceOfRule{pick(h.t, barred), &triage.Allowance{Remaining: pick(h.t, []int{1, 2}), Reason: "the budget is spent"}})
	case len(ladders) == 0 || rare(h.t, 12): // a rule that is not set, or that places taints
		h.allow(h.drawAllowance(pick(h.t, append(h.ids(), h.drawID()))))
	case rare(h.t, 2) && h.allowRemovedRule():
	case rare(h.t, 3):
		r := h.rules[pick(h.t, ladders)]
		r.Bound.Pool = h.drawPool()
		h.setRule(r)
	default:
		h.allow(h.drawAllowance(pick(h.t, ladders)))
	}
}

// allowRemovedRule sets the allowance of a removed rule with responses, lets other rules
// begin, and then sets the rule again.
func (h *history) allowRemovedRule() bool {
	var gone []triage.RuleID
	for _, g := range h.core().Grants() {
		if _, known := h.rules[g.Rule]; !known && !g.Taint {
			gone = append(gone, g.Rule)
		}
	}
	if len(gone) == 0 {
		return false
	}
	id := pick(h.t, gone)
	h.allow(allowanceOfRule{id, &triage.Allowance{Remaining: 1, Reason: "the budget is spent"}})
	for range 2 {
		h.makeTreatmentDue()
		h.timePasses()
	}
	if _, again := h.rules[id]; !again {
		h.setRule(h.drawRule(id))
	}
	h.saw["rules allowed while they were gone"]++
	return true
}

// repairPool simulates a usual pool: a repair rule and a ready timeout with a shared cap.
// Both have nodes to terminate, which are deleted at once or later. New nodes become ready
// at once or later.
func (h *history) repairPool() {
	if len(h.nodes) >= 8 {
		h.nodeGoes()
		return
	}
	limit := triage.Limit{Number: rapid.IntRange(1, 3).Draw(h.t, "")}
	repair := triage.Rule{
		ID:    triage.RuleID{Kind: policykind.Repair, Name: "p"},
		Stage: policykind.StageRepair,
		When:  triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.False, For: pick(h.t, waits)}}},
	}
	timeout := triage.Rule{ID: triage.RuleID{Kind: policykind.ReadyTimeout, Name: "p"}, Stage: policykind.StageRepair, When: h.drawReadyTimeout()}
	for _, rule := range []triage.Rule{repair, timeout} {
		rule.Bound, rule.Response.Ladder = triage.Bound{Cap: &limit, Pool: "p"}, []triage.Step{{Action: triage.Terminate}}
		h.setRule(rule)
	}
	if !h.loaded {
		h.load()
	}
	h.makeUnhealthy(repair, 2)
	failing := h.arrive()
	failing.Conditions, failing.Vetoes, failing.ControlPlane = nil, nil, false
	if rare(h.t, 2) {
		failing.Starting = false
		h.toggleStarting(failing)
		setCondition(failing, triage.Ready, triage.True, "", h.now)
	}
	h.observe(failing.Name)
	for range 2 {
		h.timePasses()
	}
	for _, name := range h.names() {
		plan, node := h.plans[name], h.nodes[name]
		if plan.Treatment == nil || plan.UID != node.UID || plan.Treatment.Action != triage.Terminate || rare(h.t, 6) {
			continue
		}
		if !hasStep(*node, plan.Treatment.Rule, plan.Treatment.Step) {
			node.Treatments = append(slices.Clone(node.Treatments), triage.Treatment{Rule: plan.Treatment.Rule, Step: plan.Treatment.Step, Since: h.now})
		}
		h.observe(name)
		if rare(h.t, 2) {
			delete(h.nodes, name)
			h.forget(name)
		}
	}
	if rare(h.t, 6) {
		h.restart()
	}
	for range rapid.IntRange(1, 3).Draw(h.t, "") {
		h.replacementArrives()
		if names := h.names(); len(names) > 0 && rare(h.t, 2) {
			if node := h.nodes[pick(h.t, names)]; node.Starting {
				h.toggleStarting(node)
				h.observe(node.Name)
			}
		}
	}
}

// allowanceOfRule is the allowance of a rule; nil removes it.
type allowanceOfRule struct {
	rule  triage.RuleID
	words *triage.Allowance
}

func (h *history) drawAllowance(id triage.RuleID) allowanceOfRule {
	if rare(h.t, 4) {
		return allowanceOfRule{id, nil}
	}
	return allowanceOfRule{id, &triage.Allowance{Remaining: pick(h.t, []int{0, 1, 1, 2, 3, -1}), Reason: pick(h.t, []string{"the budget is spent", "held", ""})}}
}

func (h *history) allow(a allowanceOfRule) {
	grants := len(h.core().Grants())
	h.call(h.allowance(a))
	if a.words != nil && a.words.Remaining > 0 && len(h.core().Grants()) > grants {
		h.saw["begun by an allowance"]++
	}
}

// allowance is the call that sets it. The caller may change its value afterwards.
func (h *history) allowance(a allowanceOfRule) call {
	say := fmt.Sprintf("Allow(%s, any)", a.rule)
	delete(h.allowed, a.rule)
	if a.words != nil {
		say = fmt.Sprintf("Allow(%s, %d, %q)", a.rule, a.words.Remaining, a.words.Reason)
		left := *a.words
		h.allowed[a.rule] = &left
	}
	return call{say: say, do: func(d decider, now time.Time) {
		if a.words == nil {
			d.Allow(now, a.rule, nil)
			return
		}
		lent := *a.words
		d.Allow(now, a.rule, &lent)
		lent.Remaining, lent.Reason = 100, "spoiled"
	}}
}

// allowAgain sets the allowances for a new core, mostly for rules that the old core knew.
func (h *history) allowAgain() (calls []call) {
	clear(h.allowed)
	for _, id := range h.ladders() {
		if rare(h.t, 4) {
			calls = append(calls, h.allowance(h.drawAllowance(id)))
		}
	}
	return calls
}

func (h *history) drawPool() string { return pick(h.t, []string{"", "p", "p", "p", "q"}) }

// toggleStarting adds or removes the startup taints of a node.
func (h *history) toggleStarting(node *triage.Node) {
	node.Starting = !node.Starting
	node.Conditions = slices.DeleteFunc(slices.Clone(node.Conditions), func(row triage.Condition) bool { return row.Type == triage.StartupTaints })
	if node.Starting {
		node.Conditions = append(node.Conditions, triage.Condition{Type: triage.StartupTaints, Status: triage.True, Transition: node.Created})
	}
}

// drawReadyTimeout returns the signals of a ready timeout.
func (h *history) drawReadyTimeout() (when triage.When) {
	timeout := pick(h.t, waits)
	for _, status := range []triage.Status{triage.False, triage.Unknown, triage.Missing} {
		when.Signals = append(when.Signals, triage.Signal{Condition: triage.Ready, Status: status, For: timeout, FromCreation: true})
	}
	when.Signals = append(when.Signals, triage.Signal{Condition: triage.StartupTaints, Status: triage.True, For: timeout, FromCreation: true})
	return when
}

// ---- invariants

// countStarting counts the nodes that are treated only because of their startup taints.
func (h *history) countStarting() {
	for name, plan := range h.plans {
		row, _ := rowOf(h.observed[name], triage.Ready)
		if plan.Treatment != nil && plan.Treatment.Reason.Condition == triage.StartupTaints && row.Status == triage.True {
			h.saw["eligible for startup taints on a ready node"]++
		}
	}
}

// poolRules are the set rules in the pool of a rule, including itself.
func (h *history) poolRules(id triage.RuleID) []triage.RuleID {
	return slices.DeleteFunc(h.ids(), func(other triage.RuleID) bool {
		pool := h.rules[id].Bound.Pool
		return other != id && (pool == "" || h.rules[other].Bound.Pool != pool)
	})
}

// checkSharedCaps ends the history if new treatments exceed the shared cap or an allowance.
// In one call the rules of a pool are served in turn, and a rule with a larger cap may
// continue when others have to wait. So all rules together keep to the largest cap, and each
// rule keeps to its own cap without the new treatments of the others. A treatment that ended
// and began again at the same time looks unchanged, so all treatments of that time count as
// new.
func (h *history) checkSharedCaps(begun, grants []triage.Grant) {
	news := map[triage.RuleID]int{}
	for _, g := range begun {
		if !g.Taint {
			news[g.Rule]++
		}
	}
	young := map[triage.RuleID]int{}
	for _, g := range grants {
		if g.Gone.IsZero() && g.Since.Equal(h.now) && !takesSlot(h.observed[g.Node], g.Rule) {
			young[g.Rule]++
		}
	}
	for _, id := range h.ids() {
		if news[id] == 0 {
			continue
		}
		taken, beside, largest, capped := 0, 0, 0, true
		for _, mate := range h.poolRules(id) {
			for _, g := range grants {
				if g.Rule == mate {
					taken++
				}
			}
			if mate != id {
				beside += young[mate]
			}
			if young[mate] > 0 {
				limit := h.capOf(mate)
				capped, largest = capped && limit >= 0, max(largest, limit)
			}
		}
		limit := h.capOf(id)
		if own := len(h.poolRules(id)) > 1; own && limit >= 0 {
			h.saw["begun under a shared cap"]++
		}
		if limit >= 0 && taken-beside > limit || capped && taken > largest {
			h.log("%s: %d are in treatment in its pool, %d of them begun by others now; %d may be under it, and %d under any", id, taken, beside, limit, largest)
			h.fail("more is begun than the rules of a pool may have together")
		}
		if left := h.allowed[id]; left != nil {
			h.saw["begun under an allowance"]++
			if news[id] > max(left.Remaining, 0) {
				h.log("%s: %d begun, %d allowed", id, news[id], left.Remaining)
				h.fail("more is begun than is allowed")
			}
		}
	}
	for id, left := range h.allowed {
		if _, known := h.rules[id]; !known {
			continue
		}
		for _, mate := range h.poolRules(id) {
			left.Remaining -= news[mate]
		}
	}
}

// capOf is the cap of a rule; negative for any number.
func (h *history) capOf(id triage.RuleID) int {
	if isAll(h.rules[id].Bound.Cap) {
		return -1
	}
	selected := 0
	for _, node := range h.observed {
		if selects(h.rules[id], node) {
			selected++
		}
	}
	return allows(h.rules[id].Bound.Cap, selected)
}
