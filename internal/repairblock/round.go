package repairblock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/times"
)

// pool is a NodePool and the state of its block.
type pool struct {
	*karpenter.NodePool
	is state

	validated *v1alpha1.RepairSpec // the last validated block, nil for none
	fault     error                // why that block is invalid

	last           *lastGood // the last valid block, nil for none
	lastFault      error     // why it is no longer valid
	revisionsKnown bool      // its revisions were known at the last check
	hadRevision    bool      // it had a revision

	isNew             bool   // this version of the block has just come into force, and not in an earlier term
	lastReported      string // the last problem in an Event
	restore           restorePace
	forbiddenReported bool // users were told that the controller may not restore the block
}

// inForce returns the block in force.
func (p *pool) inForce() *Pool {
	now := &Pool{NodePool: p.NodePool, Problem: problem(p.is, p.fault, p.last, p.lastFault), Lost: p.is == lost}
	if p.last != nil && p.lastFault == nil {
		now.Block = p.last.Block
	}
	return now
}

// isRevisionDeleted reports whether a user deleted the revision of a block that is in force but is
// missing or invalid on its pool.
func (p *pool) isRevisionDeleted(kept map[types.UID]*lastGood) bool {
	return p.last != nil && p.is != applied && p.hadRevision && kept[p.UID] == nil
}

// Run works until ctx ends. The caller must ensure that only one replica runs it.
func (k *Store) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.cfg.Count(Counts{})
	defer k.listers.Wait()
	defer cancel()
	k.listers.Go(func() { k.watchDefinition(ctx) })
	k.listers.Go(func() { k.watchRevisions(ctx) })
	if k.cfg.Restore {
		k.reviewPermissions(ctx)
	}
	for {
		var due <-chan time.Time
		if at := k.round(ctx); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-k.wake:
		case <-due:
		case <-ctx.Done():
			return
		}
	}
}

// round evaluates the snapshot, publishes which blocks are in force, and makes the writes.
// It returns when to run again if nothing changes before.
func (k *Store) round(ctx context.Context) (due time.Time) {
	k.restartPoolLister(ctx)
	s := k.currentSnapshot()
	k.logMissingPermissions(&s)
	if s.under == nil || !s.copies.isRead && !s.copies.isForbidden() {
		return due
	}
	v := *s.under
	v.isSettled = s.isSettled
	if s.definition.version == v.version {
		v.definition = s.definition // the CRD may be in deletion
	}
	if s.isAbsent(v) {
		k.pools = map[string]*pool{}
		k.count(nil, nil)
		k.publish(false, nil)
		return due
	}
	if !s.pools.isRead {
		return due
	}
	revisions, kept := arrange(s.copies.objects, k.logUnreadable)
	k.updatePools(&s, kept)
	for _, p := range k.pools {
		p.is = stateOf(p.NodePool, p.fault, p.last, v)
	}
	due = k.confirm(ctx, v, kept)
	inForce := make(map[string]*Pool, len(k.pools))
	for name, p := range k.pools {
		p.isNew = p.is == applied && p.revisionsKnown && (p.last == nil || !sameBlock(p.last.Block, p.Spec.Repair))
		p.last = updateLastGood(p.NodePool, p.is, p.fault, p.last, v)
		if p.Spec.Repair != nil && p.fault == nil {
			p.lastFault = nil
		}
		inForce[name] = p.inForce()
	}
	k.sendEvents(inForce)
	k.count(inForce, kept)
	k.publish(true, inForce)
	if s.copies.isRead {
		due = times.Earliest(due, k.storeRevisions(ctx, revisions, kept))
	}
	return times.Earliest(due, k.restore(ctx, v))
}

// updatePools adds and removes pools, and takes the last valid block of new pools from their revisions.
func (k *Store) updatePools(s *snapshot, kept map[types.UID]*lastGood) {
	maps.DeleteFunc(k.pools, func(name string, p *pool) bool {
		is := s.pools.objects[name]
		return is == nil || is.UID != p.UID
	})
	for name, object := range s.pools.objects {
		p := k.pools[name]
		if p == nil {
			p = &pool{}
			k.pools[name] = p
		}
		p.NodePool = object
		if s.copies.isRead && !p.revisionsKnown {
			p.revisionsKnown = true
			if p.last == nil && kept[p.UID] != nil {
				p.last = kept[p.UID]
				p.lastFault = k.cfg.Check(name, p.last.Block)
			}
		}
		p.hadRevision = p.hadRevision || kept[p.UID] != nil
		if block := object.Spec.Repair; !sameBlock(block, p.validated) || p.validated == nil {
			p.validated, p.fault = block, k.validate(name, block)
		}
	}
}

func (k *Store) validate(name string, block *v1alpha1.RepairSpec) error {
	switch {
	case block == nil:
		return nil
	case block.Unreadable != "":
		return errors.New("spec.repair: " + block.Unreadable)
	}
	return k.cfg.Check(name, block)
}

// confirm reads again before the store accepts that a user has removed a block, or deleted
// a revision of the block in force. It returns when to try again.
func (k *Store) confirm(ctx context.Context, v view, kept map[types.UID]*lastGood) (due time.Time) {
	var gone, dropped []*pool
	for _, p := range k.pools {
		switch {
		case p.is == removed:
			gone = append(gone, p)
		case p.isRevisionDeleted(kept):
			dropped = append(dropped, p)
		}
	}
	if len(gone)+len(dropped) == 0 {
		return due
	}
	err := k.confirmBackoff.allows(time.Now())
	if err == nil && len(gone) > 0 {
		err = k.confirmRemoval(ctx, v)
	}
	if err != nil {
		for _, p := range gone {
			p.is = hidden
		}
		gone = nil
	}
	for _, p := range gone {
		k.cfg.Logger.Info("repair block removed", "nodePool", p.Name)
	}
	if len(dropped) > 0 && k.confirmBackoff.allows(time.Now()) == nil {
		err = errors.Join(err, k.confirmDrop(ctx, dropped, v))
	}
	return k.confirmBackoff.note(time.Now(), err)
}

// errChanged says that the snapshot is outdated.
var errChanged = errors.New("it has changed meanwhile")

// confirmRemoval fails unless the CRD still has the version of the view.
func (k *Store) confirmRemoval(ctx context.Context, v view) error {
	fresh, err := k.readDefinitionNow(ctx)
	switch {
	case err != nil:
		return err
	case fresh.version != v.version || fresh.isDeleting:
		k.setDefinition(fresh)
		return errChanged
	}
	return nil
}

// confirmDrop drops the blocks whose revisions a user has deleted.
func (k *Store) confirmDrop(ctx context.Context, dropped []*pool, v view) error {
	fresh, err := k.listRevisions(ctx)
	if err != nil {
		return err
	}
	k.updateSnapshot(func(s *snapshot) { s.copies.objects = fresh })
	_, kept := arrange(fresh, k.logUnreadable)
	for _, p := range dropped {
		if kept[p.UID] != nil {
			continue
		}
		p.last, p.lastFault, p.hadRevision = nil, nil, false
		p.is = stateOf(p.NodePool, p.fault, nil, v)
		k.cfg.Logger.Info("repair block dropped: its revision was deleted", "nodePool", p.Name)
	}
	return nil
}

// storeRevisions writes revisions of the blocks in force and deletes obsolete revisions. It returns when to
// try again.
func (k *Store) storeRevisions(ctx context.Context, revisions map[types.UID]poolRevisions, kept map[types.UID]*lastGood) (due time.Time) {
	now := time.Now()
	if err := k.writeBackoff.allows(now); err != nil {
		return k.writeBackoff.at
	}
	was := k.writeBackoff
	err := k.storeAllRevisions(ctx, revisions, kept)
	if ctx.Err() != nil {
		return due
	}
	due = k.writeBackoff.note(now, err)
	switch {
	case err == nil && was.isTold:
		k.cfg.Logger.Info("repair blocks stored again")
	case err == nil || was.isTold || errors.Is(err, errChanged) && was.failures == 0: // the next round handles it
	default:
		k.writeBackoff.isTold = true
		k.cfg.Logger.Error("repair blocks not stored: a new leader will not know them while the schema is missing",
			"namespace", k.cfg.Namespace, "err", err)
	}
	return due
}

func (k *Store) storeAllRevisions(ctx context.Context, revisions map[types.UID]poolRevisions, kept map[types.UID]*lastGood) error {
	for _, name := range slices.Sorted(maps.Keys(k.pools)) {
		p := k.pools[name]
		old := revisions[p.UID]
		delete(revisions, p.UID)
		switch {
		case p.last == nil: // delete all revisions
		case p.isRevisionDeleted(kept): // confirmDrop has not confirmed it yet
		case p.last.isEquivalent(kept[p.UID]):
			old = old[:len(old)-1]
		default:
			if err := k.storeRevision(ctx, p); err != nil {
				return err
			}
		}
		if err := k.deleteRevisions(ctx, old); err != nil {
			return err
		}
	}
	return k.deleteOrphans(ctx, revisions)
}

// deleteOrphans deletes the revisions of deleted pools, unless the CRD is in deletion: no user has
// deleted the pools that disappear with it.
func (k *Store) deleteOrphans(ctx context.Context, revisions map[types.UID]poolRevisions) error {
	if len(revisions) == 0 {
		return nil
	}
	fresh, err := k.readDefinitionNow(ctx)
	switch {
	case apierrors.IsForbidden(err):
		return nil // the revisions do no harm
	case err != nil:
		return err
	case !fresh.exists || fresh.isDeleting:
		k.setDefinition(fresh)
		return nil
	}
	for _, left := range revisions {
		if err := k.deleteRevisions(ctx, left); err != nil {
			return err
		}
	}
	return nil
}

// storeRevision writes a revision of the block in force for a pool.
func (k *Store) storeRevision(ctx context.Context, p *pool) error {
	revision, err := newRevision(k.cfg.Namespace, 1+lastNumber(k.currentSnapshot().copies.objects, p.Name), p.last)
	if err != nil {
		return err
	}
	err = k.createRevision(ctx, revision)
	if apierrors.IsAlreadyExists(err) { // the answer was lost, or another replica was the leader meanwhile
		fresh, listErr := k.listRevisions(ctx)
		if listErr != nil {
			return listErr
		}
		k.updateSnapshot(func(s *snapshot) { s.copies.objects = fresh })
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return err
	}
	p.hadRevision = true
	k.updateSnapshot(func(s *snapshot) { put(s.copies.objects, revision, false) })
	return nil
}

// deleteRevisions deletes revisions.
func (k *Store) deleteRevisions(ctx context.Context, old poolRevisions) error {
	for _, revision := range old {
		if err := k.deleteRevision(ctx, revision); err != nil {
			return err
		}
		k.updateSnapshot(func(s *snapshot) {
			if is := s.copies.objects[revision.Name]; is != nil && is.UID == revision.UID {
				put(s.copies.objects, revision, true)
			}
		})
	}
	return nil
}

// count reports how many pools are in which state, when that changes.
func (k *Store) count(inForce map[string]*Pool, kept map[types.UID]*lastGood) {
	var now Counts
	for name, is := range inForce {
		p := k.pools[name]
		switch isSaved := p.last == nil || kept[p.UID] != nil && sameBlock(kept[p.UID].Block, p.last.Block); {
		case p.is == refused:
			now.Refused++
		case p.is == lost:
			now.Lost++
		case p.is == vanished || p.is == unsure:
			now.Vanished++
		case !isSaved:
			now.NotSaved++
		case is.Block != nil:
			now.InForce++
		}
	}
	if now != k.counted {
		k.counted = now
		k.cfg.Count(now)
	}
}

// logUnreadable logs an unreadable revision once.
func (k *Store) logUnreadable(revision *appsv1.ControllerRevision, err error) {
	if !k.logged.unreadable[revision.UID] {
		k.logged.unreadable[revision.UID] = true
		k.cfg.Logger.Error("revision of a repair block unreadable", "namespace", revision.Namespace, "controllerRevision", revision.Name, "err", err)
	}
}

// logMissingPermissions logs every missing permission once.
func (k *Store) logMissingPermissions(s *snapshot) {
	for i, of := range []struct {
		isBarred bool
		words    string
		err      error
	}{
		{s.definitions.isForbidden(), "a repair block that is gone from its pool stays in force, for whether its schema was lost cannot be seen", s.definitions.err},
		{s.copies.isForbidden(), "repair blocks are not kept, and last good ones not known", s.copies.err},
		{s.pools.isForbidden(), "repair blocks on node pools not followed", s.pools.err},
	} {
		if of.isBarred && !k.logged.forbidden[i] {
			k.cfg.Logger.Error("permission missing", "so", of.words, "manifest", "deploy/install.yaml", "err", of.err)
		}
		k.logged.forbidden[i] = of.isBarred
	}
}
