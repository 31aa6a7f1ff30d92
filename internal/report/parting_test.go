package report

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// patch is a write of a whole row that was there before: its writer owns what he changes,
// and not the row.
func (r *running) patch(kind, reason string) {
	stamp := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	r.api.update("node-problem-detector", map[string]string{"type": kind, "status": "True", "reason": reason, "message": reason,
		"lastHeartbeatTime": stamp, "lastTransitionTime": stamp})
}

func both() finding.Report {
	since := time.Now().Add(-time.Hour)
	return conditions(condition("A", catalog.False, "FineA", since), condition("B", catalog.False, "FineB", since))
}

// begins says both rows.
func (r *running) begins() {
	r.Helper()
	r.Take(both())
	r.Complete()
	pass(10 * time.Second)
	if a := r.api.row("A"); a["reason"] != "FineA" {
		r.Fatalf("A is %v", a)
	}
}

// leaves has A be left to another, who writes it twice.
func (r *running) leaves() {
	r.Helper()
	r.begins()
	for i := range 2 {
		r.patch("A", fmt.Sprint("Theirs", i))
		pass(6 * time.Minute)
	}
	if a := r.api.row("A"); a["reason"] != "Theirs1" || r.Counts().Yielded["A"] == "" || r.api.owners[FieldManager]["A"] != nil {
		r.Fatalf("A is %v, of %v: %+v\n%s", a, r.api.owners, r.Counts(), r.log)
	}
}

func (r *running) forbidden() (n uint64) {
	for outcome, count := range r.Counts().Requests {
		if outcome.Result == forbidden {
			n += count
		}
	}
	return n
}

func TestWhatOthersWriteInOurRowsIsTheirs(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		name := map[bool]string{false: "", true: ", under the guard"}[guarded]
		inBubble(t, "a row that we made and that is left to one who patches it stays"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.leaves()
			r.Take(conditions(condition("B", catalog.True, "Sick", time.Now())))
			synctest.Wait()
			if b := r.api.row("B"); b["reason"] != "Sick" || r.forbidden() != 0 {
				r.Errorf("B is %v: %+v", b, r.Counts())
			}
		})
		inBubble(t, "a row that another has written since we looked stays when its monitor goes"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.begins()
			r.patch("A", "Theirs")
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(time.Minute)
			if a := r.api.row("A"); a["reason"] != "Theirs" || r.api.owners[FieldManager]["A"] != nil || r.forbidden() != 0 {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
			pass(time.Hour)
			if a := r.api.row("A"); a["reason"] != "Theirs" {
				r.Errorf("an hour later A is %v", a)
			}
		})
		inBubble(t, "so does one that is patched between the look and the apply"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.begins()
			r.api.refuseWith(func(q kubeapi.Request) error {
				if q.ContentType == applyPatch && strings.Contains(q.Path, "/status") {
					r.api.fail = nil
					r.api.mu.Unlock()
					r.patch("A", "Theirs")
					r.api.mu.Lock()
				}
				return nil
			})
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(time.Minute)
			if a := r.api.row("A"); a["reason"] != "Theirs" || r.api.owners[FieldManager]["A"] != nil {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
		})
		inBubble(t, "and one in which he has given no more than a heartbeat"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.begins()
			r.api.update("npd", map[string]string{"type": "A", heartbeatTime: "2026-01-01T00:00:00Z"})
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(time.Hour)
			if a := r.api.row("A"); a["reason"] != "FineA" || a["status"] != "False" {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
		})
	}
	inBubble(t, "a row that may not be left counts among those that it may write, and a new one has to wait", nil, func(r *running) {
		r.begins()
		for i := range MostConditions - 2 {
			r.Take(conditions(condition(fmt.Sprintf("C%03d", i), catalog.False, "Well", time.Now())))
		}
		pass(time.Minute)
		r.patch("B", "Theirs")
		r.api.refuseWith(func(q kubeapi.Request) error {
			if strings.HasSuffix(q.Path, "fieldManager="+FieldManager) && !strings.Contains(string(q.Body), `"B"`) {
				return &kubeapi.StatusError{Code: 403, Message: "not B"}
			}
			return nil
		})
		r.Take(finding.Report{Gone: []string{"B"}})
		r.Take(conditions(condition("AA", catalog.True, "New", time.Now()), condition("C000", catalog.True, "Sick", time.Now())))
		pass(4 * time.Minute)
		if len(r.api.rows) != MostConditions || r.api.row("B") == nil || r.api.row("AA") != nil || r.api.row("C000")["reason"] != "Sick" {
			r.Errorf("%d rows, of which B is %v, AA %v and C000 %v:\n%s", len(r.api.rows), r.api.row("B"), r.api.row("AA"), r.api.row("C000"), r.log)
		}
		if dropped := r.Counts().Dropped[Drop{"condition", "too many"}]; dropped != 1 {
			r.Errorf("%d are counted", dropped)
		}
		r.api.refuseWith(nil)
		pass(30 * time.Minute)
		if r.api.row("AA")["reason"] != "New" || r.api.row("B")["reason"] != "Theirs" || r.api.owners[FieldManager]["B"] != nil {
			r.Errorf("when B can be left, B is %v and AA %v", r.api.row("B"), r.api.row("AA"))
		}
	})
	for name, manager := range map[string]string{"left": FieldManager, "handed over": HandManager} {
		inBubble(t, "a row that may not be "+name+" holds up no other", nil, func(r *running) {
			refuse := func(q kubeapi.Request) error {
				if strings.HasSuffix(q.Path, "fieldManager="+manager) && strings.Contains(string(q.Body), `"A"`) == (manager == HandManager) {
					return &kubeapi.StatusError{Code: 403, Message: "not A"}
				}
				return nil
			}
			r.begins()
			r.patch("A", "Theirs")
			r.api.refuseWith(refuse)
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(time.Second)
			r.Take(conditions(condition("B", catalog.True, "Sick", time.Now())))
			pass(2 * time.Second)
			if a, b := r.api.row("A"), r.api.row("B"); a["reason"] != "Theirs" || b["reason"] != "Sick" {
				r.Fatalf("A is %v, B is %v\n%s", a, b, r.log)
			}
			if r.logged("cannot be removed") == 0 || r.logged("conditions=[A]") == 0 {
				r.Errorf("it says:\n%s", r.log)
			}
			before := r.api.count("PATCH /api/")
			pass(24 * time.Hour)
			if n := r.api.count("PATCH /api/") - before; n > 300 || n < 3 { // as everybody who may not
				r.Errorf("%d more writes in a day", n)
			}
			r.api.refuseWith(nil)
			pass(25 * time.Hour)
			if a := r.api.row("A"); a["reason"] != "Theirs" || r.api.owners[FieldManager]["A"] != nil || len(r.api.robbed) > 0 {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
		})
	}
	inBubble(t, "who may not look tells what it has to tell", nil, func(r *running) {
		r.api.refuseWith(answers("GET ", 403))
		r.begins()
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(time.Minute)
		if a, b := r.api.row("A"), r.api.row("B"); a != nil || b == nil {
			r.Errorf("A is %v, B is %v", a, b)
		}
	})
}

func TestARowIsLeftToNobodyForEver(t *testing.T) {
	var states []State
	inBubble(t, "one who is gone loses what was left to him, and one who comes back has it for longer", func(c *Config) {
		c.Remember = func(s State) { states = append(states, s) }
	}, func(r *running) {
		r.leaves()
		for round, wait := range []time.Duration{15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, 24 * time.Hour, 24 * time.Hour} {
			r.patch("A", fmt.Sprint("Still", round))
			pass(wait - time.Second)
			if a := r.api.row("A"); a["reason"] != fmt.Sprint("Still", round) {
				r.Fatalf("before %s A is %v", wait, a)
			}
			pass(2*defaultLookEvery + lookSoon)
			if a := r.api.row("A"); a["reason"] != "FineA" || a["message"] != "all of FineA" || len(r.Counts().Yielded) != 0 {
				r.Fatalf("after %s A is %v: %+v\n%s", wait, a, r.Counts(), r.log)
			}
			r.patch("A", fmt.Sprint("Back", round))
			pass(6 * time.Minute)
			if a := r.api.row("A"); a["reason"] != fmt.Sprint("Back", round) || r.Counts().Yielded["A"] == "" {
				r.Fatalf("he is fought: A is %v", a)
			}
		}
		if last := states[len(states)-1]; last.Yields["A"] != 10 {
			r.Errorf("what is remembered is %+v", last)
		}
		if n := r.logged("he has not written it for a while"); n != 9 {
			r.Errorf("said %d times", n)
		}
	})
	inBubble(t, "how often is remembered", func(c *Config) {
		c.Remembered = State{Yielded: map[string]string{"A": "node-problem-detector"}, Yields: map[string]int{"A": 3}}
	}, func(r *running) {
		heartbeat(r)
		r.Take(both())
		r.Complete()
		pass(time.Hour)
		if a := r.api.row("A"); a["lastTransitionTime"] != "2026-01-01T00:00:00Z" {
			r.Errorf("A is %v", a)
		}
		pass(11 * time.Minute)
		if a := r.api.row("A"); a["lastTransitionTime"] == "2026-01-01T00:00:00Z" {
			r.Errorf("A is %v", a)
		}
	})
	inBubble(t, "a cache that stands still proves nothing", nil, func(r *running) {
		r.leaves()
		r.api.freeze(true)
		for i := range 24 {
			r.patch("A", fmt.Sprint("Alive", i))
			pass(5 * time.Minute)
			if a := r.api.row("A"); a["reason"] != fmt.Sprint("Alive", i) {
				r.Fatalf("A is %v", a)
			}
		}
	})
	inBubble(t, "nor does a row that we would not say", nil, func(r *running) {
		r.leaves()
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(48 * time.Hour)
		if a := r.api.row("A"); a["reason"] != "Theirs1" {
			r.Errorf("A is %v", a)
		}
	})
}

func TestLooks(t *testing.T) {
	inBubble(t, "a store that was set back is mended", nil, func(r *running) {
		r.api.mu.Lock()
		r.api.version = 1_000_000
		r.api.mu.Unlock()
		r.begins()
		r.api.mu.Lock()
		r.api.version, r.api.rows, r.api.owners = 1000, map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		r.api.mu.Unlock()
		before := r.api.count("GET")
		pass(6 * time.Minute)
		if a := r.api.row("A"); a["reason"] != "FineA" {
			r.Errorf("A is %v", a)
		}
		pass(24 * time.Hour)
		if n := r.api.count("GET") - before; n > 700 {
			r.Errorf("%d looks in a day", n)
		}
		if n := r.logged("set back"); n != 1 || r.logged("another agent") != 0 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
	})
	inBubble(t, "the Lease tells that the store was set back, long before the next look", func(cfg *Config) { cfg.LookEvery = 24 * time.Hour }, func(r *running) {
		r.api.mu.Lock()
		r.api.version = 1_000_000
		r.api.mu.Unlock()
		r.begins()
		pass(2 * renewEvery) // the Lease has a version of that time, too
		r.api.mu.Lock()
		r.api.version, r.api.rows, r.api.owners = 1000, map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		r.api.mu.Unlock()
		pass(renewEvery + lookSoon + 2*writeEvery)
		if a := r.api.row("A"); a["reason"] != "FineA" {
			r.Errorf("A is %v", a)
		}
		if n := r.logged("restored from a backup"); n != 1 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
	})
	// With --etcd-servers-overrides Leases and Nodes have versions that say nothing of each other.
	apart := func(name string, nodes, leases int, run func(*running)) {
		inBubble(t, "in stores of their own "+name, func(cfg *Config) { cfg.LookEvery = 24 * time.Hour }, func(r *running) {
			r.api.mu.Lock()
			r.api.version, r.api.leases = nodes, leases
			r.api.mu.Unlock()
			r.begins()
			pass(3 * renewEvery)
			r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
			pass(3 * renewEvery)
			if n := r.logged("restored from a backup"); n != 0 || r.api.row("A")["reason"] != "Sick" {
				r.Fatalf("said %d times of stores that only grow:\n%s", n, r.log)
			}
			run(r)
		})
	}
	apart("versions of Leases below those of Nodes are no restore, and one of the Nodes is noticed with the next write", 1_000_000, 5, func(r *running) {
		r.api.mu.Lock()
		r.api.version = 1000
		r.api.mu.Unlock()
		before := r.api.count("GET")
		r.Take(conditions(condition("A", catalog.False, "FineA", time.Now())))
		pass(writeEvery + lookSoon)
		if r.logged("restored from a backup") != 1 || r.logged("resource=nodes") != 1 || r.api.count("GET") == before {
			r.Errorf("said, after %d looks:\n%s", r.api.count("GET")-before, r.log)
		}
	})
	apart("a restore of the Leases is noticed, although their versions stay above those of Nodes", 5, 1_000_000, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "FineA", time.Now())))
		pass(writeEvery) // so the Node is what was written last
		r.api.mu.Lock()
		r.api.leases = 1000
		r.api.mu.Unlock()
		before := r.api.count("GET")
		pass(renewEvery + lookSoon)
		if r.logged("restored from a backup") != 1 || r.logged("resource=leases") != 1 || r.api.count("GET") == before {
			r.Errorf("said, after %d looks:\n%s", r.api.count("GET")-before, r.log)
		}
	})
	inBubble(t, "an older row in a store that was set back is no other agent's", nil, func(r *running) {
		r.api.mu.Lock()
		r.api.version = 1_000_000
		r.api.mu.Unlock()
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Old"}, map[string]string{"type": "Older", "status": "True"})
		r.begins()
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Old"}, map[string]string{"type": "Older", "status": "True"})
		r.api.mu.Lock()
		r.api.version = 1000
		r.api.mu.Unlock()
		pass(10 * time.Minute)
		if a := r.api.row("A"); a["reason"] != "FineA" || r.api.row("Older") != nil || r.logged("another agent") != 0 {
			r.Errorf("A is %v, Older %v:\n%s", a, r.api.row("Older"), r.log)
		}
	})
	inBubble(t, "what is yielded is not mended", nil, func(r *running) {
		r.leaves() // it was mended once, and then left
		if c := r.Counts(); c.Mended != 1 || c.TakenOver != 1 {
			r.Errorf("%+v", c)
		}
	})
	inBubble(t, "another agent under our name is told of once, and not fought", nil, func(r *running) {
		r.begins()
		before := r.api.count("PATCH /api/")
		for range 100 {
			r.apply(FieldManager, map[string]string{"type": "Theirs", "status": "True", "reason": "R", heartbeatTime: "2026-01-01T00:00:00Z"})
			pass(time.Minute)
		}
		if n := r.api.count("PATCH /api/") - before; n > 45 || n < 20 {
			r.Errorf("%d writes in 100 minutes", n)
		}
		if n := r.logged("another agent writes conditions of this node"); n != 1 || r.logged("conditions=[Theirs]") != 1 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
		if r.Counts().Mended < 20 {
			r.Errorf("%+v", r.Counts())
		}
	})
	inBubble(t, "one that says other things of the same rows is one too", nil, func(r *running) {
		r.begins()
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "R"}, map[string]string{"type": "B", "status": "True", "reason": silentReason})
		pass(6 * time.Minute)
		if n := r.logged("another agent writes conditions of this node"); n != 1 || r.logged("conditions=[A]") != 1 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
	})
	for name, body := range map[string]string{"what is no JSON": "<html>welcome</html>", "nothing": "{}", "a refusal that is called a success": `{"kind":"Status","metadata":{}}`} {
		t.Run("who answers "+name+" is not asked again and again", func(t *testing.T) {
			for _, said := range []bool{false, true} {
				now := time.Now()
				c := newCore(Config{Node: "n", Holder: "h", LeaseNamespace: "l", LookEvery: defaultLookEvery, Logger: slog.New(slog.DiscardHandler)}, func() float64 { return 0.5 }, now)
				if said {
					c.take(now, both())
				}
				c.complete = true
				requests := 0
				for end := now.Add(time.Hour); now.Before(end); requests++ {
					asked, at := c.next(now)
					if asked == nil {
						if now = at; at.IsZero() {
							break
						}
						continue
					}
					if c.answer(now, asked, kubeapi.Answer{Body: []byte(body)}, nil); requests > 1000 {
						break
					}
				}
				if requests > 500 || requests < 60 || c.counts.Requests[Outcome{forLook, unreadable}]+c.counts.Requests[Outcome{forHand, unreadable}] == 0 {
					t.Errorf("%d requests in an hour: %v", requests, c.counts.Requests)
				}
			}
		})
	}
}

func TestWithoutConditionsThoseOfAnEarlierLifeGo(t *testing.T) {
	earlierLife := func(c *Config) {
		c.WithoutConditions = true
		r := &running{T: t, api: c.API.(*fake)}
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True"}, map[string]string{"type": "B", "status": "True", heartbeatTime: "2026-01-01T00:00:00Z"})
		r.patch("B", "Theirs")
	}
	inBubble(t, "and those of others stay", earlierLife, func(r *running) {
		r.Take(both())
		pass(time.Minute)
		if a, b := r.api.row("A"), r.api.row("B"); a != nil || b["reason"] != "Theirs" || r.api.row(placeholder) != nil || len(r.api.owners[FieldManager]) != 0 {
			r.Errorf("A is %v, B is %v, of %v", a, b, r.api.owners)
		}
		before := r.api.count("PATCH /api/")
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True"})
		pass(24 * time.Hour)
		if n := r.api.count("PATCH /api/") - before; n != 0 {
			r.Errorf("%d writes", n)
		}
	})
	inBubble(t, "one who has none writes nothing at all", func(c *Config) { c.WithoutConditions = true }, func(r *running) {
		r.Take(both())
		pass(time.Hour)
		if n := r.api.count("PATCH /api/"); n != 0 || r.api.count("GET") > 2 || r.Counts().Pending {
			r.Errorf("%d writes, %d looks", n, r.api.count("GET"))
		}
	})
}
