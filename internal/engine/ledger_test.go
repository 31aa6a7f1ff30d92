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

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// fakeTaker is a write that takes slots.
type fakeTaker struct {
	needs, requested, granted []ledger.Entry
	proceeded                 bool
}

func (t *fakeTaker) Request(time.Time) []ledger.Entry { t.requested = t.needs; return t.requested }
func (t *fakeTaker) Requested() []ledger.Entry        { return t.requested }
func (t *fakeTaker) Granted() []ledger.Entry          { return t.granted }
func (t *fakeTaker) HasGrant() bool                   { return len(t.granted) > 0 }
func (t *fakeTaker) Grant()                           { t.granted, t.requested = t.requested, nil }
func (t *fakeTaker) NotGranted(time.Time)             { t.requested = nil }
func (t *fakeTaker) Proceed()                         { t.proceeded = true }

// entryOf returns the entry of a rule's write to a node.
func entryOf(rule, node string) ledger.Entry {
	return ledger.NodeWrite{Slot: ledger.Slot{Rule: ownership.Rule{Kind: "Toy", Name: rule}, Node: node, UID: node}, ResourceVersion: "7"}
}

func TestAFullLedgerDoesNotSpin(t *testing.T) {
	l := newEngine(Config{Metrics: NewMetrics()})
	for range maxNodesInSnapshot {
		l.ledger.withSlots = append(l.ledger.withSlots, &fakeTaker{granted: []ledger.Entry{entryOf("set", "x")}})
	}
	waiting := &fakeTaker{needs: []ledger.Entry{entryOf("set", "waiting")}}
	l.RequestSlot(waiting)
	if due := l.ledger.write(t.Context(), time.Now()); !due.IsZero() || l.ledger.isWriting {
		t.Errorf("a full ledger is due again at %v", due)
	}
	if len(l.ledger.queued) != 1 || waiting.proceeded {
		t.Error("the write no longer waits for the ledger")
	}
}

// Entries that do not fit into one snapshot are stored one after the other, until all
// have been stored.
func TestASnapshotIsBoundedInBytes(t *testing.T) {
	open(t, func(c *loopFixture) {
		const nodes, sets = 15, 300 // each node has its own, with the longest names
		for i := range nodes {
			taker := &fakeTaker{}
			for j := range sets {
				taker.needs = append(taker.needs, entryOf(fmt.Sprintf("%0253d", i*sets+j), fmt.Sprintf("node-%d", i)))
			}
			c.RequestSlot(taker)
		}
		served, pages := 0, 0
		for len(c.ledger.queued) > 0 {
			entries, _ := c.ledger.nextSnapshot(time.Now())
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
				taker.(*fakeTaker).granted = nil
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
		large, small := &fakeTaker{needs: []ledger.Entry{entryOf("large", "large")}}, &fakeTaker{needs: []ledger.Entry{entryOf("small", "small")}}
		c.RequestSlot(large)
		c.RequestSlot(small)
		c.ledger.addQueued(time.Now(), room)
		if !slices.Equal(c.ledger.writing, []SlotTaker{large}) || !slices.Equal(c.ledger.queued, []SlotTaker{small}) {
			t.Fatalf("%d are in the snapshot, and %d wait", len(c.ledger.writing), len(c.ledger.queued))
		}
		c.ledger.isWriting = true
		must(t, c.ledger.handleResult(apierrors.NewRequestEntityTooLargeError("for a test")))
		if !slices.Equal(c.ledger.queued, []SlotTaker{small, large}) {
			t.Error("the write whose snapshot was refused goes first again")
		}
		if !strings.Contains(c.LedgerFailure(), "too large") {
			t.Errorf("the error of the ledger is %q", c.LedgerFailure())
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
		c.RemoveNode(time.Now(), c.nodeStates["a"])
		counts(0)
	})
}

func TestASnapshotHasRoomForRemovedAndExistingNodes(t *testing.T) {
	open(t, func(c *loopFixture) {
		w := &Stepper{c.Engine}
		rule := triage.RuleID{Kind: "Toy", Name: "rule"}
		must(t, c.core.SetRule(time.Now(), triage.Rule{
			ID: rule, Stage: "Toy", When: triage.When{Signals: []triage.Signal{{Condition: "Sick", Status: triage.True}}},
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
			c.ledger.withSlots = append(c.ledger.withSlots, &fakeTaker{granted: []ledger.Entry{entryOf("set", "x")}})
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
			if slot := e.(ledger.DeletedNode).Slot; !c.LedgerNames(slot) {
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
