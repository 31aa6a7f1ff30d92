package dialect_test

import (
	"reflect"
	"testing"
	"time"
	_ "time/tzdata" // the test does not depend on the time zones of the system

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// setWith is a valid set with windows.
func setWith(windows ...dialect.Window) dialect.ConditionSet {
	return dialect.ConditionSet{
		Name: "deadlock", TaintKey: "example.com/deadlock", Effect: "NoExecute",
		Conditions: []dialect.SetCondition{{Type: "KernelDeadlock", Status: "True"}}, Windows: windows,
	}
}

// Every kind of policy has windows. They are open while one of them is.
func TestWindows(t *testing.T) {
	windows := testkit.Value(dialect.ParseWindows("0 22 * * 1-5 for 8h in Europe/Berlin; 0 0 * * 6 for 48h;")).Must(t)
	statement := dialect.RepairStatement{Type: "Ready", Status: "False", Toleration: "10m"}
	for name, given := range map[string]compiler{
		"ConditionSet":    setWith(windows...),
		"NodeHealthCheck": dialect.NodeHealthCheck{Name: "a", Steps: []dialect.RemediationStep{{Template: "reboot"}}, Windows: windows},
		"Repair":          dialect.Repair{Name: "a", Statements: []dialect.RepairStatement{statement}, Windows: windows},
		"ReadyTimeout":    dialect.ReadyTimeout{Name: "a", Windows: windows},
	} {
		t.Run(name, func(t *testing.T) {
			rule := testkit.Value(given.Rule()).Must(t)
			again := testkit.Value(given.Rule()).Must(t)
			testkit.Check(t, reflect.DeepEqual(rule, again), "the same windows are not deeply equal, so the core would set the rule again")
			testkit.Same(t, rule.Window.String(), "0 22 * * 1-5 for 8h in Europe/Berlin; 0 0 * * 6 for 48h", "the name of the windows")
			for _, test := range []struct {
				at    string
				open  bool
				until string
			}{
				{"2026-11-18T12:00:00Z", false, "2026-11-18T21:00:00Z"}, // Wednesday
				{"2026-11-18T21:00:00Z", true, "2026-11-19T05:00:00Z"},
				{"2026-11-20T22:00:00Z", true, "2026-11-21T05:00:00Z"},
				{"2026-11-21T00:00:00Z", true, "2026-11-23T00:00:00Z"}, // both are open
				{"2026-11-23T00:00:00Z", false, "2026-11-23T21:00:00Z"},
			} {
				at := testkit.Value(time.Parse(time.RFC3339, test.at)).Must(t)
				want := testkit.Value(time.Parse(time.RFC3339, test.until)).Must(t)
				open, until := rule.Window.Open(at)
				testkit.Check(t, open == test.open && until.Equal(want), "at %s: open %t until %s, want %t until %s", test.at, open, until, test.open, want)
			}
		})
	}
	rule := testkit.Value(setWith().Rule()).Must(t)
	testkit.Check(t, rule.Window == nil, "a set without windows has the window %v", rule.Window)
}

func TestWindowRefuses(t *testing.T) {
	with := func(schedule, zone, duration string) dialect.ConditionSet {
		return setWith(dialect.Window{Schedule: "0 0 * * *", Duration: "1h"}, dialect.Window{Schedule: schedule, TimeZone: zone, Duration: duration})
	}
	checkRefusals(t, []refusal{
		{"no schedule", with("", "", "1h"), "spec.windows[1].schedule", "", "want five fields"},
		{"four fields", with("0 0 * *", "", "1h"), "spec.windows[1].schedule", "0 0 * *", "want five fields"},
		{"a minute that does not exist", with("60 0 * * *", "", "1h"), "spec.windows[1].schedule", "60 0 * * *", "above maximum"},
		{"a date that never comes", with("0 0 30 2 *", "", "1h"), "spec.windows[1].schedule", "0 0 30 2 *", "never comes"},
		{"an empty list", with(", 0 * * *", "", "1h"), "spec.windows[1].schedule", ", 0 * * *", "never comes"},
		{"times without a calendar", with("@every 1h", "", "1h"), "spec.windows[1].schedule", "@every 1h", "no fixed times"},
		{"a time zone in the schedule", with("CRON_TZ=UTC 0 0 * * *", "", "1h"), "spec.windows[1].schedule", "CRON_TZ=UTC 0 0 * * *", "want the time zone in timeZone"},
		{"an unknown time zone", with("0 0 * * *", "Europe/Bielefeld", "1h"), "spec.windows[1].timeZone", "Europe/Bielefeld", "for example UTC or Europe/Berlin"},
		{"the time zone of the machine", with("0 0 * * *", "Local", "1h"), "spec.windows[1].timeZone", "Local", "for example UTC or Europe/Berlin"},
		{"no duration", with("0 0 * * *", "", ""), "spec.windows[1].duration", "", "more than zero"},
		{"a duration of zero", with("0 0 * * *", "", "0s"), "spec.windows[1].duration", "0s", "more than zero"},
		{"a duration of more than a year", with("0 0 * * *", "", "8761h"), "spec.windows[1].duration", "8761h", "at most 8760h"},
		{"too many", setWith(make([]dialect.Window, 17)...), "spec.windows", "17", "at most 16"},
	})
	testkit.Check(t, testkit.Value(with("0 0 29 2 *", "UTC", "8760h").Rule()).Must(t).Window != nil, "a leap day is refused")
	for _, text := range []string{"", "0 22 * * 1-5", "0 22 * * 1-5 for 4h; 22:00-23:00"} {
		testkit.Value(dialect.ParseWindows(text)).Fails(t, "want a schedule and a duration")
	}
}

func TestUrgent(t *testing.T) {
	repair := dialect.Repair{
		Name:       "default",
		Statements: []dialect.RepairStatement{{Type: "Ready", Status: "False", Toleration: "10m"}, {Type: "Ready", Status: "Unknown", Toleration: "10m"}},
		Policies: []dialect.RepairPolicy{
			{ConditionType: "Ready", Toleration: "30m", Urgent: true},
			{ConditionType: "Ready", ConditionStatus: "Unknown", Toleration: "1h"},
			{ConditionType: "Ready", Reason: "DiskGone", Toleration: "1m"},
		},
	}
	var urgent []string
	for _, s := range testkit.Value(repair.Rule()).Must(t).When.Signals {
		if s.Urgent {
			urgent = append(urgent, s.Condition+"="+s.Status.String()+s.Reason)
		}
	}
	testkit.Equal(t, "the urgent conditions", []string{"Ready=False"}, urgent)
	check := dialect.NodeHealthCheck{Name: "a", Steps: []dialect.RemediationStep{{Template: "reboot", Timeout: "5m", Urgent: true}, {Template: "replace"}}}
	ladder := testkit.Value(check.Rule()).Must(t).Response.Ladder
	testkit.Equal(t, "the steps", []triage.Step{{Action: triage.Remediate, Ref: "reboot", Timeout: 5 * time.Minute, Urgent: true}, {Action: triage.Remediate, Ref: "replace"}}, ladder)
}
