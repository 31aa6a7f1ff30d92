package check_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/probe/unit/unittest"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func ill(context.Context) checkresult.Result {
	return checkresult.Result{Verdict: checkresult.Sick, Message: "it is down"}
}

func TestGuard(t *testing.T) {
	repairing := check.Care{Unit: "kubelet", Grace: time.Minute, Repair: true, Cooldown: 2 * time.Minute}
	old := noon.Add(-time.Hour)
	for _, test := range []struct {
		name      string
		care      check.Care
		boot      time.Time
		unit      unittest.Unit
		want      checkresult.Verdict
		says      string
		restarted bool
	}{
		{"nothing is sick while the node starts", check.Care{Grace: time.Minute}, noon.Add(-59 * time.Second), unittest.Unit{}, checkresult.Unknown, "the node started at 2026-08-01T11:59:01Z", false},
		{"the grace of a node ends", check.Care{Grace: time.Minute}, noon.Add(-time.Minute), unittest.Unit{}, checkresult.Sick, "it is down", false},
		{"a boot in the future is not believed", check.Care{Grace: time.Minute}, noon.Add(time.Hour), unittest.Unit{}, checkresult.Sick, "", false},
		{"nothing is sick while its unit starts", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: noon.Add(-5 * time.Second), Changed: noon.Add(-4 * time.Second)}, checkresult.Unknown, "kubelet.service started at 2026-08-01T11:59:55Z", false},
		{"what systemd keeps restarting is sick", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: noon.Add(-5 * time.Second), Changed: noon.Add(-4 * time.Second), Restarts: 3}, checkresult.Sick, "after a cool-down of 2m0s", false},
		{"what has failed is not starting", repairing, old, unittest.Unit{Load: "loaded", Active: "failed", Started: noon.Add(-5 * time.Second), Changed: noon.Add(-4 * time.Second)}, checkresult.Sick, "a restart is possible after", false},
		{"nothing is repaired unless it is asked for", check.Care{Unit: "kubelet", Cooldown: time.Minute}, old, unittest.Unit{Load: "loaded", Active: "active", Changed: old}, checkresult.Sick, "it is down", false},
		{"it is repaired after its cool-down", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: noon.Add(-2*time.Minute - time.Second)}, checkresult.Sick, "kubelet.service was restarted", true},
		{"it is not repaired within its cool-down", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: noon.Add(-2 * time.Minute)}, checkresult.Sick, "not restarted: kubelet.service changed at 2026-08-01T11:58:00Z; a restart is possible after a cool-down of 2m0s", false},
		{"what has failed is repaired", repairing, old, unittest.Unit{Load: "loaded", Active: "failed", Started: old, Changed: old}, checkresult.Sick, "was restarted", true},
		{"what somebody has stopped stays so", repairing, old, unittest.Unit{Load: "loaded", Active: "inactive", Started: old, Changed: old}, checkresult.Sick, "stopped by a user", false},
		{"what is on its way is not disturbed", repairing, old, unittest.Unit{Load: "loaded", Active: "deactivating", Started: old, Changed: old}, checkresult.Sick, "is deactivating", false},
		{"what systemd is about to do is not disturbed", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: old, Job: 7}, checkresult.Sick, "about to change", false},
		{"a clock that was set back restarts nothing", repairing, old, unittest.Unit{Load: "loaded", Active: "active", Started: old, Changed: noon.Add(time.Hour)}, checkresult.Sick, "in the future", false},
		{"a unit that is not there is said", repairing, old, unittest.Unit{Load: "not-found", Active: "inactive"}, checkresult.Sick, "no unit kubelet.service", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			systemd := unittest.Start(t)
			systemd.Set("kubelet.service", test.unit)
			var told []finding.Event
			guard := check.Guard{
				Care: test.care, Boot: test.boot, Units: unit.New(systemd.Config()), Repairs: &check.Repairs{},
				Tell: func(e finding.Event) { told = append(told, e) }, Now: func() time.Time { return noon },
			}
			got := guard.Around(ill)(t.Context())
			if got.Verdict != test.want || !strings.Contains(got.Message, test.says) || got.Verdict == checkresult.Unknown && got.Reason != "StartingUp" {
				t.Errorf("%+v", got)
			}
			if restarted := len(systemd.Restarted()) > 0; restarted != test.restarted || (len(told) == 1) != test.restarted {
				t.Errorf("restarted %v, told %+v", restarted, told)
			}
			if test.restarted && (told[0].Reason != "UnitRestarted" || !strings.Contains(told[0].Message, "it is down")) {
				t.Errorf("told %+v", told)
			}
		})
	}
}

func TestWhatIsWellNeedsNoSystemd(t *testing.T) {
	guard := check.Guard{Care: check.Care{Unit: "kubelet", Grace: time.Minute, Repair: true}, Boot: noon, Repairs: &check.Repairs{}, Now: func() time.Time { return noon }}
	for _, verdict := range []checkresult.Verdict{checkresult.Well, checkresult.Unknown} {
		want := checkresult.Result{Verdict: verdict, Reason: "R", Message: "m"}
		if got := guard.Around(func(context.Context) checkresult.Result { return want })(t.Context()); got != want {
			t.Errorf("%+v", got)
		}
	}
}

func TestWithoutSystemdItIsSickAndNotRestarted(t *testing.T) {
	guard := check.Guard{
		Care:    check.Care{Unit: "kubelet", Grace: time.Minute, Repair: true},
		Units:   unit.New(unit.Config{Bus: "/nowhere/bus", Private: "/nowhere/private"}),
		Repairs: &check.Repairs{}, Now: time.Now,
	}
	if got := guard.Around(ill)(t.Context()); got.Verdict != checkresult.Sick || !strings.Contains(got.Message, "not restarted") {
		t.Errorf("%+v", got)
	}
}
