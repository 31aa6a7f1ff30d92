package triage_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// cooldownRule allows one unhealthy node, and has a cooldown of a minute.
func cooldownRule() triage.Rule {
	rule := validRule()
	rule.Bound = triage.Bound{Gate: &triage.Limit{Number: 1}, Cooldown: time.Minute}
	rule.Response.Ladder = []triage.Step{{Action: triage.Remediate}}
	for i := range rule.When.Signals {
		rule.When.Signals[i].For = 0
	}
	return rule
}

// TestResumeStorm restores a storm before all nodes are known, one of which is unhealthy.
func TestResumeStorm(t *testing.T) {
	calm := triage.Population{Gate: 1}
	stormy := triage.Population{Gate: 1, Storm: true}
	cooling := func(since time.Duration) triage.Population {
		return triage.Population{Gate: 1, Storm: true, CalmSince: startTime.Add(since), CalmUntil: startTime.Add(since + time.Minute)}
	}
	hasNone := cooldownRule()
	hasNone.Bound.Cooldown = 0
	other := cooldownRule()
	other.ID.Name = "other"
	for name, test := range map[string]struct {
		rule             triage.Rule
		calmSince        time.Time
		told, and        triage.Population // before and after Loaded
		begins           bool
		unhealthy, twice bool // another node is unhealthy; the storm is restored twice
		afterwardsCalm   time.Time
	}{
		"not calm":                         {rule: cooldownRule(), told: stormy, and: cooling(0)},
		"calm":                             {rule: cooldownRule(), calmSince: startTime.Add(-30 * time.Second), told: cooling(-30 * time.Second), and: cooling(-30 * time.Second)},
		"calm in the future":               {rule: cooldownRule(), calmSince: startTime.Add(time.Hour), told: cooling(0), and: cooling(0)},
		"cooldown already over":            {rule: cooldownRule(), calmSince: startTime.Add(-time.Minute), told: cooling(-time.Minute), and: calm, begins: true},
		"calm, and another storm":          {rule: cooldownRule(), calmSince: startTime.Add(-time.Second), unhealthy: true, told: cooling(-time.Second), and: stormy},
		"restored twice, the first counts": {rule: cooldownRule(), twice: true, afterwardsCalm: startTime.Add(-time.Hour), told: stormy, and: cooling(0)},
		"rule without a cooldown":          {rule: hasNone, told: calm, and: calm, begins: true},
		"unknown rule":                     {rule: other, told: calm, and: calm, begins: true},
	} {
		t.Run(name, func(t *testing.T) {
			core := triage.New()
			mustSet(t, core, startTime, test.rule)
			unhealthy := []triage.Condition{{Type: "Ready", Status: triage.False, Transition: startTime}}
			core.Observe(startTime, triage.Node{Name: "a", UID: "a", Conditions: unhealthy}, triage.Node{Name: "b", UID: "b"})
			if test.unhealthy {
				core.Observe(startTime, triage.Node{Name: "b", UID: "b", Conditions: unhealthy})
			}
			core.ResumeStorm(startTime, cooldownRule().ID, test.calmSince)
			if test.twice {
				core.ResumeStorm(startTime, cooldownRule().ID, test.afterwardsCalm)
			}
			looks := func(when string, want triage.Population) {
				t.Helper()
				got, _ := core.Population(test.rule.ID)
				if got.Storm != want.Storm || !got.CalmSince.Equal(want.CalmSince) || !got.CalmUntil.Equal(want.CalmUntil) {
					t.Errorf("%s: storm %t, calm from %s to %s; want %t, from %s to %s", when,
						got.Storm, at(got.CalmSince), at(got.CalmUntil), want.Storm, at(want.CalmSince), at(want.CalmUntil))
				}
			}
			looks("before all nodes are known", test.told)
			core.Loaded(startTime)
			looks("when they are", test.and)
			if begins := len(core.Grants()) > 0; begins != test.begins {
				t.Errorf("begins something: %t, want %t", begins, test.begins)
			}
		})
	}
}

// Only the counts at the end of a call matter.
func TestStormIsCheckedOncePerCall(t *testing.T) {
	core := triage.New()
	rule := cooldownRule()
	rule.Hold = "or the recovering node would be in treatment"
	mustSet(t, core, startTime, rule)
	node := func(name string, ready triage.Status) triage.Node {
		return triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "Ready", Status: ready, Transition: startTime}}}
	}
	core.Observe(startTime, node("a", triage.False), node("b", triage.True))
	core.Loaded(startTime)
	core.Observe(startTime, node("b", triage.False), node("a", triage.True))
	if p, _ := core.Population(rule.ID); p.Storm {
		t.Errorf("%+v: a storm began although one node failed as another recovered", p)
	}
}

// A gate that closes or opens wakes the nodes with a decided, unobserved treatment. Nodes
// that wait for the gate are woken when it is their turn.
func TestWorkOfAGateDoesNotGrowWithWaitingNodes(t *testing.T) {
	for _, crowd := range []int{10, 1000} {
		core := triage.New()
		rule := cooldownRule()
		rule.Bound.Gate.Number = crowd + 2
		mustSet(t, core, startTime, rule)
		now := startTime
		node := func(i int, ready triage.Status) triage.Node {
			name := "worker-" + strconv.Itoa(i)
			return triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "Ready", Status: ready, Transition: startTime}}}
		}
		for i := range 2*crowd + 4 {
			core.Observe(now, node(i, triage.True))
		}
		core.Loaded(now)
		for i := range 2 { // decided, not observed
			core.Observe(now, node(i, triage.False))
		}
		for i := 2; i < crowd+2; i++ { // observed
			unhealthy := node(i, triage.False)
			unhealthy.Treatments = []triage.Treatment{{Rule: rule.ID, Since: now}}
			core.Observe(now, unhealthy)
		}
		settle(core)
		touched := func(what string, want int, do func()) {
			t.Helper()
			before := core.Work().Touched
			do()
			settle(core)
			if got := core.Work().Touched - before; got != want {
				t.Errorf("with %d in treatment, %s: %d nodes are woken, want %d", crowd, what, got, want)
			}
		}
		touched("the gate closes", 3, func() { core.Observe(now, node(crowd+2, triage.False)) })
		touched("another one waits", 1, func() { core.Observe(now, node(crowd+3, triage.False)) })
		touched("the count is low enough", 2, func() { core.Observe(now, node(crowd+2, triage.True), node(crowd+3, triage.True)) })
		now = now.Add(time.Minute)
		touched("the cooldown is over", 2, func() { core.Advance(now) })
	}
}

// TestLateDepartureClosesTheGate closes the gate for a decided treatment, and begins a
// storm.
func TestLateDepartureClosesTheGate(t *testing.T) {
	core, rule := triage.New(), cooldownRule()
	mustSet(t, core, startTime, rule)
	core.Observe(startTime, triage.Node{Name: "a", UID: "a", Conditions: []triage.Condition{{Type: "Ready", Status: triage.False, Transition: startTime}}}, triage.Node{Name: "b", UID: "b"})
	core.Loaded(startTime)
	for _, more := core.NextWoken(); more; _, more = core.NextWoken() {
	}
	if plan, _ := core.Plan("a"); plan.Treatment == nil {
		t.Fatalf("it is not to be treated: %+v", plan)
	}
	gone := triage.Grant{Rule: rule.ID, Node: "x", UID: "x", Since: startTime, Gone: startTime}
	core.Resume(startTime, gone)
	if woken, _ := core.NextWoken(); woken != "a" {
		t.Errorf("woken is %q", woken)
	}
	if plan, _ := core.Plan("a"); plan.Treatment != nil || len(plan.Release) != 1 || plan.Release[0].Code != triage.GateClosed || plan.Release[0].Departed != 1 {
		t.Errorf("the plan: %+v", plan)
	}
	if p, _ := core.Population(rule.ID); !p.Storm || p.Departed != 1 || p.Treated != 2 || p.GateTotal() != 3 || p.GateUnhealthy() != 2 || p.GateUnhealthyText() != "unhealthy or not replaced yet" {
		t.Errorf("the population: %+v", p)
	}
	if got := core.AwaitingReplacement(); len(got) != 1 || got[0] != gone {
		t.Errorf("departures: %+v", got)
	}
	core.Advance(startTime.Add(triage.ReplacementWait))
	if p, _ := core.Population(rule.ID); p.Departed != 0 || len(core.AwaitingReplacement()) != 0 || p.CalmSince.IsZero() {
		t.Errorf("the population afterwards: %+v", p)
	}
}
