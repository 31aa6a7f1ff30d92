package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// ---- events

func (h *history) drawRails() triage.Rails {
	var r triage.Rails
	if rare(h.t, 3) {
		limit := pick(h.t, h.railLimits())
		r.InTreatment = &limit
	}
	if rare(h.t, 3) {
		limit := pick(h.t, h.railLimits())
		r.Unschedulable = &limit
	}
	for _, label := range []string{"spot", "pool"} {
		if rare(h.t, 3) {
			r.Topology = append(r.Topology, triage.Share{Label: label, Limit: pick(h.t, h.railLimits())})
		}
	}
	if rare(h.t, 3) {
		r.Pace = &triage.Pace{
			Limit: pick(h.t, h.railLimits()), AtLeast: pick(h.t, []int{0, 1, 2}),
			Period: pick(h.t, []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}),
		}
	}
	if rare(h.t, 3) {
		r.CorrelatedFailure = &triage.CorrelatedFailure{
			Threshold: pick(h.t, h.railLimits()), MinNodes: pick(h.t, []int{1, 2, 3}),
			Window: pick(h.t, []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}), Labels: pick(h.t, [][]string{nil, {"spot"}, {"pool", "spot"}}),
			Image: rare(h.t, 2), LongestHold: pick(h.t, []time.Duration{0, 0, time.Minute, 10 * time.Minute}),
		}
		if rare(h.t, 4) {
			r.CorrelatedFailure.Released = h.now.Add(pick(h.t, []time.Duration{10 * time.Second, 5 * time.Minute}))
		}
	}
	if rare(h.t, 6) {
		r.Hold = map[triage.Stage]string{pick(h.t, stages): "the stage is paused"}
	}
	if rare(h.t, 2) {
		r.MaxAttempts = &triage.MaxAttempts{Limit: pick(h.t, []int{1, 2, 3}), Window: pick(h.t, []time.Duration{10 * time.Second, 5 * time.Minute, time.Hour})}
	}
	r.KeepLast = rare(h.t, 3)
	return r
}

var stages = []triage.Stage{"repair", "taint", "treat"}

func (h *history) railLimits() []triage.Limit {
	return []triage.Limit{{Number: 1}, {Number: 2}, {Number: 49, Percent: true}, {Number: 50, Percent: true}, {Number: 100, Percent: true}, {Number: 0, Percent: true}}
}

func (h *history) railsChange() {
	h.rails, h.pacedSince = h.drawRails(), h.now
	h.call(h.setRails())
}

func (h *history) setRails() call {
	rails := h.rails
	return call{say: "SetRails(" + describeRails(rails) + ")", do: func(d decider, now time.Time) {
		if err := d.SetRails(now, rails); err != nil {
			h.log("SetRails: %v", err)
			h.fail("valid rails are refused")
		}
	}}
}

func (h *history) nodeCloses() {
	if len(h.nodes) == 0 {
		return
	}
	names := some(h.t, h.names(), 3)
	for _, name := range names {
		node := h.nodes[name]
		if rare(h.t, 4) {
			node.Dedicated = !node.Dedicated
		} else {
			node.Closed = !node.Closed
		}
	}
	h.observe(names...)
}

// begunTreatment is a treatment that the pace counts.
type begunTreatment struct {
	placement
	at     time.Time
	isSent bool // a write may have been sent
}

// giveBack forgets a treatment that is abandoned before a write was sent and before the deciders have
// observed it.
func (h *history) giveBack(p placement) {
	for i, b := range slices.Backward(h.begun) {
		if b.placement == p {
			if !b.isSent && !takesSlot(h.observed[p.node], p.rule) {
				h.begun = slices.Delete(h.begun, i, i+1)
			}
			return
		}
	}
}

// noteSent reports that the write of a treatment may have been sent.
func (h *history) noteSent() {
	grants := slices.DeleteFunc(slices.Clone(h.core().Grants()), func(g triage.Grant) bool { return g.Taint || !g.Gone.IsZero() })
	if len(grants) == 0 {
		h.carryOut()
		return
	}
	sortGrants(grants)
	g := pick(h.t, grants)
	p := placement{g.Rule, g.Node, g.UID}
	for i := range h.begun {
		if h.begun[i].placement == p {
			h.begun[i].isSent = true
		}
	}
	h.call(call{say: "NoteSent(" + p.String() + ")", about: []string{p.node}, do: func(d decider, now time.Time) {
		d.Advance(now)
		d.NoteSent(p.node, p.rule)
	}})
}

// callOff calls off the decisions of nodes that exceed the rails. Afterwards the node does not exceed
// them again, or the caller would call off its decisions for ever.
func (h *history) callOff() {
	over := slices.DeleteFunc(h.names(), func(name string) bool {
		node, known := h.observed[name]
		return !known || !h.core().ExceedsRails(name) && !h.core().ExceedsClosing(name) ||
			!slices.Equal(h.nodes[name].Taints, node.Taints) || !slices.Equal(h.nodes[name].Treatments, node.Treatments) // the caller would know
	})
	if len(over) == 0 {
		h.railsChange()
		return
	}
	name, inFlight := pick(h.t, over), rare(h.t, 4)
	treatments, taints := !inFlight && h.core().ExceedsRails(name), h.core().ExceedsClosing(name)
	for _, g := range h.core().Grants() {
		if g.Node == name && (treatments || taints && g.Taint) {
			h.recordAbandoned(name, g.Rule)
		}
	}
	h.call(call{say: fmt.Sprintf("CallOff(%s, %t)", name, inFlight), about: []string{name}, do: func(d decider, now time.Time) { d.CallOff(now, name, inFlight) }})
	if h.core().ExceedsClosing(name) || !inFlight && h.core().ExceedsRails(name) {
		h.fail("a decision that exceeds the rails was decided again")
	}
}

// reopen reports that nothing closes a node and nothing is in flight.
func (h *history) reopen(name string) {
	h.callAt(h.now, call{say: "Reopen(" + name + ")", about: []string{name}, do: func(d decider, now time.Time) { d.Reopen(now, name, 0) }})
}

// closingRefused reports that the taints which close a node were refused.
func (h *history) closingRefused() {
	may := h.core().Closings()
	may = slices.DeleteFunc(may, func(g triage.Grant) bool {
		node, known := h.observed[g.Node]
		return !known || !slices.Equal(h.nodes[g.Node].Taints, node.Taints) // the caller would know
	})
	if len(may) == 0 {
		h.carryOut()
		return
	}
	name, retry := pick(h.t, may).Node, pick(h.t, waits)
	h.call(call{say: fmt.Sprintf("Reopen(%s, retry in %s)", name, retry), about: []string{name}, do: func(d decider, now time.Time) { d.Reopen(now, name, retry) }})
}

func describeRails(r triage.Rails) string {
	var parts []string
	if r.InTreatment != nil {
		parts = append(parts, "in treatment "+r.InTreatment.String())
	}
	if r.Unschedulable != nil {
		parts = append(parts, "unschedulable "+r.Unschedulable.String())
	}
	for _, share := range r.Topology {
		parts = append(parts, share.Label+" "+share.Limit.String())
	}
	if r.Pace != nil {
		parts = append(parts, fmt.Sprintf("pace %s, at least %d, in %s", r.Pace.Limit, r.Pace.AtLeast, r.Pace.Period))
	}
	if f := r.CorrelatedFailure; f != nil {
		parts = append(parts, fmt.Sprintf("correlated failure %+v", *f))
	}
	if r.MaxAttempts != nil {
		parts = append(parts, fmt.Sprintf("attempts %+v", *r.MaxAttempts))
	}
	if r.KeepLast {
		parts = append(parts, "keep the last")
	}
	return strings.Join(append(parts, fmt.Sprint(r.Hold)), "; ")
}

// ruleInForce is a rule with the hold of its stage.
func (h *history) ruleInForce(id triage.RuleID) triage.Rule {
	rule := h.rules[id]
	if rule.Hold == "" {
		rule.Hold = h.rails.Hold[rule.Stage]
	}
	return rule
}

// ---- checks

// railEvents are events under rails that random histories must contain.
var railEvents = []string{
	"closed under maxUnschedulable", "begun under maxInTreatment", "begun under a topology", "begun under a pace", "begun under maxAttempts",
	"begun under maxAttempts after other attempts",
}

// checkRails returns a check of everything that begins, based on what the caller sees. Its
// limits refer to all nodes, so they may be higher than those of the core.
func (h *history) checkRails() func(begun, grants []triage.Grant) {
	return func(begun, grants []triage.Grant) {
		for _, g := range begun {
			if len(h.rules[g.Rule].Response.Ladder) > 0 {
				h.begun = append(h.begun, begunTreatment{placement: placement{g.Rule, g.Node, g.UID}, at: h.now})
			}
			if h.ruleInForce(g.Rule).Hold != "" {
				h.fail("something is begun in a stage on hold")
			}
			h.checkAttempts(g)
		}
		var fresh []triage.Grant // on nodes that were in no treatment before
		for _, g := range begun {
			isOther := func(o triage.Grant) bool {
				return o.Node == g.Node && o.UID == g.UID && !slices.Contains(begun, o)
			}
			if !slices.ContainsFunc(grants, isOther) && len(h.observed[g.Node].Foreign) == 0 {
				fresh = append(fresh, g)
			}
		}
		if len(fresh) == 0 {
			return
		}
		in := map[string]bool{}
		departed := map[string]string{}
		for _, g := range grants {
			in[g.Node+"/"+g.UID] = true
			if !g.Gone.IsZero() {
				departed[g.Node+"/"+g.UID] = g.Topology
			}
		}
		h.checkShare("maxInTreatment", h.rails.InTreatment, fresh, in, func(map[string]string) bool { return true })
		for _, share := range h.rails.Topology {
			for _, g := range fresh {
				value, has := h.observed[g.Node].Labels[share.Label]
				if !has || h.values(share.Label) < 2 {
					continue
				}
				in := maps.Clone(in)
				for id, topology := range departed {
					if !slices.Contains(strings.Split(topology, ","), share.Label+"="+value) {
						delete(in, id)
					}
				}
				h.checkShare("a topology", &share.Limit, []triage.Grant{g}, in, func(labels map[string]string) bool {
					other, has := labels[share.Label]
					return has && other == value
				})
			}
		}
		h.checkLast(fresh, in)
		if pace := h.rails.Pace; pace != nil {
			recent := 0
			for _, b := range h.begun {
				if b.at.Add(pace.Period).After(h.now) {
					recent++
				}
			}
			isNew := func(g triage.Grant) bool { return len(h.rules[g.Rule].Response.Ladder) > 0 }
			if limit := max(pace.AtLeast, allows(&pace.Limit, len(h.observed)+len(departed))); recent > limit && slices.ContainsFunc(begun, isNew) && h.isPaceOld(pace) {
				h.log("%d treatments began within %s, at most %d may", recent, pace.Period, limit)
				h.fail("more treatments begin than the pace allows")
			}
			h.saw["begun under a pace"]++
		}
	}
}

// checkAttempts checks that a treatment that begins is not one too many. The finding names the start
// of the case only if the rule has one condition, or needs all.
func (h *history) checkAttempts(g triage.Grant) {
	limit, rule, facts := h.rails.MaxAttempts, h.rules[g.Rule], h.observed[g.Node]
	if limit == nil || len(rule.Response.Ladder) == 0 {
		return
	}
	h.saw["begun under maxAttempts"]++
	since := h.finding(placement{rule: g.Rule, node: g.Node}).Since
	if !rule.When.All && len(groups(rule)) > 1 {
		since = time.Time{}
	}
	within := 0
	for _, a := range facts.Attempts {
		if a.Rule == g.Rule && !a.Inherited && !a.Began.Before(since) {
			return // the same attempt
		}
		if a.Began.Add(limit.Window).After(h.now) {
			within++
		}
	}
	if within > 0 {
		h.saw["begun under maxAttempts after other attempts"]++
	}
	if within >= limit.Limit {
		h.log("%s on %s is attempt %d within %s: %+v", g.Rule, g.Node, within+1, limit.Window, facts.Attempts)
		h.fail("a treatment is begun above maxAttempts")
	}
}

// changeAttempts removes the attempts of a node, as a user does, or adds one of an earlier node, or of
// any rule.
func (h *history) changeAttempts(node *triage.Node) {
	if len(node.Attempts) > 0 && rare(h.t, 3) {
		node.Attempts = nil
		return
	}
	began := pick(h.t, []time.Time{h.now, h.now.Add(-time.Second), h.now.Add(-time.Minute), h.now.Add(-time.Hour), h.now.Truncate(time.Second)})
	rule := h.drawID()
	if ids := h.ids(); len(ids) > 0 {
		rule = pick(h.t, ids)
	}
	node.Attempts = append(node.Attempts, triage.Attempt{Rule: rule, Began: began, Inherited: rare(h.t, 2)})
}

// noteAttempt stores the attempt of a treatment that begins, mostly.
func (h *history) noteAttempt(node *triage.Node, planned *triage.PlannedTreatment) {
	if planned.Step == 0 && h.core().IsNewAttempt(node.Name, planned.Rule) && !rare(h.t, 8) {
		node.Attempts = append(node.Attempts, triage.Attempt{Rule: planned.Rule, Began: h.now})
	}
}

// isPaceOld says that the rails have had this pace for its whole period.
func (h *history) isPaceOld(pace *triage.Pace) bool {
	return !h.pacedSince.IsZero() && !h.pacedSince.Add(pace.Period).After(h.now)
}

// values counts the values of a label.
func (h *history) values(label string) int {
	values := map[string]bool{}
	for _, node := range h.observed {
		if value, has := node.Labels[label]; has {
			values[value] = true
		}
	}
	return len(values)
}

// checkShare checks a limit on nodes in treatment.
func (h *history) checkShare(what string, limit *triage.Limit, fresh []triage.Grant, in map[string]bool, belongs func(labels map[string]string) bool) {
	if limit == nil || isAll(limit) {
		return
	}
	all, treated := 0, len(in)
	for name, node := range h.observed {
		switch id := name + "/" + node.UID; {
		case belongs(node.Labels):
			all++
			if !in[id] && len(node.Foreign) > 0 && h.isCountedForeign(node) {
				treated++
			}
		case in[id]:
			treated--
		}
	}
	h.saw["begun under "+what]++
	if may := allows(limit, all); treated > may {
		h.log("%d are in treatment, %d may be: %v, new %v", treated, may, in, fresh)
		h.fail("something is begun above " + what)
	}
}

// isCountedForeign says that a rule counts a NoExecute taint of another component.
func (h *history) isCountedForeign(node triage.Node) bool {
	for _, rule := range h.rules {
		if wantsNoExecute(rule) && selects(rule, node) && slices.Contains(node.Foreign, rule.Response.Taint.Key) {
			return true
		}
	}
	return false
}

// checkLast checks that a node remains that is ready and open to new pods.
func (h *history) checkLast(fresh []triage.Grant, in map[string]bool) {
	if !h.rails.KeepLast {
		return
	}
	isReady := func(node triage.Node) bool {
		ready, _ := rowOf(node, triage.Ready)
		return ready.Status == triage.True && !node.Starting && !node.Closed && !node.Dedicated
	}
	// A node that a taint closes is not open; checkClosed judges that taint.
	closings := h.core().Closings()
	isNew := func(g triage.Grant) bool {
		isClosed := slices.ContainsFunc(h.observed[g.Node].Taints, func(t triage.Taint) bool { return t.Effect >= triage.NoSchedule }) ||
			slices.ContainsFunc(closings, func(closing triage.Grant) bool { return closing.Node == g.Node })
		return isReady(h.observed[g.Node]) && !isClosed
	}
	if !slices.ContainsFunc(fresh, isNew) {
		return
	}
	h.saw["begun beside the last node"]++
	for name, node := range h.observed {
		if isReady(node) && !in[name+"/"+node.UID] {
			return
		}
	}
	h.fail("the last node that is ready and open is treated")
}

// checkClosed returns a check that the nodes that are closed to new pods, or may be by a write
// in flight, are within the limit whenever another node may be closed.
func (h *history) checkClosed() func() {
	var core *triage.Core
	before := map[string]bool{}
	return func() {
		decided, closed := map[string]bool{}, map[string]bool{}
		for _, g := range h.core().Closings() {
			if node, known := h.observed[g.Node]; known && node.UID == g.UID {
				decided[g.Node+"/"+g.UID], closed[g.Node] = true, true
			}
		}
		isFresh := h.core() != core || !h.loaded
		core = h.core()
		old := before
		before = map[string]bool{}
		for name, node := range h.observed {
			isClosing := func(taint triage.Taint) bool { return taint.Effect >= triage.NoSchedule }
			if node.Closed || slices.ContainsFunc(node.Taints, isClosing) {
				closed[name] = true
			}
			before[name+"/"+node.UID] = closed[name]
			for _, taint := range h.plans[name].Taints {
				if isClosing(taint.Taint) && !closed[name] {
					h.fail("a plan closes a node without a decision")
				}
			}
		}
		isNew := func(name string) bool {
			node := h.observed[name]
			return decided[name+"/"+node.UID] && !old[name+"/"+node.UID] && !node.Closed && len(node.Taints) == 0
		}
		if isFresh || !slices.ContainsFunc(slices.Collect(maps.Keys(h.observed)), isNew) {
			return
		}
		for name, node := range h.observed {
			if h.isPaused(node) && isNew(name) {
				h.log("%s", name)
				h.fail("a paused node is closed")
			}
		}
		if limit := h.rails.Unschedulable; limit != nil {
			h.saw["closed under maxUnschedulable"]++
			if may := allows(limit, len(h.observed)); len(closed) > may {
				h.log("%d are closed, %d may be: %v", len(closed), may, closed)
				h.fail("a node is closed above maxUnschedulable")
			}
		}
		if h.rails.KeepLast {
			h.saw["closed beside the last node"]++
			h.checkOpenLeft(closed, isNew)
		}
	}
}

// checkOpenLeft checks that closing these nodes has left one that is ready and open.
func (h *history) checkOpenLeft(closed map[string]bool, isNew func(string) bool) {
	wasReady, treated := false, map[string]bool{}
	for _, g := range h.core().Grants() {
		treated[g.Node] = treated[g.Node] || !g.Taint
	}
	for name, node := range h.observed {
		ready, _ := rowOf(node, triage.Ready)
		isReady := ready.Status == triage.True && !node.Starting && !node.Dedicated && !h.isCountedForeign(node)
		switch {
		case isReady && !closed[name] && !treated[name]:
			return
		case isReady && isNew(name) && !treated[name]:
			wasReady = true
		}
	}
	if wasReady {
		h.fail("the last node that is ready and open is closed")
	}
}
