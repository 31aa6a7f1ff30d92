package taint

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestFailuresAreLoggedOnChange(t *testing.T) {
	open(t, func(c *fixture) {
		wr := c.node("a")
		for try := range 20 {
			c.answer(wr, treat.Unknown, fmt.Errorf("port %d: %w", try, enginetest.ErrBroken))
		}
		if n := c.Lines("write delayed"); n != 1 {
			t.Errorf("the same failure is logged %d times:\n%s", n, &c.Log)
		}
		c.answer(wr, treat.Busy, errors.New("too many requests"))
		if n := c.Lines("write delayed"); n != 2 {
			t.Errorf("another kind of failure is not logged:\n%s", &c.Log)
		}
		c.answer(wr, treat.Made, nil)
		c.answer(wr, treat.Made, nil)
		if n := c.Lines("no write to the node fails any more"); n != 1 || !strings.Contains(c.Log.String(), "node=a tries=21") {
			t.Errorf("its end is logged %d times:\n%s", n, &c.Log)
		}
		if got := enginetest.Value(t, c.Metrics, "autohealer_writes_total", "unknown"); got != 20 {
			t.Errorf("%v writes without an answer are counted", got)
		}
	})
}

func TestFailuresOfAllNodesAreSummarized(t *testing.T) {
	open(t, func(c *fixture) {
		const nodes = 1000
		var all []*nodeWrite
		for i := range nodes {
			all = append(all, c.node(fmt.Sprintf("node-%d", i)))
		}
		c.Log.Reset()
		answerAll := func(result treat.Outcome, err error) {
			for _, wr := range all {
				c.answer(wr, result, err)
			}
			enginetest.Pass(engine.LogEvery)
			c.Round(t.Context())
		}
		for range 30 {
			answerAll(treat.Unknown, enginetest.ErrBroken)
		}
		if lines := strings.Count(c.Log.String(), "\n"); lines > engine.MaxLogged+2 || !strings.Contains(c.Log.String(), fmt.Sprintf(`msg="writes are delayed" nodes=%d`, nodes)) {
			t.Errorf("an outage of five minutes is logged in %d lines:\n%s", lines, &c.Log)
		}
		c.Log.Reset()
		answerAll(treat.Made, nil)
		if got := c.Log.String(); c.Lines("writes succeed again") != 1 || c.Lines("no write to the node fails any more") != engine.MaxLogged {
			t.Errorf("its end is logged like this:\n%s", got)
		}
		if due := c.Round(t.Context()); !due.IsZero() {
			t.Errorf("a round is due at %v although nothing happens", due)
		}
	})
}

func TestRefusalsOfManyNodesAreSummarized(t *testing.T) {
	open(t, func(c *fixture) {
		const nodes = 50
		for i := range nodes {
			wr := c.node(fmt.Sprintf("node-%d", i))
			change := treat.Fence(wr.node.Object, "token")
			change.Placed = []triage.PlannedTaint{{Taint: triage.Taint{Rule: setRule("set"), Effect: triage.NoExecute}}}
			change.Takes = []triage.RuleID{setRule("set")}
			c.taints.handleResult(time.Now(), writeResult{write: wr, change: change, result: treat.Refused, err: errors.New("forbidden"), version: "1"})
		}
		enginetest.Pass(engine.LogEvery)
		c.Round(t.Context())
		if got := c.Log.String(); c.Lines("write refused") != engine.MaxLogged || !strings.Contains(got, fmt.Sprintf(`msg="more writes are refused" writes=%d`, nodes-engine.MaxLogged)) ||
			c.Lines("writes succeed again") > 0 {
			t.Errorf("refusals are logged like this:\n%s", got)
		}
	})
}

// An admission webhook may answer with a conflict. The node is unchanged, so reading it
// again does not help.
func TestAConflictWithoutAChangeIsARefusal(t *testing.T) {
	open(t, func(c *fixture) {
		wr := c.node("a")
		change := treat.Fence(wr.node.Object, "token")
		change.Placed = []triage.PlannedTaint{{Taint: triage.Taint{Rule: setRule("set"), Effect: triage.NoSchedule}}}
		c.taints.handleResult(time.Now(), writeResult{write: wr, change: change, result: treat.Stale, err: errors.New("denied the request: 409"), fresh: wr.node.Object})
		if c.Lines("write refused") != 1 || !time.Now().Before(wr.notBefore) {
			t.Errorf("it is tried again at %v; the log:\n%s", wr.notBefore, &c.Log)
		}
	})
}

func TestARefusalIsReportedHourlyOrWhenItChanges(t *testing.T) {
	open(t, func(c *fixture) {
		wr := c.node("a")
		forbidden, denied := errors.New("forbidden"), errors.New("denied by policy")
		for range 50 {
			c.answer(wr, treat.Refused, forbidden)
			enginetest.Pass(time.Minute)
		}
		if len(c.Events) != 1 || !strings.Contains(c.Events[0].Failure, "forbidden") {
			t.Fatalf("in 50 minutes there are %d Events, want 1: %+v", len(c.Events), c.Events)
		}
		if n := c.Lines("write refused"); n != 1 {
			t.Errorf("it is logged %d times:\n%s", n, &c.Log)
		}
		enginetest.Pass(10 * time.Minute)
		c.answer(wr, treat.Refused, forbidden)
		if len(c.Events) != 2 {
			t.Errorf("after an hour there are %d Events, want 2", len(c.Events))
		}
		c.answer(wr, treat.Refused, denied)
		if len(c.Events) != 3 || !strings.Contains(c.Events[2].Failure, "denied") {
			t.Errorf("another message makes %d Events, want 3: %+v", len(c.Events), c.Events)
		}
		c.answer(wr, treat.Made, nil)
		c.answer(wr, treat.Refused, denied)
		if len(c.Events) != 5 { // for the taint and for the new refusal
			t.Errorf("a refusal after a success is not reported: %+v", c.Events)
		}
		c.Events = c.Events[:3]
		c.answer(c.node("b"), treat.Refused, denied)
		if len(c.Events) != 4 {
			t.Errorf("another node makes %d Events, want 4", len(c.Events))
		}
	})
}

func TestRefusedWritesBackOff(t *testing.T) {
	open(t, func(c *fixture) {
		wr := c.node("a")
		began, tries := time.Now(), 0
		for time.Since(began) < time.Hour {
			c.answer(wr, treat.Refused, errors.New("forbidden"))
			tries++
			enginetest.Pass(time.Until(wr.notBefore))
		}
		if tries < 12 || tries > 30 {
			t.Errorf("%d tries in an hour", tries)
		}
		enginetest.Pass(refusalHeld)
		c.answer(wr, treat.Refused, errors.New("forbidden"))
		if wait := time.Until(wr.notBefore); wait > engine.FirstRefusedRetry {
			t.Errorf("an old refusal makes the next one wait for %s", wait)
		}
	})
}
