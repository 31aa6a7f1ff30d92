package nodefacts

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Watch keeps the store up to date with its own watch, until ctx ends or Takeover is called.
// The nodes must be trimmed as by nodewatch, and must not be changed.
func (s *Store) Watch(ctx context.Context, source cache.ListerWatcherWithContext, log *slog.Logger) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.takenOver:
			cancel()
		case <-ctx.Done():
		}
	}()
	watch.Run(ctx, &corev1.Node{}, source, &follower{store: s, known: map[string]*corev1.Node{}}, log)
}

// follower is the store of a reflector. Only the reflector calls it, one call at a time.
type follower struct {
	store *Store
	known map[string]*corev1.Node
}

// Add handles a new node.
func (f *follower) Add(obj any) error { return f.Update(obj) }

// Update handles a changed node. Most updates are heartbeats and change nothing.
func (f *follower) Update(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("unexpected object %T in the watch", obj)
	}
	before, met := f.known[node.Name]
	f.known[node.Name] = node
	if met && nodewatch.Same(before, node) {
		return nil
	}
	facts := factsOf(node)
	f.change(func(s *Store) {
		if s.acceptsWatch(node.Name) {
			s.set(&facts)
		}
	})
	return nil
}

// Delete handles a deleted node.
func (f *follower) Delete(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("unexpected object %T in the watch", obj)
	}
	delete(f.known, node.Name)
	f.change(func(s *Store) {
		if s.acceptsWatch(node.Name) {
			s.remove(node.Name)
		}
	})
	return nil
}

// Replace handles a list of all nodes.
func (f *follower) Replace(list []any, _ string) error {
	known, facts := make(map[string]*corev1.Node, len(list)), make([]triage.Node, 0, len(list))
	for _, obj := range list {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return fmt.Errorf("unexpected object %T in the list", obj)
		}
		known[node.Name] = node
		if before, met := f.known[node.Name]; !met || !nodewatch.Same(before, node) {
			facts = append(facts, factsOf(node))
		}
	}
	var gone []string
	for name := range f.known {
		if _, there := known[name]; !there {
			gone = append(gone, name)
		}
	}
	f.known = known
	f.store.inBatches(len(gone), func(i int) {
		if f.store.acceptsWatch(gone[i]) {
			f.store.remove(gone[i])
		}
	})
	f.store.inBatches(len(facts), func(i int) {
		if f.store.acceptsWatch(facts[i].Name) {
			f.store.set(&facts[i])
		}
	})
	f.change(func(s *Store) { s.complete = true })
	return nil
}

// Resync does nothing, because the store keeps everything.
func (f *follower) Resync() error { return nil }

func (f *follower) change(apply func(*Store)) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	apply(f.store)
}

// factsOf returns the facts of a node. It ignores an invalid annotation: the leader reports
// it, and rules do not match it.
func factsOf(node *corev1.Node) triage.Node {
	facts, _ := observe.Node(node)
	return facts
}
