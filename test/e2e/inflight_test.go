package e2e

import (
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/faultproxy"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// deliver delivers requests now, and checks the status code of the responses.
func (w *scope) deliver(requests []*heldRequest, code int) {
	w.t.Helper()
	faultproxy.DeliverAll(w.t, requests, code)
}

// A late write was decided by the spec of the set at the time when it was sent. These tests
// judge with a lag that covers the longest delay. The number of nodes with a taint is never
// old.

// inFlight creates two nodes, and a set with a bound of one. The first node's NoExecute is
// in flight when inFlight returns. The tests then edit the set's conditions so that it
// matches only the second node. The first node stays selected and unchanged, so that the
// write in flight can still arrive.
func inFlight(w *scope) (controller *install.Controller, kept []*heldRequest) {
	w.t.Helper()
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("set", evict(intstr.FromInt32(1)))
	w.setCondition(w.node(2), "Worse", corev1.ConditionTrue)
	holding := p.hold(placesNoExecute, 1)
	controller = w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	return controller, holding.wait(w, 1)
}

// waits checks that a node has only NoSchedule, and that the status has the reason.
func (w *scope) waits(node string) {
	w.t.Helper()
	w.has(node, noSchedule(w.key("set")))
	w.hasStatus("set", saysOf(node, "FellBack", "1 placed or under way, at most 1 of 2 selected nodes may have it"))
}

func testSuccessor(w *scope) {
	first, kept := inFlight(w)
	w.kill(first)
	w.editSet("set", on("Worse"))
	w.start(install.Options{Args: []string{alone}})
	w.has(w.node(2), noExecute(w.key("set")))
	w.deliver(kept, http.StatusConflict)
	w.hasNow(w.node(1))
	w.judge(history.Config{Lag: longLag}, history.Counts{Evictions: 1, Fences: 2})
}

func testSlowFence(w *scope) {
	first, kept := inFlight(w)
	w.kill(first)
	w.editSet("set", on("Worse"))
	p := w.newProxy(w.name + "-successor")
	slow := p.hold(fences, 1)
	w.start(install.Options{Args: p.Args(alone)})
	slow.wait(w, 1)
	w.waits(w.node(2))
	w.deliver(kept, http.StatusOK)
	w.waits(w.node(2))
	slow.Release()
	w.has(w.node(2), noExecute(w.key("set")))
	w.has(w.node(1))
	w.judge(history.Config{Lag: longLag}, history.Counts{Evictions: 2, Fallbacks: 1, Removals: 2})
}

// The first successor learns of the slot in flight and is killed. The second must learn of
// it, too.
func testSecondSuccessor(w *scope) {
	first, kept := inFlight(w)
	w.kill(first)
	w.editSet("set", on("Worse"))
	p := w.newProxy(w.name + "-successor")
	holding := p.hold(fences, 1)
	successor := w.start(install.Options{Args: p.Args(alone)})
	holding.wait(w, 1)
	w.kill(successor)
	w.restart(successor.Part)
	w.has(w.node(2), noExecute(w.key("set")))
	w.deliver(append(kept, holding.All()...), http.StatusConflict)
	w.hasNow(w.node(1))
	w.judge(history.Config{Lag: longLag}, history.Counts{Evictions: 1, Fences: 2})
}

// A new ledger still names the writes in flight of the previous ledger, even if that was
// deleted.
func testLedgerKeepsSlot(w *scope) { keepsSlot(w, func() {}, func() {}) }

func testDeletedLedgerKeepsSlot(w *scope) { keepsSlot(w, w.deleteLedger, func() {}) }

func testUnreadableLedgerKeepsSlot(w *scope) {
	keepsSlot(w, w.corruptLedger, func() {
		w.hasStatus("set", saysOf(w.node(2), "Tainted", "not written yet", "the ledger cannot be read", "delete the ConfigMap"))
		w.hasNow(w.node(2))
		w.deleteLedger()
	})
}

// keepsSlot damages the ledger while a slot is in flight, and then asks for another slot.
// The next ledger must name both. Some damages must be repaired first.
func keepsSlot(w *scope, damage, repair func()) {
	w.t.Helper()
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 4})
	w.createSet("set", evict(intstr.FromInt32(2)))
	w.setCondition(w.node(3), "Worse", corev1.ConditionTrue)
	w.setCondition(w.node(4), "Worse", corev1.ConditionTrue)
	holding := p.hold(changesNodeOf(w.node(1)), 0)
	controller := w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	kept := holding.wait(w, 1)
	kept[0].Drop()
	holding.wait(w, 2) // sent again
	damage()
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	repair()
	w.has(w.node(2), noExecute(w.key("set")))
	w.kill(controller)
	w.editSet("set", on("Worse"))

	q := w.newProxy(w.name + "-successor")
	slow := q.hold(fences, 1)
	w.start(install.Options{Args: q.Args(alone)})
	slow.wait(w, 1)
	w.counts(w.key("set"), 1, 1) // one slot is free, the other is not
	w.deliver(kept, http.StatusOK)
	slow.Release()
	w.counts(w.key("set"), 2, 0)
	w.judge(history.Config{Lag: longLag}, history.Counts{Evictions: 4, Removals: 2})
}

func testLostAnswer(w *scope) {
	_, kept := inFlight(w)
	w.editSet("set", on("Worse"))
	w.waits(w.node(2))
	kept[0].Drop() // the controller gets no response
	w.has(w.node(2), noExecute(w.key("set")))
	w.deliver(kept, http.StatusConflict)
	w.has(w.node(1))
	w.judge(history.Config{Lag: longLag}, history.Counts{Evictions: 1, Fallbacks: 1, Fences: 2})
}

// A condition becomes Unknown after NoExecute was decided and before it was sent. Nothing
// may start then.
func testUnknownBeforeSent(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("set", evict(everyone))
	w.createSet("weak", on("Tired"))
	w.start(install.Options{Args: p.Args(alone)})
	w.hasStatus("weak", isAccepted(metav1.ConditionTrue, "Followed"))
	holding := p.hold(names, 1)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	holding.wait(w, 1)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionUnknown)
	w.setCondition(w.node(2), "Tired", corev1.ConditionTrue)
	w.has(w.node(2), noSchedule(w.key("weak"))) // by now the controller has seen the other change, too
	holding.Release()
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(2), noExecute(w.key("set"))) // and has continued with the ledger
	w.hasNow(w.node(1))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(1), noExecute(w.key("set")))
	w.judge(history.Config{}, history.Counts{Evictions: 2})
}

// A bound is lowered while the result of a placement is unknown. The placement exceeds the
// bound now. It must not be sent again, and its slot must not be reused.
func testLoweredInDoubt(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(2)))
	w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(1), noExecute(w.key("set")))
	holding := p.hold(placesNoExecute, 1)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	kept := holding.wait(w, 1)
	w.editSet("set", evict(intstr.FromInt32(1)))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	kept[0].Drop()
	w.has(w.node(2), noSchedule(w.key("set")))
	w.deliver(kept, http.StatusConflict)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(1))
	w.has(w.node(2), noExecute(w.key("set")))
	w.judge(history.Config{Lag: longLag}, history.Counts{Evictions: 2, Fallbacks: 1})
}

// A set with a lower effect for a while must not forget what it has sent.
func testEditedInFlight(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 1, Labels: map[string]string{"pool": "x"}})
	w.createNodes(testbed.Nodes{Count: 1, First: 2, Labels: map[string]string{"pool": "y"}})
	pools := func(pools ...string) func(*v1alpha1.ConditionSetSpec) {
		return func(s *v1alpha1.ConditionSetSpec) {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pool", Operator: metav1.LabelSelectorOpIn, Values: pools}}
		}
	}
	w.createSet("set", evict(intstr.FromInt32(1)), pools("x"))
	w.start(install.Options{Args: p.Args(alone)})
	holding := p.hold(changesNodeOf(w.node(1)), 1)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	kept := holding.wait(w, 1)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	followed := func() { w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed")) }

	w.editSet("set", func(s *v1alpha1.ConditionSetSpec) {
		effect(corev1.TaintEffectNoSchedule)(s)
		pools("y")(s)
	})
	followed()
	w.has(w.node(2), noSchedule(w.key("set")))
	w.editSet("set", effect(corev1.TaintEffectNoExecute))
	followed()
	w.editSet("set", pools("x", "y"))
	followed()
	w.deliver(kept, 0)
	holding.Release()
	w.judge(history.Config{Lag: longLag}, history.Counts{Placements: 2, Evictions: 1})
	w.counts(w.key("set"), 1, 1)
}

// testBrakes stops a storm in the middle. Writes in flight cannot be cancelled, all others
// must not be sent.
func testBrakes(w *scope) {
	const count = 60
	for _, brake := range []struct {
		name  string
		pull  func(*v1alpha1.ConditionSetSpec)
		stays bool // placed taints stay
	}{
		{"dry run", func(s *v1alpha1.ConditionSetSpec) { s.DryRun = true }, false},
		{"another condition", on("Worse"), false},
		{"lower bound", evict(intstr.FromInt32(0)), true},
	} {
		w.run(brake.name, func(w *scope) {
			w = w.scope(w.t, w.name+"-"+strings.ReplaceAll(brake.name, " ", "-"))
			p := w.newProxy(w.name)
			w.createNodes(unhealthyFromStart(count))
			w.createSet("set", evict(everyone))
			holding := p.hold(placesNoExecute, 0)
			controller := w.start(install.Options{Args: p.Args(alone)})
			holding.wait(w, 20)
			w.editSet("set", brake.pull)
			w.hasStatus("set", func(v1alpha1.ConditionSetStatus) error { return nil })
			kept := holding.All()
			sent := len(kept)
			if sent > count/2 {
				w.t.Fatalf("%d of %d were sent at once: nothing is left to stop", sent, count)
			}
			w.deliver(kept, http.StatusOK)
			holding.Release()
			if brake.stays {
				w.counts(w.key("set"), sent, count-sent)
			} else {
				w.counts(w.key("set"), 0, 0)
			}
			report := w.judge(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Evictions: sent})
			if report.Evictions > sent {
				w.t.Errorf("%d nodes got NoExecute, but only %d had been sent when the brake was pulled", report.Evictions, sent)
			}
			w.kill(controller)
			w.deleteNodes()
		})
	}
}

func changesNodeOf(name string) func(*heldRequest) bool {
	return func(l *heldRequest) bool { return changesNode(l) && target(l) == name }
}
