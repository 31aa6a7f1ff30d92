package treat_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// remediationFixture is a cluster with a remediator and the NodeHealthCheck CRD.
type remediationFixture struct {
	client.Client
	*treat.Writer
	cluster *testbed.Cluster
}

func TestWriterForHealthChecks(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	c := testkit.Value(client.New(cluster.AdminConfig(), client.Options{})).Must(t)
	k := remediationFixture{c, treat.NewWriter(c), cluster}
	k.knowsMissingKinds(t)
	testkit.Must(t, remediator.Install(t.Context(), cluster))
	crd := testkit.Value(deploy.CRD("nodehealthchecks.remediation.medik8s.io")).Must(t)
	testkit.Value(cluster.KubectlApply(t.Context(), string(crd))).Must(t)
	testkit.Value(cluster.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/nodehealthchecks.remediation.medik8s.io")).Must(t)
	testkit.Must(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nodelease.Namespace}}))
	t.Run("reads a template", k.readsTemplates)
	t.Run("creates a remediation object", k.creates)
	t.Run("makes one object of a request whose answer was lost", k.createsOnce)
	t.Run("deletes a remediation object", k.deletes)
	t.Run("annotates a remediation object", k.annotates)
	t.Run("takes a confirmation off a node", k.removesConfirmation)
	t.Run("obtains and renews a Lease", k.obtains)
	t.Run("takes_no_Lease_from_another_holder", k.takesNoLease)
	t.Run("releases a Lease", k.releases)
	t.Run("writes the status of a health check", k.writesStatus)
}

// wantResult checks the outcome of a write.
func wantResult(t *testing.T, err error, want treat.Outcome) {
	t.Helper()
	if got := treat.Classify(err); got != want {
		t.Errorf("the fate of the write is %d, want %d: %v", got, want, err)
	}
}

// mustMake makes an object that is not stored yet.
func mustMake(t *testing.T, template *unstructured.Unstructured, node string) *unstructured.Unstructured {
	t.Helper()
	return testkit.Value(remediation.Make(template, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node + "-uid")}},
		remediation.Owner{Kind: remediation.CheckKind, Name: "workers", UID: "check-uid"})).Must(t)
}

func (k remediationFixture) storeTemplate(t *testing.T, name string, annotations map[string]string) *unstructured.Unstructured {
	t.Helper()
	template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"size": int64(42)}}}}}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace("default")
	template.SetName(name)
	template.SetAnnotations(annotations)
	testkit.Must(t, k.Create(t.Context(), template))
	return template
}

func (k remediationFixture) storeRemediation(t *testing.T, node string) *unstructured.Unstructured {
	t.Helper()
	return testkit.Value(k.CreateRemediation(t.Context(), mustMake(t, k.storeTemplate(t, "for-"+node, nil), node))).Must(t)
}

func (k remediationFixture) patch(t *testing.T, object client.Object, patch string) {
	t.Helper()
	testkit.Must(t, k.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// again reads an object from the API server, nil if it is gone.
func (k remediationFixture) again(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(object.GroupVersionKind())
	err := k.Get(t.Context(), client.ObjectKeyFromObject(object), found)
	if apierrors.IsNotFound(err) {
		return nil
	}
	testkit.Must(t, err)
	return found
}

// knowsMissingKinds tries a kind before it is installed.
func (k remediationFixture) knowsMissingKinds(t *testing.T) {
	t.Helper()
	early := remediation.Template{GroupVersionKind: remediator.TemplateKind, Namespace: "default", Name: "early"}
	_, err := k.GetTemplate(t.Context(), early)
	wantResult(t, err, treat.Refused)
	testkit.Fails(t, err, early.String()) // the error does not name the template
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(remediator.Kind)
	object.SetNamespace("default")
	object.SetName("early")
	wantResult(t, testkit.Value(k.CreateRemediation(t.Context(), object)).Err(), treat.Refused)
}

func (k remediationFixture) readsTemplates(t *testing.T) {
	stored := k.storeTemplate(t, "read", nil)
	ref := remediation.Template{GroupVersionKind: remediator.TemplateKind, Namespace: "default", Name: "read"}
	got := testkit.Value(k.GetTemplate(t.Context(), ref)).Must(t)
	testkit.Equal(t, "the template", stored.Object, got.Object)
	missing, nowhere := ref, ref
	missing.Name, nowhere.Namespace = "missing", ""
	if _, err := k.GetTemplate(t.Context(), missing); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), missing.String()) {
		t.Errorf("a template that is not there: %v", err)
	}
	testkit.Value(k.GetTemplate(t.Context(), nowhere)).Fails(t, "the reference has no namespace") // a template that is nowhere
}

func (k remediationFixture) creates(t *testing.T) {
	asked := mustMake(t, k.storeTemplate(t, "create", nil), "create-1")
	untouched := asked.DeepCopy()
	created := testkit.Value(k.CreateRemediation(t.Context(), asked)).Must(t)
	testkit.Equal(t, "what was asked for has changed", untouched.Object, asked.Object)
	stored := k.again(t, asked)
	testkit.Equal(t, "told is not what is stored", stored.Object, created.Object)
	want := remediation.Read(asked)
	got := remediation.Read(stored)
	want.UID, want.ResourceVersion, want.Created = got.UID, got.ResourceVersion, got.Created
	if diff := cmp.Diff(want, got); diff != "" || got.UID == "" || got.Created.IsZero() {
		t.Errorf("the server stored something else (-asked +stored):\n%s", diff)
	}
	testkit.Equal(t, "the spec", map[string]any{"size": int64(42)}, stored.Object["spec"])
	managers := stored.GetManagedFields()
	testkit.Check(t, len(managers) == 1 && managers[0].Manager == treat.FieldManager, "it was written by %+v", managers)
	wantResult(t, testkit.Value(k.CreateRemediation(t.Context(), asked)).Err(), treat.Stale)
}

func (k remediationFixture) createsOnce(t *testing.T) {
	proxy := testkit.Value(k.cluster.Proxy()).Must(t)
	faulty := testkit.Value(client.New(proxy.Config(k.cluster.AdminConfig()), client.Options{})).Must(t)
	writer := treat.NewWriter(faulty)
	several := map[string]string{remediation.MultipleTemplatesAnnotation: ""}
	quick, slow := k.storeTemplate(t, "quick", several), k.storeTemplate(t, "slow", several)
	lost := proxy.Inject(testbed.On("create", "exampleremediations"), testbed.CutResponse(), 1)
	wantResult(t, testkit.Value(writer.CreateRemediation(t.Context(), mustMake(t, quick, "once-1"))).Err(), treat.Unknown)
	lost.Lift()
	wantResult(t, testkit.Value(writer.CreateRemediation(t.Context(), mustMake(t, quick, "once-1"))).Err(), treat.Stale)
	wantResult(t, testkit.Value(writer.CreateRemediation(t.Context(), mustMake(t, slow, "once-1"))).Err(), treat.Made)

	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(remediator.Kind)
	testkit.Must(t, k.List(t.Context(), &list, client.InNamespace("default")))
	templates := map[string]int{}
	for i := range list.Items {
		if object := remediation.Read(&list.Items[i]); object.Node == "once-1" {
			templates[object.Template]++
			if !strings.HasPrefix(object.Name, "once-1-") || list.Items[i].GetGenerateName() != "once-1-" {
				t.Errorf("it is called %s (%s)", object.Name, list.Items[i].GetGenerateName())
			}
		}
	}
	testkit.Equal(t, "objects by template", map[string]int{"quick": 1, "slow": 1}, templates)
}

func (k remediationFixture) deletes(t *testing.T) {
	stored := k.storeRemediation(t, "delete-1")
	object := remediation.Read(stored)
	k.patch(t, stored.DeepCopy(), `{"spec":{"size":43}}`) // does not change the identity
	wantResult(t, k.DeleteRemediation(t.Context(), object), treat.Made)
	if left := k.again(t, stored); left != nil {
		t.Errorf("it is still there: %v", left)
	}
	wantResult(t, k.DeleteRemediation(t.Context(), object), treat.Made) // already gone

	successor := stored.DeepCopy()
	successor.SetResourceVersion("")
	successor.SetUID("")
	testkit.Must(t, k.Create(t.Context(), successor))
	wantResult(t, k.DeleteRemediation(t.Context(), object), treat.Stale)
	testkit.Check(t, k.again(t, stored) != nil, "another object of the same name was deleted")

	changed := k.storeRemediation(t, "delete-3")
	k.patch(t, changed.DeepCopy(), `{"spec":{"size":44}}`)
	wantResult(t, k.DeleteRemediationAsKnown(t.Context(), remediation.Read(changed)), treat.Stale)
	wantResult(t, k.DeleteRemediationAsKnown(t.Context(), remediation.Read(k.again(t, changed))), treat.Made)
	if left := k.again(t, changed); left != nil {
		t.Errorf("it is still there: %v", left)
	}

	held := k.storeRemediation(t, "delete-2")
	k.patch(t, held.DeepCopy(), `{"metadata":{"finalizers":["example.com/wait"]}}`)
	wantResult(t, k.DeleteRemediation(t.Context(), remediation.Read(held)), treat.Made)
	wantResult(t, k.DeleteRemediation(t.Context(), remediation.Read(held)), treat.Made)
	if left := remediation.Read(k.again(t, held)); !left.Deleting || !cmp.Equal(left.Finalizers, []string{"example.com/wait"}) {
		t.Errorf("what a finalizer keeps is read as %+v", left)
	}
}

func (k remediationFixture) annotates(t *testing.T) {
	stored := k.storeRemediation(t, "annotate-1")
	object := remediation.Read(stored)
	at := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	version, err := k.AnnotateRemediation(t.Context(), object, map[string]*string{
		remediation.TimedOutAnnotation: new(remediation.Stamp(at)), remediation.HealthyDelayAnnotation: new(remediation.Stamp(at.Add(time.Minute))),
	})
	testkit.Must(t, err)
	want := object
	want.ResourceVersion, want.TimedOut, want.TimedOutAt, want.HealthySince = version, true, at, at.Add(time.Minute)
	testkit.Equal(t, "annotated", want, remediation.Read(k.again(t, stored)))
	wantResult(t, testkit.Value(k.AnnotateRemediation(t.Context(), object, map[string]*string{remediation.TimedOutAnnotation: nil})).Err(), treat.Stale) // the object has changed
	want.ResourceVersion = testkit.Value(k.AnnotateRemediation(t.Context(), want, map[string]*string{remediation.HealthyDelayAnnotation: nil})).Must(t)
	want.HealthySince = time.Time{}
	testkit.Equal(t, "with one annotation taken back", want, remediation.Read(k.again(t, stored)))
	other := want
	other.UID = "another"
	if _, err = k.AnnotateRemediation(t.Context(), other, map[string]*string{remediation.TimedOutAnnotation: nil}); err == nil {
		t.Error("another object of the same name was annotated")
	}
}

func (k remediationFixture) removesConfirmation(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "confirmed", Annotations: map[string]string{remediation.ConfirmedAnnotation: "by me", "other": "stays"}}}
	testkit.Must(t, k.Create(t.Context(), node))
	before := node.DeepCopy()
	k.patch(t, node, `{"metadata":{"labels":{"new":"one"}}}`)
	wantResult(t, testkit.Value(k.RemoveConfirmation(t.Context(), before)).Err(), treat.Stale)
	version := testkit.Value(k.RemoveConfirmation(t.Context(), node)).Must(t)
	after := testkit.Value(k.Fetch(t.Context(), "confirmed")).Must(t)
	if diff := cmp.Diff(map[string]string{"other": "stays"}, after.Annotations); diff != "" || after.ResourceVersion != version {
		t.Errorf("version %s, annotations (-want +got):\n%s", after.ResourceVersion, diff)
	}
}

func leaseNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")}}
}

func (k remediationFixture) mustFetchLease(t *testing.T, node string) *coordinationv1.Lease {
	t.Helper()
	return testkit.Value(k.FetchLease(t.Context(), node)).Must(t)
}

// noteHolder makes another holder write its name into a Lease.
func (k remediationFixture) noteHolder(t *testing.T, lease *coordinationv1.Lease, holder string) {
	t.Helper()
	k.patch(t, lease.DeepCopy(), `{"spec":{"holderIdentity":"`+holder+`"}}`)
}

func (k remediationFixture) obtains(t *testing.T) {
	node, us, now := leaseNode("obtain-1"), nodelease.HolderOf("workers"), time.Now()
	if lease := k.mustFetchLease(t, node.Name); lease != nil {
		t.Fatalf("there is a Lease: %+v", lease)
	}
	first := testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(nil, node, us, time.Minute, now))).Must(t)
	later := now.Add(30 * time.Second)
	renewed := testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(first, node, us, time.Minute, later))).Must(t)
	stored := k.mustFetchLease(t, node.Name)
	testkit.Equal(t, "told is not what is stored", stored, renewed)
	if by, until, held := nodelease.Held(stored, later); by != us || !held || until.Sub(later).Abs() > time.Minute || until.Before(later.Add(59*time.Second)) {
		t.Errorf("it is held by %q until %v: %v", by, until, held)
	}
	testkit.Check(t, stored.Spec.AcquireTime.Equal(first.Spec.AcquireTime) && stored.OwnerReferences[0].UID == node.UID, "stored is %+v", stored)
}

func (k remediationFixture) takesNoLease(t *testing.T) {
	node, us, now := leaseNode("refused-1"), nodelease.HolderOf("workers"), time.Now()
	first := testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(nil, node, us, time.Minute, now))).Must(t)
	wantResult(t, testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(nil, node, "other", time.Minute, now))).Err(), treat.Stale) // another holder was faster
	k.noteHolder(t, first, "maintenance")
	wantResult(t, testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(first, node, us, time.Minute, now))).Err(), treat.Stale) // another holder has taken it since
	if lease := k.mustFetchLease(t, node.Name); *lease.Spec.HolderIdentity != "maintenance" {
		t.Errorf("it is held by %s", *lease.Spec.HolderIdentity)
	}
	testkit.Must(t, k.Delete(t.Context(), first.DeepCopy()))
	wantResult(t, testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(first, node, us, time.Minute, now))).Err(), treat.Stale) // a renewal must not create a new Lease
	if lease := k.mustFetchLease(t, node.Name); lease != nil {
		t.Errorf("there is a Lease again: %+v", lease)
	}
}

func (k remediationFixture) releases(t *testing.T) {
	node, us, now := leaseNode("release-1"), nodelease.HolderOf("workers"), time.Now()
	lease := testkit.Value(k.ObtainLease(t.Context(), nodelease.Take(nil, node, us, time.Minute, now))).Must(t)
	k.noteHolder(t, lease, "maintenance")
	wantResult(t, k.ReleaseLease(t.Context(), lease), treat.Stale)
	theirs := k.mustFetchLease(t, node.Name)
	testkit.Require(t, theirs != nil, "the Lease of another holder was released")
	wantResult(t, k.ReleaseLease(t.Context(), theirs), treat.Made)
	if left := k.mustFetchLease(t, node.Name); left != nil {
		t.Errorf("it is still there: %+v", left)
	}
	wantResult(t, k.ReleaseLease(t.Context(), theirs), treat.Made) // already gone
}

func (k remediationFixture) writesStatus(t *testing.T) {
	check := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"remediationTemplate": map[string]any{
		"apiVersion": remediator.GroupVersion.String(), "kind": remediator.TemplateKind.Kind, "namespace": "default", "name": "quick",
	}}}}
	check.SetAPIVersion(remediation.CheckAPIVersion)
	check.SetKind(remediation.CheckKind)
	check.SetName("workers")
	testkit.Must(t, k.Create(t.Context(), check))
	type status = v1alpha1.NodeHealthCheckStatus
	kind := metav1.TypeMeta{APIVersion: remediation.CheckAPIVersion, Kind: remediation.CheckKind}
	write := treat.StatusOf[status](k.Writer, kind, check.GetUID())
	for _, test := range []struct {
		name   string
		status status
		want   map[string]any
	}{
		{"the first one", status{ObservedNodes: new(10), HealthyNodes: new(9), Phase: "Enabled"}, map[string]any{"observedNodes": int64(10), "healthyNodes": int64(9), "phase": "Enabled", "reason": "", "observedGeneration": int64(0)}},
		{"one that says less", status{Phase: "Disabled"}, map[string]any{"phase": "Disabled", "reason": "", "observedGeneration": int64(0)}},
		{"one in place of what another program wrote", status{ObservedNodes: new(3), Phase: "Enabled"}, map[string]any{"observedNodes": int64(3), "phase": "Enabled", "reason": "", "observedGeneration": int64(0)}},
	} {
		version, err := write(t.Context(), "workers", test.status)
		testkit.Require(t, err == nil, "%s: %v", test.name, err)
		stored := k.again(t, check)
		testkit.Equal(t, test.name, test.want, stored.Object["status"])
		if stored.GetResourceVersion() != version {
			t.Errorf("%s: the version is %s, told was %s", test.name, stored.GetResourceVersion(), version)
		}
		foreign := client.RawPatch(types.MergePatchType, []byte(`{"status":{"inFlightRemediations":{"worker-1":"2026-11-15T12:00:00Z"}}}`))
		testkit.Must(t, k.Client.Status().Patch(t.Context(), stored, foreign))
	}
	wantResult(t, testkit.Value(write(t.Context(), "gone", status{})).Err(), treat.Stale)
	earlier := treat.StatusOf[status](k.Writer, kind, "of an earlier object")
	wantResult(t, testkit.Value(earlier(t.Context(), "workers", status{})).Err(), treat.Refused)
}
