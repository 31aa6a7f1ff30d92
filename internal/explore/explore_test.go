package explore

import (
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// explored is a scenario and how much of it the gate explores.
type explored struct {
	*Scenario
	deviations int
	runs       int // 0 for all
}

// scenarios are the clusters of the gate. The first has all kinds of rules. The others are
// smaller, so that the search goes further.
func scenarios() []explored {
	return []explored{
		{&Scenario{
			Name: "all kinds of rules",
			Nodes: []Node{
				{Name: "a", ControlPlane: true, True: []string{"Broken"}}, {Name: "b", ControlPlane: true},
				{Name: "c", True: []string{"Sick"}}, {Name: "d", True: []string{"Sick"}},
			},
			Sets: []Set{
				{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 1},
				{Name: "slow", Condition: "Slow", Effect: corev1.TaintEffectNoSchedule, Max: 1},
			},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 2}},
		}, 2, 4000},
		{&Scenario{
			Name:  "a cap of one",
			Nodes: []Node{{Name: "a", True: []string{"Sick"}}, {Name: "b", True: []string{"Sick"}}, {Name: "c"}},
			Sets:  []Set{{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 1}}, Heartbeats: true, Late: true,
		}, 2, 0},
		{&Scenario{
			Name:   "two broken control-plane nodes and a worker",
			Nodes:  []Node{{Name: "a", ControlPlane: true, True: []string{"Broken"}}, {Name: "b", ControlPlane: true, True: []string{"Broken"}}, {Name: "c"}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 2}},
		}, 2, 0},
		{&Scenario{
			Name:   "a gate of one",
			Nodes:  []Node{{Name: "a", True: []string{"Broken"}}, {Name: "b"}, {Name: "c"}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 1}},
		}, 2, 0},
		{&Scenario{
			Name:   "nodes that are replaced",
			Nodes:  []Node{{Name: "a", ControlPlane: true, True: []string{"Broken"}}, {Name: "b", ControlPlane: true}, {Name: "c"}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 2}}, Replaces: true,
		}, 2, 3000},
		{&Scenario{
			Name:  "limits on all policies together",
			Nodes: []Node{{Name: "a", True: []string{"Slow", "Sick"}}, {Name: "b", True: []string{"Slow"}}, {Name: "c", True: []string{"Broken"}}},
			Sets: []Set{
				{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 3},
				{Name: "slow", Condition: "Slow", Effect: corev1.TaintEffectNoSchedule, Max: 3},
			},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 3}}, Rails: Rails{InTreatment: 1, Unschedulable: 1},
		}, 2, 2000},
		{&Scenario{
			Name:   "other components",
			Nodes:  []Node{{Name: "a", True: []string{"Sick"}}, {Name: "b", True: []string{"Sick"}}, {Name: "c", True: []string{"Broken"}}},
			Sets:   []Set{{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 1}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 1}}, Others: true,
		}, 2, 2500},
		{&Scenario{
			Name:  "zones, the last node and the mode",
			Nodes: []Node{{Name: "a", Zone: "1", True: []string{"Slow", "Sick"}}, {Name: "b", Zone: "1", True: []string{"Sick"}}, {Name: "c", Zone: "2", True: []string{"Broken"}}},
			Sets: []Set{
				{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 3},
				{Name: "slow", Condition: "Slow", Effect: corev1.TaintEffectNoSchedule, Max: 3},
			},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 3}},
			Rails:  Rails{InTreatment: 2, Unschedulable: 2, InZone: 1, Last: true}, Switches: true,
		}, 2, 2500},
		{&Scenario{
			Name:   "pace, attempts and correlated failures",
			Nodes:  []Node{{Name: "a", Zone: "1", True: []string{"Broken", "Sick"}}, {Name: "b", Zone: "1"}, {Name: "c", Zone: "2", True: []string{"Broken"}}},
			Sets:   []Set{{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 3}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 3}},
			Rails:  Rails{Pace: 1, Attempts: 1, Together: 2}, Switches: true,
		}, 2, 2000},
		{&Scenario{
			Name: "every limit at once",
			Nodes: []Node{
				{Name: "a", Zone: "1", True: []string{"Broken", "Sick"}}, {Name: "b", Zone: "1", True: []string{"Slow"}},
				{Name: "c", Zone: "2", True: []string{"Broken"}}, {Name: "d", Zone: "2"},
			},
			Sets: []Set{
				{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 4},
				{Name: "slow", Condition: "Slow", Effect: corev1.TaintEffectNoSchedule, Max: 4},
			},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 4, IsWindowed: true}},
			Rails:  Rails{InTreatment: 2, Unschedulable: 2, InZone: 1, Pace: 1, Attempts: 1, Together: 2, Last: true}, Switches: true, Pauses: true,
		}, 2, 1200},
		{&Scenario{
			Name:   "a window, and pauses of nodes",
			Nodes:  []Node{{Name: "a", True: []string{"Broken"}}, {Name: "b"}, {Name: "c", True: []string{"Sick"}}},
			Sets:   []Set{{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 1}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 3, IsWindowed: true}},
			Rails:  Rails{Attempts: 2}, Pauses: true,
		}, 2, 1700},
		{&Scenario{
			Name:   "cordons, and the end of a correlated failure",
			Nodes:  []Node{{Name: "a", Zone: "1", True: []string{"Broken"}}, {Name: "b", Zone: "1"}, {Name: "c", Zone: "2", True: []string{"Slow"}}},
			Sets:   []Set{{Name: "slow", Condition: "Slow", Effect: corev1.TaintEffectNoSchedule, Max: 3}},
			Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 3}},
			Rails:  Rails{Together: 2, LongestHold: true}, Cordons: true,
		}, 2, 1500},
	}
}

// TestSmallClusters explores the scenarios. make explore sets the variables of the
// environment to explore more of them.
func TestSmallClusters(t *testing.T) {
	all := scenarios()
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			limits := Limits{Deviations: s.deviations, Runs: s.runs}
			if text := os.Getenv("EXPLORE_DEVIATIONS"); text != "" {
				limits = Limits{Deviations: testkit.Value(strconv.Atoi(text)).Must(t)}
			}
			if text := os.Getenv("EXPLORE_TIME"); text != "" {
				limits.Time = testkit.Value(time.ParseDuration(text)).Must(t) / time.Duration(len(all))
			}
			r := Explore(t, s.Scenario, limits)
			t.Log(r)
			testkit.Check(t, r.Violation == nil, "a promise is broken:\n%s", r.describe())
			testkit.Check(t, r.Diverged == 0, "%d runs were not repeated exactly", r.Diverged)
			testkit.Check(t, r.Quiet > 0 && r.States > 200, "the search has reached only %d states", r.States)
		})
	}
}

// The search found these defects. Each needs three deviations, so it is searched in a small
// cluster and with few kinds of deviations.
func TestDefectsThatTheSearchFound(t *testing.T) {
	one := &Scenario{Nodes: []Node{{Name: "a", ControlPlane: true, True: []string{"Broken"}}}, Checks: broken}
	together := &Scenario{
		Nodes: []Node{{Name: "a", True: []string{"Sick"}}, {Name: "b", True: []string{"Broken"}}},
		Sets:  []Set{{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 2}}, Checks: broken,
		Rails: Rails{InTreatment: 1},
	}
	closed := &Scenario{
		Nodes: []Node{{Name: "a", True: []string{"Slow"}}, {Name: "b"}},
		Sets:  []Set{{Name: "slow", Condition: "Slow", Effect: corev1.TaintEffectNoSchedule, Max: 2}}, Rails: Rails{Unschedulable: 1}, Late: true,
	}
	recorded := *windowed
	recorded.Rails = Rails{Attempts: 1}
	for name, search := range map[string]struct {
		*Scenario
		only []op
	}{
		"a late write of the ledger":                        {one, []op{refuse, wait, arriveLate}},
		"a late creation, after a retry and a deletion":     {one, []op{environment, wait, arriveLate}},
		"a late creation of the previous leader":            {one, []op{environment, crash, arriveLate}},
		"an object that is deleted while a task creates it": {one, []op{environment, claim}},
		"a late creation under a limit on all policies":     {together, []op{refuse, claim}},
		"a window closes while an attempt is recorded":      {&recorded, []op{wait}},
		"a late taint under a limit on all policies":        {closed, []op{environment, crash, arriveLate}},
	} {
		t.Run(name, func(t *testing.T) {
			scenario := *search.Scenario
			scenario.Name = name
			r := Explore(t, &scenario, Limits{Deviations: 3, only: search.only})
			t.Log(r)
			testkit.Check(t, r.Violation == nil, "a promise is broken:\n%s", r.describe())
		})
	}
}
