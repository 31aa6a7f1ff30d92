package treat_test

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	installed "github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// claimFixture is a cluster with Karpenter's CRDs, without Karpenter.
type claimFixture struct {
	client.Client
	*treat.Writer
}

func TestWriterForTerminations(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpenter.AddToScheme, v1alpha1.AddToScheme} {
		testkit.Must(t, add(scheme))
	}
	c := testkit.Value(client.New(cluster.AdminConfig(), client.Options{Scheme: scheme})).Must(t)
	h := claimFixture{c, treat.NewWriter(c)}
	t.Run("classifies_a_missing_kind", func(t *testing.T) {
		_, err := h.MarkClaim(t.Context(), &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, ownership.Mark{})
		if got := treat.Classify(err); got != treat.Refused && got != treat.Stale {
			t.Errorf("the fate is %d: %v", got, err)
		}
	})
	testkit.Must(t, installed.InstallCRDs(t.Context(), cluster))
	policies := testkit.Value(deploy.CRD("repairpolicies.autohealer.resourcestack.com")).Must(t)
	testkit.Value(cluster.KubectlApply(t.Context(), string(policies))).Must(t)
	testkit.Value(cluster.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/repairpolicies.autohealer.resourcestack.com")).Must(t)
	t.Run("marks_a_claim_and_changes_nothing_else", h.marks)
	t.Run("writes_nothing_on_another_version", h.marksAsKnown)
	t.Run("deletes_a_claim_in_the_known_version_only", h.deletesAsKnown)
	t.Run("removes_the_mark_completely", h.spares)
}

// claims stores a claim that satisfies Karpenter's schema and has more fields than are read.
func (h claimFixture) claims(t *testing.T, name string, annotations map[string]string) *karpenter.NodeClaim {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
		"requirements": []any{map[string]any{"key": "kubernetes.io/os", "operator": "In", "values": []any{"linux"}}},
		"resources":    map[string]any{"requests": map[string]any{"cpu": "1"}},
	}}}
	u.SetGroupVersionKind(karpenter.GroupVersion.WithKind("NodeClaim"))
	u.SetName(name)
	u.SetAnnotations(annotations)
	u.SetFinalizers([]string{karpenter.TerminationFinalizer})
	testkit.Must(t, h.Create(t.Context(), u))
	return h.fetched(t, name)
}

func (h claimFixture) fetched(t *testing.T, name string) *karpenter.NodeClaim {
	t.Helper()
	return testkit.Value(h.FetchClaim(t.Context(), name)).Must(t)
}

var aMark = ownership.Mark{
	Rule: ownership.Rule{Kind: policykind.Repair, Name: "NodePool/default"}, Node: "n", NodeUID: "u",
	Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Deadline: treat.Deadline(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)),
}

func (h claimFixture) marks(t *testing.T) {
	claim := h.claims(t, "marked", map[string]string{"other": "one"})
	marked, err := h.MarkClaim(t.Context(), claim, aMark)
	wantResult(t, err, treat.Made)
	now := h.fetched(t, "marked")
	if marked.ResourceVersion != now.ResourceVersion || marked.UID != claim.UID {
		t.Errorf("the answer is of version %s, and it has %s", marked.ResourceVersion, now.ResourceVersion)
	}
	read, err := ownership.ReadMark(now.Annotations)
	testkit.Check(t, err == nil && *read == aMark, "the mark is %+v, %v", read, err)
	if now.Annotations[karpenter.TerminationTimestampAnnotation] != "2026-01-02T03:04:05Z" || now.Annotations["other"] != "one" {
		t.Errorf("the annotations are %v", now.Annotations)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(karpenter.GroupVersion.WithKind("NodeClaim"))
	testkit.Must(t, h.Get(t.Context(), client.ObjectKey{Name: "marked"}, u))
	if cpu, _, _ := unstructured.NestedString(u.Object, "spec", "resources", "requests", "cpu"); cpu != "1" {
		t.Errorf("what is not read here is lost: %v", u.Object["spec"])
	}
	plain := aMark
	plain.Deadline = ""
	graceful, err := h.MarkClaim(t.Context(), h.claims(t, "graceful", nil), plain)
	wantResult(t, err, treat.Made)
	if _, has := graceful.Annotations[karpenter.TerminationTimestampAnnotation]; has {
		t.Error("one that is drained has a deadline")
	}
}

func (h claimFixture) marksAsKnown(t *testing.T) {
	claim := h.claims(t, "changed", nil)
	testkit.Value(h.MarkClaim(t.Context(), claim, aMark)).Must(t)
	wantResult(t, testkit.Value(h.MarkClaim(t.Context(), claim, aMark)).Err(), treat.Stale)
	wantResult(t, testkit.Value(h.UnmarkClaim(t.Context(), claim, aMark)).Err(), treat.Stale)
	other := h.fetched(t, "changed")
	other.UID = "another"
	_, err := h.MarkClaim(t.Context(), other, aMark)
	if got := treat.Classify(err); got != treat.Stale && got != treat.Refused {
		t.Errorf("another one of that name: %d, %v", got, err)
	}
	other.Name = "missing"
	wantResult(t, testkit.Value(h.MarkClaim(t.Context(), other, aMark)).Err(), treat.Stale)
	if now, err := h.FetchClaim(t.Context(), "missing"); now != nil || err != nil {
		t.Errorf("a missing claim is read as %v, %v", now, err)
	}
}

func (h claimFixture) deletesAsKnown(t *testing.T) {
	claim := h.claims(t, "deleted", nil)
	marked := testkit.Value(h.MarkClaim(t.Context(), claim, aMark)).Must(t)
	wantResult(t, h.DeleteClaim(t.Context(), claim), treat.Stale)
	other := marked.DeepCopy()
	other.UID = "another"
	wantResult(t, h.DeleteClaim(t.Context(), other), treat.Stale)
	if now := h.fetched(t, "deleted"); now.DeletionTimestamp != nil {
		t.Fatal("it is deleted in a version that it no longer has")
	}
	wantResult(t, h.DeleteClaim(t.Context(), marked), treat.Made)
	now := h.fetched(t, "deleted")
	testkit.Require(t, now != nil && now.DeletionTimestamp != nil, "it is %+v", now)
	if err := h.Patch(t.Context(), now, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	wantResult(t, h.DeleteClaim(t.Context(), now), treat.Made) // already gone
}

func (h claimFixture) spares(t *testing.T) {
	const timestamp = karpenter.TerminationTimestampAnnotation
	for name, test := range map[string]struct {
		before   map[string]string
		mark     func(*ownership.Mark)
		meddle   map[string]string
		deadline string
	}{
		"spared":   {nil, func(*ownership.Mark) {}, nil, ""},
		"restored": {map[string]string{timestamp: "2027-01-01T00:00:00Z"}, func(m *ownership.Mark) { m.Before = "2027-01-01T00:00:00Z" }, nil, "2027-01-01T00:00:00Z"},
		"kept":     {map[string]string{timestamp: "2025-01-01T00:00:00Z"}, func(m *ownership.Mark) { m.Deadline = "" }, nil, "2025-01-01T00:00:00Z"},
		"theirs":   {nil, func(*ownership.Mark) {}, map[string]string{timestamp: "2026-06-06T00:00:00Z"}, "2026-06-06T00:00:00Z"},
	} {
		mark := aMark
		test.mark(&mark)
		marked, err := h.MarkClaim(t.Context(), h.claims(t, name, test.before), mark)
		testkit.Must(t, err)
		late := marked
		if test.meddle != nil {
			changed := marked.DeepCopy()
			for key, value := range test.meddle {
				changed.Annotations[key] = value
			}
			testkit.Must(t, h.Patch(t.Context(), changed, client.MergeFrom(marked)))
			marked = h.fetched(t, name)
		}
		spared, err := h.UnmarkClaim(t.Context(), marked, mark)
		wantResult(t, err, treat.Made)
		if _, isMarked := spared.Annotations[ownership.MarkAnnotation]; isMarked || spared.Annotations[timestamp] != test.deadline {
			t.Errorf("%s: the annotations are %v", name, spared.Annotations)
		}
		wantResult(t, h.DeleteClaim(t.Context(), late), treat.Stale) // the deletion was in flight
	}
}
