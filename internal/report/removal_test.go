package report

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// patch writes a whole existing condition. Its writer owns the fields that it changes, and not
// the list entry.
func (r *running) patch(kind, reason string) {
	stamp := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	r.api.update("node-problem-detector", map[string]string{"type": kind, "status": "True", "reason": reason, "message": reason,
		"lastHeartbeatTime": stamp, "lastTransitionTime": stamp})
}

func both() finding.Report {
	since := time.Now().Add(-time.Hour)
	return reportOf(newCondition("A", catalog.False, "FineA", since), newCondition("B", catalog.False, "FineB", since))
}

// begins applies both conditions.
func (r *running) begins() {
	r.Helper()
	r.starts(both(), 10*time.Second)
	testkit.MustBeSame(r, r.api.condition("A")["reason"], "FineA", "the reason of A")
}

// leaves yields A to another manager, which writes it twice.
func (r *running) leaves() {
	r.Helper()
	r.begins()
	for i := range 2 {
		r.patch("A", fmt.Sprint("Theirs", i))
		pass(6 * time.Minute)
	}
	if a := r.api.condition("A"); a["reason"] != "Theirs1" || r.Counts().Yielded["A"] == "" || r.api.owners[FieldManager]["A"] != nil {
		r.Fatalf("A is %v, of %v: %+v\n%s", a, r.api.owners, r.Counts(), r.log)
	}
}

func (r *running) forbidden() (n uint64) {
	for outcome, count := range r.Counts().Requests {
		if outcome.Result == resultForbidden {
			n += count
		}
	}
	return n
}

func TestOtherManagersKeepWhatTheyWrite(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		name := map[bool]string{false: "", true: ", under the guard"}[guarded]
		inBubble(t, "keeps a yielded condition that another manager patches"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.leaves()
			r.takes(reportOf(newCondition("B", catalog.True, "Unhealthy", time.Now())), 0)
			b := r.api.condition("B")
			testkit.Check(r, b["reason"] == "Unhealthy" && r.forbidden() == 0, "B is %v: %+v", b, r.Counts())
		})
		inBubble(t, "keeps a condition that another manager wrote after the last check when its monitor goes"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.begins()
			r.patch("A", "Theirs")
			r.takes(finding.Report{Gone: []string{"A"}}, time.Minute)
			a := r.api.condition("A")
			testkit.Check(r, a["reason"] == "Theirs" && r.api.owners[FieldManager]["A"] == nil && r.forbidden() == 0, "A is %v, of %v", a, r.api.owners)
			pass(time.Hour)
			testkit.Same(r, r.api.condition("A")["reason"], "Theirs", "the reason of A an hour later")
		})
		inBubble(t, "keeps a condition that is patched between the check and the apply"+name, nil, func(r *running) {
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
			r.takes(finding.Report{Gone: []string{"A"}}, time.Minute)
			a := r.api.condition("A")
			testkit.Check(r, a["reason"] == "Theirs" && r.api.owners[FieldManager]["A"] == nil, "A is %v, of %v", a, r.api.owners)
		})
		inBubble(t, "keeps a condition in which another manager wrote only a heartbeat"+name, nil, func(r *running) {
			r.api.guarded = guarded
			r.begins()
			r.api.update("npd", map[string]string{"type": "A", heartbeatTime: "2026-01-01T00:00:00Z"})
			r.takes(finding.Report{Gone: []string{"A"}}, time.Hour)
			a := r.api.condition("A")
			testkit.Check(r, a["reason"] == "FineA" && a["status"] == "False", "A is %v, of %v", a, r.api.owners)
		})
	}
	inBubble(t, "counts an unremovable condition against the limit, and delays a new one", nil, func(r *running) {
		r.begins()
		for i := range MostConditions - 2 {
			r.Take(reportOf(newCondition(fmt.Sprintf("C%03d", i), catalog.False, "Well", time.Now())))
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
		r.takes(reportOf(newCondition("AA", catalog.True, "New", time.Now()), newCondition("C000", catalog.True, "Unhealthy", time.Now())), 4*time.Minute)
		if len(r.api.conditions) != MostConditions || r.api.condition("B") == nil || r.api.condition("AA") != nil || r.api.condition("C000")["reason"] != "Unhealthy" {
			r.Errorf("%d conditions, of which B is %v, AA %v and C000 %v:\n%s", len(r.api.conditions), r.api.condition("B"), r.api.condition("AA"), r.api.condition("C000"), r.log)
		}
		testkit.Same(r, r.Counts().Dropped[Drop{"condition", "too many"}], 1, "conditions that are counted as dropped")
		r.api.refuseWith(nil)
		pass(30 * time.Minute)
		testkit.Check(r, r.api.condition("AA")["reason"] == "New" && r.api.condition("B")["reason"] == "Theirs" && r.api.owners[FieldManager]["B"] == nil,
			"when B can be removed, B is %v and AA %v", r.api.condition("B"), r.api.condition("AA"))
	})
	for name, manager := range map[string]string{"left": FieldManager, "handed over": HandManager} {
		inBubble(t, "a condition that may not be "+name+" delays no other", nil, func(r *running) {
			refuse := func(q kubeapi.Request) error {
				if strings.HasSuffix(q.Path, "fieldManager="+manager) && strings.Contains(string(q.Body), `"A"`) == (manager == HandManager) {
					return &kubeapi.StatusError{Code: 403, Message: "not A"}
				}
				return nil
			}
			r.begins()
			r.patch("A", "Theirs")
			r.api.refuseWith(refuse)
			r.takes(finding.Report{Gone: []string{"A"}}, time.Second)
			r.takes(reportOf(newCondition("B", catalog.True, "Unhealthy", time.Now())), 2*time.Second)
			a, b := r.api.condition("A"), r.api.condition("B")
			testkit.Require(r, a["reason"] == "Theirs" && b["reason"] == "Unhealthy", "A is %v, B is %v\n%s", a, b, r.log)
			testkit.Check(r, r.logged("cannot remove") != 0 && r.logged("conditions=[A]") != 0, "the log is:\n%s", r.log)
			before := r.api.count("PATCH /api/")
			pass(24 * time.Hour)
			if n := r.api.count("PATCH /api/") - before; n > 300 || n < 3 { // as often as after any missing permission
				r.Errorf("%d more writes in a day", n)
			}
			r.api.refuseWith(nil)
			pass(25 * time.Hour)
			if a := r.api.condition("A"); a["reason"] != "Theirs" || r.api.owners[FieldManager]["A"] != nil || len(r.api.deletedWithWriter) > 0 {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
		})
	}
	inBubble(t, "writes conditions without permission to read the node", nil, func(r *running) {
		r.api.refuseWith(answers("GET ", 403))
		r.begins()
		r.takes(finding.Report{Gone: []string{"A"}}, time.Minute)
		a, b := r.api.condition("A"), r.api.condition("B")
		testkit.Check(r, a == nil && b != nil, "A is %v, B is %v", a, b)
	})
}

func TestTheAgentTakesBackAbandonedConditions(t *testing.T) {
	var states []State
	inBubble(t, "takes back an abandoned condition, and waits longer after each return of its writer", func(c *Config) {
		c.Remember = func(s State) { states = append(states, s) }
	}, func(r *running) {
		r.leaves()
		for round, wait := range []time.Duration{15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, 24 * time.Hour, 24 * time.Hour} {
			r.patch("A", fmt.Sprint("Still", round))
			pass(wait - time.Second)
			testkit.MustBeSame(r, r.api.condition("A")["reason"], fmt.Sprint("Still", round), "the reason of A before %s", wait)
			pass(2*defaultLookEvery + earlyCheckWithin)
			if a := r.api.condition("A"); a["reason"] != "FineA" || a["message"] != "all of FineA" || len(r.Counts().Yielded) != 0 {
				r.Fatalf("after %s A is %v: %+v\n%s", wait, a, r.Counts(), r.log)
			}
			r.patch("A", fmt.Sprint("Back", round))
			pass(6 * time.Minute)
			a := r.api.condition("A")
			testkit.Require(r, a["reason"] == fmt.Sprint("Back", round) && r.Counts().Yielded["A"] != "", "he is fought: A is %v", a)
		}
		testkit.Same(r, states[len(states)-1].Yields["A"], 10, "remembered yields of A")
		testkit.Same(r, r.logged("has stopped writing it"), 9, "log lines")
	})
	inBubble(t, "saves how often a condition was yielded", func(c *Config) {
		c.Remembered = State{Yielded: map[string]string{"A": "node-problem-detector"}, Yields: map[string]int{"A": 3}}
	}, func(r *running) {
		heartbeat(r)
		r.starts(both(), time.Hour)
		testkit.Same(r, r.api.condition("A")["lastTransitionTime"], "2026-01-01T00:00:00Z", "the transition time of A")
		pass(11 * time.Minute)
		a := r.api.condition("A")
		testkit.Check(r, a["lastTransitionTime"] != "2026-01-01T00:00:00Z", "A is %v", a)
	})
	inBubble(t, "ignores a stale cache", nil, func(r *running) {
		r.leaves()
		r.api.freeze(true)
		for i := range 24 {
			r.patch("A", fmt.Sprint("Alive", i))
			pass(5 * time.Minute)
			testkit.MustBeSame(r, r.api.condition("A")["reason"], fmt.Sprint("Alive", i), "the reason of A")
		}
	})
	inBubble(t, "takes back only conditions that a source reports", nil, func(r *running) {
		r.leaves()
		r.takes(finding.Report{Gone: []string{"A"}}, 48*time.Hour)
		testkit.Same(r, r.api.condition("A")["reason"], "Theirs1", "the reason of A")
	})
}

func TestChecks(t *testing.T) {
	inBubble(t, "writes conditions again after the store was restored", nil, func(r *running) {
		r.api.change(func() { r.api.version = 1_000_000 })
		r.begins()
		r.api.change(func() {
			r.api.version, r.api.conditions, r.api.owners = 1000, map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		})
		before := r.api.count("GET")
		pass(6 * time.Minute)
		testkit.Same(r, r.api.condition("A")["reason"], "FineA", "the reason of A")
		pass(24 * time.Hour)
		testkit.Between(r, r.api.count("GET")-before, 0, 700, "checks in a day")
		n := r.logged("earlier state")
		testkit.Check(r, n == 1 && r.logged("second agent") == 0, "logged %d times:\n%s", n, r.log)
	})
	inBubble(t, "detects a restored store from the Lease version, long before the next check", func(cfg *Config) { cfg.LookEvery = 24 * time.Hour }, func(r *running) {
		r.api.change(func() { r.api.version = 1_000_000 })
		r.begins()
		pass(2 * renewEvery) // the Lease has a version of that time, too
		r.api.change(func() {
			r.api.version, r.api.conditions, r.api.owners = 1000, map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		})
		pass(renewEvery + earlyCheckWithin + 2*writeEvery)
		testkit.Same(r, r.api.condition("A")["reason"], "FineA", "the reason of A")
		testkit.Same(r, r.logged("restored from a backup"), 1, "log lines:\n%s", r.log)
	})
	// With --etcd-servers-overrides the versions of Leases and Nodes cannot be compared.
	apart := func(name string, nodes, leases int, run func(*running)) {
		inBubble(t, "in stores of their own "+name, func(cfg *Config) { cfg.LookEvery = 24 * time.Hour }, func(r *running) {
			r.api.change(func() { r.api.version, r.api.leases = nodes, leases })
			r.begins()
			pass(3 * renewEvery)
			r.takes(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())), 3*renewEvery)
			n := r.logged("restored from a backup")
			testkit.Require(r, n == 0 && r.api.condition("A")["reason"] == "Unhealthy", "logged %d times although versions only grow:\n%s", n, r.log)
			run(r)
		})
	}
	apart("versions of Leases below those of Nodes are no restore, and one of the Nodes is noticed with the next write", 1_000_000, 5, func(r *running) {
		r.api.change(func() { r.api.version = 1000 })
		before := r.api.count("GET")
		r.takes(reportOf(newCondition("A", catalog.False, "FineA", time.Now())), writeEvery+earlyCheckWithin)
		testkit.Check(r, r.logged("restored from a backup") == 1 && r.logged("resource=nodes") == 1 && r.api.count("GET") != before,
			"the log after %d checks is:\n%s", r.api.count("GET")-before, r.log)
	})
	apart("a restore of the Leases is noticed, although their versions stay above those of Nodes", 5, 1_000_000, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "FineA", time.Now())))
		pass(writeEvery) // so that the Node is the last write
		r.api.change(func() { r.api.leases = 1000 })
		before := r.api.count("GET")
		pass(renewEvery + earlyCheckWithin)
		testkit.Check(r, r.logged("restored from a backup") == 1 && r.logged("resource=leases") == 1 && r.api.count("GET") != before,
			"the log after %d checks is:\n%s", r.api.count("GET")-before, r.log)
	})
	inBubble(t, "does not attribute an older condition in a restored store to a second agent", nil, func(r *running) {
		r.api.change(func() { r.api.version = 1_000_000 })
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Old"}, map[string]string{"type": "Older", "status": "True"})
		r.begins()
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Old"}, map[string]string{"type": "Older", "status": "True"})
		r.api.change(func() { r.api.version = 1000 })
		pass(10 * time.Minute)
		if a := r.api.condition("A"); a["reason"] != "FineA" || r.api.condition("Older") != nil || r.logged("second agent") != 0 {
			r.Errorf("A is %v, Older %v:\n%s", a, r.api.condition("Older"), r.log)
		}
	})
	inBubble(t, "does not rewrite a yielded condition", nil, func(r *running) {
		r.leaves() // it was rewritten once, and then yielded
		c := r.Counts()
		testkit.Check(r, c.Restored == 1 && c.TakenOver == 1, "%+v", c)
	})
	inBubble(t, "logs a second agent once and does not fight it", nil, func(r *running) {
		r.begins()
		before := r.api.count("PATCH /api/")
		for range 100 {
			r.apply(FieldManager, map[string]string{"type": "Theirs", "status": "True", "reason": "R", heartbeatTime: "2026-01-01T00:00:00Z"})
			pass(time.Minute)
		}
		testkit.Between(r, r.api.count("PATCH /api/")-before, 20, 45, "writes in 100 minutes")
		n := r.logged("a second agent writes conditions of this node")
		testkit.Check(r, n == 1 && r.logged("conditions=[Theirs]") == 1, "logged %d times:\n%s", n, r.log)
		testkit.Check(r, r.Counts().Restored >= 20, "%+v", r.Counts())
	})
	inBubble(t, "detects a second agent that writes the same conditions with other values", nil, func(r *running) {
		r.begins()
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "R"}, map[string]string{"type": "B", "status": "True", "reason": agentSilentReason})
		pass(6 * time.Minute)
		n := r.logged("a second agent writes conditions of this node")
		testkit.Check(r, n == 1 && r.logged("conditions=[A]") == 1, "logged %d times:\n%s", n, r.log)
	})
	for name, body := range map[string]string{"what is no JSON": "<html>welcome</html>", "nothing": "{}", "a refusal that is called a success": `{"kind":"Status","metadata":{}}`} {
		t.Run("does not repeat requests quickly after response "+name, func(t *testing.T) {
			for _, applied := range []bool{false, true} {
				now := time.Now()
				c := newCore(Config{Node: "n", Holder: "h", LeaseNamespace: "l", LookEvery: defaultLookEvery, Logger: slog.New(slog.DiscardHandler)}, func() float64 { return 0.5 }, now)
				if applied {
					c.take(now, both())
				}
				c.complete = true
				requests := 0
				for end := now.Add(time.Hour); now.Before(end); requests++ {
					req, at := c.next(now)
					if req == nil {
						if now = at; at.IsZero() {
							break
						}
						continue
					}
					if c.answer(now, req, kubeapi.Answer{Body: []byte(body)}, nil); requests > 1000 {
						break
					}
				}
				if requests > 500 || requests < 60 || c.counts.Requests[Outcome{requestRead, resultUnreadable}]+c.counts.Requests[Outcome{requestHandover, resultUnreadable}] == 0 {
					t.Errorf("%d requests in an hour: %v", requests, c.counts.Requests)
				}
			}
		})
	}
}

func TestWithoutConditionsRemovesThoseOfAnEarlierRun(t *testing.T) {
	earlierRun := func(c *Config) {
		c.WithoutConditions = true
		r := &running{T: t, api: c.API.(*fake)}
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True"}, map[string]string{"type": "B", "status": "True", heartbeatTime: "2026-01-01T00:00:00Z"})
		r.patch("B", "Theirs")
	}
	inBubble(t, "keeps conditions of other managers", earlierRun, func(r *running) {
		r.takes(both(), time.Minute)
		if a, b := r.api.condition("A"), r.api.condition("B"); a != nil || b["reason"] != "Theirs" || r.api.condition(placeholder) != nil || len(r.api.owners[FieldManager]) != 0 {
			r.Errorf("A is %v, B is %v, of %v", a, b, r.api.owners)
		}
		before := r.api.count("PATCH /api/")
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True"})
		pass(24 * time.Hour)
		testkit.Same(r, r.api.count("PATCH /api/")-before, 0, "writes")
	})
	inBubble(t, "writes nothing without old conditions", func(c *Config) { c.WithoutConditions = true }, func(r *running) {
		r.takes(both(), time.Hour)
		n := r.api.count("PATCH /api/")
		testkit.Check(r, n == 0 && r.api.count("GET") <= 2 && !r.Counts().Pending, "%d writes, %d checks", n, r.api.count("GET"))
	})
}
