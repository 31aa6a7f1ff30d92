package pools

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
)

// storm makes all nodes of a pool of ten unhealthy at once, and checks that they are
// replaced within the bound.
func storm(p *pool, bound int) *account {
	p.t.Helper()
	unhealthy := p.names()
	p.makeUnhealthy(unhealthy...)
	a := p.repaired(unhealthy...)
	a.atMost(p.t, bound)
	if len(a.terminations) != len(unhealthy) || len(a.others) > 0 || a.made != 2*len(unhealthy) {
		p.t.Errorf("%d nodes were unhealthy; there were %d terminations, %d by other clients, and %d claims in all", len(unhealthy), len(a.terminations), len(a.others), a.made)
	}
	return a
}

func testStormUnderBound(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "bound", Spec: object{"repair": repair("2s", object{"maxConcurrent": 3}), "disruption": budgets("100%")}}, 10)
	storm(p, 3)
	p.hasEvent("NodePool", p.name, "NodeRepairBlocked", "at most 3 of 10")
}

// Karpenter compares the disrupted nodes with the initialized nodes, and so does the
// controller. A deleted node is in neither number.
func testStormUnderBudget(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "budget", Spec: object{"repair": repair("2s", object{"maxConcurrent": "100%"}), "disruption": budgets("2")}}, 6)
	unhealthy := p.names()
	p.makeUnhealthy(unhealthy...)
	p.hasEvent("NodePool", p.name, "NodeRepairBlocked", "disruption budget", "allows 2, and 2 are being disrupted")
	a := p.repaired(unhealthy...)
	if a.disrupted > 2 {
		t.Errorf("%d claims were marked or deleted at once, the budget is 2", a.disrupted)
	}
	if len(a.terminations) != len(unhealthy) {
		t.Errorf("%d terminations of %d unhealthy nodes", len(a.terminations), len(unhealthy))
	}
}

// A detector that is wrong on every node must not replace any of them. With a fifth of the nodes
// unhealthy, they are replaced one by one: by default a fifth at once, and a tenth by Karpenter's
// budget.
func testStormByDefault(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "usual", Spec: object{"repair": object{"policies": list{tolerate("10s")}}}}, 6)
	nodes := p.names()
	p.makeUnhealthy(nodes...)
	for _, node := range nodes { // they are all unhealthy before the first is due
		p.hasEvent("Node", node, "NodeRepairBlocked", "held by unhealthyThreshold: 6 of 6 selected nodes are unhealthy, at most 2 may be; continues when no more than 2 are")
	}
	if a := p.account(); len(a.terminations) > 0 || a.made != len(nodes) {
		t.Errorf("%d terminations, and %d claims in all", len(a.terminations), a.made)
	}
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[2:]...)
	a := p.repaired(nodes[:2]...)
	a.atMost(t, 1)
	if len(a.terminations) != 2 || a.made != len(nodes)+2 {
		t.Errorf("%d terminations, and %d claims in all", len(a.terminations), a.made)
	}
}

// testStormOfBoth has a pool with a bound of one, in which some ready nodes become
// unhealthy and other nodes do not become ready.
func testStormOfBoth(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const all, never, bound, timeout = 6, 2, 2, 20 * time.Second
	p := w.createPool(t, karpenter.Pool{Name: "both", Startup: karpenter.StartsTainted, Spec: object{
		"repair": repair("2s", object{"maxConcurrent": bound, "readyTimeout": timeout.String()}), "disruption": budgets("100%"),
	}}, all)
	p.eventually("all nodes", func(ctx context.Context) error {
		nodes, err := p.karpenter.Nodes(ctx, p.name)
		if err != nil || len(nodes) != all {
			return fmt.Errorf("there are %d: %w", len(nodes), err)
		}
		return nil
	})
	nodes := p.nodes()
	stuck := map[types.UID]bool{}
	var names []string
	for i, node := range nodes {
		stuck[node.UID] = i < never
		names = append(names, node.Name)
	}
	p.startAll(func(node *corev1.Node) bool { return !stuck[node.UID] })
	p.eventually("some ready nodes", func(context.Context) error {
		ready := 0
		for _, node := range p.nodes() {
			if node.Labels["karpenter.sh/initialized"] == "true" {
				ready++
			}
		}
		if ready < all-never {
			return fmt.Errorf("there are %d", ready)
		}
		return nil
	})
	p.makeUnhealthy(names[never:]...)
	a := p.repaired(names...)
	a.atMost(t, bound)
	for i, name := range names {
		e := a.of(name)
		rule := "Repair/NodePool/both"
		if i < never {
			rule = "ReadyTimeout/both"
			e.notBefore(t, nodes[i].CreationTimestamp.Add(timeout))
		}
		if e.rule != rule {
			t.Errorf("%s was replaced by %s, want %s", name, e.rule, rule)
		}
	}
}

// startAll plays the daemon that removes startup taints, until the end of the test, from
// all nodes that may selects.
func (p *pool) startAll(may func(*corev1.Node) bool) {
	ctx, cancel := context.WithCancel(p.t.Context())
	var wg sync.WaitGroup
	p.t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		look := time.NewTicker(4 * firstPause)
		defer look.Stop()
		for ctx.Err() == nil {
			nodes, _ := p.karpenter.Nodes(ctx, p.name) // the next iteration retries
			for i := range nodes {
				if node := &nodes[i]; may(node) {
					p.startOne(ctx, node)
				}
			}
			select {
			case <-look.C:
			case <-ctx.Done():
			}
		}
	})
}

// startOne removes the startup taint from a node that Karpenter has registered.
func (p *pool) startOne(ctx context.Context, node *corev1.Node) {
	var left []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if taint.Key != karpenter.StartupTaint.Key {
			left = append(left, taint)
		}
	}
	if len(left) == len(node.Spec.Taints) || node.Labels["karpenter.sh/registered"] != "true" {
		return
	}
	before := node.DeepCopy()
	node.Spec.Taints = left
	_ = p.api.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})) // a conflict means that another writer was faster
}
