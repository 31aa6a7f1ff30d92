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
)

// testDrift has Karpenter replace all nodes of a pool for a reason of its own. The block
// is in force all the while.
func testDrift(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "drift", Spec: object{"repair": repair("1s"), "disruption": budgets("100%")}}, 2)
	before := p.names()
	p.patch(object{"template": object{"metadata": object{"labels": object{"example.com/drift": "true"}}}})
	p.gone(before...)
	p.whole()
}

// testRestart goes on with that pool when Karpenter has been killed and has come back.
func testRestart(t *testing.T, w *fixture) {
	t.Helper()
	p := &pool{fixture: w, t: t, name: "drift"}
	p.must(w.karpenter.Kill())
	p.must(w.karpenter.Restart(t.Context()))
	sick := p.names()[0]
	p.makeUnhealthy(sick)
	p.repaired(sick)
}

// testBlocksKept says that nothing that Karpenter has written to any NodePool of the
// cluster has changed its repair block.
func testBlocksKept(t *testing.T, w *fixture) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	recording, err := w.RecordingOf(ctx, func(c testbed.Change) bool { return c.GVR == karpenter.PoolsResource })
	if err != nil {
		t.Fatal(err)
	}
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
		t.Error("that is nothing that a block could have survived")
	}
}

// blockOf returns the repair block of a NodePool as the API server shows it.
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

// hides waits until the API server shows no repair block of the pool, or shows one again.
func (p *pool) hides(is bool) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("the block hidden: %t", is), func(ctx context.Context) error {
		block, err := p.blockOf(ctx)
		if err == nil && (len(block) == 0) != is {
			return errors.New("it is not so")
		}
		return err
	})
}

// testSchemaLost applies Karpenter's own CRD again, as an upgrade of its chart does. The
// last good policy stays in force, and comes back onto the pool where that is asked for.
func testSchemaLost(p *pool, c *install.Controller) {
	t := p.t
	t.Helper()
	p.measures(c, `autohealer_nodepool_repair_blocks{state="lost"}`, "0")
	p.must(p.karpenter.InstallCRDs(t.Context()))
	p.hides(true)
	p.hasEvent("NodePool", p.name, "RepairSchemaLost")
	// Somebody's write prunes what is stored.
	p.must(p.annotate(t.Context(), "nodepool", p.name, "example.com/pruned=true"))
	sick := p.names()[0]
	p.makeUnhealthy(sick)
	if e := p.repaired(sick).of(sick); e.rule != "Repair/NodePool/lost" {
		t.Errorf("it was repaired by %s", e.rule)
	}

	p.restores = true
	p.must(c.Kill())
	_, err := p.Kubectl(t.Context(), "apply", "-f", "../../deploy/karpenter/restore-rights.yaml")
	p.must(err)
	heir := p.start(t, install.Options{Args: []string{alone, "--restore-nodepool-schema"}})
	p.hides(false)
	block, err := p.blockOf(t.Context())
	p.must(err)
	if diff := cmp.Diff(repair("1s"), block); diff != "" {
		t.Errorf("what came back (-want +got):\n%s", diff)
	}
	p.hasEvent("NodePool", p.name, "RepairBlockRestored")
	p.measures(heir, `autohealer_nodepool_repair_blocks{state="lost"}`, "0")
	sick = p.names()[0]
	p.makeUnhealthy(sick)
	p.repaired(sick)
}
