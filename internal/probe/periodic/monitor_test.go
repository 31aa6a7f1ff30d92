package periodic_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// recorder records reports with the time since the start.
type recorder struct {
	mu       sync.Mutex
	began    time.Time
	received []string
	last     time.Time     // of the last call
	gap      time.Duration // the longest time without a call
	ids      map[string]bool
	busy     chan struct{} // Here waits for it, if set
}

func newRecorder() *recorder {
	return &recorder{began: time.Now(), last: time.Now(), ids: map[string]bool{}}
}

func (d *recorder) note(format string, args ...any) {
	d.received = append(d.received, fmt.Sprintf("%s ", time.Since(d.began))+fmt.Sprintf(format, args...))
}

func (d *recorder) Report(r finding.Report) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range r.Events {
		if d.ids[e.ID] {
			d.note("the identity of %s twice", e.Reason)
		}
		d.ids[e.ID] = true
		if e.Condition == "" {
			d.note("event %s: %s", e.Reason, e.Message)
		} else if e.Severity == finding.Warn {
			d.note("warning of %s", e.Condition)
		} else {
			d.note("change of %s", e.Condition)
		}
	}
	for _, c := range r.Conditions {
		d.note("%s=%s %s: %s, since %s", c.Type, c.Status, c.Reason, c.Message, c.Since.Sub(d.began))
	}
}

func (d *recorder) Heartbeat() {
	d.mu.Lock()
	d.gap = max(d.gap, time.Since(d.last))
	d.last = time.Now()
	busy := d.busy
	d.mu.Unlock()
	if busy != nil {
		<-busy
	}
}

// quiet returns the longest time without a call.
func (d *recorder) quiet() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(d.gap, time.Since(d.last))
}

func (d *recorder) CanObserve()                 {}
func (d *recorder) WaitsFor(string)             {}
func (d *recorder) CannotObserve(string, error) {}

// expect compares the reports since the last call.
func (d *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	testkit.NoDiff(t, cmp.Diff(want, d.received), "the reports")
	d.received = nil
}

// fakeCheck is a check that a test controls.
type fakeCheck struct {
	mu     sync.Mutex
	answer periodic.Result
	takes  time.Duration
	dies   time.Duration // how long it takes to end after its context
	deaf   bool          // ignores its context
	began  time.Time
	asked  []string
	now    int
	most   int
}

func newFakeCheck() *fakeCheck {
	return &fakeCheck{answer: periodic.Result{Verdict: periodic.Healthy}, began: time.Now()}
}

func (p *fakeCheck) is(verdict periodic.Verdict, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = periodic.Result{Verdict: verdict, Message: message}
	if verdict == periodic.Unknown {
		p.answer.Reason = "PluginTimeout"
	}
}

// needs sets how long the next runs take.
func (p *fakeCheck) needs(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takes = d
}

// times returns when the check ran.
func (p *fakeCheck) times() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func (p *fakeCheck) run(ctx context.Context) periodic.Result {
	p.mu.Lock()
	p.asked = append(p.asked, time.Since(p.began).String())
	p.now++
	p.most = max(p.most, p.now)
	answer, takes, dies, deaf := p.answer, p.takes, p.dies, p.deaf
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.now--
	}()
	if deaf {
		ctx = context.WithoutCancel(ctx)
	}
	// Timers that are due when they are created, in two goroutines of a bubble at once, crash the
	// race detector: golang/go#78156.
	if takes == 0 {
		return answer
	}
	select {
	case <-time.After(takes):
		return answer
	case <-ctx.Done():
		<-time.After(dies)
		return periodic.Result{Reason: "PluginTimeout", Message: "it took too long"}
	}
}

// memoryStore is a Memory in memory.
type memoryStore map[string]statefile.Entry

func (n memoryStore) Monitor(key string) (statefile.Entry, bool)     { e, ok := n[key]; return e, ok }
func (n memoryStore) Keep(key string, entry statefile.Entry, _ bool) { n[key] = entry }

var disk = config.Condition{Type: "DiskBad", Reason: "DiskIsFine", Message: "disk is fine"}

func permanent(reason string, p *fakeCheck) periodic.Rule {
	return periodic.Rule{Permanent: true, Condition: "DiskBad", Reason: reason, Name: reason, Interval: 30 * time.Second, Timeout: 5 * time.Second, Check: p.run}
}

func temporary(reason string, p *fakeCheck) periodic.Rule {
	return periodic.Rule{Reason: reason, Name: reason, Interval: 30 * time.Second, Timeout: 5 * time.Second, Check: p.run}
}

func with(rules ...periodic.Rule) periodic.Config {
	return periodic.Config{
		Key: "disk.json", Source: "disk", Conditions: []config.Condition{disk}, Rules: rules, Concurrency: 3, Logger: slog.New(slog.DiscardHandler),
	}
}

// run runs the monitor until the end of the test or until stop is called.
func run(t *testing.T, cfg periodic.Config, d *recorder) (r *periodic.Monitor, stop func()) {
	t.Helper()
	r = testkit.Value(periodic.New(cfg)).Must(t)
	return r, again(t, r, d)
}

func again(t *testing.T, r *periodic.Monitor, d *recorder) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := r.Run(ctx, d)
		testkit.Check(t, ctx.Err() != nil, "the rounds have ended: %v", err)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d); synctest.Wait() }

// One check gives one answer after another.
func TestAnswersOfOneCheck(t *testing.T) {
	type answer struct {
		verdict periodic.Verdict
		message string
		lasts   time.Duration
		want    []string // the reports in this time
	}
	for _, test := range []struct {
		name    string
		rule    func(string, *fakeCheck) periodic.Rule
		shape   func(*periodic.Config)
		answers []answer
		counted uint64
		times   int // a run every 30 seconds
	}{
		{"a condition comes and goes, and a new message alone is not reported", permanent, func(*periodic.Config) {}, []answer{
			{periodic.Healthy, "", 10 * time.Second, []string{"0s DiskBad=False DiskIsFine: disk is fine, since 0s"}},
			{periodic.Unhealthy, "block 7", 30 * time.Second, []string{"30s warning of DiskBad", "30s DiskBad=True R: block 7, since 30s"}},
			{periodic.Unhealthy, "block 8", 30 * time.Second, nil},
			{periodic.Unknown, "it hangs", 30 * time.Second, []string{"1m30s change of DiskBad", "1m30s DiskBad=Unknown PluginTimeout: it hangs, since 1m30s"}},
			{periodic.Healthy, "all fine", 30 * time.Second, []string{"2m0s change of DiskBad", "2m0s DiskBad=False DiskIsFine: disk is fine, since 2m0s"}},
		}, 1, 5},
		{"a check that cannot look any more is a warning", permanent, func(*periodic.Config) {}, []answer{
			{periodic.Healthy, "", 10 * time.Second, []string{"0s DiskBad=False DiskIsFine: disk is fine, since 0s"}},
			{periodic.Unknown, "it hangs", 30 * time.Second, []string{"30s warning of DiskBad", "30s DiskBad=Unknown PluginTimeout: it hangs, since 30s"}},
		}, 0, 2},
		{"a check that could never look is no warning", permanent, func(*periodic.Config) {}, []answer{
			{periodic.Unknown, "it hangs", 10 * time.Second, []string{"0s change of DiskBad", "0s DiskBad=Unknown PluginTimeout: it hangs, since 0s"}},
		}, 0, 1},
		{"a new message is reported with UpdateOnMessage", permanent, func(c *periodic.Config) { c.UpdateOnMessage = true }, []answer{
			{periodic.Unhealthy, "block 7", time.Second, []string{"0s warning of DiskBad", "0s DiskBad=True R: block 7, since 0s"}},
			{periodic.Unhealthy, "block 8", 70 * time.Second, []string{"30s warning of DiskBad", "30s DiskBad=True R: block 8, since 0s"}},
		}, 1, 3},
		{"a temporary rule writes an Event each time", temporary, func(c *periodic.Config) { c.Conditions = nil }, []answer{
			{periodic.Healthy, "", time.Second, nil},
			{periodic.Unhealthy, "no peers", 65 * time.Second, []string{"30s event R: no peers", "1m0s event R: no peers"}},
			{periodic.Unknown, "it hangs", 2 * time.Minute, []string{"1m30s event PluginTimeout: it hangs"}},
		}, 2, 7},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, d := newFakeCheck(), newRecorder()
				cfg := with(test.rule("R", p))
				test.shape(&cfg)
				p.is(test.answers[0].verdict, test.answers[0].message)
				r, _ := run(t, cfg, d)
				for _, a := range test.answers {
					p.is(a.verdict, a.message)
					pass(a.lasts)
					d.expect(t, a.want...)
				}
				testkit.NoDiff(t, cmp.Diff(map[string]uint64{"R": test.counted}, r.Problems()), "the counts")
				var times []string
				for i := range test.times {
					times = append(times, (time.Duration(i) * 30 * time.Second).String())
				}
				testkit.NoDiff(t, cmp.Diff(times, p.times()), "the times of the checks")
			})
		})
	}
}

func TestTwoRulesOfAConditionDoNotAlternate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, d := newFakeCheck(), newFakeCheck(), newRecorder()
		run(t, with(permanent("A", a), permanent("B", b)), d)
		d.expect(t, "0s DiskBad=False DiskIsFine: disk is fine, since 0s")
		b.is(periodic.Unhealthy, "b")
		pass(40 * time.Second)
		d.expect(t, "30s warning of DiskBad", "30s DiskBad=True B: b, since 30s")
		a.is(periodic.Unhealthy, "a")
		pass(time.Hour)
		d.expect(t) // b has been unhealthy longer
		a.is(periodic.Unknown, "")
		pass(time.Minute)
		a.is(periodic.Unhealthy, "a")
		pass(time.Minute)
		d.expect(t)
		b.is(periodic.Unknown, "")
		pass(time.Minute)
		d.expect(t, "1h3m0s warning of DiskBad", "1h3m0s DiskBad=True A: a, since 30s")
	})
}

func TestACheckThatHangsDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung, a, d := newFakeCheck(), newFakeCheck(), newRecorder()
		hung.takes, hung.deaf = 10*time.Minute, true
		cfg := with(permanent("Hung", hung), temporary("A", a))
		cfg.Concurrency = 1
		run(t, cfg, d)
		pass(100 * time.Second)
		// The timeout, and two seconds to end.
		d.expect(t, "7s change of DiskBad", "7s DiskBad=Unknown CheckHangs: the check has exceeded its timeout of 5s; it does not start again before it has ended, since 7s")
		testkit.NoDiff(t, cmp.Diff([]string{"7s", "30s", "1m0s", "1m30s"}, a.times()), "the times of the other check")
		testkit.NoDiff(t, cmp.Diff([]string{"0s"}, hung.times()), "the times of the check that hangs")
		hung.needs(0)
		pass(10 * time.Minute)
		d.expect(t, "10m0s change of DiskBad", "10m0s DiskBad=False DiskIsFine: disk is fine, since 10m0s")
		testkit.Same(t, hung.most, 1, "checks at once")
		testkit.Between(t, d.quiet(), 0, supervise.CheckInterval, "the longest time without a report")
	})
}

func TestConcurrencyIsLimitedAndFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rules []periodic.Rule
		p, d := newFakeCheck(), newRecorder()
		p.takes = time.Second
		for i := range 10 {
			rule := temporary(fmt.Sprintf("R%d", i), p)
			rule.Interval = time.Duration(1+i) * time.Second // more runs than there is time for
			rules = append(rules, rule)
		}
		times := make([]int, len(rules))
		for i := range rules {
			rules[i].Check = func(ctx context.Context) periodic.Result {
				p.mu.Lock()
				times[i]++
				p.mu.Unlock()
				return p.run(ctx)
			}
		}
		cfg := with(rules...)
		cfg.Concurrency = 2
		_, stop := run(t, cfg, d)
		pass(100*time.Second + time.Millisecond)
		stop()
		testkit.Check(t, p.most == 2 && len(p.asked) == 202, "there were %d exams, %d at a time; want 202, 2 at a time", len(p.asked), p.most)
		for i, n := range times {
			testkit.Check(t, n >= 8, "rule %d was examined %d times", i, n)
		}
	})
}

func TestMissedRunsAreNotCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newFakeCheck(), newRecorder()
		p.takes = 12 * time.Second
		rule := temporary("Slow", p)
		rule.Interval, rule.Timeout = 5*time.Second, time.Minute
		run(t, with(rule), d)
		pass(13 * time.Second)
		p.needs(0)
		pass(20 * time.Second)
		testkit.NoDiff(t, cmp.Diff([]string{"0s", "12s", "24s", "25s", "30s"}, p.times()), "the times of the checks")
	})
}

func TestAPanicIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRecorder()
		rule := permanent("Broken", newFakeCheck())
		rule.Check = func(context.Context) periodic.Result { panic("a nil map") }
		run(t, with(rule), d)
		d.expect(t, "0s change of DiskBad", "0s DiskBad=Unknown CheckPanicked: panic: a nil map; this is a bug of the agent, please report it, since 0s")
	})
}

// The first report contains all conditions: a missing one would count as gone.
func TestNothingIsReportedBeforeItIsKnown(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		skip  bool
		want  []string
	}{
		"the first report waits for the answers": {takes: 4 * time.Second, want: []string{
			"4s DiskBad=False DiskIsFine: disk is fine, since 4s", "4s Other=False OtherIsFine: , since 4s"}},
		"but not for ever": {takes: 20 * time.Second, want: []string{
			"8s change of DiskBad",
			"8s DiskBad=Unknown NotCheckedYet: the first check for DiskBad has not ended yet, since 8s", "8s Other=False OtherIsFine: , since 8s",
			"20s change of DiskBad", "20s DiskBad=False DiskIsFine: disk is fine, since 20s"}},
		"unless nothing else is wanted": {takes: 20 * time.Second, skip: true, want: []string{
			"20s DiskBad=False DiskIsFine: disk is fine, since 20s", "20s Other=False OtherIsFine: , since 20s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, quick, d := newFakeCheck(), newFakeCheck(), newRecorder()
				p.takes = test.takes
				slow := permanent("BadBlock", p)
				slow.Timeout = time.Minute
				other := permanent("Other", quick)
				other.Condition = "Other"
				cfg := with(slow, other)
				cfg.Conditions = append(cfg.Conditions, config.Condition{Type: "Other", Reason: "OtherIsFine"})
				cfg.SkipInitialStatus = test.skip
				run(t, cfg, d)
				pass(25 * time.Second)
				d.expect(t, test.want...)
			})
		})
	}
}

func TestARestartDoesNotMakeAnUnhealthyNodeHealthy(t *testing.T) {
	for name, test := range map[string]struct {
		boot     string
		survives bool
		broken   bool
		change   func(*periodic.Config)
		want     []string
	}{
		"it stands until the first answer": {boot: "1", want: []string{
			"1m0s DiskBad=True BadBlock: block 7, since 30s",
			"1m4s change of DiskBad", "1m4s DiskBad=False DiskIsFine: disk is fine, since 1m4s"}},
		"nothing is said of it after a reboot": {boot: "2", want: []string{
			"1m4s change of DiskBad", "1m4s DiskBad=False DiskIsFine: disk is fine, since 1m4s"}},
		"but it stands if it survives one": {boot: "2", survives: true, want: []string{
			"1m0s DiskBad=True BadBlock: block 7, since 30s",
			"1m4s change of DiskBad", "1m4s DiskBad=False DiskIsFine: disk is fine, since 1m4s"}},
		"nothing is said of it if nothing is to be": {boot: "1", change: func(c *periodic.Config) { c.SkipInitialStatus = true }, want: []string{
			"1m4s change of DiskBad", "1m4s DiskBad=False DiskIsFine: disk is fine, since 1m4s"}},
		"nothing is said of it if its rule is another": {boot: "1", change: func(c *periodic.Config) { c.Rules[0].Name = "other" }, want: []string{
			"1m4s change of DiskBad", "1m4s DiskBad=False DiskIsFine: disk is fine, since 1m4s"}},
		"nothing is said of it if the memory is broken": {boot: "1", broken: true, want: []string{
			"1m4s DiskBad=False DiskIsFine: disk is fine, since 1m4s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, d, kept := newFakeCheck(), newRecorder(), memoryStore{}
				cfg := with(permanent("BadBlock", p))
				cfg.Conditions = []config.Condition{disk}
				cfg.Conditions[0].SurvivesReboot = test.survives
				cfg.Memory, cfg.Boot = kept, "1"
				_, stop := run(t, cfg, d)
				pass(10 * time.Second)
				p.is(periodic.Unhealthy, "block 7")
				pass(20 * time.Second)
				stop()
				d.expect(t, "0s DiskBad=False DiskIsFine: disk is fine, since 0s", "30s warning of DiskBad", "30s DiskBad=True BadBlock: block 7, since 30s")

				pass(30 * time.Second)
				p.is(periodic.Healthy, "")
				p.takes = 4 * time.Second
				if cfg.Boot = test.boot; test.change != nil {
					test.change(&cfg)
				}
				if test.broken {
					kept["disk.json"] = statefile.Entry{State: json.RawMessage(`{"rules": 1}`)}
				}
				_, stop = run(t, cfg, d)
				defer stop()
				pass(20 * time.Second)
				d.expect(t, test.want...)
			})
		})
	}
}

// A node that was healthy before a restart is not reported as healthy before a check has run.
func TestAHealthyNodeIsCheckedAgainAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		want  []string
	}{
		"the first word is the first answer": {4 * time.Second, []string{
			"34s warning of DiskBad", "34s DiskBad=True BadBlock: block 7, since 34s"}},
		"or that there is none yet": {20 * time.Second, []string{
			"38s change of DiskBad", "38s DiskBad=Unknown NotCheckedYet: the first check for DiskBad has not ended yet, since 38s",
			"50s warning of DiskBad", "50s DiskBad=True BadBlock: block 7, since 50s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, d := newFakeCheck(), newRecorder()
				rule := permanent("BadBlock", p)
				rule.Timeout = time.Minute
				cfg := with(rule)
				cfg.Memory, cfg.Boot = memoryStore{}, "1"
				_, stop := run(t, cfg, d)
				d.expect(t, "0s DiskBad=False DiskIsFine: disk is fine, since 0s")
				stop()
				p.is(periodic.Unhealthy, "block 7")
				p.takes = test.takes
				pass(30 * time.Second)
				_, stop = run(t, cfg, d)
				defer stop()
				pass(25 * time.Second)
				d.expect(t, test.want...)
			})
		})
	}
}

func TestARestoredConditionStaysUntilAllRulesHaveAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, d := newFakeCheck(), newFakeCheck(), newRecorder()
		a.is(periodic.Unhealthy, "a")
		cfg := with(permanent("A", a), permanent("B", b))
		cfg.Memory, cfg.Boot = memoryStore{}, "1"
		_, stop := run(t, cfg, d)
		d.expect(t, "0s warning of DiskBad", "0s DiskBad=True A: a, since 0s")
		stop()
		a.is(periodic.Healthy, "")
		b.is(periodic.Unhealthy, "b")
		b.takes = 4 * time.Second
		pass(30 * time.Second)
		_, stop = run(t, cfg, d)
		defer stop()
		pass(20 * time.Second)
		d.expect(t, "30s DiskBad=True A: a, since 0s", "34s warning of DiskBad", "34s DiskBad=True B: b, since 0s")
	})
}

// A monitor that runs again after a panic continues.
func TestASecondRunContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newFakeCheck(), newRecorder()
		p.is(periodic.Unhealthy, "block 7")
		r, stop := run(t, with(permanent("BadBlock", p)), d)
		d.expect(t, "0s warning of DiskBad", "0s DiskBad=True BadBlock: block 7, since 0s")
		pass(time.Second)
		stop()
		defer again(t, r, d)()
		d.expect(t, "1s DiskBad=True BadBlock: block 7, since 0s")
		testkit.Same(t, r.Problems()["BadBlock"], 1, "counts of one problem")
	})
}

func TestRunWaitsForChecksToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newFakeCheck(), newRecorder()
		_, stop := run(t, with(permanent("BadBlock", p)), d)
		d.expect(t, "0s DiskBad=False DiskIsFine: disk is fine, since 0s")
		p.mu.Lock()
		p.takes, p.dies = time.Hour, time.Second
		p.mu.Unlock()
		pass(31 * time.Second)
		stop()
		testkit.Same(t, p.now, 0, "checks that outlive the monitor")
		d.expect(t)
	})
	synctest.Test(t, func(t *testing.T) {
		p, d := newFakeCheck(), newRecorder()
		p.takes, p.deaf = 10*time.Second, true
		_, stop := run(t, with(permanent("BadBlock", p)), d)
		pass(time.Second)
		stop()
		took := time.Since(d.began)
		testkit.Check(t, took <= 3*time.Second, "the end took %s of the 3s that there are", took-time.Second)
		pass(time.Minute) // until it has ended
		d.expect(t)
	})
}

// A check that is stopped returns Unknown, which says nothing about the node.
func TestResultsAfterTheEndAreIgnored(t *testing.T) {
	for range 30 { // without the fix, every second run would fail
		synctest.Test(t, func(t *testing.T) {
			p, d := newFakeCheck(), newRecorder()
			rule := permanent("BadBlock", p)
			rule.Timeout = time.Minute
			_, stop := run(t, with(rule), d)
			d.expect(t, "0s DiskBad=False DiskIsFine: disk is fine, since 0s")
			p.needs(time.Hour)
			pass(30*time.Second + time.Millisecond)
			d.mu.Lock()
			d.busy = make(chan struct{})
			d.mu.Unlock()
			pass(supervise.CheckInterval) // then the monitor is calling the reporter
			go stop()
			pass(time.Second)
			d.mu.Lock()
			close(d.busy)
			d.busy = nil
			d.mu.Unlock()
			stop()
			d.expect(t)
		})
	}
}

func TestNewRefusesAnInvalidConfig(t *testing.T) {
	p := newFakeCheck()
	cfg := with(periodic.Rule{Interval: 1, Timeout: 1}, periodic.Rule{Check: p.run, Timeout: 1}, permanent("X", p))
	cfg.Concurrency, cfg.Conditions = 0, nil
	_, err := periodic.New(cfg)
	for _, want := range []string{"concurrency is 0", "rules[0]: the check is missing", "rules[1]: an interval", `rules[2]: the condition "DiskBad"`} {
		testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "%v does not say %q", err, want)
	}
}
