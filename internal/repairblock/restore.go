package repairblock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
)

// patchTries is how often the store tries to patch the CRD after conflicts.
const patchTries = 5

// restoreRights is the manifest with the permissions that only the restore needs.
const restoreRights = "deploy/extras/restore-rights.yaml"

// restore puts the schema and blocks back, if Config.Restore is set, and returns when it is
// due. The schema comes first: without it the API server would prune the restored block at
// once.
func (k *Store) restore(ctx context.Context, v view) (due time.Time) {
	if !k.cfg.Restore || !v.isKnown || v.isDeleting {
		return due
	}
	var hiddenOnes, prunedOnes []*pool
	for _, name := range slices.Sorted(maps.Keys(k.pools)) {
		p := k.pools[name]
		switch {
		case p.last == nil || p.lastFault != nil:
		case p.is == lost:
			hiddenOnes = append(hiddenOnes, p)
		case p.is == vanished:
			prunedOnes = append(prunedOnes, p)
		}
	}
	if len(hiddenOnes) > 0 {
		due = k.restoreSchema(ctx, hiddenOnes)
	}
	for i, p := range prunedOnes {
		due = times.Earliest(due, k.restoreBlock(ctx, p, prunedOnes[i:]))
	}
	return due
}

// restoreSchema writes the schema into the CRD.
func (k *Store) restoreSchema(ctx context.Context, of []*pool) (due time.Time) {
	if k.restoreBackoff.allows(time.Now()) != nil {
		return k.restoreBackoff.at
	}
	before := k.schemaPace
	if !k.schemaPace.take(time.Now()) {
		return k.schemaPace.at
	}
	err := k.patchDefinition(ctx)
	switch {
	case ctx.Err() != nil:
		return due
	case apierrors.IsForbidden(err):
		k.schemaPace = before
		return k.permissionMissing(of, err)
	case err == nil:
		k.permissionGranted()
		k.cfg.Logger.Info("schema of repair blocks put back", "customResourceDefinition", definitionName)
	default:
		k.cfg.Logger.Error("schema of repair blocks not put back", "retryIn", k.schemaPace.wait.String(), "err", err)
	}
	for _, p := range of {
		k.sendRestored(p, "the schema of "+definitionName+" has spec.repair again", err)
	}
	return k.schemaPace.at
}

// patchDefinition reads the CRD and patches it, and repeats that after a conflict.
func (k *Store) patchDefinition(ctx context.Context) error {
	for try := 1; ; try++ {
		fresh, err := k.readDefinitionNow(ctx)
		if err != nil || !fresh.exists || fresh.isDeleting || fresh.hasBlock {
			return err
		}
		if err = k.addBlock(ctx, fresh); treat.Classify(err) != treat.Stale || try == patchTries {
			return err
		}
	}
}

// restoreBlock writes the block in force to its pool. waiting are all pools that wait for a
// restore, this one first.
func (k *Store) restoreBlock(ctx context.Context, p *pool, waiting []*pool) (due time.Time) {
	if k.restoreBackoff.allows(time.Now()) != nil {
		return k.restoreBackoff.at
	}
	before := p.restore
	if !p.restore.take(time.Now()) {
		return p.restore.at
	}
	err := k.patchPool(ctx, p)
	switch {
	case ctx.Err() != nil:
		return due
	case apierrors.IsForbidden(err):
		p.restore = before
		return k.permissionMissing(waiting, err)
	case treat.Classify(err) == treat.Stale: // another client has written the pool; the watch reports it
		p.restore = restorePace{at: time.Now().Add(firstRetry)}
		return p.restore.at
	case err == nil:
		k.permissionGranted()
		k.cfg.Logger.Info("repair block put back", "nodePool", p.Name)
	default:
		k.cfg.Logger.Error("repair block not put back", "nodePool", p.Name, "retryIn", p.restore.wait.String(), "err", err)
	}
	k.sendRestored(p, "the block that was lost with its schema stands in spec.repair again", err)
	return p.restore.at
}

func (k *Store) patchPool(ctx context.Context, p *pool) error {
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
	k.cfg.Wrote("nodepools", treat.Classify(err))
	if err != nil {
		return fmt.Errorf("patching NodePool %s: %w", p.Name, err)
	}
	return nil
}

// permissionMissing reports once, in the log and in Events of the pools, that the permission to
// restore is missing. The permission is the same for all pools, so the store does not try
// another pool until the returned time.
func (k *Store) permissionMissing(of []*pool, err error) (due time.Time) {
	k.logMissingPermission(err)
	for _, p := range of {
		if !p.forbiddenReported {
			p.forbiddenReported = true
			k.sendRestored(p, "", fmt.Errorf("%w; %s gives the right", err, restoreRights))
		}
	}
	return k.restoreBackoff.note(time.Now(), err)
}

func (k *Store) logMissingPermission(err error) {
	if !k.restoreBackoff.isTold {
		k.restoreBackoff.isTold = true
		k.cfg.Logger.Error("permission missing", "so", "--restore-nodepool-schema puts nothing back", "manifest", restoreRights, "err", err)
	}
}

// permissionGranted records that a restore succeeded.
func (k *Store) permissionGranted() {
	k.restoreBackoff = backoff{}
	for _, p := range k.pools {
		p.forbiddenReported = false
	}
}

// reviewPermissions logs permissions that a later restore will need, before it is too late. If
// the review itself is not permitted, the restore will report the failure.
func (k *Store) reviewPermissions(ctx context.Context) {
	var missing []string
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "patch", Group: definitionKind.Group, Resource: "customresourcedefinitions", Name: definitionName},
		{Verb: "patch", Group: karpenter.GroupVersion.Group, Resource: "nodepools"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right}}
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		err := k.cfg.Client.Create(ctx, review)
		cancel()
		if err == nil && !review.Status.Allowed {
			missing = append(missing, strings.TrimSpace(right.Resource+"."+right.Group+" "+right.Name))
		}
	}
	if len(missing) > 0 {
		k.logMissingPermission(errors.New("cannot patch " + strings.Join(missing, ", nor ")))
	}
}

func (k *Store) sendRestored(p *pool, message string, err error) {
	event := treat.Event{Policy: treat.AboutNodePool(p.NodePool), EventReason: treat.RepairBlockRestored, Message: "Repair: " + message + "."}
	if err != nil {
		event.Message, event.Failure = "Repair", "what was lost could not be put back: "+err.Error()
	}
	k.cfg.Event(event)
}
