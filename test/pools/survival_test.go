package pools

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// testDrift has Karpenter replace all nodes of a pool because of drift. The block stays in
// force.
func testDrift(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "drift", Spec: object{"repair": repair("1s"), "disruption": budgets("100%")}}, 2)
	before := p.names()
	p.patch(object{"template": object{"metadata": object{"labels": object{"example.com/drift": "true"}}}})
	p.gone(before...)
	p.whole()
}

// testRestart continues with that pool after a restart of Karpenter.
func testRestart(t *testing.T, w *fixture) {
	t.Helper()
	p := &pool{fixture: w, t: t, name: "drift"}
	testkit.Must(p.t, w.karpenter.Kill())
	testkit.Must(p.t, w.karpenter.Restart(t.Context()))
	unhealthy := p.names()[0]
	p.makeUnhealthy(unhealthy)
	p.repaired(unhealthy)
}

// testBlocksKept checks that none of Karpenter's writes to NodePools changed a repair
// block.
func testBlocksKept(t *testing.T, w *fixture) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	recording, err := w.RecordingOf(ctx, func(c testbed.Change) bool { return c.GVR == karpenter.PoolsResource })
	testkit.Must(t, err)
	blocks, written := map[types.UID]any{}, 0
	for _, change := range recording {
		block, _, _ := unstructured.NestedFieldNoCopy(change.Object.Object, "spec", "repair")
		if change.Author.User == karpenter.User {
			if written++; !cmp.Equal(blocks[change.UID], block) {
				t.Errorf("%s has changed the block of %s:\n%s", change.Author, change.Name, cmp.Diff(blocks[change.UID], block))
			}
		}
		blocks[change.UID] = block
	}
	if t.Logf("Karpenter has written %d times to %d NodePools", written, len(blocks)); written == 0 {
		t.Error("too few writes to prove that a block survives them")
	}
}

// blockOf returns the repair block of a NodePool from the API server.
func (p *pool) blockOf(ctx context.Context) (object, error) {
	pool := &unstructured.Unstructured{}
	pool.SetAPIVersion("karpenter.sh/v1")
	pool.SetKind("NodePool")
	if err := p.api.Get(ctx, types.NamespacedName{Name: p.name}, pool); err != nil {
		return nil, err
	}
	block, _, err := unstructured.NestedMap(pool.Object, "spec", "repair")
	return block, err
}

// hides waits until the API server hides the repair block of the pool, or shows it again.
func (p *pool) hides(is bool) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("the block hidden: %t", is), func(ctx context.Context) error {
		block, err := p.blockOf(ctx)
		if err == nil && (len(block) == 0) != is {
			return errors.New("the block is still in the other state")
		}
		return err
	})
}

// testSchemaLost applies Karpenter's own CRD again, like an upgrade of its chart. The last
// valid policy stays in force, and is restored on the pool if configured.
func testSchemaLost(p *pool, c *install.Controller) {
	t := p.t
	t.Helper()
	p.measures(c, `autohealer_nodepool_repair_blocks{state="schema_lost"}`, "0")
	testkit.Must(p.t, p.karpenter.InstallCRDs(t.Context()))
	p.hides(true)
	p.hasEvent("NodePool", p.name, "RepairSchemaLost")
	// Any write prunes the stored object.
	testkit.Must(p.t, p.annotate(t.Context(), "nodepool", p.name, "example.com/pruned=true"))
	unhealthy := p.names()[0]
	p.makeUnhealthy(unhealthy)
	if e := p.repaired(unhealthy).of(unhealthy); e.rule != "Repair/NodePool/lost" {
		t.Errorf("it was repaired by %s", e.rule)
	}

	p.restores = true
	testkit.Must(p.t, c.Kill())
	_, err := p.Kubectl(t.Context(), "apply", "-f", "../../deploy/extras/restore-rights.yaml")
	testkit.Must(p.t, err)
	successor := p.Start(t, install.Options{Args: []string{alone, "--restore-nodepool-schema"}})
	p.hides(false)
	block, err := p.blockOf(t.Context())
	testkit.Must(p.t, err)
	testkit.Equal(t, "the restored block", repair("1s"), block)
	p.hasEvent("NodePool", p.name, "RepairBlockRestored")
	p.measures(successor, `autohealer_nodepool_repair_blocks{state="schema_lost"}`, "0")
	unhealthy = p.names()[0]
	p.makeUnhealthy(unhealthy)
	p.repaired(unhealthy)
}
