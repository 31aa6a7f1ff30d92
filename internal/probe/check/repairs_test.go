package check_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// fakeSystemd is a systemd without a bus, whose restarts take a while.
type fakeSystemd struct {
	mu    sync.Mutex
	now   time.Time
	units map[string]unit.Unit
	until map[string]time.Time // when a restart is over
	// come decides the outcome of a restart: no change of the unit, or an error.
	come func(name string) (changes bool, err error)
	// What the test has observed.
	restarts map[string][]time.Time
	together int
}

func newFakeSystemd(names ...string) *fakeSystemd {
	w := &fakeSystemd{now: noon, units: map[string]unit.Unit{}, until: map[string]time.Time{}, restarts: map[string][]time.Time{}}
	for _, name := range names {
		w.units[name] = unit.Unit{Name: name, Load: "loaded", Active: "active", Started: noon.Add(-time.Hour), Changed: noon.Add(-time.Hour)}
	}
	return w
}

func (w *fakeSystemd) Look(_ context.Context, name string) (unit.Unit, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u, ok := w.units[unit.Name(name)]
	u.Busy = w.now.Before(w.until[u.Name])
	if !ok {
		return unit.Unit{}, errors.New("systemd has a cold")
	}
	return u, nil
}

func (w *fakeSystemd) Restart(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	working := 0
	for _, until := range w.until {
		if w.now.Before(until) {
			working++
		}
	}
	w.together = max(w.together, working+1)
	w.restarts[name] = append(w.restarts[name], w.now)
	if w.come != nil {
		if changes, err := w.come(name); err != nil || !changes {
			return err
		}
	}
	u := w.units[name]
	u.Changed, u.Started = w.now, w.now
	w.units[name] = u
	w.until[name] = w.now.Add(20 * time.Second)
	return nil
}

// guard returns a guard that uses the clock of the fake systemd.
func (w *fakeSystemd) guard(care check.GuardConfig, repairs *check.Repairs) check.Guard {
	return check.Guard{GuardConfig: care, Units: w, Repairs: repairs, Now: func() time.Time { return w.now }}
}

var kubelet = check.GuardConfig{Check: "kubelet", Unit: "kubelet", Grace: time.Minute, Repair: true, Cooldown: 2 * time.Minute}

// A restart may have no effect: the start limit is hit, a condition or a dependency of the unit
// fails, or systemd refuses. The unit does not change then, and its state does not tell how long
// ago the restart was.
func TestARestartWithoutEffectHasACooldown(t *testing.T) {
	for name, refusal := range map[string]error{"it changes nothing": nil, "it is refused": errors.New("no")} {
		for _, folder := range []string{"", t.TempDir() + "/repairs"} {
			t.Run(name+map[bool]string{true: ", and the agent is started anew each time"}[folder != ""], func(t *testing.T) {
				w := newFakeSystemd("kubelet.service")
				w.come = func(string) (bool, error) { return false, refusal }
				told := 0
				repairs := &check.Repairs{Folder: folder}
				for ; w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(10 * time.Second) {
					if folder != "" {
						repairs = &check.Repairs{Folder: folder}
					}
					guard := w.guard(kubelet, repairs)
					guard.Tell = func(finding.Event) { told++ }
					testkit.MustBeSame(t, guard.Around(alwaysUnhealthy)(t.Context()).Verdict, periodic.Unhealthy, "the verdict")
				}
				var after []time.Duration
				for _, at := range w.restarts["kubelet.service"] {
					after = append(after, at.Sub(noon))
				}
				t.Logf("restarts after %v", after)
				if len(after) != 5 || told != 5 { // at 0, 2, 2+4, ... minutes, plus a run each
					t.Errorf("%d restarts and %d events in an hour", len(after), told)
				}
			})
		}
	}
}

// Without a cool-down, which the flags of a program allow, a short minimum applies.
func TestThereIsAMinimumCooldown(t *testing.T) {
	for _, cooldown := range []time.Duration{-time.Hour, 0, time.Millisecond} {
		w := newFakeSystemd("kubelet.service")
		w.come = func(string) (bool, error) { return false, nil }
		guard := w.guard(check.GuardConfig{Unit: "kubelet", Repair: true, Cooldown: cooldown}, &check.Repairs{})
		for ; w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(time.Second) {
			guard.Around(alwaysUnhealthy)(t.Context())
		}
		if restarts := len(w.restarts["kubelet.service"]); restarts != 9 { // after 0, 10, 10+20, ... seconds
			t.Errorf("a cool-down of %s: %d restarts in an hour", cooldown, restarts)
		}
	}
}

// A restart must not hide a problem that it does not fix: the unit stays unhealthy from the first
// bad answer until it answers.
func TestRestartsDoNotHideAnUnhealthyUnit(t *testing.T) {
	w := newFakeSystemd("kubelet.service")
	guard := w.guard(kubelet, &check.Repairs{})
	for ; w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(10 * time.Second) {
		testkit.MustBeSame(t, guard.Around(alwaysUnhealthy)(t.Context()).Verdict, periodic.Unhealthy, "the verdict after %s", w.now.Sub(noon))
	}
	testkit.Same(t, len(w.restarts["kubelet.service"]), 5, "restarts in an hour")
}

func alwaysHealthy(context.Context) periodic.Result {
	return periodic.Result{Verdict: periodic.Healthy}
}

// said is an answer at a time after the restart.
type said struct {
	after  time.Duration
	answer periodic.Check
}

// After the unit was healthy for long enough, everything is as at first: the cool-down is short
// again, and a start has its grace period.
func TestAttemptsAreResetAfterAHealthyTime(t *testing.T) {
	other, slow := kubelet, kubelet
	other.Check = "another check of the kubelet"
	slow.Grace = 20 * time.Minute
	for _, test := range []struct {
		name     string
		by       check.GuardConfig
		says     []said
		forgiven bool
	}{
		{"it was well for its cool-down", kubelet, []said{{time.Second, alwaysHealthy}, {time.Minute, alwaysHealthy}, {8*time.Minute + time.Second, alwaysHealthy}}, true},
		{"it was well once", kubelet, []said{{time.Second, alwaysHealthy}}, false},
		{"it was well for less", kubelet, []said{{time.Second, alwaysHealthy}, {8 * time.Minute, alwaysHealthy}}, false},
		{"it was unhealthy in between", kubelet, []said{{time.Second, alwaysHealthy}, {time.Minute, alwaysUnhealthy}, {2 * time.Minute, alwaysHealthy}, {9 * time.Minute, alwaysHealthy}}, false},
		{"it was well for less than its grace", slow, []said{{time.Second, alwaysHealthy}, {20 * time.Minute, alwaysHealthy}}, false},
		{"it was well for its grace", slow, []said{{time.Second, alwaysHealthy}, {20*time.Minute + time.Second, alwaysHealthy}}, true},
		{"that another finds it well says nothing", other, []said{{time.Second, alwaysHealthy}, {16 * time.Minute, alwaysHealthy}}, false},
		{"another may, when the one has not been heard of for long", other, []said{{17 * time.Minute, alwaysHealthy}, {25 * time.Minute, alwaysHealthy}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFakeSystemd("kubelet.service")
			folder := t.TempDir() + "/repairs"
			for range 3 {
				w.now = w.now.Add(9 * time.Minute)
				w.guard(kubelet, &check.Repairs{Folder: folder}).Around(alwaysUnhealthy)(t.Context())
			}
			testkit.MustBeSame(t, len(w.restarts["kubelet.service"]), 3, "restarts: %v", w.restarts)
			for last, i := w.now, 0; i < len(test.says); i++ {
				w.now = last.Add(test.says[i].after)
				w.guard(test.by, &check.Repairs{Folder: folder}).Around(test.says[i].answer)(t.Context())
			}
			repairs := &check.Repairs{Folder: folder}

			u := w.units["kubelet.service"]
			u.Started, u.Changed = w.now, w.now
			w.units["kubelet.service"] = u
			w.now = w.now.Add(30 * time.Second)
			got := w.guard(kubelet, repairs).Around(alwaysUnhealthy)(t.Context())
			forgiven := got.Verdict == periodic.Unknown
			testkit.Check(t, forgiven == test.forgiven, "in its grace: %+v", got)
			w.now = w.now.Add(2 * time.Minute)
			w.guard(kubelet, repairs).Around(alwaysUnhealthy)(t.Context())
			forgiven = len(w.restarts["kubelet.service"]) == 4
			testkit.Check(t, forgiven == test.forgiven, "after its cool-down: %v", w.restarts)
		})
	}
}

// A changed message is reported again. The message changes when the guard acts, not at every check.
func TestTheMessageSaysWhatWasDone(t *testing.T) {
	w := newFakeSystemd("kubelet.service")
	u := w.units["kubelet.service"]
	u.Changed = noon.Add(-time.Minute)
	w.units["kubelet.service"] = u
	examine := w.guard(kubelet, &check.Repairs{}).Around(alwaysUnhealthy)
	var told []string
	for ; w.now.Before(noon.Add(4 * time.Minute)); w.now = w.now.Add(time.Second) {
		if message := examine(t.Context()).Message; len(told) == 0 || told[len(told)-1] != message {
			told = append(told, message)
		}
	}
	want := []string{
		"it is down; not restarted: kubelet.service changed at 2026-08-01T11:59:00Z; a restart is possible after a cool-down of 2m0s",
		"it is down; kubelet.service was restarted",
		"it is down; not restarted: kubelet.service is about to change",
		"it is down; not restarted: kubelet.service was restarted at 2026-08-01T12:01:01Z (without success); the next restart is possible after a cool-down of 2m0s",
		"it is down; kubelet.service was restarted",
	}
	testkit.Check(t, len(told) >= len(want) && slices.Equal(told[:len(want)], want) && len(told) <= len(want)+2, "told\n%s", strings.Join(told, "\n"))
}

// A short healthy time after each restart does not reset the attempts. It also has no grace period,
// which would hide that the unit is unhealthy again.
func TestTheCooldownGrowsDespiteShortHealthyTimes(t *testing.T) {
	w := newFakeSystemd("kubelet.service")
	examine := w.guard(kubelet, &check.Repairs{}).Around(func(ctx context.Context) periodic.Result {
		if w.now.Sub(w.units["kubelet.service"].Changed) < 30*time.Second {
			return alwaysHealthy(ctx)
		}
		return alwaysUnhealthy(ctx)
	})
	for ; w.now.Before(noon.Add(24 * time.Hour)); w.now = w.now.Add(10 * time.Second) {
		got := examine(t.Context())
		testkit.Require(t, got.Verdict != periodic.Unknown, "after %s: %+v", w.now.Sub(noon), got)
	}
	if restarts := len(w.restarts["kubelet.service"]); restarts != 28 { // 5 in the first hour, then one an hour
		t.Errorf("%d restarts in a day", restarts)
	}
}

// Two rules of a unit that find it unhealthy at the same moment restart it once: the second looks
// again after the first has acted.
func TestTwoRulesOfAUnitRestartItOnce(t *testing.T) {
	w := newFakeSystemd("kubelet.service")
	repairs := &check.Repairs{}
	first, second := kubelet, kubelet
	first.Check, second.Check = "first", "second"
	late := w.guard(second, repairs)
	late.Now = func() time.Time { // asked after everything was looked at
		if len(w.restarts) == 0 {
			w.guard(first, repairs).Around(alwaysUnhealthy)(t.Context())
			w.now = w.now.Add(30 * time.Second) // the unit is back
		}
		return w.now
	}
	got := late.Around(alwaysUnhealthy)(t.Context())
	restarts := len(w.restarts["kubelet.service"])
	testkit.Check(t, restarts == 1 && strings.Contains(got.Message, "not restarted: "), "%d restarts: %+v", restarts, got)
}

// The message says why a unit is not restarted.
func TestTheMessageSaysWhyAUnitIsNotRestarted(t *testing.T) {
	folder := t.TempDir()
	holds := func(name, text string) string {
		path := filepath.Join(folder, name)
		testkit.Must(t, os.MkdirAll(path, 0o700))
		testkit.Must(t, os.WriteFile(filepath.Join(path, "tried.json"), []byte(text), 0o600))
		return path
	}
	for _, test := range []struct{ name, folder, says string }{
		{"a unit that was restarted cannot be looked at", holds("a", `{"gone.service":{"at":"2026-08-01T11:59:00Z"}}`), "gone.service is back: systemd has a cold"},
		{"a unit that was restarted is away", holds("b", `{"fast.service":{"at":"2026-08-01T11:59:30Z"},"slow.service":{"at":"2026-08-01T11:59:00Z"}}`), "slow.service is being restarted"},
		{"the clock was set back", holds("c", `{"kubelet.service":{"at":"2026-08-01T12:00:01Z"}}`), "in the future"},
		{"it was tried just now", holds("d", `{"kubelet.service":{"at":"2026-08-01T11:55:00Z","times":3}}`), "restarted at 2026-08-01T11:55:00Z (3 times without success); the next restart is possible after a cool-down of 8m0s"},
		{"what was tried cannot be read", holds("e", `{"kubelet`), "tried.json: unexpected end of JSON input; remove it"},
		{"what is tried cannot be noted", "/proc/self/nowhere", "making the folder of repairs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFakeSystemd("kubelet.service", "fast.service", "slow.service")
			w.until["slow.service"] = noon.Add(time.Second)
			got := w.guard(kubelet, &check.Repairs{Folder: test.folder}).Around(alwaysUnhealthy)(t.Context())
			testkit.Check(t, got.Verdict == periodic.Unhealthy && strings.Contains(got.Message, "not restarted: ") && strings.Contains(got.Message, test.says),
				"%+v", got)
			testkit.Check(t, len(w.restarts) == 0, "%v", w.restarts)
		})
	}
}

// A unit that does not come back, for example a kubelet without its runtime, does not prevent other
// restarts forever.
func TestAUnitThatDoesNotComeBackBlocksOthersForALimitedTime(t *testing.T) {
	w := newFakeSystemd("kubelet.service", "containerd.service")
	repairs := &check.Repairs{}
	w.guard(kubelet, repairs).Around(alwaysUnhealthy)(t.Context())
	w.until["kubelet.service"] = noon.Add(24 * time.Hour)
	containerd := check.GuardConfig{Unit: "containerd", Repair: true, Cooldown: time.Minute}
	for w.now = noon.Add(10 * time.Second); len(w.restarts["containerd.service"]) == 0; w.now = w.now.Add(10 * time.Second) {
		testkit.Require(t, !w.now.After(noon.Add(time.Hour)), "containerd was not restarted within an hour")
		w.guard(containerd, repairs).Around(alwaysUnhealthy)(t.Context())
	}
	testkit.Same(t, w.restarts["containerd.service"][0].Sub(noon), 5*time.Minute, "containerd is restarted after")
}

// For any failures, any outcomes of restarts and any restarts of the agent: one unit restarts at a
// time, and none within its cool-down. The cool-down doubles with each attempt until the unit was
// healthy for that long.
func TestRestartsRespectLockAndCooldown(t *testing.T) {
	seen, doubled, forgiven := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		folder := testkit.Value(os.MkdirTemp("", "repairs-")).Must(rt)
		defer os.RemoveAll(folder)
		names := []string{"kubelet.service", "containerd.service", "kube-proxy.service"}
		w := newFakeSystemd(names...)
		lame := rapid.SampledFrom([]string{"", "kubelet.service", "containerd.service"}).Draw(rt, "lame")
		w.come = func(name string) (bool, error) { return name != lame, nil }
		repairs := &check.Repairs{Folder: folder}
		cooldown := time.Duration(rapid.IntRange(30, 300).Draw(rt, "cooldown")) * time.Second
		wellSince := map[string]time.Time{}
		vain := map[string]int{} // attempts that were not reset
		told := map[string]int{}
		rest := func(name string) time.Duration { return min(cooldown<<max(vain[name]-1, 0), time.Hour) }
		well := ""
		for range rapid.IntRange(1, 60).Draw(rt, "rounds") {
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second)
			if rapid.IntRange(0, 9).Draw(rt, "anew") == 0 {
				repairs = &check.Repairs{Folder: folder}
			}
			if rapid.IntRange(0, 4).Draw(rt, "turns") == 0 {
				well = rapid.SampledFrom(append([]string{""}, names...)).Draw(rt, "well")
			}
			for _, name := range names {
				switch since := wellSince[name]; {
				case name != well:
					delete(wellSince, name)
				case since.IsZero():
					wellSince[name] = w.now
				case w.now.Sub(since) >= rest(name) && vain[name] > 0:
					vain[name] = 0
					forgiven++
				}
			}
			if well != "" {
				care := check.GuardConfig{Check: well, Unit: well, Repair: true, Cooldown: cooldown}
				w.guard(care, repairs).Around(alwaysHealthy)(t.Context())
			}
			var all sync.WaitGroup
			for _, name := range names {
				if name == well {
					continue
				}
				care := check.GuardConfig{Check: name, Unit: name, Repair: true, Cooldown: cooldown}
				for range 2 {
					all.Go(func() { w.guard(care, repairs).Around(alwaysUnhealthy)(t.Context()) })
				}
			}
			all.Wait()
			for _, name := range names {
				times := w.restarts[name]
				if len(times) == told[name] {
					continue
				}
				if len(times) > told[name]+1 {
					rt.Fatalf("%s was restarted %d times at once", name, len(times)-told[name])
				}
				told[name]++
				seen++
				if vain[name] > 1 {
					doubled++
				}
				if last := times[len(times)-1]; len(times) > 1 && last.Sub(times[len(times)-2]) <= rest(name) {
					rt.Fatalf("%s was restarted %s after the last time, %d in vain, with a cool-down of %s", name, last.Sub(times[len(times)-2]), vain[name], cooldown)
				}
				vain[name]++
			}
		}
		testkit.Require(rt, w.together <= 1, "%d units were being restarted at once", w.together)
	})
	t.Logf("saw %d restarts, %d of them after others in vain, which were forgiven %d times", seen, doubled, forgiven)
	testkit.Check(t, seen != 0 && doubled != 0 && forgiven != 0, "nothing was restarted, or never in vain, or never forgiven")
}

// A process knows of the restarts of another process, and waits for them.
func TestProcessesRestartOneUnitAtATime(t *testing.T) {
	folder := t.TempDir() + "/repairs"
	w := newFakeSystemd("kubelet.service", "containerd.service")
	inside := make(chan struct{})
	leave := make(chan struct{})
	w.come = func(string) (bool, error) {
		close(inside)
		<-leave
		return true, nil
	}
	var first sync.WaitGroup
	// A kernel lock belongs to the open file, so a second Repairs acts like another process.
	first.Go(func() { w.guard(kubelet, &check.Repairs{Folder: folder}).Around(alwaysUnhealthy)(t.Context()) })
	<-inside
	idle := newFakeSystemd("containerd.service")
	containerd := check.GuardConfig{Unit: "containerd", Repair: true, Cooldown: time.Minute}
	testkit.Contains(t, idle.guard(containerd, &check.Repairs{Folder: folder}).Around(alwaysUnhealthy)(t.Context()).Message, "not restarted: another unit is being restarted",
		"a guard with the same folder")
	close(leave)
	first.Wait()
	w.now = w.now.Add(time.Second)
	testkit.Contains(t, w.guard(containerd, &check.Repairs{Folder: folder}).Around(alwaysUnhealthy)(t.Context()).Message, "not restarted: kubelet.service is being restarted",
		"a guard with the same folder")
}
