package watch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Availability is the API server's last answer to a list or watch of a kind.
type Availability int

// The answers.
const (
	NotAnswered  Availability = iota
	Available                 // and its objects are listed
	NotServed                 // the kind does not exist
	AccessDenied              // the controller may not read the kind
	Failing                   // temporarily unreadable
)

// Optional is an inbox for a kind that may not exist, with its availability.
type Optional[T client.Object] struct {
	*Inbox[T]
	source cache.ListerWatcherWithContext
	sample T // an empty object of the kind

	mu              sync.Mutex
	last            Availability
	err             error
	unreadableSince time.Time // zero if the kind is readable or does not exist
	isInterrupted   bool      // see IsInterrupted
}

// NewOptional returns an inbox for the kind of the sample. It signals changes of the objects
// and of the availability.
func NewOptional[T client.Object](signal chan<- struct{}, sample T, source cache.ListerWatcherWithContext) *Optional[T] {
	return &Optional[T]{Inbox: NewInbox[T](signal, nil), source: source, sample: sample}
}

// Run lists and watches until ctx ends. It does not log errors: callers report the
// availability.
func (box *Optional[T]) Run(ctx context.Context) {
	box.Fill(ctx, box.sample, box, slog.New(slog.DiscardHandler))
}

// Availability returns the last answer and its error.
func (box *Optional[T]) Availability() (Availability, error) {
	box.mu.Lock()
	defer box.mu.Unlock()
	if box.last == Available && !box.HasSynced() {
		return NotAnswered, nil // the inbox does not hold the list yet
	}
	return box.last, box.err
}

// IsLoaded reports whether a new leader knows the objects of the kind, or knows that it cannot. An
// API server that starts denies access for a while, so a denial counts after [BriefOutage].
func (box *Optional[T]) IsLoaded(now time.Time) bool {
	switch is, _ := box.Availability(); is {
	case NotAnswered:
		return false
	case Available, NotServed:
		return true
	}
	box.mu.Lock()
	defer box.mu.Unlock()
	return now.Sub(box.unreadableSince) >= BriefOutage
}

// NotServedVersion is the list version after a kind has been removed.
const NotServedVersion = "none"

// SetAvailability stores an answer and signals if it has changed.
func (box *Optional[T]) SetAvailability(err error) {
	is := Failing
	switch {
	case err == nil:
		is = Available
	case isNotServed(err):
		is = NotServed
	case apierrors.IsForbidden(err):
		is = AccessDenied
	}
	box.mu.Lock()
	isNews := box.last != is
	box.last, box.err = is, err
	switch isReadable := is == Available || is == NotServed; {
	case isReadable:
		box.unreadableSince = time.Time{}
	case box.unreadableSince.IsZero():
		box.unreadableSince = time.Now()
	}
	box.mu.Unlock()
	if isNews {
		box.put(func(time.Time) bool {
			if is == NotServed && box.synced { // all objects are gone with their kind
				box.batch, box.synced = Batch[T]{Changes: map[string]Change[T]{}, ListVersion: NotServedVersion}, false
			}
			return true
		})
	}
}

// ListWithContext lists and records the availability.
func (box *Optional[T]) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := box.source.ListWithContext(ctx, options)
	if ctx.Err() == nil {
		box.SetAvailability(err)
	}
	return list, err
}

// WatchWithContext watches and records the availability. A watch may deliver the first
// list.
func (box *Optional[T]) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := box.source.WatchWithContext(ctx, options)
	// An API server before Kubernetes 1.34 does not send a list in a watch. The reflector then lists.
	isOldServer := options.SendInitialEvents != nil && apierrors.IsInvalid(err)
	if ctx.Err() == nil && !isOldServer {
		box.SetAvailability(err)
	}
	if err != nil {
		return w, err
	}
	box.setInterrupted(false)
	return &followedWatch{w, func() { box.setInterrupted(true) }}, nil
}

// followedWatch tells when its caller, which is a reflector, has stopped it or has found it closed.
type followedWatch struct {
	watch.Interface
	stopped func()
}

// Stop ends the watch.
func (w *followedWatch) Stop() {
	w.stopped()
	w.Interface.Stop()
}

func (box *Optional[T]) setInterrupted(is bool) {
	box.mu.Lock()
	defer box.mu.Unlock()
	box.isInterrupted = is
}

// IsInterrupted reports whether changes may be missing now: the last watch has ended, and another
// has not begun. A reflector waits for up to 15 seconds before it asks again, see [Backoff], so the
// last answer may have been good.
func (box *Optional[T]) IsInterrupted() bool {
	box.mu.Lock()
	defer box.mu.Unlock()
	return box.isInterrupted
}

// absentRetry is how often to ask for a missing kind while the other kind is missing too.
const absentRetry = 5 * time.Minute

// DependentSource is the source of a kind that is installed together with another kind.
// If the other kind is missing, this kind probably is too. So while both are missing, it
// asks the API server only now and then.
type DependentSource struct {
	Source         cache.ListerWatcherWithContext
	IsOtherMissing func() bool // reports whether the other kind is missing

	mu      sync.Mutex
	absent  error // the last "not served" error, nil if the kind is served
	askedAt time.Time
}

// request makes the request, or returns the last error if the kind is expected to be
// missing.
func (c *DependentSource) request(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.absent != nil && time.Since(c.askedAt) < absentRetry && c.IsOtherMissing() {
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
func (c *DependentSource) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	err = c.request(func() (err error) { list, err = c.Source.ListWithContext(ctx, options); return err })
	return list, err
}

// WatchWithContext watches the kind.
func (c *DependentSource) WatchWithContext(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
	err = c.request(func() (err error) { w, err = c.Source.WatchWithContext(ctx, options); return err })
	return w, err
}

// isNotServed reports whether the error means that the kind does not exist.
func isNotServed(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
