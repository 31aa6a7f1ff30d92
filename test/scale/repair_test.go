package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// decay is the condition that makes a node of the pool unhealthy.
	decay = "NTPProblem"
	// poolName is the pool of every node.
	poolName = "default"
)

// nodePool allows a hundred nodes in repair at once, each as soon as it is unhealthy.
const nodePool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  disruption:
    budgets: [{nodes: "100"}]
  repair:
    maxConcurrent: 100
    unhealthyThreshold: 100%
    policies:
    - {conditionType: NTPProblem, conditionStatus: "True", toleration: 0s}
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]
`

// poolFixture is a fixture whose nodes all have a NodeClaim. Karpenter does not run: a
// deleted claim stays with its node, like that of a draining node.
type poolFixture struct {
	*fixture
	claims *deletions
	server kubernetes.Interface
}

// poolFixtureIn gives every node of a fixture a claim. Other benchmarks cannot use the
// fixture afterwards.
func poolFixtureIn(b *testing.B, d *fixture) *poolFixture {
	b.Helper()
	ctx := b.Context()
	must := func(_ string, err error) {
		b.Helper()
		testkit.Must(b, err)
	}
	must("", karpenter.InstallCRDs(ctx, d.cluster))
	must(d.cluster.Kubectl(ctx, "patch", "crd", deploy.NodePoolCRD, "--type=json", "-p", string(deploy.NodePoolPatch())))
	must(d.cluster.KubectlApply(ctx, nodePool))
	b.Cleanup(func() {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		if err := shared.clear(); err != nil {
			b.Error(err)
		}
	})
	api := testkit.Value(dynamic.NewForConfig(d.cluster.AdminConfig())).Must(b)
	claims := api.Resource(karpenter.ClaimsResource)
	begin := time.Now()
	must("", each(ctx, d.nodes, 16, func(ctx context.Context, name string) error {
		node, err := d.write.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		claim := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(claimText(name)), &claim.Object); err != nil {
			return err
		}
		if claim, err = claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		status, err := json.Marshal(map[string]any{"status": map[string]any{
			"providerID": "testbed:///" + node.Labels[corev1.LabelTopologyZone] + "/" + name, "nodeName": name,
			"conditions": []metav1.Condition{
				{Type: "Initialized", Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: metav1.Now()},
				{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()},
			},
		}})
		if err != nil {
			return err
		}
		_, err = claims.Patch(ctx, claim.GetName(), types.MergePatchType, status, metav1.PatchOptions{}, "status")
		return err
	}))
	b.Logf("%d claims after %s", len(d.nodes), time.Since(begin).Round(time.Second))
	server := testkit.Value(kubernetes.NewForConfig(d.cluster.AdminConfig())).Must(b)
	return &poolFixture{fixture: d, claims: watchDeletions(b, d), server: server}
}

// claimText returns a claim of realistic size.
func claimText(node string) string {
	var types []string
	for i := range 60 {
		types = append(types, fmt.Sprintf("c%d.%dxlarge", 4+i%5, 1+i/5))
	}
	list, _ := json.Marshal(types) //nolint:errchkjson // strings always encode
	return fmt.Sprintf(`{
		"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
		"metadata": {"name": %q, "labels": {"karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "spot"}, "finalizers": ["karpenter.sh/termination"]},
		"spec": {
			"nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
			"requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": %s}]
		}}`, node, list)
}

// start runs a controller, and returns when the pool counts every node.
func (p *poolFixture) start(b *testing.B) *install.Controller {
	b.Helper()
	controller := p.fixture.start(b)
	await(b, controller, "the pool to count every node", quiet, func(m measured) bool { return m.nodesOf("NodePool", "default") == len(p.nodes) })
	return controller
}

// repairing counts the API server's requests for repairs.
type repairing struct {
	looks   int // reads of single nodes
	marked  int // claims patched
	deleted int // claims
	lists   int // of claims, pools or policies, and of nodes more often than listsEvery
	nodes   int // lists of nodes
	at      time.Time
}

func (p *poolFixture) asked(b *testing.B) repairing {
	b.Helper()
	page := metricsOf(b, p.server)
	count := func(verb, resource string) int {
		return page.sum("apiserver_request_total", `verb="`+verb+`"`, `resource="`+resource+`"`, `subresource=""`)
	}
	r := repairing{looks: count("GET", "nodes"), marked: count("PATCH", "nodeclaims"), deleted: count("DELETE", "nodeclaims"), nodes: count("LIST", "nodes"), at: time.Now()}
	for _, listed := range []string{"nodeclaims", "nodepools", "repairpolicies"} {
		r.lists += count("LIST", listed)
	}
	return r
}

func (r repairing) minus(before repairing) repairing {
	return repairing{
		looks: r.looks - before.looks, marked: r.marked - before.marked, deleted: r.deleted - before.deleted,
		lists: r.lists - before.lists + tooMany(r.nodes-before.nodes, r.at.Sub(before.at)),
	}
}

// BenchmarkConditionToTermination measures the time from a condition to the deletion of
// the node's NodeClaim.
//
// The fixture: 10,000 nodes of 15 KB in one NodePool, each with a NodeClaim of 2.5 KB, a
// repair block on the pool with a toleration of 0s, and four ConditionSets that do not
// match; the nodes are drawn with seed (1, 2). One operation is 50 failures, five a
// second, measured from before the write of the condition is sent until an informer has
// seen that the claim is being deleted: in between are a write of the ledger, a read of
// the node, the mark and the deletion. The benchmark asserts the requests to the API
// server: one read, one mark and one deletion for each, no list, and no write to a node.
// Karpenter does not run.
func BenchmarkConditionToTermination(b *testing.B) {
	const (
		nodes    = 10000
		failures = 50
		pace     = time.Second / 5
	)
	b.Run("nodes=10000", func(b *testing.B) {
		p := poolFixtureIn(b, fixtureOf(b, nodes))
		controller := p.start(b)
		var took []time.Duration
		var cpu time.Duration
		var done work
		b.ResetTimer()
		for b.Loop() {
			b.StopTimer()
			names := p.pick(failures)
			seen, before, asked, used := p.watcher.changes(), p.work(b, controller), p.asked(b), use(b, controller)
			there := p.claims.count()
			b.StartTimer()
			sent, _ := p.failOneByOne(b, names, decay, pace)
			err := p.claims.wait(b.Context(), there+failures)
			b.StopTimer()
			testkit.Must(b, err)
			cpu = use(b, controller).cpu - used.cpu
			for i, name := range names {
				took = append(took, p.claims.seen(name).Sub(sent[i]))
			}
			if got, want := p.asked(b).minus(asked), (repairing{looks: failures, marked: failures, deleted: failures}); got != want {
				b.Errorf("%d nodes were terminated with the requests %+v, want %+v", failures, got, want)
			}
			if got := p.watcher.changes() - seen; got != failures {
				b.Errorf("nodes were written to %d times: want one condition each", got)
			}
			done = p.work(b, controller).minus(before)
			if done.ledger > failures {
				b.Errorf("the ledger was written %d times for %d terminations", done.ledger, failures)
			}
			b.StartTimer()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(milliseconds(percentile(took, 50)), "p50-ms")
		b.ReportMetric(milliseconds(percentile(took, 95)), "p95-ms")
		b.ReportMetric(milliseconds(percentile(took, 100)), "max-ms")
		b.ReportMetric(float64(done.ledger)/failures, "pages/failure")
		b.ReportMetric(milliseconds(cpu)/failures, "cpu-ms/failure")
		p.report(b, controller)
	})
}

// deletions are the claims that are being deleted, as an informer sees them.
type deletions struct {
	mu sync.Mutex
	at map[string]time.Time
}

func watchDeletions(b *testing.B, d *fixture) *deletions {
	b.Helper()
	g := &deletions{at: map[string]time.Time{}}
	note := func(object any) {
		claim := object.(*metav1.PartialObjectMetadata)
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, known := g.at[claim.Name]; !known && claim.DeletionTimestamp != nil {
			g.at[claim.Name] = time.Now()
		}
	}
	watchObjects(b, d, karpenter.ClaimsResource, cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, object any) { note(object) }})
	return g
}

func (g *deletions) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.at)
}

func (g *deletions) seen(name string) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at[name]
}

// wait waits until this number of claims is being deleted.
func (g *deletions) wait(ctx context.Context, want int) error {
	return awaitCount(ctx, fmt.Sprintf("%d claims being deleted", want), g.count, func(going int) bool { return going >= want })
}
