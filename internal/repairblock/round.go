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
)

// pool is a NodePool and the state of its block.
type pool struct {
	*karpenter.NodePool
	is state

	judged *v1alpha1.RepairSpec // the last validated block, nil for none
	fault  error                // why that block is invalid

	last      *good // the last valid block, nil for none
	lastFault error // why it is no longer valid
	inherits  bool  // its revisions were known at the last check
	isKept    bool  // it had a revision

	told     string // the last problem in an Event
	restore  pace
	isBarred bool // users were told that the controller may not restore the block
}

// inForce returns the block in force.
func (p *pool) inForce() *Pool {
	now := &Pool{NodePool: p.NodePool, Problem: problem(p.is, p.fault, p.last, p.lastFault), Lost: p.is == lost}
	if p.last != nil && p.lastFault == nil {
		now.Block = p.last.Block
	}
	return now
}

// isDropped reports whether a user deleted the revision of a block that is in force but is
// missing or invalid on its pool.
func (p *pool) isDropped(kept map[types.UID]*good) bool {
	return p.last != nil && p.is != follows && p.isKept && kept[p.UID] == nil
}

// Run works until ctx ends. The caller must ensure that only one replica runs it.
func (k *Store) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.cfg.Count(Counts{})
	defer k.feeds.Wait()
	defer cancel()
	k.feeds.Go(func() { k.watchDefinition(ctx) })
	k.feeds.Go(func() { k.watchCopies(ctx) })
	if k.cfg.Restore {
		k.reviewRights(ctx)
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
	k.tune(ctx)
	s := k.look()
	k.tellOfRights(&s)
	if s.under == nil || !s.copies.isRead && !s.copies.isBarred() {
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
	revisions, kept := arrange(s.copies.objects, k.tellOfUnreadable)
	k.meet(&s, kept)
	for _, p := range k.pools {
		p.is = standing(p.NodePool, p.fault, p.last, v)
	}
	due = k.askAgain(ctx, v, kept)
	inForce := make(map[string]*Pool, len(k.pools))
	for name, p := range k.pools {
		p.last = remember(p.NodePool, p.is, p.fault, p.last, v)
		if p.Spec.Repair != nil && p.fault == nil {
			p.lastFault = nil
		}
		inForce[name] = p.inForce()
	}
	k.tell(inForce)
	k.count(inForce, kept)
	k.publish(true, inForce)
	if s.copies.isRead {
		due = earliest(due, k.keep(ctx, revisions, kept))
	}
	return earliest(due, k.restore(ctx, v))
}

// meet adds and removes pools, and takes the last valid block of new pools from their revisions.
func (k *Store) meet(s *sight, kept map[types.UID]*good) {
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
		if s.copies.isRead && !p.inherits {
			p.inherits = true
			if p.last == nil && kept[p.UID] != nil {
				p.last = kept[p.UID]
				p.lastFault = k.cfg.Check(name, p.last.Block)
			}
		}
		p.isKept = p.isKept || kept[p.UID] != nil
		if block := object.Spec.Repair; !sameBlock(block, p.judged) || p.judged == nil {
			p.judged, p.fault = block, k.judge(name, block)
		}
	}
}

func (k *Store) judge(name string, block *v1alpha1.RepairSpec) error {
	switch {
	case block == nil:
		return nil
	case block.Unreadable != "":
		return errors.New("spec.repair: " + block.Unreadable)
	}
	return k.cfg.Check(name, block)
}

// askAgain reads again before the store accepts that a user has removed a block, or deleted
// a revision of the block in force. It returns when to try again.
func (k *Store) askAgain(ctx context.Context, v view, kept map[types.UID]*good) (due time.Time) {
	var gone, dropped []*pool
	for _, p := range k.pools {
		switch {
		case p.is == removed:
			gone = append(gone, p)
		case p.isDropped(kept):
			dropped = append(dropped, p)
		}
	}
	if len(gone)+len(dropped) == 0 {
		return due
	}
	err := k.asks.allows(time.Now())
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
	if len(dropped) > 0 && k.asks.allows(time.Now()) == nil {
		err = errors.Join(err, k.confirmDrop(ctx, dropped, v))
	}
	return k.asks.note(time.Now(), err)
}

// errChanged says that the snapshot is outdated.
var errChanged = errors.New("it has changed meanwhile")

// confirmRemoval fails unless the CRD still has the version of the view.
func (k *Store) confirmRemoval(ctx context.Context, v view) error {
	fresh, err := k.readDefinitionNow(ctx)
	switch {
	case err != nil:
		return err
	case fresh.version != v.version || fresh.isGoing:
		k.learn(fresh)
		return errChanged
	}
	return nil
}

// confirmDrop drops the blocks whose revisions a user has deleted.
func (k *Store) confirmDrop(ctx context.Context, dropped []*pool, v view) error {
	fresh, err := k.listCopies(ctx)
	if err != nil {
		return err
	}
	k.note(func(s *sight) { s.copies.objects = fresh })
	_, kept := arrange(fresh, k.tellOfUnreadable)
	for _, p := range dropped {
		if kept[p.UID] != nil {
			continue
		}
		p.last, p.lastFault, p.isKept = nil, nil, false
		p.is = standing(p.NodePool, p.fault, nil, v)
		k.cfg.Logger.Info("repair block dropped: its revision was deleted", "nodePool", p.Name)
	}
	return nil
}

// keep writes revisions of the blocks in force and deletes obsolete revisions. It returns when to
// try again.
func (k *Store) keep(ctx context.Context, revisions map[types.UID]copies, kept map[types.UID]*good) (due time.Time) {
	now := time.Now()
	if err := k.writes.allows(now); err != nil {
		return k.writes.at
	}
	was := k.writes
	err := k.keepAll(ctx, revisions, kept)
	if ctx.Err() != nil {
		return due
	}
	due = k.writes.note(now, err)
	switch {
	case err == nil && was.isTold:
		k.cfg.Logger.Info("repair blocks stored again")
	case err == nil || was.isTold || errors.Is(err, errChanged) && was.wait == 0: // the next round handles it
	default:
		k.writes.isTold = true
		k.cfg.Logger.Error("repair blocks not stored: a new leader will not know them while the schema is missing",
			"namespace", k.cfg.Namespace, "err", err)
	}
	return due
}

func (k *Store) keepAll(ctx context.Context, revisions map[types.UID]copies, kept map[types.UID]*good) error {
	for _, name := range slices.Sorted(maps.Keys(k.pools)) {
		p := k.pools[name]
		old := revisions[p.UID]
		delete(revisions, p.UID)
		switch {
		case p.last == nil: // delete all revisions
		case p.isDropped(kept): // confirmDrop has not confirmed it yet
		case p.last.saysLike(kept[p.UID]):
			old = old[:len(old)-1]
		default:
			if err := k.keepOne(ctx, p); err != nil {
				return err
			}
		}
		if err := k.forget(ctx, old); err != nil {
			return err
		}
	}
	return k.forgetGone(ctx, revisions)
}

// forgetGone deletes the revisions of deleted pools, unless the CRD is in deletion: no user has
// deleted the pools that disappear with it.
func (k *Store) forgetGone(ctx context.Context, revisions map[types.UID]copies) error {
	if len(revisions) == 0 {
		return nil
	}
	fresh, err := k.readDefinitionNow(ctx)
	switch {
	case apierrors.IsForbidden(err):
		return nil // the revisions do no harm
	case err != nil:
		return err
	case !fresh.isThere || fresh.isGoing:
		k.learn(fresh)
		return nil
	}
	for _, left := range revisions {
		if err := k.forget(ctx, left); err != nil {
			return err
		}
	}
	return nil
}

// keepOne writes a revision of the block in force for a pool.
func (k *Store) keepOne(ctx context.Context, p *pool) error {
	revision, err := newCopy(k.cfg.Namespace, 1+lastNumber(k.look().copies.objects, p.Name), p.last)
	if err != nil {
		return err
	}
	err = k.createCopy(ctx, revision)
	if apierrors.IsAlreadyExists(err) { // the answer was lost, or another replica was the leader meanwhile
		fresh, listErr := k.listCopies(ctx)
		if listErr != nil {
			return listErr
		}
		k.note(func(s *sight) { s.copies.objects = fresh })
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return err
	}
	p.isKept = true
	k.note(func(s *sight) { put(s.copies.objects, revision, false) })
	return nil
}

// forget deletes revisions.
func (k *Store) forget(ctx context.Context, old copies) error {
	for _, revision := range old {
		if err := k.deleteCopy(ctx, revision); err != nil {
			return err
		}
		k.note(func(s *sight) {
			if is := s.copies.objects[revision.Name]; is != nil && is.UID == revision.UID {
				put(s.copies.objects, revision, true)
			}
		})
	}
	return nil
}

// count reports how many pools are in which state, when that changes.
func (k *Store) count(inForce map[string]*Pool, kept map[types.UID]*good) {
	var now Counts
	for name, is := range inForce {
		p := k.pools[name]
		if is.Block != nil {
			now.InForce++
		}
		switch p.is {
		case refused:
			now.Refused++
		case lost:
			now.Lost++
		case vanished, unsure:
			now.Vanished++
		}
		if p.last != nil && (kept[p.UID] == nil || !sameBlock(kept[p.UID].Block, p.last.Block)) {
			now.NotSaved++
		}
	}
	if now != k.counted {
		k.counted = now
		k.cfg.Count(now)
	}
}

// tellOfUnreadable logs an unreadable revision once.
func (k *Store) tellOfUnreadable(revision *appsv1.ControllerRevision, err error) {
	if !k.unread[revision.UID] {
		k.unread[revision.UID] = true
		k.cfg.Logger.Error("revision of a repair block unreadable", "namespace", revision.Namespace, "controllerRevision", revision.Name, "err", err)
	}
}

// tellOfRights logs every missing permission once.
func (k *Store) tellOfRights(s *sight) {
	for i, of := range []struct {
		isBarred bool
		words    string
		err      error
	}{
		{s.definitions.isBarred(), "a repair block that is gone from its pool stays in force, for whether its schema was lost cannot be seen", s.definitions.err},
		{s.copies.isBarred(), "repair blocks are not kept, and last good ones not known", s.copies.err},
		{s.pools.isBarred(), "repair blocks on node pools not followed", s.pools.err},
	} {
		if of.isBarred && !k.barred[i] {
			k.cfg.Logger.Error("right missing", "so", of.words, "rightsAreIn", "deploy/controller/2-rights.yaml", "err", of.err)
		}
		k.barred[i] = of.isBarred
	}
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
