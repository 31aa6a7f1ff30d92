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
)

const patchStatus = "PATCH /api/v1/nodes/n/status"

func condition(kind string, status catalog.Status, reason string, since time.Time) finding.Condition {
	return finding.Condition{Type: kind, Status: status, Reason: reason, Message: "all of " + reason, Since: since}
}

func conditions(list ...finding.Condition) finding.Report {
	return finding.Report{Source: "kernel-monitor", Conditions: list}
}

// running is a reporter that runs in a bubble.
type running struct {
	*testing.T
	*Reporter
	api  *fake
	log  *bytes.Buffer
	stop func()
}

func (r *running) logged(words string) int { return strings.Count(r.log.String(), words) }

// inBubble runs a story with a clock of its own.
// inBubble runs the story after the reporter has started and read what the API server
// has. State that the reporter must find when it starts belongs into shape.
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
			if err != nil {
				t.Fatal(err)
			}
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
	time.Sleep(d) //nolint:forbidigo // the clock of a bubble, which has no other way to go on
	synctest.Wait()
}

func TestConditions(t *testing.T) {
	start := func(r *running) time.Time {
		since := time.Now().Add(-time.Hour)
		r.Take(conditions(condition("A", catalog.False, "FineA", since), condition("B", catalog.False, "FineB", since)))
		r.Complete()
		synctest.Wait()
		return since
	}
	inBubble(t, "nothing is removed before everybody has had his say", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		pass(settleAfter / 2)
		if n := r.api.count(patchStatus); n != 0 {
			r.Errorf("%d writes before all was known", n)
		}
		pass(settleAfter)
		if n := r.api.count(patchStatus); n != 1 {
			r.Errorf("%d writes although the wait is over", n)
		}
	})
	inBubble(t, "what an agent before us has said of awaited conditions stands until they are told", nil, func(r *running) {
		earlier := func(kind, status string) map[string]string {
			return map[string]string{"type": kind, "status": status, "reason": "Earlier", "message": "", "lastTransitionTime": "2026-11-15T10:00:00Z", "lastHeartbeatTime": "2026-11-15T10:00:00Z"}
		}
		synctest.Wait()
		if err := r.api.apply(FieldManager, true, []map[string]string{earlier("A", "True"), earlier("B", "True"), earlier("C", "True"), earlier("Old", "True")}); err != nil {
			r.Fatal(err)
		}
		shows := func(want ...string) {
			r.Helper()
			var found []string
			for _, kind := range []string{"A", "B", "C", "Old"} {
				if row := r.api.row(kind); row != nil {
					found = append(found, kind+" "+row["status"]+" "+row["reason"])
				}
			}
			if diff := cmp.Diff(want, found); diff != "" {
				r.Errorf("(-want +shows):\n%s", diff)
			}
		}
		r.Await("A", "B", "C", "New")
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		pass(2 * settleAfter)
		shows("A False Fine", "B True Earlier", "C True Earlier")
		r.Take(conditions(condition("B", catalog.True, "Sick", time.Now())))
		pass(2 * time.Second)
		shows("A False Fine", "B True Sick", "C True Earlier")
		r.api.update("npd", map[string]string{"type": "C", "status": "False", "reason": "Theirs", "lastHeartbeatTime": "2026-11-15T11:00:00Z"})
		r.Take(conditions(condition("B", catalog.False, "Fine", time.Now())))
		pass(time.Minute)
		shows("A False Fine", "B False Fine", "C False Theirs")
		pass(time.Hour)
		before := r.api.count(patchStatus)
		pass(time.Hour)
		if n := r.api.count(patchStatus) - before; n != 0 {
			r.Errorf("%d writes while nothing changes", n)
		}
		r.Await()
		r.Complete()
		pass(time.Minute)
		shows("A False Fine", "B False Fine", "C False Theirs")
	})
	inBubble(t, "what is awaited no longer goes", nil, func(r *running) {
		synctest.Wait()
		if err := r.api.apply(FieldManager, true, []map[string]string{{"type": "A", "status": "True", "reason": "Earlier", "lastHeartbeatTime": "2026-11-15T10:00:00Z"}}); err != nil {
			r.Fatal(err)
		}
		r.Await("A")
		r.Take(conditions(condition("B", catalog.False, "Fine", time.Now())))
		pass(2 * settleAfter)
		if r.api.row("A") == nil {
			r.Error("it goes while it is awaited")
		}
		r.Await()
		pass(time.Minute)
		if row := r.api.row("A"); row != nil {
			r.Errorf("nobody keeps it, and it stays: %v", row)
		}
	})
	inBubble(t, "a change is told at once, all rows with it and their own times", nil, func(r *running) {
		since := start(r)
		pass(time.Hour)
		before := r.api.count(patchStatus)
		sick := time.Now().Add(-2 * time.Second)
		r.Take(conditions(condition("A", catalog.True, "Sick", sick)))
		synctest.Wait() // no time passes
		want := map[string]string{"type": "A", "status": "True", "reason": "Sick", "message": "all of Sick",
			"lastTransitionTime": sick.UTC().Format(time.RFC3339), "lastHeartbeatTime": time.Now().UTC().Format(time.RFC3339)}
		if diff := cmp.Diff(want, r.api.row("A")); diff != "" {
			r.Error(diff)
		}
		if got := r.api.row("B"); got["lastTransitionTime"] != since.UTC().Format(time.RFC3339) || got["status"] != "False" {
			r.Errorf("B is %v", got)
		}
		if n := r.api.count(patchStatus) - before; n != 1 {
			r.Errorf("%d writes for one change", n)
		}
	})
	inBubble(t, "nothing is written while nothing changes", nil, func(r *running) {
		start(r)
		for range 24 * 60 {
			pass(time.Minute)
		}
		if n := r.api.count("PATCH /api/"); n != 1 {
			r.Errorf("%d writes in a day, want the first one", n)
		}
		if looks := r.api.count("GET /api/v1/nodes/n?resourceVersion=0"); looks < 288 || looks > 600 {
			r.Errorf("%d looks in a day", looks)
		}
		if r.logged("level=WARN")+r.logged("level=ERROR") > 0 {
			r.Error(r.log.String())
		}
	})
	inBubble(t, "changes within 10 ms go together", nil, func(r *running) {
		start(r)
		pass(time.Hour)
		before := r.api.count(patchStatus)
		for i := range 100 {
			r.Take(conditions(condition("A", catalog.True, fmt.Sprint("Sick", i), time.Now())))
			pass(90 * time.Microsecond)
		}
		pass(coalesce)
		if n := r.api.count(patchStatus) - before; n != 2 {
			r.Errorf("%d writes for what came within 9 ms, want the first and the rest", n)
		}
		if got := r.api.row("A")["reason"]; got != "Sick99" {
			r.Errorf("A is %s", got)
		}
	})
	inBubble(t, "a node that flaps has ten writes and then one a second", nil, func(r *running) {
		start(r)
		pass(time.Hour)
		before := r.api.count(patchStatus)
		for i := range 60_000 / 20 {
			r.Take(conditions(condition("A", catalog.True, fmt.Sprint("Sick", i), time.Now())))
			pass(20 * time.Millisecond)
		}
		if n := r.api.count(patchStatus) - before; n < 60 || n > mostWrites+61 {
			r.Errorf("%d writes in a minute of flapping", n)
		}
		pass(time.Second)
		if got := r.api.row("A")["reason"]; got != "Sick2999" {
			r.Errorf("in the end A is %s", got)
		}
	})
	inBubble(t, "a condition that nobody keeps any more is removed", nil, func(r *running) {
		start(r)
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(coalesce)
		if a, b := r.api.row("A"), r.api.row("B"); a != nil || b == nil {
			r.Errorf("A is %v, B is %v", a, b)
		}
		r.Take(finding.Report{Gone: []string{"B"}})
		pass(coalesce)
		if b := r.api.row("B"); b != nil {
			r.Errorf("B is %v", b)
		}
	})
	inBubble(t, "conditions of Kubernetes are refused with words", nil, func(r *running) {
		for _, kind := range []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready"} {
			r.Take(conditions(condition(kind, catalog.True, "Mine", time.Now())))
		}
		start(r)
		if len(r.api.rows) != 2 {
			r.Errorf("rows: %v", r.api.rows)
		}
		if got := r.Counts().Dropped[Drop{"condition", "native"}]; got != 6 {
			r.Errorf("%d were counted", got)
		}
		if n := r.logged("kept by Kubernetes itself"); n != 5 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
	})
	inBubble(t, "more conditions than it may write are counted, and those that it writes still change", nil, func(r *running) {
		for i := range MostConditions + 5 {
			r.Take(conditions(condition(fmt.Sprintf("A%03d", i), catalog.False, "Well", time.Now())))
		}
		r.Take(conditions(condition("A000", catalog.True, "Sick", time.Now()), condition(strings.Repeat("x", LongestType+1), catalog.True, "Sick", time.Now())))
		r.Complete()
		synctest.Wait()
		if len(r.api.rows) != MostConditions || r.api.row("A000")["reason"] != "Sick" {
			r.Errorf("%d rows are written, and A000 is %v", len(r.api.rows), r.api.row("A000"))
		}
		if dropped := r.Counts().Dropped; dropped[Drop{"condition", "too many"}] != 5 || dropped[Drop{"condition", "too long"}] != 1 {
			r.Errorf("counted: %v", dropped)
		}
		if n := r.logged("remove some from its configuration"); n != 5 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
	})
	inBubble(t, "rows that are awaited count among those that it may write", nil, func(r *running) {
		const awaited = 60
		var rows []map[string]string
		var kinds []string
		for i := range awaited {
			kinds = append(kinds, fmt.Sprintf("Z%03d", i))
			rows = append(rows, map[string]string{"type": kinds[i], "status": "True", "reason": "Earlier", heartbeatTime: "2026-11-15T10:00:00Z"})
		}
		synctest.Wait()
		if err := r.api.apply(FieldManager, true, rows); err != nil {
			r.Fatal(err)
		}
		r.Await(kinds...)
		for i := range MostConditions {
			r.Take(conditions(condition(fmt.Sprintf("A%03d", i), catalog.False, "Well", time.Now())))
		}
		r.Complete()
		pass(time.Minute)
		if last := fmt.Sprintf("A%03d", MostConditions-awaited-1); len(r.api.rows) != MostConditions || r.api.row("Z059") == nil || r.api.row(last) == nil || r.forbidden() != 0 {
			r.Errorf("%d rows are written: %+v\n%s", len(r.api.rows), r.Counts(), r.log)
		}
		if dropped := r.Counts().Dropped[Drop{"condition", "too many"}]; dropped != awaited {
			r.Errorf("%d are counted", dropped)
		}
		r.Take(conditions(condition("A000", catalog.True, "Sick", time.Now())))
		pass(time.Minute)
		if dropped := r.Counts().Dropped[Drop{"condition", "too many"}]; dropped != awaited || r.api.row("A000")["reason"] != "Sick" {
			r.Errorf("after another write %d are counted, and A000 is %v", dropped, r.api.row("A000"))
		}
		r.Await()
		pass(time.Minute)
		if last := fmt.Sprintf("A%03d", MostConditions-1); len(r.api.rows) != MostConditions || r.api.row("Z059") != nil || r.api.row(last) == nil {
			r.Errorf("when there is room %d rows are written: %v", len(r.api.rows), r.api.rows)
		}
	})
	inBubble(t, "what cannot be written as it is does not stand in the way", nil, func(r *running) {
		r.Take(finding.Report{Conditions: []finding.Condition{{Type: "A", Status: catalog.True, Reason: "R", Message: "\xff\xfe" + strings.Repeat("ü", 4000), Since: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)}}})
		r.Complete()
		synctest.Wait()
		for range 24 {
			pass(time.Hour)
		}
		if _, err := time.Parse(time.RFC3339, r.api.row("A")["lastTransitionTime"]); err != nil {
			r.Error(err)
		}
		if n := r.api.count(patchStatus); n != 1 || len(r.api.row("A")["message"]) > LongestMessage {
			r.Errorf("%d writes: %v", n, r.api.row("A"))
		}
	})
	inBubble(t, "a foreign change is found and mended", nil, func(r *running) {
		start(r)
		r.api.update("kubectl-edit", map[string]string{"type": "A", "status": "True"})
		pass(defaultLookEvery)
		if got := r.api.row("A")["status"]; got != "False" {
			r.Errorf("A is %s", got)
		}
		if c := r.Counts(); c.Mended != 1 || c.TakenOver != 1 || len(c.Yielded) != 0 {
			r.Errorf("%+v", c)
		}
	})
	inBubble(t, "what was written under our own name, as for a silent agent, is put right without a fight", nil, func(r *running) {
		start(r)
		for range 3 {
			r.api.mu.Lock()
			rows := []map[string]string{}
			for kind := range r.api.rows {
				now := time.Now().UTC().Format(time.RFC3339)
				rows = append(rows, map[string]string{"type": kind, "status": "Unknown", "reason": "AgentSilent", "message": "", "lastTransitionTime": now, "lastHeartbeatTime": now})
			}
			if err := r.api.apply(FieldManager, false, rows); err != nil {
				r.Error(err)
			}
			r.api.mu.Unlock()
			pass(defaultLookEvery)
			if a, b := r.api.row("A"), r.api.row("B"); a["status"] != "False" || b["reason"] != "FineB" {
				r.Errorf("A is %v, B is %v", a, b)
			}
		}
		if c := r.Counts(); c.TakenOver != 0 || len(c.Yielded) != 0 {
			r.Errorf("%+v", c)
		}
	})
	inBubble(t, "an old look, from before our write, changes nothing", nil, func(r *running) {
		start(r)
		old := r.api.node()
		r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
		pass(coalesce)
		r.mu.Lock()
		r.core.answer(time.Now(), &request{kind: forLook, reads: true}, kubeapi.Answer{Body: old}, nil)
		mend := r.core.rows.mend
		r.mu.Unlock()
		if mend {
			r.Error("what the server's cache had not seen yet was taken for a foreign change")
		}
	})
}

// What an old node-problem-detector writes every five minutes.
func heartbeat(r *running) {
	now := time.Now().UTC().Format(time.RFC3339)
	r.api.update("node-problem-detector", map[string]string{"type": "A", "status": "False", "reason": "FineA", "message": "all of FineA",
		"lastHeartbeatTime": now, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

func TestTwoWriters(t *testing.T) {
	since := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	both := conditions(condition("A", catalog.False, "FineA", since), condition("B", catalog.False, "FineB", since))
	inBubble(t, "a row is taken over once, and yielded when the other writes it again", nil, func(r *running) {
		heartbeat(r)
		r.Take(both)
		r.Complete()
		synctest.Wait()
		if got := r.api.row("A")["lastTransitionTime"]; got != since.Format(time.RFC3339) {
			r.Errorf("the row was not taken over: %s", got)
		}
		for range 12 * 24 {
			pass(5 * time.Minute)
			heartbeat(r)
			// Though it owns no more than the times, the row must stay whole.
			if a := r.api.row("A"); a["status"] != "False" || a["reason"] != "FineA" || a["message"] == "" {
				r.Fatalf("A is %v", a)
			}
		}
		if diff := cmp.Diff(map[string]string{"A": "node-problem-detector"}, r.Counts().Yielded); diff != "" {
			r.Error(diff)
		}
		if n := r.logged("left to another manager"); n != 1 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
		writes := r.api.count(patchStatus)
		if writes > 8 {
			r.Errorf("%d writes in a day of two writers", writes)
		}
		// The other goes on as it likes, and so do we with what is ours.
		r.api.update("node-problem-detector", map[string]string{"type": "A", "status": "True", "reason": "Theirs"})
		r.Take(conditions(condition("A", catalog.False, "Ours", time.Now()), condition("B", catalog.True, "Ours", time.Now())))
		pass(10 * time.Minute)
		if a, b := r.api.row("A"), r.api.row("B"); a["reason"] != "Theirs" || b["reason"] != "Ours" {
			r.Errorf("A is %v, B is %v", a, b)
		}
		if r.api.owners[FieldManager]["A"] != nil {
			r.Errorf("A is ours still: %v", r.api.owners)
		}
	})
	inBubble(t, "what of a yielded row was only ours does not vanish with us", nil, func(r *running) {
		r.Take(both)
		r.Complete()
		synctest.Wait()
		for range 10 {
			// It says the same, and so it owns no more than the times.
			heartbeat(r)
			pass(5 * time.Minute)
			if a := r.api.row("A"); a["status"] != "False" || a["reason"] != "FineA" || a["message"] == "" {
				r.Fatalf("A is %v", a)
			}
		}
		if r.Counts().Yielded["A"] == "" || r.api.owners[FieldManager]["A"] != nil {
			r.Errorf("A is ours still: %v", r.api.owners)
		}
	})
	inBubble(t, "one who agrees in all but the heartbeat is a second writer too", nil, func(r *running) {
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
	inBubble(t, "with take-over it is ours each time", func(c *Config) { c.TakeOver = true }, func(r *running) {
		r.Take(both)
		r.Complete()
		for range 10 {
			heartbeat(r)
			pass(6 * time.Minute)
			if got := r.api.row("A")["lastTransitionTime"]; got != since.Format(time.RFC3339) {
				r.Errorf("the row was not taken over: %s", got)
			}
		}
		if c := r.Counts(); len(c.Yielded) > 0 || c.TakenOver < 9 {
			r.Errorf("%+v", c)
		}
		if n := r.logged("is taken over"); n != 1 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
	})
	var takes []State
	inBubble(t, "what is taken over each time is remembered, and what was yielded no longer", func(c *Config) {
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
			r.Fatalf("told %d times", len(takes))
		}
		if diff := cmp.Diff(want, takes[len(takes)-1]); diff != "" {
			r.Error(diff)
		}
	})
	var told []State
	inBubble(t, "what was taken and yielded is told to whoever remembers", func(c *Config) {
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
	inBubble(t, "and what is remembered holds", func(c *Config) {
		c.Remembered = State{Taken: map[string][]string{"A": {"node-problem-detector"}}, Yielded: map[string]string{"A": "node-problem-detector"}}
	}, func(r *running) {
		heartbeat(r)
		r.Take(both)
		r.Complete()
		for range 12 {
			pass(5 * time.Minute)
			heartbeat(r)
		}
		if a := r.api.row("A"); a["lastTransitionTime"] != "2026-01-01T00:00:00Z" || r.api.row("B") == nil {
			r.Errorf("A is %v", a)
		}
	})
	inBubble(t, "who takes a yielded row back leaves nothing behind", func(c *Config) { c.TakeOver = true }, func(r *running) {
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
		if a := r.api.row("A"); a != nil {
			r.Errorf("A is %v", a)
		}
	})
}
