package triage_test

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// twin decides what the core decides, from the same words and with none of its
// code. It keeps what is history and cannot be worked out again; everything
// else it works out for all nodes and all rules whenever it is asked. It is
// slow, and meant to be read with the package's documentation beside it.
type twin struct {
	now     time.Time
	loaded  bool
	rules   map[triage.RuleID]triage.Rule
	nodes   map[string]*patient
	vacancy []triage.Grant // terminations whose node is gone
	// ladders are the lengths of all ladders that there are, and of those of rules
	// that are gone and have left something behind.
	ladders map[triage.RuleID]int
	// storms are those that are on, by the rule whose gate they closed, each with the
	// time since when it is calm again, zero while it is not.
	storms map[triage.RuleID]time.Time
	// pools are those in which rules share their caps, by rule; of a rule that is gone
	// for as long as it has left something behind.
	pools map[triage.RuleID]string
	// allowances are what somebody else lets rules begin, known to be rules or not.
	allowances map[triage.RuleID]triage.Allowance

	// saw counts what happened, so that a test can tell that it happened.
	saw map[string]int
}

// patient is one node under one UID. Changed tells, by condition, since when it
// has had its status, and stale whose transition time is not that of the change.
type patient struct {
	facts       triage.Node
	created     time.Time // as the facts tell, or when it was first seen
	ready       bool      // once
	initialized bool      // once
	started     bool      // it was ready once while its startup taints were there
	standsIn    bool      // it replaces one that has gone
	changed     map[string]time.Time
	stale       map[string]bool
	flapped     map[string]bool // between the last two observations, while that is looked at
	charts      map[triage.RuleID]*chart
}

// chart is the history of one rule on one node.
type chart struct {
	judged    bool // by this definition of the rule, while it selected the node
	sick      bool
	clocks    map[string]start
	notBefore time.Time

	// troubled says that the rule held or was unclear when it was last asked, and
	// relieved is when it last ceased to.
	troubled bool
	relieved time.Time
	well     time.Time // since when the node counts as healthy beside its treatment, zero if it does not

	response
}

// start is when a clock began to run. It is vouched for while the condition has
// the transition time by which somebody who knows nothing else finds it, too.
type start struct {
	at      time.Time
	vouched bool
	by      time.Time
}

// response is what takes a place; its zero value takes none.
type response struct {
	active    bool
	treatment bool // of a ladder; otherwise a NoExecute taint
	step      int
	seen      int // highest step that was in the facts, plus one
	since     time.Time
	failed    bool
	replaced  bool
	by        *patient // what replaces it, if that was seen
	// terminates is kept when the rule goes, since nobody else could tell what
	// its steps were.
	terminates bool
	noted      int // the step that terminates is about, plus one
	deletes    bool
}

// departs says that the node has to be replaced if it goes.
func (r response) departs() bool { return r.active && (r.terminates || r.deletes) }

type verdict int

const (
	not verdict = iota
	unclear
	holds
)

func newTwin(saw map[string]int) *twin {
	return &twin{
		rules: map[triage.RuleID]triage.Rule{}, nodes: map[string]*patient{}, ladders: map[triage.RuleID]int{},
		storms: map[triage.RuleID]time.Time{}, pools: map[triage.RuleID]string{}, allowances: map[triage.RuleID]triage.Allowance{}, saw: saw,
	}
}

// ---- what the caller tells

func (t *twin) SetRule(now time.Time, r triage.Rule) error {
	if err := r.Validate(); err != nil {
		return err // as if nothing had been said
	}
	t.pass(now)
	old, known := t.rules[r.ID]
	if known && reflect.DeepEqual(old, r) {
		t.decide()
		return nil
	}
	t.rules[r.ID] = r
	t.ladders[r.ID] = len(r.Response.Ladder)
	if before := t.pools[r.ID]; before != r.Bound.Pool && t.inTreatment(r.ID) > 0 {
		t.saw["pools changed with something under way"]++
	}
	t.pools[r.ID] = r.Bound.Pool
	if _, told := t.allowances[r.ID]; told && !known {
		t.saw["allowances told before the rule"]++
	}
	if r.Bound.Cooldown == 0 {
		delete(t.storms, r.ID)
	} else if _, on := t.storms[r.ID]; on && known {
		t.saw["storms under a rule that is edited"]++
	}
	for _, p := range t.nodes {
		c := p.charts[r.ID]
		if c == nil {
			continue
		}
		kept := map[string]start{}
		for condition, clock := range c.clocks {
			if known && sameButFor(signalsOf(old, condition), signalsOf(r, condition)) {
				kept[condition] = clock
			}
		}
		c.clocks, c.judged, c.sick = kept, false, false
		if last := len(r.Response.Ladder) - 1; c.active && last >= 0 {
			c.step, c.seen = min(c.step, last), min(c.seen, last+1)
			c.note(r) // the step may be another one now, before it is escalated
		}
	}
	t.decide()
	return nil
}

func (t *twin) RemoveRule(now time.Time, id triage.RuleID) {
	t.pass(now)
	delete(t.rules, id)
	delete(t.storms, id)
	delete(t.allowances, id)
	t.decide()
}

func (t *twin) Observe(now time.Time, nodes ...triage.Node) {
	t.pass(now)
	for _, facts := range nodes {
		p := t.nodes[facts.Name]
		if p != nil && p.facts.UID != facts.UID {
			t.forget(facts.Name)
			p = nil
		}
		flapped := map[string]bool{}
		honest := map[string]bool{} // whose transition time can be that of a change which is seen now
		if p == nil {
			p = &patient{
				created: facts.Created,
				changed: map[string]time.Time{},
				stale:   map[string]bool{},
				charts:  map[triage.RuleID]*chart{},
			}
			for _, row := range facts.Conditions {
				if _, met := p.changed[row.Type]; met {
					continue
				}
				p.changed[row.Type], p.stale[row.Type] = t.now, row.Transition.IsZero()
				if !row.Transition.IsZero() && row.Transition.Before(t.now) {
					p.changed[row.Type] = row.Transition
				}
			}
			if p.created.IsZero() {
				p.created = t.now
			}
			t.nodes[facts.Name] = p
		} else {
			for _, row := range slices.Concat(p.facts.Conditions, facts.Conditions) {
				before, was := rowOf(p.facts, row.Type)
				after, is := rowOf(facts, row.Type)
				// Within two seconds two changes may have the same.
				honest[row.Type] = after.Transition.After(before.Transition) || t.now.Sub(after.Transition) < 2*time.Second
				// And a clock that is wrong tells nobody when that was.
				if off := t.now.Sub(after.Transition).Abs(); honest[row.Type] && off > time.Minute {
					honest[row.Type] = false
					t.saw["stamps of clocks that are wrong"]++
				}
				flapped[row.Type] = was && is && before.Status == after.Status && after.Transition.After(before.Transition)
				switch {
				case before.Status != after.Status || was != is:
					p.changed[row.Type], p.stale[row.Type] = t.now, !honest[row.Type]
				case !before.Transition.Equal(after.Transition): // later than the change, or before it
					p.stale[row.Type] = true
				}
			}
		}
		p.facts = cloneNode(facts)
		ready, _ := rowOf(facts, triage.Ready)
		works := ready.Status == triage.True && !facts.Starting // until then it is of no use
		p.initialized = p.initialized || facts.Initialized || works
		if ready.Status == triage.True && !p.initialized {
			p.started = true
			t.saw["ready before the startup taints are gone"]++
		}
		p.flapped = flapped
		t.examine(p, honest)
		p.flapped = nil
		for id, c := range p.charts {
			c.note(t.rules[id])
		}
		t.escalate()

		if works && !p.ready {
			p.ready = true
			if p.started {
				t.saw["startup taints gone from a ready node"]++
			}
			if t.loaded {
				t.replace(p)
			}
		}
	}
	t.decide()
}

func (t *twin) Forget(now time.Time, name string) {
	t.pass(now)
	t.forget(name)
	t.decide()
}

func (t *twin) Abandon(now time.Time, node string, id triage.RuleID, retry time.Duration) {
	t.pass(now)
	if p := t.nodes[node]; p != nil {
		c := p.charts[id]
		shown, there := t.shown(p, id)
		gives := true
		switch {
		case c == nil || !c.active:
			gives = false
		case !takesPlace(p.facts, id):
			c.response, c.well = response{}, time.Time{}
			t.saw["abandoned"]++
		case there && c.seen <= c.step: // that step is not there, but an earlier one is
			c.step, c.seen, c.since, c.failed = shown.Step, shown.Step+1, shown.Since, shown.Failed
			c.note(t.rules[id])
			t.saw["abandoned a later step"]++
		default:
			gives = false
		}
		if gives {
			c.notBefore = earlier(c.notBefore, t.now) // its turn is what it was
			if retry > 0 {
				c.notBefore = t.now.Add(retry)
			}
		}
	}
	t.decide()
}

func (t *twin) Resume(now time.Time, g triage.Grant) {
	t.pass(now)
	p := t.nodes[g.Node]
	if p != nil && p.facts.UID != g.UID {
		p = nil
	}
	rule, known := t.rules[g.Rule]
	ladder := len(rule.Response.Ladder) > 0
	if !known && g.Pool != "" {
		t.pools[g.Rule] = g.Pool
		t.saw["pools of rules that are gone, found after a restart"]++
	}
	switch {
	case (p == nil || !g.Gone.IsZero()) && slices.ContainsFunc(t.vacancy, func(v triage.Grant) bool { return v.Rule == g.Rule && v.Node == g.Node && v.UID == g.UID }):
		t.saw["vacancies told twice"]++
	case !g.Gone.IsZero():
		t.vacancy = append(t.vacancy, g)
	case p == nil:
		if ladder && !g.Replaced && (g.Deletes || rule.Response.Ladder[min(g.Step, len(rule.Response.Ladder)-1)].Action == triage.Terminate) {
			if g.Deletes {
				t.saw["vacancies of treatments that delete, found after a restart"]++
			}
			g.Gone, g.Deletes = t.now, false
			t.vacancy = append(t.vacancy, g)
			t.saw["vacancies"]++
		}
	default:
		c := p.chart(g.Rule)
		if !c.active {
			if known && lenient(rule) {
				t.saw["resumed under a weaker effect"]++
			}
			c.response = response{active: true, treatment: g.Rule.Kind != triage.ConditionSet, step: g.Step, since: g.Since}
			// Somebody decided that before, so somebody knew that it was sick.
			c.sick = c.sick || known && t.verdict(p, rule) == unclear
			t.saw["resumed"]++
		} else if step := min(g.Step, max(len(rule.Response.Ladder)-1, 0)); known && step > c.step {
			c.step, c.since, c.failed = step, g.Since, false
		}
		terminates := ladder && rule.Response.Ladder[min(c.step, len(rule.Response.Ladder)-1)].Action == triage.Terminate
		if terminates || deletes(p.facts, g.Rule) {
			if c.replaced = g.Replaced; !c.replaced {
				c.by = nil
			}
		}
	}
	t.decide()
}

func (t *twin) ResumeStorm(now time.Time, id triage.RuleID, calm time.Time) {
	t.pass(now)
	rule, known := t.rules[id]
	if _, on := t.storms[id]; known && rule.Bound.Cooldown > 0 && !on {
		t.storms[id] = earlier(calm, t.now)
		t.saw["storms resumed"]++
	}
	t.decide()
}

func (t *twin) Allow(now time.Time, id triage.RuleID, a *triage.Allowance) {
	t.pass(now)
	delete(t.allowances, id)
	if a != nil {
		t.allowances[id] = *a
	}
	t.decide()
}

func (t *twin) Loaded(now time.Time) {
	t.pass(now)
	t.loaded = true
	t.decide()
}

func (t *twin) Advance(now time.Time) {
	t.pass(now)
	t.decide()
}

// ---- history

func (t *twin) pass(now time.Time) {
	if now.After(t.now) {
		t.now = now
	}
	t.expire()
	t.escalate()
}

func (t *twin) expire() {
	t.vacancy = slices.DeleteFunc(t.vacancy, func(v triage.Grant) bool {
		return !v.Gone.Add(triage.ReplacementWait).After(t.now)
	})
}

func (t *twin) decide() {
	t.expire()
	for _, p := range t.nodes {
		t.examine(p, nil)
	}
	t.escalate()
	t.weather()
	t.grant()
	for _, p := range t.nodes {
		for id, c := range p.charts {
			c.note(t.rules[id])
			if !c.active && !c.sick && len(c.clocks) == 0 && !carries(p.facts, id) {
				c.notBefore, c.troubled, c.relieved = time.Time{}, false, time.Time{}
			}
		}
	}
	maps.DeleteFunc(t.ladders, func(id triage.RuleID, _ int) bool {
		_, known := t.rules[id]
		return !known && !t.left(id)
	})
	maps.DeleteFunc(t.pools, func(id triage.RuleID, _ string) bool {
		_, known := t.rules[id]
		return !known && !t.left(id)
	})
}

// weather tells for every rule whether a storm is on now that everything is known.
func (t *twin) weather() {
	if !t.loaded {
		return
	}
	for id, rule := range t.rules {
		if rule.Bound.Cooldown == 0 {
			continue
		}
		n := t.count(rule)
		lost := t.unreplaced(id)
		over := n.Sick+n.Recovering+lost > allows(rule.Bound.Gate, n.Selected+lost)
		if over && n.Sick+n.Recovering <= allows(rule.Bound.Gate, n.Selected+lost) {
			t.saw["storms by those who are gone"]++
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
			if n.Sick+n.Recovering+lost == 0 {
				t.saw["storms over with nobody sick"]++
			}
		}
	}
}

// left says whether anything of a rule is still around.
func (t *twin) left(id triage.RuleID) bool {
	for _, p := range t.nodes {
		if p.chart(id).active || carries(p.facts, id) {
			return true
		}
	}
	return slices.ContainsFunc(t.vacancy, func(v triage.Grant) bool { return v.Rule == id })
}

// examine brings the charts of a node up to date with its facts. Doing it again
// with the same facts changes nothing.
func (t *twin) examine(p *patient, honest map[string]bool) {
	for _, id := range t.idsOf(p) {
		c := p.chart(id)
		rule, known := t.rules[id]
		t.find(p, id, c)

		if !known || !selects(rule, p.facts) {
			c.judged, c.sick, c.clocks = false, false, map[string]start{}
			t.feel(p, rule, c, not)
			continue
		}
		for _, condition := range groups(rule) {
			t.wind(p, rule, c, condition, honest[condition])
		}
		switch t.verdict(p, rule) {
		case holds:
			c.sick = true
		case not:
			c.sick = false
		case unclear:
			if !c.judged {
				c.sick = c.active || carries(p.facts, id) || t.allRun(rule, c)
			}
		}
		t.feel(p, rule, c, t.verdict(p, rule))
		c.judged = true
	}
}

// feel keeps since when a node has been healthy whose treatment is still there.
func (t *twin) feel(p *patient, rule triage.Rule, c *chart, v verdict) {
	if c.troubled && v == not {
		c.relieved = t.now
	}
	c.troubled = v != not
	shown, there := t.shown(p, rule.ID)
	waits := rule.Recovery.Delay > 0 || rule.Recovery.ByHand
	if !there || !waits || rule.DryRun || c.troubled || c.sick || !selects(rule, p.facts) {
		if !c.well.IsZero() && c.sick {
			t.saw["recoveries that were broken off"]++
		}
		if !c.well.IsZero() && !c.sick && c.troubled {
			t.saw["recoveries that became unclear"]++
		}
		c.well = time.Time{}
		return
	}
	switch {
	case !c.well.IsZero():
	case c.judged || shown.HealthySince.IsZero():
		c.well = t.now
	default:
		c.well = later(earlier(shown.HealthySince, t.now), c.relieved)
		t.saw["recoveries taken up from a note"]++
	}
	for _, condition := range groups(rule) {
		if _, is := rowOf(p.facts, condition); is && !c.judged {
			c.well = later(c.well, p.changed[condition])
		}
		if p.flapped[condition] {
			if c.well.Before(t.now) {
				t.saw["recoveries begun anew by a stamp"]++
			}
			c.well = t.now
		}
	}
}

// shown is the latest step of a ladder that the facts show.
func (t *twin) shown(p *patient, id triage.RuleID) (latest triage.Treatment, there bool) {
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

// stays says whether the treatment stays on a node that is not sick any more, and
// until when if time will end that.
func (t *twin) stays(p *patient, rule triage.Rule) (until time.Time, stays bool) {
	c := p.chart(rule.ID)
	waits := rule.Recovery.Delay > 0 || rule.Recovery.ByHand
	_, there := t.shown(p, rule.ID)
	if c.sick || !waits || rule.DryRun || !there || !selects(rule, p.facts) {
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
	until = c.well.Add(rule.Recovery.Delay)
	return until, until.After(t.now)
}

// allRun says whether the clocks that run would have made the node sick.
func (t *twin) allRun(rule triage.Rule, c *chart) bool {
	if rule.When.All {
		return len(c.clocks) == len(groups(rule))
	}
	return len(c.clocks) > 0
}

// wind starts, stops or keeps the clock of one group.
func (t *twin) wind(p *patient, rule triage.Rule, c *chart, condition string, honest bool) {
	v, _ := t.group(p, rule, condition)
	clock, running := c.clocks[condition]
	row, is := rowOf(p.facts, condition)
	fromCreation := signalsOf(rule, condition)[0].FromCreation
	remembered, memory := memoryOf(p.facts, rule.ID, condition)
	switch {
	case v == not:
		delete(c.clocks, condition)
		return
	case running: // it runs on
	case fromCreation:
		if v != holds {
			return
		}
		clock = start{at: p.created}
	case !c.judged && memory:
		clock = start{at: earlier(remembered, t.now)}
		t.saw["memories"]++
		if row.Status != triage.Unknown && !row.Transition.IsZero() && row.Transition.Before(clock.at) {
			t.saw["memories of a later start than the stamp's"]++
		}
	case v != holds:
		return
	case !is: // a row that is not there has no time
		clock = start{at: t.now}
	case !c.judged:
		clock = start{at: p.changed[condition], vouched: !p.stale[condition], by: row.Transition}
	default:
		clock = start{at: t.now, vouched: honest, by: row.Transition}
	}
	c.clocks[condition] = clock
}

// find compares what a chart says is on the node with what is.
func (t *twin) find(p *patient, id triage.RuleID, c *chart) {
	rule, known := t.rules[id]
	last := len(rule.Response.Ladder) - 1

	if known && last >= 0 && c.active {
		c.step, c.seen = min(c.step, last), min(c.seen, last+1)
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
		top := found[len(found)-1].Step
		if c.seen == c.step+1 && top < c.step {
			c.step = top // somebody has ended the later one
			t.saw["later steps over"]++
		}
		c.step, c.seen = max(c.step, top), top+1
		for _, treatment := range found {
			if treatment.Step == c.step {
				c.since, c.failed = treatment.Since, treatment.Failed
			}
		}
	case tainted && !c.treatment:
		if !c.active {
			c.response = response{active: true, since: t.now}
		}
		c.seen = 1
	case c.active && c.seen == c.step+1:
		c.response, c.well = response{}, time.Time{}
		c.notBefore = t.now
		t.saw["over"]++
	}
}

func (t *twin) escalate() {
	for _, p := range t.nodes {
		for id, c := range p.charts {
			rule, known := t.rules[id]
			if !known || rule.DryRun || !c.active || !c.sick || c.step >= len(rule.Response.Ladder)-1 {
				continue
			}
			_, vetoed := vetoOf(p.facts, id.Kind)
			if t.verdict(p, rule) == holds && rule.Hold == "" && !vetoed && t.spent(rule, c) && !c.notBefore.After(t.now) {
				c.step, c.since, c.failed = c.step+1, t.now, false
				c.note(rule)
				t.saw["escalations"]++
			}
		}
	}
}

// spent says whether the current step was seen and has failed or timed out.
func (t *twin) spent(rule triage.Rule, c *chart) bool {
	timeout := rule.Response.Ladder[c.step].Timeout
	return c.seen == c.step+1 && (c.failed || timeout > 0 && !c.since.Add(timeout).After(t.now))
}

// note keeps whether the step under way is a termination, or anything deletes the
// node.
func (c *chart) note(rule triage.Rule) {
	if ladder := rule.Response.Ladder; c.active && len(ladder) > 0 {
		terminates := ladder[c.step].Action == triage.Terminate
		if c.noted == c.step+1 { // what was decided stays decided
			terminates = terminates || c.terminates
		}
		c.terminates, c.noted = terminates, c.step+1
	}
	if c.replaced = c.replaced && c.departs(); !c.replaced {
		c.by = nil
	}
}

func (t *twin) forget(name string) {
	p := t.nodes[name]
	if p == nil {
		return
	}
	for id, c := range p.charts {
		if c.departs() && c.by != nil {
			c.by.standsIn = true
		}
		if c.departs() && !c.replaced {
			t.vacancy = append(t.vacancy, triage.Grant{
				Rule: id, Node: name, UID: p.facts.UID, Step: c.step, Since: c.since, Gone: t.now, ControlPlane: p.facts.ControlPlane,
			})
			t.saw["vacancies"]++
			if !c.terminates {
				t.saw["vacancies of treatments that delete"]++
			}
		}
	}
	delete(t.nodes, name)
}

// replace counts a node that has become ready in the place of the oldest
// termination of the rules that select it.
func (t *twin) replace(p *patient) {
	type termination struct {
		since time.Time
		node  string
		rule  triage.RuleID
		free  func()
	}
	var open []termination
	for name, other := range t.nodes {
		if other == p {
			continue // nobody replaces itself
		}
		for id, c := range other.charts {
			if c.departs() && !c.replaced {
				open = append(open, termination{c.since, name, id, func() { c.replaced, c.by = true, p }})
			}
		}
	}
	for i, v := range t.vacancy {
		open = append(open, termination{v.Since, v.Node, v.Rule, func() {
			t.vacancy, p.standsIn = slices.Delete(t.vacancy, i, i+1), true
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
		t.saw["replacements of one, where two rules of a pool miss one"]++
	}
	slices.MinFunc(open, func(a, b termination) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.node, b.node), compareRules(a.rule, b.rule))
	}).free()
	t.saw["replacements"]++
}

// ---- a round of decisions

func (t *twin) grant() {
	if !t.loaded {
		return
	}
	type candidate struct {
		waits time.Time
		rule  triage.Rule
		p     *patient
	}
	var queue []candidate
	for _, p := range t.nodes {
		for id, rule := range t.rules {
			if rule.DryRun {
				continue
			}
			c := p.chart(id)
			if !c.sick || c.active || len(rule.Response.Ladder) == 0 && !wantsNoExecute(rule) || t.verdict(p, rule) != holds {
				continue
			}
			eligible, _ := t.eligible(p, rule)
			if waits := later(eligible, c.notBefore); !waits.After(t.now) {
				queue = append(queue, candidate{waits, rule, p})
			}
		}
	}
	slices.SortFunc(queue, func(a, b candidate) int {
		return cmp.Or(a.waits.Compare(b.waits), compareRules(a.rule.ID, b.rule.ID), cmp.Compare(a.p.facts.Name, b.p.facts.Name))
	})
	for _, next := range queue {
		if _, stopped := t.blocked(next.p, next.rule); !stopped {
			c := next.p.chart(next.rule.ID)
			c.response = response{active: true, treatment: len(next.rule.Response.Ladder) > 0, since: t.now}
			c.note(next.rule) // who goes counts at once for those who come after it
			t.saw["grants"]++
			if len(next.rule.Response.Ladder) > 0 {
				t.spend(next.rule.ID)
			}
		}
	}
}

// blocked says what keeps a rule from beginning something on a node now.
func (t *twin) blocked(p *patient, rule triage.Rule) (triage.Reason, bool) {
	counts := t.count(rule)
	if rule.Hold != "" {
		return triage.Reason{Code: triage.OnHold, Other: rule.Hold}, true
	}
	if len(rule.Response.Ladder) == 0 {
		if spares(rule, p.facts) {
			return triage.Reason{Code: triage.FellBack}, true
		}
		if t.served(p, rule) {
			return triage.Reason{Code: triage.Tainted}, true
		}
	} else {
		if veto, vetoed := vetoOf(p.facts, rule.ID.Kind); vetoed {
			return triage.Reason{Code: triage.Vetoed, Other: veto.Reason}, true
		}
		var others []triage.RuleID
		for id, c := range p.charts {
			if id != rule.ID && c.active && c.treatment {
				others = append(others, id)
			}
		}
		if len(others) > 0 {
			return triage.Reason{Code: triage.Busy, Other: slices.MinFunc(others, compareRules).String()}, true
		}
		if names := t.controlPlaneInTreatment(p); p.facts.ControlPlane && len(names) > 0 {
			return triage.Reason{Code: triage.ControlPlaneBusy, Other: slices.Min(names)}, true
		}
		if reason, shut := t.shut(rule); shut {
			return reason, true
		}
	}
	taken := t.pooled(rule.ID)
	if limit := allows(rule.Bound.Cap, t.basis(rule)); limit >= 0 && taken >= limit {
		if counts.Treated < limit {
			t.saw["held: by another rule of the pool"]++
		}
		gone := 0
		for _, mate := range t.mates(rule.ID) {
			gone += t.unreplaced(mate)
		}
		return triage.Reason{Code: triage.CapFull, Have: taken, Limit: limit, Of: t.basis(rule), Pool: rule.Bound.Pool, Departed: gone}, true
	}
	if word, told := t.allowances[rule.ID]; told && word.Places <= 0 && len(rule.Response.Ladder) > 0 {
		return triage.Reason{Code: triage.NotAllowed, Other: word.Words}, true
	}
	return triage.Reason{}, false
}

// basis is of how many nodes the cap is a share: of all, without those that were made
// since the first began to go of those that are to be replaced, unless they replace one
// that has gone. 100% is of everybody, and of those that are gone.
func (t *twin) basis(rule triage.Rule) (nodes int) {
	var going []time.Time
	gone := 0
	for _, mate := range t.mates(rule.ID) {
		for _, p := range t.nodes {
			if c := p.chart(mate); c.departs() {
				going = append(going, c.since)
			}
		}
		for _, v := range t.vacancy {
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
		case isShare && len(going) > 0 && !p.standsIn && !p.created.Before(slices.MinFunc(going, time.Time.Compare).Truncate(time.Second)):
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

// mates are all rules that share a pool with this one, itself among them.
func (t *twin) mates(id triage.RuleID) []triage.RuleID {
	mates := []triage.RuleID{id}
	for other, pool := range t.pools {
		if other != id && pool != "" && pool == t.pools[id] {
			mates = append(mates, other)
		}
	}
	return mates
}

// pooled is how many are in treatment under all rules that share a pool with one.
func (t *twin) pooled(id triage.RuleID) (taken int) {
	for _, mate := range t.mates(id) {
		theirs := t.inTreatment(mate)
		if _, known := t.rules[mate]; !known && theirs > 0 {
			t.saw["places of a pool taken by a rule that is gone"]++
		}
		taken += theirs
	}
	if rule, known := t.rules[id]; known {
		taken += t.count(rule).Foreign
	}
	return taken
}

// served says that the node has the NoExecute that the rule would place, and that nobody
// can tell whose it is.
func (t *twin) served(p *patient, rule triage.Rule) bool {
	return wantsNoExecute(rule) && !p.chart(rule.ID).active && slices.Contains(p.facts.Foreign, rule.Response.Taint.Key)
}

// inTreatment is how many places one rule has taken, known or gone.
func (t *twin) inTreatment(id triage.RuleID) (taken int) {
	for _, p := range t.nodes {
		if p.chart(id).active {
			taken++
		}
	}
	return taken + t.unreplaced(id)
}

// spend counts a treatment that a rule has begun in what its pool is allowed.
func (t *twin) spend(id triage.RuleID) {
	for _, mate := range t.mates(id) {
		word, told := t.allowances[mate]
		if _, known := t.rules[mate]; !told || !known || word.Places <= 0 {
			continue
		}
		word.Places--
		t.allowances[mate] = word
		t.saw["allowances taken"]++
		if mate != id {
			t.saw["allowances taken by another rule of the pool"]++
		}
	}
}

// shut says what keeps the gate of a rule closed.
func (t *twin) shut(rule triage.Rule) (triage.Reason, bool) {
	n := t.count(rule)
	lost := t.unreplaced(rule.ID)
	unwell := n.Sick + n.Recovering + lost
	if gate := allows(rule.Bound.Gate, n.Selected+lost); gate >= 0 && unwell > gate {
		if n.Sick+lost <= gate {
			t.saw["gates closed by those who recover"]++
		}
		if n.Sick+n.Recovering <= gate {
			t.saw["gates closed by those who are gone"]++
			if rule.Bound.Gate.Percent || rule.Bound.Gate.Healthy {
				t.saw["gates that are no plain number closed by those who are gone"]++
			}
		}
		return triage.Reason{Code: triage.GateClosed, Have: unwell, Recovering: n.Recovering, Departed: lost, Limit: gate, Of: n.Selected + lost}, true
	}
	if calm, on := t.storms[rule.ID]; on {
		return triage.Reason{Code: triage.CoolingDown, Calm: calm, Until: calm.Add(rule.Bound.Cooldown)}, true
	}
	return triage.Reason{}, false
}

// controlPlaneInTreatment names the control-plane nodes in treatment other than
// this one, and those that were and are not replaced yet.
func (t *twin) controlPlaneInTreatment(p *patient) []string {
	var names []string
	for name, other := range t.nodes {
		for _, c := range other.charts {
			if other != p && other.facts.ControlPlane && c.active && c.treatment {
				names = append(names, name)
			}
		}
	}
	for _, v := range t.vacancy {
		if v.ControlPlane {
			names = append(names, v.Node)
		}
	}
	return names
}

func (t *twin) count(rule triage.Rule) triage.Counts {
	var n triage.Counts
	for _, zone := range t.zones(rule) {
		n.Selected += zone.Selected
		n.Sick += zone.Sick
		n.Treated += zone.Treated
		n.Recovering += zone.Recovering
		n.Foreign += zone.Foreign
	}
	n.Departed = t.unreplaced(rule.ID)
	n.Treated += n.Departed
	return n
}

// unreplaced is how many nodes of a rule are gone and have no replacement yet.
func (t *twin) unreplaced(id triage.RuleID) (gone int) {
	for _, v := range t.vacancy {
		if v.Rule == id {
			gone++
		}
	}
	return gone
}

func (t *twin) zones(rule triage.Rule) map[string]triage.Counts {
	zones := map[string]triage.Counts{}
	for _, p := range t.nodes {
		n := zones[p.facts.Zone]
		c := p.chart(rule.ID)
		if selects(rule, p.facts) {
			n.Selected++
			switch {
			case c.sick:
				n.Sick++
			case c.active && c.treatment:
				n.Recovering++
			}
			if t.served(p, rule) {
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

// ---- what the caller asks

func (t *twin) Population(id triage.RuleID) (triage.Population, bool) {
	rule, known := t.rules[id]
	if !known {
		return triage.Population{}, false
	}
	n := t.count(rule)
	population := triage.Population{
		Counts: n,
		Zones:  t.zones(rule),
		Gate:   allows(rule.Bound.Gate, n.Selected+n.Departed),
		Cap:    allows(rule.Bound.Cap, t.basis(rule)),
		Pooled: t.pooled(id),
	}
	population.CalmSince, population.Storm = t.storms[id]
	if !population.CalmSince.IsZero() {
		population.CalmUntil = population.CalmSince.Add(rule.Bound.Cooldown)
	}
	return population, true
}

func (t *twin) Grants() []triage.Grant {
	var grants []triage.Grant
	for name, p := range t.nodes {
		for id, c := range p.charts {
			if c.active {
				grants = append(grants, triage.Grant{
					Rule: id, Node: name, UID: p.facts.UID, Step: c.step, Since: c.since, ControlPlane: p.facts.ControlPlane, Replaced: c.replaced, Deletes: c.deletes, Pool: t.pools[id],
				})
			}
		}
	}
	for _, v := range t.vacancy {
		v.Pool = t.pools[v.Rule]
		grants = append(grants, v)
	}
	return grants
}

func (t *twin) Plan(name string) (triage.Plan, bool) {
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
		reason.Rule = id
		plan.Findings = append(plan.Findings, reason)
		switch {
		case release:
			plan.Release = append(plan.Release, reason)
		case known && rule.Response.Taint != nil && p.chart(id).active && p.chart(id).seen == 0 && placed < triage.NoExecute:
			// Nobody wants that NoExecute now, and nobody has seen it.
			off := reason
			if placed > 0 {
				off.Other = "NoExecute is called off"
			}
			plan.Release = append(plan.Release, off)
		case known && len(rule.Response.Ladder) > 0 && t.waitsUnseen(p, rule):
			if p.chart(id).step == 0 {
				plan.Release = append(plan.Release, reason)
			} else {
				plan.CallOff = append(plan.CallOff, reason)
			}
		}
		if step, wanted := t.wanted(p, rule); known && wanted && plan.Treatment == nil {
			c := p.chart(id)
			plan.Treatment = &triage.PlannedTreatment{
				Rule: id, Step: step.Step, Action: rule.Response.Ladder[step.Step].Action, Ref: rule.Response.Ladder[step.Step].Ref,
				Since: step.Since, HealthySince: c.well, Reason: reason,
			}
		}
		switch reason.Code {
		case triage.Tainted, triage.FellBack:
			if placed == triage.NoExecute && t.served(p, rule) {
				t.saw["NoExecute of others that serves"]++
				break
			}
			plan.Taints = append(plan.Taints, triage.PlannedTaint{
				Taint:  triage.Taint{Rule: id, Key: rule.Response.Taint.Key, Effect: placed},
				Reason: reason,
			})
		}
	}
	for _, id := range t.idsOf(p) {
		rule, known := t.rules[id]
		if !known {
			continue
		}
		for _, condition := range groups(rule) {
			clock, running := p.chart(id).clocks[condition]
			if running && t.mustOutlive(p, rule, condition, clock) {
				row, _ := rowOf(p.facts, condition)
				plan.Remember = append(plan.Remember, triage.Memory{Rule: id, Condition: condition, Since: clock.at, Transition: row.Transition})
			}
		}
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

// waitsUnseen says that the latest step was decided, was never seen, and may not
// begin now, although the rule does not want everything back.
func (t *twin) waitsUnseen(p *patient, rule triage.Rule) bool {
	c := p.chart(rule.ID)
	if !c.active || c.seen == c.step+1 || rule.DryRun {
		return false
	}
	if !c.sick {
		_, stays := t.stays(p, rule)
		return stays
	}
	_, off := t.off(p, rule)
	return off
}

// off says why the latest step may not begin on a sick node, which was decided and
// has never been seen.
func (t *twin) off(p *patient, rule triage.Rule) (triage.Reason, bool) {
	c := p.chart(rule.ID)
	veto, vetoed := vetoOf(p.facts, rule.ID.Kind)
	eligible, _ := t.eligible(p, rule)
	switch {
	case t.verdict(p, rule) == unclear:
		return t.unclear(p, rule), true
	case c.step == 0 && eligible.After(t.now):
		return triage.Reason{Code: triage.Pending, Until: eligible}, true
	case rule.Hold != "":
		return triage.Reason{Code: triage.OnHold, Other: rule.Hold}, true
	case vetoed:
		return triage.Reason{Code: triage.Vetoed, Other: veto.Reason}, true
	case c.step == 0 && t.loaded:
		return t.shut(rule)
	}
	return triage.Reason{}, false
}

// wanted is the step that a rule wants to be under way on a node.
func (t *twin) wanted(p *patient, rule triage.Rule) (triage.Treatment, bool) {
	c := p.chart(rule.ID)
	if len(rule.Response.Ladder) == 0 || rule.DryRun || !c.active {
		return triage.Treatment{}, false
	}
	_, stays := t.stays(p, rule)
	shown, there := t.shown(p, rule.ID)
	if shown.Step == c.step {
		shown.Since = c.since
	}
	switch {
	case !c.sick && !stays:
		return triage.Treatment{}, false
	case !c.sick || t.waitsUnseen(p, rule):
		return shown, there
	}
	return triage.Treatment{Step: c.step, Since: c.since}, true
}

// mustOutlive says whether the start of a clock has to be written down.
func (t *twin) mustOutlive(p *patient, rule triage.Rule, condition string, clock start) bool {
	signals := signalsOf(rule, condition)
	row, is := rowOf(p.facts, condition)
	if signals[0].FromCreation || !is {
		return false
	}
	found := clock.vouched && clock.by.Equal(row.Transition)
	v, _ := t.group(p, rule, condition)
	wait := slices.ContainsFunc(signals, func(s triage.Signal) bool { return s.For > 0 })
	switch {
	case found && v == holds:
		return false
	case rule.DryRun:
		t.saw["not remembered: on dry run"]++
		return false
	case v == holds && !wait:
		t.saw["not remembered: nobody waits for it"]++
		return false
	case found:
		t.saw["remembered through an Unknown with the same stamp"]++
	case v == holds && !clock.vouched:
		t.saw["remembered because no stamp tells it"]++
	}
	return true
}

// finding is what one rule has to say about a node: nothing, if the code is
// zero. It also tells the effect of the taint that is placed, and whether the
// response is to be taken back.
func (t *twin) finding(p *patient, id triage.RuleID) (reason triage.Reason, placed triage.Effect, release bool) {
	rule, known := t.rules[id]
	c := p.chart(id)
	there := c.active || carries(p.facts, id)
	switch {
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
	if until, stays := t.stays(p, rule); stays {
		if v == unclear {
			return t.unclear(p, rule), 0, false
		}
		shown, _ := t.shown(p, id)
		return triage.Reason{
			Code: triage.Recovering, Since: c.well, Until: until,
			Step: shown.Step + 1, Steps: len(rule.Response.Ladder), Action: rule.Response.Ladder[shown.Step].Action,
		}, 0, false
	}
	if !c.sick && there {
		return triage.Reason{Code: triage.Recovered}, 0, true
	}
	if !c.sick {
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
		reason, release = t.rehearsed(p, rule, v, there), there
	case len(rule.Response.Ladder) > 0:
		reason = t.laddered(p, rule, c, v)
	default:
		reason, placed, release = t.tainted(p, rule, c, v)
	}
	if v == holds {
		eligible, condition := t.eligible(p, rule)
		row, _ := rowOf(p.facts, condition)
		reason.Eligible = eligible
		reason.Condition, reason.Status, reason.Since = condition, row.Status, c.clocks[condition].at
		reason.FromCreation = signalsOf(rule, condition)[0].FromCreation
	}
	return reason, placed, release
}

func (t *twin) unclear(p *patient, rule triage.Rule) triage.Reason {
	for _, condition := range groups(rule) {
		if v, _ := t.group(p, rule, condition); v == unclear {
			row, _ := rowOf(p.facts, condition)
			return triage.Reason{Code: triage.Unclear, Condition: condition, Other: row.Reason}
		}
	}
	panic("no group is unclear")
}

func (t *twin) partial(p *patient, rule triage.Rule) triage.Reason {
	reason := triage.Reason{Code: triage.Partial, Of: len(groups(rule))}
	for _, condition := range groups(rule) {
		if v, _ := t.group(p, rule, condition); v == holds {
			reason.Have++
			if reason.Have == 1 {
				row, _ := rowOf(p.facts, condition)
				reason.Condition, reason.Status, reason.Since = condition, row.Status, p.chart(rule.ID).clocks[condition].at
				reason.FromCreation = signalsOf(rule, condition)[0].FromCreation
			}
		}
	}
	return reason
}

func (t *twin) laddered(p *patient, rule triage.Rule, c *chart, v verdict) triage.Reason {
	if c.active && t.waitsUnseen(p, rule) {
		shown, there := t.shown(p, rule.ID)
		reason, _ := t.off(p, rule)
		if c.step == 0 || !there {
			return reason
		}
		if reason.Code == triage.Unclear { // which is nobody's word against it
			reason.Other = ""
		}
		return triage.Reason{
			Code: triage.Treating, Step: shown.Step + 1, Steps: len(rule.Response.Ladder), Action: rule.Response.Ladder[shown.Step].Action,
			Other: reason.Other,
		}
	}
	if c.active {
		step := rule.Response.Ladder[c.step]
		reason := triage.Reason{Code: triage.Treating, Step: c.step + 1, Steps: len(rule.Response.Ladder), Action: step.Action}
		if t.spent(rule, c) {
			veto, _ := vetoOf(p.facts, rule.ID.Kind)
			switch {
			case c.step == len(rule.Response.Ladder)-1:
				reason.Code = triage.Exhausted
			case v == holds:
				reason.Other = cmp.Or(rule.Hold, veto.Reason)
				if reason.Other == "" {
					reason.Other, reason.Until = "it could not be carried out", c.notBefore
				}
			}
		}
		if until := c.since.Add(step.Timeout); c.seen == c.step+1 && !c.failed && step.Timeout > 0 && until.After(t.now) {
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
	reason, stopped := t.blocked(p, rule)
	if !stopped {
		panic("nothing blocks the treatment, and it was not granted")
	}
	return reason
}

// rehearsed tells what a rule on dry run has to say of a sick node. Before its
// time has come, or while nobody knows, it is silent about what it would do.
func (t *twin) rehearsed(p *patient, rule triage.Rule, v verdict, there bool) triage.Reason {
	reason := triage.Reason{Code: triage.DryRun}
	if there {
		reason.Other = "the taint is taken back"
		if len(rule.Response.Ladder) > 0 {
			reason.Other = "the treatment is taken back"
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
	if taint := rule.Response.Taint; taint != nil {
		reason.Key, reason.Effect = taint.Key, taint.Effect
		if spares(rule, p.facts) {
			reason.Effect = triage.NoSchedule
		}
		return reason
	}
	reason.Step, reason.Steps, reason.Action = 1, len(rule.Response.Ladder), rule.Response.Ladder[0].Action
	return reason
}

func (t *twin) tainted(p *patient, rule triage.Rule, c *chart, v verdict) (reason triage.Reason, placed triage.Effect, release bool) {
	taint := rule.Response.Taint
	standing := t.standing(p, rule)
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
		return triage.Reason{Code: triage.OnHold, Other: rule.Hold}, 0, false
	}

	for _, id := range slices.SortedFunc(maps.Keys(t.rules), compareRules) {
		if other := t.rules[id]; t.standing(p, other) > 0 && t.highest(p) == other.Response.Taint.Effect && taint.Effect < other.Response.Taint.Effect {
			return triage.Reason{Code: triage.Superseded, Other: id.String(), Effect: other.Response.Taint.Effect}, 0, c.active || carries(p.facts, rule.ID)
		}
	}

	reason = triage.Reason{Code: triage.Tainted, Key: taint.Key, Effect: standing}
	if standing == triage.NoExecute && t.served(p, rule) {
		reason.Foreign = 1
		return reason, standing, false
	}
	if pending {
		reason.Until = eligible
	}
	switch {
	case spares(rule, p.facts) && standing == triage.NoSchedule:
		reason.Code, reason.Other = triage.FellBack, "control-plane nodes are not included"
	case t.places(p, rule) && taint.Effect == triage.NoExecute && standing != triage.NoExecute:
		reason.Code = triage.FellBack
		switch counts := t.count(rule); {
		case c.notBefore.After(t.now):
			reason.Other, reason.Until = "it could not be placed", c.notBefore
		case !t.loaded:
			reason.Other = "the nodes are still being loaded"
		default:
			reason.Have, reason.Limit, reason.Of = counts.Treated+counts.Foreign, allows(rule.Bound.Cap, counts.Selected), counts.Selected
			if reason.Foreign = counts.Foreign; counts.Treated < reason.Limit {
				t.saw["held: by taints of others"]++
			}
		}
	}
	return reason, standing, false
}

// places says whether a taint rule may put its taint on a node now.
func (t *twin) places(p *patient, rule triage.Rule) bool {
	if t.verdict(p, rule) != holds || rule.Hold != "" {
		return false
	}
	eligible, _ := t.eligible(p, rule)
	return !eligible.After(t.now)
}

// standing is the effect that a rule wants on a node, zero for none.
func (t *twin) standing(p *patient, rule triage.Rule) triage.Effect {
	c := p.chart(rule.ID)
	if rule.Response.Taint == nil || rule.DryRun || !c.sick {
		return 0
	}
	if t.places(p, rule) {
		if wantsNoExecute(rule) && (!c.active && !t.served(p, rule) || spares(rule, p.facts)) {
			return triage.NoSchedule
		}
		return rule.Response.Taint.Effect
	}
	// Nothing begins, decided or not: what is there stays.
	found := strongest(p.facts, rule.ID)
	if found == triage.NoExecute && spares(rule, p.facts) {
		return triage.NoSchedule
	}
	return found
}

// highest is the highest effect declared by a rule that stands on a node.
func (t *twin) highest(p *patient) triage.Effect {
	var highest triage.Effect
	for _, rule := range t.rules {
		if t.standing(p, rule) > 0 {
			highest = max(highest, rule.Response.Taint.Effect)
		}
	}
	return highest
}

// ---- judging

// group judges one condition by the signals that name it, and tells how long it
// must have stood.
func (t *twin) group(p *patient, rule triage.Rule, condition string) (verdict, time.Duration) {
	row, _ := rowOf(p.facts, condition)
	v, wait, named := not, time.Duration(0), false
	if row.Status == triage.Unknown {
		v = unclear
	}
	for _, s := range signalsOf(rule, condition) {
		if s.FromCreation && p.initialized {
			return not, 0
		}
		silent := row.Status == triage.Unknown && row.Reason == triage.AgentSilent
		if s.Status != row.Status || s.Reason != "" && s.Reason != row.Reason || silent && !s.EvenSilent {
			continue
		}
		// A signal that names the reason knows better than one that takes any.
		if names := s.Reason != ""; v != holds || names && !named || names == named && s.For < wait {
			wait, named = s.For, names
		}
		v = holds
	}
	return v, wait
}

func (t *twin) verdict(p *patient, rule triage.Rule) verdict {
	if !selects(rule, p.facts) {
		return not
	}
	n := map[verdict]int{}
	for _, condition := range groups(rule) {
		v, _ := t.group(p, rule, condition)
		n[v]++
	}
	switch {
	case rule.When.All && n[not] > 0:
		return not
	case !rule.When.All && n[holds] > 0:
		return holds
	case n[unclear] > 0:
		return unclear
	case n[holds] > 0:
		return holds
	}
	return not
}

// eligible is when a rule that holds has held long enough, and the condition
// that decides it.
func (t *twin) eligible(p *patient, rule triage.Rule) (at time.Time, decides string) {
	for _, condition := range groups(rule) {
		v, wait := t.group(p, rule, condition)
		if v != holds {
			continue
		}
		due := p.chart(rule.ID).clocks[condition].at.Add(wait)
		if decides == "" || rule.When.All && due.After(at) || !rule.When.All && due.Before(at) {
			at, decides = due, condition
		}
	}
	return at, decides
}

// ---- small things

func (p *patient) chart(id triage.RuleID) *chart {
	if p.charts[id] == nil {
		p.charts[id] = &chart{clocks: map[string]start{}}
	}
	return p.charts[id]
}

// idsOf lists all rules that could concern a node, also those that do not exist.
func (t *twin) idsOf(p *patient) []triage.RuleID {
	ids := map[triage.RuleID]bool{}
	for id := range t.rules {
		ids[id] = true
	}
	for id := range p.charts {
		ids[id] = true
	}
	for _, taint := range p.facts.Taints {
		ids[taint.Rule] = true
	}
	for _, treatment := range p.facts.Treatments {
		ids[treatment.Rule] = true
	}
	return slices.SortedFunc(maps.Keys(ids), compareRules)
}

func compareRules(a, b triage.RuleID) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// groups lists the conditions that a rule names, in the order of first mention.
func groups(rule triage.Rule) []string {
	var conditions []string
	for _, s := range rule.When.Signals {
		if !slices.Contains(conditions, s.Condition) {
			conditions = append(conditions, s.Condition)
		}
	}
	return conditions
}

func signalsOf(rule triage.Rule, condition string) []triage.Signal {
	var signals []triage.Signal
	for _, s := range rule.When.Signals {
		if s.Condition == condition {
			signals = append(signals, s)
		}
	}
	return signals
}

func sameButFor(a, b []triage.Signal) bool {
	return slices.EqualFunc(a, b, func(x, y triage.Signal) bool {
		x.For, y.For = 0, 0
		return x == y
	})
}

func selects(rule triage.Rule, node triage.Node) bool {
	for _, r := range rule.Who.Requirements() {
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

// allows is how many nodes a limit lets be sick or in treatment, -1 for any
// number.
func allows(l *triage.Limit, selected int) int {
	if l == nil {
		return -1
	}
	n := l.Number
	if l.Percent {
		hundredths := selected * l.Number
		n = hundredths / 100
		switch {
		case l.RoundUp && hundredths%100 > 0:
			n++
		case !l.RoundUp && n < 1 && l.Number > 0:
			n = 1
		}
	}
	if l.Healthy {
		n = selected - n
	}
	return max(n, 0)
}

func wantsNoExecute(rule triage.Rule) bool {
	return rule.Response.Taint != nil && rule.Response.Taint.Effect == triage.NoExecute
}

// lenient says that a rule places taints, but no NoExecute.
func lenient(rule triage.Rule) bool { return rule.Response.Taint != nil && !wantsNoExecute(rule) }

// spares says that a rule asks for NoExecute, but not on this node of the control
// plane.
func spares(rule triage.Rule, node triage.Node) bool {
	return wantsNoExecute(rule) && node.ControlPlane && !rule.Response.Taint.ControlPlane
}

// strongest is the highest effect of the rule's taints on a node, zero for none.
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

// deletes says that a treatment of the rule is going to delete the node.
func deletes(node triage.Node, id triage.RuleID) bool {
	return slices.ContainsFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == id && t.Deletes })
}

// takesPlace says whether the facts show a response that is counted.
func takesPlace(node triage.Node, id triage.RuleID) bool {
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

func vetoOf(node triage.Node, kind triage.Kind) (triage.Veto, bool) {
	for _, veto := range node.Vetoes {
		if veto.Kind == 0 || veto.Kind == kind {
			return veto, true
		}
	}
	return triage.Veto{}, false
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

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
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
	n.Vetoes = slices.Clone(n.Vetoes)
	n.Taints = slices.Clone(n.Taints)
	n.Treatments = slices.Clone(n.Treatments)
	n.Foreign = slices.Clone(n.Foreign)
	n.Memories = slices.Clone(n.Memories)
	return n
}
