package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// An entry that has ended is removed from the ledger: at once if the next leader would
// keep a slot for it, otherwise within tidyAfter. The terminations test covers entries of
// NodeClaims, and the tests of holds cover launch failures.
func TestAnEndedEntryLeavesTheLedger(t *testing.T) {
	t.Run("the remediation of a control-plane node", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue, inControl)
			w.tasks.start(t.Context(), time.Now())
			page := w.writeSnapshot()
			if len(page) != 1 || len(entriesOf[ledger.ObjectWrite](page)) != 1 {
				t.Fatalf("the ledger is %+v", page)
			}
			object := w.made("a", "quick")
			w.runs(w.wantTask("a", createRemediation), "a", treat.Made, w.makes(object))
			w.node("a", corev1.ConditionFalse, inControl)
			w.runs(w.wantTask("a", deleteRemediation), "a", treat.Made)
			w.loses(object)
			if page = w.writeSnapshot(); page == nil || len(page) != 0 {
				t.Fatalf("the ledger is %+v", page)
			}
			successor := w.successor(page, nil)
			successor.node("b", corev1.ConditionTrue, inControl)
			successor.wantTask("b", createRemediation)
		})
	})
	t.Run("the remediation of a plain node", func(t *testing.T) {
		withStaticNodes(t, func(h *nodePoolFixture) {
			h.remediates("quick")
			h.breaks(corev1.ConditionTrue, "a")
			h.advance(10 * time.Minute)
			h.begun("a")
			if h.named("a") == nil {
				t.Fatal("the ledger does not name it")
			}
			if h.writeSnapshot(); h.named("a") != nil {
				t.Errorf("the ledger is %+v", h.api.page)
			}
		})
	})
	t.Run("a taint", func(t *testing.T) {
		open(t, func(c *loopFixture) {
			state := c.admit("a")
			state.Object.UID = "u"
			state.granted = grantedSlot{version: "1", rules: []triage.RuleID{setRule("set")}}
			c.ledger.withSlots = []slotTaker{state}
			c.ledger.stored = c.ledger.entries()
			if entries, due := c.ledger.nextSnapshot(time.Now()); entries != nil || !due.IsZero() {
				t.Fatalf("while it may be placed, the ledger is %+v, due %v", entries, due)
			}
			placed := named("a", "2")
			placed.UID = "u"
			state.setNode(placed, time.Now())
			for range 3 { // every round asks
				if entries, due := c.ledger.nextSnapshot(time.Now()); entries != nil || time.Until(due) <= 0 {
					t.Fatalf("the ledger is %+v, due %v", entries, due)
				}
				pass(tidyAfter / 4)
			}
			pass(tidyAfter / 4)
			if entries, _ := c.ledger.nextSnapshot(time.Now()); entries == nil || len(entries) != 0 {
				t.Errorf("the ledger is %+v", entries)
			}
		})
	})
	t.Run("a node that is gone and replaced", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			object := w.takesAwayNode("a")
			w.writeSnapshot()
			w.node("b", corev1.ConditionFalse, isReady)
			w.advance(time.Second)
			if page := entriesOf[ledger.Replacement](w.writeSnapshot()); len(page) != 1 || !page[0].Replaced {
				t.Fatalf("while the remediation is there, the ledger is %+v", page)
			}
			w.loses(object)
			if page := w.writeSnapshot(); page != nil {
				t.Fatalf("the ledger is %+v", page)
			}
			w.advance(tidyAfter)
			if page := w.writeSnapshot(); page == nil || len(page) != 0 {
				t.Errorf("the ledger is %+v", page)
			}
		})
	})
	t.Run("a cancelled launch failure", func(t *testing.T) {
		withNodePools(t, func(h *nodePoolFixture) {
			h.pool("bad", nil)
			h.launches("bad", "x", "y", "z")
			h.lapse("bad", "a")
			h.writeSnapshot()
			h.runs("a", how{second: treat.Refused})
			h.api.page = slices.DeleteFunc(h.api.page, func(e ledger.Entry) bool { _, is := e.(ledger.ObjectWrite); return is })
			h = h.successor(timed) // which reads the rest from the mark
			h.writeSnapshot()
			h.api.changeNode("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
			h.deliver()
			h.advance(time.Minute)
			if e := entriesOf[ledger.LaunchFailures](h.api.page); len(e) != 1 || e[0].Failed != 1 {
				t.Fatalf("the ledger is %+v", h.api.page)
			}
			h.runs("a", how{})
			if h.writeSnapshot(); len(h.api.page) != 0 {
				t.Errorf("the ledger is %+v", h.api.page)
			}
		}, timed)
	})
}

func TestAFullLedgerDoesNotSpin(t *testing.T) {
	l := &Engine{core: triage.New()}
	l.link()
	for range maxNodesInSnapshot {
		l.ledger.withSlots = append(l.ledger.withSlots, &Node{granted: grantedSlot{version: "7"}})
	}
	waiting := &Node{stage: awaitingLedger}
	l.ledger.queued = []slotTaker{waiting}
	if due := l.ledger.write(t.Context(), time.Now()); !due.IsZero() || l.ledger.isWriting {
		t.Errorf("a full ledger is due again at %v", due)
	}
	if len(l.ledger.queued) != 1 || waiting.stage != awaitingLedger {
		t.Error("the node that waited for the ledger no longer does")
	}
}

func TestQueueKeepsItsOrder(t *testing.T) {
	var q queue[*Node]
	a, b := &Node{}, &Node{}
	q.push(a)
	for range 1000 { // the queue is never empty
		q.push(b)
		if q.pop() != a {
			t.Fatal("out of order")
		}
		a, b = b, a
	}
	if len(q.items) > 4 {
		t.Errorf("a queue of one holds %d places", len(q.items))
	}
}

// Entries that do not fit into one snapshot are stored one after the other, until all
// have been stored.
func TestASnapshotIsBoundedInBytes(t *testing.T) {
	open(t, func(c *loopFixture) {
		const nodes, sets = 15, 300 // each node has its own, with the longest names
		now := time.Now()
		c.core.Loaded(now)
		for i := range nodes {
			name := fmt.Sprintf("node-%d", i)
			who, err := triage.NewSelector(triage.Requirement{Key: "name", Op: triage.In, Values: []string{name}})
			must(t, err)
			for j := range sets {
				must(t, c.core.SetRule(now, triage.Rule{
					ID:       setRule(fmt.Sprintf("%0253d", i*sets+j)),
					Who:      who,
					When:     triage.When{Signals: []triage.Signal{{Condition: "Sick", Status: triage.True}}},
					Response: triage.Response{Taint: &triage.TaintResponse{Key: fmt.Sprintf("sick-%d", j), Effect: triage.NoExecute}},
				}))
			}
			node := named(name, "1")
			node.UID, node.Labels = types.UID("uid-"+name), map[string]string{"name": name}
			node.Status.Conditions = []corev1.NodeCondition{{Type: "Sick", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
			c.core.Observe(now, c.upsertNode(node, now))
			c.nodeStates[name].stage = awaitingLedger
			c.ledger.queued = append(c.ledger.queued, c.nodeStates[name])
		}
		served, pages := 0, 0
		for len(c.ledger.queued) > 0 {
			entries, _ := c.ledger.nextSnapshot(now)
			if pages++; entries == nil || pages > nodes {
				t.Fatalf("%d of %d nodes wait for a snapshot that is not written", len(c.ledger.queued), nodes)
			}
			if !c.ledger.ledger.Room().Take(entries...) {
				t.Fatalf("a snapshot with %d entries is too large", len(entries))
			}
			c.ledger.isWriting = true
			must(t, c.ledger.handleResult(nil))
			if len(entries)%sets != 0 { // a node has all of its slots or none
				t.Errorf("a snapshot has %d entries", len(entries))
			}
			served += len(entries) / sets
			for _, taker := range c.ledger.withSlots { // all of them are written
				state := taker.(*Node)
				state.setNode(named(state.Object.Name, "2"), now)
			}
		}
		if served != nodes || pages < 2 {
			t.Errorf("%d of %d nodes were named, on %d pages", served, nodes, pages)
		}
	})
}

// A snapshot with a single node is tried whatever its size, so that the API server's
// error is reported. Other nodes do not wait for it.
func TestANodeThatDoesNotFitBlocksNoOther(t *testing.T) {
	open(t, func(c *loopFixture) {
		room := c.ledger.ledger.Room()
		for size := 100_000; size > 0; size /= 10 {
			for room.Take(ledger.NodeWrite{Slot: ledger.Slot{Node: strings.Repeat("n", size)}}) {
			}
		}
		wanting := func(name string) *Node {
			state := c.admit(name)
			state.Object.UID, state.stage = types.UID(name), awaitingLedger
			must(t, c.core.SetRule(time.Now(), triage.Rule{
				ID:       setRule(name),
				When:     triage.When{Signals: []triage.Signal{{Condition: "Sick", Status: triage.True}}},
				Response: triage.Response{Taint: &triage.TaintResponse{Key: "sick", Effect: triage.NoExecute}},
			}))
			c.core.Observe(time.Now(), triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "Sick", Status: triage.True, Transition: time.Now()}}})
			return state
		}
		c.core.Loaded(time.Now())
		large, small := wanting("large"), wanting("small")
		c.ledger.queued = []slotTaker{large, small}
		c.ledger.addQueued(time.Now(), room)
		if !slices.Equal(c.ledger.writing, []slotTaker{large}) || !slices.Equal(c.ledger.queued, []slotTaker{small}) {
			t.Fatalf("asked are %d, and %d wait", len(c.ledger.writing), len(c.ledger.queued))
		}
		c.ledger.isWriting = true
		must(t, c.ledger.handleResult(apierrors.NewRequestEntityTooLargeError("for a test")))
		if !slices.Equal(c.ledger.queued, []slotTaker{small, large}) {
			t.Error("the one whose page was refused goes first again")
		}
		if _, delay := c.TaintProblem(large, setRule("large")); !strings.Contains(delay, "not written yet: ") || !strings.Contains(delay, "too large") {
			t.Errorf("the write is delayed because it is %q", delay)
		}
	})
}

// A newer version has stored a treatment of an unknown kind. The next control-plane node
// waits while that treatment may arrive.
func TestEntriesOfANewerVersionAreAwaited(t *testing.T) {
	open(t, func(c *loopFixture) {
		w := healthCheckFixtureIn(t, c)
		w.ledger.unknownEntries = []ledger.UnknownEntry{{Slot: ledger.Slot{Rule: ownership.Rule{Name: "MachineHealthCheck/m"}, Node: "a", UID: "u"}, ControlPlane: true}}
		w.ledger.restore(time.Now())
		w.remediations.Check(time.Now())
		w.node("b", corev1.ConditionTrue, inControl)
		w.wantNoTask("b")
		if w.tasks.nextDue.IsZero() || time.Until(w.tasks.nextDue) > maxInFlight {
			t.Errorf("it is looked at again at %v", w.tasks.nextDue)
		}
		pass(maxInFlight)
		w.remediations.Check(time.Now())
		w.runRound()
		w.wantTask("b", createRemediation)
	})
}

// An unreadable mark is not overwritten: another version may have written it and may be
// about to delete the claim.
func TestAnUnknownMarkKeepsTheNode(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b", "c")
		h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, ownership.MarkAnnotation, `{"version":7,"rule":"Rightsizing/x","node":"a","nodeUID":"uid-of-a","since":"2026-11-15T12:00:00Z"}`)
		})
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.wantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "remove it to have the node repaired") {
			t.Errorf("it is reported that %v", is)
		}
		if got := testutil.ToFloat64(h.cfg.Metrics.unknown.WithLabelValues("mark")); got != 1 {
			t.Errorf("%v unknown marks are counted", got)
		}
		h.api.changeClaim("claim-a", func(c *karpenter.NodeClaim) { delete(c.Annotations, ownership.MarkAnnotation) })
		h.deliver()
		h.wantTask("a", terminateClaim)
		if got := testutil.ToFloat64(h.cfg.Metrics.unknown.WithLabelValues("mark")); got != 0 {
			t.Errorf("%v unknown marks are counted when there is none", got)
		}
	})
}

func TestUnknownFieldsOfRecordsAreCounted(t *testing.T) {
	open(t, func(c *loopFixture) {
		counts := func(want float64) {
			t.Helper()
			if got := testutil.ToFloat64(c.cfg.Metrics.unknown.WithLabelValues("record")); got != want {
				t.Errorf("%v entries and fields are counted, want %v", got, want)
			}
		}
		noted := func(version, text string) *corev1.Node {
			node := named("a", version)
			node.Annotations = map[string]string{ownership.Annotation: text}
			return node
		}
		c.upsertNode(noted("1", `{"version":7,"taints":[{"rule":"Other/x","key":"k","effect":"NoExecute","added":"2026-11-15T12:00:00Z"}],"new":1}`), time.Now())
		counts(2)
		c.upsertNode(noted("2", `{"version":7,"new":1}`), time.Now())
		counts(1)
		c.removeNode(time.Now(), c.nodeStates["a"])
		counts(0)
	})
}
