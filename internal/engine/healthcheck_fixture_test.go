package engine

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
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

// healthCheckFixture is a loop with health checks. A test delivers watch events and finishes tasks.
type healthCheckFixture struct {
	*loopFixture
	version int // of the last write
	left    int // number of stopped watches
}

// withHealthCheck runs a test with health check "check": a node with Sick=True is rebooted at
// once.
func withHealthCheck(t *testing.T, test func(*healthCheckFixture), changes ...func(*remediationv1alpha1.NodeHealthCheck)) {
	t.Helper()
	open(t, func(c *loopFixture) { test(healthCheckFixtureIn(t, c, changes...)) })
}

// healthCheckFixtureIn adds health checks to a fixture.
func healthCheckFixtureIn(t *testing.T, c *loopFixture, changes ...func(*remediationv1alpha1.NodeHealthCheck)) *healthCheckFixture {
	t.Helper()
	w := &healthCheckFixture{loopFixture: c, version: 100}
	w.checks = newChecks(there(t, &remediationv1alpha1.NodeHealthCheck{}), there(t, &coordinationv1.Lease{}), NewCheckMetrics())
	w.remediations = newRemediations(there(t, &coordinationv1.Lease{}), watch.Kinds{Start: func(func(context.Context)) context.CancelFunc {
		return func() { w.left++ }
	}})
	w.link()
	w.loaded = true
	w.core.Loaded(time.Now())
	w.brings(checkNamed("check", changes...))
	for _, gvk := range []schema.GroupVersionKind{rebootKind, rebootTemplateKind} {
		w.lists(gvk)
	}
	w.template(rebootTemplateKind, "quick")
	w.template(rebootTemplateKind, "slow")
	w.runRound()
	return w
}

// there returns an inbox for a kind without objects.
func there[T client.Object](t *testing.T, sample T) *watch.Optional[T] {
	t.Helper()
	box := watch.NewOptional(nil, sample, nil)
	box.SetAvailability(nil)
	must(t, box.Replace(nil, "1"))
	return box
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
	w.t.Helper()
	c = c.DeepCopy()
	c.ResourceVersion = w.nextVersion()
	must(w.t, w.checks.inbox.Update(c))
	w.runRound()
}

// lists delivers all objects of a watched kind.
func (w *healthCheckFixture) lists(gvk schema.GroupVersionKind, all ...*unstructured.Unstructured) {
	w.t.Helper()
	kind := w.remediations.watches.Known[gvk]
	if kind == nil {
		w.t.Fatalf("kind %s is not watched", gvk.Kind)
	}
	kind.SetAvailability(nil)
	list := make([]any, 0, len(all))
	for _, u := range all {
		list = append(list, u.DeepCopy())
	}
	must(w.t, kind.Replace(list, w.nextVersion()))
}

// template delivers a template.
func (w *healthCheckFixture) template(gvk schema.GroupVersionKind, name string) {
	w.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace("ns")
	u.SetName(name)
	if c := w.checks.known["check"]; c != nil && len(c.object.Spec.EscalatingRemediations) > 1 { // their objects have names of their own
		u.SetAnnotations(map[string]string{remediation.MultipleTemplatesAnnotation: ""})
	}
	must(w.t, w.remediations.watches.Known[gvk].Update(u))
}

// node delivers a node.
func (w *healthCheckFixture) node(name string, sick corev1.ConditionStatus, changes ...func(*corev1.Node)) *corev1.Node {
	w.t.Helper()
	node := named(name, w.nextVersion())
	node.UID, node.CreationTimestamp = types.UID("uid-"+name), metav1.Unix(1, 0)
	node.Status.Conditions = []corev1.NodeCondition{{Type: "Sick", Status: sick, LastTransitionTime: metav1.Now()}}
	for _, change := range changes {
		change(node)
	}
	must(w.t, w.nodeInbox.Update(node))
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
	w.t.Helper()
	from := w.remediations.templates[remediation.Template{GroupVersionKind: rebootTemplateKind, Namespace: "ns", Name: template}]
	u, err := remediation.Make(from, w.nodeStates[node].Object, ownerOf(w.checks.known["check"].object))
	must(w.t, err)
	u.SetUID(types.UID("uid-of-" + template + "-for-" + node))
	u.SetResourceVersion(w.nextVersion())
	u.SetCreationTimestamp(metav1.Now())
	for _, change := range changes {
		change(u)
	}
	return u
}

// finds delivers an object.
func (w *healthCheckFixture) finds(u *unstructured.Unstructured) {
	w.t.Helper()
	must(w.t, w.remediations.watches.Known[u.GroupVersionKind()].Update(u.DeepCopy()))
	w.runRound()
}

// loses delivers the deletion of an object.
func (w *healthCheckFixture) loses(u *unstructured.Unstructured) {
	w.t.Helper()
	must(w.t, w.remediations.watches.Known[u.GroupVersionKind()].Delete(u.DeepCopy()))
	w.runRound()
}

func says(condition string, status metav1.ConditionStatus) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": condition, "status": string(status)}}}
	}
}

func deleting(u *unstructured.Unstructured) {
	u.SetDeletionTimestamp(new(metav1.Now()))
	u.SetFinalizers([]string{"example.com/works-on-it"})
}

// locks delivers a Lease of a node.
func (w *healthCheckFixture) locks(node, holder string, lasts time.Duration) *coordinationv1.Lease {
	w.t.Helper()
	lease := nodelease.Take(nil, w.nodeStates[node].Object, holder, lasts, time.Now())
	lease.UID, lease.ResourceVersion = types.UID("lease-of-"+node), w.nextVersion()
	must(w.t, w.remediations.leases.Update(lease))
	w.runRound()
	return lease
}

// runRound runs a round, and leaves the tasks to the test.
func (w *healthCheckFixture) runRound() {
	now := time.Now()
	w.takeNodes(now)
	w.checks.Take(now)
	w.remediations.Take(now)
	w.checks.SetRules(w.t.Context(), now)
	w.core.Advance(now)
	w.ReconcileWoken(now)
	w.tasks.runDue(now)
	w.ReconcileWoken(now)
	for range w.tasks.queue.len() { // as before they are started
		if treatments := w.tasks.queue.pop(); treatments.stage == queued {
			treatments.stage = idle
			w.tasks.reconcile(now, treatments.Node)
		}
	}
	w.statuses.Schedule(now)
	w.writeStatuses(w.t.Context(), now)
}

// advance lets time pass and runs a round.
func (w *healthCheckFixture) advance(d time.Duration) {
	pass(d)
	w.runRound()
}

// next returns the next task of a node, nil for none, and when to check again.
func (w *healthCheckFixture) next(node string) (*Task, time.Time) {
	treatments := w.tasks.lanes[node]
	if treatments == nil {
		return nil, time.Time{}
	}
	e, due := w.tasks.next(time.Now(), treatments)
	if (e != nil) != (treatments.stage == queued) {
		w.t.Errorf("the lane of %s is at stage %d, and next is %+v", node, treatments.stage, e)
	}
	return e, due
}

// wantTask checks the kind of the node's next task and returns the task.
func (w *healthCheckFixture) wantTask(node string, want string) *Task {
	w.t.Helper()
	e, due := w.next(node)
	if e == nil {
		w.t.Fatalf("nothing is to be done about %s before %v, want %s; the log:\n%s", node, due, want, &w.log)
	}
	if e.Kind != want {
		w.t.Fatalf("%s is to be done about %s, want %s", e.Kind, node, want)
	}
	return e
}

// wantNoTask checks that the node has no task, and returns when to check again.
func (w *healthCheckFixture) wantNoTask(node string) (due time.Time) {
	w.t.Helper()
	e, due := w.next(node)
	if e != nil {
		w.t.Fatalf("%s is to be done about %s, want nothing", e.Kind, node)
	}
	return due
}

// remediationResult is the result of a task for remediation objects.
type remediationResult struct {
	*Result
	*remediationTask
}

// remediationWork returns what a task does with remediation objects.
func remediationWork(t *Task) *remediationTask { return t.Work.(*remediationTask) }

// starts starts a task and leaves its result to the test.
func (w *healthCheckFixture) starts(e *Task, node string) remediationResult {
	return remediationResult{w.tasks.startTask(time.Now(), w.tasks.lanes[node], e), remediationWork(e)}
}

// runs finishes a task with a result, which the changes may adapt, and runs a round.
func (w *healthCheckFixture) runs(e *Task, node string, result treat.Result, changes ...func(remediationResult)) {
	w.t.Helper()
	r := w.starts(e, node)
	if r.Outcome = result; result != treat.Made {
		r.Err = fmt.Errorf("for a test: %w", errBroken)
	}
	for _, change := range changes {
		change(r)
	}
	w.tasks.handleResult(r.Result)
	w.runRound()
}

// makes sets the created object and the taken Lease in a result.
func (w *healthCheckFixture) makes(u *unstructured.Unstructured) func(remediationResult) {
	return func(r remediationResult) {
		r.current, r.created = u.DeepCopy(), true
		r.newLease, r.leaseKnown = r.lease.DeepCopy(), true
		r.newLease.ResourceVersion = w.nextVersion()
	}
}

// treats starts a treatment of a node with the first template.
func (w *healthCheckFixture) treats(node string) *unstructured.Unstructured {
	w.t.Helper()
	w.node(node, corev1.ConditionTrue)
	object := w.made(node, "quick")
	w.runs(w.wantTask(node, createRemediation), node, treat.Made, w.makes(object))
	w.wantNoTask(node)
	return object
}

// finding returns the code of the health check's finding for a node, zero for none.
func (w *healthCheckFixture) finding(node string) triage.Code {
	return w.checks.known["check"].nodes[node].Code
}
