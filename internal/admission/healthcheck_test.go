package admission

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Survey finds ten nodes, of which three match, and shares them with every selector.
func (p *fakeNodes) Survey(rule triage.Rule, others ...triage.Selector) (triage.Survey, error) {
	found := triage.Survey{Selected: 10, Matching: 3, First: []string{"n0", "n1", "n2"}}
	for range others {
		found.Shared = append(found.Shared, triage.Shared{Nodes: 10, First: "n0"})
	}
	return found, rule.Validate()
}

// checkFixture creates a HealthChecks handler with the data of a test.
type checkFixture struct {
	people    fakeNodes
	checks    []*v1alpha1.NodeHealthCheck
	checksErr error
	templates map[string]error
	found     metav1.Object // for every remediation
	foundErr  error
}

func newCheckFixture() *checkFixture {
	a := &checkFixture{found: &metav1.ObjectMeta{UID: "u"}}
	a.people.ready.Store(true)
	return a
}

func (a *checkFixture) kind(tb testing.TB) *HealthChecks {
	tb.Helper()
	return testkit.Value(NewHealthChecks(HealthCheckConfig{
		Nodes:  &a.people,
		Checks: func(context.Context) ([]*v1alpha1.NodeHealthCheck, error) { return a.checks, a.checksErr },
		Template: func(_ context.Context, template remediation.Template) (*unstructured.Unstructured, error) {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
			object.SetGroupVersionKind(template.GroupVersionKind)
			object.SetName(template.Name)
			return object, a.templates[template.Name]
		},
		Remediation: func(context.Context, corev1.ObjectReference) (metav1.Object, error) { return a.found, a.foundErr },
		Metrics:     NewMetrics(), Logger: discard,
	})).Must(tb)
}

// check returns a valid health check with the changes applied.
func check(changes ...func(*v1alpha1.NodeHealthCheck)) *v1alpha1.NodeHealthCheck {
	c := &v1alpha1.NodeHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: "check"},
		Spec: v1alpha1.NodeHealthCheckSpec{
			RemediationTemplate: &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootRemediationTemplate", Name: "quick"},
		},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func pausing(c *v1alpha1.NodeHealthCheck) { c.Spec.PauseRequests = []string{"upgrade"} }
func bounded(c *v1alpha1.NodeHealthCheck) { c.Spec.HealthyDelay = "5m" }
func relabel(c *v1alpha1.NodeHealthCheck) { c.Labels = map[string]string{"a": "b"} }
func going(c *v1alpha1.NodeHealthCheck)   { c.DeletionTimestamp = new(metav1.Now()) }
func accepts(c *v1alpha1.NodeHealthCheck) {
	c.Annotations = map[string]string{autohealer.AcceptImpactAnnotation: "true"}
}
func elsewhere(c *v1alpha1.NodeHealthCheck) {
	c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}}
}
func otherTemplate(c *v1alpha1.NodeHealthCheck) { c.Spec.RemediationTemplate.Name = "other" }
func well(c *v1alpha1.NodeHealthCheck) {
	c.Spec.UnhealthyConditions = []v1alpha1.UnhealthyCondition{{Type: "Ready", Status: "True", Duration: "5m"}}
}
func remediating(c *v1alpha1.NodeHealthCheck) {
	c.Status.UnhealthyNodes = []v1alpha1.UnhealthyNode{{Name: "n0", Remediations: []v1alpha1.Remediation{
		{Resource: corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootRemediation", Name: "n0", UID: "u"}},
	}}}
}

func TestHealthCheckAnswers(t *testing.T) {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "r"}, "n0")
	answers(t, newCheckFixture, (*checkFixture).kind, map[string]request[*checkFixture]{
		"lets a new one in":   {operation: create, new: check(), warns: "3 of 10 selected nodes (30%) match now (n0, n1 and n2): the health check will remediate them"},
		"refuses a new one":   {operation: create, new: check(well), refuses: "Ready=True"},
		"refuses a change":    {operation: update, old: check(), new: check(well), refuses: "Ready=True"},
		"takes a change":      {operation: update, old: check(), new: check(elsewhere), warns: "3 of 10"},
		"warns of a template": {operation: create, new: check(), setup: func(a *checkFixture) { a.templates = map[string]error{"quick": notFound} }, warns: "there is no RebootRemediationTemplate quick"},
		"warns of others": {operation: create, new: check(), setup: func(a *checkFixture) {
			a.checks = []*v1alpha1.NodeHealthCheck{check(), {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: check(otherTemplate).Spec}}
		}, warns: "other templates: b (10, the first is n0);"},
		"does without others":                              {operation: create, new: check(), setup: func(a *checkFixture) { a.checksErr = errors.New("gone") }, warns: "could not be read (gone)"},
		"takes small changes in the middle":                {operation: update, old: check(remediating), new: check(remediating, bounded), warns: "3 of 10"},
		"takes a pause in the middle":                      {operation: update, old: check(remediating), new: check(remediating, pausing), warns: "paused"},
		"refuses others in the middle":                     {operation: update, old: check(remediating), new: check(remediating, elsewhere), refuses: "spec.selector: a remediation of node n0", warns: "3 of 10"},
		"refuses templates in the middle":                  {operation: update, old: check(remediating), new: check(remediating, otherTemplate), refuses: "spec.remediationTemplate: a remediation of node n0", warns: "3 of 10"},
		"goes by the status that is stored":                {operation: update, old: check(remediating), new: check(elsewhere), refuses: "a remediation of node n0", warns: "3 of 10"},
		"ignores a status that a user sends":               {operation: update, old: check(), new: check(remediating, elsewhere), warns: "3 of 10"},
		"takes them with a yes":                            {operation: update, old: check(remediating), new: check(remediating, elsewhere, accepts), warns: "cut off by this change"},
		"takes them when it is gone":                       {operation: update, old: check(remediating), new: check(remediating, elsewhere), setup: func(a *checkFixture) { a.foundErr = notFound }, warns: "3 of 10"},
		"lets metadata pass":                               {operation: update, old: check(well), new: check(well, relabel)},
		"lets a bad one be paused":                         {operation: update, old: check(well), new: check(well, pausing), warns: "Ready=True"},
		"lets no bad one go on":                            {operation: update, old: check(well, pausing), new: check(well), refuses: "Ready=True"},
		"only warns about the stored problem in a dry run": {operation: update, old: check(well), new: check(well), change: asDryRun, warns: "Ready=True"},
		"refuses a new problem in a dry run":               {operation: update, old: check(), new: check(well), change: asDryRun, refuses: "Ready=True"},
		"lets a status pass":                               {operation: update, old: check(), new: check(well), change: func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }},

		"lets an idle one go":                                   {operation: remove, old: check(well)},
		"refuses the deletion during a remediation":             {operation: remove, old: check(remediating), refuses: "a remediation of node n0 is under way"},
		"lets it go with a yes":                                 {operation: remove, old: check(remediating, accepts), warns: "cut off by the deletion"},
		"lets it go when that is decided":                       {operation: remove, old: check(remediating, going)},
		"lets it go when nothing is there":                      {operation: remove, old: check(remediating), setup: func(a *checkFixture) { a.foundErr = notFound }},
		"lets it go when its kind is gone":                      {operation: remove, old: check(remediating), setup: func(a *checkFixture) { a.foundErr = &meta.NoKindMatchError{} }},
		"lets it go when all is on its way":                     {operation: remove, old: check(remediating), setup: func(a *checkFixture) { a.found = &metav1.ObjectMeta{UID: "u", DeletionTimestamp: new(metav1.Now())} }},
		"lets it go when another is there":                      {operation: remove, old: check(remediating), setup: func(a *checkFixture) { a.found = &metav1.ObjectMeta{UID: "v"} }},
		"refuses the deletion when remediations cannot be read": {operation: remove, old: check(remediating), setup: func(a *checkFixture) { a.foundErr = errors.New("no answer") }, refuses: "under way"},
		"allows the deletion of an unreadable check":            {operation: remove},
	})
}

func TestHealthChecksAreRejectedBeforeTheNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCheckFixture()
		a.people.ready.Store(false)
		k := a.kind(t)
		testkit.Check(t, k.Ready() != nil, "it calls itself ready")
		lasts(t, waitTimeout, func() {
			answer := ask(t, k, admissionv1.Create, nil, check())
			if answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable || answer.Result.Details.RetryAfterSeconds != retryAfter {
				t.Errorf("an update that changes the spec: %+v", answer.Result)
			}
		})
		lasts(t, 0, func() {
			allowed(t, map[string]admission.Response{
				"that is paused":      ask(t, k, admissionv1.Update, check(), check(pausing)),
				"whose labels change": ask(t, k, admissionv1.Update, check(), check(relabel)),
				"that goes":           ask(t, k, admissionv1.Delete, check(), nil),
			})
		})
		if answer := ask(t, k, admissionv1.Create, nil, check(well)); answer.Allowed || answer.Result.Code != http.StatusForbidden {
			t.Errorf("what is wrong anyway: %+v", answer.Result)
		}
		a.people.later()
		if answer := ask(t, k, admissionv1.Create, nil, check()); !answer.Allowed || len(answer.Warnings) == 0 {
			t.Errorf("known in time: %+v", answer)
		}
		if err := k.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// Reads must end before the timeout of the API server.
func TestReadsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newCheckFixture().kind(t)
		k.cfg.Template = func(ctx context.Context, _ remediation.Template) (*unstructured.Unstructured, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		k.cfg.Remediation = func(ctx context.Context, _ corev1.ObjectReference) (metav1.Object, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		lasts(t, 2*readTimeout, func() {
			if answer := ask(t, k, admissionv1.Create, nil, check()); !answer.Allowed || !strings.Contains(strings.Join(answer.Warnings, ""), "deadline") {
				t.Errorf("the answer for an unreadable template is %+v", answer)
			}
			if answer := ask(t, k, admissionv1.Delete, check(remediating), nil); answer.Allowed {
				t.Error("an unreadable remediation counts as gone")
			}
		})
	})
}

func TestHealthCheckAnswersAreCounted(t *testing.T) {
	k := newCheckFixture().kind(t)
	ask(t, k, admissionv1.Create, nil, check())     // warned
	ask(t, k, admissionv1.Create, nil, check(well)) // refused
	ask(t, k, admissionv1.Delete, check(), nil)     // allowed
	if got := testutil.CollectAndCount(k.cfg.Metrics); got != 3 {
		t.Errorf("%d kinds of answers were counted", got)
	}
	_, err := NewHealthChecks(HealthCheckConfig{})
	for _, field := range []string{"Nodes", "Checks", "Template", "Remediation", "Metrics", "Logger"} {
		testkit.Fails(t, err, field+" is missing")
	}
}

func FuzzHealthCheckAnswers(f *testing.F) {
	for _, c := range []*v1alpha1.NodeHealthCheck{check(), check(well), check(remediating), check(elsewhere, pausing)} {
		data := raw(f, c).Raw
		f.Add(data, data)
		f.Add(data, raw(f, check()).Raw)
	}
	f.Add([]byte(`{"spec": 3}`), []byte(`{"spec": {"unhealthyConditions": {}}, "status": {"unhealthyNodes": 1}}`))
	f.Add([]byte(`{"metadata": 1}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, old, object []byte) {
		k := newCheckFixture().kind(t)
		if fuzz(t, k, old, object, false) {
			read := &v1alpha1.NodeHealthCheck{}
			if err := json.Unmarshal(object, read); err != nil || read.Spec.Unreadable != "" || read.Spec.RemediationTemplate == nil && len(read.Spec.EscalatingRemediations) == 0 {
				t.Errorf("an unreadable object is allowed: %s", object)
			}
		}
	})
}
