package poolblock

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
)

// patchTries is how often the CRD is patched while others write it too.
const patchTries = 5

// restore puts back what was lost, if that is wanted, and returns when it will be time
// to. First comes the schema: without it a block would be pruned with the write that
// brings it.
func (k *Keeper) restore(ctx context.Context, v view) (due time.Time) {
	if !k.cfg.Restore || !v.isKnown || v.isGoing {
		return due
	}
	var lostOnes []*pool
	for _, name := range slices.Sorted(maps.Keys(k.pools)) {
		p := k.pools[name]
		switch {
		case p.last == nil || p.lastFault != nil:
		case p.is == lost:
			lostOnes = append(lostOnes, p)
		case p.is == vanished:
			due = earliest(due, k.restoreBlock(ctx, p))
		}
	}
	if len(lostOnes) > 0 {
		due = earliest(due, k.restoreSchema(ctx, lostOnes))
	}
	return due
}

// restoreSchema writes the schema into the CRD.
func (k *Keeper) restoreSchema(ctx context.Context, of []*pool) (due time.Time) {
	if !k.schema.take(time.Now()) {
		return k.schema.at
	}
	err := k.patchDefinition(ctx)
	if ctx.Err() != nil {
		return due
	}
	if err == nil {
		k.cfg.Logger.Info("schema of repair blocks put back", "customResourceDefinition", definitionName)
	} else {
		k.cfg.Logger.Error("schema of repair blocks not put back", "retryIn", k.schema.wait.String(), "err", err)
	}
	for _, p := range of {
		k.tellRestored(p, "the schema of "+definitionName+" has spec.repair again", err)
	}
	return k.schema.at
}

// patchDefinition reads the CRD afresh and patches it, again while others are faster.
func (k *Keeper) patchDefinition(ctx context.Context) error {
	for try := 1; ; try++ {
		fresh, err := k.readDefinitionNow(ctx)
		if err != nil || !fresh.isThere || fresh.isGoing || fresh.hasBlock {
			return err
		}
		if err = k.addBlock(ctx, fresh); treat.FateOf(err) != treat.Stale || try == patchTries {
			return err
		}
	}
}

// restoreBlock writes the block that is in force on its pool.
func (k *Keeper) restoreBlock(ctx context.Context, p *pool) (due time.Time) {
	if !p.restore.take(time.Now()) {
		return p.restore.at
	}
	err := k.patchPool(ctx, p)
	switch {
	case ctx.Err() != nil:
		return due
	case treat.FateOf(err) == treat.Stale: // somebody was faster, and what he wrote will come
		p.restore = pace{at: time.Now().Add(firstRetry)}
		return p.restore.at
	case err == nil:
		k.cfg.Logger.Info("repair block put back", "nodePool", p.Name)
	default:
		k.cfg.Logger.Error("repair block not put back", "nodePool", p.Name, "retryIn", p.restore.wait.String(), "err", err)
	}
	k.tellRestored(p, "the block that was lost with its schema stands in spec.repair again", err)
	return p.restore.at
}

func (k *Keeper) patchPool(ctx context.Context, p *pool) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion, "uid": p.UID},
		"spec":     map[string]any{"repair": p.last.Block},
	})
	if err != nil {
		return fmt.Errorf("writing the block of NodePool %s: %w", p.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	target := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	err = k.cfg.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(treat.FieldManager))
	k.cfg.Wrote("nodepools", treat.FateOf(err))
	if err != nil {
		return fmt.Errorf("patching NodePool %s: %w", p.Name, err)
	}
	return nil
}

func (k *Keeper) tellRestored(p *pool, words string, err error) {
	word := treat.Announcement{Policy: treat.AboutNodePool(p.NodePool), What: treat.RepairBlockRestored, Words: "Repair: " + words + "."}
	if err != nil {
		word.Words, word.Trouble = "Repair", "what was lost could not be put back: "+err.Error()
	}
	k.cfg.Announce(word)
}
