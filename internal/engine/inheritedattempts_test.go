package engine

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// attemptFixture is a loop with maxAttempts and one rule.
type attemptFixture struct {
	*loopFixture
	t       *testing.T
	version int
}

var replaces = triage.RuleID{Kind: policykind.Repair, Name: "default"}

// withAttemptLimit runs a test with a limit of three attempts in a day.
func withAttemptLimit(t *testing.T, test func(*attemptFixture)) {
	t.Helper()
	open(t, func(c *loopFixture) { test(loadAttempts(t, c)) })
}

// loadAttempts returns a loop that has taken in the entries of a ledger, and nodes.
func loadAttempts(t *testing.T, c *loopFixture, nodes ...*corev1.Node) *attemptFixture {
	t.Helper()
	f := &attemptFixture{loopFixture: c, t: t, version: 100}
	testkit.Must(t, c.core.SetRails(time.Now(), triage.Rails{MaxAttempts: &triage.MaxAttempts{Limit: 3, Window: 24 * time.Hour}}))
	testkit.Must(t, c.core.SetRule(time.Now(), triage.Rule{
		ID: replaces, Stage: policykind.StageRemediate, When: triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
	}))
	items := make([]any, 0, len(nodes))
	for _, n := range nodes {
		items = append(items, n)
	}
	testkit.Must(t, c.nodeInbox.Replace(items, "100"))
	c.takeNodes(time.Now())
	c.load(time.Now())
	return f
}

// node returns a broken node of a pool.
func (f *attemptFixture) node(name, uid, pool string) *corev1.Node {
	f.version++
	n := named(name, strconv.Itoa(f.version))
	n.UID, n.CreationTimestamp = types.UID(uid), metav1.Now()
	if pool != "" {
		n.Labels = map[string]string{karpenter.NodePoolLabel: pool}
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	return n
}

// treated returns a node with attempts of its own, some minutes ago.
func treated(n *corev1.Node, minutes ...int) *corev1.Node {
	var record attempts.Record
	for _, ago := range minutes {
		record.Attempts = append(record.Attempts, attempts.Attempt{Policy: ownership.Rule(replaces), Began: time.Now().Add(-time.Duration(ago) * time.Minute).UTC()})
	}
	return withAttempts(n, n.ResourceVersion, record.Encode())
}

// deliver delivers nodes, and then takes them in together.
func (f *attemptFixture) deliver(nodes ...*corev1.Node) {
	f.t.Helper()
	for _, n := range nodes {
		testkit.Must(f.t, f.nodeInbox.Update(n))
	}
	f.takeNodes(time.Now())
	f.core.Advance(time.Now())
}

func (f *attemptFixture) remove(n *corev1.Node, others ...*corev1.Node) {
	f.t.Helper()
	f.version++
	gone := n.DeepCopy()
	gone.ResourceVersion = strconv.Itoa(f.version)
	testkit.Must(f.t, f.nodeInbox.Delete(gone))
	f.deliver(others...)
}

// finds checks the finding for a node and how many attempts count.
func (f *attemptFixture) finds(node string, code triage.Code, have int) {
	f.t.Helper()
	plan, _ := f.core.Plan(node)
	testkit.Same(f.t, plan.Reason.Code, code, "the finding for %s", node)
	testkit.Same(f.t, len(f.attemptsOf(f.nodeStates[node].Object).Attempts), have, "attempts of %s", node)
}

// snapshot stores the next snapshot, and returns its attempts.
func (f *attemptFixture) snapshot() (names []string) {
	f.t.Helper()
	entries, _ := f.ledger.nextSnapshot(time.Now())
	if entries == nil {
		entries = f.ledger.stored
	} else {
		f.ledger.isWriting = true
		testkit.Must(f.t, f.ledger.handleResult(nil))
	}
	for _, e := range entries {
		if e, is := e.(ledger.Attempts); is {
			names = append(names, e.Node)
		}
	}
	return names
}

func TestANodeOfThePoolInherits(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		old := treated(f.node("old", "1", "blue"), 30, 20, 10)
		f.deliver(old, f.node("other", "2", "green"), f.node("plain", "3", ""))
		f.finds("old", triage.GivenUp, 3)
		f.remove(old)
		f.deliver(f.node("a", "4", "green"))
		f.finds("a", triage.Treating, 0) // another pool
		testkit.Check(t, slices.Equal(f.snapshot(), []string{"old"}), "the ledger does not name the deleted node")
		f.deliver(f.node("b", "5", "blue"), f.node("c", "6", "blue"))
		f.finds("b", triage.GivenUp, 3) // at once, without the annotation
		f.finds("c", triage.Treating, 0)
	})
}

// Some providers let a node join before Karpenter labels it.
func TestANodeThatGetsItsPoolLaterInherits(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		old := treated(f.node("old", "1", "blue"), 30, 20, 10)
		f.deliver(old)
		f.remove(old)
		f.deliver(f.node("a", "4", ""))
		f.finds("a", triage.Treating, 0)
		f.deliver(f.node("a", "4", "blue"))
		f.finds("a", triage.GivenUp, 3)
	})
}

func TestANodeOfTheNameInherits(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		plain, blue := treated(f.node("plain", "1", ""), 3, 2, 1), treated(f.node("blue", "2", "blue"), 3, 2, 1)
		f.deliver(plain, blue)
		f.deliver(f.node("plain", "3", "")) // the watch did not tell that it was deleted
		f.finds("plain", triage.GivenUp, 3)
		f.remove(blue)
		f.deliver(f.node("aqua", "4", "blue"), f.node("blue", "5", "blue")) // the first of the pool
		f.finds("aqua", triage.GivenUp, 3)
		f.finds("blue", triage.Treating, 0)
	})
}

// The replacement may join before the old node is gone, and both may arrive together.
func TestAReplacementThatIsThereAlreadyInherits(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		first := f.node("first", "0", "blue")
		first.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		old := treated(f.node("old", "1", "blue"), 3, 2, 1)
		f.deliver(first, old)
		f.remove(old, f.node("a", "2", "blue"))
		f.finds("a", triage.GivenUp, 3)
		f.finds("first", triage.Treating, 0) // it is older than the attempts

		f.deliver(treated(f.node("z", "3", "red"), 3, 2, 1), f.node("y", "4", "red"))
		f.finds("y", triage.Treating, 0)
		f.remove(f.nodeStates["z"].Object)
		f.finds("y", triage.GivenUp, 3) // it was decided and not begun
	})
}

// The attempts go on from node to node, and the ledger keeps them while no node has inherited.
func TestAttemptsOutliveALeader(t *testing.T) {
	var stored []ledger.Entry
	var replacement *corev1.Node
	withAttemptLimit(t, func(f *attemptFixture) {
		old := treated(f.node("old", "1", "blue"), 3, 2)
		f.deliver(old)
		f.tasks.getOrCreate("old") // in treatment
		f.ledger.isOutdated = true
		testkit.Check(t, slices.Equal(f.snapshot(), []string{"old"}), "the ledger does not name the node in treatment")
		stored = f.ledger.stored
		replacement = f.node("replacement", "2", "blue")
	})
	// The node is gone and its replacement exists when the next process leads.
	restart := func(entries []ledger.Entry, nodes ...*corev1.Node) (f *attemptFixture) {
		open(t, func(c *loopFixture) {
			c.ledger.restored = entries
			f = loadAttempts(t, c, nodes...)
		})
		return f
	}
	f := restart(stored, replacement)
	f.finds("replacement", triage.Treating, 2)
	record := f.attemptsOf(f.nodeStates["replacement"].Object)
	testkit.Check(t, record.Replaces == "1" && record.Attempts[0].Node == "old", "the replacement has %+v", record)

	// The annotation is written, and the entry is still in the ledger.
	written := withAttempts(replacement, "200", record.Encode())
	f = restart(stored, written)
	f.finds("replacement", triage.Treating, 2)
	testkit.Same(t, len(f.inheritance.deleted), 0, "deleted nodes")

	// The deleted node had inherited, and its annotation was not written yet.
	chain := []ledger.Entry{
		ledger.Attempts{Node: "old", UID: "1", NodePool: "blue", Record: attempts.Record{Attempts: record.Attempts[:1]}.Encode()},
		ledger.Attempts{Node: "mid", UID: "3", NodePool: "blue", Record: record.Encode()},
	}
	f = restart(chain, replacement, f.node("next", "4", "blue"))
	f.finds("replacement", triage.Treating, 2)
	f.finds("next", triage.Treating, 0)
	f = restart(chain, f.node("mid", "3", "blue")) // it exists, so it inherits
	f.finds("mid", triage.Treating, 1)

	// A user has removed the annotation. The node exists, so the ledger does not count.
	f = restart([]ledger.Entry{ledger.Attempts{Node: "replacement", UID: "2", NodePool: "blue", Record: record.Encode()}}, replacement)
	f.finds("replacement", triage.Treating, 0)

	// A later version may have written something else.
	f = restart([]ledger.Entry{ledger.Attempts{Node: "old", UID: "1", NodePool: "blue", Record: "later"}}, replacement)
	f.finds("replacement", triage.Treating, 0)
	testkit.Check(t, strings.Contains(f.log.String(), "attempts in the ledger unreadable"), "the log is %s", &f.log)
}

// An inheritance ends when the annotation has it, when the replacement is gone too, and by time.
func TestAnInheritanceEnds(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		old := treated(f.node("old", "1", "blue"), 3, 2)
		f.deliver(old)
		f.remove(old, f.node("a", "2", "blue"))
		testkit.Same(t, len(f.snapshot()), 1, "entries before the annotation is written")
		left := f.inheritance.deleted["1"]
		f.inherited(time.Now(), left, left.replacement, "", "", errors.New("connection refused"))
		testkit.Check(t, !left.isWriting && left.notBefore.After(time.Now()), "after a failure the inheritance is %+v", left)
		f.version++
		f.inherited(time.Now(), left, left.replacement, strconv.Itoa(f.version), f.attemptsOf(left.replacement).Encode(), nil)
		testkit.Same(t, len(f.inheritance.deleted), 0, "deleted nodes after the annotation is written")
		f.finds("a", triage.Treating, 2)
		testkit.Same(t, len(f.snapshot()), 0, "entries after the annotation is written")

		f.remove(f.nodeStates["a"].Object, f.node("b", "3", "blue"))
		f.finds("b", triage.Treating, 2)
		f.remove(f.nodeStates["b"].Object) // before its annotation is written
		testkit.Same(t, len(f.inheritance.deleted), 1, "deleted nodes of the chain")
		f.deliver(f.node("c", "4", "blue"))
		f.finds("c", triage.Treating, 2)
		testkit.Same(t, f.inheritance.deleted["3"].attempts[0].Node, "old", "the first node")

		pass(25 * time.Hour)
		f.writeInherited(t.Context(), time.Now())
		testkit.Same(t, len(f.inheritance.deleted), 0, "deleted nodes after a day")
	})
}

func TestUnreadableAttemptsStopTreatments(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		bad := f.node("a", "1", "")
		bad.Annotations = map[string]string{attempts.Annotation: "three"}
		f.deliver(bad)
		f.finds("a", triage.Vetoed, 0)
		again := bad.DeepCopy()
		again.ResourceVersion, again.Labels = "999", map[string]string{"x": "y"}
		f.deliver(again)
		testkit.Same(t, strings.Count(f.log.String(), "attempts unreadable"), 1, "reports")
	})
}

// A user may remove the attempts before the loop knows that they were written.
func TestInheritedAttemptsThatAUserRemoves(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		old := treated(f.node("old", "1", "blue"), 3, 2, 1)
		f.deliver(old)
		f.remove(old, f.node("a", "2", "blue"))
		f.finds("a", triage.GivenUp, 3)
		left := f.inheritance.deleted["1"]
		record := f.attemptsOf(left.replacement).Encode()
		f.version++
		written := strconv.Itoa(f.version)
		later := left.replacement.DeepCopy()
		f.version++
		later.ResourceVersion, later.Labels = strconv.Itoa(f.version), map[string]string{"x": "y"}
		f.deliver(later)
		f.inherited(time.Now(), left, left.replacement, written, record, nil)
		f.finds("a", triage.Treating, 0)
	})
}

// The engine forgets the deleted nodes whose attempts end first.
func TestRememberedDeletedNodesAreLimited(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		for i := range maxDeletedNodes + 5 {
			n := treated(f.node("n"+strconv.Itoa(i), strconv.Itoa(i), "pool"+strconv.Itoa(i)), maxDeletedNodes+5-i)
			f.deliver(n)
			f.remove(n)
		}
		testkit.Same(t, len(f.inheritance.deleted), maxDeletedNodes, "deleted nodes")
		testkit.Check(t, f.inheritance.deleted["0"] == nil && f.inheritance.deleted[strconv.Itoa(maxDeletedNodes)] != nil, "the wrong ones are forgotten")
		testkit.Same(t, len(f.snapshot()), maxDeletedNodes, "entries")
	})
}

// The ledger and the replacement count an attempt once, although the node has it before the task ends,
// and began to be unhealthy within the same second.
func TestAnAttemptThatBeginsIsCountedOnce(t *testing.T) {
	for _, deleted := range []string{"while the task runs", "later"} {
		withAttemptLimit(t, func(f *attemptFixture) {
			node := treated(f.node("a", "1", "blue"), 30)
			node.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
			f.deliver(node)
			slot := ledger.ObjectWrite{Slot: SlotOf(replaces, node), Object: ledger.ObjectRef{Name: "a"}}
			tasks := f.tasks.getOrCreate("a")
			tasks.granted = slot
			f.ledger.addWithSlot(taskSlot{&f.tasks, tasks})
			has2Attempts := func(when string) {
				f.t.Helper()
				f.ledger.isOutdated = true
				f.snapshot()
				at := slices.IndexFunc(f.ledger.stored, func(e ledger.Entry) bool { _, is := e.(ledger.Attempts); return is })
				record := testkit.Value(attempts.Parse(f.ledger.stored[at].(ledger.Attempts).Record)).Must(f.t)
				testkit.Same(f.t, len(record.Attempts), 2, "attempts in the ledger %s", when)
			}
			has2Attempts("before the task starts")
			r := f.tasks.startTask(time.Now(), tasks, &Task{Rule: replaces, Node: node, Begins: true, Slot: slot})
			has2Attempts("while the task runs")
			f.version++
			r.attempt.made = withAttempts(node, strconv.Itoa(f.version), r.attempt.record)
			f.deliver(r.attempt.made)
			has2Attempts("when the node has the attempt")
			if deleted == "later" {
				f.noteAttempt(time.Now(), r)
				tasks.running, tasks.attempt = nil, nil
				has2Attempts("when the task has ended")
			}
			f.remove(r.attempt.made, f.node("b", "2", "blue"))
			f.finds("b", triage.Treating, 2)
		})
	}
}

// The node became unhealthy within the second in which its last attempt begins. The watch delivers the
// attempt before the treatment has begun: that does not call the treatment off.
func TestAnAttemptThatBeginsDoesNotGiveItsNodeUp(t *testing.T) {
	withAttemptLimit(t, func(f *attemptFixture) {
		node := treated(f.node("a", "uid-a", ""), 30, 20)
		f.deliver(node)
		r := f.tasks.startTask(time.Now(), f.tasks.getOrCreate("a"), &Task{Rule: replaces, Node: node, Begins: true})
		f.version++
		f.deliver(withAttempts(node, strconv.Itoa(f.version), r.attempt.record))
		plan, _ := f.core.Plan("a")
		testkit.Check(t, plan.Treatment != nil, "while the task runs the plan is %+v", plan)
		f.finds("a", plan.Reason.Code, 3)
		r.NodeTasks.running, r.NodeTasks.attempt = nil, nil // the API server refused the treatment
		f.Reobserve(time.Now(), "a")
		f.finds("a", triage.GivenUp, 3)
	})
}
