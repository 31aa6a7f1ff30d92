package triage_test

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// A note with a treatment is of an earlier time, and may be left over from before the
// node was sick again: what the core has seen itself counts more.
func TestNoteDoesNotCountAgainstWhatWasSeen(t *testing.T) {
	const hour = time.Hour
	rule := coolRule()
	rule.When.Signals = []triage.Signal{{Condition: "Disk", Status: triage.True, Reason: "Worn"}}
	rule.Recovery.Delay = 24 * hour
	rehearsal := rule
	rehearsal.DryRun = true
	node := func(reason string, treatments ...triage.Treatment) triage.Node {
		return triage.Node{Name: "a", UID: "a", Treatments: treatments, Conditions: []triage.Condition{
			{Type: "Disk", Status: triage.True, Reason: reason, Transition: dawn}, // whose status never changes
		}}
	}
	noted := triage.Treatment{Rule: rule.ID, Since: dawn, HealthySince: dawn.Add(hour)}
	for name, test := range map[string]struct {
		happens func(core *triage.Core)
		want    time.Duration
	}{
		"after a restart it counts": {func(core *triage.Core) {
			core.Observe(dawn.Add(5*hour), node("", noted))
		}, hour},
		"after a restart, and the rule is told later, it counts": {func(core *triage.Core) {
			core.RemoveRule(dawn.Add(5*hour), rule.ID)
			core.Observe(dawn.Add(5*hour), node("", noted))
			mustSet(t, core, dawn.Add(6*hour), rule)
		}, hour},
		"the node was sick since then": {func(core *triage.Core) {
			core.Observe(dawn.Add(2*hour), node("Worn", noted))
			core.Observe(dawn.Add(3*hour), node("", noted))
		}, 3 * hour},
		"the node was sick since then, in a dry run": {func(core *triage.Core) {
			mustSet(t, core, dawn.Add(2*hour), rehearsal)
			core.Observe(dawn.Add(2*hour), node("Worn", noted))
			core.Observe(dawn.Add(3*hour), node("", noted))
			mustSet(t, core, dawn.Add(4*hour), rule)
		}, 3 * hour},
		"the treatment comes to a node that was well all the time": {func(core *triage.Core) {
			core.Observe(dawn.Add(2*hour), node(""))
			core.Observe(dawn.Add(3*hour), node("", noted))
		}, 3 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			core := triage.New()
			mustSet(t, core, dawn, rule)
			test.happens(core)
			plan, _ := core.Plan("a")
			if plan.Treatment == nil || plan.Reason.Code != triage.Recovering {
				t.Fatalf("%s, and the treatment is %+v", plan.Reason, plan.Treatment)
			}
			if got := plan.Treatment.HealthySince.Sub(dawn); got != test.want {
				t.Errorf("healthy since %s, want %s", got, test.want)
			}
		})
	}
}
