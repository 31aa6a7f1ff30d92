package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// decider is the common interface of the core and the naive core.
type decider interface {
	SetRule(now time.Time, r triage.Rule) error
	RemoveRule(now time.Time, id triage.RuleID)
	Observe(now time.Time, nodes ...triage.Node)
	Forget(now time.Time, name string)
	Abandon(now time.Time, node string, rule triage.RuleID, retry time.Duration)
	Resume(now time.Time, g triage.Grant)
	ResumeStorm(now time.Time, id triage.RuleID, calmSince time.Time)
	Allow(now time.Time, id triage.RuleID, a *triage.Allowance)
	Keep(now time.Time, kind triage.Kind, keeps func(triage.RuleID) bool)
	Loaded(now time.Time)
	Advance(now time.Time)
	Plan(node string) (triage.Plan, bool)
	Population(id triage.RuleID) (triage.Population, bool)
	Grants() []triage.Grant
	Reopen(now time.Time, node string, retry time.Duration)
	ExceedsRails(node string) bool
	ExceedsClosing(node string) bool
	CallOff(now time.Time, node string, treatmentInFlight bool)
	Closings() []triage.Grant
	SetRails(now time.Time, rails triage.Rails) error
	ResumeStarts(now time.Time, starts []triage.Start)
	NoteSent(node string, id triage.RuleID)
	Starts() []triage.Start
	RailUse() triage.RailUse
}

// call is a call to the deciders, and the nodes that it concerns.
type call struct {
	say   string
	about []string
	idle  bool // only time passes
	do    func(d decider, now time.Time)
}

// history is a random sequence of calls with a simulated cluster and caller. The caller
// carries out the plans of the first decider, a core. The other deciders get the same calls.
type history struct {
	t           *rapid.T             // draws are not logged
	log         func(string, ...any) // logs one line for each step
	fail        func(what string)    // ends the history with an error
	newDeciders func() []decider     // creates the deciders of a new controller
	deciders    []decider            // get every call
	check       func(c call)         // checks the result of a call
	shuffle     bool                 // the last decider gets calls in another order where the order must not matter

	now        time.Time
	lastTime   time.Time // latest time of a call
	loaded     bool
	isLast     bool                    // this is the last check
	nodes      map[string]*triage.Node // the cluster
	observed   map[string]triage.Node  // the cluster as the deciders know it
	seen       map[string]time.Time    // when the last version of a node arrived
	rules      map[triage.RuleID]triage.Rule
	allowed    map[triage.RuleID]*triage.Allowance // what is left of the allowances
	rails      triage.Rails
	pacedSince time.Time // since when the rails have their pace
	starts     []triage.Start
	begun      []begunTreatment
	oldPlans   []triage.Plan // plans that were not carried out yet
	serial     int
	plans      map[string]triage.Plan // of the core, after the last call
	previous   map[string]triage.Plan // of the core, after the call before the last one
	placements placementTracker
	settling   bool           // abandonReleases reads the woken nodes
	asked      []string       // the woken nodes that it read
	saw        map[string]int // events of all histories
}

var (
	startTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	conditionTypes = []string{triage.Ready, "Disk", "Net"}
	reasons        = []string{"", "Worn", triage.AgentSilent}
	waits          = []time.Duration{0, 10 * time.Second, 30 * time.Second, time.Minute}
	durations      = append(slices.Repeat(waits, 3), triage.Never)
	timeSteps      = []time.Duration{time.Second, 10 * time.Second, 300 * time.Millisecond, 30 * time.Second, time.Minute, time.Nanosecond, 5 * time.Minute, triage.ReplacementWait}
)

func at(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Sub(startTime).String()
}

func pick[E any](t *rapid.T, of []E) E { return rapid.SampledFrom(of).Draw(t, "") }

// rare is true about every nth time, and shrinks to false.
func rare(t *rapid.T, n int) bool { return rapid.IntRange(0, n-1).Draw(t, "") == n-1 }

// some picks at least one and at most the given number of names.
func some(t *rapid.T, names []string, most int) []string {
	picked := map[string]bool{}
	for range rapid.IntRange(1, most).Draw(t, "") {
		picked[pick(t, names)] = true
	}
	return slices.Sorted(maps.Keys(picked))
}

// runHistory runs a random history. It draws without the log of rapid, so that a failure
// shows only one line for each step.
func runHistory(t *rapid.T, saw map[string]int, newDeciders func() []decider, newCheck func(*history) (look func(call))) {
	rapid.Custom(func(inner *rapid.T) int {
		h := &history{
			t:           inner,
			log:         t.Logf,
			fail:        func(what string) { t.Fatal(what) },
			newDeciders: newDeciders,
			now:         startTime,
			nodes:       map[string]*triage.Node{},
			seen:        map[string]time.Time{},
			rules:       map[triage.RuleID]triage.Rule{},
			allowed:     map[triage.RuleID]*triage.Allowance{},
			placements:  placementTracker{inFlight: map[placement]string{}, unexpected: map[placement]bool{}},
			saw:         saw,
		}
		h.check = newCheck(h)
		for range rapid.IntRange(1, 4).Draw(inner, "") {
			r := h.drawRule(h.drawID())
			h.rules[r.ID] = r
		}
		for range rapid.IntRange(2, 6).Draw(inner, "") {
			h.arrive()
		}
		h.start(nil, nil)
		// Several times, because a single Repeat may be very short.
		for range 12 {
			inner.Repeat(map[string]func(*rapid.T){"": func(*rapid.T) {}, "step": func(*rapid.T) { h.step() }})
		}
		h.isLast = true
		h.callAt(h.now, call{say: "Advance()", do: func(d decider, now time.Time) { d.Advance(now) }})
		return 0
	}).Draw(t, "history")
}

// ---- calls

// call lets some time pass and makes a call.
func (h *history) call(c call) { h.callAt(h.time(), c) }

func (h *history) callAt(now time.Time, c call) {
	h.log("%s %s", at(now), c.say)
	h.lastTime = later(h.lastTime, now)
	for _, d := range h.deciders {
		c.do(d, now)
	}
	h.afterCall(c)
}

// afterCall records the plans after a call and checks them.
func (h *history) afterCall(c call) {
	h.previous, h.plans = h.plans, map[string]triage.Plan{}
	for name := range h.observed {
		if plan, ok := h.core().Plan(name); ok {
			h.plans[name] = plan
		}
	}
	h.trackPlacements()
	h.check(c)
}

// core is the core whose plans are carried out.
func (h *history) core() *triage.Core { return h.deciders[0].(*triage.Core) }

// time lets some time pass, mostly none, and often until a deadline. The result may be in
// the past, because clocks can go back.
func (h *history) time() time.Time {
	switch {
	case !rare(h.t, 3):
	case rare(h.t, 12):
		return h.now.Add(-10 * time.Second)
	default:
		h.elapse()
	}
	return h.now
}

func (h *history) elapse() {
	deadline, ok := h.core().Deadline()
	if ok && !rare(h.t, 3) {
		deadline = deadline.Add(pick(h.t, []time.Duration{0, 0, 0, 0, -time.Nanosecond, time.Nanosecond}))
		if deadline.After(h.now) {
			h.now = deadline
		}
		return
	}
	h.now = h.now.Add(pick(h.t, timeSteps))
}

func (h *history) observe(names ...string) {
	var lines []string
	var facts []triage.Node
	for _, name := range names {
		h.nodes[name].Previous, h.seen[name] = h.seen[name], h.now
		lines = append(lines, describe(*h.nodes[name]))
		facts = append(facts, *h.nodes[name])
		h.observed[name] = cloneNode(*h.nodes[name])
	}
	h.call(call{say: "Observe(" + strings.Join(lines, "; ") + ")", about: names, do: func(d decider, now time.Time) {
		h.observeCopies(d, now, facts)
	}})
}

// observeCopies passes facts to a decider and overwrites them afterwards, because the core
// must copy what it needs.
func (h *history) observeCopies(d decider, now time.Time, facts []triage.Node) {
	var own []triage.Node
	for _, node := range facts {
		own = append(own, cloneNode(node))
	}
	d.Observe(now, own...)
	for _, node := range own {
		for key := range node.Labels {
			node.Labels[key] = "spoiled"
		}
		clear(node.Conditions)
		clear(node.Assigned)
		clear(node.Vetoes)
		clear(node.Remediates)
		clear(node.Taints)
		clear(node.Treatments)
		clear(node.Memories)
		clear(node.Foreign)
	}
}

func (h *history) setRule(r triage.Rule) {
	h.rules[r.ID] = r
	h.call(call{say: "SetRule(" + describeRule(r) + ")", do: func(d decider, now time.Time) {
		lent := r
		if r.Bound.Cap != nil {
			limit := *r.Bound.Cap
			lent.Bound.Cap = &limit
		}
		if err := d.SetRule(now, lent); err != nil {
			h.log("SetRule: %v", err)
			h.fail("a valid rule is refused")
		}
		if _, keeps := d.(*triage.Core); keeps && lent.Bound.Cap != nil {
			lent.Bound.Cap.Number = -1 // the core must have copied it
		}
	}})
}

// ---- start of the controller

// start creates new deciders and calls them like a new controller, which knows the API
// server and what was stored: the grants, and the storms with the time at which they calmed
// down.
func (h *history) start(grants []triage.Grant, storms map[triage.RuleID]time.Time) {
	h.deciders, h.observed, h.loaded, h.oldPlans = h.newDeciders(), map[string]triage.Node{}, false, nil
	h.plans, h.lastTime = map[string]triage.Plan{}, time.Time{}
	for i := range h.begun { // a new controller does not know what was sent
		h.begun[i].isSent = true
	}
	h.anyOrder([]call{h.setRails()})

	var calls []call
	for _, id := range h.ids() {
		r := h.rules[id]
		calls = append(calls, call{say: "SetRule(" + describeRule(r) + ")", do: func(d decider, now time.Time) {
			if err := d.SetRule(now, r); err != nil {
				h.log("SetRule: %v", err)
				h.fail("a valid rule is refused")
			}
		}})
	}
	if allowances := h.allowAgain(); rare(h.t, 2) { // before or after the rules
		calls = slices.Concat(allowances, calls)
	} else {
		calls = slices.Concat(calls, allowances)
	}
	h.anyOrder(calls)

	calls = nil
	for _, name := range slices.Sorted(maps.Keys(h.nodes)) {
		node := *h.nodes[name]
		h.observed[name] = cloneNode(node)
		calls = append(calls, call{say: "Observe(" + describe(node) + ")", about: []string{name}, do: func(d decider, now time.Time) {
			h.observeCopies(d, now, []triage.Node{node})
		}})
	}
	h.anyOrder(calls)

	calls = nil
	for _, g := range grants {
		say := fmt.Sprintf("Resume(%s)", grantKey(g))
		calls = append(calls, call{say: say, about: []string{g.Node}, do: func(d decider, now time.Time) { d.Resume(now, g) }})
		if (!g.Gone.IsZero() || g.Deletes) && rare(h.t, 4) { // reported twice
			calls = append(calls, calls[len(calls)-1])
		}
	}
	h.anyOrder(calls)

	calls = nil
	for _, id := range slices.SortedFunc(maps.Keys(storms), compareRules) {
		say := fmt.Sprintf("ResumeStorm(%s, calm since %s)", id, at(storms[id]))
		calls = append(calls, call{say: say, do: func(d decider, now time.Time) { d.ResumeStorm(now, id, storms[id]) }})
	}
	h.anyOrder(calls)

	starts := h.starts
	h.anyOrder([]call{{say: fmt.Sprintf("ResumeStarts(%v)", starts), do: func(d decider, now time.Time) { d.ResumeStarts(now, starts) }}})

	if !rare(h.t, 3) {
		h.load()
	}
}

// anyOrder makes calls whose order must not matter. If the history shuffles, the last
// decider gets them in another order. Then no time passes between them, so that each call
// has the same time in both orders.
func (h *history) anyOrder(calls []call) {
	if !h.shuffle {
		for _, c := range calls {
			h.call(c)
		}
		return
	}
	if len(calls) == 0 {
		return
	}
	h.lastTime = later(h.lastTime, h.now)
	var about []string
	for _, c := range calls {
		h.log("%s %s", at(h.now), c.say)
		about = append(about, c.about...)
		for _, d := range h.deciders[:len(h.deciders)-1] {
			c.do(d, h.now)
		}
	}
	for _, c := range rapid.Permutation(calls).Draw(h.t, "") {
		c.do(h.deciders[len(h.deciders)-1], h.now)
	}
	h.afterCall(call{about: about})
}

func (h *history) load() {
	h.loaded = true
	h.call(call{say: "Loaded()", do: func(d decider, now time.Time) { d.Loaded(now) }})
}

// ---- events

func (h *history) step() {
	type event struct {
		weight int
		happen func()
	}
	var table []func()
	for _, e := range []event{
		{4, h.timePasses},
		{6, h.conditionsChange},
		{3, h.startStorm},
		{2, h.changeWithoutTransition},
		{8, h.carryOut},
		{4, h.nodeChanges},
		{1, h.carryOutOldPlan},
		{4, h.lateWriteSucceeds},
		{2, h.treatmentFails},
		{3, h.treatmentEnds},
		{2, h.nodeGoes},
		{1, h.nodeIsRecreated},
		{2, h.replacementArrives},
		{3, h.ruleChanges},
		{2, h.toggleDryRun},
		{5, h.changeEffect},
		{6, h.changeDecisionInputs},
		{7, h.changeTreatmentInputs},
		{5, h.treatedNodeRecovers},
		{4, h.stormChanges},
		{4, h.poolChanges},
		{1, h.repairPool},
		{6, h.treatmentDeletes},
		{5, h.abandon},
		{3, h.abandonReleases},
		{2, h.recordIsLost},
		{3, h.foreignTaintChanges},
		{1, h.observeAgain},
		{2, h.railsChange},
		{4, h.callOff},
		{2, h.noteSent},
		{2, h.closingRefused},
		{2, h.nodeCloses},
		{1, h.restart},
	} {
		for range e.weight {
			table = append(table, e.happen)
		}
	}
	if !h.loaded && rare(h.t, 3) {
		h.load()
		return
	}
	pick(h.t, table)()
}

func (h *history) names() []string { return slices.Sorted(maps.Keys(h.nodes)) }

func (h *history) ids() []triage.RuleID { return slices.SortedFunc(maps.Keys(h.rules), compareRules) }

// signals are the signals of all rules.
func (h *history) signals() []triage.Signal {
	var signals []triage.Signal
	for _, id := range h.ids() {
		signals = append(signals, h.rules[id].When.Signals...)
	}
	return signals
}

func (h *history) timePasses() {
	h.elapse()
	h.callAt(h.now, call{say: "Advance()", idle: true, do: func(d decider, now time.Time) { d.Advance(now) }})
}

func (h *history) conditionsChange() {
	if len(h.nodes) == 0 {
		h.replacementArrives()
		return
	}
	names := some(h.t, h.names(), 3)
	for _, name := range names {
		h.drawConditions(h.nodes[name])
	}
	// An unnoticed change arrives with the next event of the node.
	if !rare(h.t, 8) {
		h.observe(names...)
	}
}

// startStorm makes many nodes unhealthy at once, so that they compete for slots.
func (h *history) startStorm() {
	signals := h.signals()
	if len(h.nodes) == 0 || len(signals) == 0 {
		h.replacementArrives()
		return
	}
	s := pick(h.t, signals)
	names := some(h.t, h.names(), 2*len(h.nodes))
	for _, name := range names {
		node := h.nodes[name]
		node.Conditions = slices.DeleteFunc(node.Conditions, func(c triage.Condition) bool { return c.Type == s.Condition })
		if s.Status != triage.Missing {
			node.Conditions = append(node.Conditions, triage.Condition{Type: s.Condition, Status: s.Status, Reason: s.Reason, Transition: h.now})
		}
	}
	h.observe(names...)
}

// changeWithoutTransition changes a condition without its transition time, as a wrong
// reporter does, mostly to a status that a rule waits for. Often the controller restarts
// before the rule is eligible.
func (h *history) changeWithoutTransition() {
	signals := slices.DeleteFunc(h.signals(), func(s triage.Signal) bool { return s.For == 0 || s.Status == triage.Missing })
	if len(h.nodes) == 0 || len(signals) == 0 {
		h.startStorm()
		return
	}
	s, node := pick(h.t, signals), h.nodes[pick(h.t, h.names())]
	node.Conditions = slices.Clone(node.Conditions)
	at := slices.IndexFunc(node.Conditions, func(row triage.Condition) bool { return row.Type == s.Condition })
	if at < 0 {
		h.conditionsChange()
		return
	}
	row := &node.Conditions[at]
	row.Status, row.Reason = s.Status, s.Reason
	if rare(h.t, 3) {
		row.Status, row.Reason = triage.Unknown, pick(h.t, reasons)
	}
	h.observe(node.Name)
	if rare(h.t, 3) {
		h.restart()
	}
}

func (h *history) nodeChanges() {
	if len(h.nodes) == 0 {
		return
	}
	node := h.nodes[pick(h.t, h.names())]
	switch pick(h.t, []string{"veto", "remediates", "assigned", "pause", "attempts", "attempts", "labels", "zone", "control plane", "initialised", "confirmed", "starting", "starting"}) {
	case "starting":
		h.toggleStarting(node)
	case "confirmed":
		node.Confirmed = !node.Confirmed
	case "labels":
		node.Labels = h.drawLabels()
	case "veto":
		node.Vetoes = h.drawVetoes()
	case "assigned":
		node.Assigned = h.drawAssigned()
	case "remediates":
		h.toggleRemediates(node)
	case "pause":
		h.togglePause(node)
	case "attempts":
		h.changeAttempts(node)
	case "zone":
		node.Zone = pick(h.t, []string{"a", "b", ""})
	case "control plane":
		node.ControlPlane = !node.ControlPlane
	case "initialised":
		node.Initialized = !node.Initialized
	}
	h.observe(node.Name)
}

// carryOut carries out the plan of a node, or a part of it, or keeps the plan for later.
func (h *history) carryOut() {
	var wanting []string
	for _, name := range h.names() {
		if plan := h.plans[name]; plan.Treatment != nil || plan.Reopen || len(plan.Taints)+len(plan.Release)+len(plan.Remember) > 0 {
			wanting = append(wanting, name)
		}
	}
	if len(wanting) == 0 {
		h.conditionsChange()
		return
	}
	plan := h.plans[pick(h.t, wanting)]
	if rare(h.t, 10) {
		h.oldPlans = append(h.oldPlans, plan)
		h.log("%s puts the plan of %s aside", at(h.now), plan.Node)
		return
	}
	h.carryOutPlan(plan)
}

func (h *history) carryOutOldPlan() {
	if len(h.oldPlans) == 0 {
		h.carryOut()
		return
	}
	plan := h.oldPlans[0]
	h.oldPlans = h.oldPlans[1:]
	if h.nodes[plan.Node] != nil && h.nodes[plan.Node].UID == plan.UID {
		h.log("%s carries out an old plan of %s", at(h.now), plan.Node)
		h.trackOldPlan(plan)
		h.carryOutPlan(plan)
	}
}

func (h *history) carryOutPlan(plan triage.Plan) {
	node := h.nodes[plan.Node]
	part := pick(h.t, []string{"all", "all", "all", "all", "treatment", "taints", "release", "memories"})
	done := func(what string) bool { return part == "all" || part == what }
	if done("release") && plan.Reopen {
		h.reopen(plan.Node)
	}
	if done("release") {
		for _, reason := range plan.Release {
			node.Taints = slices.DeleteFunc(node.Taints, func(t triage.Taint) bool { return t.Rule == reason.Rule })
			node.Treatments = slices.DeleteFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == reason.Rule })
		}
	}
	if done("taints") {
		node.Taints = nil
		for _, taint := range plan.Taints {
			if taint.Effect != triage.NoExecute || !slices.Contains(node.Foreign, taint.Key) { // the key and effect are free
				node.Taints = append(node.Taints, taint.Taint)
			}
		}
	}
	if planned := plan.Treatment; done("treatment") && planned != nil {
		same := func(t triage.Treatment) bool { return t.Rule == planned.Rule && t.Step == planned.Step }
		if !slices.ContainsFunc(node.Treatments, same) {
			since := pick(h.t, []time.Time{planned.Since, h.now, h.now.Truncate(time.Second)})
			if rare(h.t, 3) {
				node.Treatments = slices.DeleteFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == planned.Rule })
			}
			h.noteAttempt(node, planned)
			node.Treatments = append(node.Treatments, triage.Treatment{Rule: planned.Rule, Step: planned.Step, Since: since})
		}
		if !rare(h.t, 4) {
			h.storeHealthySince(node, *planned)
		}
	}
	if done("memories") {
		node.Memories = slices.Clone(plan.Remember)
	}
	if !rare(h.t, 8) {
		h.observe(node.Name)
	}
}

// recordIsLost keeps our taints on the nodes, mostly on all of them, but removes the proof
// that they are ours.
func (h *history) recordIsLost() {
	var noted []string
	for _, name := range h.names() {
		if len(h.nodes[name].Taints) > 0 {
			noted = append(noted, name)
		}
	}
	if len(noted) == 0 {
		h.carryOut()
		return
	}
	if rare(h.t, 3) {
		noted = []string{pick(h.t, noted)}
	}
	for _, name := range noted {
		node := h.nodes[name]
		for _, taint := range node.Taints {
			if taint.Effect == triage.NoExecute && !slices.Contains(node.Foreign, taint.Key) {
				node.Foreign = append(node.Foreign, taint.Key)
				h.saw["records lost"]++
			}
		}
		node.Taints, node.Memories = nil, nil
	}
	h.observe(noted...)
}

// foreignTaintChanges lets another component place a NoExecute taint on a node, or remove a
// foreign one.
func (h *history) foreignTaintChanges() {
	if len(h.nodes) == 0 {
		return
	}
	node := h.nodes[pick(h.t, h.names())]
	key := pick(h.t, []string{"unhealthy", "worn", "other"})
	isOurs := func(t triage.Taint) bool { return t.Key == key && t.Effect == triage.NoExecute }
	switch at := slices.Index(node.Foreign, key); {
	case at >= 0:
		node.Foreign = slices.Delete(slices.Clone(node.Foreign), at, at+1)
	case slices.ContainsFunc(node.Taints, isOurs):
		return // a node has one taint per key and effect
	default:
		node.Foreign = append(slices.Clone(node.Foreign), key)
	}
	h.observe(node.Name)
}

// treated lists the nodes with a treatment in the cluster.
func (h *history) treated() []string {
	return slices.DeleteFunc(h.names(), func(name string) bool { return len(h.nodes[name].Treatments) == 0 })
}

func (h *history) treatmentFails() {
	names := h.treated()
	if len(names) == 0 {
		h.carryOut()
		return
	}
	node := h.nodes[pick(h.t, names)]
	i := len(node.Treatments) - 1
	if rare(h.t, 4) {
		i = 0
	}
	node.Treatments[i].Failed = !node.Treatments[i].Failed
	h.observe(node.Name)
}

func (h *history) treatmentEnds() {
	names := h.treated()
	if len(names) == 0 {
		h.carryOut()
		return
	}
	several := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(h.nodes[name].Treatments) == 1 })
	if len(several) > 0 && !rare(h.t, 3) {
		names = several
	}
	node := h.nodes[pick(h.t, names)]
	if len(several) > 0 && rare(h.t, 2) {
		node.Treatments = node.Treatments[:len(node.Treatments)-1]
	} else {
		node.Treatments = nil
	}
	h.observe(node.Name)
}

// nodeGoes deletes a node, preferably a node that is being terminated.
func (h *history) nodeGoes() {
	names := h.names()
	if len(names) == 0 {
		return
	}
	if !rare(h.t, 4) {
		terminating := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			plan := h.plans[name]
			return plan.Treatment == nil || plan.Treatment.Action != triage.Terminate
		})
		if len(terminating) == 0 {
			h.carryOut()
			return
		}
		names = terminating
	}
	name := pick(h.t, names)
	delete(h.nodes, name)
	h.forget(name)
}

func (h *history) forget(name string) {
	delete(h.observed, name)
	h.call(call{say: "Forget(" + name + ")", about: []string{name}, do: func(d decider, now time.Time) { d.Forget(now, name) }})
}

func (h *history) nodeIsRecreated() {
	if len(h.nodes) == 0 {
		return
	}
	name := pick(h.t, h.names())
	h.create(name)
	h.observe(name)
}

func (h *history) replacementArrives() {
	if len(h.nodes) >= 10 {
		h.nodeGoes()
		return
	}
	node := h.arrive()
	if !rare(h.t, 3) {
		node.Conditions = []triage.Condition{{Type: triage.Ready, Status: triage.True, Transition: h.now}}
		node.Starting = false
		if rare(h.t, 3) {
			h.toggleStarting(node)
		}
	}
	h.observe(node.Name)
}

func (h *history) ruleChanges() {
	ids := h.ids()
	switch {
	case len(ids) == 0 || len(ids) < 6 && rare(h.t, 4):
		h.setRule(h.drawRule(h.drawID()))
	case rare(h.t, 5):
		id := pick(h.t, ids)
		if rare(h.t, 3) { // it still exists, and cannot be read
			h.keep(id)
		}
		h.removeRule(id)
	case rare(h.t, 8):
		h.keep(triage.RuleID{Kind: pick(h.t, ids).Kind})
	case rare(h.t, 10):
		r := h.drawRule(pick(h.t, ids))
		r.When.Signals = nil
		h.callAt(h.now, call{say: "SetRule(" + r.ID.String() + " without signals)", do: func(d decider, now time.Time) {
			if d.SetRule(now, r) == nil {
				h.fail("a rule without signals is taken")
			}
		}})
	default:
		h.setRule(h.alterRule(h.rules[pick(h.t, ids)]))
	}
}

// keep makes one rule of a kind unreadable, and all others readable.
func (h *history) keep(id triage.RuleID) {
	h.call(call{say: "Keep(" + id.String() + ")", do: func(d decider, now time.Time) {
		d.Keep(now, id.Kind, func(other triage.RuleID) bool { return other == id })
	}})
}

func (h *history) removeRule(id triage.RuleID) {
	delete(h.rules, id)
	delete(h.allowed, id)
	h.call(call{say: "RemoveRule(" + id.String() + ")", do: func(d decider, now time.Time) { d.RemoveRule(now, id) }})
}

// toggleDryRun begins or ends the dry run of a rule, mostly of a rule with decisions in
// flight. Sometimes it changes the rule further.
func (h *history) toggleDryRun() {
	var busy, dry []triage.RuleID
	for _, id := range h.ids() {
		begun := slices.ContainsFunc(h.core().Grants(), func(g triage.Grant) bool { return g.Rule == id })
		for _, node := range h.nodes {
			begun = begun || carries(*node, id)
		}
		switch {
		case h.rules[id].DryRun:
			dry = append(dry, id)
		case begun:
			busy = append(busy, id)
		}
	}
	var id triage.RuleID
	switch {
	case len(dry) > 0 && (len(busy) == 0 || rare(h.t, 2)):
		id = pick(h.t, dry)
	case len(busy) > 0:
		id = pick(h.t, busy)
	default:
		h.carryOut()
		return
	}
	r := h.rules[id]
	if rare(h.t, 4) {
		r = h.alterRule(r)
	}
	r.DryRun = !h.rules[id].DryRun
	h.setRule(r)
}

func (h *history) abandon() {
	node, rule := "", triage.RuleID{}
	var unseen []triage.Grant
	for _, g := range h.core().Grants() {
		n := h.nodes[g.Node]
		if n != nil && (!takesSlot(*n, g.Rule) || !g.Taint && !hasStep(*n, g.Rule, g.Step)) {
			unseen = append(unseen, g)
		}
	}
	sortGrants(unseen)
	switch {
	case len(unseen) > 0:
		g := pick(h.t, unseen)
		node, rule = g.Node, g.Rule
	case len(h.nodes) > 0 && len(h.rules) > 0 && rare(h.t, 3):
		node, rule = pick(h.t, h.names()), pick(h.t, h.ids())
		if !slices.Equal(h.nodes[node].Taints, h.observed[node].Taints) || !slices.Equal(h.nodes[node].Treatments, h.observed[node].Treatments) {
			return // the response exists, which the caller would know
		}
	default:
		h.carryOut()
		return
	}
	h.recordAbandoned(node, rule)
	retry := pick(h.t, waits)
	h.call(call{say: fmt.Sprintf("Abandon(%s, %s, retry in %s)", node, rule, retry), about: []string{node}, do: func(d decider, now time.Time) {
		d.Abandon(now, node, rule, retry)
	}})
	switch p := (placement{rule, node, h.nodes[node].UID}); {
	case retry > 0 || len(unseen) == 0:
	case h.hasSlot(p):
		h.saw["abandoned without retry and decided again"]++
	default:
		h.saw["abandoned without retry and passed over"]++
	}
}

func (h *history) observeAgain() {
	if len(h.nodes) > 0 {
		h.observe(some(h.t, h.names(), 10)...)
	}
}

// restart replaces the controller. Nodes may change or be deleted in between.
func (h *history) restart() {
	grants := slices.Clone(h.core().Grants())
	sortGrants(grants)
	for _, name := range h.names() {
		if plan, ok := h.plans[name]; ok && !rare(h.t, 4) {
			h.nodes[name].Memories = slices.Clone(plan.Remember)
		}
	}
	storms := h.currentStorms()
	h.now = h.now.Add(pick(h.t, timeSteps))
	h.log("%s the controller starts again", at(h.now))
	if names := h.names(); len(names) > 0 && rare(h.t, 3) {
		if name := pick(h.t, names); rare(h.t, 3) {
			delete(h.nodes, name)
		} else {
			h.drawConditions(h.nodes[name])
		}
	}
	if gone := slices.DeleteFunc(slices.Clone(grants), func(g triage.Grant) bool { return g.Gone.IsZero() }); len(gone) > 0 {
		h.replaceUnseen(gone)
	}
	if rare(h.t, 4) {
		h.applyLateWrite()
	}
	if id, ok := h.drawRuleToChange(); ok && rare(h.t, 3) {
		h.rules[id] = h.withOtherEffect(h.rules[id])
	}
	h.starts = h.core().Starts()
	h.start(slices.Concat(grants, h.core().Closings()), storms)
}

// replaceUnseen creates one or two nodes for each deleted node, and makes all nodes ready, while no
// controller is running.
func (h *history) replaceUnseen(gone []triage.Grant) {
	for _, g := range slices.Repeat(gone, pick(h.t, []int{1, 2})) {
		node := h.arrive()
		node.Created = h.now.Truncate(time.Second)
		for tries := 0; tries < 5 && !selects(h.rules[g.Rule], *node); tries++ {
			node.Labels = h.drawLabels()
		}
	}
	for _, node := range h.nodes {
		node.Conditions = slices.Clone(node.Conditions)
		setStarting(node, false)
		setCondition(node, triage.Ready, triage.True, "", h.now)
	}
}

// ---- nodes

func (h *history) arrive() *triage.Node {
	h.serial++
	return h.create(fmt.Sprintf("n%d", h.serial))
}

func (h *history) create(name string) *triage.Node {
	h.serial++
	node := &triage.Node{
		Name:         name,
		UID:          fmt.Sprintf("u%d", h.serial),
		Zone:         pick(h.t, []string{"a", "b", ""}),
		Labels:       h.drawLabels(),
		ControlPlane: rare(h.t, 2),
		Assigned:     h.drawAssigned(),
		Vetoes:       h.drawVetoes(),
		Created:      h.now.Truncate(time.Second),
		Image:        pick(h.t, []string{"", "old", "new"}),
	}
	if rare(h.t, 4) {
		h.toggleStarting(node)
	}
	if rare(h.t, 12) {
		h.togglePause(node)
	}
	if rare(h.t, 3) {
		node.Created = pick(h.t, []time.Time{h.now, h.now.Add(-time.Minute), {}})
	}
	h.drawConditions(node)
	h.nodes[name] = node
	return node
}

func (h *history) drawLabels() map[string]string {
	labels := map[string]string{"pool": pick(h.t, []string{"gpu", "cpu"})}
	if rare(h.t, 3) {
		labels["spot"] = "yes"
	}
	if rare(h.t, 6) {
		delete(labels, "pool")
	}
	return labels
}

// drawAssigned draws the rules that may select a node although they select assigned nodes only.
func (h *history) drawAssigned() (assigned []triage.RuleID) {
	for _, id := range h.ids() {
		if rapid.Bool().Draw(h.t, "") {
			assigned = append(assigned, id)
		}
	}
	return assigned
}

func (h *history) drawVetoes() []triage.Veto {
	switch {
	case !rare(h.t, 4):
		return nil
	case rare(h.t, 3):
		return []triage.Veto{{Action: triage.Terminate, Reason: "not to be terminated"}, {Reason: "maintenance", Respected: true}}
	}
	return []triage.Veto{{Action: pick(h.t, []triage.Action{0, triage.Remediate, triage.Reboot}), Reason: "hands off", Respected: rare(h.t, 2)}}
}

// toggleRemediates changes whether a rule terminates the node with a remediation object.
func (h *history) toggleRemediates(node *triage.Node) {
	switch ids := h.ids(); {
	case len(node.Remediates) > 0:
		node.Remediates = nil
	case len(ids) > 0:
		node.Remediates = []triage.RuleID{pick(h.t, ids)}
	}
}

// togglePause pauses a node, mostly for a time, or ends its pause.
func (h *history) togglePause(node *triage.Node) {
	if node.Hold != "" {
		node.Hold, node.HoldUntil = "", time.Time{}
		return
	}
	node.Hold = pick(h.t, []string{"paused by anna", "paused by ben"})
	node.HoldUntil = pick(h.t, []time.Time{{}, h.now.Add(-time.Second), h.now.Add(time.Second), h.now.Add(10 * time.Second), h.now.Add(time.Minute), h.now.Add(time.Hour)})
}

// isPaused says that a node is on hold at the latest time of a call.
func (h *history) isPaused(node triage.Node) bool {
	return node.Hold != "" && (node.HoldUntil.IsZero() || node.HoldUntil.After(h.lastTime))
}

// drawConditions changes up to two conditions of a node, mostly to statuses that some rule
// matches.
func (h *history) drawConditions(node *triage.Node) {
	for range rapid.IntRange(1, 2).Draw(h.t, "") {
		row := triage.Condition{Type: pick(h.t, conditionTypes), Status: triage.True, Transition: h.now}
		signals := h.signals()
		switch what := pick(h.t, []string{"unhealthy", "unhealthy", "unhealthy", "well", "well", "unknown", "silent", "gone", "later"}); {
		case what == "unhealthy" && len(signals) > 0:
			s := pick(h.t, signals)
			row.Type, row.Status, row.Reason = s.Condition, s.Status, s.Reason
		case what == "well" && len(signals) > 0:
			s := pick(h.t, signals)
			row.Type = s.Condition
			row.Status = pick(h.t, slices.DeleteFunc([]triage.Status{triage.True, triage.False}, func(other triage.Status) bool { return other == s.Status }))
		case what == "unknown":
			row.Status, row.Reason = triage.Unknown, pick(h.t, reasons)
		case what == "silent":
			row.Status, row.Reason = triage.Unknown, triage.AgentSilent
		case what == "gone":
			row.Status = triage.Missing
		case what == "later":
			// The same status with a later transition time, as after a restart of the
			// reporter.
			if old, ok := rowOf(*node, row.Type); ok {
				row.Status, row.Reason = old.Status, old.Reason
			}
		}
		switch {
		case rare(h.t, 4):
			row.Transition = pick(h.t, []time.Time{{}, h.now.Add(-30 * time.Second), h.now.Add(5 * time.Second)})
		case rare(h.t, 4): //nolint:gocritic // each case draws anew
			if old, ok := rowOf(*node, row.Type); ok {
				row.Transition = old.Transition
			}
		}
		node.Conditions = slices.DeleteFunc(node.Conditions, func(c triage.Condition) bool { return c.Type == row.Type })
		if row.Status == triage.Missing {
			continue
		}
		node.Conditions = append(node.Conditions, row)
		if rare(h.t, 12) {
			node.Conditions = append(node.Conditions, triage.Condition{Type: row.Type, Status: triage.False, Transition: h.now})
		}
	}
}

// ---- rules

func (h *history) drawID() triage.RuleID {
	var free []triage.RuleID
	for _, kind := range []triage.Kind{policykind.NodeHealthCheck, policykind.ConditionSet, policykind.Repair, policykind.ReadyTimeout} {
		names := []string{"a", "b"}
		if kind == policykind.ConditionSet { // as many taints as ladders
			names = []string{"a", "b", "c", "d", "e"}
		}
		for _, name := range names {
			if _, taken := h.rules[triage.RuleID{Kind: kind, Name: name}]; !taken {
				free = append(free, triage.RuleID{Kind: kind, Name: name})
			}
		}
	}
	return pick(h.t, free)
}

func (h *history) drawRule(id triage.RuleID) triage.Rule {
	r := triage.Rule{ID: id, Selector: h.drawWho(), AssignedOnly: rare(h.t, 6), When: h.drawWhen(), Hold: h.drawHold(), DryRun: rare(h.t, 8), Precedence: h.drawPrecedence(), Stage: pick(h.t, stages), Window: h.drawWindow()}
	if ids := h.ids(); len(ids) > 0 && rare(h.t, 2) {
		// Two rules compete for the same node at the same time.
		r.When = h.rules[pick(h.t, ids)].When
	}
	h.drawResponse(&r)
	return r
}

// alterRule changes at most one field of a rule, or makes it valid after that.
func (h *history) alterRule(r triage.Rule) triage.Rule {
	r.When.Signals = slices.Clone(r.When.Signals)
	r = h.alterField(r)
	r.When = neverOnlyForAny(r.When)
	return r
}

// neverOnlyForAny replaces Never and Urgent in a rule that requires all conditions. Another rule may
// have the same signals, and they must not change with these.
func neverOnlyForAny(when triage.When) triage.When {
	when.Signals = slices.Clone(when.Signals)
	for i := range when.Signals {
		if when.All {
			when.Signals[i].For, when.Signals[i].Urgent = min(when.Signals[i].For, time.Minute), false
		}
	}
	return when
}

func (h *history) alterField(r triage.Rule) triage.Rule {
	switch pick(h.t, []string{"for", "hold", "dry run", "bound", "response", "recovery", "who", "assigned only", "when", "all", "order", "precedence", "window", "urgent", "everything", "nothing"}) {
	case "window":
		r.Window = h.drawWindow()
	case "urgent":
		i := rapid.IntRange(0, len(r.When.Signals)-1).Draw(h.t, "")
		r.When.Signals[i].Urgent = !r.When.Signals[i].Urgent
	case "precedence":
		r.Precedence = h.drawPrecedence()
	case "recovery":
		h.drawRecovery(&r)
	case "for":
		i := rapid.IntRange(0, len(r.When.Signals)-1).Draw(h.t, "")
		r.When.Signals[i].For = pick(h.t, durations)
	case "hold":
		if r.Hold == "" {
			r.Hold = "paused"
		} else {
			r.Hold = ""
		}
	case "dry run":
		r.DryRun = !r.DryRun
	case "bound":
		h.drawBound(&r)
	case "response":
		h.drawResponse(&r)
	case "who":
		r.Selector = h.drawWho()
	case "assigned only":
		r.AssignedOnly = !r.AssignedOnly
	case "when":
		r.When = h.drawWhen()
	case "all":
		r.When.All = !r.When.All
	case "order":
		slices.Reverse(r.When.Signals)
	case "everything":
		r = h.drawRule(r.ID)
	}
	return r
}

func (h *history) drawPrecedence() int { return rapid.IntRange(-1, 2).Draw(h.t, "") }

func (h *history) drawHold() string {
	if rare(h.t, 8) {
		return "paused"
	}
	return ""
}

func (h *history) drawWho() triage.Selector {
	gpu := triage.Requirement{Key: "pool", Op: triage.In, Values: []string{"gpu"}}
	requirements := pick(h.t, [][]triage.Requirement{
		nil,
		nil,
		{gpu},
		{{Key: "pool", Op: triage.In, Values: []string{"gpu", "cpu"}}},
		{{Key: "pool", Op: triage.NotIn, Values: []string{"cpu"}}},
		{{Key: "spot", Op: triage.Exists}},
		{{Key: "spot", Op: triage.Absent}},
		{gpu, {Key: "spot", Op: triage.Absent}},
	})
	who, err := triage.NewSelector(requirements...)
	if err != nil {
		h.fail(err.Error())
	}
	return who
}

func (h *history) drawWhen() triage.When {
	if rare(h.t, 6) {
		return h.drawReadyTimeout()
	}
	when := triage.When{All: rapid.Bool().Draw(h.t, "")}
	fromCreation := map[string]bool{}
	for _, condition := range conditionTypes {
		fromCreation[condition] = rare(h.t, 8)
	}
	for range rapid.IntRange(1, 4).Draw(h.t, "") {
		s := triage.Signal{
			Condition:  pick(h.t, conditionTypes),
			Status:     pick(h.t, []triage.Status{triage.False, triage.False, triage.True, triage.Unknown, triage.Missing}),
			For:        pick(h.t, durations),
			EvenSilent: rare(h.t, 3),
			Urgent:     rare(h.t, 6),
		}
		if rare(h.t, 4) && s.Status != triage.Missing {
			s.Reason = pick(h.t, reasons)
		}
		s.FromCreation = fromCreation[s.Condition]
		when.Signals = append(when.Signals, s)
	}
	return neverOnlyForAny(when)
}

func (h *history) drawResponse(r *triage.Rule) {
	r.Response = triage.Response{}
	if r.ID.Kind == policykind.ConditionSet {
		r.Response.Taint = &triage.TaintResponse{
			Key:          pick(h.t, []string{"unhealthy", "worn"}),
			Effect:       pick(h.t, []triage.Effect{triage.NoExecute, triage.NoSchedule, triage.NoExecute, triage.PreferNoSchedule}),
			ControlPlane: rare(h.t, 3),
		}
	} else {
		for range rapid.IntRange(1, 3).Draw(h.t, "") {
			r.Response.Ladder = append(r.Response.Ladder, triage.Step{
				Action:  pick(h.t, []triage.Action{triage.Terminate, triage.Remediate, triage.Terminate, triage.Reboot, triage.Drain}),
				Ref:     pick(h.t, []string{"", "one", "two"}),
				Timeout: pick(h.t, []time.Duration{10 * time.Second, time.Minute, 0}),
				Urgent:  rare(h.t, 6),
			})
		}
	}
	h.drawBound(r)
	h.drawRecovery(r)
}

func (h *history) drawRecovery(r *triage.Rule) {
	r.Recovery = triage.Recovery{}
	if r.Response.Taint == nil && rare(h.t, 2) {
		r.Recovery = pick(h.t, []triage.Recovery{{Delay: 10 * time.Second}, {Delay: time.Minute}, {ByHand: true}})
	}
}

func (h *history) drawBound(r *triage.Rule) {
	r.Bound = triage.Bound{}
	if r.Response.Taint == nil && rare(h.t, 2) {
		gate := h.drawLimit()
		gate.Healthy = rare(h.t, 3)
		if gate.Percent && !gate.Healthy && rare(h.t, 2) {
			gate.Few, gate.FewNumber = pick(h.t, []int{2, 3, 5}), max(gate.Number, pick(h.t, []int{50, 70, 100}))
		}
		r.Bound.Gate, r.Bound.GateName = &gate, pick(h.t, []string{"", "unhealthyThreshold"})
		if rare(h.t, 2) {
			r.Bound.Cooldown = pick(h.t, []time.Duration{30 * time.Second, 5 * time.Minute})
		}
	}
	if (r.Response.Taint == nil || r.Response.Taint.Effect == triage.NoExecute) && !rare(h.t, 4) {
		limit := h.drawLimit()
		r.Bound.Cap = &limit
	}
	if r.Response.Taint == nil {
		r.Bound.Pool = h.drawPool()
	}
}

func (h *history) drawLimit() triage.Limit {
	if rare(h.t, 2) {
		return triage.Limit{Number: pick(h.t, []int{50, 34, 10, 100, 0}), Percent: true, RoundUp: rare(h.t, 2)}
	}
	return triage.Limit{Number: pick(h.t, []int{1, 2, 3, 0})}
}

// ---- logging

func describe(n triage.Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s zone=%q image=%q", n.Name, n.UID, n.Zone, n.Image)
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		fmt.Fprintf(&b, " %s=%s", key, n.Labels[key])
	}
	fmt.Fprintf(&b, " created %s", at(n.Created))
	if n.ControlPlane {
		b.WriteString(" control-plane")
	}
	if n.Initialized {
		b.WriteString(" initialised")
	}
	if n.Starting {
		b.WriteString(" starting")
	}
	if n.Closed {
		b.WriteString(" closed")
	}
	if n.Dedicated {
		b.WriteString(" dedicated")
	}
	if n.Confirmed {
		b.WriteString(" confirmed")
	}
	for _, c := range n.Conditions {
		fmt.Fprintf(&b, " %s=%s", c.Type, c.Status)
		if c.Reason != "" {
			b.WriteString("(" + c.Reason + ")")
		}
		b.WriteString("@" + at(c.Transition))
	}
	for _, a := range n.Attempts {
		fmt.Fprintf(&b, " attempt:%s@%s", a.Rule, at(a.Began))
		if a.Inherited {
			b.WriteString(":inherited")
		}
	}
	if n.Hold != "" {
		fmt.Fprintf(&b, " paused until %s", at(n.HoldUntil))
	}
	for _, v := range n.Vetoes {
		fmt.Fprintf(&b, " veto:%s:%q:%t", v.Action, v.Reason, v.Respected)
	}
	for _, id := range n.Assigned {
		fmt.Fprintf(&b, " assigned:%s", id)
	}
	for _, id := range n.Remediates {
		fmt.Fprintf(&b, " remediated by:%s", id)
	}
	for _, t := range n.Taints {
		fmt.Fprintf(&b, " taint:%s:%s:%s", t.Rule, t.Key, t.Effect)
	}
	for _, key := range n.Foreign {
		fmt.Fprintf(&b, " foreign:%s", key)
	}
	for _, t := range n.Treatments {
		fmt.Fprintf(&b, " treatment:%s:%d@%s", t.Rule, t.Step, at(t.Since))
		if t.Failed {
			b.WriteString(":failed")
		}
		if t.Deletes {
			b.WriteString(":deletes")
		}
		if !t.HealthySince.IsZero() {
			b.WriteString(":healthy since " + at(t.HealthySince))
		}
	}
	for _, m := range n.Memories {
		fmt.Fprintf(&b, " memory:%s:%s@%s", m.Rule, m.Condition, at(m.Since))
	}
	return b.String()
}

func describeRule(r triage.Rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s selector[%s] any", r.ID, r.Selector)
	if r.When.All {
		b.Reset()
		fmt.Fprintf(&b, "%s selector[%s] all", r.ID, r.Selector)
	}
	if r.AssignedOnly {
		b.WriteString(" on assigned nodes")
	}
	for _, s := range r.When.Signals {
		fmt.Fprintf(&b, " %s=%s", s.Condition, s.Status)
		if s.Reason != "" {
			b.WriteString("(" + s.Reason + ")")
		}
		fmt.Fprintf(&b, " for %s", s.For)
		if s.EvenSilent {
			b.WriteString(" even silent")
		}
		if s.FromCreation {
			b.WriteString(" from creation")
		}
		if s.Urgent {
			b.WriteString(" urgent")
		}
		b.WriteString(",")
	}
	limit := func(name string, l *triage.Limit) {
		if l == nil {
			return
		}
		fmt.Fprintf(&b, " %s %s", name, l)
		if l.RoundUp {
			b.WriteString(" up")
		}
		if l.Healthy {
			b.WriteString(" healthy")
		}
		if l.Few > 0 {
			fmt.Fprintf(&b, " or %d%% of at most %d nodes", l.FewNumber, l.Few)
		}
	}
	limit("gate", r.Bound.Gate)
	if r.Bound.Cooldown > 0 {
		fmt.Fprintf(&b, " cooldown %s", r.Bound.Cooldown)
	}
	limit("cap", r.Bound.Cap)
	if r.Bound.Pool != "" {
		b.WriteString(" of pool " + r.Bound.Pool)
	}
	if taint := r.Response.Taint; taint != nil {
		fmt.Fprintf(&b, " taint %s:%s", taint.Key, taint.Effect)
		if taint.ControlPlane {
			b.WriteString(" control plane too")
		}
	}
	for _, step := range r.Response.Ladder {
		fmt.Fprintf(&b, " then %s", step.Action)
		if step.Ref != "" {
			b.WriteString("(" + step.Ref + ")")
		}
		if step.Timeout > 0 {
			fmt.Fprintf(&b, " up to %s", step.Timeout)
		}
		if step.Urgent {
			b.WriteString(" urgent")
		}
	}
	switch {
	case r.Recovery.ByHand:
		b.WriteString(" until confirmed")
	case r.Recovery.Delay > 0:
		fmt.Fprintf(&b, " until healthy for %s", r.Recovery.Delay)
	}
	if r.Window != nil {
		b.WriteString(" window " + r.Window.String())
	}
	if r.Stage != "" {
		b.WriteString(" stage " + string(r.Stage))
	}
	if r.Hold != "" {
		b.WriteString(" on hold")
	}
	if r.DryRun {
		b.WriteString(" on dry run")
	}
	return b.String()
}

// ---- comparison

// diff shows how two values differ.
func diff(got, want any) string { return gocmp.Diff(want, got, cmpopts.EquateEmpty()) }

// same compares two plans, and is fast if they are equal. At the end of a history diff
// compares them again, so that no field is missed.
func same(a, b triage.Plan) bool {
	return a.Node == b.Node && a.UID == b.UID && a.Initialized == b.Initialized && a.Reason == b.Reason &&
		slices.Equal(a.Taints, b.Taints) &&
		(a.Treatment == nil) == (b.Treatment == nil) && (a.Treatment == nil || *a.Treatment == *b.Treatment) &&
		slices.Equal(a.Release, b.Release) && a.Reopen == b.Reopen &&
		slices.Equal(a.Cancel, b.Cancel) &&
		slices.Equal(a.Findings, b.Findings) &&
		slices.Equal(a.Remember, b.Remember) &&
		a.Next.Equal(b.Next)
}

func sortGrants(grants []triage.Grant) {
	slices.SortFunc(grants, func(a, b triage.Grant) int {
		return strings.Compare(grantKey(a), grantKey(b))
	})
}

func grantKey(g triage.Grant) string {
	return fmt.Sprintf("%s on %s %s step %d since %s gone %s control plane %t replaced %t deletes %t pool %q",
		g.Rule, g.Node, g.UID, g.Step, at(g.Since), at(g.Gone), g.ControlPlane, g.Replaced, g.Deletes, g.Pool)
}

// checkSame ends the history unless another decider has the same plans and counts as the
// core.
func (h *history) checkSame(other decider, twin string) {
	for _, name := range slices.Sorted(maps.Keys(h.observed)) {
		got, inGot := h.plans[name]
		want, inWant := other.Plan(name)
		if inGot != inWant {
			h.log("the core knows %s: %t, %s: %t", name, inGot, twin, inWant)
			h.fail("a node is known to one and not to the other")
		}
		if h.core().ExceedsRails(name) != other.ExceedsRails(name) || h.core().ExceedsClosing(name) != other.ExceedsClosing(name) {
			h.log("%s exceeds the rails: %t, %s: %t; closing: %t, %t", name, h.core().ExceedsRails(name), twin, other.ExceedsRails(name), h.core().ExceedsClosing(name), other.ExceedsClosing(name))
			h.fail("only one of them says that a node exceeds the rails")
		}
		if h.isLast || !same(got, want) {
			if d := diff(got, want); d != "" {
				h.log("plan of %s (-%s +core):\n%s", name, twin, d)
				h.fail("the plans of a node differ")
			}
		}
	}
	for _, id := range h.ids() {
		got, inGot := h.core().Population(id)
		want, inWant := other.Population(id)
		if inGot != inWant {
			h.log("the core counts %s: %t, %s: %t", id, inGot, twin, inWant)
			h.fail("a rule is counted by one and not by the other")
		}
		if got.Counts != want.Counts || got.Gate != want.Gate || got.Cap != want.Cap || got.Pooled != want.Pooled || !maps.Equal(got.Zones, want.Zones) ||
			got.Storm != want.Storm || !got.CalmSince.Equal(want.CalmSince) || !got.CalmUntil.Equal(want.CalmUntil) {
			h.log("population of %s (-%s +core):\n%s", id, twin, diff(got, want))
			h.fail("the populations of a rule differ")
		}
	}
	if got, want := h.core().Closings(), other.Closings(); !slices.Equal(got, want) {
		h.log("closings (-%s +core):\n%s", twin, diff(got, want))
		h.fail("the closings differ")
	}
	if got, want := h.core().Starts(), other.Starts(); !slices.Equal(got, want) {
		h.log("starts (-%s +core):\n%s", twin, diff(got, want))
		h.fail("the starts differ")
	}
	if got, want := respected(h.core()), respected(other); got != want {
		h.log("%d nodes wait for the work of others, %s: %d", got, twin, want)
		h.fail("the nodes that wait for the work of others differ")
	}
	if got, want := h.grants(h.core()), h.grants(other); !slices.Equal(got, want) {
		h.log("grants (-%s +core):\n%s", twin, diff(got, want))
		h.fail("the grants differ")
	}
}

// respected is the number of nodes that wait for the work of others.
func respected(d decider) int {
	for _, rail := range d.RailUse().Rails {
		if rail.Rail == triage.Vetoed {
			return rail.Held
		}
	}
	return 0
}

// grants lists the grants of a decider. It ignores the step of a removed rule.
func (h *history) grants(d decider) []triage.Grant {
	grants := slices.Clone(d.Grants())
	for i, g := range grants {
		if _, known := h.rules[g.Rule]; !known {
			grants[i].Step = 0
		}
	}
	sortGrants(grants)
	return grants
}

// actions are the part of a plan that a caller carries out.
type actions struct {
	Taints      []triage.Taint
	Rule        triage.RuleID
	Step        int
	Action      triage.Action
	Ref         string
	Treatment   bool
	Note        time.Time
	Release     []triage.RuleID
	Cancel      []triage.RuleID
	Reopen      bool
	Initialized bool // the caller stores that the node was initialized
}

func (a actions) equal(b actions) bool {
	return slices.Equal(a.Taints, b.Taints) && a.Treatment == b.Treatment && a.Rule == b.Rule && a.Step == b.Step &&
		a.Action == b.Action && a.Ref == b.Ref && a.Note.Equal(b.Note) && slices.Equal(a.Release, b.Release) && slices.Equal(a.Cancel, b.Cancel) && a.Initialized == b.Initialized && a.Reopen == b.Reopen
}

func actionsOf(plan triage.Plan) actions {
	a := actions{Initialized: plan.Initialized, Reopen: plan.Reopen}
	for _, taint := range plan.Taints {
		a.Taints = append(a.Taints, taint.Taint)
	}
	if p := plan.Treatment; p != nil {
		a.Treatment, a.Rule, a.Step, a.Action, a.Ref, a.Note = true, p.Rule, p.Step, p.Action, p.Ref, p.HealthySince
	}
	for _, reason := range plan.Cancel {
		a.Cancel = append(a.Cancel, reason.Rule)
	}
	for _, reason := range plan.Release {
		a.Release = append(a.Release, reason.Rule)
	}
	return a
}

// checkWakes returns a check that NextWoken and Deadline are complete. A caller that reads
// only the plans of woken nodes must not miss a change, and every change by time alone must
// have a deadline.
func (h *history) checkWakes() func(call) {
	done := map[string]actions{} // when the caller last read the woken nodes
	last := map[string]actions{} // after the last call
	about := map[string]bool{}
	var core *triage.Core
	var promised time.Time // nothing changes by time alone before this
	return func(c call) {
		if h.core() != core {
			core = h.core()
			clear(done)
			clear(last)
			clear(about)
		}
		before := maps.Clone(last)
		for _, name := range slices.Sorted(maps.Keys(h.observed)) {
			last[name] = actionsOf(h.plans[name])
			if c.idle && (promised.IsZero() || h.now.Before(promised)) && !last[name].equal(before[name]) {
				h.log("what is to be done about %s (-before +now), although the deadline is %s:\n%s", name, at(promised), diff(last[name], before[name]))
				h.fail("a plan has changed before the deadline")
			}
		}
		deadline, waits := core.Deadline()
		promised = deadline
		// Before Loaded the caller does not use the deadline.
		if h.loaded && waits && !deadline.After(h.now) {
			h.log("the deadline is %s", at(deadline))
			h.fail("the deadline has passed")
		}
		for _, name := range slices.Concat(c.about, h.asked) {
			about[name] = true
		}
		h.asked = nil
		for _, name := range slices.Sorted(maps.Keys(h.observed)) {
			for _, reason := range h.plans[name].Findings {
				if !reason.Until.IsZero() && (!waits || deadline.After(reason.Until)) {
					h.log("%s: %s; the deadline is %s", name, reason, at(deadline))
					h.fail("the deadline comes after a plan's change")
				}
			}
		}
		// A busy caller reads the woken nodes later.
		if h.settling || rare(h.t, 5) {
			return
		}
		woken := map[string]bool{}
		for {
			name, ok := core.NextWoken()
			if !ok {
				break
			}
			if woken[name] {
				h.log("%s is woken twice", name)
				h.fail("a node is woken twice")
			}
			if _, exists := core.Plan(name); !exists {
				h.log("%s is woken", name)
				h.fail("a node is woken that has no plan")
			}
			woken[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(h.observed)) {
			if !woken[name] && !about[name] && !last[name].equal(done[name]) {
				h.log("what is to be done about %s (-before +now):\n%s", name, diff(last[name], done[name]))
				h.fail("a node was not woken although its plan has changed")
			}
			done[name] = last[name]
		}
		clear(about)
	}
}

func TestHistories(t *testing.T) {
	t.Parallel()
	saw := map[string]int{}

	wanted := []string{
		"grants", "releases", "fallbacks", "supersessions", "escalations", "exhaustions", "departures", "replacements", "replacements found after a restart",
		"unclear-kept", "memories", "memories of a later start than the stamp's", "remembered",
		"remembered through an Unknown with the same stamp", "remembered because no stamp tells it", "transition times before the last healthy version", "conditions reported late",
		"not remembered: on dry run", "not remembered: no duration", "over", "abandoned", "resumed",
		"dry-run findings", "dry-run releases", "dry-run releases of the unclear", "dry runs ended",
		"records lost", "NoExecute of others that serves", "taints of a rule that cannot be read", "memories of a rule that cannot be read", "held: by taints of others",
		"call-offs", "late writes", "late writes under a weaker effect", "resumed under a weaker effect",
	}
	wanted = slices.Concat(wanted, callOffEvents, windowEvents, treatmentEvents, poolEvents, []string{
		"abandoned a later step", "later steps over", "storms under a changed rule", "storms resumed", "storms that came back", "storms calmed",
		"storms over", "storms over with no unhealthy node", "gates closed by recovering nodes", "recoveries that were broken off",
		"recoveries that became unclear", "recoveries taken up from a note", "recoveries begun anew by a stamp", "departures of treatments that delete",
		"permissions to close", "permissions to close resumed", "permissions to close released", "permissions to close that are tried again later", "edited keys that wait", "places in the pace given back",
		"called off above the rails", "permissions called off above the rails", "called off for the last node",
		"departures of treatments that delete, found after a restart", "gates closed by deleted nodes",
		"gates with a percentage closed by deleted nodes", "storms by deleted nodes", "departures resumed twice", "conditions that return", "work of others", "correlated failures", "correlated failures beside older ones", "correlated failures that were held long enough", "nodes that failed twice within a window",
		"given up", "attempts that continue", "given up after an inherited attempt", "findings about assigned nodes", "terminations by remediation objects",
	})
	for code := triage.CapFull; code <= triage.Retrying; code++ {
		wanted = append(wanted, "held: "+code.String())
	}
	checkUntilSeen(t, saw, wanted, func(t *rapid.T) {
		runHistory(t, saw, func() []decider { return []decider{triage.New(), newNaiveCore(saw)} }, func(h *history) func(call) {
			wakes, windows := h.checkWakes(), h.countWindows()
			return func(c call) {
				h.checkSame(h.deciders[1], "naive core")
				wakes(c)
				h.countPlans(saw)
				h.countCallOffs()
				h.countTreatmentEvents()
				h.countStarting()
				windows()
				h.checkWindows()
			}
		})
	})
	var totals []string
	for _, what := range slices.Sorted(maps.Keys(saw)) {
		totals = append(totals, fmt.Sprintf("%s %d", what, saw[what]))
	}
	t.Logf("saw %s", strings.Join(totals, ", "))
	requireSeen(t, saw, wanted)
}

// countPlans counts the new results in the plans of the core.
func (h *history) countPlans(saw map[string]int) {
	for name, plan := range h.plans {
		before := map[triage.RuleID]triage.Reason{}
		if old := h.previous[name]; old.UID == plan.UID {
			for _, reason := range old.Findings {
				before[reason.Rule] = reason
			}
		}
		if len(plan.Remember) > len(h.previous[name].Remember) {
			saw["remembered"]++
		}
		for _, reason := range plan.Release {
			if (reason.Code == triage.Tainted || reason.Code == triage.FellBack) && !slices.Contains(h.previous[name].Release, reason) {
				saw["call-offs"]++
			}
		}
		for _, reason := range plan.Findings {
			old := before[reason.Rule]
			standing := reason.Code == triage.Treating || reason.Code == triage.Tainted
			if released := reason.Code == triage.DryRun && reason.Other != ""; released && (old.Code != triage.DryRun || old.Other == "") {
				saw["dry-run releases"]++
				if reason.Condition == "" {
					saw["dry-run releases of the unclear"]++
				}
			}
			if standing && old.Code == triage.DryRun {
				saw["dry runs ended"]++
			}
			if standing && old.Code == reason.Code && old.Condition != "" && reason.Condition == "" {
				saw["unclear-kept"]++
			}
			if old.Code == reason.Code {
				continue
			}
			rule, ladder := h.rules[reason.Rule], h.rules[reason.Rule].Response.Ladder
			if rule.AssignedOnly && reason.Code != triage.Deselected {
				saw["findings about assigned nodes"]++
			}
			if reason.Action == triage.Remediate && reason.Step <= len(ladder) && ladder[reason.Step-1].Action == triage.Terminate {
				saw["terminations by remediation objects"]++
			}
			switch reason.Code {
			case triage.Recovered, triage.Deselected, triage.RuleGone:
				saw["releases"]++
			case triage.FellBack:
				saw["fallbacks"]++
			case triage.Superseded:
				saw["supersessions"]++
			case triage.Exhausted:
				saw["exhaustions"]++
			case triage.DryRun:
				saw["dry-run findings"]++
			}
			if reason.Code >= triage.CapFull && reason.Code <= triage.Retrying {
				saw["held: "+reason.Code.String()]++
			}
		}
	}
}

// checkUntilSeen runs random histories. A hundred may lack rare events, so it runs more until all of
// these have happened.
func checkUntilSeen(t *testing.T, saw map[string]int, wanted []string, check func(*rapid.T)) {
	t.Helper()
	isMissing := func(what string) bool { return saw[what] == 0 && !raceEnabled }
	for draws := 0; draws == 0 || draws < 10 && !t.Failed() && slices.ContainsFunc(wanted, isMissing); draws++ {
		rapid.Check(t, check)
	}
}

func TestInvariants(t *testing.T) {
	t.Parallel()
	saw := map[string]int{}
	wanted := slices.Concat(clockSources, railEvents, callOffEvents, windowEvents, treatmentEvents, checkedTreatmentEvents, []string{
		"records lost", "begun beside taints of others",
		"treatments", "gated", "gates open because there are few nodes", "control plane", "NoExecute", "capped", "dry-run plans", "dry-run releases", "dry runs at rest",
		"placements under a cap", "placements beside others",
		"effects weakened with taints in flight", "effects strengthened with taints in flight", "rules removed with taints in flight",
		"late writes", "late writes under a weaker effect", "weaker taints beside a placement called off",
		"placements called off alone under a weaker effect", "NoExecute taints seen under a weaker effect",
		"begun under a shared cap", "begun under an allowance",
	})
	checkUntilSeen(t, saw, wanted, func(t *rapid.T) {
		runHistory(t, saw, func() []decider { return []decider{triage.New(), triage.New(), triage.New()} }, func(h *history) func(call) {
			h.shuffle = true
			bounds, dryRuns, slots, successors := h.checkBounds(saw), h.checkDryRuns(saw), h.checkSlots(), h.checkSuccessors(saw)
			calms, recoveries, closings, windows := h.checkCooldowns(), h.checkRecoveries(), h.checkClosed(), h.countWindows()
			return func(c call) {
				h.checkSame(h.deciders[1], "the core with the same calls")
				h.checkSame(h.deciders[2], "the core with another order of calls")
				h.checkReasons()
				bounds()
				dryRuns()
				slots()
				successors()
				h.checkNothingBegins()
				h.countCallOffs()
				calms()
				recoveries()
				closings()
				windows()
				h.checkWindows()
				h.checkTreatedOrCalledOff()
				h.countTreatmentEvents()
			}
		})
	})
	t.Logf("judged %d new treatments, %d of them under a gate, %d of them of control-plane nodes, %d new NoExecute taints, %d of all under a cap",
		saw["treatments"], saw["gated"], saw["control plane"], saw["NoExecute"], saw["capped"])
	t.Logf("judged %d plans under a dry run, %d of them with something to take back, and %d dry runs with nothing left",
		saw["dry-run plans"], saw["dry-run releases"], saw["dry runs at rest"])
	t.Logf("judged %d placements under a cap, %d of them beside others; with something under way, effects were weakened %d and strengthened %d times and rules removed %d times",
		saw["placements under a cap"], saw["placements beside others"], saw["effects weakened with taints in flight"],
		saw["effects strengthened with taints in flight"], saw["rules removed with taints in flight"])
	t.Logf("%d writes landed late, %d of them under a weaker effect; under one, plans called off %d placements beside a weaker taint and %d alone, and %d plans saw NoExecute",
		saw["late writes"], saw["late writes under a weaker effect"], saw["weaker taints beside a placement called off"],
		saw["placements called off alone under a weaker effect"], saw["NoExecute taints seen under a weaker effect"])
	var minds []string
	for _, what := range callOffEvents {
		minds = append(minds, fmt.Sprintf("%s %d", what, saw[what]))
	}
	t.Logf("saw %s", strings.Join(minds, ", "))
	var ways []string
	for _, what := range clockSources {
		ways = append(ways, fmt.Sprintf("%d %s", saw[what], what))
	}
	t.Logf("saw %s", strings.Join(ways, ", "))
	var courses []string
	for _, what := range slices.Concat(treatmentEvents, checkedTreatmentEvents, railEvents) {
		courses = append(courses, fmt.Sprintf("%s %d", what, saw[what]))
	}
	t.Logf("saw %s", strings.Join(courses, ", "))
	requireSeen(t, saw, wanted)
}

// checkReasons ends the history if a plan has no reason.
func (h *history) checkReasons() {
	for _, name := range slices.Sorted(maps.Keys(h.observed)) {
		plan := h.plans[name]
		for _, reason := range append([]triage.Reason{plan.Reason}, plan.Findings...) {
			if reason.Code == 0 || strings.TrimSpace(reason.String()) == "" {
				h.log("plan of %s: %+v", name, plan)
				h.fail("a plan has no reason")
			}
		}
	}
}

// checkBounds returns a check of all new responses, based on what the caller sees: the
// facts, the grants and the populations.
func (h *history) checkBounds(saw map[string]int) func() {
	type decision struct {
		rule      triage.RuleID
		node, uid string
		since     time.Time
	}
	decided := func(g triage.Grant) decision { return decision{g.Rule, g.Node, g.UID, g.Since} }
	before := map[decision]bool{}
	rails := h.checkRails()
	ladders := map[triage.RuleID]bool{} // including removed rules
	var core *triage.Core
	return func() {
		for id, rule := range h.rules {
			ladders[id] = len(rule.Response.Ladder) > 0
		}
		grants := slices.Clone(h.core().Grants())
		sortGrants(grants)
		after := map[decision]bool{}
		for _, g := range grants {
			after[decided(g)] = true
		}
		old := before
		before = after
		if h.core() != core || !h.loaded {
			// The previous controller decided what exists at the start.
			core = h.core()
			return
		}
		var begun []triage.Grant
		for _, g := range grants {
			facts := h.observed[g.Node]
			if old[decided(g)] || !g.Gone.IsZero() || g.Step > 0 || !g.Since.Equal(h.now) || takesSlot(facts, g.Rule) {
				continue
			}
			h.checkBegun(saw, g, facts, grants, ladders)
			begun = append(begun, g)
		}
		h.checkSharedCaps(begun, grants)
		rails(begun, grants)
	}
}

// checkBegun checks a new treatment or NoExecute taint.
func (h *history) checkBegun(saw map[string]int, g triage.Grant, facts triage.Node, grants []triage.Grant, ladders map[triage.RuleID]bool) {
	rule, known := h.rules[g.Rule]
	if !known {
		h.fail("a rule that does not exist has begun something")
	}
	bad := func(what string) {
		h.log("%s on %s", g.Rule, g.Node)
		h.fail(what)
	}
	// Counted here, independent of the counts of the core.
	var selected int
	unwell := map[string]bool{}
	treated := map[string]bool{}
	fromCreation := slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.FromCreation })
	for name, node := range h.observed {
		if selects(rule, node) {
			selected++
			// The current conditions do not show whether a node was ever ready.
			if !fromCreation && matchesNow(rule, node) || takesSlot(node, g.Rule) {
				unwell[name] = true
			}
		}
		if takesSlot(node, g.Rule) {
			treated[name+"/"+node.UID] = true
		}
		if selects(rule, node) && rule.Response.Taint != nil && slices.Contains(node.Foreign, rule.Response.Taint.Key) {
			treated[name+"/"+node.UID] = true
			saw["begun beside taints of others"]++
		}
	}
	gone := 0
	for _, other := range grants {
		if other.Rule == g.Rule {
			treated[other.Node+"/"+other.UID] = true
			if !other.Gone.IsZero() {
				gone++
			}
			if node, there := h.observed[other.Node]; there && node.UID == other.UID && other.Gone.IsZero() && selects(rule, node) {
				unwell[other.Node] = true
			}
		}
	}
	if limit := allows(rule.Bound.Cap, selected); limit >= 0 && !isAll(rule.Bound.Cap) {
		saw["capped"]++
		if len(treated) > limit {
			h.log("%d are in treatment, %d may be", len(treated), limit)
			bad("something is begun above the cap")
		}
	}
	if h.ruleInForce(g.Rule).Hold != "" {
		bad("something is begun by a rule on hold")
	}
	if h.isPaused(facts) {
		bad("something is begun on a paused node")
	}
	if rule.DryRun {
		bad("something is begun by a rule on dry run")
	}
	if isWeakerThanNoExecute(rule) {
		bad("a rule without NoExecute takes a slot")
	}
	if !matchesNow(rule, facts) {
		bad("something is begun on a healthy node")
	}
	if !ladders[g.Rule] {
		saw["NoExecute"]++
		return
	}

	saw["treatments"]++
	if limit := allows(rule.Bound.Gate, selected+gone); limit >= 0 {
		saw["gated"]++
		if few := *rule.Bound.Gate; few.Few > 0 {
			if few.Few = 0; len(unwell)+gone > allows(&few, selected+gone) {
				saw["gates open because there are few nodes"]++
			}
		}
		if gone > 0 {
			saw["gated beside deleted nodes"]++
		}
		if len(unwell)+gone > limit {
			h.log("%d are unhealthy or in treatment and %d are not replaced, %d may be", len(unwell), gone, limit)
			bad("a treatment is begun while the gate is closed")
		}
	}
	for _, other := range grants {
		if other.Node == g.Node && other.UID == g.UID && other.Rule != g.Rule && other.Gone.IsZero() && ladders[other.Rule] {
			h.log("%s treats it already", other.Rule)
			bad("a second treatment is begun on a node")
		}
	}
	for _, treatment := range facts.Treatments {
		if treatment.Rule != g.Rule && ladders[treatment.Rule] {
			h.log("%s treats it already", treatment.Rule)
			bad("a second treatment is begun on a node")
		}
	}
	if !facts.ControlPlane {
		return
	}
	saw["control plane"]++
	for _, other := range grants {
		running := other.Gone.IsZero() && other.Node != g.Node && ladders[other.Rule] && h.observed[other.Node].ControlPlane
		if vacant := !other.Gone.IsZero() && other.ControlPlane; running || vacant {
			h.log("%s is in treatment", other.Node)
			bad("two control-plane nodes are in treatment")
		}
	}
}

// checkDryRuns returns a check that a rule on dry run wants nothing, blocks no other rule,
// releases all of its responses, and then counts no node as treated.
func (h *history) checkDryRuns(saw map[string]int) func() {
	steps := map[triage.RuleID]map[string]int{} // steps of the grants by rule and node
	var core *triage.Core
	return func() {
		before := steps
		steps = map[triage.RuleID]map[string]int{}
		if h.core() != core || !h.loaded {
			core, before = h.core(), nil
		}
		for _, id := range h.ids() {
			if !h.rules[id].DryRun {
				continue
			}
			steps[id] = map[string]int{}
			vacant := 0
			for _, g := range core.Grants() {
				switch {
				case g.Rule != id:
				case g.Gone.IsZero():
					steps[id][g.Node+"/"+g.UID] = g.Step
				default:
					vacant++
				}
			}
			held := 0
			for _, name := range slices.Sorted(maps.Keys(h.observed)) {
				step, granted := steps[id][name+"/"+h.observed[name].UID]
				if granted {
					held++
				}
				h.checkDryRun(saw, id, name, granted)
				old, was := before[id][name+"/"+h.observed[name].UID]
				if known := before[id] != nil; known && granted && (!was || step > old) && !hasStep(h.observed[name], id, step) {
					h.log("%s on %s, step %d", id, name, step)
					h.fail("a rule on dry run has begun something")
				}
			}
			if population, _ := core.Population(id); population.Treated != held+vacant {
				h.log("%s: %d in treatment, %d to be taken back, %d not replaced yet", id, population.Treated, held, vacant)
				h.fail("a rule on dry run counts a node as treated without a response")
			} else if population.Treated == 0 && population.Unhealthy > 0 {
				saw["dry runs at rest"]++
			}
		}
	}
}

// hasStep says whether the node has this step of the rule or a later one, or its taint.
func hasStep(node triage.Node, id triage.RuleID, step int) bool {
	return slices.ContainsFunc(node.Treatments, func(t triage.Treatment) bool { return t.Rule == id && t.Step >= step }) ||
		slices.ContainsFunc(node.Taints, func(t triage.Taint) bool { return t.Rule == id })
}

// checkDryRun checks the plan of a node for a rule on dry run.
func (h *history) checkDryRun(saw map[string]int, id triage.RuleID, name string, granted bool) {
	plan := h.plans[name]
	bad := func(what string) {
		h.log("%s: plan of %s: %+v", id, name, plan)
		h.fail(what)
	}
	released := slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return r.Rule == id })
	there := granted || carries(h.observed[name], id)
	switch {
	case plan.Treatment != nil && plan.Treatment.Rule == id,
		slices.ContainsFunc(plan.Taints, func(t triage.PlannedTaint) bool { return t.Rule == id }):
		bad("a plan wants the response of a rule on dry run")
	case there != released:
		bad("the responses and the releases of a rule on dry run differ")
	}
	for _, reason := range plan.Findings {
		switch {
		case reason.Code == triage.Superseded && reason.Other == id.String():
			bad("a rule on dry run supersedes another")
		case reason.Code == triage.Busy && reason.Other == id.String() && !granted:
			bad("a rule on dry run keeps a node busy")
		case reason.Rule == id && reason.Code == triage.DryRun:
			saw["dry-run plans"]++
		}
	}
	if released {
		saw["dry-run releases"]++
	}
}

// matchesNow says whether a rule matches a node, whatever the durations.
func matchesNow(rule triage.Rule, node triage.Node) bool {
	stands, named := map[string]bool{}, map[string]bool{}
	for _, s := range rule.When.Signals {
		row, _ := rowOf(node, s.Condition)
		silent := row.Status == triage.Unknown && row.Reason == triage.AgentSilent && !s.EvenSilent
		matches := row.Status == s.Status && (s.Reason == "" || s.Reason == row.Reason) && !silent
		if isNamed := matches && s.Reason != ""; isNamed && !named[s.Condition] { // it decides, whatever the others say
			stands[s.Condition], named[s.Condition] = s.For < triage.Never, true
		} else if isNamed || !named[s.Condition] {
			stands[s.Condition] = stands[s.Condition] || matches && s.For < triage.Never
		}
	}
	some, every := false, true
	for _, stand := range stands {
		some, every = some || stand, every && stand
	}
	return some && (every || !rule.When.All)
}
