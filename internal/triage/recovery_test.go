package triage_test

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// The stored HealthySince may be older than the last failure of the node. What the core has
// observed takes precedence.
func TestStoredHealthySinceDoesNotOverrideObservations(t *testing.T) {
	const hour = time.Hour
	rule := cooldownRule()
	rule.When.Signals = []triage.Signal{{Condition: "Disk", Status: triage.True, Reason: "Worn"}}
	rule.Recovery.Delay = 24 * hour
	dryRun := rule
	dryRun.DryRun = true
	node := func(reason string, treatments ...triage.Treatment) triage.Node {
		return triage.Node{Name: "a", UID: "a", Treatments: treatments, Conditions: []triage.Condition{
			{Type: "Disk", Status: triage.True, Reason: reason, Transition: startTime}, // its status never changes
		}}
	}
	noted := triage.Treatment{Rule: rule.ID, Since: startTime, HealthySince: startTime.Add(hour)}
	for name, test := range map[string]struct {
		happens func(core *triage.Core)
		want    time.Duration
	}{
		"counts after a restart": {func(core *triage.Core) {
			core.Observe(startTime.Add(5*hour), node("", noted))
		}, hour},
		"counts after a restart with a late rule": {func(core *triage.Core) {
			core.RemoveRule(startTime.Add(5*hour), rule.ID)
			core.Observe(startTime.Add(5*hour), node("", noted))
			mustSet(t, core, startTime.Add(6*hour), rule)
		}, hour},
		"the node was unhealthy since then": {func(core *triage.Core) {
			core.Observe(startTime.Add(2*hour), node("Worn", noted))
			core.Observe(startTime.Add(3*hour), node("", noted))
		}, 3 * hour},
		"the node was unhealthy since then, on dry run": {func(core *triage.Core) {
			mustSet(t, core, startTime.Add(2*hour), dryRun)
			core.Observe(startTime.Add(2*hour), node("Worn", noted))
			core.Observe(startTime.Add(3*hour), node("", noted))
			mustSet(t, core, startTime.Add(4*hour), rule)
		}, 3 * hour},
		"the treatment appears on a node that was always healthy": {func(core *triage.Core) {
			core.Observe(startTime.Add(2*hour), node(""))
			core.Observe(startTime.Add(3*hour), node("", noted))
		}, 3 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			core := triage.New()
			mustSet(t, core, startTime, rule)
			test.happens(core)
			plan, _ := core.Plan("a")
			if plan.Treatment == nil || plan.Reason.Code != triage.Recovering {
				t.Fatalf("%s, and the treatment is %+v", plan.Reason, plan.Treatment)
			}
			if got := plan.Treatment.HealthySince.Sub(startTime); got != test.want {
				t.Errorf("healthy since %s, want %s", got, test.want)
			}
		})
	}
}
