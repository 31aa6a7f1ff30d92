package remediation

import (
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

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/testkit"
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

// status returns the status that would be written.
func (w *healthCheckFixture) status() remediationv1alpha1.NodeHealthCheckStatus {
	status, _ := w.checks.Status("check")
	return status
}

// problem returns why the health check is disabled, and the reason in its status. Both are
// empty if it is enabled.
func (w *healthCheckFixture) problem() (problem, disabled string) {
	status := w.status()
	if status.Phase != remediationv1alpha1.PhaseDisabled {
		return "", ""
	}
	disabled, problem, _ = strings.Cut(status.Reason, ": ")
	return problem, disabled
}

func TestAnInvalidVersionKeepsTheLastValidOne(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("a")
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.UnhealthyConditions[0].Duration = "soon" }))
		w.WantNoTask("a")
		w.node("b", corev1.ConditionTrue)
		w.WantTask("b", CreateRemediation)
		if w.finding("a") != triage.Treating || w.finding("b") != triage.Treating {
			t.Errorf("a is %s and b is %s", w.finding("a"), w.finding("b"))
		}
		status := w.status()
		ready := meta.FindStatusCondition(status.Conditions, remediationv1alpha1.Ready)
		if status.Phase != remediationv1alpha1.PhaseRemediating || ready.Status != metav1.ConditionFalse || ready.Reason != remediationv1alpha1.ReasonInvalid ||
			!strings.Contains(ready.Message, "duration") || !strings.Contains(status.Reason, "the last accepted version stays in force; 2 nodes in treatment") {
			t.Errorf("the status: %+v", status)
		}
		w.node("a", corev1.ConditionFalse)
		w.WantTask("a", DeleteRemediation)
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Generation = 3 }))
		if status := w.status(); !meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.Ready) {
			t.Errorf("the status of a valid version: %+v", status)
		}
		testkit.Check(t, w.CountEvents(treat.NotAccepted) == 1 && w.CountEvents(treat.Accepted) == 1 && w.CountEvents(treat.Disabled) == 0, "Events: %+v", w.Events)
	})
	withHealthCheck(t, func(w *healthCheckFixture) { // under the next leader
		w.node("a", corev1.ConditionTrue)
		w.WantTask("a", CreateRemediation)
	}, func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Status.AcceptedSpec = format.EncodeSpec(c.Spec)
		c.Spec.UnhealthyConditions = []remediationv1alpha1.UnhealthyCondition{{Type: "Sick", Status: corev1.ConditionTrue, Duration: "soon"}}
	})
	withHealthCheck(t, func(w *healthCheckFixture) { // an annotation is invalid under the next leader
		w.node("b", corev1.ConditionTrue)
		w.finds(w.made("b", "quick"))
		w.node("a", corev1.ConditionTrue)
		w.WantNoTask("a")
		if is := w.finding("b"); w.finding("a") != triage.OnHold || is != triage.Treating {
			t.Errorf("a is %s, and b in treatment is %s", w.finding("a"), is)
		}
		if rows := w.status().UnhealthyNodes; !slices.ContainsFunc(rows, func(row remediationv1alpha1.UnhealthyNode) bool {
			return row.Name == "a" && strings.Contains(row.Message, "autohealer.resourcestack.com/windows")
		}) {
			t.Errorf("the rows: %+v", rows)
		}
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Annotations = nil }))
		w.WantTask("a", CreateRemediation)
	}, func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Status.AcceptedSpec = format.EncodeSpec(c.Spec)
		c.Annotations = map[string]string{"autohealer.resourcestack.com/windows": "at night"}
	})
	withHealthCheck(t, func(w *healthCheckFixture) { // healthy nodes would be remediated
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.UnhealthyConditions[0].Type, c.Spec.UnhealthyConditions[0].Status = corev1.NodeReady, corev1.ConditionTrue
		}))
		w.node("a", corev1.ConditionTrue)
		w.WantTask("a", CreateRemediation)
		ready := meta.FindStatusCondition(w.status().Conditions, remediationv1alpha1.Ready)
		testkit.Check(t, ready.Status == metav1.ConditionFalse && strings.Contains(ready.Message, "Ready=True is what a healthy node reports"), "Ready: %+v", ready)
	})
	withHealthCheck(t, func(w *healthCheckFixture) { // a pause counts also in an invalid version
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.UnhealthyConditions[0].Duration, c.Spec.PauseRequests = "soon", []string{"upgrade"}
		}))
		w.node("a", corev1.ConditionTrue)
		w.WantNoTask("a")
		testkit.Same(t, w.finding("a"), triage.OnHold, "the node")
	})
}

// A version that the webhook would refuse, because it interrupts remediations, takes force when
// they are over, or when the user accepts the impact.
func TestAnEditInterruptsNoRemediation(t *testing.T) {
	deselect := func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "node"}}
	}
	isHeld := func(t *testing.T, w *healthCheckFixture, field string) {
		t.Helper()
		w.WantNoTask("a")
		ready := meta.FindStatusCondition(w.status().Conditions, remediationv1alpha1.Ready)
		for _, part := range []string{field + ": a remediation of node a is under way", "Wait until all nodes are healthy again", "accept-impact", "the last accepted version stays in force"} {
			testkit.Contains(t, ready.Message, part, "the message of Ready")
		}
		testkit.Same(t, string(ready.Status)+" "+ready.Reason, "False Remediating", "Ready")
	}
	inForce := func(t *testing.T, w *healthCheckFixture) {
		t.Helper()
		ready := meta.FindStatusCondition(w.status().Conditions, remediationv1alpha1.Ready)
		testkit.Same(t, ready.Status, metav1.ConditionTrue, "Ready")
		testkit.Same(t, w.CountEvents(treat.NotAccepted)-w.CountEvents(treat.Accepted), 0, "unfinished Events")
	}
	for name, of := range map[string]struct {
		edit  func(*remediationv1alpha1.NodeHealthCheck)
		field string
	}{
		"of the selector": {deselect, "spec.selector"},
		"of the template": {func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.RemediationTemplate.Name = "slow" }, "spec.remediationTemplate"},
		"of the kind of the template": {func(c *remediationv1alpha1.NodeHealthCheck) {
			c.Spec.RemediationTemplate = new(referTo(otherTemplateKind, "x"))
		}, "spec.remediationTemplate"},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				object := w.treats("a")
				w.brings(edited(of.edit))
				isHeld(t, w, of.field)
				w.node("b", corev1.ConditionTrue) // by the accepted version
				b := w.made("b", "quick")
				w.runs(w.WantTask("b", CreateRemediation), "b", treat.Made, w.makes(b))
				testkit.Same(t, w.CountEvents(treat.NotAccepted), 1, "Events")
				w.loses(b)
				w.node("b", corev1.ConditionFalse)
				isHeld(t, w, of.field)
				w.node("a", corev1.ConditionFalse)
				w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
				w.loses(object)
				inForce(t, w)
				testkit.Same(t, w.CountEvents(treat.Disabled), 0, "Events about missing templates")
			})
			for _, hasRows := range []bool{true, false} { // the previous leader may not have written the newest status
				withHealthCheck(t, func(w *healthCheckFixture) { // under the next leader
					object := w.treats("a")
					next := newHealthCheckFixture(enginetest.New(t))
					testkit.Must(t, next.NodeInbox().Update(w.Node("a").Object))
					next.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
						if c.Status = w.status(); !hasRows {
							c.Status.UnhealthyNodes = nil
						}
						of.edit(c)
					}))
					for range 2 { // then the kinds of the accepted version
						for gvk := range next.remediations.watches.Known {
							next.lists(gvk, map[schema.GroupVersionKind][]*unstructured.Unstructured{rebootKind: {object}}[gvk]...)
						}
						if next.remediations.watches.Known[rebootTemplateKind] != nil {
							next.template(rebootTemplateKind, "quick")
						}
						next.runRound()
						next.runRound()
						testkit.Same(t, next.status().Phase, remediationv1alpha1.PhaseRemediating, "the phase")
					}
					next.locks("a", nodelease.HolderOf("check"), leaseDuration)
					isHeld(t, next, of.field)
				})
			}
		})
	}
	for name, before := range map[string]func(*remediationv1alpha1.NodeHealthCheckSpec){
		"of the selector": func(s *remediationv1alpha1.NodeHealthCheckSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "node"}}
		},
		"of the template": func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.RemediationTemplate.Name = "slow" },
	} {
		t.Run(name+" while medik8s' controller followed alone", func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				object := w.treats("a")
				next := newHealthCheckFixture(enginetest.New(t))
				testkit.Must(t, next.NodeInbox().Update(w.Node("a").Object))
				next.loads([]*unstructured.Unstructured{object}, func(c *remediationv1alpha1.NodeHealthCheck) {
					older := c.DeepCopy()
					before(&older.Spec)
					c.Status.AcceptedSpec = format.EncodeSpec(older.Spec)
				})
				next.locks("a", nodelease.HolderOf("check"), leaseDuration)
				next.WantNoTask("a")
				inForce(t, next)
			})
		})
	}
	withHealthCheck(t, func(w *healthCheckFixture) { // the user accepts the impact
		w.treats("a")
		w.brings(edited(deselect))
		isHeld(t, w, "spec.selector")
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			deselect(c)
			c.Annotations = map[string]string{"autohealer.resourcestack.com/accept-impact": "true"}
		}))
		w.WantTask("a", DeleteRemediation)
		inForce(t, w)
	})
	withHealthCheck(t, func(w *healthCheckFixture) { // medik8s' controller followed the newest version
		w.treats("a")
		w.defers(time.Minute)
		w.brings(edited(deselect))
		w.advance(time.Minute)
		w.WantTask("a", DeleteRemediation)
		inForce(t, w)
	})
}

// The status has the effective limit, of 10 nodes.
func TestTheStatusHasTheEffectiveLimit(t *testing.T) {
	for name, of := range map[string]struct {
		maxUnhealthy, minHealthy string
		want                     int
	}{
		"the default of 49%, rounded up": {"", "", 5},
		"a number":                       {"3", "", 3},
		"a percentage":                   {"31%", "", 4},
		"minHealthy":                     {"", "8", 2},
		"minHealthy as a percentage":     {"", "51%", 4},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				for i := range 10 {
					w.node(fmt.Sprintf("n%d", i), corev1.ConditionFalse)
				}
				testkit.Same(t, *w.status().MaxUnhealthyNodes, of.want, "the nodes that may be unhealthy")
			}, func(c *remediationv1alpha1.NodeHealthCheck) {
				c.Spec.MaxUnhealthy, c.Spec.MinHealthy = nil, nil
				if of.maxUnhealthy != "" {
					c.Spec.MaxUnhealthy = new(intstr.Parse(of.maxUnhealthy))
				}
				if of.minHealthy != "" {
					c.Spec.MinHealthy = new(intstr.Parse(of.minHealthy))
				}
			})
		})
	}
}

// The health check was never followed, so its running treatments are unknown.
func TestObjectsOfAnInvalidHealthCheckStay(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionFalse)
		w.finds(w.made("a", "quick"))
		w.WantTask("a", TakeLease) // and nothing else
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
		"a reference without a namespace": {func(w *healthCheckFixture) {
			w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.RemediationTemplate.Namespace = "" }))
		}, remediationv1alpha1.ReasonTemplateNotFound, "there is no template example.com/v1/RebootTemplate quick; the reference has no namespace: add namespace: ns"},
		"a template without a body": {func(w *healthCheckFixture) {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			u.SetGroupVersionKind(rebootTemplateKind)
			u.SetNamespace("ns")
			u.SetName("quick")
			testkit.Must(w.T, w.remediations.watches.Known[rebootTemplateKind].Update(u))
			w.runRound()
		}, remediationv1alpha1.ReasonTemplateInvalid, "it has no spec"},
		"a template that was deleted": {func(w *healthCheckFixture) {
			for _, u := range w.remediations.templates {
				testkit.Must(w.T, w.remediations.watches.Known[rebootTemplateKind].Delete(u))
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
			w.remediations.watches.Known[rebootKind].SetAvailability(enginetest.ErrBroken)
			w.runRound()
			w.advance(watch.BriefOutage - 1)
		}, "", ""},
		"a long one": {func(w *healthCheckFixture) {
			w.remediations.watches.Known[rebootKind].SetAvailability(enginetest.ErrBroken)
			w.runRound()
			w.advance(watch.BriefOutage)
		}, remediationv1alpha1.ReasonTemplateNotFound, "could not be read: connection refused"},
		"one short break after the other": {func(w *healthCheckFixture) {
			for range 3 {
				w.remediations.watches.Known[rebootKind].SetAvailability(enginetest.ErrBroken)
				w.runRound()
				w.advance(watch.BriefOutage / 2)
				w.remediations.watches.Known[rebootKind].SetAvailability(nil)
				w.runRound()
			}
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.T = t
				events := len(w.Events)
				test.happens(w)
				problem, disabled := w.problem()
				testkit.Check(t, disabled == test.disabled && strings.Contains(problem, test.words), "disabled for %q: %s", disabled, problem)
				if isReported := len(w.Events) > events; isReported != (test.disabled != "") {
					t.Errorf("Events: %+v", w.Events[events:])
				}
				w.node("a", corev1.ConditionTrue)
				if e, _ := w.Next("a"); (e != nil) != (test.disabled == "") {
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
		w.checks.SetRules(w.T.Context(), now)
		w.Core().Advance(now)
		if plan, _ := w.Core().Plan("a"); !strings.Contains(plan.Findings[0].String(), "has not been read yet") {
			t.Errorf("it is followed without what it has under way: %v", plan.Findings)
		}
		w.runRound()
		if e, _ := w.Next("a"); e == nil || e.Kind != TakeLease {
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
				c.Annotations = map[string]string{"autohealer.resourcestack.com/accept-impact": "true"}
			})
		}
		w.brings(other(2))
		w.runRound()
		watched(rebootKind, otherKind, otherTemplateKind) // an object of the kind exists
		testkit.Check(t, len(w.remediations.templates) == 0, "templates are known of a kind that is not watched: %v", w.remediations.templates)
		w.loses(object)
		w.brings(other(3))
		watched(otherKind, otherTemplateKind)
		testkit.Check(t, w.left == 2, "%d watches were stopped", w.left)
		spoken := other(4) // an earlier leader has written the status
		spoken.Status.UnhealthyNodes = []remediationv1alpha1.UnhealthyNode{{Name: "b", Remediations: []remediationv1alpha1.Remediation{
			{Resource: corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "Reboot", Name: "b"}},
			{Resource: corev1.ObjectReference{Name: "b"}},
		}}}
		w.brings(spoken)
		watched(rebootKind, otherKind, otherTemplateKind)
		testkit.Must(w.T, w.inboxes.Checks.Delete(other(4)))
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
		if is := w.reason("a").String(); !strings.Contains(is, "has not been read yet") {
			t.Errorf("the kind is back and was not listed: %s", is)
		}
		w.inboxes.Checks.SetAvailability(&meta.NoKindMatchError{})
		w.runRound()
		if _, is := w.checks.Status("check"); is {
			t.Error("there are health checks without a kind")
		}
	})
}

// An API server that starts denies access for a while. A new leader does not take that for an answer
// at once, because the remediations that it cannot see count against the limits. If the right is
// really missing, the other kinds do not wait for it for ever.
func TestANewLeaderWaitsForUnreadableKinds(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "reboots"}, "", errors.New("for a test"))
	for name, denied := range map[string]func(*healthCheckFixture) (deny, allow func()){
		"remediations": func(w *healthCheckFixture) (deny, allow func()) {
			return func() { w.remediations.watches.Known[rebootKind].SetAvailability(forbidden) }, func() { w.lists(rebootKind) }
		},
		"Leases": func(w *healthCheckFixture) (deny, allow func()) {
			return func() { w.remediations.leases.SetAvailability(forbidden) }, func() { w.remediations.leases.SetAvailability(nil) }
		},
		"health checks": func(w *healthCheckFixture) (deny, allow func()) {
			return func() { w.inboxes.Checks.SetAvailability(forbidden) }, func() { w.inboxes.Checks.SetAvailability(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, isAllowedSoon := range []bool{true, false} {
				enginetest.Run(t, func(c *enginetest.Fixture) {
					w := newHealthCheckFixture(c)
					w.brings(checkNamed("check"))
					w.lists(rebootTemplateKind)
					w.lists(rebootKind)
					deny, allow := denied(w)
					deny()
					w.runRound()
					w.advance(watch.BriefOutage - 1)
					testkit.Check(t, !w.IsLoaded(), "the new leader does not wait")
					if isAllowedSoon {
						allow()
						w.runRound()
					} else {
						w.advance(1)
					}
					testkit.Check(t, w.IsLoaded(), "the new leader waits, allowed: %t", isAllowedSoon)
				})
			}
		})
	}
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
		w.WantNoTask("a")
		w.WantTask("b", CreateRemediation)
		if message := w.status().UnhealthyNodes[1].Message; w.finding("a") != triage.Vetoed || !strings.Contains(message, "objects of kind Other could not be read") {
			t.Errorf("a is %s: %s", w.finding("a"), message)
		}
		w.lists(otherKind)
		w.runRound()
		w.WantTask("a", CreateRemediation)
	})
}

func TestDeferringToMedik8s(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("b", corev1.ConditionTrue)
		e := w.WantTask("b", CreateRemediation)
		r := w.starts(e, "b")
		w.defers(20 * time.Second)
		late := w.made("b", "quick")
		w.makes(late)(r)
		w.Finish(r.TaskResult) // it was in flight
		w.runRound()
		w.WantNoTask("a")
		w.WantNoTask("b")
		w.node("a", corev1.ConditionFalse)
		w.loses(object) // the other controller ends it
		status := w.status()
		if standing := meta.FindStatusCondition(status.Conditions, remediationv1alpha1.StandingBack); standing == nil || !strings.Contains(standing.Message, "them holds Lease theirs/") {
			t.Errorf("the condition: %+v", standing)
		}
		if ready := meta.FindStatusCondition(status.Conditions, remediationv1alpha1.Ready); ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != "AnotherController" {
			t.Errorf("Ready: %+v", ready)
		}
		w.advance(20 * time.Second)
		testkit.Check(t, !w.checks.IsDeferring(), "the Lease has ended, and the health checks are left to its holder")
		if w.finding("b") != triage.Treating || len(w.remediations.nodes["b"].objects) != 1 {
			t.Errorf("what was under way is not gone on with: %s", w.finding("b"))
		}
		if n := w.remediations.nodes["a"]; n != nil && n.losses > 0 {
			t.Error("what another has ended counts as a loss")
		}
		w.WantNoTask("b")
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
			if a, b, c := w.CountEvents(treat.StormRecoveryStarted), w.CountEvents(treat.StormRecoveryCooldownStarted), w.CountEvents(treat.StormRecoveryEnded); a != started || b != cooling || c != ended {
				t.Errorf("reported %d, %d, %d times; want %d, %d, %d", a, b, c, started, cooling, ended)
			}
		}
		for i := range 10 {
			w.node(fmt.Sprintf("n%d", i), corev1.ConditionFalse)
		}
		for i := range 3 {
			w.node(fmt.Sprintf("n%d", i), corev1.ConditionTrue)
		}
		enginetest.Pass(statusCheckEvery)
		tells(1, 0, 0)
		written := w.check.DeepCopy()
		written.Status = w.status()
		w.brings(written)
		w.defers(statusCheckEvery)
		tells(1, 0, 0) // its end has not been observed
		enginetest.Pass(statusCheckEvery)
		tells(1, 0, 0)
		w.node("n0", corev1.ConditionFalse)
		enginetest.Pass(statusCheckEvery)
		tells(1, 1, 0)
		w.node("n0", corev1.ConditionTrue)
		enginetest.Pass(statusCheckEvery)
		tells(2, 1, 0) // the storm returns
		w.node("n0", corev1.ConditionFalse)
		enginetest.Pass(statusCheckEvery)
		tells(2, 2, 0)
		status := w.status()
		if !meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.StormActive) || !meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.StormCooldownActive) {
			t.Errorf("the conditions: %+v", status.Conditions)
		}
		w.advance(time.Minute)
		enginetest.Pass(statusCheckEvery)
		tells(2, 2, 1)
	}, storming)
}

func TestANewLeaderDoesNotReportAStormAgain(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		enginetest.Pass(statusCheckEvery)
		w.runRound()
		if counts, _ := w.Core().Population(checkRule("check")); !counts.Storm || w.CountEvents(treat.StormRecoveryStarted)+w.CountEvents(treat.StormRecoveryCooldownStarted) > 0 {
			t.Errorf("a storm: %t; Events: %+v", counts.Storm, w.Events)
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
		testkit.Must(t, w.remediations.watches.Known[rebootTemplateKind].Update(u))
		w.runRound()
		w.node("a", corev1.ConditionTrue)
		w.WantNoTask("a")
		problem, disabled := w.problem()
		if disabled != remediationv1alpha1.ReasonTemplateInvalid || !strings.Contains(problem, "ns/slow with "+remediation.MultipleTemplatesAnnotation) {
			t.Errorf("disabled for %q: %s", disabled, problem)
		}
		w.template(rebootTemplateKind, "slow")
		w.runRound()
		w.WantTask("a", CreateRemediation)
	}, inSteps)
}

func TestADeletedHealthCheckStartsNothing(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.treats("b")
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) {
			c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{"example.com/wait"}
		}))
		w.node("a", corev1.ConditionTrue)
		w.WantNoTask("a")
		if w.finding("a") != triage.OnHold {
			t.Errorf("the finding is %s", w.finding("a"))
		}
		w.node("b", corev1.ConditionFalse)
		w.WantTask("b", DeleteRemediation)
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
		if e := w.WantTask("a", DeleteRemediation); remediationWork(e).Object.GroupVersionKind != rebootKind {
			t.Errorf("%s is to be deleted", remediationWork(e).Object.GroupVersionKind)
		}
	})
}

// A finalizer may keep a deleted object.
func TestTheStatusShowsSinceWhenANodeIsHealthy(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.treats("a")
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
		object.SetResourceVersion(w.nextVersion())
		deleting(object)
		w.finds(object)
		rows := w.status().UnhealthyNodes
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
		if w.finding("a") != triage.OnHold || len(w.Events) > 0 {
			t.Errorf("the finding is %s, and told is %+v", w.finding("a"), w.Events)
		}
		w.lists(otherKind)
		w.lists(otherTemplateKind)
		w.template(otherTemplateKind, "new")
		w.runRound()
		w.WantTask("a", CreateRemediation)
		testkit.Check(t, w.CountEvents(treat.DetectedUnhealthy) == 1 && w.CountEvents(treat.RemediationSkipped) == 0, "Events: %+v", w.Events)
	})
}

func TestWaitsAreReportedOncePerPeriod(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		tells := func(detected, skipped int) {
			t.Helper()
			enginetest.Pass(statusCheckEvery)
			w.runRound()
			if a, b := w.CountEvents(treat.DetectedUnhealthy), w.CountEvents(treat.RemediationSkipped); a != detected || b != skipped {
				t.Errorf("reported %d and %d times, want %d and %d: %+v", a, b, detected, skipped, w.Events)
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
		if w.CountEvents(treat.InvalidNodeLabel) != 1 {
			t.Errorf("a label that means nothing is reported %d times", w.CountEvents(treat.InvalidNodeLabel))
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
			w.runs(w.WantTask(name(i), CreateRemediation), name(i), treat.Made, w.makes(w.made(name(i), "quick")))
		}
		testkit.Must(w.T, w.NodeInbox().Delete(enginetest.Named(name(249), w.nextVersion())))
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
		if !strings.Contains(status.Reason, "9 nodes in treatment") || status.Phase != remediationv1alpha1.PhaseRemediating {
			t.Errorf("%s: %s", status.Phase, status.Reason)
		}
		w.runs(w.WantTask(name(0), CreateRemediation), name(0), treat.Unknown)
		if message := w.status().UnhealthyNodes[10].Message; !strings.Contains(message, "not written yet: for a test") {
			t.Errorf("the row of a node in trouble says %q", message)
		}
	})
}

func TestADeletedHealthCheckLeavesNoSeries(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		const nodes, start = "autohealer_policy_nodes", "autohealer_policy_start_duration_seconds"
		now := func() int {
			return testutil.CollectAndCount(w.PolicyMetrics(), nodes, "autohealer_policy_ready")
		}
		counts := func() int {
			return testutil.CollectAndCount(w.metrics, "autohealer_remediations_total", "autohealer_remediation_recovery_duration_seconds") + testutil.CollectAndCount(w.PolicyMetrics(), start)
		}
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Spec.PauseRequests = []string{"upgrade"} }))
		w.node("a", corev1.ConditionTrue)
		enginetest.Pass(statusCheckEvery)
		w.runRound()
		if n := enginetest.Value(t, w.PolicyMetrics(), nodes, "OnHold"); n != 1 {
			t.Errorf("%v nodes wait", n)
		}
		w.brings(edited(func(c *remediationv1alpha1.NodeHealthCheck) { c.Generation = 3 }))
		object := w.made("a", "quick")
		w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object))
		enginetest.Pass(statusCheckEvery)
		w.runRound()
		if n := enginetest.Value(t, w.PolicyMetrics(), nodes, "OnHold"); n != 0 {
			t.Errorf("%v nodes still wait", n)
		}
		w.node("a", corev1.ConditionFalse)
		w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
		if now() == 0 || counts() != 4 {
			t.Errorf("%d series of now, %d counts", now(), counts())
		}
		testkit.Must(w.T, w.inboxes.Checks.Delete(checkNamed("check")))
		w.runRound()
		w.loses(object)
		enginetest.Pass(engine.CounterRetention)
		w.runRound()
		w.runRound()
		if now() != 0 || counts() != 0 {
			t.Errorf("%d series of now and %d counts are left", now(), counts())
		}
	})
}

// If guardrails are in force, they decide whether the label of medik8s keeps a node from remediation.
func TestGuardrailsDecideAboutTheExcludeLabel(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue, func(n *corev1.Node) { n.Labels = map[string]string{remediation.ExcludeLabel: remediation.ExcludeValue} })
		w.WantNoTask("a")
		testkit.Same(t, w.finding("a"), triage.Vetoed, "the node without guardrails")
		w.SetRespect(time.Now(), &dialect.Respect{})
		w.runRound()
		w.WantTask("a", CreateRemediation)
	})
}
