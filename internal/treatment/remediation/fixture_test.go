package remediation

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/policy/nodehealthcheck"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// The kinds of a remediator and of another product.
var (
	rebootKind         = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Reboot"}
	rebootTemplateKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "RebootTemplate"}
	otherKind          = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Other"}
	otherTemplateKind  = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "OtherTemplate"}
)

// healthCheckFixture is an engine with health checks. A test delivers watch events and
// finishes tasks.
type healthCheckFixture struct {
	*enginetest.Fixture
	inboxes      nodehealthcheck.Inboxes
	metrics      *nodehealthcheck.Metrics
	checks       *nodehealthcheck.Policy
	remediations *Treatment
	check        *remediationv1alpha1.NodeHealthCheck // as delivered last
	version      int                                  // of the last write
	left         int                                  // number of stopped watches
}

// withHealthCheck runs a test with health check "check": a node with Sick=True is rebooted at
// once.
func withHealthCheck(t *testing.T, test func(*healthCheckFixture), changes ...func(*remediationv1alpha1.NodeHealthCheck)) {
	t.Helper()
	enginetest.Run(t, func(c *enginetest.Fixture) { test(loaded(c, changes...)) })
}

// loaded adds health check "check" with its templates to a fixture.
func loaded(c *enginetest.Fixture, changes ...func(*remediationv1alpha1.NodeHealthCheck)) *healthCheckFixture {
	c.T.Helper()
	w := newHealthCheckFixture(c)
	w.loads(nil, changes...)
	return w
}

// newHealthCheckFixture adds health checks to a fixture.
func newHealthCheckFixture(c *enginetest.Fixture) *healthCheckFixture {
	c.T.Helper()
	w := &healthCheckFixture{Fixture: c, version: 100, metrics: nodehealthcheck.NewMetrics()}
	w.inboxes = nodehealthcheck.Inboxes{Checks: enginetest.Empty(c.T, &remediationv1alpha1.NodeHealthCheck{}), Leases: enginetest.Empty(c.T, &coordinationv1.Lease{})}
	w.remediations = New(c, enginetest.Empty(c.T, &coordinationv1.Lease{}), &watch.Kinds{Start: func(func(context.Context)) context.CancelFunc {
		return func() { w.left++ }
	}})
	w.checks = nodehealthcheck.New(c, w.inboxes, w.remediations, w.metrics)
	w.remediations.Serve(w.checks)
	c.AddPolicies(w.checks)
	c.AddTreatments(w.remediations)
	return w
}

// loads delivers health check "check", its templates and its objects, and with them
// everything that the engine waits for.
func (w *healthCheckFixture) loads(objects []*unstructured.Unstructured, changes ...func(*remediationv1alpha1.NodeHealthCheck)) {
	w.T.Helper()
	w.brings(checkNamed("check", changes...))
	w.lists(rebootTemplateKind)
	w.template(rebootTemplateKind, "quick")
	w.template(rebootTemplateKind, "slow")
	w.lists(rebootKind, objects...)
	w.runRound()
}

// checkNamed returns a health check that selects all nodes.
func checkNamed(name string, changes ...func(*remediationv1alpha1.NodeHealthCheck)) *remediationv1alpha1.NodeHealthCheck {
	c := &remediationv1alpha1.NodeHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1, ResourceVersion: "1"},
		Spec: remediationv1alpha1.NodeHealthCheckSpec{
			UnhealthyConditions: []remediationv1alpha1.UnhealthyCondition{{Type: "Sick", Status: corev1.ConditionTrue, Duration: "0s"}},
			MaxUnhealthy:        new(intstr.FromString("100%")),
			RemediationTemplate: new(referTo(rebootTemplateKind, "quick")),
		},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

// ownerOf returns the owner of the health check's remediation objects.
func ownerOf(check *remediationv1alpha1.NodeHealthCheck) remediation.Owner {
	return remediation.Owner{Kind: remediation.CheckKind, Name: check.Name, UID: check.UID}
}

func referTo(gvk schema.GroupVersionKind, name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: "ns", Name: name}
}

// inSteps makes the health check use two templates in turn, each for a minute.
func inSteps(c *remediationv1alpha1.NodeHealthCheck) {
	c.Spec.RemediationTemplate = nil
	for i, name := range []string{"quick", "slow"} {
		c.Spec.EscalatingRemediations = append(c.Spec.EscalatingRemediations, remediationv1alpha1.EscalatingRemediation{
			RemediationTemplate: referTo(rebootTemplateKind, name), Order: int64(i), Timeout: "1m",
		})
	}
}

func (w *healthCheckFixture) nextVersion() string {
	w.version++
	return strconv.Itoa(w.version)
}

// brings delivers a new or changed health check.
func (w *healthCheckFixture) brings(c *remediationv1alpha1.NodeHealthCheck) {
	w.T.Helper()
	c = c.DeepCopy()
	c.ResourceVersion = w.nextVersion()
	if c.Name == "check" {
		w.check = c
	}
	testkit.Must(w.T, w.inboxes.Checks.Update(c))
	w.runRound()
}

// lists delivers all objects of a watched kind.
func (w *healthCheckFixture) lists(gvk schema.GroupVersionKind, all ...*unstructured.Unstructured) {
	w.T.Helper()
	kind := w.remediations.watches.Known[gvk]
	if kind == nil {
		w.T.Fatalf("kind %s is not watched", gvk.Kind)
	}
	kind.SetAvailability(nil)
	list := make([]any, 0, len(all))
	for _, u := range all {
		list = append(list, u.DeepCopy())
	}
	testkit.Must(w.T, kind.Replace(list, w.nextVersion()))
}

// template delivers a template.
func (w *healthCheckFixture) template(gvk schema.GroupVersionKind, name string) {
	w.T.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace("ns")
	u.SetName(name)
	if w.check != nil && len(w.check.Spec.EscalatingRemediations) > 1 { // their objects have names of their own
		u.SetAnnotations(map[string]string{remediation.MultipleTemplatesAnnotation: ""})
	}
	testkit.Must(w.T, w.remediations.watches.Known[gvk].Update(u))
}

// node delivers a node.
func (w *healthCheckFixture) node(name string, sick corev1.ConditionStatus, changes ...func(*corev1.Node)) *corev1.Node {
	w.T.Helper()
	node := enginetest.Named(name, w.nextVersion())
	node.UID, node.CreationTimestamp = types.UID("uid-"+name), metav1.Unix(1, 0)
	node.Status.Conditions = []corev1.NodeCondition{{Type: "Sick", Status: sick, LastTransitionTime: metav1.Now()}}
	for _, change := range changes {
		change(node)
	}
	testkit.Must(w.T, w.NodeInbox().Update(node))
	w.runRound()
	return node
}

func inControl(n *corev1.Node) {
	n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
}

func confirmed(n *corev1.Node) {
	n.Annotations = map[string]string{remediation.ConfirmedAnnotation: ""}
}

func madeAnew(n *corev1.Node) { n.UID += "-again" }

// made returns an object made from a template for a node.
func (w *healthCheckFixture) made(node, template string, changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	w.T.Helper()
	return w.madeFor(w.Node(node).Object, template, changes...)
}

func (w *healthCheckFixture) madeFor(node *corev1.Node, template string, changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	w.T.Helper()
	from := w.remediations.templates[remediation.Template{GroupVersionKind: rebootTemplateKind, Namespace: "ns", Name: template}]
	u, err := remediation.Make(from, node, ownerOf(w.check))
	testkit.Must(w.T, err)
	u.SetUID(types.UID("uid-of-" + template + "-for-" + node.Name))
	u.SetResourceVersion(w.nextVersion())
	u.SetCreationTimestamp(metav1.Now())
	for _, change := range changes {
		change(u)
	}
	return u
}

// finds delivers an object.
func (w *healthCheckFixture) finds(u *unstructured.Unstructured) {
	w.T.Helper()
	testkit.Must(w.T, w.remediations.watches.Known[u.GroupVersionKind()].Update(u.DeepCopy()))
	w.runRound()
}

// loses delivers the deletion of an object.
func (w *healthCheckFixture) loses(u *unstructured.Unstructured) {
	w.T.Helper()
	testkit.Must(w.T, w.remediations.watches.Known[u.GroupVersionKind()].Delete(u.DeepCopy()))
	w.runRound()
}

func says(condition string, status metav1.ConditionStatus) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": condition, "status": string(status)}}}
	}
}

func deleting(u *unstructured.Unstructured) {
	u.SetDeletionTimestamp(new(metav1.Now()))
	kept(u)
}

// kept adds the finalizer of a remediator.
func kept(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/works-on-it"}) }

// told adds the annotation that tells the remediator to stop.
func told(u *unstructured.Unstructured) {
	annotations := u.GetAnnotations()
	annotations[remediation.TimedOutAnnotation] = remediation.Stamp(time.Now())
	u.SetAnnotations(annotations)
}

// locks delivers a Lease of a node.
func (w *healthCheckFixture) locks(node, holder string, lasts time.Duration) *coordinationv1.Lease {
	w.T.Helper()
	lease := nodelease.Take(nil, w.Node(node).Object, holder, lasts, time.Now())
	lease.UID, lease.ResourceVersion = types.UID("lease-of-"+node), w.nextVersion()
	testkit.Must(w.T, w.remediations.leases.Update(lease))
	w.runRound()
	return lease
}

// runRound runs a round, and leaves the tasks to the test.
func (w *healthCheckFixture) runRound() { w.Round(w.T.Context()) }

// advance lets time pass and runs a round.
func (w *healthCheckFixture) advance(d time.Duration) {
	enginetest.Pass(d)
	w.runRound()
}

// remediationResult is the result of a task for remediation objects.
type remediationResult struct {
	*engine.TaskResult
	*Work
}

// remediationWork returns what a task does with remediation objects.
func remediationWork(t *engine.Task) *Work { return t.Work.(*Work) }

// starts starts a task and leaves its result to the test.
func (w *healthCheckFixture) starts(e *engine.Task, node string) remediationResult {
	return remediationResult{w.Start(time.Now(), node, e), remediationWork(e)}
}

// runs finishes a task with a result, which the changes may adapt, and runs a round.
func (w *healthCheckFixture) runs(e *engine.Task, node string, result treat.Outcome, changes ...func(remediationResult)) {
	w.T.Helper()
	r := w.starts(e, node)
	if r.Outcome = result; result != treat.Made {
		r.Err = fmt.Errorf("for a test: %w", enginetest.ErrBroken)
	}
	for _, change := range changes {
		change(r)
	}
	w.Finish(r.TaskResult)
	w.runRound()
}

// makes sets the created object and the taken Lease in a result.
func (w *healthCheckFixture) makes(u *unstructured.Unstructured) func(remediationResult) {
	return func(r remediationResult) {
		r.Current = u.DeepCopy()
		r.NewLease, r.LeaseKnown = r.Lease.DeepCopy(), true
		r.NewLease.ResourceVersion = w.nextVersion()
	}
}

// treats starts a treatment of a node with the first template.
func (w *healthCheckFixture) treats(node string) *unstructured.Unstructured {
	w.T.Helper()
	w.node(node, corev1.ConditionTrue)
	object := w.made(node, "quick")
	w.runs(w.WantTask(node, CreateRemediation), node, treat.Made, w.makes(object))
	w.WantNoTask(node)
	return object
}

// finding returns the code of the health check's finding for a node, zero for none.
func (w *healthCheckFixture) finding(node string) triage.Code {
	return w.reason(node).Code
}

// reason returns the health check's finding for a node.
func (w *healthCheckFixture) reason(node string) triage.Reason {
	nodes, _ := w.checks.Findings(checkRule("check"))
	return nodes[node]
}

// checkRule returns the rule of a health check.
func checkRule(name string) triage.RuleID {
	return triage.RuleID{Kind: policykind.NodeHealthCheck, Name: name}
}

// defers delivers the leader-election Lease of medik8s' controller.
func (w *healthCheckFixture) defers(lasts time.Duration) {
	w.T.Helper()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "e1f13584.medik8s.io"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("them"), RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(lasts / time.Second))},
	}
	testkit.Must(w.T, w.inboxes.Leases.Update(lease))
	w.runRound()
}
