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

// pageSize is how many objects are asked for at a time where the API server
// cannot stream them. A page is trimmed before the next one is asked for.
const pageSize = 250

// inbox holds the newest version of every object that has changed since it
// was last emptied, by its key. It is what a reflector writes to in place of a
// cache: the loop keeps what it needs of each object, and nobody keeps it twice.
type inbox[T client.Object] struct {
	signal     chan<- struct{} // has room for one
	open       func(brought any) (object T, ok bool)
	same       func(before, after T) bool
	namespaced bool // over several namespaces, so that a name does not tell which one it is

	mu     sync.Mutex
	batch  batch[T]
	synced bool
	known  map[string]T // the last that came of every object, where same is asked
}

// batch is what a mailbox held.
type batch[T client.Object] struct {
	changes map[string]change[T]
	// listVersion, when not empty, is the version of a list of everything: what is
	// not among them did not exist then.
	listVersion string
}

// change is an object as it came, or word that it is gone.
type change[T client.Object] struct {
	object T
	gone   bool
	at     time.Time
}

// newInbox returns one that lights the signal when something has come that the
// same function, if there is one, does not find to be as it was. The rest waits for
// the next round, whatever that is for: most of what comes are heartbeats, and a
// round for each would cost more than reading it.
func newInbox[T client.Object](signal chan<- struct{}, same func(before, after T) bool) *inbox[T] {
	open := func(brought any) (T, bool) { object, ok := brought.(T); return object, ok }
	return &inbox[T]{signal: signal, open: open, same: same, known: map[string]T{}, batch: batch[T]{changes: map[string]change[T]{}}}
}

// key tells the objects of the mailbox apart.
func (m *inbox[T]) key(object T) string {
	if m.namespaced {
		return object.GetNamespace() + "/" + object.GetName()
	}
	return object.GetName()
}

// take empties the mailbox.
func (m *inbox[T]) take() batch[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.batch
	if len(taken.changes) == 0 && taken.listVersion == "" {
		return batch[T]{}
	}
	m.batch = batch[T]{changes: map[string]change[T]{}}
	return taken
}

// hasSynced says whether everything that existed at the start has come.
func (m *inbox[T]) hasSynced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

// put puts something in, and lights the signal if it is news.
func (m *inbox[T]) put(apply func(now time.Time) (isNews bool)) {
	m.mu.Lock()
	isNews := apply(time.Now())
	m.mu.Unlock()
	if !isNews {
		return
	}
	select {
	case m.signal <- struct{}{}:
	default: // it is lit already
	}
}

// Add puts in an object that is new.
func (m *inbox[T]) Add(obj any) error { return m.Update(obj) }

// Update puts in an object that has changed.
func (m *inbox[T]) Update(obj any) error {
	object, ok := m.open(obj)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	dropManagedFields(object)
	m.put(func(now time.Time) bool {
		m.batch.changes[m.key(object)] = change[T]{object: object, at: now}
		if m.same == nil {
			return true
		}
		before, found := m.known[m.key(object)]
		m.known[m.key(object)] = object
		return !found || !m.same(before, object)
	})
	return nil
}

// dropManagedFields drops what is large and read by nobody. Nodes come without it, and
// must not be written to: who sent them reads them still.
func dropManagedFields(object client.Object) {
	if object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
}

// Delete notes that an object is gone.
func (m *inbox[T]) Delete(obj any) error {
	object, ok := m.open(obj)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	m.put(func(now time.Time) bool {
		m.batch.changes[m.key(object)] = change[T]{object: object, gone: true, at: now}
		delete(m.known, m.key(object))
		return true
	})
	return nil
}

// Replace puts in everything there is.
func (m *inbox[T]) Replace(list []any, version string) error {
	latest, known := make(map[string]change[T], len(list)), make(map[string]T, len(list))
	now := time.Now()
	for _, obj := range list {
		object, ok := m.open(obj)
		if !ok {
			return fmt.Errorf("the list brought a %T", obj)
		}
		dropManagedFields(object)
		latest[m.key(object)] = change[T]{object: object, at: now}
		if m.same != nil {
			known[m.key(object)] = object
		}
	}
	m.put(func(time.Time) bool {
		m.batch, m.known, m.synced = batch[T]{changes: latest, listVersion: version}, known, true
		return true
	})
	return nil
}

// Resync has no meaning here: nothing that came is lost.
func (m *inbox[T]) Resync() error { return nil }

// fill lists and watches objects of a kind until ctx ends.
func (m *inbox[T]) fill(ctx context.Context, kind client.Object, source cache.ListerWatcherWithContext, log *slog.Logger) {
	logger := logr.FromSlogHandler(log.Handler())
	reflector := cache.NewReflectorWithOptions(withoutStaleList(source), kind, m, cache.ReflectorOptions{Logger: &logger, Backoff: protowatch.Backoff()})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(logr.NewContext(ctx, logger)) // by which it tells of failures
}

// withoutStaleList never lists from a cache that may be behind: who takes over must see
// what the one before has written.
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
