package nodehealthcheck

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The tests of internal/treatment/remediation cover health checks together with their
// remediations.

// noRemediations has all templates and no objects.
type noRemediations struct{}

func (noRemediations) ObjectsOf(triage.RuleID) map[string][]remediation.Object { return nil }
func (noRemediations) TemplateProblem([]remediation.Template) (string, string) { return "", "" }
func (noRemediations) ControlPlaneProblem() string                             { return "" }
func (noRemediations) ForeignLease(time.Time, string) string                   { return "" }
func (noRemediations) ReferencesChanged()                                      {}
func (noRemediations) ReobserveRule(time.Time, triage.RuleID)                  {}

// newFixture adds the policy with health check "check" to a fixture.
func newFixture(f *enginetest.Fixture) (p *Policy, inboxes Inboxes, object *remediationv1alpha1.NodeHealthCheck) {
	f.T.Helper()
	inboxes = Inboxes{Checks: enginetest.Empty(f.T, &remediationv1alpha1.NodeHealthCheck{}), Leases: enginetest.Empty(f.T, &coordinationv1.Lease{})}
	p = New(f, inboxes, noRemediations{}, NewMetrics())
	f.AddPolicies(p)
	object = &remediationv1alpha1.NodeHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Name: "check", UID: "uid", Generation: 1, ResourceVersion: "1"},
		Spec: remediationv1alpha1.NodeHealthCheckSpec{
			UnhealthyConditions: []remediationv1alpha1.UnhealthyCondition{{Type: "Unhealthy", Status: corev1.ConditionTrue, Duration: "0s"}},
			MaxUnhealthy:        new(intstr.FromString("100%")),
			RemediationTemplate: &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "ns", Name: "quick"},
		},
	}
	testkit.Must(f.T, inboxes.Checks.Update(object))
	f.Round(f.T.Context())
	return p, inboxes, object
}

// The status says at once that another controller follows the health checks, or does not
// any more, although the last write was a moment ago.
func TestAChangeOfControllersIsReportedAtOnce(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		p, inboxes, _ := newFixture(f)
		for _, isDeferring := range []bool{true, false} {
			p.known["check"].status.NotBefore = time.Now().Add(deferredStatusEvery) // as after a write
			p.known["check"].status.Stale = false
			if isDeferring {
				testkit.Must(t, inboxes.Leases.Update(held("theirs", "them", time.Now(), 20)))
			} else {
				enginetest.Pass(20 * time.Second)
			}
			f.Round(f.T.Context())
			if is := p.known["check"].status; p.IsDeferring() != isDeferring || time.Now().Before(is.NotBefore) || !is.Stale {
				t.Errorf("deferring %t; the status is stale: %t, and may be written from %v", p.IsDeferring(), is.Stale, is.NotBefore)
			}
		}
	})
}

// medik8s' own CRD drops unknown fields. A status that comes back without them is not
// written again.
func TestATruncatedStatusIsNotRewritten(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		f.UseStatusWriter(status.NewWriter(engine.WriteTimeout, f.Metrics.CountWrite, f.Logger()))
		p, inboxes, object := newFixture(f)
		(<-f.Statuses().Results())()
		arrives := func(version string) {
			cut := object.DeepCopy()
			cut.Status, _ = p.Status("check")
			cut.ResourceVersion = version
			cut.Status.InTreatment, cut.Status.ObservedGeneration = nil, 0
			testkit.Must(t, inboxes.Checks.Update(cut))
			f.Round(f.T.Context())
		}
		if arrives("2"); p.known["check"].status.Stored.InTreatment == nil {
			t.Error("what was cut off is missed")
		}
		if arrives("3"); p.known["check"].status.Stored.InTreatment != nil { // another component has written
			t.Error("the status of another component is not stored")
		}
	}, func(cfg *engine.Config) {
		cfg.Client = interceptor.NewClient(nil, interceptor.Funcs{
			SubResourcePatch: func(_ context.Context, _ client.Client, _ string, object client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
				object.SetResourceVersion("2")
				return nil
			},
		})
	})
}

func TestAStormIsReadFromTheStatus(t *testing.T) {
	since := metav1.Unix(1, 0)
	isOn, calmSince := stormOf(remediationv1alpha1.NodeHealthCheckStatus{Conditions: []metav1.Condition{
		{Type: remediationv1alpha1.StormActive, Status: metav1.ConditionTrue},
		{Type: remediationv1alpha1.StormCooldownActive, Status: metav1.ConditionTrue, LastTransitionTime: since},
	}})
	testkit.Check(t, isOn && calmSince.Equal(since.Time), "it is on: %t, calm since %v", isOn, calmSince)
}

// An annotation sets the mode of a health check, because its schema belongs to medik8s. An unknown
// value starts nothing, and is reported.
func TestAnAnnotationSetsTheMode(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		p, inboxes, object := newFixture(f)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n", ResourceVersion: "1"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Unhealthy", Status: corev1.ConditionTrue}}},
		}
		testkit.Must(t, f.NodeInbox().Update(node))
		f.Round(f.T.Context())
		for _, test := range []struct {
			mode, shown   string
			code          triage.Code
			reason, ready string
		}{
			{"Observe", "Observe", triage.DryRun, "mode Observe: nodes are evaluated, but no remediation starts; dry run: 1 node", "True"},
			{"Watch", "Enforce", triage.OnHold, `Invalid: metadata.annotations[autohealer.resourcestack.com/mode]: "Watch": want Enforce or Observe`, "False"},
			{"Enforce", "Enforce", triage.Treating, "1 node", "True"},
		} {
			object = object.DeepCopy()
			object.ResourceVersion += "1"
			object.Annotations = map[string]string{v1alpha1.ModeAnnotation: test.mode}
			testkit.Must(t, inboxes.Checks.Update(object))
			f.Round(f.T.Context())
			plan, _ := f.Core().Plan("n")
			counts, _ := f.Core().Population(checkRule("check"))
			status := p.statusOf(p.known["check"], counts)
			ready := meta.FindStatusCondition(status.Conditions, remediationv1alpha1.Ready)
			if plan.Reason.Code != test.code || !strings.HasPrefix(status.Reason, test.reason) || string(ready.Status) != test.ready {
				t.Errorf("%s: the plan says %s, the status %q and %+v", test.mode, plan.Reason, status.Reason, ready)
			}
			testkit.Same(t, status.Mode, test.shown, "the mode in the status")
		}
		if at := slices.IndexFunc(f.Events, func(e treat.Event) bool { return e.EventReason == treat.NotAccepted }); at < 0 || f.Events[len(f.Events)-1].EventReason != treat.Accepted {
			t.Errorf("the Events are %+v", f.Events)
		}
	})
}
