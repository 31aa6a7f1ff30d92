package karpenter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// limit bounds the waits. It suits two busy cores.
const limit = time.Minute

// terminationTime is when Karpenter stops waiting for the pods of a claim.
const terminationTime = "karpenter.sh/nodeclaim-termination-timestamp"

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until check returns no error.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	testkit.Must(t, await(within(t, limit), what, check))
}

// The tests share one cluster; each has its own pool.
func TestKarpenter(t *testing.T) {
	c := testbed.New(t, testbed.Config{
		ControllerManager: true, Scheduler: true, Kwok: true,
		Record: []schema.GroupVersionResource{testbed.NodesResource, ClaimsResource, PoolsResource},
		// The default of forty seconds until a silent node is NotReady is too slow for the
		// tests.
		Flags: testbed.Flags{ControllerManager: []string{"--node-monitor-grace-period=12s", "--node-startup-grace-period=5s"}},
	})
	k := New(t, c, Config{Gates: map[string]bool{"NodeRepair": false}})

	t.Run("while it runs", func(t *testing.T) { testPools(t, c, k) })
	t.Run("after a kill it continues", func(t *testing.T) { testKill(t, k) })
}

func testPools(t *testing.T, c *testbed.Cluster, k *Karpenter) {
	t.Helper()
	t.Run("creates nodes for a Deployment, two pods on each", func(t *testing.T) {
		t.Parallel()
		deploy(t, k, "blue", 6)
		nodes := testkit.Value(k.Nodes(t.Context(), "blue")).Must(t)
		claims := testkit.Value(k.Claims(t.Context(), "blue")).Must(t)
		testkit.Require(t, len(nodes) == 3 && len(claims) == 3, "3 nodes and 3 claims expected, found %d and %d", len(nodes), len(claims))

		t.Run("that keep the conditions of an agent", func(t *testing.T) {
			node := nodes[0].Name
			testkit.Must(t, c.SetCondition(t.Context(), node, corev1.NodeCondition{Type: "DiskUnhealthy", Status: corev1.ConditionTrue, Reason: "Test"}))
			// A kubelet that returns from silence rewrites only its own conditions.
			testkit.Must(t, c.SetCondition(t.Context(), node, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "Test"}))
			eventually(t, "Ready", func(ctx context.Context) error { return expect(ctx, k, node, corev1.NodeReady, corev1.ConditionTrue) })
			testkit.Must(t, expect(t.Context(), k, node, "DiskUnhealthy", corev1.ConditionTrue))
		})
	})

	t.Run("replaces a node whose claim is deleted by force", func(t *testing.T) {
		t.Parallel()
		// These pods would take longer to stop than the test.
		deployFor(t, k, Deployment{Name: "green", Pool: "green", Replicas: 4, GracePeriod: 5 * time.Minute})
		claims := testkit.Value(k.Claims(t.Context(), "green")).Must(t)
		victim := claims[0]
		began := time.Now()
		deleteByForce(t, k, victim)
		eventually(t, "the claim gone", func(ctx context.Context) error {
			claims, err := k.Claims(ctx, "green")
			for _, claim := range claims {
				if claim.GetUID() == victim.GetUID() {
					return errors.New("it is still there")
				}
			}
			return err
		})
		testkit.Must(t, k.AwaitWhole(within(t, limit), "green"))
		t.Logf("gone and whole again after %s", time.Since(began).Round(100*time.Millisecond))

		t.Run("and all writes have a known author", func(t *testing.T) {
			assertAuthors(t, c, victim)
		})
	})

	for _, never := range []struct {
		startup Startup
		status  corev1.ConditionStatus // the final status of Ready
		why     string                 // the reason of Initialized
	}{
		{StartsSilent, corev1.ConditionUnknown, "NodeNotReady"},
		{StartsUnready, corev1.ConditionFalse, "NodeNotReady"},
		{StartsTainted, corev1.ConditionTrue, "StartupTaintsExist"},
	} {
		pool := strings.ToLower(string(never.startup))
		t.Run("leaves a node that starts "+pool+" as it is", func(t *testing.T) {
			t.Parallel()
			testkit.Must(t, k.CreatePool(t.Context(), Pool{Name: pool, Startup: never.startup}))
			testkit.Must(t, k.Deploy(t.Context(), Deployment{Name: pool, Pool: pool, Replicas: 2}))
			standstill := func(ctx context.Context) error {
				nodes, err := k.Nodes(ctx, pool)
				if err != nil || len(nodes) != 1 {
					return fmt.Errorf("%d nodes instead of 1: %w", len(nodes), err)
				}
				claims, err := k.Claims(ctx, pool)
				if err != nil || len(claims) != 1 {
					return fmt.Errorf("%d claims instead of 1: %w", len(claims), err)
				}
				if nodes[0].Labels["karpenter.sh/initialized"] != "" {
					return errors.New("the node is initialized")
				}
				if reason := Condition(&claims[0], "Initialized").Reason; reason != never.why {
					return fmt.Errorf("the reason of Initialized is %q instead of %q", reason, never.why)
				}
				if reason := k.Whole(ctx, pool); reason == nil {
					return errors.New("its pods run")
				}
				return expect(ctx, k, nodes[0].Name, corev1.NodeReady, never.status)
			}
			eventually(t, "the final state of the node", standstill)
			// Long enough for several heartbeats of the controller manager.
			look := time.NewTicker(pollInterval)
			defer look.Stop()
			for until := time.Now().Add(5 * time.Second); time.Now().Before(until); <-look.C {
				testkit.Must(t, standstill(t.Context()))
			}
		})
	}
}

func testKill(t *testing.T, k *Karpenter) {
	t.Helper()
	testkit.Must(t, k.CreatePool(t.Context(), Pool{Name: "red", Spec: map[string]any{
		"disruption": map[string]any{"budgets": []any{map[string]any{"nodes": "1"}}},
	}}))
	testkit.Must(t, k.Kill())
	testkit.Must(t, k.Deploy(t.Context(), Deployment{Name: "red", Pool: "red", Replicas: 2}))
	eventually(t, "waiting pods", func(ctx context.Context) error {
		pods, err := k.client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=red"})
		if err != nil || len(pods.Items) != 2 {
			return fmt.Errorf("%d pods instead of 2: %w", len(pods.Items), err)
		}
		return nil
	})
	if nodes, err := k.Nodes(t.Context(), "red"); err != nil || len(nodes) != 0 {
		t.Fatalf("nodes without a Karpenter: %d, %v", len(nodes), err)
	}
	testkit.Must(t, k.Restart(within(t, limit)))
	testkit.Must(t, k.AwaitWhole(within(t, limit), "red"))

	pool, err := k.dynamic.Resource(PoolsResource).Get(t.Context(), "red", metav1.GetOptions{})
	testkit.Must(t, err)
	budgets, _, err := unstructured.NestedSlice(pool.Object, "spec", "disruption", "budgets")
	testkit.Must(t, err)
	after, _, err := unstructured.NestedString(pool.Object, "spec", "disruption", "consolidateAfter")
	testkit.Must(t, err)
	if got := fmt.Sprintln(budgets, after); got != "[map[nodes:1]] Never\n" {
		t.Errorf("budgets and consolidateAfter are %s: Spec is not put over the rest", got)
	}
}

func TestValidate(t *testing.T) {
	for name, wrong := range map[string]interface{ Validate() error }{
		"a gate without a name":           Config{Gates: map[string]bool{"": true}},
		"a gate with its value":           Config{Gates: map[string]bool{"NodeRepair=true": true}},
		"a variable without a value":      Config{Env: []string{"LOG_LEVEL"}},
		"a pool without a name":           Pool{},
		"an unknown startup":              Pool{Name: "blue", Startup: "Slow"},
		"a deployment without a pool":     Deployment{Name: "web"},
		"a negative number of pods":       Deployment{Name: "web", Pool: "blue", Replicas: -1},
		"a grace period of half a second": Deployment{Name: "web", Pool: "blue", GracePeriod: time.Second / 2},
		"a negative grace period":         Deployment{Name: "web", Pool: "blue", GracePeriod: -time.Second},
	} {
		if err := wrong.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, right := range map[string]interface{ Validate() error }{
		"nothing at all": Config{},
		"a gate":         Config{Gates: map[string]bool{"NodeRepair": true}, Env: []string{"LOG_LEVEL=debug"}},
		"a pool":         Pool{Name: "blue", Startup: StartsTainted},
		"a deployment":   Deployment{Name: "web", Pool: "blue", Replicas: 2, GracePeriod: time.Minute},
	} {
		if err := right.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func deploy(t *testing.T, k *Karpenter, name string, replicas int) {
	t.Helper()
	deployFor(t, k, Deployment{Name: name, Pool: name, Replicas: replicas})
}

// deployFor creates a pool and a Deployment on it, and waits for its pods.
func deployFor(t *testing.T, k *Karpenter, d Deployment) {
	t.Helper()
	testkit.Must(t, k.CreatePool(t.Context(), Pool{Name: d.Pool}))
	testkit.Must(t, k.Deploy(t.Context(), d))
	testkit.Must(t, k.AwaitWhole(within(t, limit), d.Name))
}

func deleteByForce(t *testing.T, k *Karpenter, claim unstructured.Unstructured) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, terminationTime, time.Now().Format(time.RFC3339))
	testkit.Value(k.dynamic.Resource(ClaimsResource).Patch(t.Context(), claim.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})).Must(t)
	testkit.Must(t, k.dynamic.Resource(ClaimsResource).Delete(t.Context(), claim.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.GetUID()))}))
}

// assertAuthors checks the authors of the claims and nodes of a pool, and of the victim's
// deletion: Karpenter did everything except the deletion of the claim.
func assertAuthors(t *testing.T, c *testbed.Cluster, victim unstructured.Unstructured) {
	t.Helper()
	recording := testkit.Value(c.RecordingOf(within(t, limit), func(change testbed.Change) bool {
		return change.Object.GetLabels()[testbed.PoolLabel] == "green"
	})).Must(t)
	seen := map[string]int{}
	for _, change := range recording {
		switch {
		case !change.Author.Known() && strings.Count(change.Author.Reason, " by "+User+" ") == 2:
			// Karpenter patches a claim and at once its status. A request without a change
			// gets the version of the previous change, so the author is one of the two.
			seen["changed "+User]++
		case !change.Author.Known():
			t.Errorf("%s of %s %s has no known author: %s", change.Type, change.GVR.Resource, change.Name, change.Author)
		case change.Type == watch.Added:
			seen["made "+change.GVR.Resource+" "+change.Author.User]++
		case change.UID != victim.GetUID():
		case change.Type == watch.Deleted:
			seen["took away "+change.Author.User]++
		case change.Author.Verb == "delete":
			seen["ordered "+change.Author.User]++
		}
	}
	for deed, times := range map[string]int{
		"made nodeclaims " + User: 3, // two, and one for the victim
		"made nodes " + User:      3,
		"ordered admin":           1,
		"took away " + User:       1,
	} {
		testkit.Check(t, seen[deed] == times, "%s: %d times expected, of %v", deed, times, seen)
	}
	t.Logf("%d writes, all with a known user: %v", len(recording), seen)
}

func expect(ctx context.Context, k *Karpenter, node string, kind corev1.NodeConditionType, status corev1.ConditionStatus) error {
	object, err := k.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == kind && condition.Status == status {
			return nil
		}
	}
	return fmt.Errorf("%s of node %s is not %s: %v", kind, node, status, object.Status.Conditions)
}
