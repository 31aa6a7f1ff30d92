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

// settlesAfter is how long API servers may take to follow a CRD that has changed. Pools
// are listed again then, and, for one that took longer, a few times after that.
const settlesAfter = time.Second

var listAgainAfter = []time.Duration{settlesAfter, 5 * time.Second, 30 * time.Second}

// answer is what came of asking for all objects of a kind.
type answer[T client.Object] struct {
	objects map[string]T
	isRead  bool
	err     error // why it cannot be read, or not any more
}

// isBarred says that it may not be read.
func (a answer[T]) isBarred() bool { return apierrors.IsForbidden(a.err) }

// isAbsent says that there is no such kind.
func (a answer[T]) isAbsent() bool { return meta.IsNoMatchError(a.err) || apierrors.IsNotFound(a.err) }

// sight is what has been seen of the cluster.
type sight struct {
	definitions answer[*unstructured.Unstructured] // at most the one
	definition  definition                         // if it is read
	copies      answer[*appsv1.ControllerRevision]
	pools       answer[*karpenter.NodePool]
	// under is the definition with which the pools are asked for, if any: of a feed
	// that is over nothing is heard any more.
	under     *view
	isSettled bool // the pools were listed when the definition was settled
}

// trouble returns why something is not known that should be.
func (s *sight) trouble() error {
	for _, err := range []error{s.definitions.err, s.pools.err, s.copies.err} {
		if err != nil {
			return err
		}
	}
	return nil
}

// view is what pools are to be judged with, and asked for.
func (s *sight) view() (v view, isClear bool) {
	switch {
	case s.definitions.isBarred():
		return view{}, true
	case s.definitions.isRead:
		return view{definition: s.definition, isKnown: true}, true
	}
	return view{}, false
}

// isAbsent says whether there is no such kind as a NodePool. What the CRD says goes
// before an answer that pools were not found: an API server that has just come up may
// not have found its CRDs yet.
func (s *sight) isAbsent(v view) bool {
	if v.isKnown && (!v.isThere || s.pools.isRead) {
		return !v.isThere
	}
	return s.pools.isAbsent()
}

// note takes something in that was seen, and has the loop look at it.
func (k *Store) note(apply func(*sight)) {
	k.mu.Lock()
	apply(&k.sight)
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default: // it is awake
	}
}

// learn takes in a definition that was read afresh, if it is news.
func (k *Store) learn(fresh definition) {
	k.mu.Lock()
	isNews := k.sight.definition != fresh
	k.mu.Unlock()
	if isNews {
		k.note(func(s *sight) { s.definition = fresh })
	}
}

// look returns what has been seen, which stays as it is.
func (k *Store) look() sight {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sight
	s.copies.objects, s.pools.objects = maps.Clone(s.copies.objects), maps.Clone(s.pools.objects)
	return s
}

// watchDefinition follows the CRD of NodePools.
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

// watchCopies follows the copies.
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

// watchPools follows the pools for as long as they are asked for with a view.
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

// put takes an object in, or out.
func put[T client.Object](objects map[string]T, object T, isGone bool) {
	if isGone {
		delete(objects, object.GetName())
		return
	}
	objects[object.GetName()] = object
}

// tune has the pools asked for anew when the definition is another: what the API server
// shows of them may be something else then, and no watch brings that.
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

// asksLike says whether pools are the same in another view.
func (v view) asksLike(other view) bool {
	return v.version == other.version && v.isKnown == other.isKnown && v.isThere == other.isThere
}
