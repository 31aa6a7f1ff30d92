package pools

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// first waits until the pool has a node, and returns it.
func (p *pool) first() *corev1.Node {
	p.t.Helper()
	var first *corev1.Node
	p.eventually("a node of "+p.name, func(ctx context.Context) error {
		nodes, err := p.karpenter.Nodes(ctx, p.name)
		if err != nil || len(nodes) == 0 {
			return fmt.Errorf("there is none: %w", err)
		}
		first = &nodes[0]
		return nil
	})
	return first
}

// testNeverReady has a pool whose first node does not become ready. The ready timeout
// applies only after the cause is fixed, because a replacement with the same cause would
// keep the bound full.
func testNeverReady(startup karpenter.Startup, cure func(*pool)) func(*testing.T, *fixture, *install.Controller) {
	return func(t *testing.T, w *fixture, c *install.Controller) {
		t.Helper()
		const timeout = 12 * time.Second
		name := "starts-" + strings.ToLower(string(startup))
		p := w.createPool(t, karpenter.Pool{Name: name, Startup: startup, Spec: object{"repair": object{"readyTimeout": "1h"}}}, 1)
		bad := p.first()
		claim := p.claimOf(bad.Name)
		cure(p)
		p.patch(object{"repair": object{"readyTimeout": timeout.String()}})
		e := p.repaired(bad.Name).of(bad.Name)
		e.notBefore(t, bad.CreationTimestamp.Add(timeout))
		e.within(t, 0)
		testkit.Check(t, e.rule == "ReadyTimeout/"+name, "it went by %s", e.rule)
		for kind, object := range map[string]string{"Node": bad.Name, "NodeClaim": claim.GetName(), "NodePool": name} {
			words := []string{"Node failed to become ready within 12s, triggering recovery"}
			if startup == karpenter.StartsTainted {
				words = append(words, "; still on it: ") // on a busy machine Karpenter's own taint is still there, too
			}
			p.hasEvent(kind, object, "NodeReadyTimeoutRecovery", words...)
		}
		p.measures(c, fmt.Sprintf(`autohealer_nodeclaims_ready_timeout_recovered_total{capacity_type="on-demand",nodepool=%[1]q,policy=%[1]q,policy_kind="ReadyTimeout"}`, name), "1")
	}
}

// relabel removes a label and the startup taint from the pool's future nodes, and waits until
// Karpenter knows.
func relabel(label string) func(*pool) {
	return func(p *pool) {
		p.t.Helper()
		before := p.templateHash()
		p.patch(object{"template": object{"metadata": object{"labels": object{label: nil}}, "spec": object{"startupTaints": nil}}})
		testkit.Until(p.t, "Karpenter knows the new template", func() bool { return p.templateHash() != before })
	}
}

// templateHash returns Karpenter's hash of the pool's template.
func (p *pool) templateHash() string {
	p.t.Helper()
	out, err := p.Kubectl(p.t.Context(), "get", "nodepool", p.name, `-o=jsonpath={.metadata.annotations.karpenter\.sh/nodepool-hash}`)
	testkit.Must(p.t, err)
	return out
}

// wakeDaemon removes the startup taints of all but the first node.
func wakeDaemon(p *pool) {
	bad := p.first().UID
	p.startAll(func(node *corev1.Node) bool { return node.UID != bad })
}

// testOnceReady has a node fail that once was ready. The ready timeout does not apply to
// it.
func testOnceReady(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const timeout = 15 * time.Second
	p := w.createFilledPool(t, karpenter.Pool{Name: "once-ready", Spec: object{"repair": object{"readyTimeout": timeout.String()}, "disruption": budgets("100%")}}, 2)
	node := p.nodes()[0]
	testkit.Must(p.t, p.Silence(t.Context(), node.Name))
	p.setCondition("Ready", corev1.ConditionFalse, node.Name)
	// A younger node of another pool does not become ready and is replaced. This shows that
	// the timeout of this node has passed, too.
	other := w.createPool(t, karpenter.Pool{Name: "once-ready-other", Startup: karpenter.StartsUnready, Spec: object{"repair": object{"readyTimeout": "1h"}}}, 1)
	bad := other.first()
	relabel(testbed.UnreadyLabel)(other)
	other.patch(object{"repair": object{"readyTimeout": timeout.String()}})
	other.repaired(bad.Name)
	p.untouched(p.account(), node.Name)
}

// testHeld has a pool of which no node becomes ready. The pool is paused after three
// launches, and continues when its template is fixed.
func testHeld(t *testing.T, w *fixture, c *install.Controller) {
	t.Helper()
	const timeout = 6 * time.Second
	// A deleted node without a ready successor counts for 15 minutes. The bound has room
	// for all of them.
	p := w.createPool(t, karpenter.Pool{Name: "held", Startup: karpenter.StartsUnready, Spec: object{"repair": object{"readyTimeout": timeout.String(), "maxConcurrent": 10}}}, 1)
	const words = "NodePool held is held: 3 nodes in a row have not become ready, so replacing another node is unlikely to help; the next one is tried at "
	p.hasEvent("NodePool", p.name, "NodePoolHeld", words)
	p.measures(c, `autohealer_nodepool_held{nodepool="held",policy="held",policy_kind="ReadyTimeout"}`, "1")
	p.hasEvent("Node", "kwok-held-*", "NodeRepairBlocked", "NodePool held is held: ", "so replacing another node is unlikely to help")
	p.triesOnce(timeout)
	relabel(testbed.UnreadyLabel)(p) // this also changes the template
	p.measures(c, `autohealer_nodepool_held{nodepool="held",policy="held",policy_kind="ReadyTimeout"}`, "0")
}

// triesOnce waits for the fourth launch of a paused pool, and checks that it is not too
// early.
func (p *pool) triesOnce(timeout time.Duration) {
	p.t.Helper()
	var a *account
	p.eventually("a fourth try", func(context.Context) error {
		if a = p.account(); len(a.terminations) < 4 {
			return fmt.Errorf("there were %d", len(a.terminations))
		}
		return nil
	})
	for i := 3; i < len(a.terminations); i++ {
		wait := a.terminations[i].marked.Sub(a.terminations[i-1].marked)
		atLeast := 2 * timeout << (i - 3)
		p.t.Logf("launch %d came %s after the previous one", i+1, wait.Round(time.Millisecond))
		// The ledger has whole seconds, and the controller may take in the mark in a round that
		// has begun just before.
		if wait < atLeast-2*time.Second {
			p.t.Errorf("launch %d came %s after the previous one, want at least %s", i+1, wait, atLeast)
		}
	}
}
