package treat_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

var nodes = schema.GroupResource{Resource: "nodes"}

func TestClassify(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want treat.Outcome
	}{
		{"an answer without error", nil, treat.Made},
		{"a conflict", apierrors.NewConflict(nodes, "n", errors.New("changed")), treat.Stale},
		{"no such node", apierrors.NewNotFound(nodes, "n"), treat.Stale},
		{"too many requests", apierrors.NewTooManyRequests("busy", 1), treat.Busy},
		{"forbidden", apierrors.NewForbidden(nodes, "n", nil), treat.Refused},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n", nil), treat.Refused},
		{"no such kind", &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "K"}}, treat.Refused},
		{"a server that broke down over it", apierrors.NewInternalError(errors.New("etcd")), treat.Unknown},
		{"a server that took too long", apierrors.NewTimeoutError("slow", 1), treat.Unknown},
		{"a server that is going down", apierrors.NewServiceUnavailable("bye"), treat.Unknown},
		{"no answer", errors.New("connection reset"), treat.Unknown},
		{"the request timed out", context.DeadlineExceeded, treat.Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.err
			if err != nil {
				err = fmt.Errorf("patching node n: %w", err)
			}
			if got := treat.Classify(err); got != test.want {
				t.Errorf("fate %d, want %d", got, test.want)
			}
		})
	}
}

func TestWriter(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	c := testkit.Value(client.New(cluster.AdminConfig(), client.Options{})).Must(t)
	writer := treat.NewWriter(c)
	plan := triage.Plan{Taints: []triage.PlannedTaint{{Taint: triage.Taint{
		Rule: triage.RuleID{Kind: policykind.ConditionSet, Name: "set"}, Key: "example.com/sick", Effect: triage.NoExecute,
	}}}}
	create := func(t *testing.T, name string) *corev1.Node {
		t.Helper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		testkit.Must(t, c.Create(t.Context(), node))
		return node
	}
	refuses := func(t *testing.T, change *treat.Change) {
		t.Helper()
		_, err := writer.Apply(t.Context(), change)
		if fate := treat.Classify(err); fate != treat.Stale {
			t.Errorf("the write was not refused as stale: %v", err)
		}
	}
	taints := func(t *testing.T, name string) []corev1.Taint {
		t.Helper()
		node := testkit.Value(writer.Fetch(t.Context(), name)).Must(t)
		return node.Spec.Taints
	}

	t.Run("makes_the_change_and_returns_the_new_version", func(t *testing.T) {
		change := treat.Prepare(create(t, "made"), plan, time.Now())
		version := testkit.Value(writer.Apply(t.Context(), change)).Must(t)
		node := testkit.Value(writer.Fetch(t.Context(), "made")).Must(t)
		testkit.Check(t, node.ResourceVersion == version, "the node has version %s, told was %s", node.ResourceVersion, version)
		if again := treat.Prepare(node, plan, time.Now()); again != nil {
			t.Errorf("what the server stored is not what was wanted: %+v", again)
		}
	})
	t.Run("detects_a_changed_node_by_its_version", func(t *testing.T) {
		node := create(t, "still")
		is := func(want bool) {
			t.Helper()
			if still, err := writer.IsStill(t.Context(), node); err != nil || still != want {
				t.Errorf("it is still the same: %t, %v; want %t", still, err, want)
			}
		}
		is(true)
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"new":"one"}}}`))
		testkit.Must(t, c.Patch(t.Context(), node.DeepCopy(), label))
		is(false)
		testkit.Must(t, c.Delete(t.Context(), node.DeepCopy()))
		if _, err := writer.IsStill(t.Context(), node); !apierrors.IsNotFound(err) {
			t.Errorf("a node that is gone: %v", err)
		}
	})
	t.Run("does_not_change_a_node_that_has_changed", func(t *testing.T) {
		node := create(t, "changed")
		change := treat.Prepare(node, plan, time.Now())
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"new":"one"}}}`))
		testkit.Must(t, c.Patch(t.Context(), node.DeepCopy(), label))
		refuses(t, change)
		if got := taints(t, "changed"); len(got) > 0 {
			t.Errorf("taints: %v", got)
		}
	})
	t.Run("does_not_change_another_node_of_the_same_name", func(t *testing.T) {
		node := create(t, "again")
		change := treat.Prepare(node, plan, time.Now())
		testkit.Must(t, c.Delete(t.Context(), node.DeepCopy()))
		refuses(t, change)
		successor := create(t, "again")
		refuses(t, change)
		change.Node.ResourceVersion = successor.ResourceVersion // even if the version is correct by chance
		if _, err := writer.Apply(t.Context(), change); err == nil {
			t.Error("the write was made")
		}
		if got := taints(t, "again"); len(got) > 0 {
			t.Errorf("taints: %v", got)
		}
	})
	t.Run("a_fence_makes_an_older_write_fail", func(t *testing.T) {
		node := create(t, "fenced")
		older := treat.Prepare(node, plan, time.Now())
		testkit.Value(writer.Apply(t.Context(), treat.Fence(node, "me"))).Must(t)
		refuses(t, older)
	})
	t.Run("finds_a_pod_that_protects_its_node", func(t *testing.T) {
		err := c.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
		testkit.Require(t, err == nil || apierrors.IsAlreadyExists(err), "the ServiceAccount: %v", err)
		pod := func(name, node, annotation, value string) *corev1.Pod {
			t.Helper()
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{annotation: value}},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
			}
			testkit.Must(t, c.Create(t.Context(), p))
			return p
		}
		finds := func(wanted, by string) {
			t.Helper()
			found, annotation, err := writer.ProtectingPod(t.Context(), "n1")
			testkit.Check(t, err == nil && found == wanted && annotation == by, "found pod %q with annotation %q, %v; want %q, %q", found, annotation, err, wanted, by)
		}
		const theirs, ours = "karpenter.sh/do-not-disrupt", "autohealer.resourcestack.com/do-not-disrupt"
		pod("elsewhere", "n2", theirs, "true")
		pod("not", "n1", theirs, "false")
		ended := pod("ended", "n1", theirs, "true")
		ended.Status.Phase = corev1.PodSucceeded
		testkit.Must(t, c.Status().Update(t.Context(), ended))
		finds("", "")
		running := pod("running", "n1", theirs, "true")
		finds("default/running", theirs)
		testkit.Must(t, c.Delete(t.Context(), running)) // no kubelet confirms it, so the pod stays for its grace period
		finds("", "")
		pod("running-too", "n1", ours, "true")
		finds("default/running-too", ours)
	})
}
