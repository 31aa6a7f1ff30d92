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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects are asked for at a time where the API server
// cannot stream them. A page is trimmed before the next one is asked for.
const pageSize = 250

// relistBackoff is how a watch that cannot be had is asked for again.
var relistBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}

// mailbox holds the newest version of every object that has changed since it
// was last emptied. It is what a reflector writes to in place of a cache: the
// loop keeps what it needs of each object, and nobody keeps it twice.
type mailbox[T client.Object] struct {
	trim   func(T) T
	signal chan<- struct{} // has room for one

	mu     sync.Mutex
	letter letter[T]
	synced bool
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

func newMailbox[T client.Object](signal chan<- struct{}, trim func(T) T) *mailbox[T] {
	return &mailbox[T]{trim: trim, signal: signal, letter: letter[T]{latest: map[string]arrival[T]{}}}
}

// take empties the mailbox.
func (m *mailbox[T]) take() letter[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.letter
	m.letter = letter[T]{latest: map[string]arrival[T]{}}
	return taken
}

// hasSynced says whether everything that existed at the start has come.
func (m *mailbox[T]) hasSynced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

func (m *mailbox[T]) change(apply func(now time.Time)) {
	m.mu.Lock()
	apply(time.Now())
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default: // it is lit already
	}
}

// Add puts in an object that is new.
func (m *mailbox[T]) Add(obj any) error { return m.Update(obj) }

// Update puts in an object that has changed.
func (m *mailbox[T]) Update(obj any) error {
	object, ok := obj.(T)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	object = m.trim(object)
	m.change(func(now time.Time) { m.letter.latest[object.GetName()] = arrival[T]{object: object, at: now} })
	return nil
}

// Delete notes that an object is gone.
func (m *mailbox[T]) Delete(obj any) error {
	object, ok := obj.(T)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	object = m.trim(object)
	m.change(func(now time.Time) {
		m.letter.latest[object.GetName()] = arrival[T]{object: object, gone: true, at: now}
	})
	return nil
}

// Replace puts in everything there is.
func (m *mailbox[T]) Replace(list []any, version string) error {
	latest := make(map[string]arrival[T], len(list))
	now := time.Now()
	for _, obj := range list {
		object, ok := obj.(T)
		if !ok {
			return fmt.Errorf("the list brought a %T", obj)
		}
		latest[object.GetName()] = arrival[T]{object: object, at: now} // trimmed when it was listed
	}
	m.change(func(time.Time) { m.letter, m.synced = letter[T]{latest: latest, whole: version}, true })
	return nil
}

// Resync has no meaning here: nothing that came is lost.
func (m *mailbox[T]) Resync() error { return nil }

// Transformer trims what a reflector collects before it replaces everything.
func (m *mailbox[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if object, ok := obj.(T); ok {
			return m.trim(object), nil
		}
		return obj, nil
	}
}

// fill lists and watches until ctx ends. The list is never served from a cache
// that may be behind: who takes over must see what the one before has written.
func (m *mailbox[T]) fill(ctx context.Context, c client.WithWatch, kind T, list func() client.ObjectList, log *slog.Logger) {
	lister := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				options.ResourceVersion, options.ResourceVersionMatch = "", ""
			}
			into := list()
			err := c.List(ctx, into, &client.ListOptions{Raw: &options, Limit: options.Limit, Continue: options.Continue})
			trimList(into)
			return into, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list(), &client.ListOptions{Raw: &options})
		},
	}
	logger := logr.FromSlogHandler(log.Handler())
	reflector := cache.NewReflectorWithOptions(lister, kind, m, cache.ReflectorOptions{Logger: &logger, Backoff: &relistBackoff})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(ctx)
}
