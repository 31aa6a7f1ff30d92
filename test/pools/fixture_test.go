package pools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// maxWait bounds every wait. It suits two busy cores.
	maxWait = 3 * time.Minute
	// firstPause is the pause before the second check. Every later pause is longer.
	firstPause = 50 * time.Millisecond

	markAnnotation     = "autohealer.resourcestack.com/repair"
	deadlineAnnotation = "karpenter.sh/nodeclaim-termination-timestamp"
	ourVeto            = "autohealer.resourcestack.com/do-not-repair"
	karpentersVeto     = "karpenter.sh/do-not-repair"

	leaseNamespace = "medik8s-leases"
	ledgerName     = "autohealer-ledger"
)

// remediations are the resources of the remediator.
var remediations = []schema.GroupVersionResource{
	remediator.GroupVersion.WithResource("exampleremediations"),
	remediator.GroupVersion.WithResource("exampleremediationtemplates"),
}

// wait is for all waits.
var wait = testkit.Wait{Limit: maxWait, First: firstPause, Longest: time.Second}

// readyTimeouts enables the replacement of nodes that do not become ready. Each pool sets
// its own timeout.
const readyTimeouts = "--feature-gates=NodeReadyTimeoutRecovery=true"

// alone lets a controller start without waiting for the lease of a killed controller. Only
// the ledger keeps the two apart.
const alone = "--leader-elect=false"

// fixture is a cluster with Karpenter and the controller installed, and with the repair
// block in the schema of NodePools.
type fixture struct {
	*install.Fixture
	karpenter *karpenter.Karpenter
	api       client.Client // with the rights of an admin
}

func newFixture(t *testing.T, cfg karpenter.Config) *fixture {
	t.Helper()
	installed := install.NewFixture(t, wait, testbed.Config{
		ControllerManager: true, Scheduler: true, Kwok: true,
		Record:   history.Resources(remediations...),
		RecordIn: history.Namespaces(),
		Flags: testbed.Flags{
			// The default of forty seconds until a silent node is NotReady is too slow for
			// the tests.
			ControllerManager: []string{"--node-monitor-grace-period=30s", "--node-startup-grace-period=5s"},
		},
	}, v1alpha1.AddToScheme)
	w := &fixture{Fixture: installed, api: installed.API, karpenter: karpenter.New(t, installed.Cluster, cfg)}
	w.patchSchema(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.LogTail())
		}
	})
	return w
}

// patchSchema adds the repair block to the schema of NodePools, as the docs describe.
func (w *fixture) patchSchema(t *testing.T) {
	t.Helper()
	if _, err := w.Kubectl(t.Context(), "patch", "crd", "nodepools.karpenter.sh", "--type=json", "-p", string(deploy.NodePoolPatch())); err != nil {
		t.Fatal(err)
	}
}

// pool is a NodePool of one test, with a Deployment of the same name.
type pool struct {
	*fixture
	t        *testing.T
	name     string
	restores bool // the controller is configured to restore what the NodePool has lost
	// isHeldUp is for a pool whose nodes start tainted: while it is true, no node becomes
	// ready.
	isHeldUp *atomic.Bool
	surplus  map[string]bool // claims that fills deleted; account omits them
}

// object is a part of a manifest, and list one of its lists.
type (
	object = map[string]any
	list   = []any
)

// tolerate returns a policy of a repair block that tolerates BadDisk for this duration.
func tolerate(toleration string) object {
	return object{"conditionType": "BadDisk", "conditionStatus": "True", "toleration": toleration}
}

// repair returns a repair block that tolerates BadDisk for this duration, with additional
// fields. It has no threshold, because most tests are about something else.
func repair(toleration string, more ...object) object {
	block := object{"policies": list{tolerate(toleration)}, "unhealthyThreshold": "100%"}
	for _, m := range more {
		for key, value := range m {
			block[key] = value
		}
	}
	return block
}

// budgets returns disruption budgets that allow this number of nodes.
func budgets(nodes string) object { return object{"budgets": list{object{"nodes": nodes}}} }

// createPool creates a NodePool, and a Deployment that fills this number of nodes.
func (w *fixture) createPool(t *testing.T, p karpenter.Pool, nodes int, changes ...func(*karpenter.Deployment)) *pool {
	t.Helper()
	is := &pool{fixture: w, t: t, name: p.Name, isHeldUp: new(atomic.Bool), surplus: map[string]bool{}}
	testkit.Must(is.t, w.karpenter.CreatePool(t.Context(), p))
	d := karpenter.Deployment{Name: p.Name, Pool: p.Name, Replicas: nodes * karpenter.PodsPerNode}
	for _, change := range changes {
		change(&d)
	}
	testkit.Must(is.t, w.karpenter.Deploy(t.Context(), d))
	return is
}

// createFilledPool also waits until all of the pods run.
func (w *fixture) createFilledPool(t *testing.T, p karpenter.Pool, nodes int, changes ...func(*karpenter.Deployment)) *pool {
	t.Helper()
	is := w.createPool(t, p, nodes, changes...)
	is.fills(nodes)
	return is
}

// fills waits until all of the pods run on this number of nodes. On a busy machine
// Karpenter sometimes launches one node more than the pods need. fills deletes its claim.
func (p *pool) fills(nodes int) {
	p.t.Helper()
	p.eventually("the pods on their nodes", func(ctx context.Context) error {
		if err := p.karpenter.Whole(ctx, p.name); err != nil {
			return err
		}
		all := p.nodes()
		for _, extra := range all[min(nodes, len(all)):] {
			if extra.DeletionTimestamp != nil {
				continue
			}
			claim := p.claimOf(extra.Name).GetName()
			p.surplus[claim] = true
			if _, err := p.Kubectl(ctx, "delete", "nodeclaim", "--wait=false", claim); err != nil {
				return err
			}
		}
		if len(all) != nodes {
			return fmt.Errorf("the pods of %s run on %d nodes, not on %d", p.name, len(all), nodes)
		}
		return nil
	})
}

// of returns the pool for a subtest.
func (p *pool) of(t *testing.T) *pool {
	t.Helper()
	part := *p
	part.t = t
	return &part
}

// eventually waits until check returns no error.
func (p *pool) eventually(what string, check func(context.Context) error) {
	p.t.Helper()
	p.Eventually(p.t, what, func() error { return check(p.t.Context()) })
}

// whole waits until the Deployment has all of its pods.
func (p *pool) whole() {
	p.t.Helper()
	p.eventually("Deployment "+p.name, func(ctx context.Context) error { return p.karpenter.Whole(ctx, p.name) })
}

// nodes returns the pool's nodes by age, the oldest first.
func (p *pool) nodes() []corev1.Node {
	p.t.Helper()
	nodes, err := p.karpenter.Nodes(p.t.Context(), p.name)
	testkit.Must(p.t, err)
	slices.SortFunc(nodes, func(a, b corev1.Node) int {
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	return nodes
}

// names returns the names of the pool's nodes.
func (p *pool) names() []string {
	p.t.Helper()
	var names []string
	for _, node := range p.nodes() {
		names = append(names, node.Name)
	}
	return names
}

// claimOf returns the claim of a node, after Karpenter has linked the two.
func (p *pool) claimOf(node string) (claim *unstructured.Unstructured) {
	p.t.Helper()
	p.eventually("the claim of "+node, func(ctx context.Context) error {
		claims, err := p.karpenter.Claims(ctx, p.name)
		for i := range claims {
			if name, _, _ := unstructured.NestedString(claims[i].Object, "status", "nodeName"); name == node {
				claim = &claims[i]
				return nil
			}
		}
		return fmt.Errorf("there is none: %w", err)
	})
	return claim
}

// setCondition sets a condition of nodes, like an agent.
func (p *pool) setCondition(condition string, status corev1.ConditionStatus, nodes ...string) {
	p.t.Helper()
	for _, node := range nodes {
		testkit.Must(p.t, p.ReportCondition(p.t.Context(), node, condition, status))
	}
}

// makeUnhealthy gives nodes a bad disk.
func (p *pool) makeUnhealthy(nodes ...string) {
	p.t.Helper()
	p.setCondition("BadDisk", corev1.ConditionTrue, nodes...)
}

// annotate sets an annotation of an object, or removes it if a dash follows the key.
func (w *fixture) annotate(ctx context.Context, what, name, annotation string) error {
	_, err := w.Kubectl(ctx, "annotate", "--overwrite", what, name, annotation)
	return err
}

// patch changes the NodePool.
func (p *pool) patch(spec object) {
	p.t.Helper()
	text, err := (&unstructured.Unstructured{Object: object{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": spec}}).MarshalJSON()
	testkit.Must(p.t, err)
	_, err = p.Kubectl(p.t.Context(), "patch", "nodepool", p.name, "--type=merge", "-p", string(text))
	testkit.Must(p.t, err)
}

// gone waits until the nodes are deleted.
func (p *pool) gone(nodes ...string) {
	p.t.Helper()
	p.eventually("nodes gone", func(ctx context.Context) error {
		there, err := p.karpenter.Nodes(ctx, p.name)
		if err != nil {
			return err
		}
		for _, node := range there {
			if slices.Contains(nodes, node.Name) {
				return fmt.Errorf("%s is there", node.Name)
			}
		}
		return nil
	})
}

// hasEvent waits for an Event about an object, with a reason and parts of its message.
func (p *pool) hasEvent(kind, name, reason string, parts ...string) {
	p.t.Helper()
	p.HasEvent(p.t, kind, name, reason, parts...)
}

// measures waits until a controller's metrics have a line with this prefix and value.
func (p *pool) measures(c *install.Controller, line, value string) {
	p.t.Helper()
	p.HasMetric(p.t, c.Metrics, line+" "+value)
}
