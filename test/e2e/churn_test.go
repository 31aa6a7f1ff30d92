package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func testFlapping(w *scope) {
	const count = 60
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	nodes := w.createNodes(testbed.Nodes{Count: count})
	w.createSet("set", evict(intstr.FromString("30%")))
	w.createSet("weak", on("Unhealthy", "Tired"))
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	w.flap(proxy, nodes, 0)
	w.makeUnhealthy(nodes[:40])
	w.recover(nodes[40:])
	w.counts(w.key("set"), 18, 22)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 18, Fallbacks: 22, Removals: 1})
}

// flap sets conditions of all nodes at random, with pauses of up to longest, and drops the watches
// of the controller meanwhile.
func (w *scope) flap(proxy *testbed.Proxy, nodes []string, longest time.Duration) {
	const flips = 10
	statuses := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	testkit.Must(w.t, w.everywhere(nodes, func(ctx context.Context, i int, node string) error {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		for range flips {
			if err := w.ReportCondition(ctx, node, []string{"Unhealthy", "Tired"}[random.IntN(2)], statuses[random.IntN(len(statuses))]); err != nil {
				return err
			}
			pause(ctx, time.Duration(random.Float64()*float64(longest)))
		}
		if i%10 == 0 {
			proxy.DropWatches()
		}
		return nil
	}))
}

func testRecreated(w *scope) {
	const count = 60
	p := w.newProxy(w.name)
	w.createNodes(unhealthyFromStart(count))
	w.createSet("set", evict(almostHalf))
	holding := p.hold(placesNoExecute, 20)
	w.start(install.Options{Args: p.Args(alone)})
	// Nodes whose taint is in flight are deleted, and some are created again: some
	// unhealthy, some healthy.
	kept := holding.wait(w, 20)
	for i, l := range kept {
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: target(l)}}))
		var number int
		testkit.Value(fmt.Sscanf(target(l), w.name+"-%d", &number)).Must(w.t)
		again := unhealthyFromStart(1)
		if i%2 == 0 {
			again = testbed.Nodes{Count: 1}
		}
		again.First = number
		if i%5 != 0 { // the others are not created again
			w.createNodes(again)
		}
	}
	holding.Release()
	// 4 are gone and 8 are healthy; of 56 nodes 27 are evicted.
	w.counts(w.key("set"), 27, count-12-27)
	w.recover(w.evicted(w.key("set"))[:5])
	w.counts(w.key("set"), 27, count-12-27-5)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 27, Fallbacks: 21})
}

func testJoiningStorm(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 40})
	w.createSet("set", evict(almostHalf))
	w.start(install.Options{Args: []string{alone}})
	fallen := w.meanwhile(func() error { return w.turn(nodes, corev1.ConditionTrue) })
	for first := 41; first <= 100; first += 10 {
		w.createNodes(testbed.Nodes{Count: 10, First: first})
	}
	fallen()
	w.counts(w.key("set"), 40, 0) // of 100, 49 are allowed
	for number := 41; number <= 100; number++ {
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node(number)}}))
	}
	// Of 40, 19 are allowed: no taint is removed, and none is added.
	more := w.createNodes(testbed.Nodes{Count: 2, First: 101})
	w.makeUnhealthy(more)
	w.counts(w.key("set"), 40, 2)
	w.recover(nodes[:30])
	w.counts(w.key("set"), 12, 0)
	w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
		if s.Selected != 42 || s.Tainted != 12 {
			return fmt.Errorf("%d selected, %d tainted", s.Selected, s.Tainted)
		}
		return nil
	})
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 42, Fallbacks: 2, Removals: 30})
}
