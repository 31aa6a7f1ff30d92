package configmaps

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/rewatch"
)

// RevisionWatcher knows the sets of all ConfigMaps that are followed by a watch of the
// shelf, so that whoever asks need not wait for the API server. While there is no
// watch, for want of a right or because it has just begun, it asks instead. It may be
// asked by many at once, on any replica.
type RevisionWatcher struct {
	shelf  *RevisionStore
	client client.WithWatch
	log    *slog.Logger

	inForce atomic.Pointer[[]*v1alpha1.ConditionSet] // nil while there is no watch

	mu        sync.Mutex
	stands    bool                                  // the last watch that was asked for was had
	revisions map[string]*appsv1.ControllerRevision // nil until they were listed
	isTold    bool                                  // that there is no watch

	isBarred atomic.Bool // it was told that not even a list may be had
}

// NewRevisionWatcher returns one that asks, until it is started.
func NewRevisionWatcher(c client.WithWatch, namespace string, log *slog.Logger) *RevisionWatcher {
	return &RevisionWatcher{shelf: NewRevisionStore(c, namespace), client: c, log: log}
}

// NeedLeaderElection says that every replica looks.
func (l *RevisionWatcher) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (l *RevisionWatcher) Start(ctx context.Context) error {
	// What goes wrong is told by tell, once: the reflector would say it every time.
	logger := logr.Discard()
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: l.list, WatchFuncWithContext: l.watch},
		&appsv1.ControllerRevision{}, l, cache.ReflectorOptions{Logger: &logger, Backoff: rewatch.Backoff()})
	reflector.RunWithContext(klog.NewContext(ctx, logger))
	return nil
}

// InForce returns the sets as they are, or were a moment ago. They are not to be
// changed.
func (l *RevisionWatcher) InForce(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
	if seen := l.inForce.Load(); seen != nil {
		return *seen, nil
	}
	return l.Fresh(ctx)
}

// Fresh asks the API server for the sets as they are now. To whom that is forbidden
// there are none: the controller, which has the same rights, follows none either.
func (l *RevisionWatcher) Fresh(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
	sets, err := l.shelf.InForce(ctx)
	if !apierrors.IsForbidden(err) {
		l.isBarred.Store(false)
		return sets, err
	}
	if !l.isBarred.Swap(true) {
		l.log.Warn("policies are judged without the sets in ConfigMaps, because their kept versions may not be listed: grant list and watch on controllerrevisions", "namespace", l.shelf.namespace, "err", err)
	}
	return nil, nil
}

func (l *RevisionWatcher) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.LabelSelector = RevisionLabel + "=" + LabelValue
	page := &appsv1.ControllerRevisionList{}
	err := l.client.List(ctx, page, &client.ListOptions{Namespace: l.shelf.namespace, Raw: &options, Limit: options.Limit, Continue: options.Continue})
	if err != nil {
		l.stand(ctx, err)
	}
	return page, err
}

func (l *RevisionWatcher) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector = RevisionLabel + "=" + LabelValue
	w, err := l.client.Watch(ctx, &appsv1.ControllerRevisionList{}, &client.ListOptions{Namespace: l.shelf.namespace, Raw: &options})
	l.stand(ctx, err)
	return w, err
}

// stand notes whether there is a watch.
func (l *RevisionWatcher) stand(ctx context.Context, err error) {
	l.change(func() {
		l.stands = err == nil
		if isNews := err != nil && !l.isTold && ctx.Err() == nil; isNews {
			l.log.Warn("kept versions of ConfigMaps not watched: the API server is asked for them with every policy instead", "namespace", l.shelf.namespace, "err", err)
		}
		l.isTold = err != nil
	})
}

// Add takes in a revision that is new.
func (l *RevisionWatcher) Add(obj any) error { return l.Update(obj) }

// Update takes in a revision that has changed, by its labels.
func (l *RevisionWatcher) Update(obj any) error {
	revision, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	l.change(func() { l.revisions[revision.Name] = revision })
	return nil
}

// Delete notes that a revision is gone.
func (l *RevisionWatcher) Delete(obj any) error {
	revision, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	l.change(func() { delete(l.revisions, revision.Name) })
	return nil
}

// Replace takes in all revisions that there are.
func (l *RevisionWatcher) Replace(list []any, _ string) error {
	revisions := make(map[string]*appsv1.ControllerRevision, len(list))
	for _, obj := range list {
		revision, ok := obj.(*appsv1.ControllerRevision)
		if !ok {
			return fmt.Errorf("the list brought a %T", obj)
		}
		revisions[revision.Name] = revision
	}
	l.change(func() { l.revisions = revisions })
	return nil
}

// Resync has no meaning here: nothing that came is lost.
func (l *RevisionWatcher) Resync() error { return nil }

// change takes something in, and has everybody know what is in force then.
func (l *RevisionWatcher) change(apply func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	apply()
	if !l.stands || l.revisions == nil {
		l.inForce.Store(nil)
		return
	}
	revisions := make([]appsv1.ControllerRevision, 0, len(l.revisions))
	for _, revision := range l.revisions {
		revisions = append(revisions, *revision)
	}
	sets := inForce(l.shelf.arrange(revisions))
	l.inForce.Store(&sets)
}
