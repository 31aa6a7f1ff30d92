package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// locked has a lock renewed.
func (w *ward) locked(r *taskResult) {
	r.lease, r.isLeased = r.task.lease.DeepCopy(), true
	r.lease.ResourceVersion = w.nextVersion()
}

func TestTheLockIsRenewedInTimeAndNotForEver(t *testing.T) {
	openWard(t, func(w *ward) {
		began := time.Now()
		w.treats("a")
		renewals := 0
		for time.Since(began) < maxWork {
			due := w.rests("a")
			if wait := time.Until(due); wait <= 0 || wait > leaseDuration/2 {
				t.Fatalf("the lock is looked at in %s", wait)
			}
			w.passes(time.Until(due))
			e, _ := w.next("a")
			if e == nil || e.kind != takeLease {
				break
			}
			renewals++
			w.runs(e, "a", treat.Made, w.locked)
		}
		if renewals != 5 { // after 5, 10, 15, 20 and 25 minutes
			t.Errorf("it was renewed %d times", renewals)
		}
		w.runs(w.wants("a", annotateRemediation), "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.runs(w.wants("a", releaseLease), "a", treat.Made)
		if due := w.rests("a"); !due.IsZero() || w.treatments["a"].lease != nil {
			t.Errorf("after half an hour there is %v, looked at %v", w.treatments["a"].lease, due)
		}
	})
}

func TestWhoeverLocksANodeIsWaitedFor(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionFalse)
		w.locks("a", "somebody", time.Hour)
		w.node("a", corev1.ConditionTrue)
		due := w.rests("a")
		if w.finding("a") != triage.Vetoed {
			t.Errorf("the finding is %s", w.finding("a"))
		}
		w.passes(time.Until(due))
		w.wants("a", createRemediation)
	})
}

// heldFor lets time pass until a node is unlocked, and says how long that took. Notes
// have the fate that is asked for.
func (w *ward) heldFor(node string, notes treat.Result, atMost time.Duration) time.Duration {
	w.t.Helper()
	began := time.Now()
	for time.Since(began) < atMost {
		e, due := w.next(node)
		switch {
		case e == nil:
			w.passes(max(time.Millisecond, min(time.Until(due), time.Minute)))
		case e.kind == releaseLease:
			return time.Since(began)
		case e.kind == takeLease:
			w.runs(e, node, treat.Made, w.locked)
		case e.kind == annotateRemediation:
			w.runs(e, node, notes, func(r *taskResult) { r.version = w.nextVersion() })
		default:
			w.t.Fatalf("%s is to be done", e.kind)
		}
	}
	w.t.Fatalf("the node is locked for %s", atMost)
	return 0
}

// Whoever has the node next must not meet a remediator that is still at work.
func TestARemediatorIsToldToStopBeforeTheNodeIsUnlocked(t *testing.T) {
	for name, fails := range map[string]bool{"it has had its time": false, "it says that it failed": true} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				object := w.treats("a")
				if fails {
					object.SetResourceVersion(w.nextVersion())
					says(remediation.SucceededCondition, metav1.ConditionFalse)(object)
					w.finds(object)
				} else {
					w.passes(maxWork)
				}
				e := w.wants("a", annotateRemediation)
				if e.annotations[remediation.TimedOutAnnotation] == nil {
					t.Errorf("noted: %v", e.annotations)
				}
				w.runs(e, "a", treat.Refused)
				if held := w.heldFor("a", treat.Refused, 3*maxWork); held < maxWork/2 || held > 2*maxWork {
					t.Errorf("it cannot be told, and the node is locked for %s more", held)
				}
			})
		})
	}
}

func TestTheLockOnAHealthyNodeEnds(t *testing.T) {
	openWard(t, func(w *ward) {
		w.treats("a")
		w.node("a", corev1.ConditionFalse)
		if held := w.heldFor("a", treat.Made, 5*time.Hour); held < maxWork || held > maxWork+leaseDuration {
			t.Errorf("it is locked for %s", held)
		}
		if w.finding("a") != triage.Recovering {
			t.Errorf("the finding is %s", w.finding("a"))
		}
		for _, o := range w.treatments["a"].objects {
			if o.TimedOut {
				t.Error("who waits for somebody's word was told that its time is up")
			}
		}
	}, inSteps, byHand)
}

func TestAPauseStopsNoTimeout(t *testing.T) {
	openWard(t, func(w *ward) {
		w.treats("a")
		w.brings(checkNamed("check", inSteps, func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Generation = 2
			c.Spec.PauseRequests = []string{"upgrade"}
		}))
		w.passes(time.Until(w.rests("a")))
		if held := w.heldFor("a", treat.Made, time.Hour); held > time.Minute {
			t.Errorf("its time is up, and the node is locked for %s more", held)
		}
		if o := w.treatments["a"].objectsOf(checkRule("check")); len(o) != 1 || !o[0].TimedOut {
			t.Errorf("it was not told: %+v", o)
		}
	}, inSteps)
}
