package report

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const patchStatusPath = "PATCH /api/v1/nodes/n/status"

func newCondition(kind string, status catalog.Status, reason string, since time.Time) finding.Condition {
	return finding.Condition{Type: kind, Status: status, Reason: reason, Message: "all of " + reason, Since: since}
}

func reportOf(list ...finding.Condition) finding.Report {
	return finding.Report{Source: "kernel-monitor", Conditions: list}
}

// running is a reporter that runs in a synctest bubble.
type running struct {
	*testing.T
	*Reporter
	api  *fake
	log  *bytes.Buffer
	stop func()
}

func (r *running) logged(words string) int { return strings.Count(r.log.String(), words) }

// takes hands a report to the reporter and lets time pass.
func (r *running) takes(report finding.Report, d time.Duration) {
	r.Take(report)
	pass(d)
}

// starts is takes for the last report that the reporter waits for at its start.
func (r *running) starts(report finding.Report, d time.Duration) {
	r.Take(report)
	r.Complete()
	pass(d)
}

// inBubble runs a test with its own clock, after the reporter has started and read what the
// API server has. State that the reporter must find when it starts belongs in shape.
func inBubble(t *testing.T, name string, shape func(*Config), story func(r *running)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := &running{T: t, api: newFake(), log: &bytes.Buffer{}}
			cfg := Config{API: r.api, Node: "n", Holder: "pod", LeaseNamespace: "autohealer-system", Logger: slog.New(slog.NewTextHandler(r.log, nil))}
			if shape != nil {
				shape(&cfg)
			}
			reporter := testkit.Value(New(cfg)).Must(t)
			r.Reporter = reporter
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { reporter.Run(ctx); close(done) }()
			r.stop = func() { cancel(); <-done }
			defer r.stop()
			synctest.Wait()
			story(r)
		})
	})
}

func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // advances the clock of the synctest bubble
	synctest.Wait()
}

func TestConditions(t *testing.T) {
	start := func(r *running) time.Time {
		since := time.Now().Add(-time.Hour)
		r.starts(reportOf(newCondition("A", catalog.False, "FineA", since), newCondition("B", catalog.False, "FineB", since)), 0)
		return since
	}
	inBubble(t, "removes nothing before every source has reported", nil, func(r *running) {
		r.takes(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), maxStartupWait/2)
		testkit.Same(r, r.api.count(patchStatusPath), 0, "writes before every source reported")
		pass(maxStartupWait)
		testkit.Same(r, r.api.count(patchStatusPath), 1, "writes after the wait")
	})
	inBubble(t, "sends a condition that changes just before the end", nil, func(r *running) {
		start(r)
		r.takes(reportOf(newCondition("A", catalog.True, "BadA", time.Now())), coalesce/2)
		testkit.Same(r, r.api.condition("A")["status"], "False", "status of A before the end")
		r.stop()
		testkit.Same(r, r.api.condition("A")["status"], "True", "status of A after the end")
	})
	inBubble(t, "preserves awaited conditions of an earlier agent until they are reported", nil, func(r *running) {
		earlier := func(kind, status string) map[string]string {
			return map[string]string{"type": kind, "status": status, "reason": "Earlier", "message": "", "lastTransitionTime": "2026-11-15T10:00:00Z", "lastHeartbeatTime": "2026-11-15T10:00:00Z"}
		}
		synctest.Wait()
		testkit.Must(r, r.api.apply(FieldManager, true, []map[string]string{earlier("A", "True"), earlier("B", "True"), earlier("C", "True"), earlier("Old", "True")}))
		shows := func(want ...string) {
			r.Helper()
			var found []string
			for _, kind := range []string{"A", "B", "C", "Old"} {
				if row := r.api.condition(kind); row != nil {
					found = append(found, kind+" "+row["status"]+" "+row["reason"])
				}
			}
			testkit.NoDiff(r, cmp.Diff(want, found), "the conditions")
		}
		r.Await("A", "B", "C", "New")
		r.takes(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), 2*maxStartupWait)
		shows("A False Fine", "B True Earlier", "C True Earlier")
		r.takes(reportOf(newCondition("B", catalog.True, "Unhealthy", time.Now())), 2*time.Second)
		shows("A False Fine", "B True Unhealthy", "C True Earlier")
		r.api.update("npd", map[string]string{"type": "C", "status": "False", "reason": "Theirs", "lastHeartbeatTime": "2026-11-15T11:00:00Z"})
		r.takes(reportOf(newCondition("B", catalog.False, "Fine", time.Now())), time.Minute)
		shows("A False Fine", "B False Fine", "C False Theirs")
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		pass(time.Hour)
		testkit.Same(r, r.api.count(patchStatusPath)-before, 0, "writes while nothing changes")
		r.Await()
		r.Complete()
		pass(time.Minute)
		shows("A False Fine", "B False Fine", "C False Theirs")
	})
	inBubble(t, "removes a condition that is no longer awaited", nil, func(r *running) {
		synctest.Wait()
		testkit.Must(r, r.api.apply(FieldManager, true, []map[string]string{{"type": "A", "status": "True", "reason": "Earlier", "lastHeartbeatTime": "2026-11-15T10:00:00Z"}}))
		r.Await("A")
		r.takes(reportOf(newCondition("B", catalog.False, "Fine", time.Now())), 2*maxStartupWait)
		testkit.Check(r, r.api.condition("A") != nil, "it goes while it is awaited")
		r.Await()
		pass(time.Minute)
		row := r.api.condition("A")
		testkit.Check(r, row == nil, "the condition has no source, but stays: %v", row)
	})
	inBubble(t, "writes a change at once, with all conditions and their times", nil, func(r *running) {
		since := start(r)
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		changedAt := time.Now().Add(-2 * time.Second)
		r.Take(reportOf(newCondition("A", catalog.True, "Unhealthy", changedAt)))
		synctest.Wait() // no time passes
		want := map[string]string{"type": "A", "status": "True", "reason": "Unhealthy", "message": "all of Unhealthy",
			"lastTransitionTime": changedAt.UTC().Format(time.RFC3339), "lastHeartbeatTime": time.Now().UTC().Format(time.RFC3339)}
		testkit.NoDiff(r, cmp.Diff(want, r.api.condition("A")), "A")
		got := r.api.condition("B")
		testkit.Check(r, got["lastTransitionTime"] == since.UTC().Format(time.RFC3339) && got["status"] == "False", "B is %v", got)
		testkit.Same(r, r.api.count(patchStatusPath)-before, 1, "writes for one change")
	})
	inBubble(t, "writes nothing while nothing changes", nil, func(r *running) {
		start(r)
		for range 24 * 60 {
			pass(time.Minute)
		}
		testkit.Same(r, r.api.count("PATCH /api/"), 1, "writes in a day: only the first one")
		testkit.Between(r, r.api.count("GET /api/v1/nodes/n?resourceVersion=0"), 288, 600, "checks in a day")
		testkit.Check(r, r.logged("level=WARN")+r.logged("level=ERROR") == 0, "%v", r.log.String())
	})
	inBubble(t, "writes changes within 10 ms together", nil, func(r *running) {
		start(r)
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		for i := range 100 {
			r.takes(reportOf(newCondition("A", catalog.True, fmt.Sprint("Unhealthy", i), time.Now())), 90*time.Microsecond)
		}
		pass(coalesce)
		testkit.Same(r, r.api.count(patchStatusPath)-before, 2, "writes for what came within 9 ms: the first and the rest")
		testkit.Same(r, r.api.condition("A")["reason"], "Unhealthy99", "the reason of A")
	})
	inBubble(t, "limits writes of a flapping node to ten and then one a second", nil, func(r *running) {
		start(r)
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		for i := range 60_000 / 20 {
			r.takes(reportOf(newCondition("A", catalog.True, fmt.Sprint("Unhealthy", i), time.Now())), 20*time.Millisecond)
		}
		testkit.Between(r, r.api.count(patchStatusPath)-before, 60, writeBurst+61, "writes in a minute of flapping")
		pass(time.Second)
		testkit.Same(r, r.api.condition("A")["reason"], "Unhealthy2999", "the reason of A in the end")
	})
	inBubble(t, "removes a condition without a source", nil, func(r *running) {
		start(r)
		r.takes(finding.Report{Gone: []string{"A"}}, coalesce)
		a, b := r.api.condition("A"), r.api.condition("B")
		testkit.Check(r, a == nil && b != nil, "A is %v, B is %v", a, b)
		r.takes(finding.Report{Gone: []string{"B"}}, coalesce)
		b = r.api.condition("B")
		testkit.Check(r, b == nil, "B is %v", b)
	})
	inBubble(t, "refuses conditions of Kubernetes and logs why", nil, func(r *running) {
		for _, kind := range []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready"} {
			r.Take(reportOf(newCondition(kind, catalog.True, "Mine", time.Now())))
		}
		start(r)
		testkit.Same(r, len(r.api.conditions), 2, "conditions: %v", r.api.conditions)
		testkit.Same(r, r.Counts().Dropped[Drop{"condition", "native"}], 6, "refused conditions that are counted")
		testkit.Same(r, r.logged("reported by Kubernetes itself"), 5, "log lines:\n%s", r.log)
	})
	inBubble(t, "counts conditions over the limit, and still updates the others", nil, func(r *running) {
		for i := range MostConditions + 5 {
			r.Take(reportOf(newCondition(fmt.Sprintf("A%03d", i), catalog.False, "Well", time.Now())))
		}
		r.starts(reportOf(newCondition("A000", catalog.True, "Unhealthy", time.Now()), newCondition(strings.Repeat("x", LongestType+1), catalog.True, "Unhealthy", time.Now())), 0)
		testkit.Check(r, len(r.api.conditions) == MostConditions && r.api.condition("A000")["reason"] == "Unhealthy",
			"%d conditions are written, and A000 is %v", len(r.api.conditions), r.api.condition("A000"))
		dropped := r.Counts().Dropped
		testkit.Check(r, dropped[Drop{"condition", "too many"}] == 5 && dropped[Drop{"condition", "too long"}] == 1, "counted: %v", dropped)
		testkit.Same(r, r.logged("remove some from its configuration"), 5, "log lines:\n%s", r.log)
	})
	inBubble(t, "counts awaited conditions against the limit", nil, func(r *running) {
		const awaited = 60
		var rows []map[string]string
		var kinds []string
		for i := range awaited {
			kinds = append(kinds, fmt.Sprintf("Z%03d", i))
			rows = append(rows, map[string]string{"type": kinds[i], "status": "True", "reason": "Earlier", heartbeatTime: "2026-11-15T10:00:00Z"})
		}
		synctest.Wait()
		testkit.Must(r, r.api.apply(FieldManager, true, rows))
		r.Await(kinds...)
		for i := range MostConditions {
			r.Take(reportOf(newCondition(fmt.Sprintf("A%03d", i), catalog.False, "Well", time.Now())))
		}
		r.Complete()
		pass(time.Minute)
		if last := fmt.Sprintf("A%03d", MostConditions-awaited-1); len(r.api.conditions) != MostConditions || r.api.condition("Z059") == nil || r.api.condition(last) == nil || r.forbidden() != 0 {
			r.Errorf("%d conditions are written: %+v\n%s", len(r.api.conditions), r.Counts(), r.log)
		}
		testkit.Same(r, r.Counts().Dropped[Drop{"condition", "too many"}], awaited, "conditions that are counted as dropped")
		r.takes(reportOf(newCondition("A000", catalog.True, "Unhealthy", time.Now())), time.Minute)
		if dropped := r.Counts().Dropped[Drop{"condition", "too many"}]; dropped != awaited || r.api.condition("A000")["reason"] != "Unhealthy" {
			r.Errorf("after another write %d are counted, and A000 is %v", dropped, r.api.condition("A000"))
		}
		r.Await()
		pass(time.Minute)
		if last := fmt.Sprintf("A%03d", MostConditions-1); len(r.api.conditions) != MostConditions || r.api.condition("Z059") != nil || r.api.condition(last) == nil {
			r.Errorf("when there is room %d conditions are written: %v", len(r.api.conditions), r.api.conditions)
		}
	})
	inBubble(t, "writes invalid text in a valid form", nil, func(r *running) {
		r.starts(finding.Report{Conditions: []finding.Condition{{Type: "A", Status: catalog.True, Reason: "R", Message: "\xff\xfe" + strings.Repeat("ü", 4000), Since: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)}}}, 0)
		for range 24 {
			pass(time.Hour)
		}
		_, err := time.Parse(time.RFC3339, r.api.condition("A")["lastTransitionTime"])
		testkit.Check(r, err == nil, "%v", err)
		n := r.api.count(patchStatusPath)
		testkit.Check(r, n == 1 && len(r.api.condition("A")["message"]) <= LongestMessage, "%d writes: %v", n, r.api.condition("A"))
	})
	inBubble(t, "detects and reverts a change by another manager", nil, func(r *running) {
		start(r)
		r.api.update("kubectl-edit", map[string]string{"type": "A", "status": "True"})
		pass(defaultLookEvery)
		testkit.Same(r, r.api.condition("A")["status"], "False", "the status of A")
		c := r.Counts()
		testkit.Check(r, c.Restored == 1 && c.TakenOver == 1 && len(c.Yielded) == 0, "%+v", c)
	})
	inBubble(t, "rewrites conditions that the controller marked as silent", nil, func(r *running) {
		start(r)
		for range 3 {
			r.api.mu.Lock()
			rows := []map[string]string{}
			for kind := range r.api.conditions {
				now := time.Now().UTC().Format(time.RFC3339)
				rows = append(rows, map[string]string{"type": kind, "status": "Unknown", "reason": "AgentSilent", "message": "", "lastTransitionTime": now, "lastHeartbeatTime": now})
			}
			err := r.api.apply(FieldManager, false, rows)
			testkit.Check(r, err == nil, "%v", err)
			r.api.mu.Unlock()
			pass(defaultLookEvery)
			a, b := r.api.condition("A"), r.api.condition("B")
			testkit.Check(r, a["status"] == "False" && b["reason"] == "FineB", "A is %v, B is %v", a, b)
		}
		c := r.Counts()
		testkit.Check(r, c.TakenOver == 0 && len(c.Yielded) == 0, "%+v", c)
	})
	inBubble(t, "ignores a read that is older than its last write", nil, func(r *running) {
		start(r)
		old := r.api.node()
		r.takes(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())), coalesce)
		r.mu.Lock()
		r.core.answer(time.Now(), &request{kind: requestRead, readsNode: true}, kubeapi.Answer{Body: old}, nil)
		mend := r.core.conditions.needsRewrite
		r.mu.Unlock()
		testkit.Check(r, !mend, "what the server's cache had not seen yet was taken for a foreign change")
	})
}

// heartbeat writes what an old node-problem-detector writes every five minutes.
func heartbeat(r *running) {
	now := time.Now().UTC().Format(time.RFC3339)
	r.api.update("node-problem-detector", map[string]string{"type": "A", "status": "False", "reason": "FineA", "message": "all of FineA",
		"lastHeartbeatTime": now, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

func TestTwoWriters(t *testing.T) {
	since := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	both := reportOf(newCondition("A", catalog.False, "FineA", since), newCondition("B", catalog.False, "FineB", since))
	inBubble(t, "takes a condition over once, and yields it when the other manager writes it again", nil, func(r *running) {
		heartbeat(r)
		r.starts(both, 0)
		testkit.Same(r, r.api.condition("A")["lastTransitionTime"], since.Format(time.RFC3339), "the transition time shows that the condition was taken over")
		for range 12 * 24 {
			pass(5 * time.Minute)
			heartbeat(r)
			// The other manager owns only the times, but the condition must keep its fields.
			a := r.api.condition("A")
			testkit.Require(r, a["status"] == "False" && a["reason"] == "FineA" && a["message"] != "", "A is %v", a)
		}
		testkit.NoDiff(r, cmp.Diff(map[string]string{"A": "node-problem-detector"}, r.Counts().Yielded), "the yielded conditions")
		testkit.Same(r, r.logged("yielded to another manager"), 1, "log lines:\n%s", r.log)
		testkit.Between(r, r.api.count(patchStatusPath), 0, 8, "writes in a day of two writers")
		// Both managers go on with their own conditions.
		r.api.update("node-problem-detector", map[string]string{"type": "A", "status": "True", "reason": "Theirs"})
		r.takes(reportOf(newCondition("A", catalog.False, "Ours", time.Now()), newCondition("B", catalog.True, "Ours", time.Now())), 10*time.Minute)
		a, b := r.api.condition("A"), r.api.condition("B")
		testkit.Check(r, a["reason"] == "Theirs" && b["reason"] == "Ours", "A is %v, B is %v", a, b)
		testkit.Check(r, r.api.owners[FieldManager]["A"] == nil, "A still belongs to the agent: %v", r.api.owners)
	})
	inBubble(t, "keeps the fields of a yielded condition that only the agent owned", nil, func(r *running) {
		r.starts(both, 0)
		for range 10 {
			// It writes the same values, so it owns only the times.
			heartbeat(r)
			pass(5 * time.Minute)
			a := r.api.condition("A")
			testkit.Require(r, a["status"] == "False" && a["reason"] == "FineA" && a["message"] != "", "A is %v", a)
		}
		testkit.Check(r, r.Counts().Yielded["A"] != "" && r.api.owners[FieldManager]["A"] == nil, "A still belongs to the agent: %v", r.api.owners)
	})
	inBubble(t, "treats a manager that differs only in the heartbeat as a writer", nil, func(r *running) {
		r.starts(both, 0)
		for range 4 {
			r.api.update("twin", map[string]string{"type": "A", "lastHeartbeatTime": time.Now().Add(time.Second).UTC().Format(time.RFC3339)})
			pass(6 * time.Minute)
		}
		testkit.Same(r, r.Counts().Yielded["A"], "twin", "the manager that A is yielded to: %+v", r.Counts())
	})
	inBubble(t, "takes a condition over each time with TakeOver", func(c *Config) { c.TakeOver = true }, func(r *running) {
		r.Take(both)
		r.Complete()
		for range 10 {
			heartbeat(r)
			pass(6 * time.Minute)
			testkit.Same(r, r.api.condition("A")["lastTransitionTime"], since.Format(time.RFC3339),
				"the transition time shows that the condition was taken over")
		}
		c := r.Counts()
		testkit.Check(r, len(c.Yielded) == 0 && c.TakenOver >= 9, "%+v", c)
		testkit.Same(r, r.logged("taken over from"), 1, "log lines:\n%s", r.log)
	})
	var takes []State
	inBubble(t, "with TakeOver it saves what it takes over, and forgets what was yielded", func(c *Config) {
		c.TakeOver = true
		c.Remember = func(s State) { takes = append(takes, s) }
		c.Remembered = State{Taken: map[string][]string{"B": {"other"}}, Yielded: map[string]string{"B": "other"}}
	}, func(r *running) {
		heartbeat(r)
		r.Take(both)
		r.Complete()
		for range 5 {
			pass(6 * time.Minute)
			heartbeat(r)
		}
		want := State{Taken: map[string][]string{"A": {"node-problem-detector"}, "B": {"other"}}, Yielded: map[string]string{}, Yields: map[string]int{}}
		testkit.Require(r, len(takes) != 0 && len(takes) <= 2, "saved %d times", len(takes))
		testkit.NoDiff(r, cmp.Diff(want, takes[len(takes)-1]), "the last conditions that were taken over")
	})
	var told []State
	inBubble(t, "passes taken and yielded conditions to Remember", func(c *Config) {
		c.Remember = func(s State) { told = append(told, s) }
	}, func(r *running) {
		heartbeat(r)
		r.starts(both, 0)
		pass(time.Minute)
		heartbeat(r)
		pass(10 * time.Minute)
		want := []State{
			{Taken: map[string][]string{"A": {"node-problem-detector"}}, Yielded: map[string]string{}, Yields: map[string]int{}},
			{Taken: map[string][]string{"A": {"node-problem-detector"}}, Yielded: map[string]string{"A": "node-problem-detector"}, Yields: map[string]int{"A": 1}},
		}
		testkit.NoDiff(r, cmp.Diff(want, told), "the reports")
	})
	inBubble(t, "applies the saved state", func(c *Config) {
		c.Remembered = State{Taken: map[string][]string{"A": {"node-problem-detector"}}, Yielded: map[string]string{"A": "node-problem-detector"}}
	}, func(r *running) {
		heartbeat(r)
		r.Take(both)
		r.Complete()
		for range 12 {
			pass(5 * time.Minute)
			heartbeat(r)
		}
		a := r.api.condition("A")
		testkit.Check(r, a["lastTransitionTime"] == "2026-01-01T00:00:00Z" && r.api.condition("B") != nil, "A is %v", a)
	})
	inBubble(t, "leaves nothing handed over after taking a yielded condition back", func(c *Config) { c.TakeOver = true }, func(r *running) {
		r.api.mu.Lock()
		testkit.Must(r, r.api.apply(HandManager, false, []map[string]string{{"type": "A", "status": "False"}}))
		r.api.mu.Unlock()
		r.starts(both, 10*time.Minute)
		r.takes(finding.Report{Gone: []string{"A"}}, time.Second)
		a := r.api.condition("A")
		testkit.Check(r, a == nil, "A is %v", a)
	})
}
