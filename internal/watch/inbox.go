package watch

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Inbox holds the newest version of every object that has changed since take. A reflector
// writes to it instead of a cache: the loop keeps what it needs of each object, so no
// object is stored twice.
type Inbox[T client.Object] struct {
	signal     chan<- struct{} // has capacity one
	Convert    func(brought any) (object T, ok bool)
	same       func(before, after T) bool
	Namespaced bool // keys contain the namespace

	mu     sync.Mutex
	batch  Batch[T]
	synced bool
	known  map[string]T // the last version of every object, if same is set
}

// Batch is the content of an inbox.
type Batch[T client.Object] struct {
	Changes map[string]Change[T]
	// ListVersion, when not empty, is the version of a full list: objects that are not
	// among the changes did not exist at that version.
	ListVersion string
}

// Change is a new version of an object, or its deletion.
type Change[T client.Object] struct {
	Object T
	Gone   bool
	At     time.Time
	// Previous is when the last version arrived in which nothing had changed yet, if that version
	// was in the inbox, too.
	Previous time.Time

	isNews bool // not only a version with the same content
}

// Apply calls remove for each object that is gone, and upsert for each new version, in the
// order of their keys. An object in known is gone if the batch is a full list without it.
func (b Batch[T]) Apply(known iter.Seq[string], remove func(key string), upsert func(T)) {
	if b.ListVersion != "" {
		for _, key := range slices.Sorted(known) {
			if _, there := b.Changes[key]; !there {
				remove(key)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.Changes)) {
		if change := b.Changes[key]; change.Gone {
			remove(key)
		} else {
			upsert(change.Object)
		}
	}
}

// NewInbox returns an inbox that signals changes. If same is set, a version for which it
// returns true does not signal and waits for the next round. Most changes are heartbeats,
// and a round for each would cost more than reading it.
func NewInbox[T client.Object](signal chan<- struct{}, same func(before, after T) bool) *Inbox[T] {
	open := func(obj any) (T, bool) { object, ok := obj.(T); return object, ok }
	return &Inbox[T]{signal: signal, Convert: open, same: same, known: map[string]T{}, batch: Batch[T]{Changes: map[string]Change[T]{}}}
}

// key returns the key of an object in the inbox.
func (box *Inbox[T]) key(object T) string {
	if box.Namespaced {
		return object.GetNamespace() + "/" + object.GetName()
	}
	return object.GetName()
}

// Take returns and removes the content of the inbox.
func (box *Inbox[T]) Take() Batch[T] {
	box.mu.Lock()
	defer box.mu.Unlock()
	taken := box.batch
	if len(taken.Changes) == 0 && taken.ListVersion == "" {
		return Batch[T]{}
	}
	box.batch = Batch[T]{Changes: map[string]Change[T]{}}
	return taken
}

// HasSynced reports whether the initial list has arrived.
func (box *Inbox[T]) HasSynced() bool {
	box.mu.Lock()
	defer box.mu.Unlock()
	return box.synced
}

// put applies a change and signals if it is new.
func (box *Inbox[T]) put(apply func(now time.Time) (isNews bool)) {
	box.mu.Lock()
	isNews := apply(time.Now())
	box.mu.Unlock()
	if isNews {
		box.Wake()
	}
}

// Wake signals, although no object has changed.
func (box *Inbox[T]) Wake() {
	select {
	case box.signal <- struct{}{}:
	default: // a signal is pending already
	}
}

// Add stores a new object.
func (box *Inbox[T]) Add(obj any) error { return box.Update(obj) }

// Update stores a changed object.
func (box *Inbox[T]) Update(obj any) error {
	object, ok := box.Convert(obj)
	if !ok {
		return fmt.Errorf("the watch sent a %T", obj)
	}
	dropManagedFields(object)
	box.put(func(now time.Time) bool {
		key, isNews := box.key(object), true
		if box.same != nil {
			before, found := box.known[key]
			box.known[key] = object
			isNews = !found || !box.same(before, object)
		}
		waiting := box.batch.Changes[key]
		change := Change[T]{Object: object, At: now, Previous: waiting.Previous, isNews: isNews || waiting.isNews}
		if isNews && !waiting.isNews {
			change.Previous = waiting.At
		}
		box.batch.Changes[key] = change
		return isNews
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
func (box *Inbox[T]) Delete(obj any) error {
	object, ok := box.Convert(obj)
	if !ok {
		return fmt.Errorf("the watch sent a %T", obj)
	}
	box.put(func(now time.Time) bool {
		box.batch.Changes[box.key(object)] = Change[T]{Object: object, Gone: true, At: now}
		delete(box.known, box.key(object))
		return true
	})
	return nil
}

// Replace stores a full list.
func (box *Inbox[T]) Replace(list []any, version string) error {
	latest, known := make(map[string]Change[T], len(list)), make(map[string]T, len(list))
	now := time.Now()
	for _, obj := range list {
		object, ok := box.Convert(obj)
		if !ok {
			return fmt.Errorf("the list has a %T", obj)
		}
		dropManagedFields(object)
		latest[box.key(object)] = Change[T]{Object: object, At: now}
		if box.same != nil {
			known[box.key(object)] = object
		}
	}
	box.put(func(time.Time) bool {
		box.batch, box.known, box.synced = Batch[T]{Changes: latest, ListVersion: version}, known, true
		return true
	})
	return nil
}

// Resync does nothing, because an inbox loses no change.
func (box *Inbox[T]) Resync() error { return nil }

// Fill lists and watches objects of a kind until ctx ends. It never lists from a cache that
// may be outdated: a new leader must see all writes of the previous leader.
func (box *Inbox[T]) Fill(ctx context.Context, kind client.Object, source cache.ListerWatcherWithContext, log *slog.Logger) {
	Run(ctx, kind, fresh(source), box, log)
}
