package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

func testFlapping(w *scope) {
	const count, flips = 60, 10
	proxy, err := w.Proxy()
	if err != nil {
		w.t.Fatal(err)
	}
	nodes := w.createNodes(testbed.Nodes{Count: count})
	w.createSet("set", evict(intstr.FromString("30%")))
	w.createSet("weak", on("Sick", "Tired"))
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	statuses := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	w.must(w.everywhere(nodes, func(ctx context.Context, i int, node string) error {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		for range flips {
			if err := w.try(ctx, node, []string{"Sick", "Tired"}[random.IntN(2)], statuses[random.IntN(len(statuses))]); err != nil {
				return err
			}
		}
		if i%10 == 0 {
			proxy.DropWatches()
		}
		return nil
	}))
	w.fallSick(nodes[:40])
	w.recover(nodes[40:])
	w.counts(w.key("set"), 18, 22)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 18, Fallbacks: 22, Removals: 1})
}

func testRecreated(w *scope) {
	const count = 60
	p := w.newProxy(w.name)
	w.createNodes(sickFromBirth(count))
	w.createSet("set", evict(almostHalf))
	box := p.hold(placesNoExecute, 20)
	w.start(install.Options{Args: p.Args(alone)})
	// Those whose taint is on its way go, and come back: some sick, some well.
	kept := box.wait(w, 20)
	for i, l := range kept {
		w.must(w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: target(l)}}))
		var number int
		if _, err := fmt.Sscanf(target(l), w.name+"-%d", &number); err != nil {
			w.t.Fatal(err)
		}
		again := sickFromBirth(1)
		if i%2 == 0 {
			again = testbed.Nodes{Count: 1}
		}
		again.First = number
		if i%5 != 0 { // the others do not come back
			w.createNodes(again)
		}
	}
	box.Release()
	// 4 are gone, 8 are well, of 56 are 27 evicted.
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
	w.counts(w.key("set"), 40, 0) // of 100, 49 may be
	for number := 41; number <= 100; number++ {
		w.must(w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node(number)}}))
	}
	// Of 40 there may be 19: nobody is chased, and nobody is let in.
	more := w.createNodes(testbed.Nodes{Count: 2, First: 101})
	w.fallSick(more)
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
