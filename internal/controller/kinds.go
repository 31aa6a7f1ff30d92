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

// shortBreak is for how long a kind may fail to be read before that counts. The loop
// looks more often than that.
const shortBreak = time.Minute

// answer is what the API server has said when it was asked for all objects of a
// kind.
type answer int

const (
	noAnswer answer = iota
	isThere         // and its objects have been listed
	isAbsent        // there is no such kind
	isBarred        // there may be, but it may not be read
	isBroken        // it could not be read, which may pass
)

// inquiry is a mailbox for what need not be there, with what came of asking for it.
type inquiry[T client.Object] struct {
	*mailbox[T]
	source cache.ListerWatcherWithContext
	sample T // of what is asked for

	mu   sync.Mutex
	last answer
	err  error
}

func newInquiry[T client.Object](signal chan<- struct{}, sample T, source cache.ListerWatcherWithContext) *inquiry[T] {
	return &inquiry[T]{mailbox: newMailbox[T](signal, nil), source: source, sample: sample}
}

// ask lists and watches until ctx ends. What comes of it is told by whoever wants to
// know, and not with every try.
func (q *inquiry[T]) ask(ctx context.Context) {
	q.fill(ctx, q.sample, q, slog.New(slog.DiscardHandler))
}

// said returns the last answer, and the error that it was read from.
func (q *inquiry[T]) said() (answer, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last == isThere && !q.hasSynced() {
		return noAnswer, nil // the list is on its way into the mailbox
	}
	return q.last, q.err
}

// noSuchKind is the version of the list of a kind that went.
const noSuchKind = "none"

// hear takes an answer in, and lights the signal if it is another than before.
func (q *inquiry[T]) hear(err error) {
	is := isBroken
	switch {
	case err == nil:
		is = isThere
	case isNoKind(err):
		is = isAbsent
	case apierrors.IsForbidden(err):
		is = isBarred
	}
	q.mu.Lock()
	isNews := q.last != is
	q.last, q.err = is, err
	q.mu.Unlock()
	if isNews {
		q.change(func(time.Time) bool {
			if is == isAbsent && q.synced { // with the kind went all that there was of it
				q.letter, q.synced = letter[T]{latest: map[string]arrival[T]{}, whole: noSuchKind}, false
			}
			return true
		})
	}
}

// ListWithContext asks, and hears the answer.
func (q *inquiry[T]) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := q.source.ListWithContext(ctx, options)
	if ctx.Err() == nil {
		q.hear(err)
	}
	return list, err
}

// WatchWithContext does the same: a watch may bring the first list too.
func (q *inquiry[T]) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := q.source.WatchWithContext(ctx, options)
	if ctx.Err() == nil {
		q.hear(err)
	}
	return w, err
}

// aloneAgain is how long a companion that is absent is not asked for, while its other is.
const aloneAgain = 5 * time.Minute

// companion is the source of a kind that is installed together with another, which
// somebody watches already. Where both are absent nobody asks the API server for this one
// but now and then: until the other comes, it is not to be expected either.
type companion struct {
	source cache.ListerWatcherWithContext
	isLost func() bool // the other is known to be absent

	mu     sync.Mutex
	absent error // the answer by which this one is absent, nil if it is not
	asked  time.Time
}

// ask has the API server asked, unless the answer is to be expected.
func (c *companion) ask(request func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.absent != nil && time.Since(c.asked) < aloneAgain && c.isLost() {
		return c.absent
	}
	err := request()
	c.absent, c.asked = nil, time.Now()
	if isNoKind(err) {
		c.absent = err
	}
	return err
}

// ListWithContext lists.
func (c *companion) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	err = c.ask(func() (err error) { list, err = c.source.ListWithContext(ctx, options); return err })
	return list, err
}

// WatchWithContext watches.
func (c *companion) WatchWithContext(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
	err = c.ask(func() (err error) { w, err = c.source.WatchWithContext(ctx, options); return err })
	return w, err
}

// isNoKind says whether an error means that there is no such kind.
func isNoKind(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// kinds are the kinds of templates and remediation objects that health checks speak
// of. Which those are is found out at run time, so each is watched from when it is
// first spoken of.
type kinds struct {
	client client.WithWatch
	signal chan<- struct{}
	// watch has some work done in the background until it is stopped, or the reign
	// ends.
	watch func(work func(ctx context.Context)) (stop context.CancelFunc)

	known map[schema.GroupVersionKind]*kind
}

// kind is one of them.
type kind struct {
	schema.GroupVersionKind
	*inquiry[*unstructured.Unstructured]
	stop context.CancelFunc

	// heard is the answer that the loop has acted on, and why the error with it. The
	// last one may be newer, and speak of objects that nobody has taken in yet.
	heard       answer
	why         error
	brokenSince time.Time // zero if it is not
}

// listen takes in what was said last, and says whether it is news. A watch that ends
// goes on where it was, so a short break is none.
func (k *kind) listen(now time.Time) (isNews bool) {
	said, err := k.said()
	switch {
	case said != isBroken:
		k.brokenSince = time.Time{}
	case k.brokenSince.IsZero():
		k.brokenSince = now
	}
	if k.heard == said || said == isBroken && k.heard == isThere && now.Sub(k.brokenSince) < shortBreak {
		return false
	}
	k.heard, k.why = said, err
	return true
}

// meet begins to watch a kind, if nobody does yet.
func (k *kinds) meet(of schema.GroupVersionKind) {
	if k.known[of] != nil {
		return
	}
	sample := &unstructured.Unstructured{}
	sample.SetGroupVersionKind(of)
	met := &kind{GroupVersionKind: of, inquiry: newInquiry(k.signal, sample, objectsFrom(k.client, of))}
	met.spread = true
	met.stop = k.watch(func(ctx context.Context) { met.ask(ctx) })
	k.known[of] = met
}

// another returns another version of a kind that is being watched.
func (k *kinds) another(of schema.GroupVersionKind) (version schema.GroupVersionKind, isWatched bool) {
	for other, it := range k.known {
		if other != of && other.GroupKind() == of.GroupKind() && it.heard == isThere {
			return other, true
		}
	}
	return version, false
}

// leave ends the watch of a kind that nobody speaks of any more.
func (k *kinds) leave(of schema.GroupVersionKind) {
	k.known[of].stop()
	delete(k.known, of)
}

// objectsFrom is where objects of a kind come from.
func objectsFrom(c client.WithWatch, of schema.GroupVersionKind) cache.ListerWatcherWithContext {
	list := func() *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(of.GroupVersion().WithKind(of.Kind + "List"))
		return list
	}
	return from(c, func() client.ObjectList { return list() })
}

// from is where everything of a list comes from, restricted as the options say.
func from(c client.WithWatch, list func() client.ObjectList, restrict ...client.ListOption) cache.ListerWatcherWithContext {
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
