package report

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/times"
)

// story drives a core and a fake API server with its own clock.
type story struct {
	*rapid.T
	core     *core
	api      *fake
	now      time.Time
	writes   []time.Time // of conditions
	requests int
}

// work sends all requests that are due now.
func (s *story) work() {
	for range 10_000 {
		req, at := s.core.next(s.now)
		if req == nil {
			testkit.Require(s, at.IsZero() || at.After(s.now), "nothing is due at %s, but the next time is %s", s.now, at)
			return
		}
		if strings.Contains(req.Path, "/status?") {
			s.writes = append(s.writes, s.now)
		}
		s.requests++
		got, err := s.api.Do(s.Context(), req.Request)
		s.core.answer(s.now, req, got, err)
	}
	s.Fatalf("the core never stops sending requests")
}

// pass advances the clock, and calls the core whenever it asks for it.
func (s *story) pass(d time.Duration) {
	end := s.now.Add(d)
	for {
		s.work()
		_, at := s.core.next(s.now)
		if at.IsZero() || at.After(end) {
			break
		}
		s.now = at
	}
	s.now = end
	s.work()
}

var refusals = map[string]error{
	"none": nil, "away": errNoRoute,
	"401": &kubeapi.StatusError{Code: 401}, "403": &kubeapi.StatusError{Code: 403}, "404": &kubeapi.StatusError{Code: 404},
	"409": &kubeapi.StatusError{Code: 409}, "422": &kubeapi.StatusError{Code: 422}, "500": &kubeapi.StatusError{Code: 500},
	"429": &kubeapi.StatusError{Code: 429, RetryAfter: 20 * time.Second},
}

// Whatever the findings, the other writers and the failures of the API server: in the end the
// newest state is written, and every event is sent or counted.
func TestCoreWritesNewestStateAndAccountsForEveryEvent(t *testing.T) {
	var saw Counts
	yields, orphansDeleted, awaited, outages, repeats, deleted := 0, 0, 0, uint64(0), 0, uint64(0)
	note := func(c Counts) {
		saw.EventsSent += c.EventsSent
		saw.EventsSummed += c.EventsSummed
		saw.TakenOver += c.TakenOver
		saw.Restored += c.Restored
		outages += c.Requests[Outcome{requestConditions, resultUnreachable}]
	}
	rapid.Check(t, func(t *rapid.T) {
		start := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
		s := &story{T: t, api: newFake(), now: start}
		takeOver := rapid.Bool().Draw(t, "take over")
		s.api.guarded = rapid.Bool().Draw(t, "guarded")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Float64
		begin := func(remembered State) *core {
			return newCore(Config{
				API: s.api, Node: "n", Holder: "h", LeaseNamespace: "l", EventNamespace: "default", LookEvery: defaultLookEvery,
				TakeOver: takeOver, Logger: slog.New(slog.DiscardHandler), Remembered: remembered,
			}, random, s.now)
		}
		s.core = begin(State{})
		kinds := rapid.SampledFrom([]string{"A", "B", "C", "Ready"})
		statuses := rapid.SampledFrom([]catalog.Status{catalog.True, catalog.False, catalog.Unknown})
		want := map[string]finding.Condition{}
		events, occurrences := 0, 0
		emptied := map[string]bool{} // conditions that another manager wrote without a status, and may again
		var ended time.Time          // when the previous agent ended
		var earlier uint64           // Events sent by previous agents
		var expired uint64           // Events that the API server has deleted
		var late []string            // conditions not reported again since a restart
		tellLate := func() {
			awaited += len(s.core.conditions.awaited.values)
			for _, kind := range late {
				if c, still := want[kind]; still {
					s.core.take(s.now, reportOf(c))
				}
			}
			late = nil
			s.core.conditions.awaited.set(nil)
			s.core.complete = true
		}
		actions := map[string]func(*rapid.T){
			"condition": func(t *rapid.T) {
				c := finding.Condition{Type: kinds.Draw(t, "type"), Status: statuses.Draw(t, "status"), Since: s.now,
					Reason: rapid.StringN(0, 5, 10).Draw(t, "reason"), Message: rapid.StringN(0, 3, 9).Draw(t, "message")}
				s.core.take(s.now, reportOf(c))
				want[c.Type] = c
			},
			"gone": func(t *rapid.T) {
				kind := kinds.Draw(t, "type")
				s.core.take(s.now, finding.Report{Gone: []string{kind}})
				delete(want, kind)
			},
			"events": func(t *rapid.T) {
				reason, kind := rapid.SampledFrom([]string{"X", "Y", "Z"}).Draw(t, "reason"), ""
				if rapid.Bool().Draw(t, "change") {
					kind = kinds.Draw(t, "type")
				}
				source := rapid.SampledFrom([]string{"kernel-monitor", "disk-watch"}).Draw(t, "source")
				texts := rapid.SampledFrom([]int{1, 2, 100}).Draw(t, "texts")
				lose := s.api.lose
				for range rapid.IntRange(1, 4).Draw(t, "rounds") { // most of them repeat stored Events
					if s.api.lose = lose; rapid.IntRange(0, 3).Draw(t, "lost") == 0 {
						s.api.lose = away
					}
					for range rapid.IntRange(1, 100).Draw(t, "many") {
						events++
						occurrences++
						s.core.take(s.now, finding.Report{Source: source, Events: []finding.Event{{ID: digest(strconv.Itoa(occurrences)), Time: s.now, Reason: reason, Condition: kind, Message: "50%s " + strconv.Itoa(occurrences%texts)}}})
					}
					s.pass(time.Duration(rapid.IntRange(0, 100).Draw(t, "s")) * time.Second)
				}
				s.api.lose = lose
			},
			"expired": func(*rapid.T) {
				confirmed := map[string]uint64{}
				for _, source := range s.core.events.sources {
					for _, queue := range source.reasons {
						for _, event := range queue.events {
							if event.stored != nil {
								confirmed[event.stored.name] = event.stored.count
							}
						}
					}
				}
				for name, event := range s.api.events {
					if n, waits := confirmed[name]; waits {
						expired += n // the agent writes the rest again
					} else {
						expired += uint64(event["count"].(float64))
					}
				}
				s.api.expireEvents()
			},
			"complete": func(*rapid.T) { s.core.complete = true },
			"server": func(t *rapid.T) {
				err := refusals[rapid.SampledFrom([]string{"none", "away", "401", "403", "404", "409", "422", "429", "500"}).Draw(t, "answer")]
				for _, hook := range []*func(kubeapi.Request) error{&s.api.fail, &s.api.lose} {
					*hook = nil
					if rapid.Bool().Draw(t, "here") {
						*hook = func(r kubeapi.Request) error {
							var refused *kubeapi.StatusError
							if r.Method == http.MethodGet && errors.As(err, &refused) && refused.Code == 403 {
								return nil // without reads the agent cannot see what other managers wrote
							}
							if strings.HasPrefix(r.Method+r.Path, "PATCH"+s.core.eventsPath()) {
								switch resultOf(err) {
								case resultNotFound:
									return nil // the API server answers so only if it has deleted the Event
								case resultForbidden, resultInvalid:
									if hook == &s.api.lose {
										return nil // then it has not raised the count
									}
								}
							}
							return err
						}
					}
				}
			},
			"foreign": func(t *rapid.T) {
				row := map[string]string{"type": kinds.Draw(t, "type"), "lastHeartbeatTime": s.now.Format(time.RFC3339)}
				for _, field := range []string{"status", "reason", "message"} {
					if rapid.Bool().Draw(t, field) || field == "status" && s.api.conditions[row["type"]] == nil {
						row[field] = rapid.SampledFrom([]string{"True", "other"}).Draw(t, "value")
					}
				}
				s.api.update(rapid.SampledFrom([]string{"npd", "kubectl-edit"}).Draw(t, "manager"), row)
			},
			"patch": func(t *rapid.T) { // of a whole condition, as node-problem-detector does, in a different second
				stamp := s.now.Add(time.Second).Format(time.RFC3339)
				s.api.update("npd", map[string]string{"type": kinds.Draw(t, "type"), "status": "True", "reason": stamp, "message": stamp,
					"lastHeartbeatTime": stamp, "lastTransitionTime": stamp})
			},
			"fight": func(t *rapid.T) {
				kind := kinds.Draw(t, "type")
				for i := range 3 {
					s.api.update("npd", map[string]string{"type": kind, "status": "True", "reason": fmt.Sprint("Fight", i), "lastHeartbeatTime": s.now.Format(time.RFC3339)})
					s.pass(6 * time.Minute)
				}
				yields += len(s.core.snapshot().Yielded)
			},
			"outage": func(t *rapid.T) {
				away := func(kubeapi.Request) error { return errNoRoute }
				s.api.fail, s.api.lose = away, nil
				c := newCondition(rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "type"), statuses.Draw(t, "status"), "Away", s.now)
				s.core.take(s.now, reportOf(c))
				want[c.Type] = c
				s.pass(time.Duration(rapid.IntRange(1, 300).Draw(t, "s")) * time.Second)
				s.api.fail = nil
			},
			"removed": func(t *rapid.T) { // a monitor whose condition was taken from a manager that is gone
				kind := rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "type")
				s.api.update("old", map[string]string{"type": kind, "status": "True", "reason": "Old", "lastHeartbeatTime": s.now.Format(time.RFC3339)})
				c := newCondition(kind, catalog.False, rapid.SampledFrom([]string{"Old", "New"}).Draw(t, "reason"), s.now)
				s.core.take(s.now, reportOf(c))
				if rapid.Bool().Draw(t, "told") {
					s.pass(time.Duration(rapid.IntRange(0, 400).Draw(t, "s")) * time.Second)
				}
				s.core.take(s.now, finding.Report{Gone: []string{kind}})
				delete(want, kind)
			},
			"let go": func(t *rapid.T) { // another manager applies a condition and then stops
				kind := rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "type")
				for i := range 3 {
					row := map[string]string{"type": kind, "status": "True", "reason": fmt.Sprint("Applied", i)}
					testkit.Must(t, s.api.apply("gitops", true, []map[string]string{row}))
					s.pass(6 * time.Minute)
				}
				wiped := s.api.wiped
				emptied[kind] = true
				testkit.Must(t, s.api.apply("gitops", true, nil))
				s.api.wiped = wiped // not by the agent
			},
			"made anew": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					s.api.uid, s.api.conditions, s.api.owners = fmt.Sprint("uid-", s.api.version), map[string]map[string]string{}, map[string]map[string]map[string]bool{}
				}
			},
			"restart": func(t *rapid.T) {
				s.core.events.dropAll("stopped")
				balanced(t, s.core.snapshot())
				note(s.core.snapshot())
				earlier += s.core.counts.EventsSent + s.core.counts.EventsSummed
				remembered := State{}
				if rapid.Bool().Draw(t, "remembers") {
					remembered = s.core.conditions.sharing.state
				}
				s.core, events, ended = begin(remembered), 0, s.now
				late = nil
				for _, kind := range slices.Sorted(maps.Keys(want)) {
					if rapid.Bool().Draw(t, "late") {
						late = append(late, kind)
					} else {
						s.core.take(s.now, reportOf(want[kind]))
					}
				}
				s.core.conditions.awaited.set(late)
				if s.core.complete = len(late) == 0; !s.core.complete {
					s.pass(2 * maxStartupWait)
				}
			},
			"late":  func(*rapid.T) { tellLate() },
			"cache": func(t *rapid.T) { s.api.freeze(rapid.Bool().Draw(t, "behind")) },
			"work":  func(*rapid.T) { s.work() },
			"wait": func(t *rapid.T) {
				s.pass(time.Duration(rapid.SampledFrom([]int{1, 10, 500, 2000, 70_000, 400_000}).Draw(t, "ms")) * time.Millisecond)
			},
		}
		t.Repeat(actions)
		tellLate()

		s.api.fail, s.api.lose = nil, nil
		s.api.freeze(false)
		s.pass(40 * time.Minute)
		yieldedStill := func() bool {
			for kind := range s.core.conditions.sharing.state.Yielded {
				if _, still := want[kind]; still {
					return true
				}
			}
			return false
		}
		for waited := time.Duration(0); yieldedStill() && waited < 2*maxAbandonedAfter; waited += time.Hour {
			s.pass(time.Hour) // the other managers have stopped writing
		}
		counts := s.core.snapshot()
		for kind, manager := range counts.Yielded {
			_, still := want[kind]
			testkit.Require(t, !still, "%s is yielded to %s, which has stopped", kind, manager)
		}
		balanced(t, counts)
		testkit.Require(t, counts.EventsQueued == 0 && !counts.Pending && counts.EventsTaken == uint64(events), "at rest: %+v", counts)
		// Every counted Event is stored. A dropped one may be too, if its response was lost.
		if told := s.api.eventTotal() + expired; told < earlier+counts.EventsSent+counts.EventsSummed || told > uint64(occurrences) {
			t.Fatalf("of %d occurrences %d are stored, and earlier agents counted %d: %+v", occurrences, told, earlier, counts)
		}
		repeats += s.api.count("PATCH " + s.core.eventsPath())
		deleted += expired
		for kind, c := range want {
			row := s.api.conditions[kind]
			if _, yielded := counts.Yielded[kind]; yielded || kind == "Ready" {
				continue
			}
			if row["status"] != string(c.Status) || row["reason"] != text.Message(c.Reason, LongestReason) || row["message"] != text.Message(c.Message, LongestMessage) {
				t.Fatalf("%s is %v, want %+v", kind, row, c)
			}
		}
		testkit.Require(t, !takeOver || len(counts.Yielded) == 0, "yielded in spite of take over: %v", counts.Yielded)
		for kind := range s.api.owners[FieldManager] {
			_, still := want[kind]
			testkit.Require(t, still && counts.Yielded[kind] == "" && kind != "Ready", "%s belongs to the agent, but should not", kind)
		}
		for kind, row := range s.api.conditions {
			testkit.Require(t, row["status"] != "" || emptied[kind] && s.core.conditions.orphans.deleted[kind],
				"%s has no status: %v, of %v", kind, row, s.api.owners)
		}
		testkit.Require(t, len(s.api.deletedWithWriter) == 0, "deleted conditions that have a writer: %v", s.api.deletedWithWriter)
		orphansDeleted += len(s.api.deleted)
		testkit.Require(t, !s.api.wiped && s.api.conditions[placeholder] == nil,
			"the agent removed fields of others, or left the placeholder: %v", s.api.conditions)
		for i, at := range s.writes {
			if i >= writeBurst && at.Sub(s.writes[i-writeBurst]) < writeEvery && s.writes[i-writeBurst].After(ended) {
				t.Fatalf("%d writes between %s and %s", writeBurst+1, s.writes[i-writeBurst], at)
			}
		}
		// From here on nothing changes.
		writes := len(s.writes)
		s.pass(15 * time.Minute)
		testkit.MustBeSame(t, len(s.writes), writes, "writes while nothing changes: %v", s.api.bodies)
		note(counts)
	})
	t.Logf("saw %d events sent, %d merged, %d updates, %d deleted, %d conditions taken over, %d yielded, %d rewritten, %d orphans deleted, %d awaited, %d writes lost in outages",
		saw.EventsSent, saw.EventsSummed, repeats, deleted, saw.TakenOver, yields, saw.Restored, orphansDeleted, awaited, outages)
	testkit.Check(t, orphansDeleted != 0 && saw.EventsSent != 0 && saw.EventsSummed != 0 && saw.TakenOver != 0 && yields != 0 && saw.Restored != 0 && outages != 0 && repeats != 0 && deleted != 0,
		"the random cases did not cover all behaviours")
}

func TestTokenBucketNeverExceedsItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newTokenBucket(rapid.IntRange(1, 5).Draw(t, "most"), time.Second)
		now := time.Unix(0, 0)
		var taken []time.Time
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			if at := b.availableAt(now); at.After(now) {
				testkit.Require(t, at.Sub(now) <= time.Second, "the next token is available in %s", at.Sub(now))
				continue
			}
			b.take(now)
			taken = append(taken, now)
		}
		for i := b.size; i < len(taken); i++ {
			for j := 0; j+b.size < i; j++ {
				if allowed := b.size + int(taken[i].Sub(taken[j])/time.Second) + 1; i-j+1 > allowed {
					t.Fatalf("%d were taken in %s", i-j+1, taken[i].Sub(taken[j]))
				}
			}
		}
	})
}

func TestBackoffGrowsToItsMaximumAndIsNeverZero(t *testing.T) {
	for _, random := range []float64{0, 0.5, 0.999} {
		var p backoff
		now := time.Unix(0, 0)
		for i := range 40 {
			p.fail(now, maxBackoffWait, func() float64 { return random })
			wait := p.until.Sub(now)
			most := times.Backoff(i+1, minBackoffWait, maxBackoffWait)
			testkit.Check(t, wait <= most && wait >= most/10, "waits %s after %d failures", wait, i+1)
		}
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("n", 253)
	for _, name := range []string{LeaseName(long), LeaseName(long[1:] + "m"), eventName(long, "Not a name!"), eventName(long, strings.Repeat("a", 40))} {
		testkit.Check(t, len(name) <= maxNameLength && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == "",
			"%q has %d characters", name, len(name))
	}
	testkit.Check(t, LeaseName(long) != LeaseName(long[1:]+"m") && eventName(long, "1") != eventName(long, "2") && eventName("n", "1") != eventName("n", "2"),
		"two have one name")
	testkit.Same(t, LeaseName("node-1"), "autohealer-agent-node-1", "the name of the Lease")
	testkit.Same(t, eventName("node-1", "0123456789abcdef0123"), "node-1.0123456789abcdef", "the name of the Event")
}

func TestSourceNameNeverNamesAnotherComponent(t *testing.T) {
	for monitor, want := range map[string]string{
		"kernel-monitor": "kernel-monitor", "kubelet": "autohealer-agent/kubelet", "autohealer-controller": "autohealer-agent/autohealer-controller", "": "autohealer-agent",
	} {
		testkit.Same(t, sourceName(monitor), want, "%q", monitor)
	}
	testkit.Same(t, len(sourceName(strings.Repeat("x", 1000))), maxNameLength, "the length of a long name")
}

func TestEventMessageWithMergedCountFits(t *testing.T) {
	w := queuedEvent{Event: finding.Event{Message: strings.Repeat("ü", 2000)}, merged: 1234, since: time.Date(2026, 1, 1, 12, 0, 5, 0, time.UTC)}
	got := w.message()
	testkit.Check(t, len(got) <= LongestMessage && strings.HasSuffix(got, "… (and 1234 more since 12:00:05Z)") && utf8.ValidString(got),
		"%d bytes: %q", len(got), got)
}

func TestParseConflicts(t *testing.T) {
	got := parseConflicts(&kubeapi.StatusError{Code: 409, Causes: []kubeapi.Cause{
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="A"].status`, Message: `conflict with "node-problem-detector" with subresource "status" using v1 at 2026-11-15T00:00:00Z`},
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="A"].reason`, Message: `conflict with "node-problem-detector" with subresource "status" using v1`},
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="B"].status`, Message: `conflict with "kubectl"`},
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="B"].status`, Message: `conflict with "autohealer-agent" using v1`},
		{Reason: "FieldManagerConflict", Field: `.metadata.labels`, Message: `conflict with "kubectl"`},
		{Reason: "Other", Field: `.status.conditions[type="C"].status`, Message: `conflict with "kubectl"`},
	}})
	want := []fieldConflict{{"A", "node-problem-detector"}, {"B", "kubectl"}, {"B", "autohealer-agent (update)"}}
	testkit.NoDiff(t, cmp.Diff(want, got, cmp.AllowUnexported(fieldConflict{})), "the conflicts")
}

func FuzzParseConflicts(f *testing.F) {
	f.Add(`.status.conditions[type="A"].status`, `conflict with "node-problem-detector" with subresource "status" using v1`)
	f.Add(`.status.conditions[type="\u00e4"].status`, "conflict with `x` using")
	f.Fuzz(func(t *testing.T, field, message string) {
		for _, c := range parseConflicts(&kubeapi.StatusError{Causes: []kubeapi.Cause{{Reason: "FieldManagerConflict", Field: field, Message: message}}}) {
			testkit.Check(t, c.kind != "" && c.manager != "", "%+v", c)
		}
	})
}

func FuzzParseNode(f *testing.F) {
	api := newFake()
	api.update("npd", map[string]string{"type": "A", "status": "True"})
	f.Add(api.node())
	f.Add([]byte(`{"metadata":{"uid":"u","resourceVersion":"1","managedFields":[{"fieldsV1":{"f:status":{"f:conditions":{"k:{}":{},".":{},"k:{\"type\":\"A\"}":{".":{},"f:status":{}}}}}}]}}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		v, err := parseNode(body)
		if err != nil {
			return
		}
		r := newConditions(false, State{Yielded: map[string]string{"A": "npd"}})
		r.applied = map[string]condition{"B": {status: catalog.True}}
		r.changed(&v)
		r.fieldsToHandOver(&v)
		r.sharing.released(&v)
		r.orphaned(&v)
		r.writtenByOtherAgent(&v)
		r.owned = v.conditionsOwnedBy(FieldManager)
		r.planRemoval(&v)
		r.abandoned(&v, time.Time{})
	})
}

func TestConfigReportsAllErrors(t *testing.T) {
	_, err := New(Config{LeaseNamespace: "l", LookEvery: -1})
	for _, words := range []string{"API is missing", "Node is missing", "Holder is missing", "LookEvery is negative"} {
		testkit.Check(t, err != nil && strings.Contains(err.Error(), words), "%q is not in %v", words, err)
	}
	testkit.Check(t, resultOf(errors.New("x")) == resultUnreachable && resultOf(nil) == resultOK, "no answer is taken for one")
}

// The agent's state file contains the state of the reporter. This is version 1 of the format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &State{})
}
