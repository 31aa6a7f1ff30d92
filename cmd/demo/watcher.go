package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/triage"
)

// watcher keeps a core in step with the nodes of a cluster and tells what it
// says of them, whenever that changes.
type watcher struct {
	out io.Writer

	mu      sync.Mutex
	core    *triage.Core
	told    map[string]triage.Code
	changed chan struct{} // closed when a plan may have changed
}

func newWatcher(out io.Writer, rules []triage.Rule) (*watcher, error) {
	w := &watcher{out: out, core: triage.New(), told: map[string]triage.Code{}, changed: make(chan struct{})}
	for _, r := range rules {
		if err := w.core.SetRule(time.Now(), r); err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.ID, err)
		}
	}
	return w, nil
}

// start lists and watches the nodes, and returns when the core has them all.
func (w *watcher) start(ctx context.Context, client kubernetes.Interface) (stop func(), err error) {
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Nodes().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.observe(obj) },
		UpdateFunc: func(_, obj any) { w.observe(obj) },
		DeleteFunc: func(obj any) { w.forget(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	running, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	stop = func() {
		cancel()
		loops.Wait()
	}
	loops.Go(func() { informer.RunWithContext(running) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		stop()
		return nil, fmt.Errorf("listing nodes: %w", context.Cause(ctx))
	}
	w.do(func(now time.Time) { w.core.Loaded(now) })
	loops.Go(func() { w.keepTime(running) })
	return stop, nil
}

func (w *watcher) observe(obj any) {
	if n, ok := obj.(*corev1.Node); ok {
		w.do(func(now time.Time) { w.core.Observe(now, observe.Node(n)) })
	}
}

func (w *watcher) forget(obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err == nil {
		w.do(func(now time.Time) { w.core.Forget(now, key) })
	}
}

// keepTime lets the core know when one of its deadlines has come.
func (w *watcher) keepTime(ctx context.Context) {
	for {
		w.mu.Lock()
		deadline, ok := w.core.Deadline()
		changed := w.changed
		w.mu.Unlock()
		var alarm <-chan time.Time
		if ok {
			alarm = time.After(time.Until(deadline))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-alarm:
			w.do(func(now time.Time) { w.core.Advance(now) })
		}
	}
}

// do changes the core and tells what came of it.
func (w *watcher) do(change func(now time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(time.Now())
	for {
		name, ok := w.core.NextWoken()
		if !ok {
			break
		}
		plan, _ := w.core.Plan(name)
		w.tell(plan)
		for _, release := range plan.Release { // nothing was written, so nothing is there
			w.core.Abandon(time.Now(), name, release.Rule, 0)
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// say prints a line of the story between what the core says.
func (w *watcher) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, format, args...)
}

// tell prints what a plan comes down to, unless that is no news.
func (w *watcher) tell(plan triage.Plan) {
	before, known := w.told[plan.Node]
	w.told[plan.Node] = plan.Reason.Code
	if before == plan.Reason.Code || !known && plan.Reason.Code == triage.Healthy {
		return
	}
	fmt.Fprintf(w.out, "     %s  %-10s %-10s %s\n", time.Now().Format(time.TimeOnly), plan.Node, plan.Reason.Code, plan.Reason)
}

// await waits until so many nodes have a plan with that reason.
func (w *watcher) await(ctx context.Context, code triage.Code, count int, nodes ...string) error {
	for {
		w.mu.Lock()
		changed, found := w.changed, 0
		for _, name := range nodes {
			if plan, ok := w.core.Plan(name); ok && plan.Reason.Code == code {
				found++
			}
		}
		w.mu.Unlock()
		if found == count {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d of %v to be %s, but %d are: %w", count, nodes, code, found, context.Cause(ctx))
		}
	}
}
