package remediation

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// locked renews the Lease in a result.
func (w *healthCheckFixture) locked(r remediationResult) {
	r.NewLease, r.LeaseKnown = r.Lease.DeepCopy(), true
	r.NewLease.ResourceVersion = w.nextVersion()
}

func TestTheLeaseIsRenewedInTimeAndNotForever(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		began := time.Now()
		w.treats("a")
		renewals := 0
		for time.Since(began) < maxWork {
			due := w.WantNoTask("a")
			if wait := time.Until(due); wait <= 0 || wait > leaseDuration/2 {
				t.Fatalf("the Lease is read in %s", wait)
			}
			w.advance(time.Until(due))
			e, _ := w.Next("a")
			if e == nil || e.Kind != TakeLease {
				break
			}
			renewals++
			w.runs(e, "a", treat.Made, w.locked)
		}
		if renewals != 5 { // after 5, 10, 15, 20 and 25 minutes
			t.Errorf("it was renewed %d times", renewals)
		}
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.runs(w.WantTask("a", ReleaseLease), "a", treat.Made)
		if due := w.WantNoTask("a"); time.Until(due) < time.Hour || w.remediations.nodes["a"].lease != nil {
			t.Errorf("after half an hour there is %v, looked at %v; want nothing until it is old", w.remediations.nodes["a"].lease, due)
		}
	})
}

func TestOtherHoldersOfTheLeaseAreAwaited(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionFalse)
		w.locks("a", "other", time.Hour)
		w.node("a", corev1.ConditionTrue)
		due := w.WantNoTask("a")
		if w.finding("a") != triage.Vetoed {
			t.Errorf("the finding is %s", w.finding("a"))
		}
		w.advance(time.Until(due))
		w.WantTask("a", CreateRemediation)
	})
}

// heldFor lets time pass until the node's Lease is released, and returns how long that
// took. Annotations have the given result.
func (w *healthCheckFixture) heldFor(node string, notes treat.Outcome, atMost time.Duration) time.Duration {
	w.T.Helper()
	began := time.Now()
	for time.Since(began) < atMost {
		e, due := w.Next(node)
		switch {
		case e == nil:
			w.advance(max(time.Millisecond, min(time.Until(due), time.Minute)))
		case e.Kind == ReleaseLease:
			return time.Since(began)
		case e.Kind == TakeLease:
			w.runs(e, node, treat.Made, w.locked)
		case e.Kind == AnnotateRemediation:
			w.runs(e, node, notes, func(r remediationResult) { r.Version = w.nextVersion() })
		default:
			w.T.Fatalf("%s is to be done", e.Kind)
		}
	}
	w.T.Fatalf("the node is locked for %s", atMost)
	return 0
}

// The next holder of the Lease must not meet a remediator that is still working.
func TestARemediatorIsStoppedBeforeTheLeaseIsReleased(t *testing.T) {
	for name, fails := range map[string]bool{"it has had its time": false, "it says that it failed": true} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				object := w.treats("a")
				if fails {
					object.SetResourceVersion(w.nextVersion())
					says(remediation.SucceededCondition, metav1.ConditionFalse)(object)
					w.finds(object)
				} else {
					w.advance(maxWork)
				}
				e := w.WantTask("a", AnnotateRemediation)
				if remediationWork(e).Annotations[remediation.TimedOutAnnotation] == nil {
					t.Errorf("noted: %v", remediationWork(e).Annotations)
				}
				w.runs(e, "a", treat.Refused)
				if held := w.heldFor("a", treat.Refused, 3*maxWork); held < maxWork/2 || held > 2*maxWork {
					t.Errorf("it cannot be notified, and the node is locked for %s more", held)
				}
			})
		})
	}
}

func TestTheLeaseOnAHealthyNodeEnds(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("a")
		w.node("a", corev1.ConditionFalse)
		if held := w.heldFor("a", treat.Made, 5*time.Hour); held < maxWork || held > maxWork+leaseDuration {
			t.Errorf("it is locked for %s", held)
		}
		if w.finding("a") != triage.Recovering {
			t.Errorf("the finding is %s", w.finding("a"))
		}
		for _, o := range w.remediations.nodes["a"].objects {
			testkit.Check(t, !o.TimedOut, "a remediator that waits for a confirmation was reported that its time is up")
		}
	}, inSteps, byHand)
}

func TestAPauseDoesNotStopTimeouts(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("a")
		w.brings(checkNamed("check", inSteps, func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Generation = 2
			c.Spec.PauseRequests = []string{"upgrade"}
		}))
		w.advance(time.Until(w.WantNoTask("a")))
		if held := w.heldFor("a", treat.Made, time.Hour); held > time.Minute {
			t.Errorf("its time is up, and the node is locked for %s more", held)
		}
		if o := w.remediations.nodes["a"].objectsOf(checkRule("check")); len(o) != 1 || !o[0].TimedOut {
			t.Errorf("it was not Events: %+v", o)
		}
	}, inSteps)
}

// Another client deletes the Lease after a task has taken it and before the task has
// ended. The controller takes the Lease again.
func TestALeaseThatIsDeletedDuringATaskIsTakenAgain(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		object := w.made("a", "quick")
		r := w.starts(w.WantTask("a", CreateRemediation), "a")
		w.makes(object)(r)
		r.NewLease.UID = "taken"
		testkit.Must(t, w.remediations.leases.Update(r.NewLease.DeepCopy()))
		w.runRound()
		testkit.Must(t, w.remediations.leases.Delete(r.NewLease.DeepCopy()))
		w.runRound()
		w.Finish(r.TaskResult)
		w.runRound()
		w.WantTask("a", TakeLease)
	})
}
