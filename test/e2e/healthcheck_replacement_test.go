package e2e

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// awaitsReplacement checks that a node waits because of a removed node, and has no object.
func (w *scope) awaitsReplacement(node string) {
	w.t.Helper()
	w.hasCheckStatus("check", row(node, "GateClosed", "not replaced yet"))
	testkit.Must(w.t, w.triesNow(node))
}

// isInLedger waits until the ledger says that a node is gone.
func (w *scope) isInLedger(node string) {
	w.t.Helper()
	w.eventually("a ledger that names "+node, func() error {
		page := ledgerText()
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(page), page); err != nil {
			return err
		}
		if text := page.Data["ledger"]; !strings.Contains(text, node) || !strings.Contains(text, `"gone"`) {
			return fmt.Errorf("it says %s", text)
		}
		return nil
	})
}

// testAwaitingReplacementKilled removes nodes one at a time under a bound of one. It kills
// the controller at every point after a removal. The next controller must not treat the
// next node before there is a replacement.
func testAwaitingReplacementKilled(w *scope) {
	p := w.newProxy(w.name)
	nodes := w.checked(testbed.Nodes{Count: 8}, atMost("1"))
	w.releaseLeadership()
	controller := w.start(install.Options{Args: p.Args(alone)})
	isDone := map[string]metav1.ConditionStatus{"PermanentNodeDeletionExpected": metav1.ConditionTrue, "Succeeded": metav1.ConditionTrue}
	replacements := 0
	for _, point := range []string{"before the ledger write", "before the ledger write, which arrives late", "after the ledger write", "after the object is deleted"} {
		w.t.Logf("killed %s", point)
		taken, next := nodes[0], nodes[1]
		nodes = nodes[2:]
		w.setCondition(taken, "Unhealthy", corev1.ConditionTrue)
		object := w.tries(taken, "quick")
		w.replies(object, "PermanentNodeDeletionExpected", metav1.ConditionTrue)
		isNamed := w.namesInLedger()
		holding := p.hold(func(l *heldRequest) bool {
			return strings.HasPrefix(point, "before") && isNamed(l) && strings.Contains(string(l.Body), taken)
		}, 0)
		w.removeNode(taken)
		var slow []*heldRequest
		isOver := false // the remediator has reported success
		switch point {
		case "before the ledger write":
			holding.wait(w, 1)
		case "before the ledger write, which arrives late":
			slow = holding.wait(w, 1)
			testkit.Must(w.t, w.reports(object, isDone)) // its object must not be deleted before
			isOver = true
		case "after the ledger write":
			w.isInLedger(taken)
		default:
			w.isInLedger(taken)
			testkit.Must(w.t, w.reports(object, isDone))
			isOver = true
			w.tries(taken)
		}
		w.kill(controller)
		holding.Close()
		if there, err := w.objects(w.t.Context(), taken); err != nil || slow != nil && len(there) == 0 {
			w.t.Fatalf("no object or ledger entry names %s any longer: %v", taken, errors.Join(err, w.triesNow(taken, "quick")))
		}
		w.restart(controller.Part)
		w.setCondition(next, "Unhealthy", corev1.ConditionTrue)
		w.awaitsReplacement(next)
		for _, l := range slow {
			testkit.Value(l.Deliver(w.t.Context())).Must(w.t) // the sender is no longer leader, so any response is fine
		}
		if !isOver {
			testkit.Must(w.t, w.reports(object, isDone))
		}
		w.tries(taken)
		w.awaitsReplacement(next)
		replacements++
		w.createNodes(testbed.Nodes{Count: 1, First: 100 + replacements})
		w.tries(next, "quick")
		w.setCondition(next, "Unhealthy", corev1.ConditionFalse)
		w.tries(next)
	}
	w.hasCheckStatus("check", counted(8, 8, 0))
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: 8, Releases: 8})
}
