package nodefacts

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/rewatch"
	"github.com/resourcestack/autohealer/internal/triage"
)

// pageSize is how many nodes are asked for at a time where the API server cannot
// stream them.
const pageSize = 250

// Watch keeps the census up to date by a watch of its own, until ctx ends or
// somebody else has taken over. The nodes must be trimmed as nodewatch does, and are
// not to be changed.
func (c *Store) Watch(ctx context.Context, source cache.ListerWatcherWithContext, log *slog.Logger) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.taken:
			cancel()
		case <-ctx.Done():
		}
	}()
	logger := logr.FromSlogHandler(log.Handler())
	reflector := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: source.ListWithContext, WatchFuncWithContext: source.WatchWithContext},
		&corev1.Node{}, &follower{census: c, known: map[string]*corev1.Node{}},
		cache.ReflectorOptions{Logger: &logger, Backoff: rewatch.Backoff()})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(ctx)
}

// follower is what a reflector writes to in place of a cache. Only the reflector
// calls it, one call at a time.
type follower struct {
	census *Store
	known  map[string]*corev1.Node
}

// Add takes in a node that is new.
func (f *follower) Add(obj any) error { return f.Update(obj) }

// Update takes in a node that has changed. Most have not: it was a heartbeat.
func (f *follower) Update(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	before, met := f.known[node.Name]
	f.known[node.Name] = node
	if met && nodewatch.Same(before, node) {
		return nil
	}
	facts := factsOf(node)
	f.change(func(c *Store) {
		if c.hears(node.Name) {
			c.enter(&facts)
		}
	})
	return nil
}

// Delete notes that a node is gone.
func (f *follower) Delete(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("the watch brought a %T", obj)
	}
	delete(f.known, node.Name)
	f.change(func(c *Store) {
		if c.hears(node.Name) {
			c.strike(node.Name)
		}
	})
	return nil
}

// Replace takes in all nodes that there are.
func (f *follower) Replace(list []any, _ string) error {
	known, facts := make(map[string]*corev1.Node, len(list)), make([]triage.Node, 0, len(list))
	for _, obj := range list {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return fmt.Errorf("the list brought a %T", obj)
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
	f.census.inTurns(len(gone), func(i int) {
		if f.census.hears(gone[i]) {
			f.census.strike(gone[i])
		}
	})
	f.census.inTurns(len(facts), func(i int) {
		if f.census.hears(facts[i].Name) {
			f.census.enter(&facts[i])
		}
	})
	f.change(func(c *Store) { c.complete = true })
	return nil
}

// Resync has no meaning here: nothing that came is lost.
func (f *follower) Resync() error { return nil }

func (f *follower) change(apply func(*Store)) {
	f.census.mu.Lock()
	defer f.census.mu.Unlock()
	apply(f.census)
}

// factsOf returns what a node tells. A note on it that cannot be read is the
// leader's to complain of: what stands there is nothing that a rule could ask.
func factsOf(node *corev1.Node) triage.Node {
	facts, _ := observe.Node(node)
	return facts
}
