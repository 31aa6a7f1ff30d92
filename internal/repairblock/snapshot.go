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

// answer is the result of listing and watching a kind.
type answer[T client.Object] struct {
	objects map[string]T
	isRead  bool
	err     error // why the kind cannot be read, or no longer
}

// isBarred reports whether the permission to read is missing.
func (a answer[T]) isBarred() bool { return apierrors.IsForbidden(a.err) }

// isAbsent reports whether the kind does not exist.
func (a answer[T]) isAbsent() bool { return meta.IsNoMatchError(a.err) || apierrors.IsNotFound(a.err) }

// sight is a snapshot of the observed objects.
type sight struct {
	definitions answer[*unstructured.Unstructured] // at most one CRD
	definition  definition                         // if definitions was read
	copies      answer[*appsv1.ControllerRevision]
	pools       answer[*karpenter.NodePool]
	// under is the CRD version for which the pools are listed, if any. Reports of an
	// earlier lister are ignored.
	under     *view
	isSettled bool // the pools were listed after every API server had applied the CRD
}

// trouble returns why a required object is unknown.
func (s *sight) trouble() error {
	for _, err := range []error{s.definitions.err, s.pools.err, s.copies.err} {
		if err != nil {
			return err
		}
	}
	return nil
}

// view returns the CRD with which the pools are listed and evaluated.
func (s *sight) view() (v view, isClear bool) {
	switch {
	case s.definitions.isBarred():
		return view{}, true
	case s.definitions.isRead:
		return view{definition: s.definition, isKnown: true}, true
	}
	return view{}, false
}

// isAbsent reports whether the kind NodePool does not exist. The CRD takes precedence over a
// not-found answer for pools: an API server that has just started may not serve its CRDs
// yet.
func (s *sight) isAbsent(v view) bool {
	if v.isKnown && (!v.isThere || s.pools.isRead) {
		return !v.isThere
	}
	return s.pools.isAbsent()
}

// note changes the snapshot and wakes the loop.
func (k *Store) note(apply func(*sight)) {
	k.mu.Lock()
	apply(&k.sight)
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default: // the loop is already awake
	}
}

// learn stores a CRD version that was read from the API server, if it is new.
func (k *Store) learn(fresh definition) {
	k.mu.Lock()
	isNews := k.sight.definition != fresh
	k.mu.Unlock()
	if isNews {
		k.note(func(s *sight) { s.definition = fresh })
	}
}

// look returns a copy of the snapshot.
func (k *Store) look() sight {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sight
	s.copies.objects, s.pools.objects = maps.Clone(s.copies.objects), maps.Clone(s.pools.objects)
	return s
}

// watchDefinition lists and watches the CRD of NodePools.
func (k *Store) watchDefinition(ctx context.Context) {
	see := func(s *sight, crd *unstructured.Unstructured) {
		s.definitions.isRead, s.definitions.err, s.definition = true, nil, definition{}
		if crd != nil {
			s.definition = readDefinition(crd)
		}
	}
	f := feed[*unstructured.Unstructured]{
		client: k.cfg.Client,
		list: func() client.ObjectList {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(definitionKind.GroupVersion().WithKind(definitionKind.Kind + "List"))
			return list
		},
		restrict: []client.ListOption{client.MatchingFields{"metadata.name": definitionName}},
		all: func(_ time.Time, crds map[string]*unstructured.Unstructured) {
			k.note(func(s *sight) { see(s, crds[definitionName]) })
		},
		one: func(crd *unstructured.Unstructured, isGone bool) {
			if isGone {
				crd = nil
			}
			k.note(func(s *sight) { see(s, crd) })
		},
		failed: func(err error) { k.note(func(s *sight) { s.definitions.err = err }) },
	}
	f.run(ctx)
}

// watchCopies lists and watches the revisions.
func (k *Store) watchCopies(ctx context.Context) {
	f := feed[*appsv1.ControllerRevision]{
		client: k.cfg.Client, list: func() client.ObjectList { return &appsv1.ControllerRevisionList{} },
		restrict: []client.ListOption{client.InNamespace(k.cfg.Namespace), client.HasLabels{RevisionLabel}},
		all: func(_ time.Time, copies map[string]*appsv1.ControllerRevision) {
			k.note(func(s *sight) { s.copies = answer[*appsv1.ControllerRevision]{objects: copies, isRead: true} })
		},
		one: func(revision *appsv1.ControllerRevision, isGone bool) {
			k.note(func(s *sight) { put(s.copies.objects, revision, isGone) })
		},
		failed: func(err error) { k.note(func(s *sight) { s.copies.err = err }) },
	}
	f.run(ctx)
}

// watchPools lists and watches the pools as long as the view is current.
func (k *Store) watchPools(ctx context.Context, under *view, start time.Time) {
	note := func(apply func(*sight)) {
		k.note(func(s *sight) {
			if s.under == under {
				apply(s)
			}
		})
	}
	f := feed[*karpenter.NodePool]{
		client: k.cfg.Client, list: func() client.ObjectList { return &karpenter.NodePoolList{} },
		all: func(begun time.Time, pools map[string]*karpenter.NodePool) {
			note(func(s *sight) {
				s.pools = answer[*karpenter.NodePool]{objects: pools, isRead: true}
				s.isSettled = begun.Sub(start) >= settlesAfter
			})
		},
		one: func(pool *karpenter.NodePool, isGone bool) {
			note(func(s *sight) { put(s.pools.objects, pool, isGone) })
		},
		failed: func(err error) { note(func(s *sight) { s.pools.err = err }) },
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

// tune restarts the lister of pools when the CRD changes: the API server may then show other
// fields, and no watch reports that.
func (k *Store) tune(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	is, isClear := k.sight.view()
	if !isClear || k.sight.under != nil && k.sight.under.asksLike(is) {
		return
	}
	if k.stopFeed != nil {
		k.stopFeed()
		k.stopFeed = nil
	}
	k.sight.under, k.sight.isSettled, k.sight.pools.err = &is, false, nil
	if is.isKnown && !is.isThere {
		k.sight.pools = answer[*karpenter.NodePool]{}
		return
	}
	feeding, stop := context.WithCancel(ctx)
	k.stopFeed = stop
	under, start := k.sight.under, time.Now()
	k.feeds.Go(func() { k.watchPools(feeding, under, start) })
}

// asksLike reports whether another view shows the same pools.
func (v view) asksLike(other view) bool {
	return v.version == other.version && v.isKnown == other.isKnown && v.isThere == other.isThere
}
