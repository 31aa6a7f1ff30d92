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

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The entry of a taint that was placed leaves the ledger within TidyAfter: it does not
// mislead the next leader.
func TestTheEntryOfATaintLeavesTheLedger(t *testing.T) {
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
			pass(TidyAfter / 4)
		}
		pass(TidyAfter / 4)
		if entries, _ := c.ledger.nextSnapshot(time.Now()); entries == nil || len(entries) != 0 {
			t.Errorf("the ledger is %+v", entries)
		}
	})
}

func TestAFullLedgerDoesNotSpin(t *testing.T) {
	l := newEngine(Config{Metrics: NewMetrics()})
	for range maxNodesInSnapshot {
		l.ledger.withSlots = append(l.ledger.withSlots, &Node{taintWrite: taintWrite{granted: grantedSlot{version: "7"}}})
	}
	waiting := &Node{taintWrite: taintWrite{stage: awaitingLedger}}
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

func TestASnapshotHasRoomForRemovedAndExistingNodes(t *testing.T) {
	open(t, func(c *loopFixture) {
		w := &Stepper{c.Engine}
		rule := triage.RuleID{Kind: "Toy", Name: "rule"}
		must(t, c.core.SetRule(time.Now(), triage.Rule{
			ID: rule, When: triage.When{Signals: []triage.Signal{{Condition: "Sick", Status: triage.True}}},
			Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate, Ref: "step"}}},
		}))
		c.core.Loaded(time.Now())
		writeSnapshot := func() []ledger.Entry {
			entries, _ := w.Snapshot()
			if entries != nil {
				must(t, w.Stored(nil))
			}
			return entries
		}
		goes := func(from, to int) {
			for i := from; i < to; i++ {
				name := fmt.Sprintf("n%03d", i)
				c.core.Resume(time.Now(), triage.Grant{Rule: rule, Node: name, UID: name, Since: time.Now(), Gone: time.Now()})
			}
		}
		goes(0, maxNodesInSnapshot)
		first := writeSnapshot()
		if len(first) != maxAwaitingReplacement {
			t.Fatalf("%d are named", len(first))
		}
		last := fmt.Sprintf("n%03d", maxAwaitingReplacement)
		if !c.LedgerLacks(last, func(kept ledger.Slot) bool { return kept.UID == last }) {
			t.Error("the object of one that is not named may be ended")
		}
		for range maxNodesInSnapshot - maxAwaitingReplacement + 10 {
			c.ledger.withSlots = append(c.ledger.withSlots, &Node{Object: named("x", "7"), taintWrite: taintWrite{granted: grantedSlot{version: "7", rules: []triage.RuleID{setRule("set")}}}})
		}
		c.ledger.withSlots = c.ledger.withSlots[:maxNodesInSnapshot-maxAwaitingReplacement]
		pass(time.Minute)
		c.core.Advance(time.Now())
		goes(maxNodesInSnapshot, maxNodesInSnapshot+10)
		page := w.Entries()
		if len(page) > maxNodesInSnapshot {
			t.Errorf("%d are named, at most %d may be", len(page), maxNodesInSnapshot)
		}
		for _, e := range first {
			if slot := e.(ledger.Replacement).Slot; !c.LedgerNames(slot) {
				t.Fatalf("%s has made room for another", slot.Node)
			}
		}
		c.ledger.withSlots = nil
		pass(triage.ReplacementWait - time.Minute)
		c.core.Advance(time.Now())
		if page := writeSnapshot(); len(page) != 10 {
			t.Errorf("of ten that are left %d are named", len(page))
		}
	})
}
