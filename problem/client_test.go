package problem_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

func must(t *testing.T, err error) {
	t.Helper()
	testkit.Must(t, err)
}

var unhealthy = problem.Condition{Type: "DiskBadBlock", Status: problem.True, Reason: "BadBlocksFound", Message: "3 of them"}
var well = problem.Condition{Type: "DiskBadBlock", Reason: "NoBadBlocks"}

func reasons(got []problem.Status) []string {
	var list []string
	for _, s := range got {
		for _, e := range s.Events {
			list = append(list, e.Reason)
		}
	}
	return list
}

func TestReportsAreBatchedAndSorted(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		now := time.Now()
		must(t, c.SetCondition(well))
		must(t, c.Report(problem.Event{Reason: "Second", Timestamp: now.Add(-time.Second)}))
		must(t, c.Report(problem.Event{Reason: "First", Timestamp: now.Add(-time.Minute), Severity: problem.Info}))
		must(t, c.SetCondition(unhealthy))
		pass(20 * time.Millisecond)
		got, _ := a.statuses()
		testkit.Require(t, len(got) == 1 && got[0].Source == "disk-watch" && slices.Equal(reasons(got), []string{"First", "Second"}), "%+v", got)
		e := got[0].Events
		testkit.Check(t, e[0].Severity == problem.Info && e[1].Severity == problem.Warn && e[0].Timestamp.Equal(now.Add(-time.Minute)), "%+v", e)
		k := got[0].Conditions
		testkit.Check(t, len(k) == 1 && k[0].Status == problem.True && k[0].Transition.Equal(now), "%+v", k)
	})
}

func TestTheHeartbeatHasTheLatestConditions(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		must(t, c.SetCondition(well))
		began := time.Now()
		pass(10*time.Minute + time.Second)
		got, _ := a.statuses()
		testkit.Same(t, len(got), 21, "statuses in ten minutes: one in 30 s")
		must(t, c.SetCondition(well)) // no change
		pass(time.Second)
		got, _ = a.statuses()
		testkit.Check(t, len(got) == 0, "an existing finding is reported again: %+v", got)
		changed := time.Now()
		must(t, c.SetCondition(unhealthy))
		pass(10 * time.Second)
		must(t, c.SetCondition(problem.Condition{Type: unhealthy.Type, Status: problem.True, Reason: unhealthy.Reason, Message: "4 of them"}))
		pass(time.Minute)
		got, _ = a.statuses()
		last := got[len(got)-1].Conditions
		testkit.Check(t, len(got) == 3 && len(last) == 1 && last[0].Status == problem.True && last[0].Message == "4 of them" && last[0].Transition.Equal(changed),
			"%+v, want it true since %s, and not since %s", got, changed, began)
	})
}

func TestStatusesAreRateLimited(t *testing.T) {
	runClient(t, problem.Config{Queue: 10_000}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		for i := range 1000 {
			must(t, c.Report(problem.Event{Reason: fmt.Sprintf("E%d", i)}))
			pass(time.Millisecond)
		}
		pass(20 * time.Second)
		got, tried := a.statuses()
		for i := 1; i < len(tried); i++ {
			gap := tried[i].Sub(tried[i-1])
			testkit.Check(t, gap >= time.Second, "statuses %d and %d are %s apart", i-1, i, gap)
		}
		list := reasons(got)
		testkit.Check(t, len(list) == 1000 && list[999] == "E999", "%d events got there", len(list))
		t.Logf("saw %d statuses", len(tried))
	})
}

func TestAStatusIsNeverTooLarge(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		for range 300 { // the agent of this test fails for a status that is too large
			must(t, c.Report(problem.Event{Reason: "Long", Message: strings.Repeat("\x01", 5000)}))
		}
		pass(time.Minute)
		got, _ := a.statuses()
		testkit.Check(t, len(reasons(got)) == 300 && len(got[0].Events[0].Message) <= problem.MaxMessage, "%d events got there", len(reasons(got)))
	})
}

func TestEventsSurviveAnOutageOfTheAgent(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		must(t, c.SetCondition(well))
		pass(time.Second)
		a.statuses()
		a.set(func() {
			a.answer = func(problem.Status) *problem.RefusedError { return &problem.RefusedError{Code: 503} }
		})
		must(t, c.SetCondition(unhealthy))
		must(t, c.Report(problem.Event{Reason: "Before"}))
		pass(5 * time.Second)
		testkit.Check(t, c.Err() != nil && c.Counts().Waiting == 1, "%v, %+v", c.Err(), c.Counts())
		must(t, c.Report(problem.Event{Reason: "Meanwhile"}))
		must(t, c.SetCondition(well))
		pass(10 * time.Minute)
		_, tried := a.statuses()
		testkit.Check(t, len(tried) >= 10 && len(tried) <= 60, "it was tried %d times in ten minutes", len(tried))
		a.set(func() { a.answer = nil })
		pass(31 * time.Second)
		got, _ := a.statuses()
		testkit.Check(t, slices.Equal(reasons(got), []string{"Before", "Meanwhile"}) && got[len(got)-1].Conditions[0].Status == problem.False, "%+v", got)
		testkit.Check(t, c.Err() == nil, "%v", c.Err())
	})
}

func TestDiscardDropsEvents(t *testing.T) {
	runClient(t, problem.Config{OnFailure: problem.Discard}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		a.set(func() { a.away = true })
		must(t, c.SetCondition(unhealthy))
		must(t, c.Report(problem.Event{Reason: "Lost"}))
		pass(5 * time.Second)
		a.set(func() { a.away = false })
		must(t, c.Report(problem.Event{Reason: "Found"}))
		pass(time.Minute)
		got, _ := a.statuses()
		testkit.Check(t, slices.Equal(reasons(got), []string{"Found"}) && got[0].Conditions[0].Status == problem.True, "%+v", got)
		counts := c.Counts()
		testkit.Check(t, counts.EventsDropped == 1 && counts.EventsDelivered == 1, "%+v", counts)
	})
}

func TestAFullQueueDropsTheOldest(t *testing.T) {
	runClient(t, problem.Config{Queue: 10}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		a.set(func() { a.away = true })
		for i := range 25 {
			must(t, c.Report(problem.Event{Reason: fmt.Sprintf("E%d", i)}))
			pass(time.Second)
		}
		a.set(func() { a.away = false })
		pass(time.Minute)
		got, _ := a.statuses()
		list := reasons(got)
		testkit.Check(t, len(list) == 10 && list[0] == "E15" && list[9] == "E24", "%q got there", list)
		testkit.Same(t, c.Counts().EventsDropped, 15, "dropped events")
	})
}

func TestRetryAfterIsRespected(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		a.set(func() {
			a.answer, a.after = func(problem.Status) *problem.RefusedError { return &problem.RefusedError{Code: 429} }, "17"
		})
		must(t, c.Report(problem.Event{Reason: "Fast"}))
		pass(time.Minute)
		_, tried := a.statuses()
		testkit.Require(t, len(tried) >= 3, "tried %d times", len(tried))
		for i := 1; i < len(tried); i++ {
			gap := tried[i].Sub(tried[i-1])
			testkit.Check(t, gap >= 17*time.Second, "it was tried again after %s", gap)
		}
	})
}

func TestAnInvalidPartDoesNotBlockOthers(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		a.set(func() {
			a.answer = func(s problem.Status) *problem.RefusedError {
				for i, e := range s.Events {
					if e.Reason == "Bad" {
						return &problem.RefusedError{Code: 422, Problem: "bad", Field: fmt.Sprintf("events[%d].reason", i)}
					}
				}
				for i, k := range s.Conditions {
					if k.Type == "Unheard" {
						return &problem.RefusedError{Code: 422, Problem: "unknown", Field: fmt.Sprintf("conditions[%d].type", i)}
					}
				}
				return nil
			}
		})
		must(t, c.SetCondition(problem.Condition{Type: "Unheard", Reason: "Of"}))
		must(t, c.SetCondition(unhealthy))
		for _, reason := range []string{"A", "Bad", "B", "Bad", "C"} {
			must(t, c.Report(problem.Event{Reason: reason}))
		}
		pass(10 * time.Second)
		got, _ := a.statuses()
		testkit.Require(t, slices.Equal(reasons(got), []string{"A", "B", "C"}) && len(got[0].Conditions) == 1 && got[0].Conditions[0].Type == unhealthy.Type,
			"%+v", got)
		counts := c.Counts()
		testkit.Check(t, counts.EventsRefused == 2 && counts.Waiting == 0, "%+v", counts)
		a.set(func() { a.answer = nil }) // the agent is now configured for the condition
		pass(2 * time.Minute)
		got, _ = a.statuses()
		testkit.Check(t, len(got[len(got)-1].Conditions) == 2, "the condition is left out for ever")
	})
}

func TestAConditionIsDeliveredAfterTheClockWasSetBack(t *testing.T) {
	runClient(t, problem.Config{}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		known := time.Now().Add(3 * time.Second)
		a.set(func() {
			a.answer = func(s problem.Status) *problem.RefusedError {
				if len(s.Conditions) > 0 && s.Conditions[0].Transition.Before(known) {
					return &problem.RefusedError{Code: http.StatusConflict, Field: "conditions[0].transition"}
				}
				return nil
			}
		})
		must(t, c.SetCondition(unhealthy))
		pass(20 * time.Second)
		got, _ := a.statuses()
		testkit.Check(t, len(got) != 0 && got[0].Conditions[0].Status == problem.True, "it never gets there")
	})
}

// soon answers like an agent that gets times in the future.
func soon(s problem.Status) *problem.RefusedError {
	early := func(at time.Time, field string, place int) *problem.RefusedError {
		if now := time.Now(); at.After(now.Add(5 * time.Second)) {
			return &problem.RefusedError{Code: http.StatusTooEarly, Field: fmt.Sprintf(field, place), Problem: "here it is " + now.String()}
		}
		return nil
	}
	for i, k := range s.Conditions {
		if refusal := early(k.Transition, "conditions[%d].transition", i); refusal != nil {
			return refusal
		}
	}
	for i, e := range s.Events {
		if refusal := early(e.Timestamp, "events[%d].timestamp", i); refusal != nil {
			return refusal
		}
	}
	return nil
}

func TestTimesInTheFutureAreCorrected(t *testing.T) {
	var said bytes.Buffer
	runClient(t, problem.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		a.set(func() { a.answer = soon })
		ahead := unhealthy
		ahead.Transition = time.Now().Add(time.Hour)
		for i := range 90 {
			must(t, c.Report(problem.Event{Reason: fmt.Sprintf("E%d", i), Timestamp: time.Now().Add(time.Hour)}))
		}
		must(t, c.Report(problem.Event{Reason: "Past"}))
		must(t, c.SetCondition(ahead))
		must(t, c.SetCondition(problem.Condition{Type: "NTPProblem", Reason: "NTPIsUp"}))
		pass(3 * time.Second)
		got, tried := a.statuses()
		if len(got) != 1 || len(tried) != 2 || len(reasons(got)) != 91 || len(got[0].Conditions) != 2 || got[0].Conditions[0].Transition.After(time.Now()) {
			t.Fatalf("%d tries, %d events, %+v", len(tried), len(reasons(got)), got)
		}
		must(t, c.SetCondition(ahead)) // without a change
		pass(3 * time.Second)
		_, tried = a.statuses()
		testkit.Check(t, len(tried) == 0, "an existing finding is reported %d times", len(tried))
	})
	testkit.Same(t, strings.Count(said.String(), "level=WARN"), 1, "warnings:\n%s", said.String())
}

// The agent may return it for times that are right by the client's clock.
func TestAWrongTooEarlyIsLeftOut(t *testing.T) {
	var said bytes.Buffer
	tries := 0
	runClient(t, problem.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		a.set(func() {
			a.answer = func(s problem.Status) *problem.RefusedError {
				refusal := &problem.RefusedError{Code: http.StatusTooEarly, Problem: "here it is " + time.Now().String()}
				switch tries++; {
				case tries < 3: // without a field
				case len(s.Conditions) > 1:
					refusal.Field = "conditions[0].transition"
				default:
					return nil
				}
				return refusal
			}
		})
		must(t, c.SetCondition(unhealthy))
		must(t, c.SetCondition(problem.Condition{Type: "NTPProblem", Status: problem.True, Reason: "NTPIsDown"}))
		pass(5 * time.Second)
		got, _ := a.statuses()
		testkit.Check(t, len(got) == 1 && got[0].Conditions[0].Type == "NTPProblem", "%+v", got)
	})
	testkit.Same(t, strings.Count(said.String(), "level=WARN"), 1, "warnings:\n%s", said.String())
}

func TestConditionsAreSentAgainWithDiscard(t *testing.T) {
	for name, refusal := range map[string]*problem.RefusedError{"an agent that is down": nil, "an agent that refuses": {Code: 400}} {
		runClient(t, problem.Config{OnFailure: problem.Discard}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
			t.Helper()
			a.set(func() {
				a.away, a.answer = refusal == nil, func(problem.Status) *problem.RefusedError { return refusal }
			})
			must(t, c.SetCondition(unhealthy))
			pass(100 * time.Millisecond)
			a.set(func() { a.away, a.answer = false, nil })
			pass(2 * time.Second)
			got, _ := a.statuses()
			testkit.Check(t, len(got) == 1 && got[0].Conditions[0].Status == problem.True, "%s: %+v", name, got)
		})
	}
}

func TestATokenCanBeReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte("one\n"), 0o600))
	runClient(t, problem.Config{TokenFile: file}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		pass(time.Second)
		must(t, os.WriteFile(file, []byte("two\n"), 0o600))
		pass(time.Minute)
		must(t, os.Remove(file))
		pass(time.Minute)
		testkit.Check(t, c.Err() != nil && strings.Contains(c.Err().Error(), file), "%v", c.Err())
		must(t, syscall.Mkfifo(file, 0o600)) // a pipe without a writer
		pass(time.Minute)
		testkit.Check(t, c.Err() != nil && strings.Contains(c.Err().Error(), "no ordinary file"), "%v", c.Err())
		a.mu.Lock()
		defer a.mu.Unlock()
		testkit.Same(t, a.tokens, []string{"Bearer one", "Bearer two", "Bearer two"}, "the tokens")
	})
}

func TestTheLastReportIsSentAtTheEnd(t *testing.T) {
	var agent *fakeAgent
	runClient(t, problem.Config{Every: time.Hour}, func(t *testing.T, a *fakeAgent, c *problem.Client) {
		t.Helper()
		agent = a
		pass(time.Second)
		a.statuses()
		must(t, c.Report(problem.Event{Reason: "Last"}))
	})
	got, _ := agent.statuses()
	testkit.Check(t, slices.Equal(reasons(got), []string{"Last"}), "%+v", got)
}

func TestAllReportsAreSentAtTheEnd(t *testing.T) {
	for _, test := range []struct {
		name  string
		after string
		fails int
		want  int
		most  time.Duration
	}{
		{"to an agent that is up", "", 0, 450, 0},
		{"to an agent that is back in time", "", 1, 450, 2 * time.Second},
		{"unless there is no time for it", "17", 1, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAgent(t)
				c, err := problem.New(problem.Config{Source: "disk-watch", Dial: a.dial, Every: time.Hour, Heartbeat: time.Hour})
				must(t, err)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { c.Run(ctx); close(ended) }()
				pass(time.Second)
				a.statuses()
				a.set(func() {
					a.after, a.answer = test.after, func(problem.Status) *problem.RefusedError {
						if test.fails--; test.fails >= 0 {
							return &problem.RefusedError{Code: 503}
						}
						return nil
					}
				})
				for i := range 450 {
					must(t, c.Report(problem.Event{Reason: fmt.Sprintf("E%d", i)}))
				}
				asked := time.Now()
				stop()
				<-ended
				if got, _ := a.statuses(); len(reasons(got)) != test.want || c.Counts().Waiting != 450-test.want || time.Since(asked) > test.most {
					t.Errorf("%d events got there in %s: %+v", len(reasons(got)), time.Since(asked), c.Counts())
				}
			})
		})
	}
}

// Whatever the agent answers and whenever it is down: every event is delivered or counted, none
// arrives twice unless its answer was lost, and the last state of a condition arrives.
func TestEveryEventIsDeliveredOrCounted(t *testing.T) {
	delivered, lost := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		cfg := problem.Config{Queue: rapid.IntRange(1, 30).Draw(rt, "queue")}
		if rapid.Bool().Draw(rt, "discard") {
			cfg.OnFailure = problem.Discard
		}
		codes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 204, 400, 401, 409, 413, 422, 425, 429, 503}), 1, 30).Draw(rt, "answers")
		fields := rapid.SliceOfN(rapid.SampledFrom([]string{"", "source", "events[0].reason", "events[1].timestamp", "conditions[0].transition", "conditions[7]", "events[-1]"}), 30, 30).Draw(rt, "fields")
		steps := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 40).Draw(rt, "steps")
		runClient(t, cfg, func(t *testing.T, a *fakeAgent, c *problem.Client) {
			t.Helper()
			a.answer = func(problem.Status) *problem.RefusedError {
				if len(codes) == 0 || codes[0] == 204 || codes[0] == 0 {
					codes = codes[min(1, len(codes)):]
					return nil
				}
				code := codes[0]
				codes = codes[1:]
				return &problem.RefusedError{Code: code, Field: fields[len(codes)%30]}
			}
			reported, last := 0, well
			must(t, c.SetCondition(last))
			for i, step := range steps {
				switch step {
				case 0:
					a.set(func() { a.away = !a.away })
				case 1:
					last = unhealthy
					last.Status, last.Message = problem.ConditionStatus(i%3), strconv.Itoa(i)
					must(t, c.SetCondition(last))
				default:
					reported++
					must(t, c.Report(problem.Event{Reason: fmt.Sprintf("E%d", reported)}))
				}
				pass(time.Duration(i%7) * 300 * time.Millisecond)
			}
			a.set(func() { a.away, codes = false, nil })
			pass(5 * time.Minute)
			got, _ := a.statuses()
			counts, arrived := c.Counts(), reasons(got)
			delivered, lost = delivered+len(arrived), lost+int(counts.EventsDropped+counts.EventsRefused)
			if int(counts.EventsDelivered) != len(arrived) || counts.Waiting != 0 || len(arrived)+int(counts.EventsDropped+counts.EventsRefused) != reported {
				rt.Fatalf("%d of %d events arrived: %+v", len(arrived), reported, counts)
			}
			slices.Sort(arrived)
			testkit.MustBeSame(rt, len(slices.Compact(arrived)), int(counts.EventsDelivered), "different events that arrived: %q", arrived)
			k := got[len(got)-1].Conditions
			testkit.Require(rt, len(k) == 1 && k[0].Status == last.Status && k[0].Message == last.Message, "in the end the condition is %+v, want %+v", k, last)
		})
	})
	t.Logf("saw %d events delivered and %d counted", delivered, lost)
	testkit.Check(t, delivered != 0 && lost != 0, "one kind was never seen")
}

func TestInvalidReportsAreErrors(t *testing.T) {
	c, err := problem.New(problem.Config{Source: "s"})
	must(t, err)
	for _, err := range []error{
		c.Report(problem.Event{Reason: "not camel"}), c.Report(problem.Event{}), c.Report(problem.Event{Reason: "Good", Severity: "bad"}),
		c.SetCondition(problem.Condition{Reason: "Good"}), c.SetCondition(problem.Condition{Type: "T"}), c.SetCondition(problem.Condition{Type: "T", Reason: strings.Repeat("A", 65)}),
	} {
		testkit.Check(t, err != nil, "it was taken")
	}
	testkit.Same(t, c.Counts().Waiting, 0, "waiting events")
	for _, cfg := range []problem.Config{
		{}, {Source: "s", Socket: "/a", Address: "127.0.0.1:1"}, {Source: "s", Token: "a", TokenFile: "b"},
		{Source: "s", Address: "10.0.0.1:1"}, {Source: "s", Address: "localhost"}, {Source: "s", Heartbeat: -1}, {Source: "s", Queue: -1},
	} {
		_, err := problem.New(cfg)
		testkit.Check(t, err != nil, "%+v was taken", cfg)
	}
	_, err = problem.New(problem.Config{Source: "s", Address: "[::1]:1"})
	testkit.Check(t, err == nil, "%v", err)
}

func TestTheClientSurvivesANewSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	received := make(chan problem.Status, 100)
	serve := func() *http.Server {
		listener, err := net.Listen("unix", path)
		must(t, err)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := &fakeAgent{t: t}
			a.ServeHTTP(w, r)
			received <- a.got[0]
		})}
		go func() { _ = server.Serve(listener) }()
		return server
	}
	c, err := problem.New(problem.Config{Source: "s", Socket: path, Every: time.Millisecond, Heartbeat: 100 * time.Millisecond})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	for round := range 3 {
		server := serve()
		reason := fmt.Sprintf("Round%d", round)
		must(t, c.Report(problem.Event{Reason: reason}))
		for seen := false; !seen; {
			select {
			case s := <-received:
				seen = slices.Contains(reasons([]problem.Status{s}), reason)
			case <-time.After(20 * time.Second):
				t.Fatalf("round %d is not heard of: %v", round, c.Err())
			}
		}
		must(t, server.Close())
	}
	stop()
	<-done
}

func TestWords(t *testing.T) {
	for text, want := range map[string]bool{
		"A": true, "BadBlocksFound": true, "XID79": true, strings.Repeat("A", 64): true,
		"": false, "badBlocks": false, "Bad Blocks": false, "Bad-Blocks": false, "9Lives": false, "Größe": false, strings.Repeat("A", 65): false,
	} {
		testkit.Same(t, problem.IsReason(text), want, "%q is a reason", text)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, -1, 2000).Draw(t, "text") + strings.Repeat("ü", rapid.IntRange(0, 1000).Draw(t, "more"))
		cut := problem.Cut(text)
		whole, wasCut := strings.CutSuffix(cut, "…")
		switch {
		case !utf8.ValidString(cut):
			t.Fatalf("%q is cut within a character", cut)
		case len(text) <= problem.MaxMessage && cut != text:
			t.Fatal("it is cut without need")
		case len(text) > problem.MaxMessage && (!wasCut || len(cut) > problem.MaxMessage || len(cut) < problem.MaxMessage-6 || !strings.HasPrefix(text, whole)):
			t.Fatalf("%d bytes of %d: %q", len(cut), len(text), cut)
		}
	})
}
