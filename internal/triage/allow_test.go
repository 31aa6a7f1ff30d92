package triage_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// repairOf returns a rule of a pool that terminates nodes without network.
func repairOf(pool string) triage.Rule {
	return triage.Rule{
		ID:       triage.RuleID{Kind: policykind.Repair, Name: "NodePool/" + pool},
		Stage:    policykind.StageRepair,
		When:     triage.When{Signals: []triage.Signal{{Condition: "NetworkUnavailable", Status: triage.True}}},
		Bound:    triage.Bound{Pool: "NodePool/" + pool},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
	}
}

func offline(name string) triage.Node {
	return triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "NetworkUnavailable", Status: triage.True}}}
}

// Allow wakes the nodes that may begin now, not the nodes that still wait.
func TestAllowWakesOnlyNodesThatMayBegin(t *testing.T) {
	for _, waiting := range []int{10, 10_000} {
		core, now, rule := triage.New(), benchStart, repairOf("a")
		mustSet(t, core, now, rule)
		core.Allow(now, rule.ID, &triage.Allowance{Reason: "the budget is spent"})
		for i := range waiting {
			core.Observe(now, offline(fmt.Sprintf("worker-%05d", i)))
		}
		core.Loaded(now)
		settle(core)
		for _, places := range []int{0, 3, 0, 1} {
			before := core.Work()
			core.Allow(now, rule.ID, &triage.Allowance{Remaining: places})
			settle(core)
			after := core.Work()
			if judged, touched := after.Judged-before.Judged, after.Touched-before.Touched; judged != 0 || touched != places {
				t.Errorf("with %d waiting, %d more are allowed: %d judged, %d touched; want 0 and %d", waiting, places, judged, touched, places)
			}
		}
		if population, _ := core.Population(rule.ID); population.Treated != 4 {
			t.Errorf("with %d waiting, %d are in treatment, want 4", waiting, population.Treated)
		}
	}
}

// An allowance that is set before Loaded limits the first decisions.
func TestAllowanceAppliesFromLoadedOn(t *testing.T) {
	core, now, rule := triage.New(), benchStart, repairOf("a")
	core.Allow(now, rule.ID, &triage.Allowance{Remaining: 1, Reason: "one may go"})
	if _, known := core.Population(rule.ID); known {
		t.Error("a rule is known of which only the allowance was set")
	}
	core.Observe(now, offline("a"), offline("b"))
	mustSet(t, core, now, rule)
	core.Loaded(now)
	if got := len(core.Grants()); got != 1 {
		t.Fatalf("%d are in treatment, want 1", got)
	}
	plan, _ := core.Plan("b")
	if want := "one may go"; plan.Reason.Code != triage.NotAllowed || plan.Reason.Other != want {
		t.Errorf("b: %s; want %s", plan.Reason, want)
	}
	core.RemoveRule(now, rule.ID) // which also ends the allowance
	mustSet(t, core, now, rule)
	if got := len(core.Grants()); got != 2 {
		t.Errorf("%d are in treatment under a rule that was written again, want 2", got)
	}
}

// A node is initialized for good once it was Ready without startup taints.
func TestPlanReportsInitializedNodes(t *testing.T) {
	core, now := triage.New(), benchStart
	core.Loaded(now)
	for i, step := range []struct {
		what                  string
		ready                 triage.Status
		starting, told, wants bool
	}{
		{"not ready", triage.False, true, false, false},
		{"ready with startup taints", triage.True, true, false, false},
		{"without them, but not ready", triage.False, false, false, false},
		{"ready for work", triage.True, false, false, true},
		{"failing", triage.Unknown, true, false, true},
	} {
		core.Observe(now.Add(time.Duration(i)*time.Second), triage.Node{
			Name: "a", UID: "a", Starting: step.starting, Initialized: step.told, Conditions: []triage.Condition{{Type: triage.Ready, Status: step.ready}},
		})
		if plan, _ := core.Plan("a"); plan.Initialized != step.wants {
			t.Errorf("%s: initialised is %t, want %t", step.what, plan.Initialized, step.wants)
		}
	}
	core.Observe(now, triage.Node{Name: "b", UID: "b", Initialized: true})
	if plan, _ := core.Plan("b"); !plan.Initialized {
		t.Error("a node is not initialized although the facts say so")
	}
}

// A ready timeout matches nodes that are not ready for work, even if they are Ready.
func TestImpactCountsStartupTaints(t *testing.T) {
	core, now := triage.New(), benchStart
	starting := triage.Condition{Type: triage.StartupTaints, Status: triage.True}
	ready := triage.Condition{Type: triage.Ready, Status: triage.True}
	core.Observe(now,
		triage.Node{Name: "works", Conditions: []triage.Condition{ready}},
		triage.Node{Name: "starts", Starting: true, Conditions: []triage.Condition{ready, starting}},
		triage.Node{Name: "worked", Initialized: true, Starting: true, Conditions: []triage.Condition{ready, starting}},
	)
	rule := repairOf("a")
	rule.When.Signals = []triage.Signal{
		{Condition: triage.Ready, Status: triage.False, FromCreation: true}, {Condition: triage.StartupTaints, Status: triage.True, FromCreation: true},
	}
	impact := testkit.Value(core.Impact(rule)).Must(t)
	survey := testkit.Value(core.Survey(rule)).Must(t)
	if got := fmt.Sprint(impact.Selected, impact.First, survey.Selected, survey.First); got != "3 [starts] 3 [starts]" {
		t.Errorf("found %s, want only the node that starts", got)
	}
}

func TestReasonsOfPoolsAndAllowances(t *testing.T) {
	since := benchStart
	for want, reason := range map[string]triage.Reason{
		"waits: no more treatments may be begun now": {Code: triage.NotAllowed},
		"waits: the budget is spent":                 {Code: triage.NotAllowed, Other: "the budget is spent"},
		"waits: 6 in treatment in NodePool/a (5 gone and not replaced yet: a, b, c and 2 more; a slot is free by 2026-07-01T12:00:00Z), at most 2 of 9 selected nodes may be": {
			Code: triage.CapFull, Have: 6, Limit: 2, Of: 9, Pool: "NodePool/a", Departed: 5, Gone: "a, b, c", Until: since,
		},
		"waits: 3 in treatment in NodePool/a, at most 2 of 9 selected nodes may be": {Code: triage.CapFull, Have: 3, Limit: 2, Of: 9, Pool: "NodePool/a"},
		"startup taints are still there on a node created at 2026-07-01T12:00:00Z, eligible at 2026-07-01T12:10:00Z": {
			Code: triage.Pending, Condition: triage.StartupTaints, Status: triage.True, Since: since, FromCreation: true, Until: since.Add(10 * time.Minute),
		},
	} {
		if got := reason.String(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// A replacement counts once it is ready for work.
func TestReplacementCountsOnceReadyForWork(t *testing.T) {
	core, now, rule := triage.New(), benchStart, repairOf("a")
	rule.Bound.Cap = &triage.Limit{Number: 1}
	mustSet(t, core, now, rule)
	core.Loaded(now)
	core.Observe(now, offline("a"), offline("b"))
	core.Forget(now, "a")
	newNode := triage.Node{
		Name: "new-node", Created: now, Initialized: true, Starting: true,
		Conditions: []triage.Condition{{Type: triage.Ready, Status: triage.True}},
	}
	core.Observe(now, newNode)
	if plan, _ := core.Plan("b"); plan.Reason.Code != triage.CapFull {
		t.Fatalf("b, while the replacement has its startup taints: %s", plan.Reason)
	}
	newNode.Starting = false
	core.Observe(now, newNode)
	if plan, _ := core.Plan("b"); plan.Treatment == nil {
		t.Errorf("b, when the replacement has started: %s", plan.Reason)
	}
}

// The allowance for a removed rule with responses is not used by other rules before the rule
// is set again.
func TestAllowanceOfRemovedRuleIsKept(t *testing.T) {
	core, now := triage.New(), benchStart
	core.Loaded(now)
	returns, stays := repairOf("a"), repairOf("a")
	stays.ID.Name = "stays"
	stays.When.Signals = []triage.Signal{{Condition: "Disk", Status: triage.False}}
	mustSet(t, core, now, returns)
	mustSet(t, core, now, stays)
	core.Observe(now, offline("first"))
	core.RemoveRule(now, returns.ID)
	core.Allow(now, returns.ID, &triage.Allowance{Remaining: 1})
	core.Observe(now, triage.Node{Name: "other", Conditions: []triage.Condition{{Type: "Disk", Status: triage.False}}})
	mustSet(t, core, now, returns)
	core.Observe(now, offline("second"), offline("third"))
	var treated []string
	for _, g := range core.Grants() {
		treated = append(treated, g.Node)
	}
	if got := strings.Join(treated, " "); got != "first second other" {
		t.Errorf("in treatment are %s; want the node that the rule had, the node that it was allowed, and the node of the other rule", got)
	}
}
