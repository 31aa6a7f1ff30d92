package configmaps

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/watch"
)

// RevisionWatcher knows the sets in force of all ConfigMaps. It watches the stored
// revisions, so that callers need not wait for the API server. While it has no watch,
// because it has just started or lacks the permission, it reads from the API server. It is
// safe for concurrent use, on any replica.
type RevisionWatcher struct {
	store  *RevisionStore
	source cache.ListerWatcherWithContext
	log    *slog.Logger

	inForce atomic.Pointer[[]*v1alpha1.ConditionSet] // nil while there is no watch

	mu         sync.Mutex
	isWatching bool                                  // the last watch request succeeded
	revisions  map[string]*appsv1.ControllerRevision // nil until they were listed
	isLogged   bool                                  // the missing watch was logged

	isForbidden atomic.Bool // the missing list permission was logged
}

// NewRevisionWatcher returns a watcher that reads from the API server until it is started.
func NewRevisionWatcher(c client.WithWatch, namespace string, log *slog.Logger) *RevisionWatcher {
	source := watch.Source(c, func() client.ObjectList { return &appsv1.ControllerRevisionList{} },
		client.InNamespace(namespace), client.MatchingLabels{RevisionLabel: LabelValue})
	return &RevisionWatcher{store: NewRevisionStore(c, namespace), source: source, log: log}
}

// NeedLeaderElection returns false: every replica watches.
func (l *RevisionWatcher) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (l *RevisionWatcher) Start(ctx context.Context) error {
	// The watcher logs failures once itself; the reflector would log each of them.
	watch.Run(ctx, &appsv1.ControllerRevision{}, l, l, slog.New(slog.DiscardHandler))
	return nil
}

// InForce returns the sets in force, from the cache if possible. Callers must not change
// them.
func (l *RevisionWatcher) InForce(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
	if seen := l.inForce.Load(); seen != nil {
		return *seen, nil
	}
	return l.Fresh(ctx)
}

// Fresh reads the sets in force from the API server. Without permission it returns none:
// the controller has the same permissions and applies none either.
func (l *RevisionWatcher) Fresh(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
	sets, err := l.store.InForce(ctx)
	if !apierrors.IsForbidden(err) {
		l.isForbidden.Store(false)
		return sets, err
	}
	if !l.isForbidden.Swap(true) {
		l.log.Warn("policies are validated without the sets in ConfigMaps: no permission to list their revisions; grant list and watch on controllerrevisions", "namespace", l.store.namespace, "err", err)
	}
	return nil, nil
}

// ListWithContext lists the revisions.
func (l *RevisionWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	page, err := l.source.ListWithContext(ctx, options)
	if err != nil {
		l.setWatching(ctx, err)
	}
	return page, err
}

// WatchWithContext watches the revisions.
func (l *RevisionWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := l.source.WatchWithContext(ctx, options)
	l.setWatching(ctx, err)
	return w, err
}

// setWatching records whether there is a watch.
func (l *RevisionWatcher) setWatching(ctx context.Context, err error) {
	l.change(func() {
		l.isWatching = err == nil
		if isNews := err != nil && !l.isLogged && ctx.Err() == nil; isNews {
			l.log.Warn("kept versions of ConfigMaps not watched: the API server is asked for them with every policy instead", "namespace", l.store.namespace, "err", err)
		}
		l.isLogged = err != nil
	})
}

// Add stores a new revision.
func (l *RevisionWatcher) Add(obj any) error { return l.Update(obj) }

// Update stores a revision whose labels have changed.
func (l *RevisionWatcher) Update(obj any) error {
	revision, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return fmt.Errorf("the watch sent a %T", obj)
	}
	l.change(func() { l.revisions[revision.Name] = revision })
	return nil
}

// Delete removes a revision.
func (l *RevisionWatcher) Delete(obj any) error {
	revision, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return fmt.Errorf("the watch sent a %T", obj)
	}
	l.change(func() { delete(l.revisions, revision.Name) })
	return nil
}

// Replace stores the complete list of revisions.
func (l *RevisionWatcher) Replace(list []any, _ string) error {
	revisions := make(map[string]*appsv1.ControllerRevision, len(list))
	for _, obj := range list {
		revision, ok := obj.(*appsv1.ControllerRevision)
		if !ok {
			return fmt.Errorf("the list has a %T", obj)
		}
		revisions[revision.Name] = revision
	}
	l.change(func() { l.revisions = revisions })
	return nil
}

// Resync does nothing: the watcher loses no changes.
func (l *RevisionWatcher) Resync() error { return nil }

// change applies a change and publishes the sets in force.
func (l *RevisionWatcher) change(apply func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	apply()
	if !l.isWatching || l.revisions == nil {
		l.inForce.Store(nil)
		return
	}
	revisions := make([]appsv1.ControllerRevision, 0, len(l.revisions))
	for _, revision := range l.revisions {
		revisions = append(revisions, *revision)
	}
	sets := inForce(l.store.arrange(revisions))
	l.inForce.Store(&sets)
}
