package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/protowatch"
)

// pageSize is how many objects to list per request if the API server cannot stream them.
// Each page is trimmed before the next request.
const pageSize = 250

// inbox holds the newest version of every object that has changed since take. A reflector
// writes to it instead of a cache: the loop keeps what it needs of each object, so no
// object is stored twice.
type inbox[T client.Object] struct {
	signal     chan<- struct{} // has capacity one
	convert    func(brought any) (object T, ok bool)
	same       func(before, after T) bool
	namespaced bool // keys contain the namespace

	mu     sync.Mutex
	batch  batch[T]
	synced bool
	known  map[string]T // the last version of every object, if same is set
}

// batch is the content of an inbox.
type batch[T client.Object] struct {
	changes map[string]change[T]
	// listVersion, when not empty, is the version of a full list: objects that are not
	// among the changes did not exist at that version.
	listVersion string
}

// change is a new version of an object, or its deletion.
type change[T client.Object] struct {
	object T
	gone   bool
	at     time.Time
}

// newInbox returns an inbox that signals changes. If same is set, a version for which it
// returns true does not signal and waits for the next round. Most changes are heartbeats,
// and a round for each would cost more than reading it.
func newInbox[T client.Object](signal chan<- struct{}, same func(before, after T) bool) *inbox[T] {
	open := func(obj any) (T, bool) { object, ok := obj.(T); return object, ok }
	return &inbox[T]{signal: signal, convert: open, same: same, known: map[string]T{}, batch: batch[T]{changes: map[string]change[T]{}}}
}

// key returns the key of an object in the inbox.
func (box *inbox[T]) key(object T) string {
	if box.namespaced {
		return object.GetNamespace() + "/" + object.GetName()
	}
	return object.GetName()
}

// take returns and removes the content of the inbox.
func (box *inbox[T]) take() batch[T] {
	box.mu.Lock()
	defer box.mu.Unlock()
	taken := box.batch
	if len(taken.changes) == 0 && taken.listVersion == "" {
		return batch[T]{}
	}
	box.batch = batch[T]{changes: map[string]change[T]{}}
	return taken
}

// hasSynced reports whether the initial list has arrived.
func (box *inbox[T]) hasSynced() bool {
	box.mu.Lock()
	defer box.mu.Unlock()
	return box.synced
}

// put applies a change and signals if it is new.
func (box *inbox[T]) put(apply func(now time.Time) (isNews bool)) {
	box.mu.Lock()
	isNews := apply(time.Now())
	box.mu.Unlock()
	if !isNews {
		return
	}
	select {
	case box.signal <- struct{}{}:
	default: // a signal is pending already
	}
}

// Add stores a new object.
func (box *inbox[T]) Add(obj any) error { return box.Update(obj) }

// Update stores a changed object.
func (box *inbox[T]) Update(obj any) error {
	object, ok := box.convert(obj)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	dropManagedFields(object)
	box.put(func(now time.Time) bool {
		box.batch.changes[box.key(object)] = change[T]{object: object, at: now}
		if box.same == nil {
			return true
		}
		before, found := box.known[box.key(object)]
		box.known[box.key(object)] = object
		return !found || !box.same(before, object)
	})
	return nil
}

// dropManagedFields drops managed fields, which are large and unused. Nodes arrive
// without them and must not be modified: the sender still reads them.
func dropManagedFields(object client.Object) {
	if object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
}

// Delete records the deletion of an object.
func (box *inbox[T]) Delete(obj any) error {
	object, ok := box.convert(obj)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	box.put(func(now time.Time) bool {
		box.batch.changes[box.key(object)] = change[T]{object: object, gone: true, at: now}
		delete(box.known, box.key(object))
		return true
	})
	return nil
}

// Replace stores a full list.
func (box *inbox[T]) Replace(list []any, version string) error {
	latest, known := make(map[string]change[T], len(list)), make(map[string]T, len(list))
	now := time.Now()
	for _, obj := range list {
		object, ok := box.convert(obj)
		if !ok {
			return fmt.Errorf("the list brought a %T", obj)
		}
		dropManagedFields(object)
		latest[box.key(object)] = change[T]{object: object, at: now}
		if box.same != nil {
			known[box.key(object)] = object
		}
	}
	box.put(func(time.Time) bool {
		box.batch, box.known, box.synced = batch[T]{changes: latest, listVersion: version}, known, true
		return true
	})
	return nil
}

// Resync does nothing, because an inbox loses no change.
func (box *inbox[T]) Resync() error { return nil }

// fill lists and watches objects of a kind until ctx ends.
func (box *inbox[T]) fill(ctx context.Context, kind client.Object, source cache.ListerWatcherWithContext, log *slog.Logger) {
	logger := logr.FromSlogHandler(log.Handler())
	reflector := cache.NewReflectorWithOptions(withoutStaleList(source), kind, box, cache.ReflectorOptions{Logger: &logger, Backoff: protowatch.Backoff()})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(logr.NewContext(ctx, logger)) // it logs failures through the context
}

// withoutStaleList never lists from a cache that may be outdated: a new leader must see
// all writes of the previous leader.
func withoutStaleList(from cache.ListerWatcherWithContext) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				options.ResourceVersion, options.ResourceVersionMatch = "", ""
			}
			return from.ListWithContext(ctx, options)
		},
		WatchFuncWithContext: from.WatchWithContext,
	}
}
