package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// briefOutage is how long a kind may be unreadable before that counts. The loop checks
// more often.
const briefOutage = time.Minute

// availability is the API server's last answer to a list or watch of a kind.
type availability int

const (
	notAnswered  availability = iota
	available                 // and its objects are listed
	notServed                 // the kind does not exist
	accessDenied              // the controller may not read the kind
	failing                   // temporarily unreadable
)

// optionalInbox is an inbox for a kind that may not exist, with its availability.
type optionalInbox[T client.Object] struct {
	*inbox[T]
	source cache.ListerWatcherWithContext
	sample T // an empty object of the kind

	mu   sync.Mutex
	last availability
	err  error
}

func newOptionalInbox[T client.Object](signal chan<- struct{}, sample T, source cache.ListerWatcherWithContext) *optionalInbox[T] {
	return &optionalInbox[T]{inbox: newInbox[T](signal, nil), source: source, sample: sample}
}

// run lists and watches until ctx ends. It does not log errors: callers report the
// availability.
func (box *optionalInbox[T]) run(ctx context.Context) {
	box.fill(ctx, box.sample, box, slog.New(slog.DiscardHandler))
}

// availability returns the last answer and its error.
func (box *optionalInbox[T]) availability() (availability, error) {
	box.mu.Lock()
	defer box.mu.Unlock()
	if box.last == available && !box.hasSynced() {
		return notAnswered, nil // the inbox does not hold the list yet
	}
	return box.last, box.err
}

// notServedVersion is the list version after a kind has been removed.
const notServedVersion = "none"

// setAvailability stores an answer and signals if it has changed.
func (box *optionalInbox[T]) setAvailability(err error) {
	is := failing
	switch {
	case err == nil:
		is = available
	case isNotServed(err):
		is = notServed
	case apierrors.IsForbidden(err):
		is = accessDenied
	}
	box.mu.Lock()
	isNews := box.last != is
	box.last, box.err = is, err
	box.mu.Unlock()
	if isNews {
		box.put(func(time.Time) bool {
			if is == notServed && box.synced { // all objects are gone with their kind
				box.batch, box.synced = batch[T]{changes: map[string]change[T]{}, listVersion: notServedVersion}, false
			}
			return true
		})
	}
}

// ListWithContext lists and records the availability.
func (box *optionalInbox[T]) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := box.source.ListWithContext(ctx, options)
	if ctx.Err() == nil {
		box.setAvailability(err)
	}
	return list, err
}

// WatchWithContext watches and records the availability. A watch may deliver the first
// list.
func (box *optionalInbox[T]) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := box.source.WatchWithContext(ctx, options)
	if ctx.Err() == nil {
		box.setAvailability(err)
	}
	return w, err
}

// absentRetry is how often to ask for a missing kind while the other kind is missing too.
const absentRetry = 5 * time.Minute

// dependentSource is the source of a kind that is installed together with another kind.
// If the other kind is missing, this kind probably is too. So while both are missing, it
// asks the API server only now and then.
type dependentSource struct {
	source         cache.ListerWatcherWithContext
	isOtherMissing func() bool // reports whether the other kind is missing

	mu      sync.Mutex
	absent  error // the last "not served" error, nil if the kind is served
	askedAt time.Time
}

// request makes the request, or returns the last error if the kind is expected to be
// missing.
func (c *dependentSource) request(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.absent != nil && time.Since(c.askedAt) < absentRetry && c.isOtherMissing() {
		return c.absent
	}
	err := do()
	c.absent, c.askedAt = nil, time.Now()
	if isNotServed(err) {
		c.absent = err
	}
	return err
}

// ListWithContext lists the kind.
func (c *dependentSource) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	err = c.request(func() (err error) { list, err = c.source.ListWithContext(ctx, options); return err })
	return list, err
}

// WatchWithContext watches the kind.
func (c *dependentSource) WatchWithContext(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
	err = c.request(func() (err error) { w, err = c.source.WatchWithContext(ctx, options); return err })
	return w, err
}

// isNotServed reports whether the error means that the kind does not exist.
func isNotServed(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// dynamicWatches watches the kinds of templates and remediation objects that policies
// reference. Policies name these kinds at run time, so each watch starts with its first
// reference.
type dynamicWatches struct {
	client client.WithWatch
	signal chan<- struct{}
	// start runs work in the background until stop is called or the term ends.
	start func(work func(ctx context.Context)) (stop context.CancelFunc)

	known map[schema.GroupVersionKind]*dynamicWatch
}

// dynamicWatch is the watch of a kind.
type dynamicWatch struct {
	schema.GroupVersionKind
	*optionalInbox[*unstructured.Unstructured]
	stop context.CancelFunc

	// current is the availability that the loop has acted on, and why is its error. The
	// inbox may have a newer answer, about objects that the loop has not taken in.
	current      availability
	currentErr   error
	failingSince time.Time // zero if it works
}

// updateAvailability takes in the last answer and reports whether it is new. A watch that ends resumes
// where it was, so a short outage is not new.
func (kind *dynamicWatch) updateAvailability(now time.Time) (isNews bool) {
	current, err := kind.availability()
	switch {
	case current != failing:
		kind.failingSince = time.Time{}
	case kind.failingSince.IsZero():
		kind.failingSince = now
	}
	if kind.current == current || current == failing && kind.current == available && now.Sub(kind.failingSince) < briefOutage {
		return false
	}
	kind.current, kind.currentErr = current, err
	return true
}

// ensure watches a kind, if it is not watched yet.
func (watches *dynamicWatches) ensure(gvk schema.GroupVersionKind) {
	if watches.known[gvk] != nil {
		return
	}
	sample := &unstructured.Unstructured{}
	sample.SetGroupVersionKind(gvk)
	kind := &dynamicWatch{GroupVersionKind: gvk, optionalInbox: newOptionalInbox(watches.signal, sample, unstructuredSource(watches.client, gvk))}
	kind.namespaced = true
	kind.stop = watches.start(func(ctx context.Context) { kind.run(ctx) })
	watches.known[gvk] = kind
}

// otherVersion returns another watched version of a kind.
func (watches *dynamicWatches) otherVersion(gvk schema.GroupVersionKind) (version schema.GroupVersionKind, isWatched bool) {
	for other, kind := range watches.known {
		if other != gvk && other.GroupKind() == gvk.GroupKind() && kind.current == available {
			return other, true
		}
	}
	return version, false
}

// stop ends the watch of a kind that no policy references any more.
func (watches *dynamicWatches) stop(gvk schema.GroupVersionKind) {
	watches.known[gvk].stop()
	delete(watches.known, gvk)
}

// unstructuredSource lists and watches the objects of a kind.
func unstructuredSource(c client.WithWatch, gvk schema.GroupVersionKind) cache.ListerWatcherWithContext {
	list := func() *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		return list
	}
	return sourceOf(c, func() client.ObjectList { return list() })
}

// sourceOf lists and watches the objects of a list type, restricted by the options.
func sourceOf(c client.WithWatch, list func() client.ObjectList, restrict ...client.ListOption) cache.ListerWatcherWithContext {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			page := list()
			options := client.ListOptions{Raw: &raw, Limit: raw.Limit, Continue: raw.Continue}
			return page, c.List(ctx, page, options.ApplyOptions(restrict))
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			options := client.ListOptions{Raw: &raw}
			return c.Watch(ctx, list(), options.ApplyOptions(restrict))
		},
	}
}
