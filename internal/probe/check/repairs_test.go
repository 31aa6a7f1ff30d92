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
	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// ward is a systemd without a bus, whose restarts take a while.
type ward struct {
	mu    sync.Mutex
	now   time.Time
	units map[string]unit.Unit
	until map[string]time.Time // a restart is over
	// come says what comes of a restart: nothing, if the unit stays as it was; or an error.
	come func(name string) (changes bool, err error)
	// What has been seen.
	restarts map[string][]time.Time
	together int
}

func newWard(names ...string) *ward {
	w := &ward{now: noon, units: map[string]unit.Unit{}, until: map[string]time.Time{}, restarts: map[string][]time.Time{}}
	for _, name := range names {
		w.units[name] = unit.Unit{Name: name, Load: "loaded", Active: "active", Started: noon.Add(-time.Hour), Changed: noon.Add(-time.Hour)}
	}
	return w
}

func (w *ward) Look(_ context.Context, name string) (unit.Unit, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u, ok := w.units[unit.Name(name)]
	u.Busy = w.now.Before(w.until[u.Name])
	if !ok {
		return unit.Unit{}, errors.New("systemd has a cold")
	}
	return u, nil
}

func (w *ward) Restart(_ context.Context, name string) error {
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

// guard is one whose clock is the ward's.
func (w *ward) guard(care check.Care, repairs *check.Repairs) check.Guard {
	return check.Guard{Care: care, Units: w, Repairs: repairs, Now: func() time.Time { return w.now }}
}

var kubelet = check.Care{Check: "kubelet", Unit: "kubelet", Grace: time.Minute, Repair: true, Cooldown: 2 * time.Minute}

// A restart may come to nothing: the start limit is hit, a condition of the unit is not
// met, one that it requires fails; or systemd refuses. The unit does not change then, and
// what systemd knows of it says nothing about how long ago that was.
func TestARestartThatChangesNothingHasItsCooldown(t *testing.T) {
	for name, refusal := range map[string]error{"it changes nothing": nil, "it is refused": errors.New("no")} {
		for _, folder := range []string{"", t.TempDir() + "/repairs"} {
			t.Run(name+map[bool]string{true: ", and the agent is started anew each time"}[folder != ""], func(t *testing.T) {
				w := newWard("kubelet.service")
				w.come = func(string) (bool, error) { return false, refusal }
				told := 0
				repairs := &check.Repairs{Folder: folder}
				for ; w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(10 * time.Second) {
					if folder != "" {
						repairs = &check.Repairs{Folder: folder}
					}
					guard := w.guard(kubelet, repairs)
					guard.Tell = func(finding.Event) { told++ }
					if got := guard.Around(ill)(t.Context()); got.Verdict != checkresult.Sick {
						t.Fatalf("%+v", got)
					}
				}
				var after []time.Duration
				for _, at := range w.restarts["kubelet.service"] {
					after = append(after, at.Sub(noon))
				}
				t.Logf("restarts after %v", after)
				if len(after) != 5 || told != 5 { // 0, 2, 2+4, ... minutes and a round each
					t.Errorf("%d restarts and %d events in an hour", len(after), told)
				}
			})
		}
	}
}

// Whoever wants no cool-down, as the flags of a program may, has a short one.
func TestWithoutACooldownThereIsOne(t *testing.T) {
	for _, cooldown := range []time.Duration{-time.Hour, 0, time.Millisecond} {
		w := newWard("kubelet.service")
		w.come = func(string) (bool, error) { return false, nil }
		guard := w.guard(check.Care{Unit: "kubelet", Repair: true, Cooldown: cooldown}, &check.Repairs{})
		for ; w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(time.Second) {
			guard.Around(ill)(t.Context())
		}
		if restarts := len(w.restarts["kubelet.service"]); restarts != 9 { // after 0, 10, 10+20, ... seconds
			t.Errorf("a cool-down of %s: %d restarts in an hour", cooldown, restarts)
		}
	}
}

// A restart must not hide what it does not cure: from the first bad answer on it is sick,
// until it answers.
func TestWhatIsSickForEverStaysSickThroughItsRestarts(t *testing.T) {
	w := newWard("kubelet.service")
	guard := w.guard(kubelet, &check.Repairs{})
	for ; w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(10 * time.Second) {
		if got := guard.Around(ill)(t.Context()); got.Verdict != checkresult.Sick {
			t.Fatalf("after %s: %+v", w.now.Sub(noon), got)
		}
	}
	if restarts := len(w.restarts["kubelet.service"]); restarts != 5 {
		t.Errorf("%d restarts in an hour", restarts)
	}
}

func fine(context.Context) checkresult.Result { return checkresult.Result{Verdict: checkresult.Well} }

// said is an answer, so long after a restart.
type said struct {
	after  time.Duration
	answer checkresult.Check
}

// Once it was well for long enough, all is as at first: the cool-down is the short one
// again, and whoever starts it has its grace.
func TestWhatWasWellAgainBeginsAnew(t *testing.T) {
	other, slow := kubelet, kubelet
	other.Check = "another check of the kubelet"
	slow.Grace = 20 * time.Minute
	for _, test := range []struct {
		name     string
		by       check.Care
		says     []said
		forgiven bool
	}{
		{"it was well for its cool-down", kubelet, []said{{time.Second, fine}, {time.Minute, fine}, {8*time.Minute + time.Second, fine}}, true},
		{"it was well once", kubelet, []said{{time.Second, fine}}, false},
		{"it was well for less", kubelet, []said{{time.Second, fine}, {8 * time.Minute, fine}}, false},
		{"it was sick meanwhile", kubelet, []said{{time.Second, fine}, {time.Minute, ill}, {2 * time.Minute, fine}, {9 * time.Minute, fine}}, false},
		{"it was well for less than its grace", slow, []said{{time.Second, fine}, {20 * time.Minute, fine}}, false},
		{"it was well for its grace", slow, []said{{time.Second, fine}, {20*time.Minute + time.Second, fine}}, true},
		{"that another finds it well says nothing", other, []said{{time.Second, fine}, {16 * time.Minute, fine}}, false},
		{"another may, when the one has not been heard of for long", other, []said{{17 * time.Minute, fine}, {25 * time.Minute, fine}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWard("kubelet.service")
			folder := t.TempDir() + "/repairs"
			for range 3 {
				w.now = w.now.Add(9 * time.Minute)
				w.guard(kubelet, &check.Repairs{Folder: folder}).Around(ill)(t.Context())
			}
			if len(w.restarts["kubelet.service"]) != 3 {
				t.Fatalf("%v", w.restarts)
			}
			for last, i := w.now, 0; i < len(test.says); i++ {
				w.now = last.Add(test.says[i].after)
				w.guard(test.by, &check.Repairs{Folder: folder}).Around(test.says[i].answer)(t.Context())
			}
			repairs := &check.Repairs{Folder: folder}

			u := w.units["kubelet.service"]
			u.Started, u.Changed = w.now, w.now
			w.units["kubelet.service"] = u
			w.now = w.now.Add(30 * time.Second)
			got := w.guard(kubelet, repairs).Around(ill)(t.Context())
			if forgiven := got.Verdict == checkresult.Unknown; forgiven != test.forgiven {
				t.Errorf("in its grace: %+v", got)
			}
			w.now = w.now.Add(2 * time.Minute)
			w.guard(kubelet, repairs).Around(ill)(t.Context())
			if forgiven := len(w.restarts["kubelet.service"]) == 4; forgiven != test.forgiven {
				t.Errorf("after its cool-down: %v", w.restarts)
			}
		})
	}
}

// A message is told anew when it changes: it does so when something is done, and not each
// time that somebody looks.
func TestAMessageSaysWhatWasDoneAndNoMore(t *testing.T) {
	w := newWard("kubelet.service")
	u := w.units["kubelet.service"]
	u.Changed = noon.Add(-time.Minute)
	w.units["kubelet.service"] = u
	examine := w.guard(kubelet, &check.Repairs{}).Around(ill)
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
	if len(told) < len(want) || !slices.Equal(told[:len(want)], want) || len(told) > len(want)+2 {
		t.Errorf("told\n%s", strings.Join(told, "\n"))
	}
}

// A moment of health after each restart is no cure. Nor is there a grace in it, which would
// hide that it is sick again.
func TestWhatIsWellForAMomentIsRestartedEverMoreSeldom(t *testing.T) {
	w := newWard("kubelet.service")
	examine := w.guard(kubelet, &check.Repairs{}).Around(func(ctx context.Context) checkresult.Result {
		if w.now.Sub(w.units["kubelet.service"].Changed) < 30*time.Second {
			return fine(ctx)
		}
		return ill(ctx)
	})
	for ; w.now.Before(noon.Add(24 * time.Hour)); w.now = w.now.Add(10 * time.Second) {
		if got := examine(t.Context()); got.Verdict == checkresult.Unknown {
			t.Fatalf("after %s: %+v", w.now.Sub(noon), got)
		}
	}
	if restarts := len(w.restarts["kubelet.service"]); restarts != 28 { // 5 in the first hour, then one an hour
		t.Errorf("%d restarts in a day", restarts)
	}
}

// Two rules of one unit, which find it sick at the same moment, restart it once: the second
// has looked before the first has acted.
func TestTwoRulesOfOneUnitRestartItOnce(t *testing.T) {
	w := newWard("kubelet.service")
	repairs := &check.Repairs{}
	first, second := kubelet, kubelet
	first.Check, second.Check = "first", "second"
	late := w.guard(second, repairs)
	late.Now = func() time.Time { // asked when all has been looked at
		if len(w.restarts) == 0 {
			w.guard(first, repairs).Around(ill)(t.Context())
			w.now = w.now.Add(30 * time.Second) // and it is back
		}
		return w.now
	}
	got := late.Around(ill)(t.Context())
	if restarts := len(w.restarts["kubelet.service"]); restarts != 1 || !strings.Contains(got.Message, "not restarted: ") {
		t.Errorf("%d restarts: %+v", restarts, got)
	}
}

// The message says why a unit is not restarted, as it is.
func TestWhatKeepsFromARestartIsSaid(t *testing.T) {
	folder := t.TempDir()
	holds := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "tried.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
			w := newWard("kubelet.service", "fast.service", "slow.service")
			w.until["slow.service"] = noon.Add(time.Second)
			got := w.guard(kubelet, &check.Repairs{Folder: test.folder}).Around(ill)(t.Context())
			if got.Verdict != checkresult.Sick || !strings.Contains(got.Message, "not restarted: ") || !strings.Contains(got.Message, test.says) {
				t.Errorf("%+v", got)
			}
			if len(w.restarts) > 0 {
				t.Errorf("%v", w.restarts)
			}
		})
	}
}

// A unit that does not come back, such as a kubelet without its runtime, does not keep the
// other from being cured for ever.
func TestAUnitThatDoesNotComeBackIsNotWaitedForForEver(t *testing.T) {
	w := newWard("kubelet.service", "containerd.service")
	repairs := &check.Repairs{}
	w.guard(kubelet, repairs).Around(ill)(t.Context())
	w.until["kubelet.service"] = noon.Add(24 * time.Hour)
	containerd := check.Care{Unit: "containerd", Repair: true, Cooldown: time.Minute}
	for w.now = noon.Add(10 * time.Second); len(w.restarts["containerd.service"]) == 0; w.now = w.now.Add(10 * time.Second) {
		if w.now.After(noon.Add(time.Hour)) {
			t.Fatal("containerd was not restarted within an hour")
		}
		w.guard(containerd, repairs).Around(ill)(t.Context())
	}
	if after := w.restarts["containerd.service"][0].Sub(noon); after != 5*time.Minute {
		t.Errorf("containerd was restarted after %s", after)
	}
}

// Whatever fails when, whatever comes of a restart, and however often the agent is started
// anew: one unit at a time, and none within its cool-down, which doubles while it is in
// vain and until it was well for as long.
func TestRepairsKeepTheirDistance(t *testing.T) {
	seen, doubled, forgiven := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		folder, err := os.MkdirTemp("", "repairs-")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(folder)
		names := []string{"kubelet.service", "containerd.service", "kube-proxy.service"}
		w := newWard(names...)
		lame := rapid.SampledFrom([]string{"", "kubelet.service", "containerd.service"}).Draw(rt, "lame")
		w.come = func(name string) (bool, error) { return name != lame, nil }
		repairs := &check.Repairs{Folder: folder}
		cooldown := time.Duration(rapid.IntRange(30, 300).Draw(rt, "cooldown")) * time.Second
		wellSince := map[string]time.Time{}
		vain := map[string]int{} // restarts that are not forgiven
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
				care := check.Care{Check: well, Unit: well, Repair: true, Cooldown: cooldown}
				w.guard(care, repairs).Around(fine)(t.Context())
			}
			var all sync.WaitGroup
			for _, name := range names {
				if name == well {
					continue
				}
				care := check.Care{Check: name, Unit: name, Repair: true, Cooldown: cooldown}
				for range 2 {
					all.Go(func() { w.guard(care, repairs).Around(ill)(t.Context()) })
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
		if w.together > 1 {
			rt.Fatalf("%d units were being restarted at once", w.together)
		}
	})
	t.Logf("saw %d restarts, %d of them after others in vain, which were forgiven %d times", seen, doubled, forgiven)
	if seen == 0 || doubled == 0 || forgiven == 0 {
		t.Error("nothing was restarted, or never in vain, or never forgiven")
	}
}

// What one process restarts, another knows of, and waits for.
func TestProcessesThatShareAFolderRestartOneAtATime(t *testing.T) {
	folder := t.TempDir() + "/repairs"
	w := newWard("kubelet.service", "containerd.service")
	inside := make(chan struct{})
	leave := make(chan struct{})
	w.come = func(string) (bool, error) {
		close(inside)
		<-leave
		return true, nil
	}
	var first sync.WaitGroup
	// A lock of the kernel's is one of the open file: another Repairs is another process.
	first.Go(func() { w.guard(kubelet, &check.Repairs{Folder: folder}).Around(ill)(t.Context()) })
	<-inside
	idle := newWard("containerd.service")
	containerd := check.Care{Unit: "containerd", Repair: true, Cooldown: time.Minute}
	if got := idle.guard(containerd, &check.Repairs{Folder: folder}).Around(ill)(t.Context()); !strings.Contains(got.Message, "not restarted: another unit is being restarted") {
		t.Errorf("%+v", got)
	}
	close(leave)
	first.Wait()
	w.now = w.now.Add(time.Second)
	if got := w.guard(containerd, &check.Repairs{Folder: folder}).Around(ill)(t.Context()); !strings.Contains(got.Message, "not restarted: kubelet.service is being restarted") {
		t.Errorf("%+v", got)
	}
}
