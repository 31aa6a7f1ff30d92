package e2e

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// part is a part of a test with its own scope.
type part struct {
	name, subscope string
	test           func(*scope)
}

// TestFaultsInFlight injects faults while writes are in flight, and checks the recorded
// history for violations. All parts share one cluster; each has its own controllers and
// scope.
func TestFaultsInFlight(t *testing.T) {
	t.Parallel() // the test mostly waits
	runFaults(t, []part{
		{"the controller is killed before and after every kind of write", "killed", testKilled},
		{"the controller is killed during writes to its lease", "lease", testKilledOverLease},
		{"a successor does not reuse a slot in flight", "successor", testSuccessor},
		{"a successor does not reuse a slot in flight if its fence comes too late", "slow-fence", testSlowFence},
		{"the second successor does not reuse a slot in flight", "second-successor", testSecondSuccessor},
		{"a slot in flight stays in the ledger that names other nodes", "page", testLedgerKeepsSlot},
		{"a slot in flight stays in a ledger that was deleted", "erased", testDeletedLedgerKeepsSlot},
		{"a slot in flight stays in a ledger that could not be read", "scribbled", testUnreadableLedgerKeepsSlot},
		{"a successor that cannot read the ledger logs what to do", "unreadable", testSuccessorCannotReadLedger},
		{"the owner of a slot in flight does not reuse it", "lost", testLostAnswer},
		{"a slot in flight survives edits of the effect", "edited", testEditedInFlight},
		{"a placement in flight is not sent again under a lower bound", "lowered", testLoweredInDoubt},
		{"a node whose condition becomes Unknown in time gets no taint", "in-time", testUnknownBeforeSent},
		{"a brake stops all unsent writes", "brake", testBrakes},
	})
}

// TestFaultsAround does the same with external faults: other clients, the API server, the
// network, another leader. It has its own cluster, so that it runs in parallel.
func TestFaultsAround(t *testing.T) {
	t.Parallel()
	runFaults(t, []part{
		{"another client changes the same nodes", "other", testOtherController},
		{"the right to write is withdrawn", "forbidden", testForbidden},
		{"a policy forbids NoExecute", "no-eviction", testRefusedEviction},
		{"a policy forbids every change", "frozen", testFrozen},
		{"requests and responses are lost and refused", "random-faults", testRandomFaults},
		{"the API server is killed and restarted", "outage", testOutage},
		{"the leader is killed", "leader", testLeaderKilled},
		{"the leader is paused past its lease", "paused", testLeaderPaused},
		{"two controllers run without leader election", "deposed", testDeposed},
		{"conditions flap", "flapping", testFlapping},
		{"nodes are created again with the same names", "recreated", testRecreated},
		{"nodes join and leave", "joining", testJoiningStorm},
	})
}

// runFaults injects the faults one after the other during a storm.
func runFaults(t *testing.T, faults []part) {
	t.Helper()
	w := newFixture(t)
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			subscope := w.scope(t, fault.subscope)
			fault.test(subscope)
			subscope.deleteNodes()
		})
	}
}

// everywhere calls a function for every name, several at a time.
func (w *scope) everywhere(names []string, do func(ctx context.Context, i int, name string) error) error {
	const atOnce = 8
	var wg sync.WaitGroup
	errs := make([]error, len(names))
	next := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(w.t.Context(), i, names[i])
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// meanwhile runs a function in parallel with the test, until the test calls end.
func (w *scope) meanwhile(do func() error) (end func()) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return func() {
		w.t.Helper()
		testkit.Must(w.t, <-done)
	}
}

// turn sets the same status on all nodes.
func (w *scope) turn(nodes []string, status corev1.ConditionStatus) error {
	return w.everywhere(nodes, func(ctx context.Context, _ int, node string) error {
		return w.ReportCondition(ctx, node, "Unhealthy", status)
	})
}

// makeUnhealthy makes all of these nodes unhealthy, and recover makes them healthy.
func (w *scope) makeUnhealthy(nodes []string) {
	w.t.Helper()
	testkit.Must(w.t, w.turn(nodes, corev1.ConditionTrue))
}

func (w *scope) recover(nodes []string) {
	w.t.Helper()
	testkit.Must(w.t, w.turn(nodes, corev1.ConditionFalse))
}

// unhealthyFromStart returns nodes that are unhealthy from the start.
func unhealthyFromStart(count int) testbed.Nodes {
	return testbed.Nodes{Count: count, Conditions: []corev1.NodeCondition{{Type: "Unhealthy", Status: corev1.ConditionTrue, Reason: "TestSaysSo"}}}
}

var almostHalf = intstr.FromString("49%")

// evicted returns the nodes of the scope that have a NoExecute taint with this key.
func (w *scope) evicted(key string) []string {
	w.t.Helper()
	nodes := testkit.Value(w.all(w.t.Context())).Must(w.t)
	var names []string
	for i := range nodes {
		if slices.Contains(taintsOf(&nodes[i]), noExecute(key)) {
			names = append(names, nodes[i].Name)
		}
	}
	return names
}
