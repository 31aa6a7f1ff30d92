package remediation

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const nothing = ""

func TestTaskOrder(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(w *healthCheckFixture)
		want    string
		check   []func(*remediationv1alpha1.NodeHealthCheck)
	}{
		"an unhealthy node is treated": {func(w *healthCheckFixture) { w.node("a", corev1.ConditionTrue) }, CreateRemediation, nil},
		"a healthy node is left alone": {func(w *healthCheckFixture) { w.node("a", corev1.ConditionFalse) }, nothing, nil},
		"the Lease of a free node is taken": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick"))
		}, TakeLease, nil},
		"a node that is treated and locked is left alone": {func(w *healthCheckFixture) { w.treats("a") }, nothing, nil},
		"the treatment of a node that has recovered is ended": {func(w *healthCheckFixture) {
			w.treats("a")
			w.node("a", corev1.ConditionFalse)
		}, DeleteRemediation, nil},
		"what is ending is waited for": {func(w *healthCheckFixture) {
			object := w.treats("a")
			w.node("a", corev1.ConditionFalse)
			deleting(object)
			w.finds(object)
		}, nothing, nil},
		"a node whose treatment is gone is unlocked": {func(w *healthCheckFixture) {
			object := w.treats("a")
			w.node("a", corev1.ConditionFalse)
			w.loses(object)
		}, ReleaseLease, nil},
		"a confirmation that has served goes": {func(w *healthCheckFixture) { w.node("a", corev1.ConditionFalse, confirmed) }, ClearConfirmation, nil},
		"a confirmation of an unhealthy node is waited with": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick"))
			w.locks("a", nodelease.HolderOf("check"), leaseDuration)
			w.node("a", corev1.ConditionTrue, confirmed)
		}, nothing, nil},
		"a remediator is notified of its timeout before the next step": {func(w *healthCheckFixture) {
			w.treats("a")
			w.advance(time.Minute)
		}, AnnotateRemediation, []func(*remediationv1alpha1.NodeHealthCheck){inSteps}},
		"what was for an earlier node of that name goes first": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick"))
			w.node("a", corev1.ConditionTrue, madeAnew)
		}, DeleteRemediation, nil},
		"what outlives its node goes": {func(w *healthCheckFixture) {
			testkit.Must(w.T, w.remediations.watches.Known[rebootKind].Update(w.orphan()))
			w.runRound()
		}, DeleteRemediation, nil},
		"a remediator that means the node to go is waited for": {func(w *healthCheckFixture) {
			w.finds(w.orphan(says(remediation.DeletesNodeCondition, "True")))
		}, nothing, nil},
		"a remediator that keeps its object is told that the node is gone": {func(w *healthCheckFixture) {
			w.finds(w.orphan(kept))
		}, AnnotateRemediation, nil},
		"a remediator that was told loses its object": {func(w *healthCheckFixture) {
			w.finds(w.orphan(kept, told))
		}, DeleteRemediation, nil},
		"a remediator whose object is being deleted is told that the node is gone": {func(w *healthCheckFixture) {
			w.finds(w.orphan(deleting))
		}, AnnotateRemediation, nil},
		"a remediator that was told is waited for": {func(w *healthCheckFixture) {
			w.finds(w.orphan(deleting, told))
		}, nothing, nil},
		"a remediator is told that its node is another one": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick", kept))
			w.node("a", corev1.ConditionTrue, madeAnew)
		}, AnnotateRemediation, nil},
		"a remediator that means the node to go is not told to stop": {func(w *healthCheckFixture) {
			w.finds(w.orphan(deleting, says(remediation.DeletesNodeCondition, "True")))
		}, nothing, nil},
		"an object of another component is not touched": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick", func(u *unstructured.Unstructured) { u.SetOwnerReferences(nil) }))
		}, nothing, nil},
		"a node with another holder of its Lease is not treated": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionFalse)
			w.locks("a", "other", time.Hour)
			w.node("a", corev1.ConditionTrue)
		}, nothing, nil},
		"nothing is done while standing back": {func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue)
			w.defers(time.Hour)
		}, nothing, nil},
		"our Lease ends with its treatment while the treatment of another node continues": {func(w *healthCheckFixture) {
			w.treats("b")
			w.node("a", corev1.ConditionFalse)
			w.locks("a", nodelease.HolderOf("check"), leaseDuration)
		}, ReleaseLease, nil},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.T = t
				test.happens(w)
				if test.want == nothing {
					w.WantNoTask("a")
				} else {
					w.WantTask("a", test.want)
				}
			}, test.check...)
		})
	}
}

// orphan returns an object for node a, which does not exist.
func (w *healthCheckFixture) orphan(changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	w.T.Helper()
	return w.madeFor(enginetest.Named("a", "1"), "quick", changes...)
}

func TestCreationOfARemediation(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		e := w.WantTask("a", CreateRemediation)
		if by := *remediationWork(e).Lease.Spec.HolderIdentity; remediationWork(e).Create.GetName() != "a" || remediationWork(e).Create.GroupVersionKind() != rebootKind || e.Step != 0 || by != "NodeHealthCheck-check" {
			t.Errorf("the task creates %s %s as step %d, with a Lease of %s", remediationWork(e).Create.GetKind(), remediationWork(e).Create.GetName(), e.Step, by)
		}
		w.advance(3 * time.Second)
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(w.made("a", "quick")))
		if len(w.Events) != 2 || w.Events[0].EventReason != treat.DetectedUnhealthy || w.Events[1].EventReason != treat.RemediationCreated {
			t.Errorf("Events: %+v", w.Events)
		}
		if n := enginetest.Value(t, w.metrics, "autohealer_remediations_total", "begun"); n != 1 {
			t.Errorf("%v remediations are counted", n)
		}
		if w.remediations.leaseOf("a") == nil || !w.FindNodeTasks("a").MarkStarted().IsZero() || w.finding("a") != triage.Treating {
			t.Errorf("afterwards: %+v, %s", w.FindNodeTasks("a"), w.finding("a"))
		}
	})
}

func TestEscalation(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		first := w.treats("a")
		w.advance(time.Minute)
		e := w.WantTask("a", AnnotateRemediation)
		if _, told := remediationWork(e).Annotations[remediation.TimedOutAnnotation]; !told {
			t.Errorf("the note is %v", remediationWork(e).Annotations)
		}
		w.runs(e, "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		e = w.WantTask("a", CreateRemediation)
		if e.Step != 1 || remediationWork(e).Create.GetName() == "a" {
			t.Errorf("step %d makes %s", e.Step, remediationWork(e).Create.GetName())
		}
		w.runs(e, "a", treat.Made, w.makes(w.made("a", "slow")))
		w.WantNoTask("a")
		w.advance(time.Minute)
		e = w.WantTask("a", AnnotateRemediation)
		if remediationWork(e).Object.Template != "slow" || w.finding("a") != triage.Exhausted {
			t.Errorf("%s is noted, and the finding is %s", remediationWork(e).Object.Template, w.finding("a"))
		}
		w.runs(e, "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.WantTask("a", ReleaseLease) // other holders may have the node
		w.node("a", corev1.ConditionFalse)
		w.WantTask("a", DeleteRemediation)
		if got := first.GetAnnotations()[remediation.TimedOutAnnotation]; got != "" {
			t.Error("the watch's object was written to")
		}
	}, inSteps)
}

// The metrics and the annotation of medik8s, on which its alerts are built.
func TestAnOldRemediationIsMarkedAndCounted(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		counted := func(what string, ongoing, old, recovered float64) {
			t.Helper()
			for metric, want := range map[string]float64{"nodehealthcheck_ongoing_remediation": ongoing, "nodehealthcheck_old_remediation_cr": old, "nodehealthcheck_unhealthy_node_duration_seconds": recovered} {
				testkit.Same(t, enginetest.Value(t, w.metrics, metric, "a"), want, "%s: %s", what, metric)
			}
		}
		counted("under way", 1, 0, 0)
		w.advance(remediation.OldAfter - time.Minute)
		for _, does := range []string{AnnotateRemediation, ReleaseLease} { // its time is up long ago
			w.runs(w.WantTask("a", does), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		}
		due := w.WantNoTask("a")
		testkit.Between(t, time.Until(due), 0, time.Minute+time.Second, "the time until it is old")
		w.advance(time.Minute)
		e := w.WantTask("a", AnnotateRemediation)
		testkit.Same(t, *remediationWork(e).Annotations[remediation.OldAnnotation], "flagon", "the annotation")
		w.runs(e, "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		counted("old", 1, 1, 0)
		w.advance(time.Hour)
		w.WantNoTask("a")
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
		w.loses(object)
		counted("recovered", 0, 1, 1)
	})
}

func TestAnnotationsFor(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	then, long := now.Add(-time.Hour).Truncate(time.Second), now.Add(-remediation.OldAfter)
	for name, test := range map[string]struct {
		object  remediation.Object
		isOver  bool
		planned triage.PlannedTreatment
		want    map[string]string // "" means removed
	}{
		"under way":                           {remediation.Object{}, false, triage.PlannedTreatment{}, nil},
		"it is old":                           {remediation.Object{Created: long}, false, triage.PlannedTreatment{}, map[string]string{remediation.OldAnnotation: remediation.OldValue}},
		"it is old, and marked":               {remediation.Object{Created: long, IsOld: true}, false, triage.PlannedTreatment{}, nil},
		"it is old, and the node healthy":     {remediation.Object{Created: long, HealthySince: then}, false, triage.PlannedTreatment{HealthySince: then}, nil},
		"its time is up":                      {remediation.Object{}, true, triage.PlannedTreatment{}, map[string]string{remediation.TimedOutAnnotation: "2026-01-02T03:04:05Z"}},
		"its time is up, and it was notified": {remediation.Object{TimedOut: true}, true, triage.PlannedTreatment{}, nil},
		"its time is up, and it succeeded":    {remediation.Object{Succeeded: true}, true, triage.PlannedTreatment{}, nil},
		"its time is up, and it failed":       {remediation.Object{Failed: true}, true, triage.PlannedTreatment{}, map[string]string{remediation.TimedOutAnnotation: "2026-01-02T03:04:05Z"}},
		"healthy":                             {remediation.Object{}, false, triage.PlannedTreatment{HealthySince: then.Add(600)}, map[string]string{remediation.HealthyDelayAnnotation: "2026-01-02T02:04:05Z"}},
		"healthy, which is noted":             {remediation.Object{HealthySince: then}, false, triage.PlannedTreatment{HealthySince: then.Add(600)}, nil},
		"healthy, and noted from before":      {remediation.Object{HealthySince: then.Add(-time.Second)}, false, triage.PlannedTreatment{HealthySince: then}, map[string]string{remediation.HealthyDelayAnnotation: "2026-01-02T02:04:05Z"}},
		"unhealthy again":                     {remediation.Object{HealthySince: then}, false, triage.PlannedTreatment{}, map[string]string{remediation.HealthyDelayAnnotation: ""}},
		"unhealthy again, and the time is up": {remediation.Object{HealthySince: then}, true, triage.PlannedTreatment{}, map[string]string{remediation.HealthyDelayAnnotation: "", remediation.TimedOutAnnotation: "2026-01-02T03:04:05Z"}},
	} {
		got := map[string]string{}
		for key, value := range annotationsFor(test.object, test.isOver, &test.planned, now) {
			got[key] = ""
			if value != nil {
				got[key] = *value
			}
		}
		testkit.Check(t, maps.Equal(got, test.want), "%s: %v is noted, want %v", name, got, test.want)
	}
}

// A remediator's API may not allow patches. The Lease must be renewed and the next step
// started all the same.
func TestAFailedTaskDoesNotBlockAnother(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("a")
		w.advance(time.Minute)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Refused)
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(w.made("a", "slow")))
		for range 20 {
			e, due := w.Next("a")
			if e == nil {
				w.advance(max(time.Millisecond, time.Until(due)))
				continue
			}
			if e.Kind == TakeLease {
				return
			}
			w.runs(e, "a", treat.Refused)
		}
		t.Errorf("the Lease is not renewed: %+v", w.FindNodeTasks("a"))
	}, inSteps, func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.EscalatingRemediations[1].Timeout = "1h" })
}

// A remediator often writes its object, so the annotation conflicts. The next step must not
// start beside a remediator that does not know that its time is over.
func TestTheNextStepWaitsForTheAnnotation(t *testing.T) {
	for _, failure := range []treat.Outcome{treat.Stale, treat.Busy, treat.Unknown} {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.treats("a")
			w.advance(time.Minute)
			for range 3 {
				w.runs(w.WantTask("a", AnnotateRemediation), "a", failure)
				w.advance(time.Until(w.WantNoTask("a")))
			}
			w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
			w.WantTask("a", CreateRemediation)
		}, inSteps)
	}
}

// The object of a deleted node must go although its remediator cannot be told.
func TestARefusedAnnotationDoesNotKeepAnOrphan(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.finds(w.orphan(kept))
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Refused)
		w.WantTask("a", DeleteRemediation)
	})
}

// runsAll finishes all tasks of a node for a while. outcome says how a task ends; template is
// that of the object to annotate or delete, empty for other tasks.
func (w *healthCheckFixture) runsAll(node string, lasts time.Duration, outcome func(kind, template string) treat.Outcome) {
	w.T.Helper()
	for began := time.Now(); time.Since(began) < lasts; {
		e, due := w.Next(node)
		if e == nil {
			wait := time.Minute
			if !due.IsZero() {
				wait = max(time.Millisecond, min(wait, time.Until(due)))
			}
			w.advance(wait)
			continue
		}
		template := remediationWork(e).Object.Template
		w.runs(e, node, outcome(e.Kind, template), func(r remediationResult) {
			switch r.Version = w.nextVersion(); r.Outcome {
			case treat.Made:
				r.NewLease, r.LeaseKnown = r.Lease, e.Kind == TakeLease
			case treat.Refused:
				r.Err = errors.New(template + " is immutable")
			}
		})
	}
}

// The ladder may have several templates, each with its own object. If the API server rejects the
// annotation of one object, the next step still waits until the remediators of the others know
// that their time is over.
func TestARefusedAnnotationConcernsOneObject(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.template(rebootTemplateKind, "last")
		w.treats("a")
		w.advance(time.Minute)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Refused)
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(w.made("a", "slow")))
		w.advance(time.Minute)
		tries := 0
		w.runsAll("a", time.Minute, func(kind, template string) treat.Outcome {
			switch {
			case kind == AnnotateRemediation && template == "slow":
				tries++
				return treat.Busy
			case kind == CreateRemediation:
				w.T.Fatal("the next step begins, and the remediator of the last one was not told")
			}
			return treat.Refused
		})
		testkit.Check(t, tries > 1, "the controller has tried %d times to tell the remediator", tries)
	}, inSteps, func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Spec.EscalatingRemediations = append(c.Spec.EscalatingRemediations, remediationv1alpha1.EscalatingRemediation{
			RemediationTemplate: referTo(rebootTemplateKind, "last"), Order: 2, Timeout: "1m",
		})
	})
}

// The same holds for the objects of a deleted node: a remediator that is not told may fence a new
// node of that name.
func TestEveryRemediatorOfADeletedNodeIsTold(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		for _, template := range []string{"quick", "slow"} {
			w.finds(w.madeFor(enginetest.Named("a", "1"), template, kept))
		}
		isTold := map[string]bool{}
		w.runsAll("a", time.Minute, func(kind, template string) treat.Outcome {
			if kind == AnnotateRemediation {
				isTold[template] = true
				return treat.Refused
			}
			testkit.Check(t, isTold[template], "%s is deleted, and its remediator was not told", template)
			return treat.Made
		})
		testkit.Same(t, len(isTold), 2, "the remediators that were told")
	}, inSteps)
}

// If the API server rejects the deletion of one object, the controller deletes the other.
func TestARefusedDeletionConcernsOneObject(t *testing.T) {
	for _, refused := range []string{"quick", "slow"} {
		for name, ends := range map[string]func(*healthCheckFixture){
			"has recovered": func(w *healthCheckFixture) { w.node("a", corev1.ConditionFalse) },
			"is gone": func(w *healthCheckFixture) {
				testkit.Must(w.T, w.NodeInbox().Delete(w.Node("a").Object))
				w.runRound()
			},
		} {
			t.Run(refused+" of a node that "+name, func(t *testing.T) {
				withHealthCheck(t, func(w *healthCheckFixture) {
					w.T = t
					w.twoObjects()
					ends(w)
					isDeleted := false
					w.runsAll("a", 30*time.Minute, func(kind, template string) treat.Outcome {
						if kind != DeleteRemediation || template == refused {
							return treat.Refused
						}
						isDeleted = true
						return treat.Made
					})
					testkit.Check(t, isDeleted, "the other object is left")
				}, inSteps)
			})
		}
	}
}

// Two health checks select the node. If the API server rejects the object of one, the controller
// creates the object of the other at once.
func TestARefusedCreationConcernsOneObject(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.brings(checkNamed("other", func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.RemediationTemplate = new(referTo(otherTemplateKind, "quick"))
		}))
		w.lists(otherTemplateKind)
		w.template(otherTemplateKind, "quick")
		w.lists(otherKind)
		w.runRound()
		w.node("a", corev1.ConditionTrue)
		e := w.WantTask("a", CreateRemediation)
		w.runs(e, "a", treat.Refused)
		testkit.Check(t, w.WantTask("a", CreateRemediation).Rule != e.Rule, "the controller repeats the creation at once")
	})
}

// twoObjects delivers unhealthy node a with an object of each step.
func (w *healthCheckFixture) twoObjects() {
	w.T.Helper()
	w.node("a", corev1.ConditionTrue)
	w.finds(w.made("a", "quick", told))
	w.finds(w.made("a", "slow"))
}

// Events report the refusals of two objects once each, and not at every try.
func TestRefusalsOfSeveralObjectsAreReportedOnce(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.twoObjects()
		w.node("a", corev1.ConditionFalse)
		tries, reported := map[string]int{}, map[string]int{}
		w.runsAll("a", engine.ReportRefusalEvery/2, func(kind, template string) treat.Outcome {
			if kind != DeleteRemediation {
				return treat.Made
			}
			tries[template]++
			return treat.Refused
		})
		for _, event := range w.Events {
			if event.EventReason == treat.RemediationSkipped {
				reported[event.Message]++
			}
		}
		testkit.Check(t, tries["quick"] > 5 && tries["slow"] > 5, "the tries are %v", tries)
		testkit.Equal(t, "the Events", map[string]int{"could not be ended: quick is immutable": 1, "could not be ended: slow is immutable": 1}, reported)
	}, inSteps)
}

// An orphan has used up no time.
func TestAnOrphanIsNotCountedAsTimedOut(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.orphan(kept)
		w.finds(object)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
		w.WantNoTask("a")
		testkit.Same(t, enginetest.Value(t, w.metrics, "autohealer_remediations_total", "timed_out"), 0, "the remediations that timed out")
	})
}

func TestRefusedCreationsBackOff(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		began, tries := time.Now(), 0
		for time.Since(began) < time.Hour {
			w.runs(w.WantTask("a", CreateRemediation), "a", treat.Refused)
			tries++
			if w.finding("a") != triage.Retrying {
				t.Fatalf("the finding is %s", w.finding("a"))
			}
			at, _ := w.Core().Deadline()
			w.advance(time.Until(at))
		}
		testkit.Check(t, tries >= 12 && tries <= 30, "%d tries in an hour", tries)
		told := 0
		for _, event := range w.Events {
			if event.EventReason == treat.RemediationSkipped && strings.Contains(event.Message, "could not be begun") {
				told++
			}
		}
		if told < 1 || told > 2 { // and again after an hour
			t.Errorf("it is reported %d times", told)
		}
	})
}

// An API server that has just restarted rejects everything until it has loaded its
// authorization rules.
func TestARefusalAfterAnOutageCountsAsTheFirst(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		for range 20 {
			w.runs(w.WantTask("a", CreateRemediation), "a", treat.Unknown)
			w.advance(time.Until(w.WantNoTask("a")))
		}
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Refused)
		w.advance(engine.FirstRefusedRetry)
		w.WantTask("a", CreateRemediation)
	})
}

// A remediation object that was created or deleted is reported once, also if the answer of the API server
// was lost.
func TestAnObjectWithoutAnAnswerIsReported(t *testing.T) {
	for name, creates := range map[string]func(w *healthCheckFixture, object *unstructured.Unstructured){
		"the object arrived": func(w *healthCheckFixture, object *unstructured.Unstructured) { w.finds(object) },
		"the object is found by the next attempt": func(w *healthCheckFixture, object *unstructured.Unstructured) {
			w.advance(time.Minute)
			w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object), func(r remediationResult) { r.Existed = true })
		},
		"the next attempt creates it": func(w *healthCheckFixture, object *unstructured.Unstructured) {
			w.advance(time.Minute)
			w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object))
		},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.node("a", corev1.ConditionTrue)
				object := w.made("a", "quick")
				w.runs(w.WantTask("a", CreateRemediation), "a", treat.Unknown, func(r remediationResult) { r.Create = object })
				testkit.Same(t, w.CountEvents(treat.RemediationCreated), 0, "Events before the object exists")
				creates(w, object)
				w.advance(time.Minute)
				testkit.Same(t, w.CountEvents(treat.RemediationCreated), 1, "Events about the new object")
				w.node("a", corev1.ConditionFalse)
				w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Unknown)
				testkit.Same(t, w.CountEvents(treat.RemediationRemoved), 0, "Events before the object is deleted")
				w.loses(object)
				w.advance(time.Hour)
				testkit.Same(t, w.CountEvents(treat.RemediationCreated), 1, "Events about the new object in the end")
				testkit.Same(t, w.CountEvents(treat.RemediationRemoved), 1, "Events about the deleted object")
			})
		})
	}
}

// A task without an answer is reported although other tasks of its node succeed meanwhile.
func TestATaskWithoutAnAnswerIsReportedAfterOthers(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		first := w.treats("a")
		w.advance(time.Minute)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(w.made("a", "slow")))
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Unknown)
		if object := remediationWork(w.WantTask("a", DeleteRemediation)).Object; object.Name == first.GetName() {
			t.Fatal("the second deletion is of the same object")
		}
		r := w.starts(w.WantTask("a", DeleteRemediation), "a")
		w.loses(first)
		w.Finish(r.TaskResult)
		w.runRound()
		testkit.Same(t, w.CountEvents(treat.RemediationRemoved), 2, "Events about deleted objects")
	}, inSteps)
}

// A task that cannot have succeeded any more is forgotten: the same change by another client is not
// reported as its own.
func TestAnOldTaskWithoutAnAnswerIsNotReported(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Unknown)
		w.node("a", corev1.ConditionTrue) // unhealthy again, so the object is kept
		w.advance(engine.MaxInFlight + time.Second)
		w.loses(object)
		testkit.Same(t, w.CountEvents(treat.RemediationRemoved), 0, "Events about the object that another client has deleted")
	})
}

// Another component may change the node name of an object. The object belongs to one node
// only.
func TestAnObjectThatChangesItsNodeBelongsToOneNode(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("b", corev1.ConditionFalse)
		moved := object.DeepCopy()
		moved.SetAnnotations(map[string]string{remediation.NodeNameAnnotation: "b"})
		moved.SetResourceVersion(w.nextVersion())
		w.finds(moved)
		if n := len(w.remediations.nodes["a"].objects); n > 0 {
			t.Errorf("%d objects are with the node that they are no longer about", n)
		}
		if treatments := w.remediations.nodes["b"]; treatments == nil || len(treatments.objects) != 1 {
			t.Errorf("the treatments of the node that it is about: %+v", treatments)
		}
		w.node("a", corev1.ConditionFalse)
		w.loses(moved)
		testkit.Check(t, len(w.remediations.byObject) == 0, "it is gone, and believed to be at %+v", w.remediations.byObject)
	})
}

// The node may exist before the watch reports it.
func TestANodeUnknownToTheWatchIsNotFetchedInALoop(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		node := w.node("a", corev1.ConditionTrue)
		object := w.made("a", "quick")
		testkit.Must(t, w.NodeInbox().Delete(node))
		w.runRound()
		w.finds(object)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Stale, func(r remediationResult) { r.Fresh, r.Err = node, nil })
		if due := w.WantNoTask("a"); !due.After(time.Now()) {
			t.Errorf("it is asked for again at %v", due)
		}
	})
}

// A webhook may answer with a conflict although the Lease is unchanged.
func TestAnUnchangedLeaseIsNotWrittenInALoop(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		lease := w.locks("a", "NodeHealthCheck-check", leaseDuration)
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Stale, func(r remediationResult) { r.Err, r.NewLease, r.LeaseKnown = nil, lease, true })
		if due := w.WantNoTask("a"); !due.After(time.Now()) {
			t.Errorf("it is written again at %v", due)
		}
		w.advance(time.Second)
		w.WantTask("a", CreateRemediation)
	})
}

// An object may have the name that another step uses.
func TestAnObjectOfAnotherStepIsRefused(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.advance(time.Minute)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, func(r remediationResult) { r.Current, r.Existed = object.DeepCopy(), true })
		w.runs(w.WantTask("a", ReleaseLease), "a", treat.Made) // no remediator is working
		w.WantNoTask("a")
		if last := w.Events[len(w.Events)-1]; last.EventReason != treat.RemediationSkipped || !strings.Contains(last.Message, "created for step 1, not for step 2") {
			t.Errorf("Events: %+v", last)
		}
	}, inSteps)
}

func TestAConfirmationDoesNotOutliveItsTreatment(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("a", corev1.ConditionFalse, confirmed)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
		w.node("a", corev1.ConditionTrue, confirmed) // before the annotation is removed
		w.loses(object)
		w.runs(w.WantTask("a", ClearConfirmation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(w.made("a", "quick", func(u *unstructured.Unstructured) { u.SetUID("second") })))
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.WantNoTask("a")
		if w.finding("a") != triage.Recovering {
			t.Errorf("the finding is %s", w.finding("a"))
		}
	}, byHand)
}

// byHand makes every recovery wait for a confirmation.
func byHand(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.HealthyDelay = "-1s" }

// A remediator that failed to delete a node has finished.
func TestAFailedRemovalIsDeletedOnceTheNodeIsRecreated(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		object.SetResourceVersion(w.nextVersion())
		object.Object["status"] = map[string]any{"conditions": []any{
			map[string]any{"type": remediation.DeletesNodeCondition, "status": "True"},
			map[string]any{"type": remediation.SucceededCondition, "status": "False"},
		}}
		w.finds(object)
		w.runs(w.WantTask("a", AnnotateRemediation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		testkit.Must(w.T, w.NodeInbox().Delete(enginetest.Named("a", w.nextVersion())))
		w.runRound()
		w.writeSnapshot()
		w.WantNoTask("a") // without a node it stays, as with medik8s
		w.node("a", corev1.ConditionTrue, madeAnew)
		w.writeSnapshot() // once the ledger names the node
		w.WantTask("a", DeleteRemediation)
	})
}

func TestNoFailureIsLeftBehind(t *testing.T) {
	for name, happens := range map[string]func(w *healthCheckFixture){
		"the node recovers": func(w *healthCheckFixture) { w.node("a", corev1.ConditionFalse) },
		"the node goes": func(w *healthCheckFixture) {
			testkit.Must(w.T, w.NodeInbox().Delete(enginetest.Named("a", w.nextVersion())))
			w.runRound()
		},
		"the health check goes": func(w *healthCheckFixture) {
			testkit.Must(w.T, w.inboxes.Checks.Delete(checkNamed("check")))
			w.runRound()
		},
		"the node is left alone": func(w *healthCheckFixture) {
			w.node("a", corev1.ConditionTrue, func(n *corev1.Node) { n.Labels = map[string]string{remediation.ExcludeLabel: "true"} })
		},
	} {
		for _, result := range []treat.Outcome{treat.Busy, treat.Unknown, treat.Refused} {
			t.Run(name+" after a write was "+result.String(), func(t *testing.T) {
				withHealthCheck(t, func(w *healthCheckFixture) {
					w.node("a", corev1.ConditionTrue)
					w.runs(w.WantTask("a", CreateRemediation), "a", result)
					happens(w)
					w.advance(engine.LastRefusedRetry)
					w.advance(engine.LastRefusedRetry)
					if treatments := w.FindNodeTasks("a"); treatments != nil {
						t.Errorf("its treatments still exist: %+v", treatments)
					}
				})
			})
		}
	}
}

// grants stores a snapshot of the ledger with the slot of a task.
func (w *healthCheckFixture) grants(node string, e *engine.Task) {
	w.T.Helper()
	w.Startable()
	entries, _ := w.Snapshot()
	testkit.Must(w.T, w.Stored(nil))
	if nodeTasks := w.FindNodeTasks(node); nodeTasks.Slot() != e.Slot {
		w.T.Fatalf("the ledger is %+v, and the slot is %+v", entries, nodeTasks.Slot())
	}
}

func TestASlotIsFreedOnceNoWriteCanArrive(t *testing.T) {
	type step func(w *healthCheckFixture, e *engine.Task)
	answers := func(result treat.Outcome) step {
		return func(w *healthCheckFixture, e *engine.Task) { w.runs(e, "a", result) }
	}
	waits := func(d time.Duration) step { return func(w *healthCheckFixture, _ *engine.Task) { w.advance(d) } }
	recovers := func(w *healthCheckFixture, _ *engine.Task) { w.node("a", corev1.ConditionFalse, inControl) }
	for name, test := range map[string]struct {
		isGranted bool
		steps     []step
		isTaken   bool
	}{
		"nothing was sent":                                {true, []step{recovers}, false},
		"the server had no time":                          {true, []step{answers(treat.Busy), recovers}, false},
		"the node had changed":                            {true, []step{answers(treat.Stale), recovers}, false},
		"no answer came":                                  {true, []step{answers(treat.Unknown), recovers}, true},
		"no answer came, and the ledger has no entry":     {false, []step{answers(treat.Unknown), recovers}, false},
		"no answer came for long enough":                  {true, []step{answers(treat.Unknown), recovers, waits(engine.MaxInFlight)}, false},
		"no answer came, and then a refusal":              {true, []step{answers(treat.Unknown), answers(treat.Refused), recovers}, true},
		"no answer came, and then the server had no time": {true, []step{answers(treat.Unknown), answers(treat.Busy), recovers}, true},
		"a refusal": {true, []step{answers(treat.Refused)}, false},
		"no answer came, and then a refusal, of an unhealthy node": {true, []step{answers(treat.Unknown), answers(treat.Refused)}, true},
		"no answer came, and a refusal much later":                 {true, []step{answers(treat.Unknown), waits(engine.MaxInFlight), answers(treat.Refused)}, false},
		"another object of the node is heard of": {true, []step{answers(treat.Unknown), func(w *healthCheckFixture, _ *engine.Task) {
			w.finds(w.made("a", "slow", func(u *unstructured.Unstructured) { u.SetName("theirs"); u.SetOwnerReferences(nil) }))
		}, recovers}, true},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.T = t
				w.node("a", corev1.ConditionTrue, inControl)
				e := w.WantTask("a", CreateRemediation)
				if test.isGranted {
					w.grants("a", e)
				}
				for _, step := range test.steps {
					step(w, e)
				}
				counts, _ := w.Core().Population(checkRule("check"))
				if got := counts.Treated > 0; got != test.isTaken {
					t.Errorf("the slot is taken: %t, want %t (%+v)", got, test.isTaken, w.FindNodeTasks("a"))
				}
				if treatments := w.FindNodeTasks("a"); test.isGranted && (treatments != nil && treatments.HasSlot()) != test.isTaken {
					t.Errorf("the grant is %+v", treatments.Slot())
				}
			})
		})
	}
}

func TestTheSlotOfADeletedNodeIsFreedInTime(t *testing.T) {
	for name, happens := range map[string]func(w *healthCheckFixture){
		"gone": func(w *healthCheckFixture) {
			testkit.Must(w.T, w.NodeInbox().Delete(enginetest.Named("a", w.nextVersion())))
			w.runRound()
		},
		"made again": func(w *healthCheckFixture) { w.node("a", corev1.ConditionFalse, inControl, madeAnew) },
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.node("a", corev1.ConditionTrue, inControl)
				e := w.WantTask("a", CreateRemediation)
				w.grants("a", e)
				w.runs(e, "a", treat.Unknown)
				happens(w)
				w.advance(engine.LastRetry)
				if treatments := w.FindNodeTasks("a"); treatments == nil || !treatments.HasSlot() {
					t.Errorf("what may still be made is not waited for: %+v", treatments)
				}
				w.advance(engine.MaxInFlight)
				if treatments := w.FindNodeTasks("a"); treatments != nil {
					t.Errorf("its treatments still exist: %+v", treatments)
				}
				if entries := w.Entries(); len(entries) > 0 {
					t.Errorf("the ledger names %+v still", entries)
				}
			})
		})
	}
}

// The watch may report the end of an object before the answer to its creation is handled.
func TestALateAnswerRestoresNoOldState(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		e := w.WantTask("a", CreateRemediation)
		first := w.made("a", "quick")
		later := w.made("a", "quick", deleting)
		r := w.starts(e, "a")
		w.finds(later)
		w.makes(first)(r)
		w.Finish(r.TaskResult)
		w.runRound()
		for _, o := range w.remediations.nodes["a"].objects {
			if o.ResourceVersion != later.GetResourceVersion() || !o.Deleting {
				t.Errorf("known is version %s, want %s", o.ResourceVersion, later.GetResourceVersion())
			}
		}
	})
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		e := w.WantTask("a", CreateRemediation)
		object := w.made("a", "quick")
		r := w.starts(e, "a")
		w.finds(object)
		w.loses(object)
		w.makes(object)(r)
		w.Finish(r.TaskResult)
		w.runRound()
		if treatments := w.remediations.nodes["a"]; len(treatments.objects) > 0 || treatments.deletedDuringTask != nil || treatments.losses == 0 {
			t.Errorf("an object that is gone is believed to be there: %+v", treatments)
		}
		w.advance(engine.FirstRefusedRetry)
		w.WantTask("a", CreateRemediation)
	})
}

// A list that was requested before an object was created, or a Lease taken, may arrive
// later.
func TestAListThatIsOlderThanAWriteLosesNothing(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		listed := w.nextVersion()
		w.treats("a")
		testkit.Must(w.T, w.remediations.watches.Known[rebootKind].Replace(nil, listed))
		testkit.Must(w.T, w.remediations.leases.Replace(nil, listed))
		w.runRound()
		if treatments := w.remediations.nodes["a"]; len(treatments.objects) != 1 || treatments.lease == nil || treatments.losses != 0 {
			t.Errorf("lost: %+v", treatments)
		}
		testkit.Must(w.T, w.remediations.watches.Known[rebootKind].Replace(nil, w.nextVersion()))
		testkit.Must(w.T, w.remediations.leases.Replace(nil, w.nextVersion()))
		w.runRound()
		if treatments := w.remediations.nodes["a"]; len(treatments.objects) != 0 || treatments.lease != nil || treatments.losses != 1 {
			t.Errorf("a list that is younger changes nothing: %+v", treatments)
		}
	})
}

func TestObjectsDeletedByOthersAreRecreatedWithBackoff(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		var last time.Duration
		for i := range 12 {
			w.loses(object)
			wait := time.Until(w.WantNoTask("a"))
			if wait <= 0 || wait > engine.LastRefusedRetry || i > 8 && wait < engine.LastRefusedRetry/2 {
				t.Fatalf("loss %d: it is made again in %s, after %s the time before", i, wait, last)
			}
			last = wait
			w.advance(wait)
			object = w.made("a", "quick", func(u *unstructured.Unstructured) { u.SetUID(u.GetUID() + "again") })
			w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object))
		}
		if n := enginetest.Value(t, w.metrics, "autohealer_remediations_total", "lost"); n != 12 {
			t.Errorf("%v losses are counted", n)
		}
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
		w.loses(object)
		w.runs(w.WantTask("a", ReleaseLease), "a", treat.Made)
		if w.FindNodeTasks("a") != nil {
			t.Errorf("its treatments still exist: %+v", w.FindNodeTasks("a"))
		}
		w.treats("a") // at once
	})
}

// An object that is deleted with its health check, or with an earlier one of that name,
// does not count as lost.
func TestObjectsDeletedWithTheirHealthCheckAreNotLost(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		testkit.Must(w.T, w.inboxes.Checks.Delete(checkNamed("check")))
		w.runRound()
		w.WantTask("a", DeleteRemediation)
		w.advance(engine.CounterRetention)
		w.runRound()
		w.loses(object)
		if n := testutil.CollectAndCount(w.metrics, "autohealer_remediations_total"); n != 0 || w.Lines("remediation lost") > 0 {
			t.Errorf("%d counts are left of a health check that is gone; the log:\n%s", n, &w.Log)
		}
	})
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.brings(checkNamed("check", func(c *remediationv1alpha1.NodeHealthCheck) { c.UID = "another" }))
		w.loses(object)
		w.WantTask("a", CreateRemediation)
	})
}

func TestAConfirmationIsRemovedOnce(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionFalse, confirmed)
		w.runs(w.WantTask("a", ClearConfirmation), "a", treat.Made, func(r remediationResult) { r.Version = w.nextVersion() })
		w.WantNoTask("a") // the watch has not reported it yet
		testkit.Check(t, w.FindNodeTasks("a") == nil, "its treatments still exist")
	})
}

// Another component's object may have the name of ours, even for another node.
func TestAnObjectOfAnotherNodeIsRefused(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		theirs := w.made("a", "quick", func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{remediation.NodeNameAnnotation: "b"})
		})
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(theirs), func(r remediationResult) { r.Existed = true })
		if treatments := w.remediations.nodes["a"]; len(treatments.objects) > 0 || w.finding("a") != triage.Retrying {
			t.Errorf("it is taken for ours: %+v, %s", treatments, w.finding("a"))
		}
		if last := w.Events[len(w.Events)-1]; len(w.Events) != 2 || last.EventReason != treat.RemediationSkipped || !strings.Contains(last.Message, "exists already") {
			t.Errorf("Events: %+v", last)
		}
	})
}

// The template's kind changes while an object is in flight.
func TestTheKindOfAnObjectThatArrivesLateIsWatched(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		e := w.WantTask("a", CreateRemediation)
		object := w.made("a", "quick")
		r := w.starts(e, "a")
		w.brings(checkNamed("check", func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Generation, c.Spec.RemediationTemplate = 2, new(referTo(otherTemplateKind, "x"))
		}))
		w.runRound()
		testkit.Require(t, w.remediations.watches.Known[rebootKind] == nil, "the kind is watched although no policy references it")
		w.makes(object)(r)
		w.Finish(r.TaskResult)
		w.runRound()
		testkit.Require(t, w.remediations.watches.Known[rebootKind] != nil, "the end of the object would be missed")
		w.lists(rebootKind)
		w.runRound()
		if len(w.remediations.nodes["a"].objects) > 0 {
			t.Errorf("an object that is gone is believed to be there: %+v", w.remediations.nodes["a"].objects)
		}
	})
}

func TestFailuresOfTasksAreSummarized(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		names := []string{}
		for i := range 2 * engine.MaxLogged {
			names = append(names, "node-"+string(rune('a'+i)))
			w.node(names[i], corev1.ConditionTrue)
		}
		for _, name := range names {
			w.runs(w.WantTask(name, CreateRemediation), name, treat.Unknown)
		}
		w.advance(engine.LogEvery)
		if w.Lines("treatment delayed") != engine.MaxLogged || w.Lines("writes are delayed") != 1 || w.Lines("writes succeed again") != 0 {
			t.Errorf("an outage is reported like this:\n%s", &w.Log)
		}
	})
}
