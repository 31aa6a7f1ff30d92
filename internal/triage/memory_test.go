package triage_test

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// TestRemember shows a condition to a core at two and at three hours. At four hours it shows
// the condition to a new core with the memories of the first.
func TestRemember(t *testing.T) {
	const hour, never = time.Hour, time.Duration(-1)
	for name, test := range map[string]struct {
		was, is      triage.Status
		before, then time.Duration // the transition times
		remembers    bool
		since, anew  time.Duration // start of the clock in both cores
	}{
		"the transition time moved with the status":                {triage.False, triage.True, 0, 3 * hour, false, 3 * hour, 3 * hour},
		"the watch was late":                                       {triage.False, triage.True, 0, 3*hour - time.Minute, false, 3*hour - time.Minute, 3*hour - time.Minute},
		"the reporter's clock is ahead":                            {triage.False, triage.True, 0, 3*hour + time.Minute, false, 3 * hour, 3*hour + time.Minute},
		"the transition time is in the future":                     {triage.False, triage.True, 0, 9 * hour, true, 3 * hour, 3 * hour},
		"the condition is reported late":                           {triage.False, triage.True, 0, 2*hour + time.Minute, false, 2*hour + time.Minute, 2*hour + time.Minute},
		"just after it was reported as healthy":                    {triage.False, triage.True, 0, 2*hour - time.Second, false, 2 * hour, 2*hour - time.Second},
		"before it was last reported as healthy":                   {triage.False, triage.True, 0, 2*hour - time.Minute, true, 2 * hour, 2 * hour},
		"unhealthy when first observed":                            {triage.True, triage.True, 0, 0, false, 0, 0},
		"two changes in one second":                                {triage.False, triage.True, 3*hour - time.Second, 3*hour - time.Second, false, 3 * hour, 3*hour - time.Second},
		"the transition time did not move":                         {triage.False, triage.True, 0, 0, true, 2 * hour, 2 * hour},
		"the transition time went back":                            {triage.False, triage.True, hour, 0, true, 2 * hour, 2 * hour},
		"the transition time was removed":                          {triage.False, triage.True, 0, never, true, 3 * hour, 3 * hour},
		"there was never a transition time":                        {triage.False, triage.True, never, never, true, 3 * hour, 3 * hour},
		"unhealthy when first observed, without a transition time": {triage.True, triage.True, never, never, true, 2 * hour, 2 * hour},
		"the transition time moved while it was unhealthy":         {triage.True, triage.True, 0, hour, true, 0, 0},
		"the condition was missing, which also matches":            {triage.Missing, triage.True, never, 3 * hour, true, 2 * hour, 2 * hour},
		"the condition is missing":                                 {triage.False, triage.Missing, 0, never, false, 3 * hour, 4 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			node := func(status triage.Status, stamp time.Duration, memories []triage.Memory) triage.Node {
				n := triage.Node{Name: "n", UID: "u", Memories: memories}
				if status != triage.Missing {
					n.Conditions = []triage.Condition{{Type: "Disk", Status: status}}
					if stamp != never {
						n.Conditions[0].Transition = startTime.Add(stamp)
					}
				}
				return n
			}
			start := func(core *triage.Core) (time.Duration, []triage.Memory) {
				plan, _ := core.Plan("n")
				return plan.Reason.Since.Sub(startTime), plan.Remember
			}
			core := waitingCore(t, startTime.Add(2*hour))
			core.Observe(startTime.Add(2*hour), node(test.was, test.before, nil))
			changed := node(test.is, test.then, nil)
			changed.Previous = startTime.Add(2 * hour)
			core.Observe(startTime.Add(3*hour), changed)
			since, memories := start(core)
			if since != test.since || len(memories) > 0 != test.remembers {
				t.Errorf("since %s, to be remembered: %v; want %s, %t", since, memories, test.since, test.remembers)
			}
			successor := waitingCore(t, startTime.Add(4*hour))
			successor.Observe(startTime.Add(4*hour), node(test.is, test.then, memories))
			if since, _ := start(successor); since != test.anew {
				t.Errorf("after a restart since %s, want %s", since, test.anew)
			}
		})
	}
}

// waitingCore returns a core with a rule that matches a bad or missing disk after a day.
func waitingCore(t *testing.T, now time.Time) *triage.Core {
	t.Helper()
	core := triage.New()
	if err := core.SetRule(now, triage.Rule{
		ID:    triage.RuleID{Kind: policykind.ConditionSet, Name: "a"},
		Stage: policykind.StageTaint,
		When: triage.When{Signals: []triage.Signal{
			{Condition: "Disk", Status: triage.True, For: 24 * time.Hour},
			{Condition: "Disk", Status: triage.Missing, For: 24 * time.Hour},
		}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "unhealthy", Effect: triage.NoSchedule}},
	}); err != nil {
		t.Fatal(err)
	}
	return core
}
