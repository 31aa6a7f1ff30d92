package e2e

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

func ledgerPage() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: ledgerName}}
}

// erase deletes the ledger, whoever holds it.
func (w *ward) erase() {
	w.t.Helper()
	w.must(w.api.Delete(w.t.Context(), ledgerPage()))
}

// scribble makes the ledger unreadable.
func (w *ward) scribble() {
	w.t.Helper()
	page := ledgerPage()
	page.Data = map[string]string{"ledger": `{"holder":`}
	w.must(w.api.Update(w.t.Context(), page))
}

// One who cannot read the ledger does not know what may be on its way. It ends,
// and says what is to be done, which works.
func testUnreadableHeir(w *ward) {
	const count = 10
	w.vacate()
	nodes := w.admit(testbed.Nodes{Count: count})
	w.want("set", evict(almostHalf))
	leader := w.start(install.Options{Args: short})
	w.fallSick(nodes)
	w.counts(w.key("set"), 4, 6)
	heir := w.start(install.Options{Args: successor})
	heir.Expect()
	w.scribble()
	w.kill(leader)
	w.ended(heir)
	log, err := heir.Log()
	w.must(err)
	for _, part := range []string{"the ledger cannot be read", "stop every controller", "delete the ConfigMap"} {
		if !strings.Contains(log, part) {
			w.t.Errorf("its last words say nothing of %q\n%s", part, w.lastWords())
		}
	}
	w.recover(w.evicted(w.key("set"))[:2])
	w.erase()
	w.restart(heir.Part)
	w.counts(w.key("set"), 4, 4)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 6, Fallbacks: 6, Removals: 2})
}
