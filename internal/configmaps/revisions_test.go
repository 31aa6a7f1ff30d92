package configmaps_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// file returns a file with one set of that type.
func file(kind string) string {
	return strings.ReplaceAll("type: ConditionSets\nconditionSets:\n- {type: KIND, effect: NoSchedule, taintKey: example.com/KIND, conditions: [{ConditionType: KIND, conditionStatus: true}]}\n", "KIND", kind)
}

func TestRevisionStore(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	c, err := client.New(cluster.AdminConfig(), client.Options{})
	testkit.Must(t, err)
	// pinned returns a ConfigMap in its own namespace.
	pinned := func(t *testing.T, name string) *corev1.ConfigMap {
		t.Helper()
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "revisions-"}}
		testkit.Must(t, c.Create(t.Context(), ns))
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: name}, Data: map[string]string{"sets.yaml": file("A"), "other": "x"}}
		testkit.Must(t, c.Create(t.Context(), m))
		return m
	}
	version := func(t *testing.T, m *corev1.ConfigMap, kind string) *configmaps.Version {
		t.Helper()
		m.Data["sets.yaml"] = file(kind)
		return testkit.Value(configmaps.Read(m)).Must(t)
	}
	// revisions returns the numbers of all revisions.
	revisions := func(t *testing.T, namespace string) (numbers []int64) {
		t.Helper()
		var list appsv1.ControllerRevisionList
		testkit.Must(t, c.List(t.Context(), &list, client.InNamespace(namespace)))
		for _, r := range list.Items {
			numbers = append(numbers, r.Revision)
		}
		return numbers
	}
	// finds compares what a new leader finds.
	finds := func(t *testing.T, m *corev1.ConfigMap, kind string) configmaps.Stored {
		t.Helper()
		all := testkit.Value(configmaps.NewRevisionStore(c, m.Namespace).List(t.Context())).Must(t)
		kept := all[m.UID]
		testkit.Require(t, kept.Version != nil && kept.Version.Same(version(t, m, kind)), "found %+v, want %s", kept, kind)
		if sets, err := configmaps.NewRevisionStore(c, m.Namespace).InForce(t.Context()); err != nil || len(sets) != 1 || sets[0].Spec.Type != kind {
			t.Errorf("in force are %v: %v", sets, err)
		}
		set := kept.Version.Sets[0]
		if set.Name != m.Name+"/sets.yaml/"+kind || set.UID != m.UID || !set.CreationTimestamp.Equal(&m.CreationTimestamp) {
			t.Errorf("the set is %+v", set.ObjectMeta)
		}
		return kept
	}

	t.Run("finds_a_stored_version_again_and_keeps_one_revision", func(t *testing.T) {
		m := pinned(t, strings.Repeat("long.", 50)+"abc")
		store, second := configmaps.NewRevisionStore(c, m.Namespace), configmaps.NewRevisionStore(c, m.Namespace)
		var kept configmaps.Stored
		for _, kind := range []string{"A", "B", "A"} {
			if kept, err = store.Store(t.Context(), kept, version(t, m, kind)); err != nil {
				t.Fatal(err)
			}
			finds(t, m, kind)
			for range 2 { // the second list uses the cache, and still sees the next revision
				if sets, err := second.InForce(t.Context()); err != nil || len(sets) != 1 || sets[0].Spec.Type != kind {
					t.Errorf("the second finds %v: %v", sets, err)
				}
			}
		}
		if got := revisions(t, m.Namespace); len(got) != 1 || got[0] != 3 {
			t.Errorf("revisions %v, want the third alone", got)
		}
		var list appsv1.ControllerRevisionList
		testkit.Must(t, c.List(t.Context(), &list, client.InNamespace(m.Namespace)))
		if owner := list.Items[0].OwnerReferences; len(owner) != 1 || owner[0].UID != m.UID || owner[0].Kind != "ConfigMap" {
			t.Errorf("it is owned by %v", owner)
		}
		if strings.Contains(string(list.Items[0].Data.Raw), "other") {
			t.Errorf("it keeps what was not read: %s", list.Items[0].Data.Raw)
		}
		testkit.Must(t, second.Delete(t.Context(), m.UID)) // a store without a cache
		if got := revisions(t, m.Namespace); len(got) != 0 {
			t.Errorf("revisions %v after all was cleared", got)
		}
	})

	t.Run("uses_the_higher_of_two_revisions_after_a_crash", func(t *testing.T) {
		m := pinned(t, "policies")
		store := configmaps.NewRevisionStore(c, m.Namespace)
		first, err := store.Store(t.Context(), configmaps.Stored{}, version(t, m, "A"))
		testkit.Must(t, err)
		// Another replica that does not know of the first revision, and whose deletion failed.
		var list appsv1.ControllerRevisionList
		testkit.Must(t, c.List(t.Context(), &list, client.InNamespace(m.Namespace)))
		testkit.Value(store.Store(t.Context(), first, version(t, m, "B"))).Must(t)
		left := list.Items[0].DeepCopy()
		left.ResourceVersion, left.UID = "", ""
		testkit.Must(t, c.Create(t.Context(), left))
		kept := finds(t, m, "B")
		testkit.Check(t, !kept.HasOneRevision(), "two revisions are called tidy")
		if kept, err = store.Store(t.Context(), kept, version(t, m, "B")); err != nil || !kept.HasOneRevision() {
			t.Errorf("after keeping the same again: %+v, %v", kept, err)
		}
		if got := revisions(t, m.Namespace); len(got) != 1 || got[0] != 2 {
			t.Errorf("revisions %v, want the second alone", got)
		}
	})

	t.Run("loses_nothing_with_two_leaders", func(t *testing.T) {
		m := pinned(t, "policies")
		store := configmaps.NewRevisionStore(c, m.Namespace)
		before := testkit.Value(store.Store(t.Context(), configmaps.Stored{}, version(t, m, "A"))).Must(t)
		testkit.Value(store.Store(t.Context(), configmaps.Stored{}, version(t, m, "B"))).Must(t)
		finds(t, m, "B")
		// A replica whose answer was lost stores the same version again.
		testkit.Value(store.Store(t.Context(), before, version(t, m, "B"))).Must(t)
		finds(t, m, "B")
		if got := revisions(t, m.Namespace); len(got) != 1 {
			t.Errorf("revisions %v", got)
		}
	})

	t.Run("ignores_foreign_and_reports_malformed_revisions", func(t *testing.T) {
		m := pinned(t, "policies")
		owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: m.Name, UID: m.UID}}
		for name, r := range map[string]*appsv1.ControllerRevision{
			"of-a-daemonset": {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner}},
			"bad":            {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner, Labels: map[string]string{configmaps.RevisionLabel: "true"}}},
		} {
			r.Name, r.Namespace, r.Data = name, m.Namespace, runtime.RawExtension{Raw: []byte(`{"metadata": {"name": "another"}}`)}
			testkit.Must(t, c.Create(t.Context(), r))
		}
		store := configmaps.NewRevisionStore(c, m.Namespace)
		all, err := store.List(t.Context())
		kept := all[m.UID]
		if err != nil || len(all) != 1 || kept.Version != nil || kept.Err == nil || !strings.Contains(kept.Err.Error(), "ControllerRevision bad cannot be read") {
			t.Fatalf("found %+v: %v", all, err)
		}
		testkit.Value(store.Store(t.Context(), kept, version(t, m, "A"))).Must(t)
		finds(t, m, "A")
		if got := revisions(t, m.Namespace); len(got) != 2 { // one is that of the DaemonSet
			t.Errorf("revisions %v", got)
		}
	})
}
