package triage

import (
	"cmp"
	"slices"
	"strings"
)

// Plan returns the desired state of a node at the time of the last call, with reasons. It
// changes nothing.
func (c *Core) Plan(name string) (Plan, bool) {
	n := c.nodes[name]
	if n == nil {
		return Plan{}, false
	}
	p := Plan{Node: n.name, UID: n.uid, Initialized: n.initialized}
	if len(n.episodes) > 0 {
		p.Findings = make([]Reason, 0, len(n.episodes))
	}
	strongest, by := c.strongest(n)
	episodes := n.episodes
	for _, r := range n.rules {
		for len(episodes) > 0 && compareRules(episodes[0].rule, r) < 0 {
			c.explain(&p, episodes[0], strongest, by)
			episodes = episodes[1:]
		}
		if len(episodes) > 0 && episodes[0].rule == r {
			c.explain(&p, episodes[0], strongest, by)
			episodes = episodes[1:]
		} else if n.unknowns > 0 {
			if reason := r.reason(); c.whyUnclear(&reason, n, r) {
				p.add(reason)
			}
		}
	}
	for _, ep := range episodes {
		c.explain(&p, ep, strongest, by)
	}
	p.Reopen = c.holdsUnusedPermission(n)
	c.keepMemories(&p, n)
	if len(p.Findings) == 0 {
		p.Reason = Reason{Code: Healthy, Of: len(n.rules)}
		if len(n.rules) == 0 {
			p.Reason = Reason{Code: NotSelected}
		}
	}
	return p, true
}

func (p *Plan) add(r Reason) {
	p.Findings = append(p.Findings, r)
	if p.Reason.Code == 0 || cmp.Less(r.Code, p.Reason.Code) {
		p.Reason = r
	}
	if !r.Until.IsZero() && (p.Next.IsZero() || r.Until.Before(p.Next)) {
		p.Next = r.Until
	}
}

// explain adds the finding of one rule to the plan.
func (c *Core) explain(p *Plan, ep *episode, strongest Effect, by RuleID) {
	c.remember(p, ep)
	reason := ep.rule.reason()
	stays := ep.active || ep.present
	switch {
	case ep.observedEffect > 0 && c.isKept(ep.rule.spec.ID):
		reason = c.explainKept(p, ep)
	case c.keepsWhileRecovering(ep):
		reason = c.explainRecovery(p, ep)
	case !ep.unhealthy && stays:
		reason.Code = c.whyReleased(ep)
		p.Release = append(p.Release, reason)
	case !ep.unhealthy && ep.verdict == unclear:
		c.whyUnclear(&reason, ep.node, ep.rule)
	case !ep.unhealthy:
		reason.Code, reason.Of = Partial, len(ep.rule.groups)
		for i := range ep.rule.groups {
			if v, _, _ := c.evaluateGroup(&ep.rule.groups[i], ep.node); v == holds {
				if reason.Have++; reason.Have == 1 {
					c.nameSignal(&reason, ep, i)
				}
			}
		}
	case ep.rule.spec.DryRun:
		reason = c.explainDryRun(p, ep)
	case !ep.rule.treats:
		reason = c.explainTaint(p, ep, strongest, by)
	default:
		reason = c.explainTreatment(p, ep)
	}
	p.add(reason)
}

// explainKept adds the taints of a rule that cannot be read now. It calls off a NoExecute taint
// that was decided and is not on the node.
func (c *Core) explainKept(p *Plan, ep *episode) Reason {
	reason := ep.rule.reason()
	reason.Code = Kept
	for _, t := range ep.node.extra.taints {
		if t.Rule == ep.rule.spec.ID {
			reason.Key, reason.Effect = t.Key, t.Effect
			p.Taints = append(p.Taints, PlannedTaint{Taint: t, Reason: reason})
		}
	}
	if ep.active && !ep.slotObserved {
		cancelled := reason
		cancelled.Other = calledOff
		p.Release = append(p.Release, cancelled)
	}
	return reason
}

// keepMemories adds the memories of rules that cannot be read now. If anything is kept, it
// sorts by name: a rule that cannot be read has no precedence, and the stored order must not
// change.
func (c *Core) keepMemories(p *Plan, n *node) {
	if len(c.keeps) == 0 {
		return
	}
	isKept := slices.ContainsFunc(p.Taints, func(t PlannedTaint) bool { return t.Reason.Code == Kept })
	for _, m := range n.extra.memories {
		if c.isKept(m.Rule) {
			p.Remember = append(p.Remember, m)
			isKept = true
		}
	}
	if isKept {
		slices.SortStableFunc(p.Taints, func(a, b PlannedTaint) int { return a.Rule.Compare(b.Rule) })
		slices.SortStableFunc(p.Remember, func(a, b Memory) int { return a.Rule.Compare(b.Rule) })
	}
}

// remember adds the clocks that a restarted core could not derive from the conditions of the
// node. It does so only where the start matters: for a duration, or to know whether a node
// with an Unknown condition was unhealthy.
func (c *Core) remember(p *Plan, ep *episode) {
	if ep.rule.spec.DryRun {
		return
	}
	for i := range ep.rule.groups {
		g, k := &ep.rule.groups[i], ep.clock(i)
		if k == nil || g.fromCreation {
			continue
		}
		v, _, row := c.evaluateGroup(g, ep.node)
		if v == unclear || g.hasDuration && row != nil && row.transition != k.derivableFrom {
			p.Remember = append(p.Remember, Memory{
				Rule: ep.rule.spec.ID, Condition: g.name, Since: instant(k.since), Transition: instant(row.transition),
			})
		}
	}
}

func (c *Core) whyReleased(ep *episode) Code {
	switch {
	case ep.rule.gone:
		return RuleGone
	case !ep.node.selectedBy(ep.rule):
		return Deselected
	}
	return Recovered
}

// reason returns a reason that says only which rule it concerns.
func (r *rule) reason() Reason { return Reason{Rule: r.spec.ID, Taint: !r.treats} }

// reasonOf returns a reason with the deciding condition.
func (c *Core) reasonOf(ep *episode) Reason {
	reason := ep.rule.reason()
	if ep.verdict == holds {
		c.nameSignal(&reason, ep, ep.decidingGroup)
		reason.Eligible = instant(ep.eligible)
		reason.AlsoMet = ep.alsoMet()
	}
	return reason
}

// alsoMet lists the conditions other than the deciding one, if the rule requires all.
func (ep *episode) alsoMet() string {
	if !ep.rule.spec.When.All || len(ep.rule.groups) == 1 {
		return ""
	}
	var others []string
	for i := range ep.rule.groups {
		if g := &ep.rule.groups[i]; i != ep.decidingGroup {
			others = append(others, g.name+"="+ep.node.status(g.condition).String())
		}
	}
	return strings.Join(others, " and ")
}

func (c *Core) nameSignal(reason *Reason, ep *episode, group int) {
	g := &ep.rule.groups[group]
	reason.Condition, reason.Status = g.name, ep.node.status(g.condition)
	reason.Since, reason.FromCreation = instant(ep.clock(group).since), g.fromCreation
}

func (c *Core) explainTreatment(p *Plan, ep *episode) Reason {
	reason := c.reasonOf(ep)
	if !ep.active {
		c.whyNotYet(&reason, ep)
		return reason
	}
	if ep.isUnobserved() {
		if code := c.calledOff(ep); code != 0 {
			return c.explainCancelled(p, ep, reason, code)
		}
	}
	reason.Code = Treating
	ep.nameStep(&reason, ep.step)
	if !ep.isUnobserved() {
		switch due, at := ep.due(c.now); {
		case due && reason.Step == reason.Steps:
			reason.Code = Exhausted
		case due:
			c.whyHeldBack(&reason, ep)
		default:
			reason.Until = instant(at)
		}
	}
	p.treat(ep, ep.step, ep.stepSince, reason)
	return reason
}

// explainCancelled says why a decided, unobserved step does not begin now. The steps in the
// facts stay.
func (c *Core) explainCancelled(p *Plan, ep *episode, reason Reason, code Code) Reason {
	step, since, there := ep.latestStep()
	switch {
	case ep.step == 0:
		c.nameObstacle(&reason, ep, code)
		p.Release = append(p.Release, reason)
		return reason
	case !there:
		c.nameObstacle(&reason, ep, code)
	default:
		reason.Code = Treating
		ep.nameStep(&reason, step)
		c.whyHeldBack(&reason, ep)
		p.treat(ep, step, since, reason)
	}
	p.Cancel = append(p.Cancel, reason)
	return reason
}

// explainRecovery says how long the treatment stays on a healthy node.
func (c *Core) explainRecovery(p *Plan, ep *episode) Reason {
	reason := ep.rule.reason()
	step, since, _ := ep.latestStep()
	if ep.verdict == unclear {
		c.nameObstacle(&reason, ep, Unclear)
	} else {
		reason.Code, reason.Since, reason.Until = Recovering, instant(ep.healthySince), instant(ep.recoveredAt())
		ep.nameStep(&reason, step)
	}
	p.treat(ep, step, since, reason)
	if ep.isUnobserved() {
		p.Cancel = append(p.Cancel, reason)
	}
	return reason
}

// latestStep returns the highest step in the facts.
func (ep *episode) latestStep() (step int, since int64, there bool) {
	latest := ep.latestTreatment()
	if latest == nil {
		return 0, 0, false
	}
	if step = ep.rule.clampStep(latest.Step); step == ep.step {
		return step, ep.stepSince, true
	}
	return step, nanos(latest.Since), true
}

func (ep *episode) nameStep(reason *Reason, step int) {
	reason.Step, reason.Steps, reason.Action = step+1, len(ep.rule.spec.Response.Ladder), ep.action(step)
}

// action returns how the rule takes a step on the node.
func (ep *episode) action(step int) Action {
	action := ep.rule.spec.Response.Ladder[step].Action
	if action == Terminate && slices.Contains(ep.node.extra.remediates, ep.rule.spec.ID) {
		return Remediate
	}
	return action
}

// treat sets the treatment of the plan. If several rules treat the node, the first one wins.
func (p *Plan) treat(ep *episode, step int, since int64, reason Reason) {
	if p.Treatment != nil {
		return
	}
	wanted := ep.rule.spec.Response.Ladder[step]
	p.Treatment = &PlannedTreatment{
		Rule: ep.rule.spec.ID, Step: step, Action: ep.action(step), Ref: wanted.Ref,
		Since: instant(since), HealthySince: instant(ep.healthySince), Reason: reason,
	}
}

// whyHeldBack says what prevents the next step. If the rule is unclear, the reason names no
// condition instead.
func (c *Core) whyHeldBack(reason *Reason, ep *episode) {
	switch c.heldBack(ep) {
	case OnHold:
		reason.Other = c.hold(ep.rule)
	case NodePaused:
		reason.Other, reason.Until = ep.node.extra.hold, instant(ep.node.extra.holdUntil)
	case Vetoed:
		reason.Other = ep.veto().Reason
	case CorrelatedFailed:
		held := Reason{Code: CorrelatedFailed}
		c.nameFailure(&held, ep.node)
		reason.Other = held.railText()
	case OutsideWindow:
		c.nameWindow(reason, ep)
		reason.Other = outsideWindow + reason.Other
	case 0: // nothing, if the nodes are still being loaded
		reason.Other, reason.Until = couldNotBegin, instant(nextAfter(c.now, ep.notBefore))
	}
}

// whyNotYet says what the treatment of an unhealthy node waits for.
func (c *Core) whyNotYet(reason *Reason, ep *episode) {
	switch {
	case ep.verdict == unclear:
		c.nameObstacle(reason, ep, Unclear)
	case ep.eligible > c.now:
		c.nameObstacle(reason, ep, Pending)
	case ep.notBefore > c.now:
		reason.Code, reason.Until = Retrying, instant(ep.notBefore)
	case !c.loaded:
		reason.Code, reason.Other = OnHold, nodesLoading
	default:
		c.nameObstacle(reason, ep, c.obstacle(ep))
	}
}

// nameObstacle adds the details of an obstacle: names, numbers or a time.
func (c *Core) nameObstacle(reason *Reason, ep *episode, code Code) {
	r := ep.rule
	reason.Code = code
	switch code {
	case Unclear:
		c.whyUnclear(reason, ep.node, r)
	case Pending:
		reason.Until = instant(ep.eligible)
	case OnHold:
		reason.Other = c.hold(r)
		if isDecided := r.treats && ep.active; r.spec.Hold == "" && !r.spec.DryRun && !isDecided {
			c.nameWould(reason, ep)
		}
	case NodePaused:
		reason.Other, reason.Until = ep.node.extra.hold, instant(ep.node.extra.holdUntil)
	case OutsideWindow:
		c.nameWindow(reason, ep)
	case Vetoed:
		reason.Other = ep.veto().Reason
	case Busy:
		for _, other := range ep.node.episodes {
			if other.active && other.rule.treats {
				reason.Other = other.rule.spec.ID.String()
				break
			}
		}
	case GivenUp:
		c.nameAttempts(reason, ep)
	case ControlPlaneBusy:
		reason.Other = c.controlPlane.holder()
	case GateClosed, CoolingDown:
		c.nameGate(reason, r)
	case CapFull:
		reason.Have, reason.Limit, reason.Of = r.inTreatment(), r.spec.Bound.Cap.Of(r.capBase()), r.capBase()
		reason.Pool = r.spec.Bound.Pool
		nameDeparted(reason, r)
	case NotAllowed:
		reason.Other = r.allowance.Reason
	default:
		c.nameRail(reason, ep.node, code)
	}
}

// nameGate adds the numbers of a closed gate to a reason.
func (c *Core) nameGate(reason *Reason, r *rule) {
	if reason.Code == CoolingDown {
		reason.Calm, reason.Until = instant(r.calmSince), instant(r.calmUntil())
		return
	}
	reason.Have, reason.Recovering, reason.Departed = r.total.GateUnhealthy(), r.total.Recovering, r.total.Departed
	reason.Limit, reason.Of = r.spec.Bound.Gate.Of(r.total.GateTotal()), r.total.GateTotal()
	reason.Other = r.spec.Bound.GateName
}

// nameDeparted names the deleted nodes that keep a slot in the pool of a rule, and when time
// alone lets the rule begin. Nodes that are gone lower a percentage, so more than one slot
// may have to be freed for that.
func nameDeparted(reason *Reason, r *rule) {
	if reason.Departed = r.departedInPool(); reason.Departed == 0 {
		return
	}
	excess, names := reason.Have-reason.Limit, make([]string, 0, MostNamed)
	for d := range r.departedInOrder() {
		if len(names) < MostNamed {
			names = append(names, d.node)
		}
		if excess == 0 {
			reason.Until = instant(later(d.gone, ReplacementWait))
		}
		if excess--; excess < 0 && len(names) == MostNamed {
			break
		}
	}
	reason.Gone = strings.Join(names, ", ")
}

// explainDryRun says what the rule would do once it is eligible. An existing or decided
// response is removed, even while the rule is unclear.
func (c *Core) explainDryRun(p *Plan, ep *episode) Reason {
	reason := c.reasonOf(ep)
	stays := ep.active || ep.present
	switch {
	case ep.verdict == holds && ep.eligible <= c.now:
		reason.Code = DryRun
		c.nameWould(&reason, ep)
	case stays:
		reason.Code = DryRun
		if ep.verdict == holds {
			reason.Until = instant(ep.eligible)
		}
	case ep.verdict == unclear:
		c.whyUnclear(&reason, ep.node, ep.rule)
	default:
		reason.Code, reason.Until = Pending, instant(ep.eligible)
	}
	if stays {
		reason.Other = reason.removalText()
		p.Release = append(p.Release, reason)
	}
	return reason
}

// nameWould adds to a reason what a due episode would begin without the hold of its stage, or
// without its dry run, and what would prevent that.
func (c *Core) nameWould(reason *Reason, ep *episode) {
	c.nameResponse(reason, ep)
	if !c.loaded || ep.active || ep.present {
		return
	}
	held := c.reasonOf(ep)
	code := c.onHold(ep)
	if code == OnHold && !ep.rule.spec.DryRun { // a pause of the node is next
		if code = 0; c.isPaused(ep.node) {
			code = NodePaused
		}
	}
	if code == 0 && !ep.node.mayClose && ep.wouldClose() {
		code = c.closingRail(ep.node)
	}
	if code == 0 && (ep.rule.treats || reason.Effect == NoExecute) {
		switch code = c.limit(ep); {
		case code == Tainted:
			reason.Besides = alreadyTainted
			return
		case code != 0 && !ep.rule.treats:
			c.whyFellBack(&held, ep)
			reason.Effect, reason.Besides = NoSchedule, "not NoExecute: "+held.notNoExecuteText()
			return
		}
	}
	if code != 0 {
		c.nameObstacle(&held, ep, code)
		reason.Besides = held.waitText()
	}
}

// nameResponse names the first response of the rule, without regard to bounds.
func (c *Core) nameResponse(reason *Reason, ep *episode) {
	if ep.rule.treats {
		ep.nameStep(reason, 0)
		return
	}
	taint := ep.rule.spec.Response.Taint
	reason.Key, reason.Effect = taint.Key, taint.Effect
	if ep.excludesNoExecute() {
		reason.Effect = NoSchedule
	}
}

const (
	calledOff            = "NoExecute is called off"
	nodesLoading         = "the nodes are still being loaded"
	controlPlaneExcluded = "control-plane nodes are not included"
	couldNotBePlaced     = "it could not be placed"
	couldNotBegin        = "it could not be carried out"
	outsideWindow        = "outside the window "
	alreadyTainted       = "the node already has this taint, which Autohealer cannot prove to be its own"
)

// wantedEffect returns the effect of the taint that an episode wants on its node, without
// regard to other rules; 0 for none.
func (c *Core) wantedEffect(ep *episode) Effect {
	if ep.rule.gone || ep.rule.treats || ep.rule.spec.DryRun || !ep.unhealthy {
		return 0
	}
	taint := ep.rule.spec.Response.Taint
	begins := c.mayBegin(ep)
	switch {
	case !ep.node.mayClose && ep.closes(): // nothing on the node closes it, and nothing may
		return ep.observedEffect
	case ep.excludesNoExecute() && (begins || ep.observedEffect == NoExecute):
		return NoSchedule
	case !begins: // existing taints stay, and decided taints do not begin
		return ep.observedEffect
	case taint.Effect == NoExecute && !ep.active && !ep.rule.hasForeign(ep.node):
		return NoSchedule
	case taint.Effect == NoExecute && c.isNoExecuteCalledOff(ep):
		return NoSchedule
	}
	return taint.Effect
}

// wantedKey returns the key of the taint that an episode wants on its node. A taint on the node
// stays until the rule may begin: another key is a new taint.
func (c *Core) wantedKey(ep *episode) string {
	key := ep.rule.spec.Response.Taint.Key
	if c.mayBegin(ep) && (ep.node.mayClose || !ep.closes()) {
		return key
	}
	stays := ""
	for _, t := range ep.node.extra.taints {
		switch {
		case t.Rule != ep.rule.spec.ID || t.Effect != ep.observedEffect:
		case t.Key == key:
			return key
		case stays == "":
			stays = t.Key
		}
	}
	return stays
}

// isNoExecuteCalledOff says that a NoExecute taint was decided, is not on the node, and may not be
// placed now: the window has closed, or nodes have failed together since.
func (c *Core) isNoExecuteCalledOff(ep *episode) bool {
	return ep.active && !ep.slotObserved && (c.isOutsideWindow(ep, 0) || c.failureOf(ep.node) != nil)
}

// mayBegin says whether the rule of an unhealthy episode may place something new on the
// node.
func (c *Core) mayBegin(ep *episode) bool {
	return ep.verdict == holds && ep.eligible <= c.now && c.onHold(ep) == 0
}

// strongest returns the highest declared effect among the rules that want a taint on the
// node, and the first rule with that effect.
func (c *Core) strongest(n *node) (effect Effect, by RuleID) {
	for _, ep := range n.episodes {
		if c.wantedEffect(ep) == 0 {
			continue
		}
		if declared := ep.rule.spec.Response.Taint.Effect; declared > effect {
			effect, by = declared, ep.rule.spec.ID
		}
	}
	return effect, by
}

func (c *Core) explainTaint(p *Plan, ep *episode, strongest Effect, by RuleID) Reason {
	reason := c.reasonOf(ep)
	taint := ep.rule.spec.Response.Taint
	effect := c.wantedEffect(ep)
	superseded := effect > 0 && taint.Effect < strongest
	// A NoExecute taint that was decided, is not on the node, and should not be placed now.
	off := ep.active && !ep.slotObserved && effect < NoExecute && !superseded
	switch {
	case effect == 0:
		switch {
		case ep.verdict == unclear:
			c.whyUnclear(&reason, ep.node, ep.rule)
		case ep.eligible > c.now:
			reason.Code, reason.Until = Pending, instant(ep.eligible)
		default:
			c.whyNotClosed(&reason, ep)
		}
		if off {
			p.Release = append(p.Release, reason)
		}
		return reason
	case superseded:
		reason.Code, reason.Other, reason.Effect = Superseded, by.String(), strongest
		if ep.present || ep.active {
			p.Release = append(p.Release, reason)
		}
		return reason
	}
	key := c.wantedKey(ep)
	reason.Code, reason.Key, reason.Effect = Tainted, key, effect
	if effect == NoExecute && !ep.active { // only a foreign taint leads here
		reason.Foreign = 1
		return reason
	}
	if ep.verdict == holds && ep.eligible > c.now {
		reason.Until = instant(ep.eligible)
	}
	mayBegin, isDue := c.mayBegin(ep), ep.verdict == holds && ep.eligible <= c.now
	switch {
	case mayBegin && ep.closes() && !ep.node.mayClose, isDue && !mayBegin && key != taint.Key: // the taint on the node stays
		reason.Key, reason.Effect = "", 0
		c.whyNotClosed(&reason, ep)
	// An excluded control-plane node gets NoSchedule at most, whether or not the taint may
	// begin.
	case effect == NoSchedule && ep.excludesNoExecute(), effect < taint.Effect && mayBegin:
		c.whyFellBack(&reason, ep)
	}
	if off {
		cancelled := reason
		if !reason.Code.IsWait() {
			cancelled.Other = calledOff
		}
		p.Release = append(p.Release, cancelled)
	}
	p.Taints = append(p.Taints, PlannedTaint{Taint{Rule: ep.rule.spec.ID, Key: key, Effect: effect}, reason})
	return reason
}

func (c *Core) whyFellBack(reason *Reason, ep *episode) {
	reason.Code = FellBack
	switch r := ep.rule; {
	case ep.excludesNoExecute():
		reason.Other = controlPlaneExcluded
	case c.isOutsideWindow(ep, 0):
		window := *reason
		c.nameObstacle(&window, ep, OutsideWindow)
		reason.Other, reason.Until = window.waitText(), window.Until
	case ep.notBefore > c.now:
		reason.Other, reason.Until = couldNotBePlaced, instant(ep.notBefore)
	case !c.loaded:
		reason.Other = nodesLoading
	case ep.active || r.hasRoom():
		rail := *reason
		c.nameObstacle(&rail, ep, c.rail(ep))
		reason.Other, reason.Until = rail.railText(), rail.Until
	default:
		reason.Have, reason.Limit, reason.Of = r.inTreatment(), r.spec.Bound.Cap.Of(r.total.Selected), r.total.Selected
		reason.Foreign = r.total.Foreign
	}
}

// whyUnclear makes the first Unknown condition the reason why the rule is unclear. It
// returns false if the rule is not unclear.
func (c *Core) whyUnclear(reason *Reason, n *node, r *rule) bool {
	var holding, open int
	for i := range r.groups {
		switch v, _, row := c.evaluateGroup(&r.groups[i], n); v {
		case holds:
			holding++
		case unclear:
			if open++; open == 1 {
				reason.Condition, reason.Other = r.groups[i].name, c.symbols.name(row.reason)
			}
		}
	}
	if r.overall(holding, open) != unclear {
		return false
	}
	reason.Code = Unclear
	return true
}
