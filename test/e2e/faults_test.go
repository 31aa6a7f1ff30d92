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
)

// fault is a part of a test in which something goes wrong.
type fault struct {
	name, ward string
	test       func(*scope)
}

// TestFaultsInFlight lets things go wrong while writes are on their way, and holds every
// moment of it against the laws of the house. All of its parts share one cluster; each has
// controllers and a ward of its own.
func TestFaultsInFlight(t *testing.T) {
	t.Parallel() // much of it is waiting
	runFaults(t, []fault{
		{"the controller is killed before and after every kind of write", "killed", testKilled},
		{"the controller is killed over its lease", "lease", testKilledOverLease},
		{"a place in flight is not given away by the heir", "heir", testSuccessor},
		{"a place in flight is not given away by the heir whose fence comes too late", "slow-fence", testSlowFence},
		{"a place in flight is not given away by the heir's heir", "heirs-heir", testSecondSuccessor},
		{"a place in flight stays on the page that names others", "page", testLedgerKeepsSlot},
		{"a place in flight stays on the page that was deleted", "erased", testDeletedLedgerKeepsSlot},
		{"a place in flight stays on the page that could not be read", "scribbled", testUnreadableLedgerKeepsSlot},
		{"an heir who cannot read the ledger says what to do", "unreadable", testSuccessorCannotReadLedger},
		{"a place in flight is not given away by its owner", "lost", testLostAnswer},
		{"a place in flight survives edits of the effect", "edited", testEditedInFlight},
		{"a place in flight is not asked for again under a lower bound", "lowered", testLoweredInDoubt},
		{"a node that turns unknown in time is spared", "in-time", testUnknownBeforeSent},
		{"a brake stops what has not been sent", "brake", testBrakes},
	})
}

// TestFaultsAround does the same where others are at fault: other clients, the API server,
// the network, another leader. Its cluster is its own, so that nobody waits for both.
func TestFaultsAround(t *testing.T) {
	t.Parallel()
	runFaults(t, []fault{
		{"another client changes the same nodes", "neighbour", testOtherController},
		{"the right to write is withdrawn", "forbidden", testForbidden},
		{"a policy forbids NoExecute", "no-eviction", testRefusedEviction},
		{"a policy forbids every change", "frozen", testFrozen},
		{"requests and answers are lost and refused", "weather", testRandomFaults},
		{"the API server is killed and restarted", "outage", testOutage},
		{"the leader is killed", "leader", testLeaderKilled},
		{"the leader is paused past its lease", "paused", testLeaderPaused},
		{"two lead without an election", "deposed", testDeposed},
		{"conditions flap", "flapping", testFlapping},
		{"nodes are made again under their names", "recreated", testRecreated},
		{"nodes join and leave", "joining", testJoiningStorm},
	})
}

// runFaults lets one thing after the other go wrong in a storm.
func runFaults(t *testing.T, faults []fault) {
	t.Helper()
	w := newFixture(t)
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			ward := w.scope(t, fault.ward)
			fault.test(ward)
			ward.deleteNodes()
		})
	}
}

// everywhere runs something for every name, several at a time.
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

// meanwhile does something while the test goes on, until it asks for the end.
func (w *scope) meanwhile(do func() error) (end func()) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return func() {
		w.t.Helper()
		w.must(<-done)
	}
}

func (w *scope) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// turn gives all of them the same status.
func (w *scope) turn(nodes []string, status corev1.ConditionStatus) error {
	return w.everywhere(nodes, func(ctx context.Context, _ int, node string) error { return w.try(ctx, node, "Sick", status) })
}

// fallSick makes all of them sick, and recover makes them well.
func (w *scope) fallSick(nodes []string) {
	w.t.Helper()
	w.must(w.turn(nodes, corev1.ConditionTrue))
}

func (w *scope) recover(nodes []string) {
	w.t.Helper()
	w.must(w.turn(nodes, corev1.ConditionFalse))
}

// sickFromBirth makes nodes that are sick already.
func sickFromBirth(count int) testbed.Nodes {
	return testbed.Nodes{Count: count, Conditions: []corev1.NodeCondition{{Type: "Sick", Status: corev1.ConditionTrue, Reason: "TestSaysSo"}}}
}

var almostHalf = intstr.FromString("49%")

// evicted returns the nodes of the ward that carry a key with NoExecute.
func (w *scope) evicted(key string) []string {
	w.t.Helper()
	nodes, err := w.all(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for i := range nodes {
		if slices.Contains(taintsOf(&nodes[i]), noExecute(key)) {
			names = append(names, nodes[i].Name)
		}
	}
	return names
}
