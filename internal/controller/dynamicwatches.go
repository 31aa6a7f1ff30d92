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

// briefOutage is for how long a kind may fail to be read before that counts. The loop
// looks more often than that.
const briefOutage = time.Minute

// availability is what the API server has said when it was asked for all objects of a
// kind.
type availability int

const (
	notAnswered  availability = iota
	available                 // and its objects have been listed
	notServed                 // there is no such kind
	accessDenied              // there may be, but it may not be read
	failing                   // it could not be read, which may pass
)

// optionalInbox is a mailbox for what need not be there, with what came of asking for it.
type optionalInbox[T client.Object] struct {
	*inbox[T]
	source cache.ListerWatcherWithContext
	sample T // of what is asked for

	mu   sync.Mutex
	last availability
	err  error
}

func newOptionalInbox[T client.Object](signal chan<- struct{}, sample T, source cache.ListerWatcherWithContext) *optionalInbox[T] {
	return &optionalInbox[T]{inbox: newInbox[T](signal, nil), source: source, sample: sample}
}

// run lists and watches until ctx ends. What comes of it is told by whoever wants to
// know, and not with every try.
func (q *optionalInbox[T]) run(ctx context.Context) {
	q.fill(ctx, q.sample, q, slog.New(slog.DiscardHandler))
}

// availability returns the last answer, and the error that it was read from.
func (q *optionalInbox[T]) availability() (availability, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last == available && !q.hasSynced() {
		return notAnswered, nil // the list is on its way into the mailbox
	}
	return q.last, q.err
}

// notServedVersion is the version of the list of a kind that went.
const notServedVersion = "none"

// noteAnswer takes an answer in, and lights the signal if it is another than before.
func (q *optionalInbox[T]) noteAnswer(err error) {
	is := failing
	switch {
	case err == nil:
		is = available
	case isNotServed(err):
		is = notServed
	case apierrors.IsForbidden(err):
		is = accessDenied
	}
	q.mu.Lock()
	isNews := q.last != is
	q.last, q.err = is, err
	q.mu.Unlock()
	if isNews {
		q.put(func(time.Time) bool {
			if is == notServed && q.synced { // with the kind went all that there was of it
				q.batch, q.synced = batch[T]{changes: map[string]change[T]{}, listVersion: notServedVersion}, false
			}
			return true
		})
	}
}

// ListWithContext asks, and hears the answer.
func (q *optionalInbox[T]) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := q.source.ListWithContext(ctx, options)
	if ctx.Err() == nil {
		q.noteAnswer(err)
	}
	return list, err
}

// WatchWithContext does the same: a watch may bring the first list too.
func (q *optionalInbox[T]) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := q.source.WatchWithContext(ctx, options)
	if ctx.Err() == nil {
		q.noteAnswer(err)
	}
	return w, err
}

// absentRetry is how long a companion that is absent is not asked for, while its other is.
const absentRetry = 5 * time.Minute

// dependentSource is the source of a kind that is installed together with another, which
// somebody watches already. Where both are absent nobody asks the API server for this one
// but now and then: until the other comes, it is not to be expected either.
type dependentSource struct {
	source cache.ListerWatcherWithContext
	isLost func() bool // the other is known to be absent

	mu     sync.Mutex
	absent error // the answer by which this one is absent, nil if it is not
	asked  time.Time
}

// isServed has the API server asked, unless the answer is to be expected.
func (c *dependentSource) isServed(request func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.absent != nil && time.Since(c.asked) < absentRetry && c.isLost() {
		return c.absent
	}
	err := request()
	c.absent, c.asked = nil, time.Now()
	if isNotServed(err) {
		c.absent = err
	}
	return err
}

// ListWithContext lists.
func (c *dependentSource) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	err = c.isServed(func() (err error) { list, err = c.source.ListWithContext(ctx, options); return err })
	return list, err
}

// WatchWithContext watches.
func (c *dependentSource) WatchWithContext(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
	err = c.isServed(func() (err error) { w, err = c.source.WatchWithContext(ctx, options); return err })
	return w, err
}

// isNotServed says whether an error means that there is no such kind.
func isNotServed(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// dynamicWatches are the kinds of templates and remediation objects that health checks speak
// of. Which those are is found out at run time, so each is watched from when it is
// first spoken of.
type dynamicWatches struct {
	client client.WithWatch
	signal chan<- struct{}
	// watch has some work done in the background until it is stopped, or the reign
	// ends.
	watch func(work func(ctx context.Context)) (stop context.CancelFunc)

	known map[schema.GroupVersionKind]*dynamicWatch
}

// dynamicWatch is one of them.
type dynamicWatch struct {
	schema.GroupVersionKind
	*optionalInbox[*unstructured.Unstructured]
	stop context.CancelFunc

	// answered is the answer that the loop has acted on, and why the error with it. The
	// last one may be newer, and speak of objects that nobody has taken in yet.
	answered    availability
	why         error
	brokenSince time.Time // zero if it is not
}

// watch takes in what was said last, and says whether it is news. A watch that ends
// goes on where it was, so a short break is none.
func (k *dynamicWatch) watch(now time.Time) (isNews bool) {
	said, err := k.availability()
	switch {
	case said != failing:
		k.brokenSince = time.Time{}
	case k.brokenSince.IsZero():
		k.brokenSince = now
	}
	if k.answered == said || said == failing && k.answered == available && now.Sub(k.brokenSince) < briefOutage {
		return false
	}
	k.answered, k.why = said, err
	return true
}

// ensure begins to watch a kind, if nobody does yet.
func (k *dynamicWatches) ensure(of schema.GroupVersionKind) {
	if k.known[of] != nil {
		return
	}
	sample := &unstructured.Unstructured{}
	sample.SetGroupVersionKind(of)
	met := &dynamicWatch{GroupVersionKind: of, optionalInbox: newOptionalInbox(k.signal, sample, unstructuredSource(k.client, of))}
	met.namespaced = true
	met.stop = k.watch(func(ctx context.Context) { met.run(ctx) })
	k.known[of] = met
}

// otherVersion returns another version of a kind that is being watched.
func (k *dynamicWatches) otherVersion(of schema.GroupVersionKind) (version schema.GroupVersionKind, isWatched bool) {
	for other, it := range k.known {
		if other != of && other.GroupKind() == of.GroupKind() && it.answered == available {
			return other, true
		}
	}
	return version, false
}

// stop ends the watch of a kind that nobody speaks of any more.
func (k *dynamicWatches) stop(of schema.GroupVersionKind) {
	k.known[of].stop()
	delete(k.known, of)
}

// unstructuredSource is where objects of a kind come from.
func unstructuredSource(c client.WithWatch, of schema.GroupVersionKind) cache.ListerWatcherWithContext {
	list := func() *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(of.GroupVersion().WithKind(of.Kind + "List"))
		return list
	}
	return sourceOf(c, func() client.ObjectList { return list() })
}

// sourceOf is where everything of a list comes from, restricted as the options say.
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
