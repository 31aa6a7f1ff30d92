package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// oxen have a plural that cannot be derived from their kind.
var oxen = schema.GroupVersionResource{Group: "farm.example.com", Version: "v1", Resource: "oxen"}

const oxenDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: oxen.farm.example.com}
spec:
  group: farm.example.com
  scope: Cluster
  names: {plural: oxen, singular: ox, kind: Ox}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func TestRecorder(t *testing.T) {
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	c := New(t, Config{
		Record:   []schema.GroupVersionResource{NodesResource, PodsResource, LeasesResource, namespaces, oxen},
		RecordIn: map[schema.GroupVersionResource][]string{LeasesResource: {"locks", "elections"}},
	})
	testkit.Value(c.Kubectl(t.Context(), "create", "clusterrolebinding", "friends", "--clusterrole=cluster-admin", "--group=system:serviceaccounts:default")).Must(t)
	alice, bob := friend(t, c, "alice"), friend(t, c, "bob")
	read := func(t *testing.T) Recording {
		t.Helper()
		return testkit.Value(c.Recording(within(t, limit))).Must(t)
	}

	t.Run("begins before the first write", func(t *testing.T) {
		changes := read(t).about("kube-system")
		if len(changes) == 0 || changes[0].Type != watch.Added || changes[0].GVR != namespaces || changes[0].Author.User != "system:apiserver" {
			t.Errorf("changes of kube-system: %v", changes)
		}
	})

	t.Run("records only the configured namespaces", func(t *testing.T) {
		for _, namespace := range []string{"locks", "locks-of-others"} {
			testkit.Value(c.Kubectl(t.Context(), "create", "namespace", namespace)).Must(t)
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lock"}}
			lease = testkit.Value(alice.CoordinationV1().Leases(namespace).Create(t.Context(), lease, metav1.CreateOptions{})).Must(t)
			lease.Spec.HolderIdentity = new("bob")
			testkit.Value(bob.CoordinationV1().Leases(namespace).Update(t.Context(), lease, metav1.UpdateOptions{})).Must(t)
		}
		testkit.Must(t, alice.CoordinationV1().Leases("locks").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		changes := read(t).about("lock")
		testkit.Require(t, len(changes) == 3, "%d changes, want those in one namespace: %v", len(changes), changes)
		for i, by := range []string{"alice", "bob", "alice"} {
			if c := changes[i]; c.GVR != LeasesResource || c.Namespace != "locks" || !strings.HasSuffix(c.Author.User, ":"+by) {
				t.Errorf("change %d is of %s %s/%s by %s", i, c.GVR.Resource, c.Namespace, c.Name, c.Author)
			}
		}
	})

	t.Run("names the author of each write", func(t *testing.T) {
		node := createNode(t, c, "authors")
		nodes := alice.CoreV1().Nodes()
		labelled := testkit.Value(nodes.Patch(t.Context(), node.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"by":"alice"}}}`), metav1.PatchOptions{FieldManager: "hand"})).Must(t)
		labelled.Labels["by"] = "bob"
		testkit.Value(bob.CoreV1().Nodes().Update(t.Context(), labelled, metav1.UpdateOptions{})).Must(t)
		testkit.Must(t, c.SetCondition(t.Context(), node.Name, corev1.NodeCondition{Type: "X", Status: "True"}))
		expect(t, read(t).about(node.Name),
			"ADDED by admin: create (testbed)",
			"MODIFIED by alice: patch (hand)",
			"MODIFIED by bob: update (bob)",
			"MODIFIED by admin: patch status (testbed)",
		)
	})

	t.Run("does not name clients that changed nothing", func(t *testing.T) {
		node := createNode(t, c, "nothing")
		patch := []byte(`{"metadata":{"labels":{"by":"alice"}}}`)
		testkit.Value(bob.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})).Must(t)
		written := testkit.Value(alice.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, patch, metav1.PatchOptions{})).Must(t)
		again := testkit.Value(bob.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, patch, metav1.PatchOptions{})).Must(t)
		testkit.Value(bob.CoreV1().Nodes().Update(t.Context(), again, metav1.UpdateOptions{})).Must(t)
		testkit.Require(t, written.ResourceVersion == again.ResourceVersion, "the patch should change nothing")
		expect(t, read(t).about(node.Name), "ADDED by admin: create (testbed)", "MODIFIED by alice: patch (alice)")
	})

	t.Run("names the author of a deletion", func(t *testing.T) {
		t.Run("at once", func(t *testing.T) {
			node := createNode(t, c, "gone")
			testkit.Must(t, bob.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
			changes := read(t).about(node.Name)
			expect(t, changes, "ADDED by admin: create (testbed)", "DELETED by bob: delete ()")
			if last := changes[1]; last.UID != node.UID || last.Object.GetLabels()[corev1.LabelHostname] != node.Name || !newer(last.ResourceVersion, node.ResourceVersion) {
				t.Errorf("the deletion carries %v", last.Object)
			}
		})

		t.Run("by removing the last finalizer", func(t *testing.T) {
			node := createNode(t, c, "finalizer")
			testkit.Value(alice.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/wait"]}}`), metav1.PatchOptions{})).Must(t)
			for _, friend := range []kubernetes.Interface{alice, bob} { // bob's deletion changes nothing
				testkit.Must(t, friend.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
			}
			testkit.Value(bob.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})).Must(t)
			expect(t, read(t).about(node.Name),
				"ADDED by admin: create (testbed)",
				"MODIFIED by alice: patch (alice)",
				"MODIFIED by alice: delete ()",
				"DELETED by bob: patch (bob)",
			)
		})

		t.Run("a collection", func(t *testing.T) {
			nodes := testkit.Value(c.CreateNodes(t.Context(), Nodes{Count: 2, Prefix: "herd", Labels: map[string]string{"herd": "yes"}})).Must(t)
			testkit.Must(t, alice.CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "herd=yes"}))
			for _, node := range nodes {
				expect(t, read(t).about(node.Name), "ADDED by admin: create (testbed)", "DELETED by alice: deletecollection ()")
			}
		})

		t.Run("of several objects with the same name", func(t *testing.T) {
			for _, friend := range []kubernetes.Interface{alice, bob} {
				testkit.Must(t, friend.CoreV1().Nodes().Delete(t.Context(), createNode(t, c, "again").Name, metav1.DeleteOptions{}))
			}
			expect(t, read(t).about("again-0001"),
				"ADDED by admin: create (testbed)", "DELETED by alice: delete ()",
				"ADDED by admin: create (testbed)", "DELETED by bob: delete ()",
			)
		})

		t.Run("by eviction, and then by force", func(t *testing.T) {
			node := createNode(t, c, "drained")
			pods := c.client.CoreV1().Pods("default")
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "evicted"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}}}
			testkit.Value(pods.Create(t.Context(), pod, metav1.CreateOptions{FieldManager: "hand"})).Must(t)
			testkit.Must(t, bob.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node.Name}}, metav1.CreateOptions{}))
			testkit.Must(t, alice.PolicyV1().Evictions("default").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod.Name}}))
			testkit.Must(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
			expect(t, read(t).about(pod.Name),
				"ADDED by admin: create (hand)",
				"MODIFIED by bob: create binding (bob)",
				"MODIFIED by alice: create eviction (alice)", // marked
				"MODIFIED by alice: create eviction (alice)", // terminating
				"MODIFIED by admin: delete ()",               // no more grace
				"DELETED by admin: delete ()",
			)
		})
	})

	t.Run("says unknown for a change without a request", func(t *testing.T) {
		node := createNode(t, c, "unknown")
		stored := lastWrite(t, c, node.Name)
		put(t, c.recorder.etcd, "/registry/minions/"+node.Name, stored.value)
		changes := read(t).about(node.Name)
		if len(changes) != 2 || changes[1].Author.Known() || changes[1].Author.Reason == "" || changes[1].Author.User != UnknownUser {
			t.Errorf("changes: %v", changes)
		}
	})

	t.Run("records custom resources from their first object on", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "crd.yaml")
		testkit.Must(t, os.WriteFile(file, []byte(oxenDefinition), 0o600))
		for _, args := range [][]string{{"create", "-f", file}, {"wait", "--for=condition=Established", "crd/oxen.farm.example.com"}} {
			testkit.Value(c.Kubectl(t.Context(), args...)).Must(t)
		}
		client := testkit.Value(dynamic.NewForConfig(c.AdminConfig())).Must(t).Resource(oxen)
		ox := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "farm.example.com/v1", "kind": "Ox", "metadata": map[string]any{"name": "babe"}, "spec": map[string]any{"colour": "blue"}}}
		testkit.Value(client.Create(t.Context(), ox, metav1.CreateOptions{FieldManager: "hand"})).Must(t)
		testkit.Must(t, client.Delete(t.Context(), "babe", metav1.DeleteOptions{}))
		changes := read(t).about("babe")
		expect(t, changes, "ADDED by admin: create (hand)", "DELETED by admin: delete ()")
		if colour, _, _ := unstructured.NestedString(changes[0].Object.Object, "spec", "colour"); colour != "blue" || changes[0].GVR != oxen {
			t.Errorf("recorded %v of %v", changes[0].Object, changes[0].GVR)
		}
	})

	t.Run("hands out copies", func(t *testing.T) {
		first := read(t)
		first[0].Object.SetName("scribbled")
		first[0].Author.User = "changed"
		if second := read(t); second[0].Object.GetName() == "scribbled" || second[0].Author.User == "changed" {
			t.Error("a change by one reader is visible to another")
		}
	})

	t.Run("returns a part that equals the whole", func(t *testing.T) {
		whole := read(t)
		name := whole[len(whole)/2].Name
		part := testkit.Value(c.RecordingOf(within(t, limit), func(c Change) bool { return c.Name == name })).Must(t)
		if want := whole.about(name); len(part) == 0 || !reflect.DeepEqual(part, want) {
			t.Errorf("%v, want %v", part, want)
		}
	})

	t.Run("neither loses nor duplicates changes when etcd and the API server are killed", func(t *testing.T) {
		const writers = 4
		acknowledged := make([]map[string]string, writers) // user by resourceVersion
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		for i := range writers {
			node := createNode(t, c, fmt.Sprintf("storm-%d", i))
			acknowledged[i] = make(map[string]string)
			user, client := "alice", alice
			if i%2 == 1 {
				user, client = "bob", bob
			}
			pace := time.NewTicker(5 * time.Millisecond) // a server that starts needs the processor
			defer pace.Stop()
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, n)
					written, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
					if err == nil {
						acknowledged[i][written.ResourceVersion] = user
					}
					<-pace.C
				}
			})
		}
		for _, part := range []*Part{c.APIServer, c.Etcd, c.APIServer} {
			more(t, c, 50)
			testkit.Must(t, errors.Join(part.Kill(), part.Restart(within(t, limit))))
		}
		more(t, c, 50)
		stop()
		wg.Wait()

		authors := make(map[string]Author)
		last := "0"
		for _, change := range read(t) {
			testkit.Check(t, newer(change.ResourceVersion, last), "%s comes after %s", change.ResourceVersion, last)
			last = change.ResourceVersion
			authors[change.ResourceVersion] = change.Author
		}
		total, unproved := 0, 0
		for _, writes := range acknowledged {
			for version, user := range writes {
				total++
				switch author, ok := authors[version]; {
				case !ok:
					t.Errorf("the write of %s by %s is lost", version, user)
				case !author.Known():
					unproved++
				case author.User != "system:serviceaccount:default:"+user:
					t.Errorf("the write of %s by %s is attributed to %s", version, user, author)
				}
			}
		}
		t.Logf("%d writes acknowledged, %d of them without proof of their author", total, unproved)
		// At each kill of the API server, each writer may have one write that is answered
		// and not yet in the audit log, or overlaps with an unanswered write.
		if most := 2 * writers; total < 200 || unproved > most {
			t.Errorf("%d writes, %d without proof, which is more than %d", total, unproved, most)
		}
	})
}

func TestRecorderAlone(t *testing.T) {
	c := etcdAlone(t, Config{Record: []schema.GroupVersionResource{NodesResource}})
	etcd := newEtcdClient(c.etcdSocket())
	defer etcd.http.CloseIdleConnections()

	t.Run("continues where its watch broke off", func(t *testing.T) {
		r := newRecorder(c.cfg.Record, nil, c.etcdSocket(), c.folder.log("nothing"))
		for i := range 3 {
			// One write while it watches, and one while it does not.
			r.start(t.Context())
			for _, when := range []string{"watched", "unwatched"} {
				name := fmt.Sprintf("%s-%d", when, i)
				put(t, etcd, "/registry/minions/"+name, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, name))
				if when == "watched" {
					testkit.Value(r.upTo(within(t, limit), testkit.Value(etcd.revision(t.Context())).Must(t))).Must(t)
					r.stop()
					r.done = make(chan struct{})
				}
			}
		}
		r.start(t.Context())
		defer r.stop()
		var names []string
		for _, change := range testkit.Value(r.read(within(t, limit))).Must(t) {
			names = append(names, change.Name)
		}
		if want := []string{"watched-0", "unwatched-0", "watched-1", "unwatched-1", "watched-2", "unwatched-2"}; !slices.Equal(names, want) {
			t.Errorf("recorded %q, want %q", names, want)
		}
	})

	t.Run("catches up with many changes", func(t *testing.T) {
		const many = 500 // 7 MB, more than the default limit of a gRPC message
		node := testkit.Value(json.Marshal(RealNodes(1).node(0, time.Now()))).Must(t)
		node = bytes.Replace(node, []byte("{"), []byte(`{"apiVersion":"v1","kind":"Node",`), 1)
		for range many {
			put(t, etcd, "/registry/minions/large", node)
		}
		r := newRecorder(c.cfg.Record, nil, c.etcdSocket(), c.folder.log("nothing"))
		r.start(t.Context())
		defer r.stop()
		writes := testkit.Value(r.upTo(within(t, limit), testkit.Value(etcd.revision(t.Context())).Must(t))).Must(t)
		large := slices.DeleteFunc(slices.Clone(writes), func(w write) bool { return !bytes.Equal(w.value, node) })
		testkit.Check(t, len(large) == many, "%d writes, not %d", len(large), many)
	})

	t.Run("returns an error if etcd has compacted the next changes", func(t *testing.T) {
		for i := range 5 {
			put(t, etcd, "/key", []byte(strconv.Itoa(i)))
		}
		revision := testkit.Value(etcd.revision(t.Context())).Must(t)
		testkit.Value(etcd.post(t.Context(), "/v3/kv/compaction", map[string]any{"revision": revision})).Must(t).Close()

		c.recorder.start(t.Context()) // too late
		if _, err := c.Recording(within(t, limit)); !errors.Is(err, errCompacted) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("returns an error if nothing is recorded", func(t *testing.T) {
		testkit.Value(new(Cluster).Recording(t.Context())).Fails(t, "Config.Record is empty")
	})

	t.Run("returns an error if etcd does not answer", func(t *testing.T) {
		testkit.Must(t, c.Etcd.Kill())
		testkit.Value(c.Recording(within(t, limit))).Fails(t, "reading etcd's revision")
	})
}

// After a restore, etcd uses revisions again that had other writes before.
func TestRecordingAfterARestore(t *testing.T) {
	c := New(t, Config{Record: []schema.GroupVersionResource{NodesResource}})
	label := func(node, value string) {
		t.Helper()
		patch := []byte(`{"metadata":{"labels":{"is":"` + value + `"}}}`)
		testkit.Value(c.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: strings.TrimRight(value, "0123456789")})).Must(t)
	}
	kept := createNode(t, c, "kept").Name
	restore := testkit.Value(c.Backup(t.Context())).Must(t)
	lost := createNode(t, c, "lost").Name
	for i := range 200 {
		label(lost, "lost"+strconv.Itoa(i))
	}
	label(kept, "lost")
	testkit.Must(t, restore(t.Context()))
	label(kept, "after")
	after := createNode(t, c, "after").Name

	recording := testkit.Value(c.Recording(within(t, limit))).Must(t)
	expect(t, recording.about(kept), "ADDED by admin: create (testbed)", "MODIFIED by admin: patch (after)")
	expect(t, recording.about(lost))
	expect(t, recording.about(after), "ADDED by admin: create (testbed)")
	testkit.Same(t, len(c.Lost()), 1, "recordings before a restore")
	expect(t, c.Lost()[0].about(kept), "ADDED by admin: create (testbed)", "MODIFIED by admin: patch (lost)")
	testkit.Same(t, len(c.Lost()[0].about(lost)), 201, "changes of the lost node")
	at, end := recording.about(after)[0].ResourceVersion, c.Lost()[0][len(c.Lost()[0])-1].ResourceVersion
	testkit.Check(t, newer(end, at), "version %s was not used before: the last version was %s", at, end)
}

// friend returns a client of a service account with this name, also in its user agent.
func friend(t *testing.T, c *Cluster, name string) kubernetes.Interface {
	t.Helper()
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), "default", name)).Must(t)
	config.UserAgent = name + "/v1"
	return clientFor(t, config)
}

// expect compares changes with lines like "MODIFIED by alice: patch status (hand)".
func expect(t *testing.T, changes Recording, want ...string) {
	t.Helper()
	var got []string
	for _, change := range changes {
		author := change.Author
		verb := strings.TrimSpace(author.Verb + " " + author.Subresource)
		got = append(got, fmt.Sprintf("%s by %s: %s (%s)", change.Type, strings.TrimPrefix(author.User, "system:serviceaccount:default:"), verb, author.FieldManager))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// more waits until n further writes are recorded.
func more(t *testing.T, c *Cluster, n int) {
	t.Helper()
	written := func() int {
		c.recorder.mu.Lock()
		defer c.recorder.mu.Unlock()
		return len(c.recorder.writes)
	}
	before := written()
	testkit.Eventually(t, "more writes", func() error {
		if now := written(); now < before+n {
			return fmt.Errorf("%d, not %d", now-before, n)
		}
		return nil
	})
}

func lastWrite(t *testing.T, c *Cluster, node string) write {
	t.Helper()
	testkit.Value(c.Recording(within(t, limit))).Must(t)
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	for _, w := range slices.Backward(c.recorder.writes) {
		if object, err := w.object(); err == nil && object.GetName() == node {
			return w
		}
	}
	t.Fatalf("no write of %s", node)
	return write{}
}

// put writes to etcd without the API server.
func put(t *testing.T, etcd etcdClient, key string, value []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	testkit.Value(etcd.post(ctx, "/v3/kv/put", map[string]any{"key": []byte(key), "value": value})).Must(t).Close()
}

func newer(a, b string) bool {
	x, _ := strconv.ParseInt(a, 10, 64)
	y, _ := strconv.ParseInt(b, 10, 64)
	return x > y
}
