package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// loopFixture is a loop whose writes the test answers.
type loopFixture struct {
	*Engine
	t      *testing.T
	log    strings.Builder
	events []treat.Event
}

// open runs a test with a fixture in a synctest bubble.
func open(t *testing.T, test func(*loopFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &loopFixture{t: t}
		c.Engine = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(event treat.Event) { c.events = append(c.events, event) })
		test(c)
	})
}

// admit adds a node that the loop knows.
func (c *loopFixture) admit(name string) *Node {
	state := &Node{Object: named(name, "1")}
	c.nodeStates[name] = state
	return state
}

// answer gives a taint write a result.
func (c *loopFixture) answer(state *Node, result treat.Result, err error) {
	change := treat.Fence(state.Object, "token")
	change.Placed = []triage.PlannedTaint{{Taint: triage.Taint{Rule: setRule("set"), Effect: triage.NoSchedule}}}
	c.taints.handleResult(writeResult{state: state, change: change, result: result, err: err, version: state.Object.ResourceVersion})
	c.logSuppressed(time.Now())
}

func (c *loopFixture) lines(message string) int {
	return strings.Count(c.log.String(), fmt.Sprintf("msg=%q", message))
}

var errBroken = errors.New("connection refused")

func TestFailuresAreLoggedOnChange(t *testing.T) {
	open(t, func(c *loopFixture) {
		state := c.admit("a")
		for try := range 20 {
			c.answer(state, treat.Unknown, fmt.Errorf("port %d: %w", try, errBroken))
		}
		if n := c.lines("write delayed"); n != 1 {
			c.t.Errorf("the same trouble is reported %d times:\n%s", n, &c.log)
		}
		c.answer(state, treat.Busy, errors.New("too many requests"))
		if n := c.lines("write delayed"); n != 2 {
			c.t.Errorf("another kind of trouble is not told:\n%s", &c.log)
		}
		c.answer(state, treat.Made, nil)
		c.answer(state, treat.Made, nil)
		if n := c.lines("trouble is over"); n != 1 || !strings.Contains(c.log.String(), "node=a tries=21") {
			c.t.Errorf("its end is reported %d times:\n%s", n, &c.log)
		}
		if got := testutil.ToFloat64(c.cfg.Metrics.writes.WithLabelValues("nodes", "unknown")); got != 20 {
			c.t.Errorf("%v writes without an answer are counted", got)
		}
	})
}

func TestFailuresOfAllNodesAreSummarized(t *testing.T) {
	open(t, func(c *loopFixture) {
		const nodes = 1000
		for i := range nodes {
			c.admit(fmt.Sprintf("node-%d", i))
		}
		all := func(result treat.Result, err error) {
			for _, state := range c.nodeStates {
				c.answer(state, result, err)
			}
			pass(LogEvery)
			c.logSuppressed(time.Now())
		}
		for range 30 {
			all(treat.Unknown, errBroken)
		}
		if lines := strings.Count(c.log.String(), "\n"); lines > MaxLogged+2 || !strings.Contains(c.log.String(), fmt.Sprintf(`msg="writes are delayed" nodes=%d`, nodes)) {
			c.t.Errorf("an outage of five minutes is reported in %d lines:\n%s", lines, &c.log)
		}
		c.log.Reset()
		all(treat.Made, nil)
		if got := c.log.String(); c.lines("writes succeed again") != 1 || c.lines("trouble is over") != MaxLogged {
			c.t.Errorf("its end is reported like this:\n%s", got)
		}
		if due := c.logSuppressed(time.Now()); !due.IsZero() {
			c.t.Errorf("there is something to be reported at %v although nothing happens", due)
		}
	})
}

func TestRefusalsOfManyNodesAreSummarized(t *testing.T) {
	open(t, func(c *loopFixture) {
		const nodes = 50
		for i := range nodes {
			state := c.admit(fmt.Sprintf("node-%d", i))
			change := treat.Fence(state.Object, "token")
			change.Placed = []triage.PlannedTaint{{Taint: triage.Taint{Rule: setRule("set"), Effect: triage.NoExecute}}}
			change.Takes = []triage.RuleID{setRule("set")}
			c.taints.handleResult(writeResult{state: state, change: change, result: treat.Refused, err: errors.New("forbidden"), version: "1"})
		}
		pass(LogEvery)
		c.logSuppressed(time.Now())
		if got := c.log.String(); c.lines("write refused") != MaxLogged || !strings.Contains(got, fmt.Sprintf(`msg="more writes are refused" writes=%d`, nodes-MaxLogged)) ||
			c.lines("writes succeed again") > 0 {
			c.t.Errorf("refusals are told like this:\n%s", got)
		}
	})
}

// An admission webhook may answer with a conflict. The node is unchanged, so reading it
// again does not help.
func TestAConflictWithoutAChangeIsARefusal(t *testing.T) {
	open(t, func(c *loopFixture) {
		state := c.admit("a")
		change := treat.Fence(state.Object, "token")
		change.Placed = []triage.PlannedTaint{{Taint: triage.Taint{Rule: setRule("set"), Effect: triage.NoSchedule}}}
		conflict := writeResult{state: state, change: change, result: treat.Stale, err: errors.New("denied the request: 409"), fresh: state.Object}
		c.taints.handleResult(conflict)
		if c.lines("write refused") != 1 || !time.Now().Before(state.notBefore) {
			c.t.Errorf("it is tried again at %v; the log:\n%s", state.notBefore, &c.log)
		}
	})
}

func TestARefusalIsReportedHourlyOrWhenItChanges(t *testing.T) {
	open(t, func(c *loopFixture) {
		state := c.admit("a")
		forbidden, denied := errors.New("forbidden"), errors.New("denied by policy")
		for range 50 {
			c.answer(state, treat.Refused, forbidden)
			pass(time.Minute)
		}
		if len(c.events) != 1 || !strings.Contains(c.events[0].Failure, "forbidden") {
			c.t.Fatalf("in 50 minutes there are %d Events, want 1: %+v", len(c.events), c.events)
		}
		if n := c.lines("write refused"); n != 1 {
			c.t.Errorf("it is logged %d times:\n%s", n, &c.log)
		}
		pass(10 * time.Minute)
		c.answer(state, treat.Refused, forbidden)
		if len(c.events) != 2 {
			c.t.Errorf("after an hour there are %d Events, want 2", len(c.events))
		}
		c.answer(state, treat.Refused, denied)
		if len(c.events) != 3 || !strings.Contains(c.events[2].Failure, "denied") {
			c.t.Errorf("other words make %d Events, want 3: %+v", len(c.events), c.events)
		}
		c.answer(state, treat.Made, nil)
		c.answer(state, treat.Refused, denied)
		if len(c.events) != 5 { // for the taint and for the new refusal
			c.t.Errorf("a refusal after a success is not Events: %+v", c.events)
		}
		c.events = c.events[:3]
		c.answer(c.admit("b"), treat.Refused, denied)
		if len(c.events) != 4 {
			c.t.Errorf("another node makes %d Events, want 4", len(c.events))
		}
	})
}

func TestRefusedWritesBackOff(t *testing.T) {
	open(t, func(c *loopFixture) {
		state := c.admit("a")
		began, tries := time.Now(), 0
		for time.Since(began) < time.Hour {
			c.answer(state, treat.Refused, errors.New("forbidden"))
			tries++
			pass(time.Until(state.notBefore))
		}
		if tries < 12 || tries > 30 {
			c.t.Errorf("%d tries in an hour", tries)
		}
		pass(refusalHeld)
		c.answer(state, treat.Refused, errors.New("forbidden"))
		if wait := time.Until(state.notBefore); wait > FirstRefusedRetry {
			c.t.Errorf("an old refusal makes the next one wait for %s", wait)
		}
	})
}
