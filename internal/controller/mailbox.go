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

	"github.com/resourcestack/autohealer/internal/rewatch"
)

// pageSize is how many objects are asked for at a time where the API server
// cannot stream them. A page is trimmed before the next one is asked for.
const pageSize = 250

// mailbox holds the newest version of every object that has changed since it
// was last emptied, by its key. It is what a reflector writes to in place of a
// cache: the loop keeps what it needs of each object, and nobody keeps it twice.
type mailbox[T client.Object] struct {
	signal chan<- struct{} // has room for one
	open   func(brought any) (object T, ok bool)
	same   func(before, after T) bool
	spread bool // over several namespaces, so that a name does not tell which one it is

	mu     sync.Mutex
	letter letter[T]
	synced bool
	known  map[string]T // the last that came of every object, where same is asked
}

// letter is what a mailbox held.
type letter[T client.Object] struct {
	latest map[string]arrival[T]
	// whole, when not empty, is the version of a list of everything: what is
	// not among them did not exist then.
	whole string
}

// arrival is an object as it came, or word that it is gone.
type arrival[T client.Object] struct {
	object T
	gone   bool
	at     time.Time
}

// newMailbox returns one that lights the signal when something has come that the
// same function, if there is one, does not find to be as it was. The rest waits for
// the next round, whatever that is for: most of what comes are heartbeats, and a
// round for each would cost more than reading it.
func newMailbox[T client.Object](signal chan<- struct{}, same func(before, after T) bool) *mailbox[T] {
	open := func(brought any) (T, bool) { object, ok := brought.(T); return object, ok }
	return &mailbox[T]{signal: signal, open: open, same: same, known: map[string]T{}, letter: letter[T]{latest: map[string]arrival[T]{}}}
}

// key tells the objects of the mailbox apart.
func (m *mailbox[T]) key(object T) string {
	if m.spread {
		return object.GetNamespace() + "/" + object.GetName()
	}
	return object.GetName()
}

// take empties the mailbox.
func (m *mailbox[T]) take() letter[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.letter
	if len(taken.latest) == 0 && taken.whole == "" {
		return letter[T]{}
	}
	m.letter = letter[T]{latest: map[string]arrival[T]{}}
	return taken
}

// hasSynced says whether everything that existed at the start has come.
func (m *mailbox[T]) hasSynced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

// change puts something in, and lights the signal if it is news.
func (m *mailbox[T]) change(apply func(now time.Time) (isNews bool)) {
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
func (m *mailbox[T]) Add(obj any) error { return m.Update(obj) }

// Update puts in an object that has changed.
func (m *mailbox[T]) Update(obj any) error {
	object, ok := m.open(obj)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	forgetManagers(object)
	m.change(func(now time.Time) bool {
		m.letter.latest[m.key(object)] = arrival[T]{object: object, at: now}
		if m.same == nil {
			return true
		}
		before, found := m.known[m.key(object)]
		m.known[m.key(object)] = object
		return !found || !m.same(before, object)
	})
	return nil
}

// forgetManagers drops what is large and read by nobody. Nodes come without it, and
// must not be written to: who sent them reads them still.
func forgetManagers(object client.Object) {
	if object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
}

// Delete notes that an object is gone.
func (m *mailbox[T]) Delete(obj any) error {
	object, ok := m.open(obj)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	m.change(func(now time.Time) bool {
		m.letter.latest[m.key(object)] = arrival[T]{object: object, gone: true, at: now}
		delete(m.known, m.key(object))
		return true
	})
	return nil
}

// Replace puts in everything there is.
func (m *mailbox[T]) Replace(list []any, version string) error {
	latest, known := make(map[string]arrival[T], len(list)), make(map[string]T, len(list))
	now := time.Now()
	for _, obj := range list {
		object, ok := m.open(obj)
		if !ok {
			return fmt.Errorf("the list brought a %T", obj)
		}
		forgetManagers(object)
		latest[m.key(object)] = arrival[T]{object: object, at: now}
		if m.same != nil {
			known[m.key(object)] = object
		}
	}
	m.change(func(time.Time) bool {
		m.letter, m.known, m.synced = letter[T]{latest: latest, whole: version}, known, true
		return true
	})
	return nil
}

// Resync has no meaning here: nothing that came is lost.
func (m *mailbox[T]) Resync() error { return nil }

// fill lists and watches objects of a kind until ctx ends.
func (m *mailbox[T]) fill(ctx context.Context, kind client.Object, source cache.ListerWatcherWithContext, log *slog.Logger) {
	logger := logr.FromSlogHandler(log.Handler())
	reflector := cache.NewReflectorWithOptions(afresh(source), kind, m, cache.ReflectorOptions{Logger: &logger, Backoff: rewatch.Backoff()})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(logr.NewContext(ctx, logger)) // by which it tells of failures
}

// afresh never lists from a cache that may be behind: who takes over must see
// what the one before has written.
func afresh(from cache.ListerWatcherWithContext) cache.ListerWatcher {
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
