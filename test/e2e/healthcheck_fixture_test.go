package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The names in the contract with remediators.
const (
	nodeNameAnnotation  = "remediation.medik8s.io/node-name"
	timedOutAnnotation  = "remediation.medik8s.io/nhc-timed-out"
	confirmedAnnotation = "remediation.medik8s.io/manually-confirmed-healthy"
	severalAnnotation   = "remediation.medik8s.io/multiple-templates-support"
	excludeLabel        = "remediation.medik8s.io/exclude-from-remediation"
	controlPlaneLabel   = "node-role.kubernetes.io/control-plane"
	leaseNamespace      = "medik8s-leases"
)

// withManager runs the parts of the controller manager that health checks need: ClusterRole
// aggregation, and garbage collection of owned objects.
func withManager(cfg *testbed.Config) {
	cfg.ControllerManager = true
	cfg.Flags.ControllerManager = []string{"--controllers=serviceaccount-token-controller,serviceaccount-controller,clusterrole-aggregation-controller,garbage-collector-controller"}
}

// template creates a template of the scope, and returns its reference.
func (w *scope) template(name string, changes ...func(*unstructured.Unstructured)) corev1.ObjectReference {
	w.t.Helper()
	template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"strategy": name}}}}}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace(metav1.NamespaceDefault)
	template.SetName(w.name + "-" + name)
	for _, change := range changes {
		change(template)
	}
	testkit.Must(w.t, w.api.Create(w.t.Context(), template))
	return w.reference(name)
}

// reference names a template of the scope, which may be missing.
func (w *scope) reference(name string) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: remediator.GroupVersion.String(), Kind: remediator.TemplateKind.Kind, Namespace: metav1.NamespaceDefault, Name: w.name + "-" + name,
	}
}

// newRemediation returns a remediation object that is not stored.
func newRemediation(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(remediator.Kind)
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName(name)
	return object
}

// dropWatches ends the open watches. It waits for the first one.
func (w *scope) dropWatches(proxy *testbed.Proxy) {
	w.t.Helper()
	w.eventually("watches to be dropped", func() error {
		if proxy.DropWatches() == 0 {
			return errors.New("there are no watches")
		}
		return nil
	})
}

// checkOption changes a health check.
type checkOption = func(*remediationv1alpha1.NodeHealthCheckSpec)

// check creates a health check for the scope's nodes: as soon as Unhealthy is True, it uses the
// template quick.
func (w *scope) check(name string, changes ...checkOption) *remediationv1alpha1.NodeHealthCheck {
	w.t.Helper()
	check := w.healthCheck(name, append([]checkOption{onSign("Unhealthy=True", "0s")}, changes...)...)
	testkit.Must(w.t, w.api.Create(w.t.Context(), check))
	return check
}

// checked creates nodes with a health check and its template.
func (w *scope) checked(nodes testbed.Nodes, changes ...checkOption) []string {
	w.t.Helper()
	w.template("quick")
	names := w.createNodes(nodes)
	w.check("check", changes...)
	return names
}

// treating creates nodes with a health check, and returns when the first is remediated.
func (w *scope) treating(count int) (nodes []string, object *unstructured.Unstructured) {
	w.t.Helper()
	nodes = w.checked(testbed.Nodes{Count: count})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	return nodes, w.tries(nodes[0], "quick")
}

// atMost bounds how many nodes may be unhealthy.
func atMost(limit string) checkOption {
	return func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.MaxUnhealthy = new(intstr.Parse(limit)) }
}

// steps has templates used one after the other, each for a minute.
func (w *scope) steps(names ...string) checkOption {
	return func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.RemediationTemplate = nil
		for i, name := range names {
			s.EscalatingRemediations = append(s.EscalatingRemediations, remediationv1alpha1.EscalatingRemediation{
				RemediationTemplate: w.reference(name), Order: int64(i), Timeout: "1m",
			})
		}
	}
}

// change edits the spec of a health check of the scope.
func (w *scope) change(name string, change checkOption) {
	w.t.Helper()
	check := &remediationv1alpha1.NodeHealthCheck{}
	w.update(name, check, func() { change(&check.Spec) })
}

// deleteCheck deletes all objects of health checks in the scope, and the nodes.
func (w *scope) deleteCheck() {
	w.t.Helper()
	var list remediationv1alpha1.NodeHealthCheckList
	testkit.Must(w.t, w.api.List(w.t.Context(), &list))
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, w.name+"-") {
			testkit.Must(w.t, client.IgnoreNotFound(w.api.Delete(w.t.Context(), &list.Items[i])))
		}
	}
	w.deleteNodes()
}

// objects returns the remediation objects of the scope for a node.
func (w *scope) objects(ctx context.Context, node string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(remediator.Kind)
	err := w.api.List(ctx, list)
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		one, other := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return one.Compare(other.Time)
	})
	return slices.DeleteFunc(list.Items, func(u unstructured.Unstructured) bool { return u.GetAnnotations()[nodeNameAnnotation] != node }), err
}

// strategies returns the strategies of the remediations of a node.
func (w *scope) strategies(node string) ([]string, error) {
	objects, err := w.objects(w.t.Context(), node)
	found := []string{}
	for _, o := range objects {
		strategy, _, _ := unstructured.NestedString(o.Object, "spec", "strategy")
		found = append(found, strategy)
	}
	slices.Sort(found)
	return found, err
}

// tries waits until a node has remediations with exactly these strategies, and returns the
// first object.
func (w *scope) tries(node string, strategies ...string) *unstructured.Unstructured {
	w.t.Helper()
	w.eventually("remediations of "+node, func() error { return w.triesNow(node, strategies...) })
	objects := testkit.Value(w.objects(w.t.Context(), node)).Must(w.t)
	if len(objects) == 0 {
		return nil
	}
	return &objects[0]
}

// triesNow returns an error unless a node has remediations with exactly these strategies
// now.
func (w *scope) triesNow(node string, strategies ...string) error {
	found, err := w.strategies(node)
	if err == nil && !slices.Equal(found, slices.Sorted(slices.Values(strategies))) {
		err = fmt.Errorf("the strategies %v are used on %s, want %v", found, node, strategies)
	}
	return err
}

// replies has a remediator set a condition of an object.
func (w *scope) replies(object *unstructured.Unstructured, condition string, status metav1.ConditionStatus) {
	w.t.Helper()
	testkit.Must(w.t, w.report(object, condition, status))
}

func (w *scope) report(object *unstructured.Unstructured, condition string, status metav1.ConditionStatus) error {
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"TestSaysSo","message":"","lastTransitionTime":%q}]}}`,
		condition, status, time.Now().UTC().Format(time.RFC3339))
	return w.api.Status().Patch(w.t.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// mark changes annotations or labels of a node.
func (w *scope) mark(node, patch string) {
	w.t.Helper()
	testkit.Must(w.t, w.api.Patch(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":`+patch+`}`))))
}

// locked waits until this holder has the Lease of a node, or no holder if it is empty.
func (w *scope) locked(node, by string) {
	w.t.Helper()
	w.eventually("Lease of "+node, func() error {
		lease := &coordinationv1.Lease{}
		err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: leaseNamespace, Name: "node-" + node}, lease)
		switch {
		case apierrors.IsNotFound(err) && by == "":
			return nil
		case err != nil:
			return err
		case by == "":
			return errors.New("the Lease has a holder")
		case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != by:
			return fmt.Errorf("it is %+v", lease.Spec)
		}
		return nil
	})
}

// lock acquires the Lease of a node for a holder.
func (w *scope) lock(node, by string, lasts time.Duration) *coordinationv1.Lease {
	w.t.Helper()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "node-" + node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &by, LeaseDurationSeconds: new(int32(lasts / time.Second)), AcquireTime: &now, RenewTime: &now},
	}
	testkit.Must(w.t, w.api.Create(w.t.Context(), lease))
	return lease
}

// hasCheckStatus waits until the status of a health check, for its latest generation, is
// correct.
func (w *scope) hasCheckStatus(name string, checks ...func(remediationv1alpha1.NodeHealthCheckStatus) error) {
	w.t.Helper()
	check := &remediationv1alpha1.NodeHealthCheck{}
	w.eventually("status of "+w.name+"-"+name, func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: w.name + "-" + name}, check); err != nil {
			return err
		}
		if check.Status.ObservedNodes == nil || check.Status.ObservedGeneration != check.Generation {
			return fmt.Errorf("the status is for generation %d, want %d", check.Status.ObservedGeneration, check.Generation)
		}
		for _, wrong := range checks {
			if err := wrong(check.Status); err != nil {
				return err
			}
		}
		return nil
	})
}

// phase checks the phase of a status, and the words of its reason.
func phase(is remediationv1alpha1.Phase, words ...string) func(remediationv1alpha1.NodeHealthCheckStatus) error {
	return func(s remediationv1alpha1.NodeHealthCheckStatus) error {
		if s.Phase != is {
			return fmt.Errorf("the phase is %s (%s), not %s", s.Phase, s.Reason, is)
		}
		return contains("the reason", s.Reason, words)
	}
}

// counted checks the counts of a status.
func counted(observed, healthy, treated int) func(remediationv1alpha1.NodeHealthCheckStatus) error {
	return func(s remediationv1alpha1.NodeHealthCheckStatus) error {
		if *s.ObservedNodes != observed || *s.HealthyNodes != healthy || *s.InTreatment != treated {
			return fmt.Errorf("%d observed, %d healthy, %d treated; want %d, %d, %d", *s.ObservedNodes, *s.HealthyNodes, *s.InTreatment, observed, healthy, treated)
		}
		return nil
	}
}

// row checks that a status has a node with that reason.
func row(node, reason string, parts ...string) func(remediationv1alpha1.NodeHealthCheckStatus) error {
	return func(s remediationv1alpha1.NodeHealthCheckStatus) error {
		at := slices.IndexFunc(s.UnhealthyNodes, func(n remediationv1alpha1.UnhealthyNode) bool { return n.Name == node })
		if at < 0 {
			return fmt.Errorf("the status does not name %s but %+v", node, s.UnhealthyNodes)
		}
		if s.UnhealthyNodes[at].Reason != reason {
			return fmt.Errorf("%s is %s (%s), not %s", node, s.UnhealthyNodes[at].Reason, s.UnhealthyNodes[at].Message, reason)
		}
		return contains("the status of "+node, s.UnhealthyNodes[at].Message, parts)
	}
}

// condition checks a condition of a health check.
func condition(kind string, status metav1.ConditionStatus, parts ...string) func(remediationv1alpha1.NodeHealthCheckStatus) error {
	return func(s remediationv1alpha1.NodeHealthCheckStatus) error {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c == nil {
			return fmt.Errorf("there is no condition %s", kind)
		}
		if c.Status != status {
			return fmt.Errorf("%s is %s (%s: %s), not %s", kind, c.Status, c.Reason, c.Message, status)
		}
		return contains(kind, c.Reason+": "+c.Message, parts)
	}
}

// hasEvent waits for an Event about an object, with a reason and parts of its message.
func (w *scope) hasEvent(kind, name, reason string, parts ...string) {
	w.t.Helper()
	w.HasEvent(w.t, kind, name, reason, parts...)
}
