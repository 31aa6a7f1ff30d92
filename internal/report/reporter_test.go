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
			reporter, err := New(cfg)
			testkit.Must(t, err)
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
		r.Take(reportOf(newCondition("A", catalog.False, "FineA", since), newCondition("B", catalog.False, "FineB", since)))
		r.Complete()
		synctest.Wait()
		return since
	}
	inBubble(t, "removes nothing before every source has reported", nil, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		pass(maxStartupWait / 2)
		if n := r.api.count(patchStatusPath); n != 0 {
			r.Errorf("%d writes before every source reported", n)
		}
		pass(maxStartupWait)
		if n := r.api.count(patchStatusPath); n != 1 {
			r.Errorf("%d writes after the wait", n)
		}
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
			if diff := cmp.Diff(want, found); diff != "" {
				r.Errorf("(-want +got):\n%s", diff)
			}
		}
		r.Await("A", "B", "C", "New")
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		pass(2 * maxStartupWait)
		shows("A False Fine", "B True Earlier", "C True Earlier")
		r.Take(reportOf(newCondition("B", catalog.True, "Sick", time.Now())))
		pass(2 * time.Second)
		shows("A False Fine", "B True Sick", "C True Earlier")
		r.api.update("npd", map[string]string{"type": "C", "status": "False", "reason": "Theirs", "lastHeartbeatTime": "2026-11-15T11:00:00Z"})
		r.Take(reportOf(newCondition("B", catalog.False, "Fine", time.Now())))
		pass(time.Minute)
		shows("A False Fine", "B False Fine", "C False Theirs")
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		pass(time.Hour)
		if n := r.api.count(patchStatusPath) - before; n != 0 {
			r.Errorf("%d writes while nothing changes", n)
		}
		r.Await()
		r.Complete()
		pass(time.Minute)
		shows("A False Fine", "B False Fine", "C False Theirs")
	})
	inBubble(t, "removes a condition that is no longer awaited", nil, func(r *running) {
		synctest.Wait()
		testkit.Must(r, r.api.apply(FieldManager, true, []map[string]string{{"type": "A", "status": "True", "reason": "Earlier", "lastHeartbeatTime": "2026-11-15T10:00:00Z"}}))
		r.Await("A")
		r.Take(reportOf(newCondition("B", catalog.False, "Fine", time.Now())))
		pass(2 * maxStartupWait)
		if r.api.condition("A") == nil {
			r.Error("it goes while it is awaited")
		}
		r.Await()
		pass(time.Minute)
		if row := r.api.condition("A"); row != nil {
			r.Errorf("the condition has no source, but stays: %v", row)
		}
	})
	inBubble(t, "writes a change at once, with all conditions and their times", nil, func(r *running) {
		since := start(r)
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		sick := time.Now().Add(-2 * time.Second)
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", sick)))
		synctest.Wait() // no time passes
		want := map[string]string{"type": "A", "status": "True", "reason": "Sick", "message": "all of Sick",
			"lastTransitionTime": sick.UTC().Format(time.RFC3339), "lastHeartbeatTime": time.Now().UTC().Format(time.RFC3339)}
		if diff := cmp.Diff(want, r.api.condition("A")); diff != "" {
			r.Error(diff)
		}
		if got := r.api.condition("B"); got["lastTransitionTime"] != since.UTC().Format(time.RFC3339) || got["status"] != "False" {
			r.Errorf("B is %v", got)
		}
		if n := r.api.count(patchStatusPath) - before; n != 1 {
			r.Errorf("%d writes for one change", n)
		}
	})
	inBubble(t, "writes nothing while nothing changes", nil, func(r *running) {
		start(r)
		for range 24 * 60 {
			pass(time.Minute)
		}
		if n := r.api.count("PATCH /api/"); n != 1 {
			r.Errorf("%d writes in a day, want the first one", n)
		}
		if looks := r.api.count("GET /api/v1/nodes/n?resourceVersion=0"); looks < 288 || looks > 600 {
			r.Errorf("%d checks in a day", looks)
		}
		if r.logged("level=WARN")+r.logged("level=ERROR") > 0 {
			r.Error(r.log.String())
		}
	})
	inBubble(t, "writes changes within 10 ms together", nil, func(r *running) {
		start(r)
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		for i := range 100 {
			r.Take(reportOf(newCondition("A", catalog.True, fmt.Sprint("Sick", i), time.Now())))
			pass(90 * time.Microsecond)
		}
		pass(coalesce)
		if n := r.api.count(patchStatusPath) - before; n != 2 {
			r.Errorf("%d writes for what came within 9 ms, want the first and the rest", n)
		}
		if got := r.api.condition("A")["reason"]; got != "Sick99" {
			r.Errorf("A is %s", got)
		}
	})
	inBubble(t, "limits writes of a flapping node to ten and then one a second", nil, func(r *running) {
		start(r)
		pass(time.Hour)
		before := r.api.count(patchStatusPath)
		for i := range 60_000 / 20 {
			r.Take(reportOf(newCondition("A", catalog.True, fmt.Sprint("Sick", i), time.Now())))
			pass(20 * time.Millisecond)
		}
		if n := r.api.count(patchStatusPath) - before; n < 60 || n > writeBurst+61 {
			r.Errorf("%d writes in a minute of flapping", n)
		}
		pass(time.Second)
		if got := r.api.condition("A")["reason"]; got != "Sick2999" {
			r.Errorf("in the end A is %s", got)
		}
	})
	inBubble(t, "removes a condition without a source", nil, func(r *running) {
		start(r)
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(coalesce)
		if a, b := r.api.condition("A"), r.api.condition("B"); a != nil || b == nil {
			r.Errorf("A is %v, B is %v", a, b)
		}
		r.Take(finding.Report{Gone: []string{"B"}})
		pass(coalesce)
		if b := r.api.condition("B"); b != nil {
			r.Errorf("B is %v", b)
		}
	})
	inBubble(t, "refuses conditions of Kubernetes and logs why", nil, func(r *running) {
		for _, kind := range []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready"} {
			r.Take(reportOf(newCondition(kind, catalog.True, "Mine", time.Now())))
		}
		start(r)
		if len(r.api.conditions) != 2 {
			r.Errorf("conditions: %v", r.api.conditions)
		}
		if got := r.Counts().Dropped[Drop{"condition", "native"}]; got != 6 {
			r.Errorf("%d were counted", got)
		}
		if n := r.logged("reported by Kubernetes itself"); n != 5 {
			r.Errorf("logged %d times:\n%s", n, r.log)
		}
	})
	inBubble(t, "counts conditions over the limit, and still updates the others", nil, func(r *running) {
		for i := range MostConditions + 5 {
			r.Take(reportOf(newCondition(fmt.Sprintf("A%03d", i), catalog.False, "Well", time.Now())))
		}
		r.Take(reportOf(newCondition("A000", catalog.True, "Sick", time.Now()), newCondition(strings.Repeat("x", LongestType+1), catalog.True, "Sick", time.Now())))
		r.Complete()
		synctest.Wait()
		if len(r.api.conditions) != MostConditions || r.api.condition("A000")["reason"] != "Sick" {
			r.Errorf("%d conditions are written, and A000 is %v", len(r.api.conditions), r.api.condition("A000"))
		}
		if dropped := r.Counts().Dropped; dropped[Drop{"condition", "too many"}] != 5 || dropped[Drop{"condition", "too long"}] != 1 {
			r.Errorf("counted: %v", dropped)
		}
		if n := r.logged("remove some from its configuration"); n != 5 {
			r.Errorf("logged %d times:\n%s", n, r.log)
		}
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
		if dropped := r.Counts().Dropped[Drop{"condition", "too many"}]; dropped != awaited {
			r.Errorf("%d are counted", dropped)
		}
		r.Take(reportOf(newCondition("A000", catalog.True, "Sick", time.Now())))
		pass(time.Minute)
		if dropped := r.Counts().Dropped[Drop{"condition", "too many"}]; dropped != awaited || r.api.condition("A000")["reason"] != "Sick" {
			r.Errorf("after another write %d are counted, and A000 is %v", dropped, r.api.condition("A000"))
		}
		r.Await()
		pass(time.Minute)
		if last := fmt.Sprintf("A%03d", MostConditions-1); len(r.api.conditions) != MostConditions || r.api.condition("Z059") != nil || r.api.condition(last) == nil {
			r.Errorf("when there is room %d conditions are written: %v", len(r.api.conditions), r.api.conditions)
		}
	})
	inBubble(t, "writes invalid text in a valid form", nil, func(r *running) {
		r.Take(finding.Report{Conditions: []finding.Condition{{Type: "A", Status: catalog.True, Reason: "R", Message: "\xff\xfe" + strings.Repeat("ü", 4000), Since: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)}}})
		r.Complete()
		synctest.Wait()
		for range 24 {
			pass(time.Hour)
		}
		if _, err := time.Parse(time.RFC3339, r.api.condition("A")["lastTransitionTime"]); err != nil {
			r.Error(err)
		}
		if n := r.api.count(patchStatusPath); n != 1 || len(r.api.condition("A")["message"]) > LongestMessage {
			r.Errorf("%d writes: %v", n, r.api.condition("A"))
		}
	})
	inBubble(t, "detects and reverts a change by another manager", nil, func(r *running) {
		start(r)
		r.api.update("kubectl-edit", map[string]string{"type": "A", "status": "True"})
		pass(defaultLookEvery)
		if got := r.api.condition("A")["status"]; got != "False" {
			r.Errorf("A is %s", got)
		}
		if c := r.Counts(); c.Mended != 1 || c.TakenOver != 1 || len(c.Yielded) != 0 {
			r.Errorf("%+v", c)
		}
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
			if err := r.api.apply(FieldManager, false, rows); err != nil {
				r.Error(err)
			}
			r.api.mu.Unlock()
			pass(defaultLookEvery)
			if a, b := r.api.condition("A"), r.api.condition("B"); a["status"] != "False" || b["reason"] != "FineB" {
				r.Errorf("A is %v, B is %v", a, b)
			}
		}
		if c := r.Counts(); c.TakenOver != 0 || len(c.Yielded) != 0 {
			r.Errorf("%+v", c)
		}
	})
	inBubble(t, "ignores a read that is older than its last write", nil, func(r *running) {
		start(r)
		old := r.api.node()
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
		pass(coalesce)
		r.mu.Lock()
		r.core.answer(time.Now(), &request{kind: requestCheck, readsNode: true}, kubeapi.Answer{Body: old}, nil)
		mend := r.core.conditions.needsRewrite
		r.mu.Unlock()
		if mend {
			r.Error("what the server's cache had not seen yet was taken for a foreign change")
		}
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
		r.Take(both)
		r.Complete()
		synctest.Wait()
		if got := r.api.condition("A")["lastTransitionTime"]; got != since.Format(time.RFC3339) {
			r.Errorf("the condition was not taken over: %s", got)
		}
		for range 12 * 24 {
			pass(5 * time.Minute)
			heartbeat(r)
			// The other manager owns only the times, but the condition must keep its fields.
			if a := r.api.condition("A"); a["status"] != "False" || a["reason"] != "FineA" || a["message"] == "" {
				r.Fatalf("A is %v", a)
			}
		}
		if diff := cmp.Diff(map[string]string{"A": "node-problem-detector"}, r.Counts().Yielded); diff != "" {
			r.Error(diff)
		}
		if n := r.logged("yielded to another manager"); n != 1 {
			r.Errorf("logged %d times:\n%s", n, r.log)
		}
		writes := r.api.count(patchStatusPath)
		if writes > 8 {
			r.Errorf("%d writes in a day of two writers", writes)
		}
		// Both managers go on with their own conditions.
		r.api.update("node-problem-detector", map[string]string{"type": "A", "status": "True", "reason": "Theirs"})
		r.Take(reportOf(newCondition("A", catalog.False, "Ours", time.Now()), newCondition("B", catalog.True, "Ours", time.Now())))
		pass(10 * time.Minute)
		if a, b := r.api.condition("A"), r.api.condition("B"); a["reason"] != "Theirs" || b["reason"] != "Ours" {
			r.Errorf("A is %v, B is %v", a, b)
		}
		if r.api.owners[FieldManager]["A"] != nil {
			r.Errorf("A still belongs to the agent: %v", r.api.owners)
		}
	})
	inBubble(t, "keeps the fields of a yielded condition that only the agent owned", nil, func(r *running) {
		r.Take(both)
		r.Complete()
		synctest.Wait()
		for range 10 {
			// It writes the same values, so it owns only the times.
			heartbeat(r)
			pass(5 * time.Minute)
			if a := r.api.condition("A"); a["status"] != "False" || a["reason"] != "FineA" || a["message"] == "" {
				r.Fatalf("A is %v", a)
			}
		}
		if r.Counts().Yielded["A"] == "" || r.api.owners[FieldManager]["A"] != nil {
			r.Errorf("A still belongs to the agent: %v", r.api.owners)
		}
	})
	inBubble(t, "treats a manager that differs only in the heartbeat as a writer", nil, func(r *running) {
		r.Take(both)
		r.Complete()
		synctest.Wait()
		for range 4 {
			r.api.update("twin", map[string]string{"type": "A", "lastHeartbeatTime": time.Now().Add(time.Second).UTC().Format(time.RFC3339)})
			pass(6 * time.Minute)
		}
		if r.Counts().Yielded["A"] != "twin" {
			r.Errorf("%+v", r.Counts())
		}
	})
	inBubble(t, "takes a condition over each time with TakeOver", func(c *Config) { c.TakeOver = true }, func(r *running) {
		r.Take(both)
		r.Complete()
		for range 10 {
			heartbeat(r)
			pass(6 * time.Minute)
			if got := r.api.condition("A")["lastTransitionTime"]; got != since.Format(time.RFC3339) {
				r.Errorf("the condition was not taken over: %s", got)
			}
		}
		if c := r.Counts(); len(c.Yielded) > 0 || c.TakenOver < 9 {
			r.Errorf("%+v", c)
		}
		if n := r.logged("taken over from"); n != 1 {
			r.Errorf("logged %d times:\n%s", n, r.log)
		}
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
		if len(takes) == 0 || len(takes) > 2 {
			r.Fatalf("saved %d times", len(takes))
		}
		if diff := cmp.Diff(want, takes[len(takes)-1]); diff != "" {
			r.Error(diff)
		}
	})
	var told []State
	inBubble(t, "passes taken and yielded conditions to Remember", func(c *Config) {
		c.Remember = func(s State) { told = append(told, s) }
	}, func(r *running) {
		heartbeat(r)
		r.Take(both)
		r.Complete()
		synctest.Wait()
		pass(time.Minute)
		heartbeat(r)
		pass(10 * time.Minute)
		want := []State{
			{Taken: map[string][]string{"A": {"node-problem-detector"}}, Yielded: map[string]string{}, Yields: map[string]int{}},
			{Taken: map[string][]string{"A": {"node-problem-detector"}}, Yielded: map[string]string{"A": "node-problem-detector"}, Yields: map[string]int{"A": 1}},
		}
		if diff := cmp.Diff(want, told); diff != "" {
			r.Error(diff)
		}
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
		if a := r.api.condition("A"); a["lastTransitionTime"] != "2026-01-01T00:00:00Z" || r.api.condition("B") == nil {
			r.Errorf("A is %v", a)
		}
	})
	inBubble(t, "leaves nothing handed over after taking a yielded condition back", func(c *Config) { c.TakeOver = true }, func(r *running) {
		r.api.mu.Lock()
		if err := r.api.apply(HandManager, false, []map[string]string{{"type": "A", "status": "False"}}); err != nil {
			r.Error(err)
		}
		r.api.mu.Unlock()
		r.Take(both)
		r.Complete()
		pass(10 * time.Minute)
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(time.Second)
		if a := r.api.condition("A"); a != nil {
			r.Errorf("A is %v", a)
		}
	})
}
