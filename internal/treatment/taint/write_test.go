package taint

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/testkit"
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

// The end of a pause needs no event of the watch. The same write places the taint that waited and
// removes the annotation.
func TestTheEndOfAPause(t *testing.T) {
	open(t, func(c *fixture) {
		rule := setRule("set")
		testkit.Must(t, c.Core().SetRule(time.Now(), triage.Rule{
			ID:       rule,
			Stage:    "Toy",
			When:     triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
			Response: triage.Response{Taint: &triage.TaintResponse{Key: "k", Effect: triage.NoSchedule}},
		}))
		until := time.Now().Add(time.Hour)
		broken := version("broken", "1")
		broken.Annotations = map[string]string{nodepause.Annotation: "until=" + until.Format(time.RFC3339) + " by=anna"}
		healthy := broken.DeepCopy()
		healthy.Name = "healthy"
		broken.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		c.deliver(broken)
		c.deliver(healthy)
		plan := testkit.Value(c.planOf("broken")).Must(t)
		testkit.Same(t, plan.Reason.Code, triage.NodePaused, "the finding")
		testkit.Same(t, len(c.taints.queue), 0, "queued writes during the pause")
		due := c.Round(t.Context())
		testkit.Check(t, due.Equal(until), "the next round is due at %s, want %s", due, until)

		enginetest.Pass(time.Hour)
		c.Round(t.Context())
		testkit.Same(t, len(c.taints.queue), 2, "queued writes after the pause")
		for node, taints := range map[string]int{"broken": 1, "healthy": 0} {
			change := treat.Prepare(c.Node(node).Object, testkit.Value(c.planOf(node)).Must(t), time.Now())
			testkit.Require(t, change != nil, "nothing is to be written to %s", node)
			made := change.Made("2")
			testkit.Check(t, len(made.Spec.Taints) == taints && len(made.Annotations) == taints, "%s becomes %+v", node, made) // the record of the taint
		}
	})
}

// A taint that was placed or removed is reported once, also if the answer of the API server was lost.
func TestATaintWithoutAnAnswerIsReported(t *testing.T) {
	for _, arrival := range []string{"at once", "after the node was read", "after the second write", "never"} {
		t.Run("the first write arrives "+arrival, func(t *testing.T) {
			open(t, func(c *fixture) {
				testkit.Must(t, c.Core().SetRule(time.Now(), triage.Rule{
					ID:       setRule("set"),
					Stage:    "Toy",
					When:     triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
					Response: triage.Response{Taint: &triage.TaintResponse{Key: "broken", Effect: triage.NoSchedule}},
				}))
				is := func(node *corev1.Node, resourceVersion string, broken corev1.ConditionStatus) *corev1.Node {
					node = node.DeepCopy()
					node.ResourceVersion = resourceVersion
					node.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: broken, LastTransitionTime: metav1.Now()}}
					return node
				}
				wr := c.deliver(is(version("a", "1"), "1", corev1.ConditionTrue))
				answer := func(result writeResult) {
					t.Helper()
					result.write, result.uid, result.err = wr, wr.node.Object.UID, nil
					if result.change = wr.nextChange(time.Now(), testkit.Value(c.planOf("a")).Must(t)); result.result == treat.Stale {
						result.change = nil // the node was only read
					}
					if result.result == treat.Unknown {
						result.err, result.mayArrive = enginetest.ErrBroken, true
					}
					c.taints.running++
					c.taints.handleResult(time.Now(), result)
				}
				placed := wr.nextChange(time.Now(), testkit.Value(c.planOf("a")).Must(t)).Made("2")
				answer(writeResult{result: treat.Unknown})
				testkit.Same(t, c.CountEvents(treat.TaintsChanged), 0, "Events before the taint is there")
				if arrival != "at once" {
					answer(writeResult{result: treat.Stale, fresh: wr.node.Object})
					testkit.Same(t, c.CountEvents(treat.TaintsChanged), 0, "Events after the read of a node without the taint")
				}
				if arrival == "after the second write" {
					enginetest.Pass(2 * time.Second) // the record of the second one has another time
					answer(writeResult{result: treat.Unknown})
				}
				if arrival == "never" {
					answer(writeResult{result: treat.Made, version: "3"})
				} else {
					c.deliver(is(placed, "3", corev1.ConditionTrue)) // with another client's change
				}
				answer(writeResult{result: treat.Stale, fresh: is(placed, "4", corev1.ConditionTrue)})
				testkit.Same(t, c.CountEvents(treat.TaintsChanged), 1, "Events about the placed taint")
				c.deliver(is(placed, "5", corev1.ConditionFalse))
				answer(writeResult{result: treat.Unknown})
				answer(writeResult{result: treat.Stale, fresh: is(version("a", "6"), "6", corev1.ConditionFalse)})
				testkit.Same(t, c.CountEvents(treat.TaintsChanged), 2, "Events about the placed and the removed taint")
			})
		})
	}
}

// A pause that cannot be read is reported once, and again if it is changed to another such value.
func TestAPauseThatCannotBeRead(t *testing.T) {
	open(t, func(c *fixture) {
		for i, value := range []string{"tomorrow", "tomorrow", "until=noon", "", "until=2026-03-01T12:00:00Z", "tomorrow"} {
			node := version("a", strconv.Itoa(i+1))
			node.Labels = map[string]string{"version": strconv.Itoa(i)}
			node.Annotations = map[string]string{nodepause.Annotation: value}
			c.deliver(node)
		}
		testkit.Same(t, c.CountEvents(treat.PauseUnreadable), 4, "Events")
		testkit.Check(t, strings.Contains(c.Events[0].Message, `"tomorrow": want until=`), "the Event says %q", c.Events[0].Message)
	})
}

// A refused taint gives its place under maxUnschedulable back while its node waits for the next try: other
// nodes may be closed meanwhile. A write without an answer may still arrive and keeps the place.
func TestARefusedTaintGivesItsPlaceBack(t *testing.T) {
	for _, effect := range []triage.Effect{triage.NoSchedule, triage.NoExecute} {
		for _, isLost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, an earlier answer is lost: %t", effect, isLost), func(t *testing.T) {
				open(t, func(c *fixture) {
					testkit.Must(t, c.Core().SetRails(time.Now(), triage.Rails{Unschedulable: &triage.Limit{Number: 1}}))
					testkit.Must(t, c.Core().SetRule(time.Now(), triage.Rule{
						ID:       setRule("set"),
						Stage:    "Toy",
						When:     triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
						Response: triage.Response{Taint: &triage.TaintResponse{Key: "broken", Effect: effect}},
					}))
					broken := func(name string) *corev1.Node {
						node := version(name, "1")
						node.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
						return node
					}
					a := c.deliver(broken("a"))
					c.deliver(broken("b"))
					plans := func() string {
						onA, onB := testkit.Value(c.planOf("a")).Must(t), testkit.Value(c.planOf("b")).Must(t)
						return fmt.Sprintf("%d %s, %d %s", len(onA.Taints), onA.Reason.Code, len(onB.Taints), onB.Reason.Code)
					}
					testkit.Same(t, plans(), "1 Tainted, 0 MaxUnschedulable", "the plans")
					refuse := func(result treat.Outcome) {
						t.Helper()
						plan := testkit.Value(c.planOf("a")).Must(t)
						change := a.nextChange(time.Now(), plan)
						testkit.Require(t, change != nil && takesSlots(change), "nothing is to be written to a: %+v", plan)
						a.sentFor = a.node.Object.ResourceVersion
						c.taints.running++
						c.taints.handleResult(time.Now(), writeResult{write: a, change: change, result: result, err: enginetest.ErrBroken, version: "1"})
					}
					if isLost {
						refuse(treat.Unknown)
						refuse(treat.Refused)
						testkit.Same(t, plans(), "1 Tainted, 0 MaxUnschedulable", "the plans while a write may arrive")
						return
					}
					if effect == triage.NoExecute {
						refuse(treat.Refused) // NoSchedule instead
						testkit.Same(t, plans(), "1 FellBack, 0 MaxUnschedulable", "the plans")
					}
					refuse(treat.Refused)
					testkit.Same(t, plans(), "0 Retrying, 1 Tainted", "the plans after the refusal")
					testkit.Check(t, a.notBefore.IsZero(), "other writes to the node wait until %v", a.notBefore)
					enginetest.Pass(engine.LastRefusedRetry)
					c.Core().Advance(time.Now())
					testkit.Same(t, plans(), "0 MaxUnschedulable, 1 Tainted", "the plans after the wait")
				})
			})
		}
	}
}
