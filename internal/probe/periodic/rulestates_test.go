package periodic

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// entry is a result in a history.
type entry struct {
	at     time.Time
	rule   int
	answer Result
}

// naive computes a condition from the history alone: it goes back from the end of each rule's
// results while they stay the same.
func naive(rules []Rule, kind config.Condition, history []entry) (status catalog.Status, reasons []string) {
	worst := catalog.False
	var since time.Time
	reasons = []string{kind.Reason}
	for i, rule := range rules {
		if rule.Condition != kind.Type {
			continue
		}
		var own []entry
		for _, e := range history {
			if e.rule == i {
				own = append(own, e)
			}
		}
		if len(own) == 0 {
			if worst == catalog.False {
				worst, since, reasons = catalog.Unknown, time.Time{}, []string{notChecked}
			}
			continue
		}
		slices.Reverse(own)
		said := own[0].answer
		if said.Verdict == Healthy {
			continue
		}
		began := own[0].at
		for _, e := range own {
			if e.answer.Verdict != said.Verdict {
				break
			}
			began = e.at
		}
		reason := said.Reason
		if reason == "" {
			reason = rule.Reason
		}
		grave := catalog.Unknown
		if said.Verdict == Unhealthy {
			grave = catalog.True
		}
		switch {
		case grave == catalog.True && worst != catalog.True, grave == catalog.Unknown && worst == catalog.False:
			worst, since, reasons = grave, began, []string{reason}
		case grave == worst && reasons[0] != notChecked && began.Before(since):
			since, reasons = began, []string{reason}
		case grave == worst && reasons[0] != notChecked && began.Equal(since):
			reasons = append(reasons, reason)
		}
	}
	// A rule without a result takes precedence over rules that could not look.
	if worst == catalog.Unknown {
		for i, rule := range rules {
			if rule.Condition == kind.Type && !slices.ContainsFunc(history, func(e entry) bool { return e.rule == i }) {
				return worst, []string{notChecked}
			}
		}
	}
	return worst, reasons
}

// forget returns the part of a history that survives a restart: the results of each rule that last
// found the node unhealthy.
func forget(history []entry) []entry {
	last := map[int]Verdict{}
	for _, e := range history {
		last[e.rule] = e.answer.Verdict
	}
	return slices.DeleteFunc(slices.Clone(history), func(e entry) bool { return last[e.rule] != Unhealthy })
}

func TestRuleStatesMatchTheirHistory(t *testing.T) {
	statuses, events, restarts, stood := map[catalog.Status]int{}, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		kinds := []config.Condition{{Type: "X", Reason: "XIsFine"}, {Type: "Y", Reason: "YIsFine"}}
		cfg := Config{Key: "k", Source: "s", Conditions: kinds, Concurrency: 1, UpdateOnMessage: rapid.Bool().Draw(t, "update"),
			MessagePause: time.Duration(rapid.IntRange(0, 3).Draw(t, "pause")) * time.Second}
		for i := range rapid.IntRange(1, 5).Draw(t, "rules") {
			cfg.Rules = append(cfg.Rules, Rule{
				Name: strconv.Itoa(i), Permanent: true, Condition: rapid.SampledFrom([]string{"X", "X", "Y"}).Draw(t, "condition"), Reason: fmt.Sprintf("R%d", i),
			})
		}
		b := newRuleStates(cfg)
		now := time.Unix(0, 0).UTC()
		followed := map[string]finding.Condition{}
		follow := func(r finding.Report) {
			told := map[string]int{}
			for _, e := range r.Events {
				told[e.Condition]++
				events++
			}
			for _, c := range r.Conditions {
				was, known := followed[c.Type]
				testkit.Require(t, !known || was.Status == c.Status && was.Reason == c.Reason || told[c.Type] != 0,
					"%s becomes %s %s and has no event", c.Type, c.Status, c.Reason)
				testkit.Require(t, !known || was.Status != c.Status || was.Since.Equal(c.Since), "%s stays %s, and yet is since %s", c.Type, c.Status, c.Since)
				testkit.Require(t, !known || was.Status == c.Status || c.Since.Equal(now),
					"%s becomes %s at %s, and yet is since %s", c.Type, c.Status, now, c.Since)
				followed[c.Type] = c
			}
		}
		follow(b.firstReport(now))
		var history []entry
		recalled := map[string]bool{} // conditions that were True before the restart
		compare := func(before map[string]finding.Condition) {
			for _, kind := range kinds {
				status, reasons := naive(cfg.Rules, kind, history)
				if was := before[kind.Type]; recalled[kind.Type] && was.Status == catalog.True && reasons[0] == notChecked {
					status, reasons = catalog.True, []string{was.Reason} // until all rules have answered
					stood++
				}
				if got := followed[kind.Type]; got.Status != status || !slices.Contains(reasons, got.Reason) {
					t.Fatalf("%s is %s %s, want %s %s", kind.Type, got.Status, got.Reason, status, reasons)
				}
				statuses[status]++
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "seconds")) * time.Second)
			e := entry{at: now, rule: rapid.IntRange(0, len(cfg.Rules)-1).Draw(t, "rule"), answer: Result{
				Verdict: Verdict(rapid.IntRange(0, 2).Draw(t, "verdict")),
				Reason:  rapid.SampledFrom([]string{"", "Own"}).Draw(t, "reason"),
				Message: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "message"),
			}}
			history = append(history, e)
			before := maps.Clone(followed)
			b.record(now, b.rules[e.rule], e.answer)
			follow(b.report())
			compare(before)
			if rapid.IntRange(0, 9).Draw(t, "restart") != 0 {
				continue
			}
			text := testkit.Value(b.state()).Must(t)
			b = newRuleStates(cfg)
			testkit.Must(t, b.restore(now, text))
			before = maps.Clone(followed)
			follow(b.firstReport(now))
			for kind, was := range before {
				if recalled[kind] = was.Status == catalog.True; recalled[kind] && followed[kind] != was {
					t.Fatalf("a restart makes %+v of %+v", followed[kind], was)
				}
			}
			history = forget(history)
			restarts++
			compare(before)
		}
	})
	t.Logf("saw %v, %d events and %d restarts, after which %d times a condition stayed True because a rule had not answered", statuses, events, restarts, stood)
	if statuses[catalog.True] == 0 || statuses[catalog.False] == 0 || statuses[catalog.Unknown] == 0 || events == 0 || restarts == 0 || stood == 0 {
		t.Error("this test looks at nothing")
	}
}

// A new message is reported while the problem lasts, but not each time if it differs each time.
func TestANewMessageIsReported(t *testing.T) {
	for _, test := range []struct {
		name   string
		update bool
		pause  time.Duration
		want   string // what is reported, with results a second apart
	}{
		{"never, unless it is asked for", false, 0, "a....-e.g"},
		{"each time, if it is asked for", true, 0, "ab.cd-efg"},
		{"at once, and then after a pause", true, 3 * time.Second, "ab..d-efg"},
		{"at once, and then after a long one", true, time.Hour, "ab...-efg"},
	} {
		b := newRuleStates(Config{
			Key: "k", Conditions: []config.Condition{{Type: "X", Reason: "Fine", Message: "-"}}, UpdateOnMessage: test.update, MessagePause: test.pause,
			Rules: []Rule{{Permanent: true, Condition: "X", Reason: "Unhealthy"}},
		})
		now := time.Unix(0, 0)
		b.firstReport(now)
		var told, events strings.Builder
		for i, message := range "abbcd-efg" {
			answer := Result{Verdict: Unhealthy, Message: string(message)}
			switch message {
			case '-':
				answer = Result{Verdict: Healthy}
			case 'g': // a new reason is reported at once
				answer.Reason = "Worse"
			}
			b.record(now.Add(time.Duration(i)*time.Second), b.rules[0], answer)
			report, said := b.report(), "."
			if len(report.Conditions) > 0 {
				said = report.Conditions[0].Message
			}
			told.WriteString(said)
			fmt.Fprint(&events, len(report.Events))
		}
		testkit.Check(t, told.String() == test.want && strings.Count(events.String(), "1") == len(test.want)-strings.Count(test.want, "."),
			"%s: told %s with events %s, want %s", test.name, told.String(), events.String(), test.want)
	}
}

// The condition shows the same unhealthy rule until it is healthy.
func TestTheDecisiveRuleStaysTheSame(t *testing.T) {
	changes := 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Conditions: []config.Condition{{Type: "X"}}, Concurrency: 1}
		for i := range 4 {
			cfg.Rules = append(cfg.Rules, Rule{Permanent: true, Condition: "X", Reason: fmt.Sprintf("R%d", i)})
		}
		b := newRuleStates(cfg)
		b.firstReport(time.Unix(0, 0))
		verdicts := map[string]Verdict{}
		for i := range 50 {
			before := b.conditions[0].current
			r := b.rules[rapid.IntRange(0, 3).Draw(t, "rule")]
			verdicts[r.Reason] = Verdict(rapid.IntRange(0, 2).Draw(t, "verdict"))
			b.record(time.Unix(int64(i), 0), r, Result{Verdict: verdicts[r.Reason]})
			after := b.conditions[0].current
			if before.Status == catalog.True && before.Reason != after.Reason {
				changes++
				testkit.Require(t, verdicts[before.Reason] != Unhealthy, "%s is interrupted by %s", before.Reason, after.Reason)
			}
		}
	})
	t.Logf("the speaker changed %d times", changes)
	testkit.Check(t, changes != 0, "this test looks at nothing")
}

// The stored state comes from a disk and may be anything.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"boot":"1","rules":{"x":{"verdict":2,"since":"2026-01-01T00:00:00Z"}},"conditions":{"X":{"status":"True","since":"2026-01-01T00:00:00Z"}}}`))
	f.Add([]byte(`{"conditions":{"X":{"status":"Perhaps"}}}`))
	f.Add([]byte(`{"rules":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg := Config{Conditions: []config.Condition{{Type: "X"}}, Rules: []Rule{{Permanent: true, Condition: "X", Reason: "R"}}}
		b := newRuleStates(cfg)
		// The fuzzer cannot guess the key.
		text = []byte(strings.ReplaceAll(string(text), `"x"`, `"`+b.rules[0].key+`"`))
		now := time.Unix(2e9, 0)
		if err := b.restore(now, json.RawMessage(text)); err != nil {
			return
		}
		for _, c := range b.firstReport(now).Conditions {
			testkit.Check(t, (c.Status == catalog.True || c.Status == catalog.False || c.Status == catalog.Unknown) && !c.Since.After(now),
				"the condition is %+v", c)
		}
	})
}

// The state of a monitor is part of the agent's state file, version 1.
func TestTheStoredFormatDoesNotChange(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &state{})
}

// An older agent between two newer ones keeps fields that it does not know.
func TestUnknownFieldsOfTheStateAreKept(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		b := newRuleStates(Config{Boot: "6b7c", Conditions: []config.Condition{{Type: "T"}}, Rules: []Rule{{Permanent: true, Condition: "T", Reason: "R"}}})
		testkit.Must(t, b.restore(time.Unix(2e9, 0), text))
		if b.rules[0].since.IsZero() {
			t.Errorf("what stood is forgotten; the key of the rule is %s", b.rules[0].key)
		}
		again := testkit.Value(b.state()).Must(t)
		return again, b.unknown.Len()
	})
}
