package check_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/probe/unit/unittest"
	"github.com/resourcestack/autohealer/internal/testkit"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func alwaysUnhealthy(context.Context) periodic.Result {
	return periodic.Result{Verdict: periodic.Unhealthy, Message: "it is down"}
}

func TestGuard(t *testing.T) {
	repairing := check.GuardConfig{Unit: "kubelet", Grace: time.Minute, Repair: true, Cooldown: 2 * time.Minute}
	old := noon.Add(-time.Hour)
	for _, test := range []struct {
		name      string
		care      check.GuardConfig
		boot      time.Time
		unit      unittest.Unit
		want      periodic.Verdict
		says      string
		restarted bool
	}{
		{"nothing is unhealthy while the node starts", check.GuardConfig{Grace: time.Minute}, noon.Add(-59 * time.Second), unittest.Unit{}, periodic.Unknown, "the node started at 2026-08-01T11:59:01Z", false},
		{"the grace of a node ends", check.GuardConfig{Grace: time.Minute}, noon.Add(-time.Minute), unittest.Unit{}, periodic.Unhealthy, "it is down", false},
		{"a boot in the future is ignored", check.GuardConfig{Grace: time.Minute}, noon.Add(time.Hour), unittest.Unit{}, periodic.Unhealthy, "", false},
		{"nothing is unhealthy while its unit starts", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: noon.Add(-5 * time.Second), Changed: noon.Add(-4 * time.Second)}, periodic.Unknown, "kubelet.service started at 2026-08-01T11:59:55Z", false},
		{"a unit that systemd keeps restarting is unhealthy", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: noon.Add(-5 * time.Second), Changed: noon.Add(-4 * time.Second), Restarts: 3}, periodic.Unhealthy, "after a cool-down of 2m0s", false},
		{"a failed unit is not starting", repairing, old, unittest.Unit{Load: "loaded", Active: "failed", Started: noon.Add(-5 * time.Second), Changed: noon.Add(-4 * time.Second)}, periodic.Unhealthy, "a restart is possible after", false},
		{"a unit is not restarted without repair", check.GuardConfig{Unit: "kubelet", Cooldown: time.Minute}, old, unittest.Unit{Load: "loaded", Active: "active", Changed: old}, periodic.Unhealthy, "it is down", false},
		{"a unit is restarted after its cool-down", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: noon.Add(-2*time.Minute - time.Second)}, periodic.Unhealthy, "kubelet.service was restarted", true},
		{"a unit is not restarted within its cool-down", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: noon.Add(-2 * time.Minute)}, periodic.Unhealthy, "not restarted: kubelet.service changed at 2026-08-01T11:58:00Z; a restart is possible after a cool-down of 2m0s", false},
		{"a failed unit is restarted", repairing, old, unittest.Unit{Load: "loaded", Active: "failed", Started: old, Changed: old}, periodic.Unhealthy, "was restarted", true},
		{"a unit that a user has stopped is not restarted", repairing, old, unittest.Unit{Load: "loaded", Active: "inactive", Started: old, Changed: old}, periodic.Unhealthy, "stopped by a user", false},
		{"a unit in transition is not restarted", repairing, old, unittest.Unit{Load: "loaded", Active: "deactivating", Started: old, Changed: old}, periodic.Unhealthy, "is deactivating", false},
		{"a unit with a pending job is not restarted", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: old, Job: 7}, periodic.Unhealthy, "about to change", false},
		{"a clock that was set back restarts nothing", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: noon.Add(time.Hour)}, periodic.Unhealthy, "in the future", false},
		{"a missing unit is reported", repairing, old, unittest.Unit{Load: "not-found", Active: "inactive"}, periodic.Unhealthy, "no unit kubelet.service", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			systemd := unittest.Start(t)
			systemd.Set("kubelet.service", test.unit)
			var told []finding.Event
			guard := check.Guard{
				GuardConfig: test.care, Boot: test.boot, Units: unit.New(systemd.Config()), Repairs: &check.Repairs{},
				Tell: func(e finding.Event) { told = append(told, e) }, Now: func() time.Time { return noon },
			}
			got := guard.Around(alwaysUnhealthy)(t.Context())
			if got.Verdict != test.want || !strings.Contains(got.Message, test.says) || got.Verdict == periodic.Unknown && got.Reason != "StartingUp" {
				t.Errorf("%+v", got)
			}
			restarted := len(systemd.Restarted()) > 0
			testkit.Check(t, restarted == test.restarted && (len(told) == 1) == test.restarted, "restarted %v, told %+v", restarted, told)
			testkit.Check(t, !test.restarted || told[0].Reason == "UnitRestarted" && strings.Contains(told[0].Message, "it is down"), "told %+v", told)
		})
	}
}

func TestAHealthyCheckNeedsNoSystemd(t *testing.T) {
	guard := check.Guard{GuardConfig: check.GuardConfig{Unit: "kubelet", Grace: time.Minute, Repair: true}, Boot: noon, Repairs: &check.Repairs{}, Now: func() time.Time { return noon }}
	for _, verdict := range []periodic.Verdict{periodic.Healthy, periodic.Unknown} {
		want := periodic.Result{Verdict: verdict, Reason: "R", Message: "m"}
		testkit.Same(t, guard.Around(func(context.Context) periodic.Result { return want })(t.Context()), want, "the result")
	}
}

func TestWithoutSystemdAnUnhealthyUnitIsNotRestarted(t *testing.T) {
	guard := check.Guard{
		GuardConfig: check.GuardConfig{Unit: "kubelet", Grace: time.Minute, Repair: true},
		Units:       unit.New(unit.Config{Bus: "/nowhere/bus", Private: "/nowhere/private"}),
		Repairs:     &check.Repairs{}, Now: time.Now,
	}
	got := guard.Around(alwaysUnhealthy)(t.Context())
	testkit.Check(t, got.Verdict == periodic.Unhealthy && strings.Contains(got.Message, "not restarted"), "%+v", got)
}
