package scale

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// watcher watches nodes like any client, and stores when it saw the taint added and
// removed.
type watcher struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	view   view
	failed error
	breaks int // of the stream
}

// view is what a watcher has seen.
type view struct {
	nodes   map[string]taintState
	tainted int       // nodes with the taint
	foreign int       // nodes with another taint
	changes int       // writes to nodes, of any client
	latest  time.Time // when the last of them was seen
}

// taintState is the last seen state of a node.
type taintState struct {
	tainted bool
	since   time.Time // when that was first seen
	foreign bool
}

// watchNodes watches from the newest node on. It decodes as little as the controller: on
// two cores, the watcher's CPU time affects the results.
func watchNodes(ctx context.Context, config *rest.Config, nodes []*corev1.Node) (*watcher, error) {
	source, err := nodewatch.New(config)
	if err != nil {
		return nil, err
	}
	w := &watcher{done: make(chan struct{}), view: view{nodes: make(map[string]taintState, len(nodes)), latest: time.Now()}}
	for _, node := range nodes {
		seen := taintStateOf(node)
		w.view.nodes[node.Name] = seen
		w.view.count(seen, 1)
	}
	one, err := source.ListWithContext(ctx, metav1.ListOptions{Limit: 1}) // for the version
	if err != nil {
		return nil, err
	}
	version := one.(*corev1.NodeList).ResourceVersion
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(w.done)
		w.follow(ctx, source, version)
	}()
	return w, nil
}

func (w *watcher) stop() {
	w.cancel()
	<-w.done
}

// follow watches until ctx ends. The API server closes a stream that is read too slowly;
// follow continues where it broke off.
func (w *watcher) follow(ctx context.Context, source *nodewatch.Source, version string) {
	for ctx.Err() == nil && w.failure() == nil {
		stream, err := source.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			w.fail(err)
			return
		}
		for event := range stream.ResultChan() {
			now := time.Now()
			node, ok := event.Object.(*corev1.Node)
			if !ok || event.Type != watch.Modified {
				w.fail(fmt.Errorf("watching nodes: unexpected %s: %v", event.Type, event.Object))
				break
			}
			version = node.ResourceVersion
			w.mu.Lock()
			w.view.take(node, now)
			w.mu.Unlock()
		}
		stream.Stop()
		w.mu.Lock()
		w.breaks++
		w.mu.Unlock()
	}
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
}

func (w *watcher) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// taintStateOf reads a node. Only NoExecute counts: a fallback has another effect.
func taintStateOf(node *corev1.Node) (s taintState) {
	for _, taint := range node.Spec.Taints {
		if taint.Key == taintKey && taint.Effect == corev1.TaintEffectNoExecute {
			s.tainted = true
		} else {
			s.foreign = true
		}
	}
	return s
}

func (v *view) take(node *corev1.Node, now time.Time) {
	was, is := v.nodes[node.Name], taintStateOf(node)
	is.since = now
	if was.tainted == is.tainted {
		is.since = was.since
	}
	v.nodes[node.Name] = is
	v.count(was, -1)
	v.count(is, 1)
	v.changes++
	v.latest = now
}

func (v *view) count(s taintState, by int) {
	if s.tainted {
		v.tainted += by
	}
	if s.foreign {
		v.foreign += by
	}
}

// wait waits until the view fulfils a condition.
func (w *watcher) wait(ctx context.Context, what string, is func(*view) bool) error {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		w.mu.Lock()
		reached, failed := is(&w.view), w.failed
		tainted, foreign, changes := w.view.tainted, w.view.foreign, w.view.changes
		w.mu.Unlock()
		if failed != nil {
			return failed
		}
		if reached {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; %d nodes have the taint, %d another, %d writes were seen", what, ctx.Err(), tainted, foreign, changes)
		}
	}
}

// allTainted waits until exactly this number of nodes has the taint.
func (w *watcher) allTainted(ctx context.Context, count int) error {
	return w.wait(ctx, fmt.Sprintf("%d nodes with the taint", count), func(v *view) bool { return v.tainted == count })
}

// since returns when the current state of a node was first seen.
func (w *watcher) since(name string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view.nodes[name].since
}

// has reports whether a node has the taint.
func (w *watcher) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view.nodes[name].tainted
}

// latest returns when the last of some nodes changed.
func (w *watcher) latest(names []string) (at time.Time) {
	for _, name := range names {
		if since := w.since(name); since.After(at) {
			at = since
		}
	}
	return at
}

// broken returns how often the stream broke. The results include the delays.
func (w *watcher) broken() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.breaks
}

// changes returns how many writes to nodes were seen.
func (w *watcher) changes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view.changes
}

// watchObjects calls a function for all objects of a resource and their changes through an
// informer, until the end of the benchmark. It returns after the existing objects.
func watchObjects(b *testing.B, d *fixture, resource schema.GroupVersionResource, show cache.ResourceEventHandlerFuncs) {
	b.Helper()
	api := testkit.Value(metadata.NewForConfig(d.cluster.AdminConfig())).Must(b)
	informer := metadatainformer.NewFilteredMetadataInformer(api, resource, metav1.NamespaceAll, 0, nil, nil).Informer()
	handler := testkit.Value(informer.AddEventHandler(show)).Must(b)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var looking sync.WaitGroup
	looking.Go(func() { informer.RunWithContext(ctx) })
	b.Cleanup(func() {
		cancel()
		looking.Wait()
	})
	if !cache.WaitForCacheSync(b.Context().Done(), handler.HasSynced) {
		b.Fatal(b.Context().Err())
	}
}

// awaitCount waits until a count is right.
func awaitCount(ctx context.Context, what string, count func() int, isRight func(int) bool) error {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !isRight(count()) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; there are %d", what, ctx.Err(), count())
		}
	}
	return nil
}

// metricsOf returns the API server's metrics.
func metricsOf(b *testing.B, server kubernetes.Interface) measured {
	b.Helper()
	text := testkit.Value(server.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())).Must(b)
	return testkit.Value(parse(bytes.NewReader(text))).Must(b)
}
