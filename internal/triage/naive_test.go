package triage_test

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

// naiveCore decides like the core, without any of its code; package naive says what the
// parts of a rule mean. It keeps only history that
// cannot be computed again. Everything else it computes for all nodes and all rules on each
// call. It is slow and simple; read it beside the package documentation.
type naiveCore struct {
	now      time.Time
	loaded   bool
	rules    map[triage.RuleID]triage.Rule
	nodes    map[string]*nodeState
	departed []triage.Grant // terminations whose node is deleted
	// ladders are the lengths of the ladders of all rules, including removed rules with
	// responses.
	ladders map[triage.RuleID]int
	// storms are the current storms by rule, with the time at which each calmed down; zero
	// if it has not.
	storms map[triage.RuleID]time.Time
	// pools are the pools by rule, including removed rules with responses.
	pools map[triage.RuleID]string
	// allowances are by rule, even if the rule is not set.
	allowances map[triage.RuleID]triage.Allowance
	rails      triage.Rails
	starts     []triage.Start // that the pace counts
	// keeps tells by kind which rules cannot be read.
	keeps map[triage.Kind]func(triage.RuleID) bool

	// saw counts events, so that tests can check that they happened.
	saw map[string]int
}

// nodeState is a node with one UID. The map changed has the time of the last status change
// by condition. The map staleTransition has the conditions whose transition time is not that
// of the change.
type nodeState struct {
	facts              triage.Node
	created            time.Time // as in the facts, else when the node was first seen
	wasReady           bool      // at any time
	initialized        bool      // at any time
	readyWhileStarting bool      // it was Ready while it had startup taints
	isReplacement      bool      // it replaces a deleted node
	changed            map[string]time.Time
	staleTransition    map[string]bool
	lastOther          map[string]time.Time // when the last version with another status arrived, by condition
	absent             map[string]absentRow // conditions that the node no longer reports
	flapped            map[string]bool      // between the last two observations; set only during updateNode
	ruleStates         map[triage.RuleID]*ruleState
	mayClose           bool // taints that close it to new pods are decided or in the facts
	closedByUs         bool // the facts show such a taint
}

// absentRow is a condition as the last version with it had it, and when that version arrived.
type absentRow struct {
	triage.Condition
	seen time.Time
}

// ruleState is the history of a rule on a node.
type ruleState struct {
	evaluated bool // this definition of the rule was evaluated while it selected the node
	unhealthy bool
	clocks    map[string]start
	notBefore time.Time

	// matchedOrUnclear is the last result of the rule, and notMatchedSince is when it last
	// became not matched.
	matchedOrUnclear bool
	notMatchedSince  time.Time
	healthySince     time.Time // when the recovery began; zero if there is none

	response
}

// start is the start of a clock. It is derivable while the condition has the transition time
// from which a restarted core would derive it.
type start struct {
	at         time.Time
	derivable  bool
	transition time.Time
}

// response is a response that occupies a slot; the zero value occupies none.
type response struct {
	active        bool
	treatment     bool // a step of a ladder; otherwise a NoExecute taint
	step          int
	observedSteps int // highest step that was in the facts, plus one
	since         time.Time
	failed        bool
	replaced      bool
	replacement   *nodeState // the replacement, if it was seen
	// terminates is kept when the rule is removed, because the ladder is not known any more.
	terminates     bool
	terminatesStep int // the step that terminates refers to, plus one
	deletes        bool
	paced          time.Time // the start of the treatment, if it is given back when it is abandoned
}

// needsReplacement says that the node has to be replaced when it is deleted.
func (r response) needsReplacement() bool { return r.active && (r.terminates || r.deletes) }

type verdict = naive.Verdict

const (
	not     = naive.Not
	unclear = naive.Unclear
	holds   = naive.Holds
)

func newNaiveCore(saw map[string]int) *naiveCore {
	return &naiveCore{
		rules: map[triage.RuleID]triage.Rule{}, nodes: map[string]*nodeState{}, ladders: map[triage.RuleID]int{},
		storms: map[triage.RuleID]time.Time{}, pools: map[triage.RuleID]string{}, allowances: map[triage.RuleID]triage.Allowance{}, saw: saw,
	}
}

// ---- input

func (t *naiveCore) SetRule(now time.Time, r triage.Rule) error {
	if err := r.Validate(); err != nil {
		return err // an invalid rule changes nothing
	}
	t.advanceTo(now)
	old, known := t.rules[r.ID]
	if known && reflect.DeepEqual(old, r) {
		t.decide()
		return nil
	}
	t.rules[r.ID] = r
	t.ladders[r.ID] = len(r.Response.Ladder)
	if before := t.pools[r.ID]; before != r.Bound.Pool && t.inTreatment(r.ID) > 0 {
		t.saw["pools changed with treatments"]++
	}
	t.pools[r.ID] = r.Bound.Pool
	if _, told := t.allowances[r.ID]; told && !known {
		t.saw["allowances set before the rule"]++
	}
	if r.Bound.Cooldown == 0 {
		delete(t.storms, r.ID)
	} else if _, on := t.storms[r.ID]; on && known {
		t.saw["storms under a changed rule"]++
	}
	for _, p := range t.nodes {
		c := p.ruleStates[r.ID]
		if c == nil {
			continue
		}
		kept := map[string]start{}
		for condition, clock := range c.clocks {
			if known && sameButFor(signalsOf(old, condition), signalsOf(r, condition)) {
				kept[condition] = clock
			}
		}
		c.clocks, c.evaluated, c.unhealthy = kept, false, false
		if last := len(r.Response.Ladder) - 1; c.active && last >= 0 {
			c.step, c.observedSteps = min(c.step, last), min(c.observedSteps, last+1)
			c.recordTermination(r) // the action of the step may have changed, before it escalates
		}
	}
	t.decide()
	return nil
}

// Keep sets which rules of a kind cannot be read.
func (t *naiveCore) Keep(now time.Time, kind triage.Kind, keeps func(triage.RuleID) bool) {
	t.Advance(now)
	if t.keeps == nil {
		t.keeps = map[triage.Kind]func(triage.RuleID) bool{}
	}
	t.keeps[kind] = keeps
}

// isKept says that a rule is not set because it cannot be read.
func (t *naiveCore) isKept(id triage.RuleID) bool {
	_, known := t.rules[id]
	return !known && t.keeps[id.Kind] != nil && t.keeps[id.Kind](id)
}

func (t *naiveCore) RemoveRule(now time.Time, id triage.RuleID) {
	t.advanceTo(now)
	delete(t.rules, id)
	delete(t.storms, id)
	delete(t.allowances, id)
	t.decide()
}

func (t *naiveCore) Observe(now time.Time, nodes ...triage.Node) {
	t.advanceTo(now)
	for _, facts := range nodes {
		p := t.nodes[facts.Name]
		if p != nil && p.facts.UID != facts.UID {
			t.forget(facts.Name)
			p = nil
		}
		flapped := map[string]bool{}
		if p == nil {
			p = &nodeState{
				created:         facts.Created,
				changed:         map[string]time.Time{},
				staleTransition: map[string]bool{},
				lastOther:       map[string]time.Time{},
				absent:          map[string]absentRow{},
				ruleStates:      map[triage.RuleID]*ruleState{},
			}
			for _, row := range facts.Conditions {
				if _, met := p.changed[row.Type]; met {
					continue
				}
				at, derivable := t.began(p, row)
				p.changed[row.Type], p.staleTransition[row.Type] = at, !derivable
			}
			if p.created.IsZero() {
				p.created = t.now
			}
			t.nodes[facts.Name] = p
		} else {
			for _, row := range slices.Concat(p.facts.Conditions, facts.Conditions) {
				before, was := rowOf(p.facts, row.Type)
				after, is := rowOf(facts, row.Type)
				earlier, seen, returns := before, facts.Previous, false
				if gone, is := p.absent[row.Type]; is && !was {
					earlier, seen, returns = gone.Condition, gone.seen, true
					t.saw["conditions that return"]++
					delete(p.absent, row.Type)
				}
				switch { // Unknown and a missing condition do not show that the node was healthy
				case !is:
					p.absent[row.Type] = absentRow{before, facts.Previous}
				case !was && !returns:
				case earlier.Status == after.Status && earlier.Reason != after.Reason:
					p.lastOther[row.Type] = roundUp(t.now)
				case earlier.Status != after.Status && earlier.Status != triage.Unknown:
					p.lastOther[row.Type] = roundUp(seen)
				}
				flapped[row.Type] = was && is && before.Status == after.Status && after.Transition.After(before.Transition)
				switch {
				case before.Status != after.Status || was != is:
					at, derivable := t.began(p, after)
					p.changed[row.Type], p.staleTransition[row.Type] = at, !derivable
				case !before.Transition.Equal(after.Transition): // later or earlier than the change
					p.staleTransition[row.Type] = true
				}
			}
		}
		p.facts = cloneNode(facts)
		ready, _ := rowOf(facts, triage.Ready)
		works := ready.Status == triage.True && !facts.Starting // ready for work
		p.initialized = p.initialized || facts.Initialized || works
		if ready.Status == triage.True && !p.initialized {
			p.readyWhileStarting = true
			t.saw["ready before the startup taints are gone"]++
		}
		p.flapped = flapped
		t.updateNode(p)
		p.flapped = nil
		for id, c := range p.ruleStates {
			c.recordTermination(t.rules[id])
		}

		if works && !p.wasReady {
			p.wasReady = true
			if p.readyWhileStarting {
				t.saw["startup taints gone from a ready node"]++
			}
			if t.loaded {
				t.countReplacement(p)
			}
		}
	}
	t.decide()
}

func (t *naiveCore) Forget(now time.Time, name string) {
	t.advanceTo(now)
	t.forget(name)
	t.decide()
}

func (t *naiveCore) Abandon(now time.Time, node string, id triage.RuleID, retry time.Duration) {
	t.advanceTo(now)
	if p := t.nodes[node]; p != nil {
		c := p.ruleStates[id]
		shown, there := t.latestStep(p, id)
		gives, isLadder := true, c != nil && c.treatment
		switch {
		case c == nil || !c.active:
			gives = false
		case !takesSlot(p.facts, id):
			t.giveBack(c)
			c.response, c.healthySince = response{}, time.Time{}
			t.saw["abandoned"]++
		case there && c.observedSteps <= c.step: // an earlier step exists, but not this one
			c.step, c.observedSteps, c.since, c.failed = shown.Step, shown.Step+1, shown.Since, shown.Failed
			c.recordTermination(t.rules[id])
			t.saw["abandoned a later step"]++
		default:
			gives = false
		}
		if gives {
			c.notBefore = times.Min(c.notBefore, t.now) // it keeps its turn
			if retry > 0 {
				c.notBefore = t.now.Add(retry)
			}
			rule, known := t.rules[id]
			if !isLadder || known && rule.Response.Taint != nil {
				p.mayClose = p.mayClose && !t.holdsUnusedPermission(p)
			}
		}
	}
	t.decide()
}

func (t *naiveCore) Reopen(now time.Time, node string, retry time.Duration) {
	t.advanceTo(now)
	if p := t.nodes[node]; p != nil && p.mayClose && !p.closedByUs && !slices.ContainsFunc(slices.Collect(maps.Values(p.ruleStates)), func(c *ruleState) bool { return c.active && !c.treatment }) {
		for id, rule := range t.rules {
			if c := p.ruleState(id); retry > 0 && c.unhealthy && t.closes(p, rule) {
				c.notBefore = t.now.Add(retry)
				t.saw["permissions to close that are tried again later"]++
			}
		}
		p.mayClose = false
	}
	t.decide()
}

func (t *naiveCore) Resume(now time.Time, g triage.Grant) {
	t.advanceTo(now)
	p := t.nodes[g.Node]
	if p != nil && p.facts.UID != g.UID {
		p = nil
	}
	rule, known := t.rules[g.Rule]
	ladder := len(rule.Response.Ladder) > 0
	if !known && g.Pool != "" {
		t.pools[g.Rule] = g.Pool
		t.saw["pools of removed rules, found after a restart"]++
	}
	switch {
	case p == nil && g.Closes:
	case (p == nil || !g.Gone.IsZero()) && slices.ContainsFunc(t.departed, func(v triage.Grant) bool { return v.Rule == g.Rule && v.Node == g.Node && v.UID == g.UID }):
		t.saw["departures resumed twice"]++
	case !g.Gone.IsZero():
		t.departed = append(t.departed, g)
	case p == nil:
		if ladder && !g.Replaced && (g.Deletes || rule.Response.Ladder[min(g.Step, len(rule.Response.Ladder)-1)].Action == triage.Terminate) {
			if g.Deletes {
				t.saw["departures of treatments that delete, found after a restart"]++
			}
			g.Gone, g.Deletes = t.now, false
			t.departed = append(t.departed, g)
			t.saw["departures"]++
		}
	case g.Closes:
		p.mayClose = true
		t.saw["permissions to close resumed"]++
	default:
		c := p.ruleState(g.Rule)
		p.mayClose = p.mayClose || g.Taint
		if !c.active {
			if known && isWeakerThanNoExecute(rule) {
				t.saw["resumed under a weaker effect"]++
			}
			c.response = response{active: true, treatment: !g.Taint, step: g.Step, since: g.Since}
			// The decision shows that the node was unhealthy.
			c.unhealthy = c.unhealthy || known && t.verdict(p, rule) == unclear
			t.saw["resumed"]++
		} else if step := min(g.Step, max(len(rule.Response.Ladder)-1, 0)); known && step > c.step {
			c.step, c.since, c.failed = step, g.Since, false
		}
		terminates := ladder && rule.Response.Ladder[min(c.step, len(rule.Response.Ladder)-1)].Action == triage.Terminate
		if terminates || deletes(p.facts, g.Rule) {
			if c.replaced = g.Replaced; !c.replaced {
				c.replacement = nil
			}
		}
	}
	t.decide()
}

func (t *naiveCore) ResumeStorm(now time.Time, id triage.RuleID, calm time.Time) {
	t.advanceTo(now)
	rule, known := t.rules[id]
	if _, on := t.storms[id]; known && rule.Bound.Cooldown > 0 && !on {
		t.storms[id] = times.Min(calm, t.now)
		t.saw["storms resumed"]++
	}
	t.decide()
}

func (t *naiveCore) Allow(now time.Time, id triage.RuleID, a *triage.Allowance) {
	t.advanceTo(now)
	delete(t.allowances, id)
	if a != nil {
		t.allowances[id] = *a
	}
	t.decide()
}

func (t *naiveCore) Loaded(now time.Time) {
	t.advanceTo(now)
	t.loaded = true
	t.recognizeReplacements()
	t.decide()
}

func (t *naiveCore) Advance(now time.Time) {
	t.advanceTo(now)
	t.decide()
}

// ---- history

func (t *naiveCore) advanceTo(now time.Time) {
	if now.After(t.now) {
		t.now = now
	}
	t.expire()
}

func (t *naiveCore) expire() {
	t.dropStarts()
	t.departed = slices.DeleteFunc(t.departed, func(v triage.Grant) bool {
		return !v.Gone.Add(triage.ReplacementWait).After(t.now)
	})
}

func (t *naiveCore) decide() {
	t.expire()
	for _, p := range t.nodes {
		t.updateNode(p)
	}
	t.escalate()
	t.updateStorms()
	t.beginResponses()
	for _, p := range t.nodes {
		for id, c := range p.ruleStates {
			c.recordTermination(t.rules[id])
			if !c.active && !c.unhealthy && len(c.clocks) == 0 && !carries(p.facts, id) {
				c.notBefore, c.matchedOrUnclear, c.notMatchedSince = time.Time{}, false, time.Time{}
			}
		}
	}
	maps.DeleteFunc(t.ladders, func(id triage.RuleID, _ int) bool {
		_, known := t.rules[id]
		return !known && !t.hasResponses(id)
	})
	maps.DeleteFunc(t.pools, func(id triage.RuleID, _ string) bool {
		_, known := t.rules[id]
		return !known && !t.hasResponses(id)
	})
}

// updateStorms updates the storms of all rules after all changes are known.
func (t *naiveCore) updateStorms() {
	if !t.loaded {
		return
	}
	for id, rule := range t.rules {
		if rule.Bound.Cooldown == 0 {
			continue
		}
		n := t.count(rule)
		lost := t.unreplaced(id)
		over := n.Unhealthy+n.Recovering+lost > allows(rule.Bound.Gate, n.Selected+lost)
		if over && n.Unhealthy+n.Recovering <= allows(rule.Bound.Gate, n.Selected+lost) {
			t.saw["storms by deleted nodes"]++
		}
		calm, on := t.storms[id]
		switch {
		case over:
			if on && !calm.IsZero() {
				t.saw["storms that came back"]++
			}
			t.storms[id] = time.Time{}
			continue
		case !on:
			continue
		case calm.IsZero():
			calm = t.now
			t.storms[id] = calm
			t.saw["storms calmed"]++
		}
		if !calm.Add(rule.Bound.Cooldown).After(t.now) {
			delete(t.storms, id)
			t.saw["storms over"]++
			if n.Unhealthy+n.Recovering+lost == 0 {
				t.saw["storms over with no unhealthy node"]++
			}
		}
	}
}

// hasResponses says whether a response of a rule exists.
func (t *naiveCore) hasResponses(id triage.RuleID) bool {
	for _, p := range t.nodes {
		if p.ruleState(id).active || carries(p.facts, id) {
			return true
		}
	}
	return slices.ContainsFunc(t.departed, func(v triage.Grant) bool { return v.Rule == id })
}

// updateNode updates the rule states of a node from its facts. It is idempotent.
func (t *naiveCore) updateNode(p *nodeState) {
	defer t.syncClosed(p)
	for _, id := range t.idsOf(p) {
		c := p.ruleState(id)
		rule, known := t.rules[id]
		t.syncResponse(p, id, c)

		if !known || !selects(rule, p.facts) {
			c.evaluated, c.unhealthy, c.clocks = false, false, map[string]start{}
			t.updateRecovery(p, rule, c, not)
			continue
		}
		for _, condition := range groups(rule) {
			t.updateClock(p, rule, c, condition)
		}
		switch t.verdict(p, rule) {
		case holds:
			c.unhealthy = true
		case not:
			c.unhealthy = false
		case unclear:
			if !c.evaluated {
				c.unhealthy = c.active || carries(p.facts, id) || t.clocksMatch(rule, c)
			}
		}
		t.updateRecovery(p, rule, c, t.verdict(p, rule))
		c.evaluated = true
	}
}

// updateRecovery updates since when a node with a treatment is healthy.
func (t *naiveCore) updateRecovery(p *nodeState, rule triage.Rule, c *ruleState, v verdict) {
	if c.matchedOrUnclear && v == not {
		c.notMatchedSince = t.now
	}
	c.matchedOrUnclear = v != not
	shown, there := t.latestStep(p, rule.ID)
	waits := rule.Recovery.Delay > 0 || rule.Recovery.ByHand
	if !there || !waits || rule.DryRun || c.matchedOrUnclear || c.unhealthy || !selects(rule, p.facts) {
		if !c.healthySince.IsZero() && c.unhealthy {
			t.saw["recoveries that were broken off"]++
		}
		if !c.healthySince.IsZero() && !c.unhealthy && c.matchedOrUnclear {
			t.saw["recoveries that became unclear"]++
		}
		c.healthySince = time.Time{}
		return
	}
	switch {
	case !c.healthySince.IsZero():
	case c.evaluated || shown.HealthySince.IsZero():
		c.healthySince = t.now
	default:
		c.healthySince = later(times.Min(shown.HealthySince, t.now), c.notMatchedSince)
		t.saw["recoveries taken up from a note"]++
	}
	for _, condition := range groups(rule) {
		if _, is := rowOf(p.facts, condition); is && !c.evaluated {
			c.healthySince = later(c.healthySince, p.changed[condition])
		}
		if p.flapped[condition] {
			if c.healthySince.Before(t.now) {
				t.saw["recoveries begun anew by a stamp"]++
			}
			c.healthySince = t.now
		}
	}
}

// latestStep is the latest step of a ladder in the facts.
func (t *naiveCore) latestStep(p *nodeState, id triage.RuleID) (latest triage.Treatment, there bool) {
	for _, treatment := range p.facts.Treatments {
		if treatment.Rule == id && (!there || treatment.Step > latest.Step) {
			latest, there = treatment, true
		}
	}
	if steps := t.ladders[id]; there && steps > 0 {
		latest.Step = min(latest.Step, steps-1)
	}
	return latest, there
}

// keepsWhileRecovering says whether the treatment stays on a healthy node, and until when if
// time ends it.
func (t *naiveCore) keepsWhileRecovering(p *nodeState, rule triage.Rule) (until time.Time, stays bool) {
	c := p.ruleState(rule.ID)
	waits := rule.Recovery.Delay > 0 || rule.Recovery.ByHand
	_, there := t.latestStep(p, rule.ID)
	if c.unhealthy || !waits || rule.DryRun || !there || !selects(rule, p.facts) {
		return time.Time{}, false
	}
	switch {
	case t.verdict(p, rule) == unclear:
		return time.Time{}, true
	case p.facts.Confirmed:
		return time.Time{}, false
	case rule.Recovery.ByHand:
		return time.Time{}, true
	}
	until = c.healthySince.Add(rule.Recovery.Delay)
	return until, until.After(t.now)
}

// clocksMatch says whether the running clocks show that the node was unhealthy.
func (t *naiveCore) clocksMatch(rule triage.Rule, c *ruleState) bool {
	if rule.When.All {
		return len(c.clocks) == len(groups(rule))
	}
	return len(c.clocks) > 0
}

// updateClock starts, stops or keeps the clock of one group.
func (t *naiveCore) updateClock(p *nodeState, rule triage.Rule, c *ruleState, condition string) {
	v, _ := t.group(p, rule, condition)
	clock, running := c.clocks[condition]
	row, is := rowOf(p.facts, condition)
	fromCreation := signalsOf(rule, condition)[0].FromCreation
	remembered, memory := memoryOf(p.facts, rule.ID, condition)
	switch {
	case v == not:
		delete(c.clocks, condition)
		return
	case running: // keeps running
	case fromCreation:
		if v != holds {
			return
		}
		clock = start{at: p.created}
	case !c.evaluated && memory:
		clock = start{at: times.Min(remembered, t.now)}
		t.saw["memories"]++
		if row.Status != triage.Unknown && !row.Transition.IsZero() && row.Transition.Before(clock.at) {
			t.saw["memories of a later start than the stamp's"]++
		}
	case v != holds:
		return
	case !is: // a missing condition has no transition time
		clock = start{at: t.now}
	case !c.evaluated:
		clock = start{at: p.changed[condition], derivable: !p.staleTransition[condition], transition: row.Transition}
	default:
		at, derivable := t.began(p, row)
		clock = start{at: at, derivable: derivable, transition: row.Transition}
		if at.Before(t.now.Add(-time.Minute)) {
			t.saw["conditions reported late"]++
		}
	}
	c.clocks[condition] = clock
}

// roundUp returns the next whole second.
func roundUp(t time.Time) time.Time { return t.Add(time.Second - 1).Truncate(time.Second) }

// began returns when a condition got its status or reason, and whether a restarted core would
// find the same.
func (t *naiveCore) began(p *nodeState, row triage.Condition) (at time.Time, derivable bool) {
	last := p.lastOther[row.Type]
	if row.Transition.IsZero() {
		return t.now, false
	}
	// Times have whole seconds.
	inFuture, tooEarly := row.Transition.After(t.now.Add(time.Minute)), row.Transition.Add(2*time.Second).Before(last)
	derivable = !inFuture && !tooEarly
	switch at = row.Transition; {
	case at.Add(2 * time.Second).After(t.now):
		at = t.now
	case at.Before(last):
		at = last
		t.saw["transition times before the last healthy version"]++
	}
	return times.Min(at, t.now), derivable
}

// syncResponse compares the known response with the facts.
func (t *naiveCore) syncResponse(p *nodeState, id triage.RuleID, c *ruleState) {
	rule, known := t.rules[id]
	last := len(rule.Response.Ladder) - 1

	if known && last >= 0 && c.active {
		c.step, c.observedSteps = min(c.step, last), min(c.observedSteps, last+1)
	}
	var found []triage.Treatment
	if !known || last >= 0 {
		for _, treatment := range p.facts.Treatments {
			if treatment.Rule == id {
				found = append(found, treatment)
			}
		}
	}
	slices.SortFunc(found, func(a, b triage.Treatment) int { return cmp.Compare(a.Step, b.Step) })
	for i := range found {
		if steps := t.ladders[id]; steps > 0 {
			found[i].Step = min(found[i].Step, steps-1)
		}
	}
	tainted := false
	for _, taint := range p.facts.Taints {
		tainted = tainted || taint.Rule == id && taint.Effect == triage.NoExecute
	}

	defer func() { c.deletes = c.active && len(found) > 0 && deletes(p.facts, id) }()
	switch {
	case len(found) > 0:
		if !c.active || !c.treatment {
			c.response = response{active: true, treatment: true, since: t.now}
		}
		c.paced = time.Time{}
		top := found[len(found)-1].Step
		if c.observedSteps == c.step+1 && top < c.step {
			c.step = top // the later step has ended
			t.saw["later steps over"]++
		}
		c.step, c.observedSteps = max(c.step, top), top+1
		for _, treatment := range found {
			if treatment.Step == c.step {
				c.since, c.failed = treatment.Since, treatment.Failed
			}
		}
	case tainted && !c.treatment:
		if !c.active {
			c.response = response{active: true, since: t.now}
		}
		c.observedSteps = 1
	case c.active && c.observedSteps == c.step+1:
		c.response, c.healthySince = response{}, time.Time{}
		c.notBefore = t.now
		t.saw["over"]++
	}
}

func (t *naiveCore) escalate() {
	if !t.loaded {
		return
	}
	for _, p := range t.nodes {
		for id, c := range p.ruleStates {
			rule, known := t.rules[id]
			if !known || rule.DryRun || !c.active || !c.unhealthy || c.step >= len(rule.Response.Ladder)-1 {
				continue
			}
			_, vetoed := vetoOf(p.facts, rule, c.step+1)
			_, paused := t.nodeHold(p)
			_, correlated := t.correlatedFailure(p)
			_, isOutside := t.outsideWindow(p, rule, c.step+1)
			if t.verdict(p, rule) == holds && t.hold(rule) == "" && !paused && !isOutside && !vetoed && !correlated && t.isStepOver(rule, c) && !c.notBefore.After(t.now) {
				c.step, c.since, c.failed = c.step+1, t.now, false
				c.recordTermination(rule)
				t.saw["escalations"]++
			}
		}
	}
}

// isStepOver says whether the current step was observed and has failed or timed out.
func (t *naiveCore) isStepOver(rule triage.Rule, c *ruleState) bool {
	timeout := rule.Response.Ladder[c.step].Timeout
	return c.observedSteps == c.step+1 && (c.failed || timeout > 0 && !c.since.Add(timeout).After(t.now))
}

// recordTermination records whether the current step is a termination, or a treatment
// deletes the node.
func (c *ruleState) recordTermination(rule triage.Rule) {
	if ladder := rule.Response.Ladder; c.active && len(ladder) > 0 {
		terminates := ladder[c.step].Action == triage.Terminate
		if c.terminatesStep == c.step+1 { // a decided termination remains one
			terminates = terminates || c.terminates
		}
		c.terminates, c.terminatesStep = terminates, c.step+1
	}
	if c.replaced = c.replaced && c.needsReplacement(); !c.replaced {
		c.replacement = nil
	}
}

func (t *naiveCore) forget(name string) {
	p := t.nodes[name]
	if p == nil {
		return
	}
	for id, c := range p.ruleStates {
		if c.needsReplacement() && c.replacement != nil {
			c.replacement.isReplacement = true
		}
		if c.needsReplacement() && !c.replaced {
			t.departed = append(t.departed, triage.Grant{
				Rule: id, Node: name, UID: p.facts.UID, Step: c.step, Since: c.since, Gone: t.now, ControlPlane: p.facts.ControlPlane, Topology: t.topologyOf(p),
			})
			t.saw["departures"]++
			if !c.terminates {
				t.saw["departures of treatments that delete"]++
			}
		}
	}
	delete(t.nodes, name)
	for i, d := range t.departed {
		if rule, known := t.rules[d.Rule]; known && d.Node == name && d.UID == p.facts.UID && d.Gone.Equal(t.now) && d.ReadyNeeded == 0 {
			t.departed[i].ReadyNeeded = len(t.youngReady(rule, d)) + 1
		}
	}
}

// youngReady lists the nodes that a rule selects, that were ready once, and that are younger
// than the decision to delete d.
func (t *naiveCore) youngReady(rule triage.Rule, d triage.Grant) (young []*nodeState) {
	for _, p := range t.nodes {
		if selects(rule, p.facts) && p.wasReady && !p.created.Before(d.Since.Truncate(time.Second)) {
			young = append(young, p)
		}
	}
	return young
}

// firstDeparted names deleted nodes that keep a slot in the pool of a rule, and says when
// time frees a slot, if more than this number of slots must be freed for that.
func (t *naiveCore) firstDeparted(rule triage.Rule, excess int) (names string, until time.Time) {
	gone := slices.DeleteFunc(slices.Clone(t.departed), func(v triage.Grant) bool {
		return v.Rule != rule.ID && (rule.Bound.Pool == "" || t.pools[v.Rule] != rule.Bound.Pool)
	})
	slices.SortFunc(gone, func(a, b triage.Grant) int { return cmp.Or(a.Gone.Compare(b.Gone), cmp.Compare(a.Node, b.Node)) })
	var list []string
	for _, v := range gone[:min(len(gone), triage.MostNamed)] {
		list = append(list, v.Node)
	}
	if excess < len(gone) {
		until = gone[excess].Gone.Add(triage.ReplacementWait)
	}
	return strings.Join(list, ", "), until
}

// recognizeReplacements frees the slots of nodes that were replaced before a restart.
func (t *naiveCore) recognizeReplacements() {
	restored := slices.Clone(t.departed)
	slices.SortFunc(restored, func(a, b triage.Grant) int {
		return cmp.Or(b.Gone.Compare(a.Gone), cmp.Compare(a.Node, b.Node), a.Rule.Compare(b.Rule))
	})
	for _, r := range restored {
		at := slices.IndexFunc(t.departed, func(v triage.Grant) bool { return v.Rule == r.Rule && v.Node == r.Node && v.UID == r.UID })
		d := t.departed[at]
		rule, known := t.rules[d.Rule]
		if !known || d.ReadyNeeded == 0 {
			continue
		}
		young := t.youngReady(rule, d)
		ready := len(young)
		young = slices.DeleteFunc(young, func(p *nodeState) bool { return p.isReplacement })
		if ready >= d.ReadyNeeded && len(young) > 0 {
			replacement := slices.MinFunc(young, func(a, b *nodeState) int {
				return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.facts.Name, b.facts.Name))
			})
			replacement.isReplacement = true
			t.departed = slices.Delete(t.departed, at, at+1)
			t.countReadyForOther(replacement)
			t.saw["replacements found after a restart"]++
		}
	}
}

// countReadyForOther records for departures that still wait that this node does not replace
// them.
func (t *naiveCore) countReadyForOther(p *nodeState) {
	for i, d := range t.departed {
		if rule, known := t.rules[d.Rule]; known && d.ReadyNeeded > 0 && slices.Contains(t.youngReady(rule, d), p) {
			t.departed[i].ReadyNeeded++
		}
	}
}

// countReplacement counts a node that became ready as the replacement for the oldest
// termination of the rules that select it.
func (t *naiveCore) countReplacement(p *nodeState) {
	defer t.countReadyForOther(p)
	type termination struct {
		since time.Time
		node  string
		rule  triage.RuleID
		free  func()
	}
	var open []termination
	for name, other := range t.nodes {
		if other == p {
			continue // a node does not replace itself
		}
		for id, c := range other.ruleStates {
			if c.needsReplacement() && !c.replaced {
				open = append(open, termination{c.since, name, id, func() { c.replaced, c.replacement = true, p }})
			}
		}
	}
	for i, v := range t.departed {
		open = append(open, termination{v.Since, v.Node, v.Rule, func() {
			t.departed, p.isReplacement = slices.Delete(t.departed, i, i+1), true
		}})
	}
	open = slices.DeleteFunc(open, func(o termination) bool {
		rule, known := t.rules[o.rule]
		return !known || !selects(rule, p.facts) || p.created.Before(o.since.Truncate(time.Second))
	})
	if len(open) == 0 {
		return
	}
	if pool := t.pools[open[0].rule]; pool != "" && slices.ContainsFunc(open, func(o termination) bool { return o.rule != open[0].rule && t.pools[o.rule] == pool }) {
		t.saw["replacements of one node where two rules of a pool miss one"]++
	}
	slices.MinFunc(open, func(a, b termination) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.node, b.node), t.compareRules(a.rule, b.rule))
	}).free()
	t.saw["replacements"]++
}

// ---- decisions

func (t *naiveCore) beginResponses() {
	if !t.loaded {
		return
	}
	type candidate struct {
		waits time.Time
		rule  triage.Rule
		p     *nodeState
	}
	var queue []candidate
	for _, p := range t.nodes {
		for id, rule := range t.rules {
			if rule.DryRun {
				continue
			}
			c := p.ruleState(id)
			takesSlot := !c.active && (len(rule.Response.Ladder) > 0 || wantsNoExecute(rule))
			if !c.unhealthy || !takesSlot && (p.mayClose || !t.closes(p, rule)) || t.verdict(p, rule) != holds {
				continue
			}
			eligible, _ := t.eligible(p, rule)
			if waits := later(eligible, c.notBefore); !waits.After(t.now) {
				queue = append(queue, candidate{waits, rule, p})
			}
		}
	}
	slices.SortFunc(queue, func(a, b candidate) int {
		return cmp.Or(a.waits.Compare(b.waits), t.compareRules(a.rule.ID, b.rule.ID), cmp.Compare(a.p.facts.Name, b.p.facts.Name))
	})
	for _, next := range queue {
		if _, paused := t.nodeHold(next.p); t.closes(next.p, next.rule) && !next.p.mayClose && t.hold(next.rule) == "" && !paused {
			if _, stopped := t.closingRail(next.p); stopped {
				continue
			}
			next.p.mayClose = true
			t.saw["permissions to close"]++
		}
		if isWeakerThanNoExecute(next.rule) {
			continue
		}
		if _, stopped := t.obstacle(next.p, next.rule); !stopped {
			c := next.p.ruleState(next.rule.ID)
			c.response = response{active: true, treatment: len(next.rule.Response.Ladder) > 0, since: t.now}
			c.recordTermination(next.rule) // a termination counts at once for the decisions after it
			t.saw["grants"]++
			if len(next.rule.Response.Ladder) > 0 {
				t.takeAllowance(next.rule.ID)
				t.addStart(triage.Start{At: t.now, Treatments: 1})
				if t.rails.Pace != nil {
					c.paced = t.now.Truncate(t.paceInterval())
				}
			}
		}
	}
}

// obstacle says what prevents a rule from beginning a response on a node now.
func (t *naiveCore) obstacle(p *nodeState, rule triage.Rule) (triage.Reason, bool) {
	counts := t.count(rule)
	if hold := t.hold(rule); hold != "" {
		return triage.Reason{Code: triage.OnHold, Other: hold}, true
	}
	if pause, paused := t.nodeHold(p); paused {
		return pause, true
	}
	if len(rule.Response.Ladder) == 0 {
		if excludesNode(rule, p.facts) {
			return triage.Reason{Code: triage.FellBack}, true
		}
		if t.hasForeignTaint(p, rule) {
			return triage.Reason{Code: triage.Tainted}, true
		}
	}
	if reason, isOutside := t.outsideWindow(p, rule, 0); isOutside {
		return reason, true
	}
	if len(rule.Response.Ladder) > 0 {
		if veto, vetoed := vetoOf(p.facts, rule, 0); vetoed {
			return triage.Reason{Code: triage.Vetoed, Other: veto.Reason}, true
		}
		var others []triage.RuleID
		for id, c := range p.ruleStates {
			if id != rule.ID && c.active && c.treatment {
				others = append(others, id)
			}
		}
		if len(others) > 0 {
			return triage.Reason{Code: triage.Busy, Other: slices.MinFunc(others, t.compareRules).String()}, true
		}
		if reason, givenUp := t.givenUp(p, rule); givenUp {
			return reason, true
		}
		if names := t.controlPlaneInTreatment(p); p.facts.ControlPlane && len(names) > 0 {
			return triage.Reason{Code: triage.ControlPlaneBusy, Other: slices.Min(names)}, true
		}
		if reason, shut := t.gateClosedBy(rule); shut {
			return reason, true
		}
	}
	taken := t.inTreatmentOfPool(rule.ID)
	if limit := allows(rule.Bound.Cap, t.capBase(rule)); limit >= 0 && taken >= limit {
		if counts.Treated < limit {
			t.saw["held: by another rule of the pool"]++
		}
		gone := 0
		for _, mate := range t.poolRules(rule.ID) {
			gone += t.unreplaced(mate)
		}
		reason := triage.Reason{Code: triage.CapFull, Have: taken, Limit: limit, Of: t.capBase(rule), Pool: rule.Bound.Pool, Departed: gone}
		reason.Gone, reason.Until = t.firstDeparted(rule, taken-limit)
		return reason, true
	}
	if word, told := t.allowances[rule.ID]; told && word.Remaining <= 0 && len(rule.Response.Ladder) > 0 {
		return triage.Reason{Code: triage.NotAllowed, Other: word.Reason}, true
	}
	return t.rail(p, rule)
}

// capBase is the number of nodes that the percentage of the cap refers to: the selected
// nodes, without nodes created since the first departure unless they replace a deleted node.
// For 100% it is the selected and the deleted nodes.
func (t *naiveCore) capBase(rule triage.Rule) (nodes int) {
	var going []time.Time
	gone := 0
	for _, mate := range t.poolRules(rule.ID) {
		for _, p := range t.nodes {
			if c := p.ruleState(mate); c.needsReplacement() {
				going = append(going, c.since)
			}
		}
		for _, v := range t.departed {
			if v.Rule == mate {
				going = append(going, v.Since)
				gone++
			}
		}
	}
	isShare := rule.Bound.Cap != nil && rule.Bound.Cap.Percent
	if isAll(rule.Bound.Cap) {
		if gone > 0 {
			t.saw["gone ones among all"]++
		}
		nodes, isShare = gone, false
	}
	for _, p := range t.nodes {
		switch {
		case !selects(rule, p.facts):
		case isShare && len(going) > 0 && !p.isReplacement && !p.created.Before(slices.MinFunc(going, time.Time.Compare).Truncate(time.Second)):
			t.saw["newcomers that make no room"]++
		default:
			nodes++
		}
	}
	return nodes
}

func isAll(limit *triage.Limit) bool {
	return limit != nil && *limit == triage.Limit{Number: 100, Percent: true, RoundUp: limit.RoundUp}
}

// poolRules are all rules in the pool of this rule, including itself.
func (t *naiveCore) poolRules(id triage.RuleID) []triage.RuleID {
	mates := []triage.RuleID{id}
	for other, pool := range t.pools {
		if other != id && pool != "" && pool == t.pools[id] {
			mates = append(mates, other)
		}
	}
	return mates
}

// inTreatmentOfPool is the number of nodes in treatment under all rules of the pool.
func (t *naiveCore) inTreatmentOfPool(id triage.RuleID) (taken int) {
	for _, mate := range t.poolRules(id) {
		theirs := t.inTreatment(mate)
		if _, known := t.rules[mate]; !known && theirs > 0 {
			t.saw["slots of a pool taken by a removed rule"]++
		}
		taken += theirs
	}
	if rule, known := t.rules[id]; known {
		taken += t.count(rule).Foreign
	}
	return taken
}

// hasForeignTaint says that the node has a foreign NoExecute taint with the key of the rule.
func (t *naiveCore) hasForeignTaint(p *nodeState, rule triage.Rule) bool {
	return wantsNoExecute(rule) && !p.ruleState(rule.ID).active && slices.Contains(p.facts.Foreign, rule.Response.Taint.Key)
}

// inTreatment is the number of slots of a rule, set or removed.
func (t *naiveCore) inTreatment(id triage.RuleID) (taken int) {
	for _, p := range t.nodes {
		if p.ruleState(id).active {
			taken++
		}
	}
	return taken + t.unreplaced(id)
}

// takeAllowance counts a new treatment in the allowances of the pool.
func (t *naiveCore) takeAllowance(id triage.RuleID) {
	for _, mate := range t.poolRules(id) {
		word, told := t.allowances[mate]
		if _, known := t.rules[mate]; !told || !known || word.Remaining <= 0 {
			continue
		}
		word.Remaining--
		t.allowances[mate] = word
		t.saw["allowances taken"]++
		if mate != id {
			t.saw["allowances taken by another rule of the pool"]++
		}
	}
}

// gateClosedBy says what keeps the gate of a rule closed.
func (t *naiveCore) gateClosedBy(rule triage.Rule) (triage.Reason, bool) {
	n := t.count(rule)
	lost := t.unreplaced(rule.ID)
	unwell := n.Unhealthy + n.Recovering + lost
	if gate := allows(rule.Bound.Gate, n.Selected+lost); gate >= 0 && unwell > gate {
		if n.Unhealthy+lost <= gate {
			t.saw["gates closed by recovering nodes"]++
		}
		if n.Unhealthy+n.Recovering <= gate {
			t.saw["gates closed by deleted nodes"]++
			if rule.Bound.Gate.Percent || rule.Bound.Gate.Healthy {
				t.saw["gates with a percentage closed by deleted nodes"]++
			}
		}
		return triage.Reason{Code: triage.GateClosed, Have: unwell, Recovering: n.Recovering, Departed: lost, Limit: gate, Of: n.Selected + lost, Other: rule.Bound.GateName}, true
	}
	if calm, on := t.storms[rule.ID]; on {
		return triage.Reason{Code: triage.CoolingDown, Calm: calm, Until: calm.Add(rule.Bound.Cooldown)}, true
	}
	return triage.Reason{}, false
}

// controlPlaneInTreatment returns the other control-plane nodes that are in treatment, or
// deleted and not replaced yet.
func (t *naiveCore) controlPlaneInTreatment(p *nodeState) []string {
	var names []string
	for name, other := range t.nodes {
		for _, c := range other.ruleStates {
			if other != p && other.facts.ControlPlane && c.active && c.treatment {
				names = append(names, name)
			}
		}
	}
	for _, v := range t.departed {
		if v.ControlPlane {
			names = append(names, v.Node)
		}
	}
	return names
}

func (t *naiveCore) count(rule triage.Rule) triage.Counts {
	var n triage.Counts
	for _, zone := range t.zones(rule) {
		n.Selected += zone.Selected
		n.Unhealthy += zone.Unhealthy
		n.Treated += zone.Treated
		n.Recovering += zone.Recovering
		n.Foreign += zone.Foreign
	}
	n.Departed = t.unreplaced(rule.ID)
	n.Treated += n.Departed
	return n
}

// unreplaced is the number of deleted nodes of a rule without a replacement.
func (t *naiveCore) unreplaced(id triage.RuleID) (gone int) {
	for _, v := range t.departed {
		if v.Rule == id {
			gone++
		}
	}
	return gone
}

func (t *naiveCore) zones(rule triage.Rule) map[string]triage.Counts {
	zones := map[string]triage.Counts{}
	for _, p := range t.nodes {
		n := zones[p.facts.Zone]
		c := p.ruleState(rule.ID)
		if selects(rule, p.facts) {
			n.Selected++
			switch {
			case c.unhealthy:
				n.Unhealthy++
			case c.active && c.treatment:
				n.Recovering++
			}
			if t.hasForeignTaint(p, rule) {
				n.Foreign++
			}
		}
		if c.active {
			n.Treated++
		}
		if n != (triage.Counts{}) {
			zones[p.facts.Zone] = n
		}
	}
	return zones
}

// ---- output

func (t *naiveCore) Population(id triage.RuleID) (triage.Population, bool) {
	rule, known := t.rules[id]
	if !known {
		return triage.Population{}, false
	}
	n := t.count(rule)
	population := triage.Population{
		Counts: n,
		Zones:  t.zones(rule),
		Gate:   allows(rule.Bound.Gate, n.Selected+n.Departed),
		Cap:    allows(rule.Bound.Cap, t.capBase(rule)),
		Pooled: t.inTreatmentOfPool(id),
	}
	population.CalmSince, population.Storm = t.storms[id]
	if !population.CalmSince.IsZero() {
		population.CalmUntil = population.CalmSince.Add(rule.Bound.Cooldown)
	}
	return population, true
}

func (t *naiveCore) Grants() []triage.Grant {
	var grants []triage.Grant
	for name, p := range t.nodes {
		for id, c := range p.ruleStates {
			if c.active {
				grants = append(grants, triage.Grant{
					Rule: id, Node: name, UID: p.facts.UID, Step: c.step, Since: c.since, ControlPlane: p.facts.ControlPlane, Replaced: c.replaced, Deletes: c.deletes, Pool: t.pools[id], Taint: !c.treatment, Topology: t.topologyOf(p),
				})
			}
		}
	}
	for _, v := range t.departed {
		v.Pool = t.pools[v.Rule]
		grants = append(grants, v)
	}
	return grants
}

func (t *naiveCore) Plan(name string) (triage.Plan, bool) {
	p := t.nodes[name]
	if p == nil {
		return triage.Plan{}, false
	}
	plan := triage.Plan{Node: name, UID: p.facts.UID, Initialized: p.initialized}
	selecting := 0
	for _, id := range t.idsOf(p) {
		rule, known := t.rules[id]
		if known && selects(rule, p.facts) {
			selecting++
		}
		reason, placed, release := t.finding(p, id)
		if reason.Code == 0 {
			continue
		}
		reason.Rule, reason.Taint = id, rule.Response.Taint != nil || !known && placesTaint(p, id)
		plan.Findings = append(plan.Findings, reason)
		switch {
		case release:
			plan.Release = append(plan.Release, reason)
		case reason.Code == triage.Kept && p.ruleState(id).active && p.ruleState(id).observedSteps == 0:
			off := reason
			off.Other = "NoExecute is called off"
			plan.Release = append(plan.Release, off)
			t.saw["called off by a rule that cannot be read"]++
		case known && rule.Response.Taint != nil && p.ruleState(id).active && p.ruleState(id).observedSteps == 0 && placed < triage.NoExecute:
			// This NoExecute taint is no longer wanted and was never observed.
			off := reason
			if placed > 0 && !reason.Code.IsWait() {
				off.Other = "NoExecute is called off"
			}
			plan.Release = append(plan.Release, off)
		case known && len(rule.Response.Ladder) > 0 && t.isCalledOff(p, rule):
			if p.ruleState(id).step == 0 {
				plan.Release = append(plan.Release, reason)
			} else {
				plan.Cancel = append(plan.Cancel, reason)
			}
		}
		if step, wanted := t.wantedStep(p, rule); known && wanted && plan.Treatment == nil {
			c := p.ruleState(id)
			plan.Treatment = &triage.PlannedTreatment{
				Rule: id, Step: step.Step, Action: actionOn(p.facts, rule, step.Step), Ref: rule.Response.Ladder[step.Step].Ref,
				Since: step.Since, HealthySince: c.healthySince, Reason: reason,
			}
		}
		switch reason.Code {
		case triage.Kept:
			t.saw["taints of a rule that cannot be read"]++
			kept := reason
			for _, taint := range p.facts.Taints {
				if taint.Rule == id {
					kept.Key, kept.Effect = taint.Key, taint.Effect
					plan.Taints = append(plan.Taints, triage.PlannedTaint{Taint: taint, Reason: kept})
				}
			}
		case triage.Tainted, triage.FellBack, triage.MaxUnschedulable, triage.LastNode, triage.Retrying, triage.OnHold, triage.NodePaused:
			if placed == 0 {
				break
			}
			if placed == triage.NoExecute && t.hasForeignTaint(p, rule) {
				t.saw["NoExecute of others that serves"]++
				break
			}
			plan.Taints = append(plan.Taints, triage.PlannedTaint{
				Taint:  triage.Taint{Rule: id, Key: t.keyOf(p, rule), Effect: placed},
				Reason: reason,
			})
		}
	}
	if plan.Reopen = t.holdsUnusedPermission(p); plan.Reopen {
		t.saw["permissions to close released"]++
	}
	for _, id := range t.idsOf(p) {
		rule, known := t.rules[id]
		if !known {
			continue
		}
		for _, condition := range groups(rule) {
			clock, running := p.ruleState(id).clocks[condition]
			if running && t.mustRemember(p, rule, condition, clock) {
				row, _ := rowOf(p.facts, condition)
				plan.Remember = append(plan.Remember, triage.Memory{Rule: id, Condition: condition, Since: clock.at, Transition: row.Transition})
			}
		}
	}

	isKept := slices.ContainsFunc(plan.Findings, func(r triage.Reason) bool { return r.Code == triage.Kept })
	for _, m := range p.facts.Memories {
		if t.isKept(m.Rule) {
			t.saw["memories of a rule that cannot be read"]++
			plan.Remember = append(plan.Remember, m)
			isKept = true
		}
	}
	if isKept {
		slices.SortStableFunc(plan.Taints, func(a, b triage.PlannedTaint) int { return a.Rule.Compare(b.Rule) })
		slices.SortStableFunc(plan.Remember, func(a, b triage.Memory) int { return a.Rule.Compare(b.Rule) })
	}

	switch {
	case len(plan.Findings) > 0:
		plan.Reason = slices.MinFunc(plan.Findings, func(a, b triage.Reason) int { return cmp.Compare(a.Code, b.Code) })
	case selecting > 0:
		plan.Reason = triage.Reason{Code: triage.Healthy, Of: selecting}
	default:
		plan.Reason = triage.Reason{Code: triage.NotSelected}
	}
	for _, reason := range plan.Findings {
		if !reason.Until.IsZero() && (plan.Next.IsZero() || reason.Until.Before(plan.Next)) {
			plan.Next = reason.Until
		}
	}
	return plan, true
}

// isCalledOff says that the latest step was decided, was never observed and may not begin
// now, although the rule does not release the response.
func (t *naiveCore) isCalledOff(p *nodeState, rule triage.Rule) bool {
	c := p.ruleState(rule.ID)
	if !c.active || c.observedSteps == c.step+1 || rule.DryRun {
		return false
	}
	if !c.unhealthy {
		_, stays := t.keepsWhileRecovering(p, rule)
		return stays
	}
	_, off := t.calledOff(p, rule)
	return off
}

// calledOff says why the latest step, decided and never observed, may not begin on an
// unhealthy node.
func (t *naiveCore) calledOff(p *nodeState, rule triage.Rule) (triage.Reason, bool) {
	c := p.ruleState(rule.ID)
	veto, vetoed := vetoOf(p.facts, rule, c.step)
	pause, paused := t.nodeHold(p)
	eligible, _ := t.eligible(p, rule)
	window, isOutside := t.outsideWindow(p, rule, c.step)
	switch {
	case t.verdict(p, rule) == unclear:
		return t.unclear(p, rule), true
	case c.step == 0 && eligible.After(t.now):
		return triage.Reason{Code: triage.Pending, Until: eligible}, true
	case t.hold(rule) != "":
		return triage.Reason{Code: triage.OnHold, Other: t.hold(rule)}, true
	case paused:
		return pause, true
	case isOutside:
		return window, true
	case vetoed:
		return triage.Reason{Code: triage.Vetoed, Other: veto.Reason}, true
	}
	if reason, correlated := t.correlatedFailure(p); correlated {
		return reason, true
	}
	if reason, givenUp := t.givenUp(p, rule); givenUp && c.step == 0 {
		return reason, true
	}
	if c.step == 0 && t.loaded {
		return t.gateClosedBy(rule)
	}
	return triage.Reason{}, false
}

// wantedStep is the step that a rule wants on a node.
func (t *naiveCore) wantedStep(p *nodeState, rule triage.Rule) (triage.Treatment, bool) {
	c := p.ruleState(rule.ID)
	if len(rule.Response.Ladder) == 0 || rule.DryRun || !c.active {
		return triage.Treatment{}, false
	}
	_, stays := t.keepsWhileRecovering(p, rule)
	shown, there := t.latestStep(p, rule.ID)
	if shown.Step == c.step {
		shown.Since = c.since
	}
	switch {
	case !c.unhealthy && !stays:
		return triage.Treatment{}, false
	case !c.unhealthy || t.isCalledOff(p, rule):
		return shown, there
	}
	return triage.Treatment{Step: c.step, Since: c.since}, true
}

// mustRemember says whether the start of a clock has to be stored.
func (t *naiveCore) mustRemember(p *nodeState, rule triage.Rule, condition string, clock start) bool {
	signals := signalsOf(rule, condition)
	row, is := rowOf(p.facts, condition)
	if signals[0].FromCreation || !is {
		return false
	}
	found := clock.derivable && clock.transition.Equal(row.Transition)
	v, _ := t.group(p, rule, condition)
	wait := slices.ContainsFunc(signals, func(s triage.Signal) bool { return s.For > 0 && s.For < triage.Never })
	switch {
	case found && v == holds:
		return false
	case rule.DryRun:
		t.saw["not remembered: on dry run"]++
		return false
	case v == holds && !wait:
		t.saw["not remembered: no duration"]++
		return false
	case found:
		t.saw["remembered through an Unknown with the same stamp"]++
	case v == holds && !clock.derivable:
		t.saw["remembered because no stamp tells it"]++
	}
	return true
}

// finding is the finding of a rule for a node; none if the code is zero. It also returns the
// effect of the planned taint, and whether the response is released.
func (t *naiveCore) finding(p *nodeState, id triage.RuleID) (reason triage.Reason, placed triage.Effect, release bool) {
	rule, known := t.rules[id]
	c := p.ruleState(id)
	there := c.active || carries(p.facts, id)
	switch {
	case t.isKept(id) && strongest(p.facts, id) > 0:
		reason = triage.Reason{Code: triage.Kept}
		for _, taint := range p.facts.Taints {
			if taint.Rule == id {
				reason.Key, reason.Effect = taint.Key, taint.Effect
			}
		}
		return reason, 0, false
	case !known && there:
		return triage.Reason{Code: triage.RuleGone}, 0, true
	case !known:
		return triage.Reason{}, 0, false
	case !selects(rule, p.facts) && there:
		return triage.Reason{Code: triage.Deselected}, 0, true
	case !selects(rule, p.facts):
		return triage.Reason{}, 0, false
	}

	v := t.verdict(p, rule)
	if until, stays := t.keepsWhileRecovering(p, rule); stays {
		if v == unclear {
			return t.unclear(p, rule), 0, false
		}
		shown, _ := t.latestStep(p, id)
		return triage.Reason{
			Code: triage.Recovering, Since: c.healthySince, Until: until,
			Step: shown.Step + 1, Steps: len(rule.Response.Ladder), Action: actionOn(p.facts, rule, shown.Step),
		}, 0, false
	}
	if !c.unhealthy && there {
		return triage.Reason{Code: triage.Recovered}, 0, true
	}
	if !c.unhealthy {
		switch {
		case v == unclear:
			return t.unclear(p, rule), 0, false
		case rule.When.All && len(c.clocks) > 0:
			return t.partial(p, rule), 0, false
		}
		return triage.Reason{}, 0, false
	}
	switch {
	case rule.DryRun:
		reason, release = t.dryRunFinding(p, rule, v, there), there
	case len(rule.Response.Ladder) > 0:
		reason = t.treatmentFinding(p, rule, c, v)
	default:
		reason, placed, release = t.taintFinding(p, rule, c, v)
	}
	if v == holds {
		eligible, condition := t.eligible(p, rule)
		row, _ := rowOf(p.facts, condition)
		reason.Eligible = eligible
		reason.Condition, reason.Status, reason.Since = condition, row.Status, c.clocks[condition].at
		reason.FromCreation = signalsOf(rule, condition)[0].FromCreation
		for _, other := range groups(rule) {
			if rule.When.All && other != condition {
				row, _ := rowOf(p.facts, other)
				reason.AlsoMet += " and " + other + "=" + row.Status.String()
			}
		}
		reason.AlsoMet = strings.TrimPrefix(reason.AlsoMet, " and ")
	}
	return reason, placed, release
}

func (t *naiveCore) unclear(p *nodeState, rule triage.Rule) triage.Reason {
	for _, condition := range groups(rule) {
		if v, _ := t.group(p, rule, condition); v == unclear {
			row, _ := rowOf(p.facts, condition)
			return triage.Reason{Code: triage.Unclear, Condition: condition, Other: row.Reason}
		}
	}
	panic("no group is unclear")
}

func (t *naiveCore) partial(p *nodeState, rule triage.Rule) triage.Reason {
	reason := triage.Reason{Code: triage.Partial, Of: len(groups(rule))}
	for _, condition := range groups(rule) {
		if v, _ := t.group(p, rule, condition); v == holds {
			reason.Have++
			if reason.Have == 1 {
				row, _ := rowOf(p.facts, condition)
				reason.Condition, reason.Status, reason.Since = condition, row.Status, p.ruleState(rule.ID).clocks[condition].at
				reason.FromCreation = signalsOf(rule, condition)[0].FromCreation
			}
		}
	}
	return reason
}

func (t *naiveCore) treatmentFinding(p *nodeState, rule triage.Rule, c *ruleState, v verdict) triage.Reason {
	if c.active && t.isCalledOff(p, rule) {
		shown, there := t.latestStep(p, rule.ID)
		reason, _ := t.calledOff(p, rule)
		if c.step == 0 || !there {
			return reason
		}
		switch reason.Code {
		case triage.Unclear: // unclear is no obstacle here
			reason.Other = ""
		case triage.CorrelatedFailed:
			reason.Other, reason.Until = reason.Sentence(), time.Time{}
		case triage.OutsideWindow:
			reason.Other = "outside the window " + reason.Other
		}
		return triage.Reason{
			Code: triage.Treating, Step: shown.Step + 1, Steps: len(rule.Response.Ladder), Action: actionOn(p.facts, rule, shown.Step),
			Other: reason.Other, Until: reason.Until,
		}
	}
	if c.active {
		step := rule.Response.Ladder[c.step]
		reason := triage.Reason{Code: triage.Treating, Step: c.step + 1, Steps: len(rule.Response.Ladder), Action: actionOn(p.facts, rule, c.step)}
		if t.isStepOver(rule, c) {
			veto, _ := vetoOf(p.facts, rule, c.step+1)
			pause, paused := t.nodeHold(p)
			window, isOutside := t.outsideWindow(p, rule, c.step+1)
			switch {
			case c.step == len(rule.Response.Ladder)-1:
				reason.Code = triage.Exhausted
			case v == holds && t.hold(rule) == "" && paused:
				reason.Other, reason.Until = pause.Other, pause.Until
			case v == holds && t.hold(rule) == "" && isOutside:
				reason.Other, reason.Until = "outside the window "+window.Other, window.Until
			case v == holds:
				reason.Other = cmp.Or(t.hold(rule), veto.Reason)
				if held, correlated := t.correlatedFailure(p); correlated && reason.Other == "" {
					reason.Other = held.Sentence()
				}
				if reason.Other == "" {
					reason.Other = "it could not be carried out"
					if c.notBefore.After(t.now) {
						reason.Until = c.notBefore
					}
				}
			}
		}
		if until := c.since.Add(step.Timeout); c.observedSteps == c.step+1 && !c.failed && step.Timeout > 0 && until.After(t.now) {
			reason.Until = until
		}
		return reason
	}
	if v == unclear {
		return t.unclear(p, rule)
	}
	if eligible, _ := t.eligible(p, rule); eligible.After(t.now) {
		return triage.Reason{Code: triage.Pending, Until: eligible}
	}
	if c.notBefore.After(t.now) {
		return triage.Reason{Code: triage.Retrying, Until: c.notBefore}
	}
	if !t.loaded {
		return triage.Reason{Code: triage.OnHold, Other: "the nodes are still being loaded"}
	}
	reason, stopped := t.obstacle(p, rule)
	if !stopped {
		panic("nothing blocks the treatment, and it was not granted")
	}
	if reason.Code == triage.OnHold && rule.Hold == "" {
		t.nameWould(&reason, p, rule)
	}
	return reason
}

// dryRunFinding is the finding of a rule on dry run for an unhealthy node. Before the rule
// is eligible, or while it is unclear, it does not say what it would do.
func (t *naiveCore) dryRunFinding(p *nodeState, rule triage.Rule, v verdict, there bool) triage.Reason {
	reason := triage.Reason{Code: triage.DryRun}
	if there {
		reason.Other = "the taint is removed"
		if len(rule.Response.Ladder) > 0 {
			reason.Other = "the treatment ends"
		}
	}
	if v == unclear {
		if there {
			return reason
		}
		return t.unclear(p, rule)
	}
	if due, _ := t.eligible(p, rule); due.After(t.now) {
		reason.Until = due
		if !there {
			reason.Code = triage.Pending
		}
		return reason
	}
	t.nameWould(&reason, p, rule)
	return reason
}

// nameWould says what a rule would begin if its stage was not on hold, or if it was not on dry run,
// and what would prevent that.
func (t *naiveCore) nameWould(reason *triage.Reason, p *nodeState, rule triage.Rule) {
	c, taint := p.ruleState(rule.ID), rule.Response.Taint
	if taint == nil {
		reason.Step, reason.Steps, reason.Action = 1, len(rule.Response.Ladder), actionOn(p.facts, rule, 0)
	} else {
		reason.Key, reason.Effect = taint.Key, taint.Effect
		if excludesNode(rule, p.facts) {
			reason.Effect = triage.NoSchedule
		}
	}
	if !t.loaded || c.active || carries(p.facts, rule.ID) {
		return
	}
	free, enforced := *t, rule
	if enforced.DryRun = false; !rule.DryRun {
		free.rails.Hold = nil
	}
	held, stopped := free.obstacle(p, enforced)
	isHold := held.Code == triage.OnHold || held.Code == triage.NodePaused
	if closing, full := t.closingRail(p); !isHold && full && !p.mayClose && t.closes(p, enforced) {
		held, stopped, isHold = closing, true, true
	}
	switch {
	case !stopped, taint != nil && !isHold && reason.Effect != triage.NoExecute:
	case taint == nil || isHold:
		reason.Besides = held.Sentence()
	case held.Code == triage.Tainted:
		reason.Besides = "the node already has this taint, which Autohealer cannot prove to be its own"
	default:
		why := triage.Reason{Code: triage.FellBack, Condition: "any"}
		t.whyFellBack(&why, p, rule, c)
		_, text, _ := strings.Cut(why.Sentence(), "instead of NoExecute: ")
		reason.Effect, reason.Besides = triage.NoSchedule, "not NoExecute: "+text
	}
	if reason.Besides != "" {
		t.saw["would be prevented: "+held.Code.String()]++
	} else {
		t.saw["would begin"]++
	}
}

func (t *naiveCore) taintFinding(p *nodeState, rule triage.Rule, c *ruleState, v verdict) (reason triage.Reason, placed triage.Effect, release bool) {
	taint := rule.Response.Taint
	standing := t.wantedEffect(p, rule)
	var eligible time.Time
	if v == holds {
		eligible, _ = t.eligible(p, rule)
	}
	pending := eligible.After(t.now)
	switch {
	case standing == 0 && v == unclear:
		return t.unclear(p, rule), 0, false
	case standing == 0 && pending:
		return triage.Reason{Code: triage.Pending, Until: eligible}, 0, false
	case standing == 0:
		return t.whyNotClosed(p, rule), 0, false
	}

	for _, id := range slices.SortedFunc(maps.Keys(t.rules), t.compareRules) {
		if other := t.rules[id]; t.wantedEffect(p, other) > 0 && t.highest(p) == other.Response.Taint.Effect && taint.Effect < other.Response.Taint.Effect {
			return triage.Reason{Code: triage.Superseded, Other: id.String(), Effect: other.Response.Taint.Effect}, 0, c.active || carries(p.facts, rule.ID)
		}
	}

	reason = triage.Reason{Code: triage.Tainted, Key: t.keyOf(p, rule), Effect: standing}
	if standing == triage.NoExecute && t.hasForeignTaint(p, rule) {
		reason.Foreign = 1
		return reason, standing, false
	}
	if pending {
		reason.Until = eligible
	}
	isHeld := v == holds && !pending && !t.mayBegin(p, rule)
	if isHeld && reason.Key != taint.Key {
		t.saw["edited keys that wait"]++
	}
	if t.mayBegin(p, rule) && !p.mayClose && t.closes(p, rule) || isHeld && reason.Key != taint.Key {
		return t.whyNotClosed(p, rule), standing, false
	}
	switch {
	case excludesNode(rule, p.facts) && standing == triage.NoSchedule:
		reason.Code, reason.Other = triage.FellBack, "control-plane nodes are not included"
	case t.mayBegin(p, rule) && taint.Effect == triage.NoExecute && standing != triage.NoExecute:
		reason.Code = triage.FellBack
		t.whyFellBack(&reason, p, rule, c)
	}
	return reason, standing, false
}

// whyFellBack says why NoSchedule takes the place of NoExecute.
func (t *naiveCore) whyFellBack(reason *triage.Reason, p *nodeState, rule triage.Rule, c *ruleState) {
	window, isOutside := t.outsideWindow(p, rule, 0)
	switch counts := t.count(rule); {
	case isOutside:
		reason.Other, reason.Until = window.Sentence(), window.Until
	case c.notBefore.After(t.now):
		reason.Other, reason.Until = "it could not be placed", c.notBefore
	case !t.loaded:
		reason.Other = "the nodes are still being loaded"
	case c.active || counts.Treated+counts.Foreign < allows(rule.Bound.Cap, counts.Selected) || rule.Bound.Cap == nil:
		rail, _ := t.rail(p, rule)
		reason.Other, reason.Until = rail.Sentence(), rail.Until
	default:
		reason.Have, reason.Limit, reason.Of = counts.Treated+counts.Foreign, allows(rule.Bound.Cap, counts.Selected), counts.Selected
		if reason.Foreign = counts.Foreign; counts.Treated < reason.Limit {
			t.saw["held: by taints of others"]++
		}
	}
}

// mayBegin says whether a taint rule may place its taint on a node now.
func (t *naiveCore) mayBegin(p *nodeState, rule triage.Rule) bool {
	if _, paused := t.nodeHold(p); paused || t.verdict(p, rule) != holds || t.hold(rule) != "" {
		return false
	}
	eligible, _ := t.eligible(p, rule)
	return !eligible.After(t.now)
}

// wantedEffect is the effect that a rule wants on a node; zero for none.
func (t *naiveCore) wantedEffect(p *nodeState, rule triage.Rule) triage.Effect {
	c := p.ruleState(rule.ID)
	if rule.Response.Taint == nil || rule.DryRun || !c.unhealthy {
		return 0
	}
	if !p.mayClose && t.closes(p, rule) {
		return strongest(p.facts, rule.ID)
	}
	if t.mayBegin(p, rule) {
		_, isOutside := t.outsideWindow(p, rule, 0)
		_, correlated := t.correlatedFailure(p)
		isCalledOff := c.active && c.observedSteps == 0 && (isOutside || correlated)
		if isCalledOff && !isOutside && wantsNoExecute(rule) {
			t.saw["NoExecute called off: CorrelatedFailed"]++
		}
		if wantsNoExecute(rule) && (!c.active && !t.hasForeignTaint(p, rule) || isCalledOff || excludesNode(rule, p.facts)) {
			return triage.NoSchedule
		}
		return rule.Response.Taint.Effect
	}
	// Nothing begins, decided or not. Existing taints stay.
	found := strongest(p.facts, rule.ID)
	if found == triage.NoExecute && excludesNode(rule, p.facts) {
		return triage.NoSchedule
	}
	return found
}

// keyOf is the key of the taint that a rule wants on a node. A taint on the node is replaced only
// when the rule may place a taint there.
func (t *naiveCore) keyOf(p *nodeState, rule triage.Rule) string {
	key := rule.Response.Taint.Key
	if t.mayBegin(p, rule) && (p.mayClose || !t.closes(p, rule)) {
		return key
	}
	var present []string
	for _, taint := range p.facts.Taints {
		if taint.Rule == rule.ID && taint.Effect == strongest(p.facts, rule.ID) {
			present = append(present, taint.Key)
		}
	}
	if slices.Contains(present, key) {
		return key
	}
	return present[0]
}

// highest is the highest declared effect among the rules that want a taint on a node.
func (t *naiveCore) highest(p *nodeState) triage.Effect {
	var highest triage.Effect
	for _, rule := range t.rules {
		if t.wantedEffect(p, rule) > 0 {
			highest = max(highest, rule.Response.Taint.Effect)
		}
	}
	return highest
}

// ---- evaluation

// group evaluates the signals of a condition, and returns the duration of the matching
// signal.
func (t *naiveCore) group(p *nodeState, rule triage.Rule, condition string) (verdict, time.Duration) {
	signals := signalsOf(rule, condition)
	if signals[0].FromCreation && p.initialized {
		return not, 0
	}
	row, _ := rowOf(p.facts, condition)
	var plain []naive.Signal
	for _, s := range signals {
		plain = append(plain, naive.Signal{Status: naive.Status(s.Status), Reason: s.Reason, For: s.For, EvenSilent: s.EvenSilent})
	}
	return naive.Group(plain, naive.Condition{Status: naive.Status(row.Status), Reason: row.Reason})
}

func (t *naiveCore) verdict(p *nodeState, rule triage.Rule) verdict {
	if !selects(rule, p.facts) {
		return not
	}
	var verdicts []verdict
	for _, condition := range groups(rule) {
		v, _ := t.group(p, rule, condition)
		verdicts = append(verdicts, v)
	}
	return naive.Combine(rule.When.All, verdicts...)
}

// eligible is when a matched rule becomes eligible, and the deciding condition.
func (t *naiveCore) eligible(p *nodeState, rule triage.Rule) (at time.Time, decides string) {
	for _, condition := range groups(rule) {
		v, wait := t.group(p, rule, condition)
		if v != holds {
			continue
		}
		due := p.ruleState(rule.ID).clocks[condition].at.Add(wait)
		if decides == "" || rule.When.All && due.After(at) || !rule.When.All && due.Before(at) {
			at, decides = due, condition
		}
	}
	return at, decides
}

// ---- helpers

func (p *nodeState) ruleState(id triage.RuleID) *ruleState {
	if p.ruleStates[id] == nil {
		p.ruleStates[id] = &ruleState{clocks: map[string]start{}}
	}
	return p.ruleStates[id]
}

// idsOf lists all rules that could concern a node, including rules that are not set.
func (t *naiveCore) idsOf(p *nodeState) []triage.RuleID {
	ids := map[triage.RuleID]bool{}
	for id := range t.rules {
		ids[id] = true
	}
	for id := range p.ruleStates {
		ids[id] = true
	}
	for _, taint := range p.facts.Taints {
		ids[taint.Rule] = true
	}
	for _, treatment := range p.facts.Treatments {
		ids[treatment.Rule] = true
	}
	return slices.SortedFunc(maps.Keys(ids), t.compareRules)
}

// compareRules compares rules by precedence, which is zero for a rule that is not set.
func (t *naiveCore) compareRules(a, b triage.RuleID) int {
	return cmp.Or(cmp.Compare(t.rules[a].Precedence, t.rules[b].Precedence), compareRules(a, b))
}

func compareRules(a, b triage.RuleID) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// groups lists the conditions of a rule in the order of their first signal.
func groups(rule triage.Rule) []string {
	var conditions []string
	for _, s := range rule.When.Signals {
		counts := func(other triage.Signal) bool { return other.Condition == s.Condition && other.For < triage.Never }
		if slices.ContainsFunc(rule.When.Signals, counts) && !slices.Contains(conditions, s.Condition) {
			conditions = append(conditions, s.Condition)
		}
	}
	return conditions
}

func signalsOf(rule triage.Rule, condition string) []triage.Signal {
	return slices.DeleteFunc(slices.Clone(rule.When.Signals), func(s triage.Signal) bool { return s.Condition != condition })
}

func sameButFor(a, b []triage.Signal) bool {
	return slices.EqualFunc(a, b, func(x, y triage.Signal) bool {
		same := (x.For == triage.Never) == (y.For == triage.Never)
		x.For, y.For, x.Urgent, y.Urgent = 0, 0, false, false
		return same && x == y
	})
}

func selects(rule triage.Rule, node triage.Node) bool {
	if rule.AssignedOnly && !slices.Contains(node.Assigned, rule.ID) {
		return false
	}
	for _, r := range rule.Selector.Requirements() {
		value, has := node.Labels[r.Key]
		listed := has && slices.Contains(r.Values, value)
		met := false
		switch r.Op {
		case triage.In:
			met = listed
		case triage.NotIn:
			met = !listed
		case triage.Exists:
			met = has
		case triage.Absent:
			met = !has
		}
		if !met {
			return false
		}
	}
	return true
}

func allows(l *triage.Limit, selected int) int { return naive.Allows((*naive.Limit)(l), selected) }

func wantsNoExecute(rule triage.Rule) bool {
	return rule.Response.Taint != nil && rule.Response.Taint.Effect == triage.NoExecute
}

// isWeakerThanNoExecute says that a rule places taints, but not NoExecute.
func isWeakerThanNoExecute(rule triage.Rule) bool {
	return rule.Response.Taint != nil && !wantsNoExecute(rule)
}

// excludesNode says that a rule has NoExecute and excludes this control-plane node.
func excludesNode(rule triage.Rule, node triage.Node) bool {
	return wantsNoExecute(rule) && node.ControlPlane && !rule.Response.Taint.ControlPlane
}

// strongest is the highest effect of the taints of a rule on a node; zero for none.
func strongest(node triage.Node, id triage.RuleID) (effect triage.Effect) {
	for _, taint := range node.Taints {
		if taint.Rule == id {
			effect = max(effect, taint.Effect)
		}
	}
	return effect
}

func carries(node triage.Node, id triage.RuleID) bool {
	return slices.ContainsFunc(node.Taints, func(t triage.Taint) bool { return t.Rule == id }) ||
		slices.ContainsFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == id })
}

// placesTaint says that the response of a removed rule on a node is a taint.
func placesTaint(p *nodeState, id triage.RuleID) bool {
	c := p.ruleState(id)
	return strongest(p.facts, id) > 0 || c.active && !c.treatment
}

// deletes says that a treatment of the rule is going to delete the node.
func deletes(node triage.Node, id triage.RuleID) bool {
	return slices.ContainsFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == id && t.Deletes })
}

// takesSlot says whether the facts show a response that occupies a slot.
func takesSlot(node triage.Node, id triage.RuleID) bool {
	return slices.ContainsFunc(node.Taints, func(t triage.Taint) bool { return t.Rule == id && t.Effect == triage.NoExecute }) ||
		slices.ContainsFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == id })
}

func rowOf(node triage.Node, condition string) (triage.Condition, bool) {
	for _, row := range node.Conditions {
		if row.Type == condition {
			return row, true
		}
	}
	return triage.Condition{Type: condition, Status: triage.Missing}, false
}

func vetoOf(node triage.Node, rule triage.Rule, step int) (triage.Veto, bool) {
	for _, veto := range node.Vetoes {
		if veto.Action == 0 || step < len(rule.Response.Ladder) && rule.Response.Ladder[step].Action == veto.Action {
			return veto, true
		}
	}
	return triage.Veto{}, false
}

// actionOn returns how a rule takes a step on a node.
func actionOn(node triage.Node, rule triage.Rule, step int) triage.Action {
	action := rule.Response.Ladder[step].Action
	for _, id := range node.Remediates {
		if id == rule.ID && action == triage.Terminate {
			action = triage.Remediate
		}
	}
	return action
}

func memoryOf(node triage.Node, id triage.RuleID, condition string) (time.Time, bool) {
	row, is := rowOf(node, condition)
	for _, m := range node.Memories {
		if is && m.Rule == id && m.Condition == condition && m.Transition.Equal(row.Transition) {
			return m.Since, true
		}
	}
	return time.Time{}, false
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func cloneNode(n triage.Node) triage.Node {
	n.Labels = maps.Clone(n.Labels)
	n.Conditions = slices.Clone(n.Conditions)
	n.Assigned = slices.Clone(n.Assigned)
	n.Vetoes = slices.Clone(n.Vetoes)
	n.Remediates = slices.Clone(n.Remediates)
	n.Taints = slices.Clone(n.Taints)
	n.Treatments = slices.Clone(n.Treatments)
	n.Foreign = slices.Clone(n.Foreign)
	n.Memories = slices.Clone(n.Memories)
	n.Attempts = slices.Clone(n.Attempts)
	return n
}
