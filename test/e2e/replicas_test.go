package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// expireLease lets the next replica take over from a leader that the test has killed or
// paused.
func (w *scope) expireLease() {
	w.t.Helper()
	w.must(install.ExpireLease(w.t.Context(), w.Cluster))
}

func testLeaderKilled(w *scope) {
	const count = 100
	p := w.newProxy(w.name)
	w.createNodes(sickFromBirth(count))
	w.createSet("set", evict(almostHalf))
	passed := 0
	box := p.hold(func(l *heldRequest) bool { // in the middle of things; a box asks one at a time
		if changesNode(l) {
			passed++
		}
		return passed > 30 && changesNode(l)
	}, 0)
	w.releaseLeadership()
	leader := w.start(install.Options{Args: p.Args(install.Elected()...)})
	kept := box.wait(w, 10)
	w.start(install.Options{Args: install.Elected()})
	w.deliver(kept[:5], 0)
	w.kill(leader)
	w.expireLease()
	box.Close()
	w.counts(w.key("set"), 49, 51)
	w.deliver(kept[5:], http.StatusConflict)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 49, Fallbacks: 51})
}

// testLeaderPaused takes the lead away from one who does not notice. When it
// wakes up it goes on with what it had been granted, although the set has been
// edited and wants other nodes now. The new leader must not have given their
// places away.
func testLeaderPaused(w *scope) {
	const most = 40
	first, second := w.newProxy(w.name+"-1"), w.newProxy(w.name+"-2")
	w.createNodes(sickFromBirth(60))
	w.createNodes(testbed.Nodes{Count: 60, First: 61, Conditions: []corev1.NodeCondition{{Type: "Worse", Status: corev1.ConditionTrue}}})
	w.createSet("set", evict(intstr.FromInt32(most)))
	box := first.hold(placesNoExecute, 0)
	w.releaseLeadership()
	leader := w.start(install.Options{Args: first.Args(install.Elected()...)})
	kept := box.wait(w, 20)
	w.must(leader.Pause())
	w.expireLease()
	w.editSet("set", on("Worse"))
	slow := second.hold(fences, 0)
	w.start(install.Options{Args: second.Args(install.Elected()...)})
	slow.wait(w, 10)

	// Some of what the old leader has sent arrives while the new one is about to
	// make sure that it cannot. Then the old one wakes up.
	w.deliver(kept[:5], http.StatusOK)
	box.Release()
	leader.Expect()
	w.must(leader.Resume())
	w.waitForExit(leader)
	slow.Release()
	w.counts(w.key("set"), most, 60-most)
	w.deliver(kept[5:], http.StatusConflict)
	w.judge(history.Config{AnyTurn: true, Lag: patience}, history.Counts{Evictions: most + 5, Fences: 2})
}

func testDeposed(w *scope) {
	const count = 100
	nodes := w.createNodes(testbed.Nodes{Count: count})
	w.createSet("set", evict(almostHalf))
	first := w.start(install.Options{Args: []string{alone}})
	w.fallSick(nodes[:30])
	w.counts(w.key("set"), 30, 0)
	holder := w.holder()
	first.Expect()
	w.start(install.Options{Args: []string{alone}})
	w.eventually("another holder of the ledger", func() error {
		if now := w.holder(); now == holder {
			return fmt.Errorf("it is still %s", now)
		}
		return nil
	})
	w.fallSick(nodes[30:])
	w.counts(w.key("set"), 49, 51)
	w.waitForExit(first)
	w.recover(nodes[:10])
	w.counts(w.key("set"), 49, 41)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 59, Fallbacks: 51, Removals: 10})
}

// releaseLeadership clears away what a leader has left who is dead and has nothing on its
// way: the next one waits for no lease, and makes the ledger itself.
func (w *scope) releaseLeadership() {
	w.t.Helper()
	for _, left := range []client.Object{
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "autohealer-controller"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: ledgerName}},
	} {
		w.must(client.IgnoreNotFound(w.api.Delete(w.t.Context(), left)))
	}
}

// holder returns whom the ledger belongs to.
func (w *scope) holder() string {
	w.t.Helper()
	var ledger corev1.ConfigMap
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: ledgerName}, &ledger))
	var page struct{ Holder string }
	w.must(json.Unmarshal([]byte(ledger.Data["ledger"]), &page))
	return page.Holder
}
