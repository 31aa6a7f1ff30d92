package controller

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
)

// The kinds of a remediator, and one that somebody else brings.
var (
	rebootKind         = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Reboot"}
	rebootTemplateKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "RebootTemplate"}
	otherKind          = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Other"}
	otherTemplateKind  = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "OtherTemplate"}
)

// ward is a clinic with health checks. A test brings it what watches would, and runs
// its errands.
type ward struct {
	*clinic
	version int // of what was written last
	left    int // how many kinds are no longer watched
}

// openWard runs a test in a ward with health check "check": a node on which Sick is
// True is to be rebooted at once.
func openWard(t *testing.T, test func(*ward), changes ...func(*remediationv1alpha1.NodeHealthCheck)) {
	t.Helper()
	open(t, func(c *clinic) { test(wardIn(t, c, changes...)) })
}

// wardIn makes a ward of a clinic.
func wardIn(t *testing.T, c *clinic, changes ...func(*remediationv1alpha1.NodeHealthCheck)) *ward {
	t.Helper()
	w := &ward{clinic: c, version: 100}
	w.checks = checks{
		inbox:   there(t, &remediationv1alpha1.NodeHealthCheck{}),
		medik8s: medik8sLeader{inbox: there(t, &coordinationv1.Lease{}), leases: map[string]observedLease{}},
		known:   map[string]*check{}, templates: map[remediation.Template]*unstructured.Unstructured{},
	}
	w.checks.medik8s.inbox.namespaced = true
	w.checks.watches = dynamicWatches{known: map[schema.GroupVersionKind]*dynamicWatch{}, watch: func(func(context.Context)) context.CancelFunc {
		return func() { w.left++ }
	}}
	w.leaseInbox, w.treatments, w.treatmentsByObject = there(t, &coordinationv1.Lease{}), map[string]*nodeTreatments{}, map[string]*nodeTreatments{}
	w.statusWritesRunning = statusWriters // a test looks at what would be written
	w.loaded = true
	w.core.Loaded(time.Now())
	w.brings(checkNamed("check", changes...))
	for _, of := range []schema.GroupVersionKind{rebootKind, rebootTemplateKind} {
		w.lists(of)
	}
	w.template(rebootTemplateKind, "quick")
	w.template(rebootTemplateKind, "slow")
	w.goesOn()
	return w
}

// there is what the API server has been asked for, and has none of.
func there[T client.Object](t *testing.T, sample T) *optionalInbox[T] {
	t.Helper()
	q := newOptionalInbox(nil, sample, nil)
	q.noteAnswer(nil)
	must(t, q.Replace(nil, "1"))
	return q
}

// checkNamed returns a health check that the ward's nodes are all selected by.
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

// ownerOf is how remediations refer to a health check.
func ownerOf(check *remediationv1alpha1.NodeHealthCheck) remediation.Owner {
	return remediation.Owner{Kind: remediation.CheckKind, Name: check.Name, UID: check.UID}
}

func referTo(of schema.GroupVersionKind, name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: of.GroupVersion().String(), Kind: of.Kind, Namespace: "ns", Name: name}
}

// inSteps has two templates tried one after the other, each for a minute.
func inSteps(c *remediationv1alpha1.NodeHealthCheck) {
	c.Spec.RemediationTemplate = nil
	for i, name := range []string{"quick", "slow"} {
		c.Spec.EscalatingRemediations = append(c.Spec.EscalatingRemediations, remediationv1alpha1.EscalatingRemediation{
			RemediationTemplate: referTo(rebootTemplateKind, name), Order: int64(i), Timeout: "1m",
		})
	}
}

func (w *ward) nextVersion() string {
	w.version++
	return strconv.Itoa(w.version)
}

// brings brings a health check that is new or has changed.
func (w *ward) brings(c *remediationv1alpha1.NodeHealthCheck) {
	w.t.Helper()
	c = c.DeepCopy()
	c.ResourceVersion = w.nextVersion()
	must(w.t, w.checks.inbox.Update(c))
	w.goesOn()
}

// lists lets the ward know all objects of a kind that it has asked for.
func (w *ward) lists(of schema.GroupVersionKind, all ...*unstructured.Unstructured) {
	w.t.Helper()
	k := w.checks.watches.known[of]
	if k == nil {
		w.t.Fatalf("kind %s is not watched", of.Kind)
	}
	k.noteAnswer(nil)
	list := make([]any, 0, len(all))
	for _, u := range all {
		list = append(list, u.DeepCopy())
	}
	must(w.t, k.Replace(list, w.nextVersion()))
}

// template brings a template.
func (w *ward) template(of schema.GroupVersionKind, name string) {
	w.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
	u.SetGroupVersionKind(of)
	u.SetNamespace("ns")
	u.SetName(name)
	if c := w.checks.known["check"]; c != nil && len(c.object.Spec.EscalatingRemediations) > 1 { // whose objects have names of their own
		u.SetAnnotations(map[string]string{remediation.MultipleTemplatesAnnotation: ""})
	}
	must(w.t, w.checks.watches.known[of].Update(u))
}

// node brings a node that is sick or not.
func (w *ward) node(name string, sick corev1.ConditionStatus, changes ...func(*corev1.Node)) *corev1.Node {
	w.t.Helper()
	node := named(name, w.nextVersion())
	node.UID, node.CreationTimestamp = types.UID("uid-"+name), metav1.Unix(1, 0)
	node.Status.Conditions = []corev1.NodeCondition{{Type: "Sick", Status: sick, LastTransitionTime: metav1.Now()}}
	for _, change := range changes {
		change(node)
	}
	must(w.t, w.nodeInbox.Update(node))
	w.goesOn()
	return node
}

func inControl(n *corev1.Node) {
	n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
}

func confirmed(n *corev1.Node) {
	n.Annotations = map[string]string{remediation.ConfirmedAnnotation: ""}
}

func madeAnew(n *corev1.Node) { n.UID += "-again" }

// made returns an object that was made from a template for a node.
func (w *ward) made(node, template string, changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	w.t.Helper()
	from := w.checks.templates[remediation.Template{GroupVersionKind: rebootTemplateKind, Namespace: "ns", Name: template}]
	u, err := remediation.Make(from, w.nodeStates[node].node, ownerOf(w.checks.known["check"].object))
	must(w.t, err)
	u.SetUID(types.UID("uid-of-" + template + "-for-" + node))
	u.SetResourceVersion(w.nextVersion())
	u.SetCreationTimestamp(metav1.Now())
	for _, change := range changes {
		change(u)
	}
	return u
}

// finds brings an object by the watch.
func (w *ward) finds(u *unstructured.Unstructured) {
	w.t.Helper()
	must(w.t, w.checks.watches.known[u.GroupVersionKind()].Update(u.DeepCopy()))
	w.goesOn()
}

// loses tells by the watch that an object is gone.
func (w *ward) loses(u *unstructured.Unstructured) {
	w.t.Helper()
	must(w.t, w.checks.watches.known[u.GroupVersionKind()].Delete(u.DeepCopy()))
	w.goesOn()
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

// locks brings a lease of a node by the watch.
func (w *ward) locks(node, holder string, lasts time.Duration) *coordinationv1.Lease {
	w.t.Helper()
	lease := nodelease.Take(nil, w.nodeStates[node].node, holder, lasts, time.Now())
	lease.UID, lease.ResourceVersion = types.UID("lease-of-"+node), w.nextVersion()
	must(w.t, w.leaseInbox.Update(lease))
	w.goesOn()
	return lease
}

// goesOn does what a round does, and leaves the errands to the test.
func (w *ward) goesOn() {
	now := time.Now()
	w.takeNodes(now)
	w.takeChecks(now)
	w.takeObjects(now)
	w.followChecks(now)
	w.core.Advance(now)
	w.reconcileWoken(now)
	w.runDueTreatments(now)
	w.reconcileWoken(now)
	for range w.taskQueue.len() { // as they are looked at once more before they are sent
		if b := w.taskQueue.pop(); b.stage == queued {
			b.stage = idle
			w.reconcileTreatments(now, b.node)
		}
	}
	w.lookAtStatuses(now)
	w.writeStatuses(w.t.Context(), now)
}

// passes lets time pass, with a round at its end.
func (w *ward) passes(d time.Duration) {
	pass(d)
	w.goesOn()
}

// next returns what is to be done about a node, nil for nothing, and when to look
// again if nothing is.
func (w *ward) next(node string) (*task, time.Time) {
	b := w.treatments[node]
	if b == nil {
		return nil, time.Time{}
	}
	e, due := w.nextTask(time.Now(), b)
	if (e != nil) != (b.stage == queued) {
		w.t.Errorf("the bed of %s is at stage %d, and next is %+v", node, b.stage, e)
	}
	return e, due
}

// wants says what is to be done about a node.
func (w *ward) wants(node string, want taskKind) *task {
	w.t.Helper()
	e, due := w.next(node)
	if e == nil {
		w.t.Fatalf("nothing is to be done about %s before %v, want %s; the log:\n%s", node, due, want, &w.log)
	}
	if e.kind != want {
		w.t.Fatalf("%s is to be done about %s, want %s", e.kind, node, want)
	}
	return e
}

// rests says that nothing is to be done about a node, and until when.
func (w *ward) rests(node string) (due time.Time) {
	w.t.Helper()
	e, due := w.next(node)
	if e != nil {
		w.t.Fatalf("%s is to be done about %s, want nothing", e.kind, node)
	}
	return due
}

// runs has an errand run whose report is as it is changed to be, and goes on.
func (w *ward) runs(e *task, node string, fate treat.Result, changes ...func(*taskResult)) {
	w.t.Helper()
	r := w.startTask(time.Now(), w.treatments[node], e)
	if r.result = fate; fate != treat.Made {
		r.err = fmt.Errorf("for a test: %w", errBroken)
	}
	for _, change := range changes {
		change(r)
	}
	w.handleTaskResult(r)
	w.goesOn()
}

// makes reports an object, with the node locked.
func (w *ward) makes(u *unstructured.Unstructured) func(*taskResult) {
	return func(r *taskResult) {
		r.object, r.isCreated = u.DeepCopy(), true
		r.lease, r.isLeased = r.task.lease.DeepCopy(), true
		r.lease.ResourceVersion = w.nextVersion()
	}
}

// treats has a node treated with the first template.
func (w *ward) treats(node string) *unstructured.Unstructured {
	w.t.Helper()
	w.node(node, corev1.ConditionTrue)
	object := w.made(node, "quick")
	w.runs(w.wants(node, createRemediation), node, treat.Made, w.makes(object))
	w.rests(node)
	return object
}

// finding returns what the health check has to say about a node, zero for nothing.
func (w *ward) finding(node string) triage.Code { return w.checks.known["check"].nodes[node].Code }
