package controller

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const nothing taskKind = -1

func TestWhatIsDoneFirst(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(w *ward)
		want    taskKind
		check   []func(*remediationv1alpha1.NodeHealthCheck)
	}{
		"a sick node is treated":       {func(w *ward) { w.node("a", corev1.ConditionTrue) }, createRemediation, nil},
		"a healthy node is left alone": {func(w *ward) { w.node("a", corev1.ConditionFalse) }, nothing, nil},
		"a node that nobody locked is locked": {func(w *ward) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick"))
		}, takeLease, nil},
		"a node that is treated and locked is left alone": {func(w *ward) { w.treats("a") }, nothing, nil},
		"the treatment of a node that has recovered is ended": {func(w *ward) {
			w.treats("a")
			w.node("a", corev1.ConditionFalse)
		}, deleteRemediation, nil},
		"what is ending is waited for": {func(w *ward) {
			object := w.treats("a")
			w.node("a", corev1.ConditionFalse)
			deleting(object)
			w.finds(object)
		}, nothing, nil},
		"a node whose treatment is gone is unlocked": {func(w *ward) {
			object := w.treats("a")
			w.node("a", corev1.ConditionFalse)
			w.loses(object)
		}, releaseLease, nil},
		"a confirmation that has served goes": {func(w *ward) { w.node("a", corev1.ConditionFalse, confirmed) }, clearConfirmation, nil},
		"a confirmation of a sick node is waited with": {func(w *ward) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick"))
			w.locks("a", nodelease.HolderOf("check"), leaseDuration)
			w.node("a", corev1.ConditionTrue, confirmed)
		}, nothing, nil},
		"a remediator is told that its time is up before the next one is asked": {func(w *ward) {
			w.treats("a")
			w.passes(time.Minute)
		}, annotateRemediation, []func(*remediationv1alpha1.NodeHealthCheck){inSteps}},
		"what was for an earlier node of that name goes first": {func(w *ward) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick"))
			w.node("a", corev1.ConditionTrue, madeAnew)
		}, deleteRemediation, nil},
		"what outlives its node goes": {func(w *ward) {
			must(w.t, w.checks.watches.known[rebootKind].Update(w.orphan()))
			w.goesOn()
		}, deleteRemediation, nil},
		"a remediator that means the node to go is waited for": {func(w *ward) {
			u := w.orphan()
			says(remediation.DeletesNodeCondition, "True")(u)
			w.finds(u)
		}, nothing, nil},
		"an object that nobody of ours has made is left alone": {func(w *ward) {
			w.node("a", corev1.ConditionTrue)
			w.finds(w.made("a", "quick", func(u *unstructured.Unstructured) { u.SetOwnerReferences(nil) }))
		}, nothing, nil},
		"a node that somebody else works on is left alone": {func(w *ward) {
			w.node("a", corev1.ConditionFalse)
			w.locks("a", "somebody", time.Hour)
			w.node("a", corev1.ConditionTrue)
		}, nothing, nil},
		"nothing is done while standing back": {func(w *ward) {
			w.node("a", corev1.ConditionTrue)
			w.treatments["a"].stage = idle
			w.deferToMedik8s(time.Now(), true)
		}, nothing, nil},
		"a lock of ours goes with its treatment although another node's goes on": {func(w *ward) {
			w.treats("b")
			w.node("a", corev1.ConditionFalse)
			w.locks("a", nodelease.HolderOf("check"), leaseDuration)
		}, releaseLease, nil},
	} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				w.t = t
				test.happens(w)
				if test.want == nothing {
					w.rests("a")
				} else {
					w.wants("a", test.want)
				}
			}, test.check...)
		})
	}
}

// orphan is an object for node a, which is not there.
func (w *ward) orphan() *unstructured.Unstructured {
	w.t.Helper()
	w.nodeStates["a"] = &nodeState{node: named("a", "1")}
	u := w.made("a", "quick")
	delete(w.nodeStates, "a")
	return u
}

func TestBeginning(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		e := w.wants("a", createRemediation)
		if by := *e.lease.Spec.HolderIdentity; e.create.GetName() != "a" || e.create.GroupVersionKind() != rebootKind || e.step != 0 || by != "NodeHealthCheck-check" {
			t.Errorf("the errand is to make %s %s as step %d, with a lock of %s", e.create.GetKind(), e.create.GetName(), e.step, by)
		}
		w.passes(3 * time.Second)
		w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(w.made("a", "quick")))
		if len(w.events) != 2 || w.events[0].EventReason != treat.DetectedUnhealthy || w.events[1].EventReason != treat.RemediationCreated {
			t.Errorf("told: %+v", w.events)
		}
		if n := testutil.ToFloat64(w.cfg.Metrics.treatments.WithLabelValues("check", "begun")); n != 1 {
			t.Errorf("%v remediations are counted", n)
		}
		if b := w.treatments["a"]; b.lease == nil || !b.wanted.IsZero() || w.finding("a") != triage.Treating {
			t.Errorf("afterwards: %+v, %s", b, w.finding("a"))
		}
	})
}

func TestEscalation(t *testing.T) {
	openWard(t, func(w *ward) {
		first := w.treats("a")
		w.passes(time.Minute)
		e := w.wants("a", annotateRemediation)
		if _, told := e.annotations[remediation.TimedOutAnnotation]; !told {
			t.Errorf("the note is %v", e.annotations)
		}
		w.runs(e, "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		e = w.wants("a", createRemediation)
		if e.step != 1 || e.create.GetName() == "a" {
			t.Errorf("step %d makes %s", e.step, e.create.GetName())
		}
		w.runs(e, "a", treat.Made, w.makes(w.made("a", "slow")))
		w.rests("a")
		w.passes(time.Minute)
		e = w.wants("a", annotateRemediation)
		if e.object.Template != "slow" || w.finding("a") != triage.Exhausted {
			t.Errorf("%s is noted, and the finding is %s", e.object.Template, w.finding("a"))
		}
		w.runs(e, "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.wants("a", releaseLease) // who waits for the node may have it
		w.node("a", corev1.ConditionFalse)
		w.wants("a", deleteRemediation)
		if got := first.GetAnnotations()[remediation.TimedOutAnnotation]; got != "" {
			t.Error("the watch's object was written to")
		}
	}, inSteps)
}

func TestNotesFor(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	then := now.Add(-time.Hour).Truncate(time.Second)
	for name, test := range map[string]struct {
		object  remediation.Object
		isOver  bool
		planned triage.PlannedTreatment
		want    map[string]string // "" is removed
	}{
		"under way":                        {remediation.Object{}, false, triage.PlannedTreatment{}, nil},
		"its time is up":                   {remediation.Object{}, true, triage.PlannedTreatment{}, map[string]string{remediation.TimedOutAnnotation: "2026-01-02T03:04:05Z"}},
		"its time is up, and it was told":  {remediation.Object{TimedOut: true}, true, triage.PlannedTreatment{}, nil},
		"its time is up, and it succeeded": {remediation.Object{Succeeded: true}, true, triage.PlannedTreatment{}, nil},
		"its time is up, and it failed":    {remediation.Object{Failed: true}, true, triage.PlannedTreatment{}, map[string]string{remediation.TimedOutAnnotation: "2026-01-02T03:04:05Z"}},
		"healthy":                          {remediation.Object{}, false, triage.PlannedTreatment{HealthySince: then.Add(600)}, map[string]string{remediation.HealthyDelayAnnotation: "2026-01-02T02:04:05Z"}},
		"healthy, which is noted":          {remediation.Object{HealthySince: then}, false, triage.PlannedTreatment{HealthySince: then.Add(600)}, nil},
		"healthy, and noted from before":   {remediation.Object{HealthySince: then.Add(-time.Second)}, false, triage.PlannedTreatment{HealthySince: then}, map[string]string{remediation.HealthyDelayAnnotation: "2026-01-02T02:04:05Z"}},
		"sick again":                       {remediation.Object{HealthySince: then}, false, triage.PlannedTreatment{}, map[string]string{remediation.HealthyDelayAnnotation: ""}},
		"sick again, and the time is up":   {remediation.Object{HealthySince: then}, true, triage.PlannedTreatment{}, map[string]string{remediation.HealthyDelayAnnotation: "", remediation.TimedOutAnnotation: "2026-01-02T03:04:05Z"}},
	} {
		got := map[string]string{}
		for key, value := range annotationsFor(test.object, test.isOver, &test.planned, now) {
			got[key] = ""
			if value != nil {
				got[key] = *value
			}
		}
		if !maps.Equal(got, test.want) {
			t.Errorf("%s: %v is noted, want %v", name, got, test.want)
		}
	}
}

// A remediator's API may be one that nobody may patch. The lock must be renewed, and
// the next step begun, all the same.
func TestAFailedErrandKeepsNobodyFromAnother(t *testing.T) {
	openWard(t, func(w *ward) {
		w.treats("a")
		w.passes(time.Minute)
		w.runs(w.wants("a", annotateRemediation), "a", treat.Refused)
		w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(w.made("a", "slow")))
		for range 20 {
			e, due := w.next("a")
			if e == nil {
				w.passes(max(time.Millisecond, time.Until(due)))
				continue
			}
			if e.kind == takeLease {
				return
			}
			w.runs(e, "a", treat.Refused)
		}
		t.Errorf("the lock is not renewed: %+v", w.treatments["a"])
	}, inSteps, func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.EscalatingRemediations[1].Timeout = "1h" })
}

func TestRefusedBeginningsAreTriedLessAndLess(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		began, tries := time.Now(), 0
		for time.Since(began) < time.Hour {
			w.runs(w.wants("a", createRemediation), "a", treat.Refused)
			tries++
			if w.finding("a") != triage.Retrying {
				t.Fatalf("the finding is %s", w.finding("a"))
			}
			at, _ := w.core.Deadline()
			w.passes(time.Until(at))
		}
		if tries < 12 || tries > 30 {
			t.Errorf("%d tries in an hour", tries)
		}
		told := 0
		for _, word := range w.events {
			if word.EventReason == treat.RemediationSkipped && strings.Contains(word.Message, "could not be begun") {
				told++
			}
		}
		if told < 1 || told > 2 { // and again after an hour
			t.Errorf("it is told %d times", told)
		}
	})
}

// An API server that comes back refuses everything for a moment, until it has read who
// may do what.
func TestARefusalAfterAnOutageIsTheFirstOne(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		for range 20 {
			w.runs(w.wants("a", createRemediation), "a", treat.Unknown)
			w.passes(time.Until(w.rests("a")))
		}
		w.runs(w.wants("a", createRemediation), "a", treat.Refused)
		w.passes(firstRefusedRetry)
		w.wants("a", createRemediation)
	})
}

// Somebody may write another node's name on an object. It is about one node only.
func TestAnObjectThatIsAboutAnotherNodeNowIsInOneBed(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.treats("a")
		w.node("b", corev1.ConditionFalse)
		moved := object.DeepCopy()
		moved.SetAnnotations(map[string]string{remediation.NodeNameAnnotation: "b"})
		moved.SetResourceVersion(w.nextVersion())
		w.finds(moved)
		if n := len(w.treatments["a"].objects); n > 0 {
			t.Errorf("%d objects are with the node that they are no longer about", n)
		}
		if b := w.treatments["b"]; b == nil || len(b.objects) != 1 {
			t.Errorf("the bed of the node that it is about: %+v", b)
		}
		w.node("a", corev1.ConditionFalse)
		w.loses(moved)
		if len(w.treatmentsByObject) > 0 {
			t.Errorf("it is gone, and believed to be at %+v", w.treatmentsByObject)
		}
	})
}

// The node may be in the API before the watch tells of it.
func TestANodeThatIsThereAfterAllIsNotAskedForInACircle(t *testing.T) {
	openWard(t, func(w *ward) {
		node := w.node("a", corev1.ConditionTrue)
		object := w.made("a", "quick")
		must(t, w.nodeInbox.Delete(node))
		w.goesOn()
		w.finds(object)
		w.runs(w.wants("a", deleteRemediation), "a", treat.Stale, func(r *taskResult) { r.fresh, r.err = node, nil })
		if due := w.rests("a"); !due.After(time.Now()) {
			t.Errorf("it is asked for again at %v", due)
		}
	})
}

// Somebody's webhook may answer that a Lease has changed, which it has not.
func TestALeaseThatIsAsItWasIsNotWrittenInACircle(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		lease := w.locks("a", "NodeHealthCheck-check", leaseDuration)
		w.runs(w.wants("a", createRemediation), "a", treat.Stale, func(r *taskResult) { r.err, r.lease, r.isLeased = nil, lease, true })
		if due := w.rests("a"); !due.After(time.Now()) {
			t.Errorf("it is written again at %v", due)
		}
		w.passes(time.Second)
		w.wants("a", createRemediation)
	})
}

// The name of an object may be that of another step's, whatever was agreed on.
func TestAnObjectOfAnotherStepIsNotTakenForThisOnes(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.treats("a")
		w.passes(time.Minute)
		w.runs(w.wants("a", annotateRemediation), "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.runs(w.wants("a", createRemediation), "a", treat.Made, func(r *taskResult) { r.object = object.DeepCopy() })
		w.runs(w.wants("a", releaseLease), "a", treat.Made) // nobody is at work
		w.rests("a")
		if last := w.events[len(w.events)-1]; last.EventReason != treat.RemediationSkipped || !strings.Contains(last.Message, "made for step 1, not for step 2") {
			t.Errorf("told: %+v", last)
		}
	}, inSteps)
}

func TestAConfirmationDoesNotOutliveWhatItWasAbout(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.treats("a")
		w.node("a", corev1.ConditionFalse, confirmed)
		w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
		w.node("a", corev1.ConditionTrue, confirmed) // before the annotation is taken off
		w.loses(object)
		w.runs(w.wants("a", clearConfirmation), "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(w.made("a", "quick", func(u *unstructured.Unstructured) { u.SetUID("second") })))
		w.node("a", corev1.ConditionFalse)
		w.runs(w.wants("a", annotateRemediation), "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.rests("a")
		if w.finding("a") != triage.Recovering {
			t.Errorf("the finding is %s", w.finding("a"))
		}
	}, byHand)
}

// byHand has every recovery wait for somebody's word.
func byHand(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.HealthyDelay = "-1s" }

// A remediator that was to delete a node and could not is done with it.
func TestADeletionThatFailedIsTakenBackOnceTheNodeIsAnother(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.treats("a")
		object.SetResourceVersion(w.nextVersion())
		object.Object["status"] = map[string]any{"conditions": []any{
			map[string]any{"type": remediation.DeletesNodeCondition, "status": "True"},
			map[string]any{"type": remediation.SucceededCondition, "status": "False"},
		}}
		w.finds(object)
		w.runs(w.wants("a", annotateRemediation), "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.node("a", corev1.ConditionTrue, madeAnew)
		w.turns() // once the ledger names whose place is kept
		w.wants("a", deleteRemediation)
	})
}

func TestNothingIsLeftOfASetback(t *testing.T) {
	for name, happens := range map[string]func(w *ward){
		"the node recovers":     func(w *ward) { w.node("a", corev1.ConditionFalse) },
		"the node goes":         func(w *ward) { must(w.t, w.nodeInbox.Delete(named("a", w.nextVersion()))); w.goesOn() },
		"the health check goes": func(w *ward) { must(w.t, w.checks.inbox.Delete(checkNamed("check"))); w.goesOn() },
		"the node is left alone": func(w *ward) {
			w.node("a", corev1.ConditionTrue, func(n *corev1.Node) { n.Labels = map[string]string{remediation.ExcludeLabel: "true"} })
		},
	} {
		for _, fate := range []treat.Result{treat.Busy, treat.Unknown, treat.Refused} {
			t.Run(name+" after a write was "+resultNames[fate], func(t *testing.T) {
				openWard(t, func(w *ward) {
					w.node("a", corev1.ConditionTrue)
					w.runs(w.wants("a", createRemediation), "a", fate)
					happens(w)
					w.passes(lastRefusedRetry)
					w.passes(lastRefusedRetry)
					if b := w.treatments["a"]; b != nil {
						t.Errorf("its bed is still there: %+v", b)
					}
				})
			})
		}
	}
}

// pages stands in for a page of the ledger that was written.
func (w *ward) grants(node string, e *task) {
	b := w.treatments[node]
	b.granted = e.ledgerEntry()
	w.ledger.treatmentsWithSlots = append(w.ledger.treatmentsWithSlots, b)
}

func TestAPlaceIsGivenBackOnceNothingCanArrive(t *testing.T) {
	type step func(w *ward, e *task)
	answers := func(fate treat.Result) step { return func(w *ward, e *task) { w.runs(e, "a", fate) } }
	waits := func(d time.Duration) step { return func(w *ward, _ *task) { w.passes(d) } }
	recovers := func(w *ward, _ *task) { w.node("a", corev1.ConditionFalse, inControl) }
	for name, test := range map[string]struct {
		isGranted bool
		steps     []step
		isTaken   bool
	}{
		"nothing was sent":       {true, []step{recovers}, false},
		"the server had no time": {true, []step{answers(treat.Busy), recovers}, false},
		"the node had changed":   {true, []step{answers(treat.Stale), recovers}, false},
		"no answer came":         {true, []step{answers(treat.Unknown), recovers}, true},
		"no answer came, and nobody waits for it in the ledger": {false, []step{answers(treat.Unknown), recovers}, false},
		"no answer came for long enough":                        {true, []step{answers(treat.Unknown), recovers, waits(maxInFlight)}, false},
		"no answer came, and then a refusal":                    {true, []step{answers(treat.Unknown), answers(treat.Refused), recovers}, true},
		"no answer came, and then the server had no time":       {true, []step{answers(treat.Unknown), answers(treat.Busy), recovers}, true},
		"a refusal": {true, []step{answers(treat.Refused)}, false},
		"no answer came, and then a refusal, of a sick node": {true, []step{answers(treat.Unknown), answers(treat.Refused)}, true},
		"no answer came, and a refusal much later":           {true, []step{answers(treat.Unknown), waits(maxInFlight), answers(treat.Refused)}, false},
		"another object of the node is heard of": {true, []step{answers(treat.Unknown), func(w *ward, _ *task) {
			w.finds(w.made("a", "slow", func(u *unstructured.Unstructured) { u.SetName("theirs"); u.SetOwnerReferences(nil) }))
		}, recovers}, true},
	} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				w.t = t
				w.node("a", corev1.ConditionTrue, inControl)
				e := w.wants("a", createRemediation)
				if test.isGranted {
					w.grants("a", e)
				}
				for _, step := range test.steps {
					step(w, e)
				}
				counts, _ := w.core.Population(checkRule("check"))
				if got := counts.Treated > 0; got != test.isTaken {
					t.Errorf("the place is taken: %t, want %t (%+v)", got, test.isTaken, w.treatments["a"])
				}
				if b := w.treatments["a"]; test.isGranted && (b != nil && b.granted.Object != "") != test.isTaken {
					t.Errorf("the grant is %+v", b.granted)
				}
			})
		})
	}
}

func TestTheGrantOfANodeThatIsGoneIsGivenBackInTime(t *testing.T) {
	for name, happens := range map[string]func(w *ward){
		"gone":       func(w *ward) { must(w.t, w.nodeInbox.Delete(named("a", w.nextVersion()))); w.goesOn() },
		"made again": func(w *ward) { w.node("a", corev1.ConditionFalse, inControl, madeAnew) },
	} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				w.node("a", corev1.ConditionTrue, inControl)
				e := w.wants("a", createRemediation)
				w.grants("a", e)
				w.runs(e, "a", treat.Unknown)
				happens(w)
				w.passes(lastRetry)
				if b := w.treatments["a"]; b == nil || b.granted.Object == "" {
					t.Errorf("what may still be made is not waited for: %+v", b)
				}
				w.passes(maxInFlight)
				if b := w.treatments["a"]; b != nil {
					t.Errorf("its bed is still there: %+v", b)
				}
				w.writeLedger(t.Context(), time.Now())
				if got := w.ledger.treatmentsWithSlots; len(got) > 0 && got[0].granted != (ledger.Entry{}) {
					t.Errorf("the ledger names %+v still", got[0].granted)
				}
			})
		})
	}
}

// The watch may bring what has become of an object before the answer is taken in.
func TestAnAnswerThatComesLateTellsNothingOld(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		e := w.wants("a", createRemediation)
		first := w.made("a", "quick")
		later := w.made("a", "quick", deleting)
		r := w.startTask(time.Now(), w.treatments["a"], e)
		w.finds(later)
		w.makes(first)(r)
		w.handleTaskResult(r)
		w.goesOn()
		for _, o := range w.treatments["a"].objects {
			if o.ResourceVersion != later.GetResourceVersion() || !o.Deleting {
				t.Errorf("known is version %s, want %s", o.ResourceVersion, later.GetResourceVersion())
			}
		}
	})
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		e := w.wants("a", createRemediation)
		object := w.made("a", "quick")
		r := w.startTask(time.Now(), w.treatments["a"], e)
		w.finds(object)
		w.loses(object)
		w.makes(object)(r)
		w.handleTaskResult(r)
		w.goesOn()
		if b := w.treatments["a"]; len(b.objects) > 0 || b.goneMeanwhile != nil || b.losses == 0 {
			t.Errorf("an object that is gone is believed to be there: %+v", b)
		}
		w.passes(firstRefusedRetry)
		w.wants("a", createRemediation)
	})
}

// A list that was asked for before an object was made, or a lock taken, may come after.
func TestAListThatIsOlderThanAWriteLosesNothing(t *testing.T) {
	openWard(t, func(w *ward) {
		listed := w.nextVersion()
		w.treats("a")
		must(w.t, w.checks.watches.known[rebootKind].Replace(nil, listed))
		must(w.t, w.leaseInbox.Replace(nil, listed))
		w.goesOn()
		if b := w.treatments["a"]; len(b.objects) != 1 || b.lease == nil || b.losses != 0 {
			t.Errorf("lost: %+v", b)
		}
		must(w.t, w.checks.watches.known[rebootKind].Replace(nil, w.nextVersion()))
		must(w.t, w.leaseInbox.Replace(nil, w.nextVersion()))
		w.goesOn()
		if b := w.treatments["a"]; len(b.objects) != 0 || b.lease != nil || b.losses != 1 {
			t.Errorf("a list that is younger changes nothing: %+v", b)
		}
	})
}

func TestWhatIsDeletedBySomebodyIsMadeAgainLaterAndLater(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.treats("a")
		var last time.Duration
		for i := range 12 {
			w.loses(object)
			wait := time.Until(w.rests("a"))
			if wait <= 0 || wait > lastRefusedRetry || i > 8 && wait < lastRefusedRetry/2 {
				t.Fatalf("loss %d: it is made again in %s, after %s the time before", i, wait, last)
			}
			last = wait
			w.passes(wait)
			object = w.made("a", "quick", func(u *unstructured.Unstructured) { u.SetUID(u.GetUID() + "again") })
			w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(object))
		}
		if n := testutil.ToFloat64(w.cfg.Metrics.treatments.WithLabelValues("check", "lost")); n != 12 {
			t.Errorf("%v losses are counted", n)
		}
		w.node("a", corev1.ConditionFalse)
		w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
		w.loses(object)
		w.runs(w.wants("a", releaseLease), "a", treat.Made)
		if w.treatments["a"] != nil {
			t.Errorf("its bed is still there: %+v", w.treatments["a"])
		}
		w.treats("a") // at once
	})
}

// What goes with its health check, or with an earlier one of that name, is nobody's
// loss, and is not counted for ever.
func TestWhatGoesWithItsHealthCheckIsNotLost(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.treats("a")
		must(w.t, w.checks.inbox.Delete(checkNamed("check")))
		w.goesOn()
		w.wants("a", deleteRemediation)
		w.passes(countsStay)
		w.forgetRetired(time.Now())
		w.loses(object)
		if n := testutil.CollectAndCount(w.cfg.Metrics.treatments); n != 0 || w.lines("remediation lost") > 0 {
			t.Errorf("%d counts are left of a health check that is gone; the log:\n%s", n, &w.log)
		}
	})
	openWard(t, func(w *ward) {
		object := w.treats("a")
		w.brings(checkNamed("check", func(c *remediationv1alpha1.NodeHealthCheck) { c.UID = "another" }))
		w.loses(object)
		w.wants("a", createRemediation)
	})
}

func TestAConfirmationIsTakenOffOnce(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionFalse, confirmed)
		w.runs(w.wants("a", clearConfirmation), "a", treat.Made, func(r *taskResult) { r.version = w.nextVersion() })
		w.rests("a") // the watch has not told yet
		if w.treatments["a"] != nil {
			t.Error("its bed is still there")
		}
	})
}

// Somebody's object may stand where ours should, be it for another node.
func TestAnObjectOfAnotherNodeIsNotTakenForOurs(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		theirs := w.made("a", "quick", func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{remediation.NodeNameAnnotation: "b"})
		})
		w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(theirs), func(r *taskResult) { r.isCreated = false })
		if b := w.treatments["a"]; len(b.objects) > 0 || w.finding("a") != triage.Retrying {
			t.Errorf("it is taken for ours: %+v, %s", b, w.finding("a"))
		}
		if last := w.events[len(w.events)-1]; len(w.events) != 2 || last.EventReason != treat.RemediationSkipped || !strings.Contains(last.Message, "is there already") {
			t.Errorf("told: %+v", last)
		}
	})
}

// A template of another kind was written while an object was on its way.
func TestTheKindOfAnObjectThatArrivesLateIsWatched(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("a", corev1.ConditionTrue)
		e := w.wants("a", createRemediation)
		object := w.made("a", "quick")
		r := w.startTask(time.Now(), w.treatments["a"], e)
		w.brings(checkNamed("check", func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Generation, c.Spec.RemediationTemplate = 2, new(referTo(otherTemplateKind, "x"))
		}))
		if w.checks.watches.known[rebootKind] != nil {
			t.Fatal("the kind is watched although nobody speaks of it")
		}
		w.makes(object)(r)
		w.handleTaskResult(r)
		w.goesOn()
		if w.checks.watches.known[rebootKind] == nil {
			t.Fatal("nobody would hear of the object's end")
		}
		w.lists(rebootKind)
		w.goesOn()
		if len(w.treatments["a"].objects) > 0 {
			t.Errorf("an object that is gone is believed to be there: %+v", w.treatments["a"].objects)
		}
	})
}

func TestTroubleOfErrandsIsSummedUp(t *testing.T) {
	openWard(t, func(w *ward) {
		names := []string{}
		for i := range 2 * maxLogged {
			names = append(names, "node-"+string(rune('a'+i)))
			w.node(names[i], corev1.ConditionTrue)
		}
		for _, name := range names {
			w.runs(w.wants(name, createRemediation), name, treat.Unknown)
		}
		w.logSuppressed(time.Now())
		pass(logEvery)
		w.logSuppressed(time.Now())
		if w.lines("treatment put off") != maxLogged || w.lines("writes are being put off") != 1 || w.lines("writes are made again") != 0 {
			t.Errorf("an outage is told like this:\n%s", &w.log)
		}
	})
}

func TestTasksHaveNames(t *testing.T) {
	for what := createRemediation; what <= clearConfirmation; what++ {
		if what.String() == "" || what.resource() == "" || what.failed() == "" {
			t.Errorf("task %d has no name", what)
		}
	}
	if slices.Contains(taskKindNames[:], "") {
		t.Error("a task has no name")
	}
}
