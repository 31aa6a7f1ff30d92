package remediation

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
)

// An entry that has ended is removed from the ledger: at once if the next leader would
// keep a slot for it, otherwise after a while.
func TestAnEndedEntryLeavesTheLedger(t *testing.T) {
	t.Run("the remediation of a control-plane node", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue, inControl)
			w.Startable()
			page := w.writeSnapshot()
			if len(page) != 1 || len(enginetest.EntriesOf[ledger.ObjectWrite](page)) != 1 {
				t.Fatalf("the ledger is %+v", page)
			}
			object := w.made("a", "quick")
			w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object))
			w.node("a", corev1.ConditionFalse, inControl)
			w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
			w.loses(object)
			if page = w.writeSnapshot(); page == nil || len(page) != 0 {
				t.Fatalf("the ledger is %+v", page)
			}
			successor := w.successor(page, nil)
			successor.node("b", corev1.ConditionTrue, inControl)
			successor.WantTask("b", CreateRemediation)
		})
	})
	t.Run("a node that is gone and replaced", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			object := w.takesAwayNode("a")
			w.writeSnapshot()
			w.node("b", corev1.ConditionFalse, isReady)
			w.advance(time.Second)
			if page := enginetest.EntriesOf[ledger.DeletedNode](w.writeSnapshot()); len(page) != 1 || !page[0].Replaced {
				t.Fatalf("while the remediation is there, the ledger is %+v", page)
			}
			w.loses(object)
			if page := w.writeSnapshot(); page != nil {
				t.Fatalf("the ledger is %+v", page)
			}
			w.advance(engine.TidyAfter)
			if page := w.writeSnapshot(); page == nil || len(page) != 0 {
				t.Errorf("the ledger is %+v", page)
			}
		})
	})
}

// The object of a running creation arrives, from an earlier attempt or from another process,
// and is deleted again. The creation may still make it, so the ledger goes on naming it.
func TestTheLedgerNamesARunningCreation(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue, inControl)
		w.Startable()
		w.writeSnapshot()
		running := w.starts(w.WantTask("a", CreateRemediation), "a")
		object := w.made("a", "quick")
		w.finds(object)
		w.loses(object)
		if page := w.writeSnapshot(); page != nil {
			t.Fatalf("while the creation runs, the ledger is %+v", page)
		}
		running.Outcome, running.Err = treat.Refused, enginetest.ErrBroken
		w.Finish(running.TaskResult)
		w.runRound()
		if page := w.writeSnapshot(); page == nil || len(page) != 0 {
			t.Errorf("after the creation, the ledger is %+v", page)
		}
	})
}

// A creation got no answer, and a retry created the object. The first creation may still
// arrive, so the object stays until it cannot, although the node has recovered.
func TestARemediationStaysWhileAnEarlierCreationMayArrive(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue, inControl)
		w.Startable()
		w.writeSnapshot()
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Unknown)
		w.advance(engine.LastRetry)
		object := w.made("a", "quick")
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object))
		w.node("a", corev1.ConditionFalse, inControl)
		if due := w.WantNoTask("a"); time.Until(due) != engine.MaxInFlight {
			t.Errorf("the next task is due at %v", due)
		}
		if page := w.writeSnapshot(); page != nil {
			t.Errorf("the ledger is %+v", page)
		}
		w.advance(engine.MaxInFlight)
		w.WantTask("a", DeleteRemediation)
		if page := w.writeSnapshot(); page == nil || len(page) != 0 {
			t.Errorf("the ledger is %+v", page)
		}
	})
}

// A newer version has stored a treatment of an unknown kind. The next control-plane node
// waits while that treatment may arrive.
func TestEntriesOfANewerVersionAreAwaited(t *testing.T) {
	enginetest.Run(t, func(c *enginetest.Fixture) {
		w := newHealthCheckFixture(c)
		w.Restore(nil, ledger.UnknownEntry{Slot: ledger.Slot{Rule: ownership.Rule{Name: "MachineHealthCheck/m"}, Node: "a", UID: "u"}, ControlPlane: true})
		w.loads(nil)
		w.node("b", corev1.ConditionTrue, inControl)
		w.WantNoTask("b")
		if due := w.Round(t.Context()); due.IsZero() || time.Until(due) > engine.MaxInFlight {
			t.Errorf("it is looked at again at %v", due)
		}
		w.advance(engine.MaxInFlight)
		w.WantTask("b", CreateRemediation)
	})
}
