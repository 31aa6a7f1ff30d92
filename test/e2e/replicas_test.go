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
	"github.com/resourcestack/autohealer/internal/testkit"
)

// expireLease lets the next replica take over from a leader that the test killed or paused.
func (w *scope) expireLease() {
	w.t.Helper()
	testkit.Must(w.t, install.ExpireLease(w.t.Context(), w.Cluster))
}

// duringStorm matches all but the first few of the writes. Matching runs one request at a time.
func duringStorm(write func(*heldRequest) bool, few int) func(*heldRequest) bool {
	passed := 0
	return func(l *heldRequest) bool {
		if !write(l) {
			return false
		}
		passed++
		return passed > few
	}
}

func testLeaderKilled(w *scope) {
	const count = 100
	p := w.newProxy(w.name)
	w.createNodes(unhealthyFromStart(count))
	w.createSet("set", evict(almostHalf))
	holding := p.hold(duringStorm(changesNode, 30), 0)
	w.releaseLeadership()
	leader := w.start(install.Options{Args: p.Args(install.Elected()...)})
	kept := holding.wait(w, 10)
	w.start(install.Options{Args: install.Elected()})
	w.deliver(kept[:5], 0)
	w.kill(leader)
	w.expireLease()
	holding.Close()
	w.counts(w.key("set"), 49, 51)
	w.deliver(kept[5:], http.StatusConflict)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 49, Fallbacks: 51})
}

// testLeaderPaused lets another replica become leader while the old leader is paused. When
// the old leader resumes, it continues with its granted slots, although the edited set
// matches other nodes now. The new leader must not have reused those slots.
func testLeaderPaused(w *scope) {
	const most = 40
	first, second := w.newProxy(w.name+"-1"), w.newProxy(w.name+"-2")
	w.createNodes(unhealthyFromStart(60))
	w.createNodes(testbed.Nodes{Count: 60, First: 61, Conditions: []corev1.NodeCondition{{Type: "Worse", Status: corev1.ConditionTrue}}})
	w.createSet("set", evict(intstr.FromInt32(most)))
	holding := first.hold(placesNoExecute, 0)
	w.releaseLeadership()
	leader := w.start(install.Options{Args: first.Args(install.Elected()...)})
	kept := holding.wait(w, 20)
	testkit.Must(w.t, leader.Pause())
	w.expireLease()
	w.editSet("set", on("Worse"))
	slow := second.hold(fences, 0)
	w.start(install.Options{Args: second.Args(install.Elected()...)})
	slow.wait(w, 10)

	// Some writes of the old leader arrive while the new leader is fencing the nodes. Then
	// the old leader resumes.
	w.deliver(kept[:5], http.StatusOK)
	holding.Release()
	leader.Expect()
	testkit.Must(w.t, leader.Resume())
	w.waitForExit(leader)
	slow.Release()
	w.counts(w.key("set"), most, 60-most)
	w.deliver(kept[5:], http.StatusConflict)
	w.judge(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Evictions: most + 5, Fences: 2})
}

func testDeposed(w *scope) {
	const count = 100
	nodes := w.createNodes(testbed.Nodes{Count: count})
	w.createSet("set", evict(almostHalf))
	first := w.start(install.Options{Args: []string{alone}})
	w.makeUnhealthy(nodes[:30])
	w.counts(w.key("set"), 30, 0)
	holder := w.holder()
	first.Expect()
	w.start(install.Options{Args: []string{alone}})
	w.hasAnotherHolder(holder)
	w.makeUnhealthy(nodes[30:])
	w.counts(w.key("set"), 49, 51)
	w.waitForExit(first)
	w.recover(nodes[:10])
	w.counts(w.key("set"), 49, 41)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 59, Fallbacks: 51, Removals: 10})
}

// releaseLeadership removes the leader's lease and the ledger after a leader with nothing
// in flight was killed. The next controller does not wait for the lease, and creates the
// ledger.
func (w *scope) releaseLeadership() {
	w.t.Helper()
	for _, left := range []client.Object{
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "autohealer-controller"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: ledgerName}},
	} {
		testkit.Must(w.t, client.IgnoreNotFound(w.api.Delete(w.t.Context(), left)))
	}
}

// hasAnotherHolder waits until the ledger has another holder.
func (w *scope) hasAnotherHolder(old string) {
	w.t.Helper()
	w.eventually("another holder of the ledger", func() error {
		if now := w.holder(); now == old {
			return fmt.Errorf("it is still %s", now)
		}
		return nil
	})
}

// holder returns the holder of the ledger.
func (w *scope) holder() string {
	w.t.Helper()
	var ledger corev1.ConfigMap
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: ledgerName}, &ledger))
	var page struct{ Holder string }
	testkit.Must(w.t, json.Unmarshal([]byte(ledger.Data["ledger"]), &page))
	return page.Holder
}
