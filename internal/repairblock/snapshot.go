package repairblock

import (
	"context"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/karpenter"
)

// settlesAfter is how long API servers may take to apply a changed CRD. The store then lists
// the pools again, and a few more times for slower API servers.
const settlesAfter = time.Second

var listAgainAfter = []time.Duration{settlesAfter, 5 * time.Second, 30 * time.Second}

// listed is the result of listing and watching a kind.
type listed[T client.Object] struct {
	objects map[string]T
	isRead  bool
	err     error // why the kind cannot be read, or no longer
}

// isForbidden reports whether the permission to read is missing.
func (a listed[T]) isForbidden() bool { return apierrors.IsForbidden(a.err) }

// isAbsent reports whether the kind does not exist.
func (a listed[T]) isAbsent() bool { return meta.IsNoMatchError(a.err) || apierrors.IsNotFound(a.err) }

// snapshot is a snapshot of the observed objects.
type snapshot struct {
	definitions listed[*unstructured.Unstructured] // at most one CRD
	definition  definition                         // if definitions was read
	copies      listed[*appsv1.ControllerRevision]
	pools       listed[*karpenter.NodePool]
	// under is the CRD version for which the pools are listed, if any. Reports of an
	// earlier lister are ignored.
	under     *view
	isSettled bool // the pools were listed after every API server had applied the CRD
}

// readError returns why a required object is unknown.
func (s *snapshot) readError() error {
	for _, err := range []error{s.definitions.err, s.pools.err, s.copies.err} {
		if err != nil {
			return err
		}
	}
	return nil
}

// view returns the CRD with which the pools are listed and evaluated.
func (s *snapshot) view() (v view, isClear bool) {
	switch {
	case s.definitions.isForbidden():
		return view{}, true
	case s.definitions.isRead:
		return view{definition: s.definition, isKnown: true}, true
	}
	return view{}, false
}

// isAbsent reports whether the kind NodePool does not exist. The CRD takes precedence over a
// not-found answer for pools: an API server that has just started may not serve its CRDs
// yet.
func (s *snapshot) isAbsent(v view) bool {
	if v.isKnown && (!v.exists || s.pools.isRead) {
		return !v.exists
	}
	return s.pools.isAbsent()
}

// updateSnapshot changes the snapshot and wakes the loop.
func (k *Store) updateSnapshot(apply func(*snapshot)) {
	k.mu.Lock()
	apply(&k.snapshot)
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default: // the loop is already awake
	}
}

// setDefinition stores a CRD version that was read from the API server, if it is new.
func (k *Store) setDefinition(fresh definition) {
	k.mu.Lock()
	isNews := k.snapshot.definition != fresh
	k.mu.Unlock()
	if isNews {
		k.updateSnapshot(func(s *snapshot) { s.definition = fresh })
	}
}

// currentSnapshot returns a copy of the snapshot.
func (k *Store) currentSnapshot() snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.snapshot
	s.copies.objects, s.pools.objects = maps.Clone(s.copies.objects), maps.Clone(s.pools.objects)
	return s
}

// watchDefinition lists and watches the CRD of NodePools.
func (k *Store) watchDefinition(ctx context.Context) {
	see := func(s *snapshot, crd *unstructured.Unstructured) {
		s.definitions.isRead, s.definitions.err, s.definition = true, nil, definition{}
		if crd != nil {
			s.definition = readDefinition(crd)
		}
	}
	f := lister[*unstructured.Unstructured]{
		client: k.cfg.Client,
		list: func() client.ObjectList {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(definitionKind.GroupVersion().WithKind(definitionKind.Kind + "List"))
			return list
		},
		restrict: []client.ListOption{client.MatchingFields{"metadata.name": definitionName}},
		onList: func(_ time.Time, crds map[string]*unstructured.Unstructured) {
			k.updateSnapshot(func(s *snapshot) { see(s, crds[definitionName]) })
		},
		onChange: func(crd *unstructured.Unstructured, isGone bool) {
			if isGone {
				crd = nil
			}
			k.updateSnapshot(func(s *snapshot) { see(s, crd) })
		},
		onError: func(err error) { k.updateSnapshot(func(s *snapshot) { s.definitions.err = err }) },
	}
	f.run(ctx)
}

// watchRevisions lists and watches the revisions.
func (k *Store) watchRevisions(ctx context.Context) {
	f := lister[*appsv1.ControllerRevision]{
		client: k.cfg.Client, list: func() client.ObjectList { return &appsv1.ControllerRevisionList{} },
		restrict: []client.ListOption{client.InNamespace(k.cfg.Namespace), client.HasLabels{RevisionLabel}},
		onList: func(_ time.Time, copies map[string]*appsv1.ControllerRevision) {
			k.updateSnapshot(func(s *snapshot) { s.copies = listed[*appsv1.ControllerRevision]{objects: copies, isRead: true} })
		},
		onChange: func(revision *appsv1.ControllerRevision, isGone bool) {
			k.updateSnapshot(func(s *snapshot) { put(s.copies.objects, revision, isGone) })
		},
		onError: func(err error) { k.updateSnapshot(func(s *snapshot) { s.copies.err = err }) },
	}
	f.run(ctx)
}

// watchPools lists and watches the pools as long as the view is current.
func (k *Store) watchPools(ctx context.Context, under *view, start time.Time) {
	note := func(apply func(*snapshot)) {
		k.updateSnapshot(func(s *snapshot) {
			if s.under == under {
				apply(s)
			}
		})
	}
	f := lister[*karpenter.NodePool]{
		client: k.cfg.Client, list: func() client.ObjectList { return &karpenter.NodePoolList{} },
		onList: func(begun time.Time, pools map[string]*karpenter.NodePool) {
			note(func(s *snapshot) {
				s.pools = listed[*karpenter.NodePool]{objects: pools, isRead: true}
				s.isSettled = begun.Sub(start) >= settlesAfter
			})
		},
		onChange: func(pool *karpenter.NodePool, isGone bool) {
			note(func(s *snapshot) { put(s.pools.objects, pool, isGone) })
		},
		onError: func(err error) { note(func(s *snapshot) { s.pools.err = err }) },
	}
	f.run(ctx, listAgainAfter...)
}

// put adds or removes an object.
func put[T client.Object](objects map[string]T, object T, isGone bool) {
	if isGone {
		delete(objects, object.GetName())
		return
	}
	objects[object.GetName()] = object
}

// restartPoolLister restarts the lister of pools when the CRD changes: the API server may then show other
// fields, and no watch reports that.
func (k *Store) restartPoolLister(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	is, isClear := k.snapshot.view()
	if !isClear || k.snapshot.under != nil && k.snapshot.under.showsSamePools(is) {
		return
	}
	if k.stopLister != nil {
		k.stopLister()
		k.stopLister = nil
	}
	k.snapshot.under, k.snapshot.isSettled, k.snapshot.pools.err = &is, false, nil
	if is.isKnown && !is.exists {
		k.snapshot.pools = listed[*karpenter.NodePool]{}
		return
	}
	feeding, stop := context.WithCancel(ctx)
	k.stopLister = stop
	under, start := k.snapshot.under, time.Now()
	k.listers.Go(func() { k.watchPools(feeding, under, start) })
}

// showsSamePools reports whether another view shows the same pools.
func (v view) showsSamePools(other view) bool {
	return v.version == other.version && v.isKnown == other.isKnown && v.exists == other.exists
}
