package e2e

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func ledgerText() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: ledgerName}}
}

// deleteLedger deletes the ledger of any holder.
func (w *scope) deleteLedger() {
	w.t.Helper()
	testkit.Must(w.t, w.api.Delete(w.t.Context(), ledgerText()))
}

// corruptLedger makes the ledger unreadable.
func (w *scope) corruptLedger() {
	w.t.Helper()
	page := ledgerText()
	page.Data = map[string]string{"ledger": `{"holder":`}
	testkit.Must(w.t, w.api.Update(w.t.Context(), page))
}

// A controller that cannot read the ledger does not know which writes are in flight. It
// exits and logs what the user must do. Following that advice works.
func testSuccessorCannotReadLedger(w *scope) {
	const count = 10
	w.releaseLeadership()
	nodes := w.createNodes(testbed.Nodes{Count: count})
	w.createSet("set", evict(almostHalf))
	leader := w.start(install.Options{Args: install.Elected()})
	w.makeUnhealthy(nodes)
	w.counts(w.key("set"), 4, 6)
	successor := w.start(install.Options{Args: install.Elected()})
	successor.Expect()
	w.corruptLedger()
	w.kill(leader)
	w.expireLease()
	w.waitForExit(successor)
	log := testkit.Value(successor.Log()).Must(w.t)
	for _, part := range []string{"the ledger cannot be read", "stop every controller", "delete the ConfigMap"} {
		if !strings.Contains(log, part) {
			w.t.Errorf("its last log lines do not contain %q\n%s", part, w.LogTail())
		}
	}
	w.recover(w.evicted(w.key("set"))[:2])
	w.deleteLedger()
	w.restart(successor.Part)
	w.counts(w.key("set"), 4, 4)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 6, Fallbacks: 6, Removals: 2})
}
