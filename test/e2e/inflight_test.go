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

// deliver lets letters take effect now and says with what answer.
func (w *scope) deliver(letters []*heldRequest, code int) {
	w.t.Helper()
	faultproxy.DeliverAll(w.t, letters, code)
}

// What arrives late was decided by what a set asked for when it was sent: these
// tests judge with a lag that is as long as any letter may take. The number of
// nodes that carry a taint is never old.

// inFlight makes two nodes, and a set under whose bound there is one place. The
// first node's NoExecute is on its way when inFlight returns. The second node
// will be the one whom the set wants: an edit of its conditions leaves the first
// node selected and untouched, so that what is on its way can still arrive.
func inFlight(w *scope) (controller *install.Controller, kept []*heldRequest) {
	w.t.Helper()
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("set", evict(intstr.FromInt32(1)))
	w.setCondition(w.node(2), "Worse", corev1.ConditionTrue)
	box := p.hold(placesNoExecute, 1)
	controller = w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Sick", corev1.ConditionTrue)
	return controller, box.wait(w, 1)
}

// waits says that a node has no more than NoSchedule, and that the set knows why.
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
	w.judge(history.Config{Lag: patience}, history.Counts{Evictions: 1, Fences: 2})
}

func testSlowFence(w *scope) {
	first, kept := inFlight(w)
	w.kill(first)
	w.editSet("set", on("Worse"))
	p := w.newProxy(w.name + "-heir")
	slow := p.hold(fences, 1)
	w.start(install.Options{Args: p.Args(alone)})
	slow.wait(w, 1)
	w.waits(w.node(2))
	w.deliver(kept, http.StatusOK)
	w.waits(w.node(2))
	slow.Release()
	w.has(w.node(2), noExecute(w.key("set")))
	w.has(w.node(1))
	w.judge(history.Config{Lag: patience}, history.Counts{Evictions: 2, Fallbacks: 1, Removals: 2})
}

// The first heir learns of the place in flight and dies; the second must learn of
// it too.
func testSecondSuccessor(w *scope) {
	first, kept := inFlight(w)
	w.kill(first)
	w.editSet("set", on("Worse"))
	p := w.newProxy(w.name + "-heir")
	box := p.hold(fences, 1)
	heir := w.start(install.Options{Args: p.Args(alone)})
	box.wait(w, 1)
	w.kill(heir)
	w.restart(heir.Part)
	w.has(w.node(2), noExecute(w.key("set")))
	w.deliver(append(kept, box.All()...), http.StatusConflict)
	w.hasNow(w.node(1))
	w.judge(history.Config{Lag: patience}, history.Counts{Evictions: 1, Fences: 2})
}

// A page of the ledger still names who was on the one before and has not arrived,
// also if there is no one before.
func testLedgerKeepsSlot(w *scope) { keepsSlot(w, func() {}, func() {}) }

func testDeletedLedgerKeepsSlot(w *scope) { keepsSlot(w, w.deleteLedger, func() {}) }

func testUnreadableLedgerKeepsSlot(w *scope) {
	keepsSlot(w, w.corruptLedger, func() {
		w.hasStatus("set", saysOf(w.node(2), "Tainted", "not written yet", "the ledger cannot be read", "delete the ConfigMap"))
		w.hasNow(w.node(2))
		w.deleteLedger()
	})
}

// keepsSlot lets a place be in flight when something befalls the ledger, and then
// asks for another, which takes a page that is to name both. What befell the ledger
// may have to be cured first.
func keepsSlot(w *scope, befall, cure func()) {
	w.t.Helper()
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 4})
	w.createSet("set", evict(intstr.FromInt32(2)))
	w.setCondition(w.node(3), "Worse", corev1.ConditionTrue)
	w.setCondition(w.node(4), "Worse", corev1.ConditionTrue)
	box := p.hold(changesNodeOf(w.node(1)), 0)
	controller := w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Sick", corev1.ConditionTrue)
	kept := box.wait(w, 1)
	kept[0].Drop()
	box.wait(w, 2) // asked again
	befall()
	w.setCondition(w.node(2), "Sick", corev1.ConditionTrue)
	cure()
	w.has(w.node(2), noExecute(w.key("set")))
	w.kill(controller)
	w.editSet("set", on("Worse"))

	q := w.newProxy(w.name + "-heir")
	slow := q.hold(fences, 1)
	w.start(install.Options{Args: q.Args(alone)})
	slow.wait(w, 1)
	w.counts(w.key("set"), 1, 1) // one place is free, the other is not
	w.deliver(kept, http.StatusOK)
	slow.Release()
	w.counts(w.key("set"), 2, 0)
	w.judge(history.Config{Lag: patience}, history.Counts{Evictions: 4, Removals: 2})
}

func testLostAnswer(w *scope) {
	_, kept := inFlight(w)
	w.editSet("set", on("Worse"))
	w.waits(w.node(2))
	kept[0].Drop() // the controller hears that nobody answers
	w.has(w.node(2), noExecute(w.key("set")))
	w.deliver(kept, http.StatusConflict)
	w.has(w.node(1))
	w.judge(history.Config{Lag: patience}, history.Counts{Evictions: 1, Fallbacks: 1, Fences: 2})
}

// A node turns Unknown after NoExecute was decided and before it was sent.
// Nothing may start then.
func testUnknownBeforeSent(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 2})
	w.createSet("set", evict(everyone))
	w.createSet("weak", on("Tired"))
	w.start(install.Options{Args: p.Args(alone)})
	w.hasStatus("weak", isAccepted(metav1.ConditionTrue, "Followed"))
	box := p.hold(names, 1)
	w.setCondition(w.node(1), "Sick", corev1.ConditionTrue)
	box.wait(w, 1)
	w.setCondition(w.node(1), "Sick", corev1.ConditionUnknown)
	w.setCondition(w.node(2), "Tired", corev1.ConditionTrue)
	w.has(w.node(2), noSchedule(w.key("weak"))) // by now it has heard of the other too
	box.Release()
	w.setCondition(w.node(2), "Sick", corev1.ConditionTrue)
	w.has(w.node(2), noExecute(w.key("set"))) // and has gone on with the ledger
	w.hasNow(w.node(1))
	w.setCondition(w.node(1), "Sick", corev1.ConditionTrue)
	w.has(w.node(1), noExecute(w.key("set")))
	w.judge(history.Config{}, history.Counts{Evictions: 2})
}

// A bound is lowered while nobody knows whether a placement was made. It is over
// the bound now, and neither may it be sent again nor its place be given away.
func testLoweredInDoubt(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(2)))
	w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Sick", corev1.ConditionTrue)
	w.has(w.node(1), noExecute(w.key("set")))
	box := p.hold(placesNoExecute, 1)
	w.setCondition(w.node(2), "Sick", corev1.ConditionTrue)
	kept := box.wait(w, 1)
	w.editSet("set", evict(intstr.FromInt32(1)))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	kept[0].Drop()
	w.has(w.node(2), noSchedule(w.key("set")))
	w.deliver(kept, http.StatusConflict)
	w.setCondition(w.node(1), "Sick", corev1.ConditionFalse)
	w.has(w.node(1))
	w.has(w.node(2), noExecute(w.key("set")))
	w.judge(history.Config{Lag: patience}, history.Counts{Evictions: 2, Fallbacks: 1})
}

// A set that asks for less for a while must not forget what it has sent.
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
	box := p.hold(changesNodeOf(w.node(1)), 1)
	w.setCondition(w.node(1), "Sick", corev1.ConditionTrue)
	kept := box.wait(w, 1)
	w.setCondition(w.node(2), "Sick", corev1.ConditionTrue)
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
	box.Release()
	w.judge(history.Config{Lag: patience}, history.Counts{Placements: 2, Evictions: 1})
	w.counts(w.key("set"), 1, 1)
}

// testBrakes stops a storm in its middle. What is on its way cannot be called
// back; what is not must stay.
func testBrakes(w *scope) {
	const count = 60
	for _, brake := range []struct {
		name  string
		pull  func(*v1alpha1.ConditionSetSpec)
		stays bool // what has arrived
	}{
		{"dry run", func(s *v1alpha1.ConditionSetSpec) { s.DryRun = true }, false},
		{"another condition", on("Worse"), false},
		{"lower bound", evict(intstr.FromInt32(0)), true},
	} {
		w.run(brake.name, func(w *scope) {
			w = w.scope(w.t, w.name+"-"+strings.ReplaceAll(brake.name, " ", "-"))
			p := w.newProxy(w.name)
			w.createNodes(sickFromBirth(count))
			w.createSet("set", evict(everyone))
			box := p.hold(placesNoExecute, 0)
			controller := w.start(install.Options{Args: p.Args(alone)})
			box.wait(w, 20)
			w.editSet("set", brake.pull)
			w.hasStatus("set", func(v1alpha1.ConditionSetStatus) error { return nil })
			kept := box.All()
			sent := len(kept)
			if sent > count/2 {
				w.t.Fatalf("%d of %d were sent at once: there is nothing left to be stopped", sent, count)
			}
			w.deliver(kept, http.StatusOK)
			box.Release()
			if brake.stays {
				w.counts(w.key("set"), sent, count-sent)
			} else {
				w.counts(w.key("set"), 0, 0)
			}
			report := w.judge(history.Config{AnyTurn: true, Lag: patience}, history.Counts{Evictions: sent})
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
