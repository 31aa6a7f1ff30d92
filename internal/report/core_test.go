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
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// story drives a core and a fake API server with a clock of its own.
type story struct {
	*rapid.T
	core   *core
	api    *fake
	now    time.Time
	writes []time.Time // of conditions
	asked  int
}

// work does all that is due now.
func (s *story) work() {
	for range 10_000 {
		asked, at := s.core.next(s.now)
		if asked == nil {
			if !at.IsZero() && !at.After(s.now) {
				s.Fatalf("there is nothing to do at %s, and the core asks to be woken at %s", s.now, at)
			}
			return
		}
		if strings.Contains(asked.Path, "/status?") {
			s.writes = append(s.writes, s.now)
		}
		s.asked++
		got, err := s.api.Do(s.Context(), asked.Request)
		s.core.answer(s.now, asked, got, err)
	}
	s.Fatalf("the core does not come to rest")
}

// pass lets time go by, and wakes the core whenever it asks for it.
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

// Whatever is found, whoever else writes and however the API server behaves: in the end
// the newest state is there, and every event is sent or counted.
func TestInTheEndTheNewestStateIsThereAndEveryEventIsSentOrCounted(t *testing.T) {
	var saw Counts
	yields, swept, awaited, outages := 0, 0, 0, uint64(0)
	note := func(c Counts) {
		saw.EventsSent += c.EventsSent
		saw.EventsSummed += c.EventsSummed
		saw.TakenOver += c.TakenOver
		saw.Mended += c.Mended
		outages += c.Requests[Outcome{forRows, unreachable}]
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
		emptied := map[string]bool{} // by others alone, who may go on doing so
		var ended time.Time          // the agent before this one
		var earlier uint64           // told, by agents before this one
		var late []string            // conditions that are not told again since a restart
		tellLate := func() {
			awaited += len(s.core.rows.kept)
			for _, kind := range late {
				if c, still := want[kind]; still {
					s.core.take(s.now, conditions(c))
				}
			}
			late = nil
			s.core.rows.await(nil)
			s.core.complete = true
		}
		actions := map[string]func(*rapid.T){
			"condition": func(t *rapid.T) {
				c := finding.Condition{Type: kinds.Draw(t, "type"), Status: statuses.Draw(t, "status"), Since: s.now,
					Reason: rapid.StringN(0, 5, 10).Draw(t, "reason"), Message: rapid.StringN(0, 3, 9).Draw(t, "message")}
				s.core.take(s.now, conditions(c))
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
				for range rapid.IntRange(1, 100).Draw(t, "many") {
					events++
					occurrences++
					s.core.take(s.now, finding.Report{Source: source, Events: []finding.Event{{ID: digest(strconv.Itoa(occurrences)), Time: s.now, Reason: reason, Condition: kind, Message: "50%s"}}})
				}
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
								return nil // who may not look cannot see what others have written
							}
							return err
						}
					}
				}
			},
			"foreign": func(t *rapid.T) {
				row := map[string]string{"type": kinds.Draw(t, "type"), "lastHeartbeatTime": s.now.Format(time.RFC3339)}
				for _, field := range []string{"status", "reason", "message"} {
					if rapid.Bool().Draw(t, field) || field == "status" && s.api.rows[row["type"]] == nil {
						row[field] = rapid.SampledFrom([]string{"True", "other"}).Draw(t, "value")
					}
				}
				s.api.update(rapid.SampledFrom([]string{"npd", "kubectl-edit"}).Draw(t, "manager"), row)
			},
			"patch": func(t *rapid.T) { // of a whole row, as of node-problem-detector, in another second than ours
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
				yields += len(s.core.figures().Yielded)
			},
			"outage": func(t *rapid.T) {
				away := func(kubeapi.Request) error { return errNoRoute }
				s.api.fail, s.api.lose = away, nil
				c := condition(rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "type"), statuses.Draw(t, "status"), "Away", s.now)
				s.core.take(s.now, conditions(c))
				want[c.Type] = c
				s.pass(time.Duration(rapid.IntRange(1, 300).Draw(t, "s")) * time.Second)
				s.api.fail = nil
			},
			"removed": func(t *rapid.T) { // a monitor, whose row was another's who is there no more
				kind := rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "type")
				s.api.update("old", map[string]string{"type": kind, "status": "True", "reason": "Old", "lastHeartbeatTime": s.now.Format(time.RFC3339)})
				c := condition(kind, catalog.False, rapid.SampledFrom([]string{"Old", "New"}).Draw(t, "reason"), s.now)
				s.core.take(s.now, conditions(c))
				if rapid.Bool().Draw(t, "told") {
					s.pass(time.Duration(rapid.IntRange(0, 400).Draw(t, "s")) * time.Second)
				}
				s.core.take(s.now, finding.Report{Gone: []string{kind}})
				delete(want, kind)
			},
			"let go": func(t *rapid.T) { // one who applies says a row, and then no more
				kind := rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "type")
				for i := range 3 {
					row := map[string]string{"type": kind, "status": "True", "reason": fmt.Sprint("Applied", i)}
					if err := s.api.apply("gitops", true, []map[string]string{row}); err != nil {
						t.Fatal(err)
					}
					s.pass(6 * time.Minute)
				}
				wiped := s.api.wiped
				emptied[kind] = true
				if err := s.api.apply("gitops", true, nil); err != nil {
					t.Fatal(err)
				}
				s.api.wiped = wiped // that was not we
			},
			"made anew": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					s.api.uid, s.api.rows, s.api.owners = fmt.Sprint("uid-", s.api.version), map[string]map[string]string{}, map[string]map[string]map[string]bool{}
				}
			},
			"restart": func(t *rapid.T) {
				s.core.lanes.abandon("stopped")
				balanced(t, s.core.figures())
				note(s.core.figures())
				earlier += s.core.counts.EventsSent + s.core.counts.EventsSummed
				remembered := State{}
				if rapid.Bool().Draw(t, "remembers") {
					remembered = s.core.rows.state
				}
				s.core, events, ended = begin(remembered), 0, s.now
				late = nil
				for _, kind := range slices.Sorted(maps.Keys(want)) {
					if rapid.Bool().Draw(t, "late") {
						late = append(late, kind)
					} else {
						s.core.take(s.now, conditions(want[kind]))
					}
				}
				s.core.rows.await(late)
				if s.core.complete = len(late) == 0; !s.core.complete {
					s.pass(2 * settleAfter)
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
			for kind := range s.core.rows.state.Yielded {
				if _, still := want[kind]; still {
					return true
				}
			}
			return false
		}
		for waited := time.Duration(0); yieldedStill() && waited < 2*longestUnkept; waited += time.Hour {
			s.pass(time.Hour) // nobody else writes any more
		}
		counts := s.core.figures()
		for kind, manager := range counts.Yielded {
			if _, still := want[kind]; still {
				t.Fatalf("%s is left to %s, who is gone", kind, manager)
			}
		}
		balanced(t, counts)
		if counts.EventsQueued != 0 || counts.Pending || counts.EventsTaken != uint64(events) {
			t.Fatalf("at rest: %+v", counts)
		}
		// What is called told is told: more may be, of which the answer was lost.
		if told := s.api.told(); told < earlier+counts.EventsSent+counts.EventsSummed || told > uint64(occurrences) {
			t.Fatalf("of %d occurrences %d are told, and %d are called so by earlier agents: %+v", occurrences, told, earlier, counts)
		}
		for kind, c := range want {
			row := s.api.rows[kind]
			if _, yielded := counts.Yielded[kind]; yielded || kind == "Ready" {
				continue
			}
			if row["status"] != string(c.Status) || row["reason"] != cut(c.Reason, LongestReason) || row["message"] != cut(c.Message, LongestMessage) {
				t.Fatalf("%s is %v, want %+v", kind, row, c)
			}
		}
		if takeOver && len(counts.Yielded) > 0 {
			t.Fatalf("yielded in spite of take over: %v", counts.Yielded)
		}
		for kind := range s.api.owners[FieldManager] {
			if _, still := want[kind]; !still || counts.Yielded[kind] != "" || kind == "Ready" {
				t.Fatalf("%s is ours, though it is not to be", kind)
			}
		}
		for kind, row := range s.api.rows {
			if row["status"] == "" && (!emptied[kind] || !s.core.rows.swept[kind]) {
				t.Fatalf("%s has no status: %v, of %v", kind, row, s.api.owners)
			}
		}
		if len(s.api.robbed) > 0 {
			t.Fatalf("deleted though somebody kept them: %v", s.api.robbed)
		}
		swept += len(s.api.swept)
		if s.api.wiped || s.api.rows[placeholder] != nil {
			t.Fatalf("more is gone than was ours, or less: %v", s.api.rows)
		}
		for i, at := range s.writes {
			if i >= mostWrites && at.Sub(s.writes[i-mostWrites]) < writeEvery && s.writes[i-mostWrites].After(ended) {
				t.Fatalf("%d writes between %s and %s", mostWrites+1, s.writes[i-mostWrites], at)
			}
		}
		// And now nothing changes any more.
		writes := len(s.writes)
		s.pass(15 * time.Minute)
		if len(s.writes) != writes {
			t.Fatalf("%d writes while nothing changes: %v", len(s.writes)-writes, s.api.bodies)
		}
		note(counts)
	})
	t.Logf("saw %d events sent, %d summed up, %d rows taken over, %d yielded, %d mended, %d swept away, %d awaited, %d writes lost in outages",
		saw.EventsSent, saw.EventsSummed, saw.TakenOver, yields, saw.Mended, swept, awaited, outages)
	if swept == 0 || saw.EventsSent == 0 || saw.EventsSummed == 0 || saw.TakenOver == 0 || yields == 0 || saw.Mended == 0 || outages == 0 {
		t.Error("these stories prove nothing")
	}
}

func TestBucketNeverAllowsMoreThanItHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBucket(rapid.IntRange(1, 5).Draw(t, "most"), time.Second)
		now := time.Unix(0, 0)
		var taken []time.Time
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			if at := b.when(now); at.After(now) {
				if at.Sub(now) > time.Second {
					t.Fatalf("the next one is to come in %s", at.Sub(now))
				}
				continue
			}
			b.take(now)
			taken = append(taken, now)
		}
		for i := b.most; i < len(taken); i++ {
			for j := 0; j+b.most < i; j++ {
				if allowed := b.most + int(taken[i].Sub(taken[j])/time.Second) + 1; i-j+1 > allowed {
					t.Fatalf("%d were taken in %s", i-j+1, taken[i].Sub(taken[j]))
				}
			}
		}
	})
}

func TestPaceGrowsToItsCapAndIsNeverNothing(t *testing.T) {
	for _, random := range []float64{0, 0.5, 0.999} {
		var p pace
		now := time.Unix(0, 0)
		for i := range 40 {
			p.fail(now, longestWait, func() float64 { return random })
			wait := p.until.Sub(now)
			most := min(firstWait<<min(i, 16), longestWait)
			if wait > most || wait < most/10 {
				t.Errorf("waits %s after %d failures", wait, i+1)
			}
		}
	}
}

func TestCutKeepsRunesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		most := rapid.IntRange(3, 50).Draw(t, "most")
		got := cut(text, most)
		if len(got) > most || !utf8.ValidString(got) {
			t.Fatalf("%q has %d bytes", got, len(got))
		}
		if len(text) <= most && utf8.ValidString(text) && got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

func TestNames(t *testing.T) {
	long := strings.Repeat("n", 253)
	for _, name := range []string{LeaseName(long), LeaseName(long[1:] + "m"), eventName(long, "Not a name!"), eventName(long, strings.Repeat("a", 40))} {
		if len(name) > longestName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
			t.Errorf("%q has %d characters", name, len(name))
		}
	}
	if LeaseName(long) == LeaseName(long[1:]+"m") || eventName(long, "1") == eventName(long, "2") || eventName("n", "1") == eventName("n", "2") {
		t.Error("two have one name")
	}
	if got := LeaseName("node-1"); got != "autohealer-agent-node-1" {
		t.Error(got)
	}
	if got := eventName("node-1", "0123456789abcdef0123"); got != "node-1.0123456789abcdef" {
		t.Error(got)
	}
}

func TestSourceNameIsNoOtherComponents(t *testing.T) {
	for monitor, want := range map[string]string{
		"kernel-monitor": "kernel-monitor", "kubelet": "autohealer-agent/kubelet", "autohealer-controller": "autohealer-agent/autohealer-controller", "": "autohealer-agent",
	} {
		if got := sourceName(monitor); got != want {
			t.Errorf("%q becomes %q, want %q", monitor, got, want)
		}
	}
	if got := sourceName(strings.Repeat("x", 1000)); len(got) != longestName {
		t.Errorf("a long one has %d bytes", len(got))
	}
}

func TestWordsOfAnEventFitWithTheirSum(t *testing.T) {
	w := waiting{Event: finding.Event{Message: strings.Repeat("ü", 2000)}, more: 1234, since: time.Date(2026, 1, 1, 12, 0, 5, 0, time.UTC)}
	got := w.words()
	if len(got) > LongestMessage || !strings.HasSuffix(got, "… (and 1234 more since 12:00:05Z)") || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

func TestContests(t *testing.T) {
	got := contests(&kubeapi.StatusError{Code: 409, Causes: []kubeapi.Cause{
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="A"].status`, Message: `conflict with "node-problem-detector" with subresource "status" using v1 at 2026-11-15T00:00:00Z`},
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="A"].reason`, Message: `conflict with "node-problem-detector" with subresource "status" using v1`},
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="B"].status`, Message: `conflict with "kubectl"`},
		{Reason: "FieldManagerConflict", Field: `.status.conditions[type="B"].status`, Message: `conflict with "autohealer-agent" using v1`},
		{Reason: "FieldManagerConflict", Field: `.metadata.labels`, Message: `conflict with "kubectl"`},
		{Reason: "Other", Field: `.status.conditions[type="C"].status`, Message: `conflict with "kubectl"`},
	}})
	want := []contest{{"A", "node-problem-detector"}, {"B", "kubectl"}, {"B", "autohealer-agent (update)"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(contest{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzContests(f *testing.F) {
	f.Add(`.status.conditions[type="A"].status`, `conflict with "node-problem-detector" with subresource "status" using v1`)
	f.Add(`.status.conditions[type="\u00e4"].status`, "conflict with `x` using")
	f.Fuzz(func(t *testing.T, field, message string) {
		for _, c := range contests(&kubeapi.StatusError{Causes: []kubeapi.Cause{{Reason: "FieldManagerConflict", Field: field, Message: message}}}) {
			if c.kind == "" || c.manager == "" {
				t.Errorf("%+v", c)
			}
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
		r := newRows(false, State{Yielded: map[string]string{"A": "npd"}})
		r.said = map[string]row{"B": {status: catalog.True}}
		r.changed(&v)
		r.inherit(&v)
		r.released(&v)
		r.strays(&v)
		r.forged(&v)
		r.held = v.rowsOf(FieldManager)
		r.part(&v)
		r.abandoned(&v, time.Time{})
	})
}

func TestConfigSaysAllThatIsMissing(t *testing.T) {
	_, err := New(Config{LeaseNamespace: "l", LookEvery: -1})
	for _, words := range []string{"API server", "name of its node", "needs a holder", "less than nothing"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is not in %v", words, err)
		}
	}
	if resultOf(errors.New("x")) != unreachable || resultOf(nil) != fine {
		t.Error("no answer is taken for one")
	}
}
