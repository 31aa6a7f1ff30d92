package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

const statusCheckEvery = status.CheckEvery

// edited returns a later generation of the fixture's health check.
func edited(change func(*remediationv1alpha1.NodeHealthCheck)) *remediationv1alpha1.NodeHealthCheck {
	return checkNamed("check", func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Generation = 2
		change(c)
	})
}

func (w *healthCheckFixture) told(what treat.EventReason) (n int) {
	for _, event := range w.events {
		if event.EventReason == what {
			n++
		}
	}
	return n
}

// status returns the status that would be written.
func (w *healthCheckFixture) status() remediationv1alpha1.NodeHealthCheckStatus {
	counts, _ := w.core.Population(checkRule("check"))
	return w.checks.statusOf(w.checks.known["check"], counts)
}

func TestAnInvalidVersionKeepsTheLastValidOne(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("a")
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.UnhealthyConditions[0].Duration = "soon" }))
		w.wantNoTask("a")
		w.node("b", corev1.ConditionTrue)
		w.wantNoTask("b")
		if w.finding("a") != triage.Treating || w.finding("b") != triage.OnHold {
			t.Errorf("a is %s and b is %s", w.finding("a"), w.finding("b"))
		}
		status := w.status()
		if status.Phase != remediationv1alpha1.PhaseDisabled || !strings.Contains(status.Reason, "duration") || *status.InTreatment != 1 {
			t.Errorf("the status: %+v", status)
		}
		w.node("a", corev1.ConditionFalse)
		w.wantTask("a", deleteRemediation) // by the last valid version
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Generation = 3 }))
		w.wantTask("b", createRemediation)
		if w.told(treat.Disabled) != 1 || w.told(treat.Enabled) != 1 {
			t.Errorf("Events: %+v", w.events)
		}
	})
}

// The health check was never followed, so its running treatments are unknown.
func TestObjectsOfAnInvalidHealthCheckStay(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionFalse)
		w.finds(w.made("a", "quick"))
		w.wantTask("a", takeLease) // and nothing else
		rows := w.status().UnhealthyNodes
		if len(rows) != 1 || rows[0].Reason != remediationv1alpha1.ReasonInvalid || strings.Contains(rows[0].Message, "gone") {
			t.Errorf("the rows: %+v", rows)
		}
	}, func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.UnhealthyConditions[0].Duration = "soon" })
}

func TestTemplates(t *testing.T) {
	missing := &meta.NoKindMatchError{GroupKind: rebootKind.GroupKind()}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "reboots"}, "", errors.New("for a test"))
	for name, test := range map[string]struct {
		happens  func(w *healthCheckFixture)
		disabled string
		words    string
	}{
		"all is there": {func(*healthCheckFixture) {}, "", ""},
		"no template": {func(w *healthCheckFixture) {
			w.lists(rebootTemplateKind)
			w.runRound()
		}, remediationv1alpha1.ReasonTemplateNotFound, "there is no template example.com/v1/RebootTemplate ns/quick"},
		"a template without a body": {func(w *healthCheckFixture) {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			u.SetGroupVersionKind(rebootTemplateKind)
			u.SetNamespace("ns")
			u.SetName("quick")
			must(w.t, w.remediations.watches.Known[rebootTemplateKind].Update(u))
			w.runRound()
		}, remediationv1alpha1.ReasonTemplateInvalid, "it has no spec"},
		"a template that was deleted": {func(w *healthCheckFixture) {
			for _, u := range w.remediations.templates {
				must(w.t, w.remediations.watches.Known[rebootTemplateKind].Delete(u))
			}
			w.runRound()
		}, remediationv1alpha1.ReasonTemplateNotFound, "there is no template"},
		"no kind": {func(w *healthCheckFixture) {
			w.remediations.watches.Known[rebootKind].SetAvailability(missing)
			w.runRound()
		}, remediationv1alpha1.ReasonTemplateNotFound, "there is no kind Reboot (example.com/v1)"},
		"no right": {func(w *healthCheckFixture) {
			w.remediations.watches.Known[rebootTemplateKind].SetAvailability(forbidden)
			w.runRound()
		}, remediationv1alpha1.ReasonTemplateNotFound, "aggregate-to-ext-remediation"},
		"a short break": {func(w *healthCheckFixture) {
			w.remediations.watches.Known[rebootKind].SetAvailability(errBroken)
			w.runRound()
			w.advance(watch.BriefOutage - 1)
		}, "", ""},
		"a long one": {func(w *healthCheckFixture) {
			w.remediations.watches.Known[rebootKind].SetAvailability(errBroken)
			w.runRound()
			w.advance(watch.BriefOutage)
		}, remediationv1alpha1.ReasonTemplateNotFound, "could not be read: connection refused"},
		"one short break after the other": {func(w *healthCheckFixture) {
			for range 3 {
				w.remediations.watches.Known[rebootKind].SetAvailability(errBroken)
				w.runRound()
				w.advance(watch.BriefOutage / 2)
				w.remediations.watches.Known[rebootKind].SetAvailability(nil)
				w.runRound()
			}
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.t = t
				events := len(w.events)
				test.happens(w)
				c := w.checks.known["check"]
				if c.disabled != test.disabled || !strings.Contains(c.problem, test.words) || test.words == "" && c.problem != "" {
					t.Errorf("disabled for %q: %s", c.disabled, c.problem)
				}
				if isReported := len(w.events) > events; isReported != (test.disabled != "") {
					t.Errorf("Events: %+v", w.events[events:])
				}
				w.node("a", corev1.ConditionTrue)
				if e, _ := w.next("a"); (e != nil) != (test.disabled == "") {
					t.Errorf("to be done: %+v", e)
				}
			})
		})
	}
}

// The list of objects may arrive after this round has taken in objects.
func TestNoTreatmentStartsBeforeAllObjectsAreKnown(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		object := w.made("a", "quick")
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.RemediationTemplate = new(referTo(otherTemplateKind, "x"))
		}))
		w.lists(otherTemplateKind)
		w.template(otherTemplateKind, "x")
		now := time.Now()
		w.checks.Take(now)
		w.remediations.Take(now)
		object.SetGroupVersionKind(otherKind)
		w.lists(otherKind, object)
		w.checks.SetRules(w.t.Context(), now)
		if c := w.checks.known["check"]; !strings.Contains(c.problem, "has not been read yet") {
			t.Errorf("it is followed without what it has under way: %q", c.problem)
		}
		w.runRound()
		if e, _ := w.next("a"); e == nil || e.Kind != takeLease {
			t.Errorf("to be done: %+v", e)
		}
	})
}

func TestKindsAreWatchedWhileReferenced(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		watched := func(want ...schema.GroupVersionKind) {
			t.Helper()
			got := slices.Collect(maps.Keys(w.remediations.watches.Known))
			if len(got) != len(want) || slices.ContainsFunc(want, func(gvk schema.GroupVersionKind) bool { return w.remediations.watches.Known[gvk] == nil }) {
				t.Errorf("watched are %v, want %v", got, want)
			}
		}
		watched(rebootKind, rebootTemplateKind)
		object := w.treats("a")
		other := func(generation int64) *remediationv1alpha1.NodeHealthCheck {
			return edited(func(c *remediationv1alpha1.NodeHealthCheck) {
				c.Generation, c.Spec.RemediationTemplate = generation, new(referTo(otherTemplateKind, "x"))
			})
		}
		w.brings(other(2))
		watched(rebootKind, otherKind, otherTemplateKind) // an object of the kind exists
		if len(w.remediations.templates) != 0 {
			t.Errorf("templates are known of a kind that is not watched: %v", w.remediations.templates)
		}
		w.loses(object)
		w.brings(other(3))
		watched(otherKind, otherTemplateKind)
		if w.left != 2 {
			t.Errorf("%d watches were stopped", w.left)
		}
		spoken := other(4) // an earlier leader has written the status
		spoken.Status.UnhealthyNodes = []remediationv1alpha1.UnhealthyNode{{Name: "b", Remediations: []remediationv1alpha1.Remediation{
			{Resource: corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "Reboot", Name: "b"}},
			{Resource: corev1.ObjectReference{Name: "b"}},
		}}}
		w.brings(spoken)
		watched(rebootKind, otherKind, otherTemplateKind)
		must(w.t, w.checks.inbox.Delete(other(4)))
		w.runRound()
		watched()
	})
}

func TestARemovedKindRemovesItsObjects(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("a")
		missing := &meta.NoKindMatchError{GroupKind: rebootKind.GroupKind()}
		w.remediations.watches.Known[rebootKind].SetAvailability(missing)
		w.runRound()
		if n := len(w.remediations.nodes["a"].objects); n != 0 {
			t.Errorf("%d objects are believed to be there", n)
		}
		w.remediations.watches.Known[rebootKind].SetAvailability(nil)
		w.runRound()
		if c := w.checks.known["check"]; !strings.Contains(c.problem, "has not been read yet") {
			t.Errorf("the kind is back and was not listed: %q", c.problem)
		}
		w.checks.inbox.SetAvailability(&meta.NoKindMatchError{})
		w.runRound()
		if len(w.checks.known) > 0 {
			t.Error("there are health checks without a kind")
		}
	})
}

func TestControlPlaneNodesWaitWhileAKindIsUnreadable(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.brings(checkNamed("another", func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.RemediationTemplate, c.Spec.Selector = new(referTo(otherTemplateKind, "x")), &metav1.LabelSelector{MatchLabels: map[string]string{"no": "node"}}
		}))
		w.remediations.watches.Known[otherKind].SetAvailability(apierrors.NewForbidden(schema.GroupResource{Resource: "others"}, "", errors.New("for a test")))
		w.runRound()
		w.node("a", corev1.ConditionTrue, inControl)
		w.node("b", corev1.ConditionTrue)
		w.wantNoTask("a")
		w.wantTask("b", createRemediation)
		if message := w.status().UnhealthyNodes[1].Message; w.finding("a") != triage.Vetoed || !strings.Contains(message, "objects of kind Other could not be read") {
			t.Errorf("a is %s: %s", w.finding("a"), message)
		}
		w.lists(otherKind)
		w.runRound()
		w.wantTask("a", createRemediation)
	})
}

func TestDeferringToMedik8s(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("b", corev1.ConditionTrue)
		e := w.wantTask("b", createRemediation)
		r := w.starts(e, "b")
		must(w.t, w.checks.medik8s.inbox.Update(held("theirs", "them", time.Now(), 20)))
		w.runRound()
		late := w.made("b", "quick")
		w.makes(late)(r)
		w.tasks.handleResult(r.Result) // it was in flight
		w.runRound()
		w.wantNoTask("a")
		w.wantNoTask("b")
		w.node("a", corev1.ConditionFalse)
		w.loses(object) // the other controller ends it
		c := w.checks.known["check"]
		status := w.checks.deferredStatus(c)
		if standing := meta.FindStatusCondition(status.Conditions, remediationv1alpha1.StandingBack); standing == nil || !strings.Contains(standing.Message, "them holds Lease theirs/") {
			t.Errorf("the condition: %+v", standing)
		}
		c.status.NotBefore = time.Now().Add(deferredStatusEvery) // as after a write
		w.advance(20 * time.Second)
		if w.checks.deferring || time.Now().Before(c.status.NotBefore) || !c.status.Stale {
			t.Errorf("back %t; the status may be written from %v", w.checks.deferring, c.status.NotBefore)
		}
		if w.finding("b") != triage.Treating || len(w.remediations.nodes["b"].objects) != 1 {
			t.Errorf("what was under way is not gone on with: %s", w.finding("b"))
		}
		if n := w.remediations.nodes["a"]; n != nil && n.losses > 0 {
			t.Error("what another has ended counts as a loss")
		}
		w.wantNoTask("b")
	})
}

// storming makes three of ten nodes unhealthy where two are allowed, with a cooldown.
func storming(c *remediationv1alpha1.NodeHealthCheck) {
	c.Spec.MaxUnhealthy = new(intstr.FromInt32(2))
	c.Spec.StormCooldownDuration = "1m"
}

func TestStormsAreReportedOnce(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		tells := func(started, cooling, ended int) {
			t.Helper()
			w.runRound()
			if a, b, c := w.told(treat.StormRecoveryStarted), w.told(treat.StormRecoveryCooldownStarted), w.told(treat.StormRecoveryEnded); a != started || b != cooling || c != ended {
				t.Errorf("reported %d, %d, %d times; want %d, %d, %d", a, b, c, started, cooling, ended)
			}
		}
		for i := range 10 {
			w.node(fmt.Sprintf("n%d", i), corev1.ConditionFalse)
		}
		for i := range 3 {
			w.node(fmt.Sprintf("n%d", i), corev1.ConditionTrue)
		}
		pass(statusCheckEvery)
		tells(1, 0, 0)
		w.checks.known["check"].status.Stored = w.status()
		w.checks.deferToMedik8s(time.Now(), true)
		pass(statusCheckEvery)
		w.writeStatuses(t.Context(), time.Now())
		tells(1, 0, 0) // its end has not been observed
		w.checks.deferToMedik8s(time.Now(), false)
		tells(1, 0, 0)
		w.node("n0", corev1.ConditionFalse)
		pass(statusCheckEvery)
		tells(1, 1, 0)
		w.node("n0", corev1.ConditionTrue)
		pass(statusCheckEvery)
		tells(2, 1, 0) // the storm returns
		w.node("n0", corev1.ConditionFalse)
		pass(statusCheckEvery)
		tells(2, 2, 0)
		status := w.status()
		if !meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.StormActive) || !meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.StormCooldownActive) {
			t.Errorf("the conditions: %+v", status.Conditions)
		}
		isOn, calmSince := stormOf(status)
		if !isOn || calmSince.IsZero() {
			t.Errorf("read back: %t since %v", isOn, calmSince)
		}
		w.advance(time.Minute)
		pass(statusCheckEvery)
		tells(2, 2, 1)
	}, storming)
}

func TestANewLeaderDoesNotReportAStormAgain(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		pass(statusCheckEvery)
		w.runRound()
		if counts, _ := w.core.Population(checkRule("check")); !counts.Storm || w.told(treat.StormRecoveryStarted)+w.told(treat.StormRecoveryCooldownStarted) > 0 {
			t.Errorf("a storm: %t; Events: %+v", counts.Storm, w.events)
		}
	}, storming, func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Status.Conditions = []metav1.Condition{
			{Type: remediationv1alpha1.StormActive, Status: metav1.ConditionTrue},
			{Type: remediationv1alpha1.StormCooldownActive, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()},
		}
	})
}

// The webhook may not have seen the templates.
func TestTemplatesOfOneKindMustAllowSeveralObjects(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		u := w.remediations.templates[remediation.Template{GroupVersionKind: rebootTemplateKind, Namespace: "ns", Name: "slow"}].DeepCopy()
		u.SetAnnotations(nil)
		must(t, w.remediations.watches.Known[rebootTemplateKind].Update(u))
		w.runRound()
		w.node("a", corev1.ConditionTrue)
		w.wantNoTask("a")
		c := w.checks.known["check"]
		if c.disabled != remediationv1alpha1.ReasonTemplateInvalid || !strings.Contains(c.problem, "ns/slow with "+remediation.MultipleTemplatesAnnotation) {
			t.Errorf("disabled for %q: %s", c.disabled, c.problem)
		}
		w.template(rebootTemplateKind, "slow")
		w.runRound()
		w.wantTask("a", createRemediation)
	}, inSteps)
}

func TestADeletedHealthCheckStartsNothing(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("b")
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{"example.com/wait"}
		}))
		w.node("a", corev1.ConditionTrue)
		w.wantNoTask("a")
		if w.finding("a") != triage.OnHold {
			t.Errorf("the finding is %s", w.finding("a"))
		}
		w.node("b", corev1.ConditionFalse)
		w.wantTask("b", deleteRemediation)
	})
}

func TestARemovedAPIVersionLosesNoObject(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		second := rebootKind
		second.Version = "v2"
		templates := second.GroupVersion().WithKind(rebootTemplateKind.Kind)
		w.brings(checkNamed("other", func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.RemediationTemplate = new(referTo(templates, "quick"))
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "body"}}
		}))
		same := object.DeepCopy()
		same.SetGroupVersionKind(second)
		w.lists(second, same)
		w.lists(templates)
		w.runRound()
		w.remediations.watches.Known[second].SetAvailability(apierrors.NewNotFound(schema.GroupResource{}, "reboots"))
		w.runRound()
		w.node("a", corev1.ConditionFalse)
		if e := w.wantTask("a", deleteRemediation); remediationWork(e).object.GroupVersionKind != rebootKind {
			t.Errorf("%s is to be deleted", remediationWork(e).object.GroupVersionKind)
		}
	})
}

// A finalizer may keep a deleted object.
func TestTheStatusShowsSinceWhenANodeIsHealthy(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("a", corev1.ConditionFalse)
		w.runs(w.wantTask("a", deleteRemediation), "a", treat.Made)
		object.SetResourceVersion(w.nextVersion())
		deleting(object)
		w.finds(object)
		counts, _ := w.core.Population(checkRule("check"))
		rows := w.checks.statusOf(w.checks.known["check"], counts).UnhealthyNodes
		if len(rows) != 1 || rows[0].ConditionsHealthyTimestamp == nil || !rows[0].ConditionsHealthyTimestamp.Time.Equal(object.GetDeletionTimestamp().Time) {
			t.Errorf("the rows are %+v", rows)
		}
	})
}

// A new kind is read within a moment, so the short gap is not reported.
func TestAKindThatIsBeingReadIsNotReported(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.RemediationTemplate = new(referTo(otherTemplateKind, "new"))
		}))
		w.node("a", corev1.ConditionTrue)
		if w.finding("a") != triage.OnHold || len(w.events) > 0 {
			t.Errorf("the finding is %s, and told is %+v", w.finding("a"), w.events)
		}
		w.lists(otherKind)
		w.lists(otherTemplateKind)
		w.template(otherTemplateKind, "new")
		w.runRound()
		w.wantTask("a", createRemediation)
		if w.told(treat.DetectedUnhealthy) != 1 || w.told(treat.RemediationSkipped) != 0 {
			t.Errorf("Events: %+v", w.events)
		}
	})
}

func TestWaitsAreReportedOncePerPeriod(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		tells := func(detected, skipped int) {
			t.Helper()
			pass(statusCheckEvery)
			w.runRound()
			if a, b := w.told(treat.DetectedUnhealthy), w.told(treat.RemediationSkipped); a != detected || b != skipped {
				t.Errorf("reported %d and %d times, want %d and %d: %+v", a, b, detected, skipped, w.events)
			}
		}
		for i := range 3 {
			w.node(fmt.Sprintf("n%d", i), corev1.ConditionFalse)
		}
		gather := func(sick corev1.ConditionStatus) {
			for i := range 3 {
				w.node(fmt.Sprintf("n%d", i), sick)
			}
		}
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.PauseRequests = []string{"upgrade"} }))
		gather(corev1.ConditionTrue)
		tells(3, 1) // all wait for the same cause
		gather(corev1.ConditionTrue)
		tells(3, 1)
		gather(corev1.ConditionFalse)
		tells(3, 1)
		gather(corev1.ConditionTrue)
		tells(6, 2) // a new period of waiting
		w.node("n0", corev1.ConditionTrue, func(n *corev1.Node) { n.Labels = map[string]string{remediation.ExcludeLabel: "yes"} })
		gather(corev1.ConditionFalse)
		w.node("n0", corev1.ConditionTrue, func(n *corev1.Node) { n.Labels = map[string]string{remediation.ExcludeLabel: "yes"} })
		if w.told(treat.InvalidNodeLabel) != 1 {
			t.Errorf("a label that means nothing is reported %d times", w.told(treat.InvalidNodeLabel))
		}
	})
}

func TestStatusRows(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		const nodes = 250
		name := func(i int) string { return fmt.Sprintf("n%03d", i) }
		for i := range nodes {
			w.node(name(i), corev1.ConditionTrue)
		}
		for i := 240; i < nodes; i++ { // the last ones are treated
			w.runs(w.wantTask(name(i), createRemediation), name(i), treat.Made, w.makes(w.made(name(i), "quick")))
		}
		must(w.t, w.nodeInbox.Delete(named(name(249), w.nextVersion())))
		w.runRound()
		status := w.status()
		rows := status.UnhealthyNodes
		if len(rows) != remediationv1alpha1.MaxListedNodes || *status.InTreatment != 10 || *status.ObservedNodes != nodes-1 || *status.HealthyNodes != 0 {
			t.Errorf("%d rows, %d treated, %d observed, %d healthy", len(rows), *status.InTreatment, *status.ObservedNodes, *status.HealthyNodes)
		}
		for i, row := range rows[:10] {
			if len(row.Remediations) != 1 || row.Remediations[0].Resource.Name != row.Name {
				t.Errorf("row %d is %+v, want those with a remediation first", i, row)
			}
		}
		if rows[0].Name != name(249) || rows[0].Reason != "NodeGone" { // it has no finding, so it is first
			t.Errorf("row 0 is %+v", rows[0])
		}
		if rows[1].Name != name(240) || rows[1].Reason != "Treating" || rows[10].Name != name(0) || len(rows[10].Remediations) != 0 {
			t.Errorf("rows 1 and 10 are %+v and %+v", rows[1], rows[10])
		}
		if !strings.HasPrefix(status.Reason, "in treatment: 10") || status.Phase != remediationv1alpha1.PhaseRemediating {
			t.Errorf("%s: %s", status.Phase, status.Reason)
		}
		w.runs(w.wantTask(name(0), createRemediation), name(0), treat.Unknown)
		if message := w.status().UnhealthyNodes[10].Message; !strings.Contains(message, "not written yet: for a test") {
			t.Errorf("the row of a node in trouble says %q", message)
		}
	})
}

// medik8s' own CRD drops unknown fields. A status that comes back without them is not
// written again.
func TestATruncatedStatusIsNotRewritten(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		c := w.checks.known["check"]
		version := w.nextVersion()
		w.statuses = status.NewWriter(WriteTimeout, w.cfg.Metrics.CountWrite, w.cfg.Logger)
		w.write = treat.NewWriter(interceptor.NewClient(nil, interceptor.Funcs{
			SubResourcePatch: func(_ context.Context, _ client.Client, _ string, object client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
				object.SetResourceVersion(version)
				return nil
			},
		}))
		w.runRound()
		(<-w.statuses.Results())()
		cut := c.object.DeepCopy()
		cut.Status, cut.ResourceVersion = w.status(), version
		cut.Status.InTreatment, cut.Status.ObservedGeneration = nil, 0
		must(w.t, w.checks.inbox.Update(cut))
		w.runRound()
		if c.status.Stored.InTreatment == nil {
			t.Error("what was cut off is missed")
		}
		cut = cut.DeepCopy() // another component has written
		cut.ResourceVersion = w.nextVersion()
		must(w.t, w.checks.inbox.Update(cut))
		w.runRound()
		if c.status.Stored.InTreatment != nil {
			t.Error("the status of another component is not stored")
		}
	})
}

func TestADeletedHealthCheckLeavesNoSeries(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		m := w.checks.metrics
		now := func() int {
			return testutil.CollectAndCount(m.nodes) + testutil.CollectAndCount(m.waiting) + testutil.CollectAndCount(m.disabled)
		}
		counts := func() int {
			return testutil.CollectAndCount(m.remediations) + testutil.CollectAndCount(m.toRemediation) + testutil.CollectAndCount(m.toRecovery)
		}
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.PauseRequests = []string{"upgrade"} }))
		w.node("a", corev1.ConditionTrue)
		pass(statusCheckEvery)
		w.runRound()
		if n := testutil.ToFloat64(m.waiting.WithLabelValues("check", "OnHold")); n != 1 {
			t.Errorf("%v nodes wait", n)
		}
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Generation = 3 }))
		object := w.made("a", "quick")
		w.runs(w.wantTask("a", createRemediation), "a", treat.Made, w.makes(object))
		pass(statusCheckEvery)
		w.runRound()
		if n := testutil.CollectAndCount(m.waiting); n != 0 {
			t.Errorf("%d reasons to wait are left", n)
		}
		w.node("a", corev1.ConditionFalse)
		w.runs(w.wantTask("a", deleteRemediation), "a", treat.Made)
		if now() == 0 || counts() != 4 {
			t.Errorf("%d series of now, %d counts", now(), counts())
		}
		must(w.t, w.checks.inbox.Delete(checkNamed("check")))
		w.runRound()
		w.loses(object)
		pass(counterRetention)
		w.runRound()
		w.forgetRetired(time.Now())
		if now() != 0 || counts() != 0 {
			t.Errorf("%d series of now and %d counts are left", now(), counts())
		}
	})
}
