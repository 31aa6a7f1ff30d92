package triage_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// coolRule lets one node be sick, and waits for a minute after a storm.
func coolRule() triage.Rule {
	rule := soundRule()
	rule.Bound = triage.Bound{Gate: &triage.Limit{Number: 1}, Cooldown: time.Minute}
	rule.Response.Ladder = []triage.Step{{Action: triage.Remediate}}
	for i := range rule.When.Signals {
		rule.When.Signals[i].For = 0
	}
	return rule
}

// TestResumeStorm tells a new core of a storm before it has all nodes, one of which
// is sick.
func TestResumeStorm(t *testing.T) {
	calm := triage.Population{Gate: 1}
	stormy := triage.Population{Gate: 1, Storm: true}
	cooling := func(since time.Duration) triage.Population {
		return triage.Population{Gate: 1, Storm: true, CalmSince: dawn.Add(since), CalmUntil: dawn.Add(since + time.Minute)}
	}
	hasNone := coolRule()
	hasNone.Bound.Cooldown = 0
	other := coolRule()
	other.ID.Name = "other"
	for name, test := range map[string]struct {
		rule           triage.Rule
		calmSince      time.Time
		told, and      triage.Population // before and after Loaded
		begins         bool
		sick, twice    bool // another node is sick; the storm is told again
		afterwardsCalm time.Time
	}{
		"it was not over":                    {rule: coolRule(), told: stormy, and: cooling(0)},
		"it was over":                        {rule: coolRule(), calmSince: dawn.Add(-30 * time.Second), told: cooling(-30 * time.Second), and: cooling(-30 * time.Second)},
		"it was over, says a clock ahead":    {rule: coolRule(), calmSince: dawn.Add(time.Hour), told: cooling(0), and: cooling(0)},
		"its cooldown is over by now":        {rule: coolRule(), calmSince: dawn.Add(-time.Minute), told: cooling(-time.Minute), and: calm, begins: true},
		"it was over, and there is another":  {rule: coolRule(), calmSince: dawn.Add(-time.Second), sick: true, told: cooling(-time.Second), and: stormy},
		"it is told twice, and first counts": {rule: coolRule(), twice: true, afterwardsCalm: dawn.Add(-time.Hour), told: stormy, and: cooling(0)},
		"a rule without a cooldown has none": {rule: hasNone, told: calm, and: calm, begins: true},
		"nobody knows the rule":              {rule: other, told: calm, and: calm, begins: true},
	} {
		t.Run(name, func(t *testing.T) {
			core := triage.New()
			mustSet(t, core, dawn, test.rule)
			sick := []triage.Condition{{Type: "Ready", Status: triage.False, Transition: dawn}}
			core.Observe(dawn, triage.Node{Name: "a", UID: "a", Conditions: sick}, triage.Node{Name: "b", UID: "b"})
			if test.sick {
				core.Observe(dawn, triage.Node{Name: "b", UID: "b", Conditions: sick})
			}
			core.ResumeStorm(dawn, coolRule().ID, test.calmSince)
			if test.twice {
				core.ResumeStorm(dawn, coolRule().ID, test.afterwardsCalm)
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
			core.Loaded(dawn)
			looks("when they are", test.and)
			if begins := len(core.Grants()) > 0; begins != test.begins {
				t.Errorf("begins something: %t, want %t", begins, test.begins)
			}
		})
	}
}

// What counts is what a call has brought about, not what was counted on the way.
func TestStormIsJudgedOncePerCall(t *testing.T) {
	core := triage.New()
	rule := coolRule()
	rule.Hold = "or the one that recovers would be in treatment"
	mustSet(t, core, dawn, rule)
	node := func(name string, ready triage.Status) triage.Node {
		return triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "Ready", Status: ready, Transition: dawn}}}
	}
	core.Observe(dawn, node("a", triage.False), node("b", triage.True))
	core.Loaded(dawn)
	core.Observe(dawn, node("b", triage.False), node("a", triage.True))
	if p, _ := core.Population(rule.ID); p.Storm {
		t.Errorf("%+v: one node fell sick as the other recovered, and that is a storm", p)
	}
}

// A gate that closes or opens concerns those whose treatment was decided and was not
// seen, and nobody else: those who wait behind it are woken when their turn comes.
func TestWorkOfAGateDoesNotGrowWithWhoWaits(t *testing.T) {
	for _, crowd := range []int{10, 1000} {
		core := triage.New()
		rule := coolRule()
		rule.Bound.Gate.Number = crowd + 2
		mustSet(t, core, dawn, rule)
		now := dawn
		node := func(i int, ready triage.Status) triage.Node {
			name := "worker-" + strconv.Itoa(i)
			return triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "Ready", Status: ready, Transition: dawn}}}
		}
		for i := range 2*crowd + 4 {
			core.Observe(now, node(i, triage.True))
		}
		core.Loaded(now)
		for i := range 2 { // decided, and not seen
			core.Observe(now, node(i, triage.False))
		}
		for i := 2; i < crowd+2; i++ { // seen
			sick := node(i, triage.False)
			sick.Treatments = []triage.Treatment{{Rule: rule.ID, Since: now}}
			core.Observe(now, sick)
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

// TestADepartureThatIsToldLate closes the gate for a treatment that was decided, and is
// a storm.
func TestADepartureThatIsToldLate(t *testing.T) {
	core, rule := triage.New(), coolRule()
	mustSet(t, core, dawn, rule)
	core.Observe(dawn, triage.Node{Name: "a", UID: "a", Conditions: []triage.Condition{{Type: "Ready", Status: triage.False, Transition: dawn}}}, triage.Node{Name: "b", UID: "b"})
	core.Loaded(dawn)
	for _, more := core.NextWoken(); more; _, more = core.NextWoken() {
	}
	if plan, _ := core.Plan("a"); plan.Treatment == nil {
		t.Fatalf("it is not to be treated: %+v", plan)
	}
	gone := triage.Grant{Rule: rule.ID, Node: "x", UID: "x", Since: dawn, Gone: dawn}
	core.Resume(dawn, gone)
	if woken, _ := core.NextWoken(); woken != "a" {
		t.Errorf("woken is %q", woken)
	}
	if plan, _ := core.Plan("a"); plan.Treatment != nil || len(plan.Release) != 1 || plan.Release[0].Code != triage.GateClosed || plan.Release[0].Departed != 1 {
		t.Errorf("the plan: %+v", plan)
	}
	if p, _ := core.Population(rule.ID); !p.Storm || p.Departed != 1 || p.Treated != 2 || p.Meant() != 3 || p.Unwell() != 2 || p.Ailing() != "sick or not replaced yet" {
		t.Errorf("the population: %+v", p)
	}
	if got := core.Departures(); len(got) != 1 || got[0] != gone {
		t.Errorf("departures: %+v", got)
	}
	core.Advance(dawn.Add(triage.ReplacementWait))
	if p, _ := core.Population(rule.ID); p.Departed != 0 || len(core.Departures()) != 0 || p.CalmSince.IsZero() {
		t.Errorf("the population afterwards: %+v", p)
	}
}
