package watch

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// BriefOutage is how long a kind may be unreadable before that counts. The loop checks
// more often.
const BriefOutage = time.Minute

// Kinds watches the kinds of templates and remediation objects that policies
// reference. Policies name these kinds at run time, so each watch starts with its first
// reference.
type Kinds struct {
	Client client.WithWatch
	Signal chan<- struct{}
	// Start runs work in the background until stop is called or the term ends.
	Start func(work func(ctx context.Context)) (stop context.CancelFunc)

	Known map[schema.GroupVersionKind]*Kind
}

// Kind is the watch of a kind.
type Kind struct {
	schema.GroupVersionKind
	*Optional[*unstructured.Unstructured]
	stop context.CancelFunc

	// Current is the availability that the loop has acted on, and Err is its error. The
	// inbox may have a newer answer, about objects that the loop has not taken in.
	Current      Availability
	Err          error
	failingSince time.Time // zero if it works
}

// UpdateAvailability takes in the last answer and reports whether it is new. A watch that ends resumes
// where it was, so a short outage is not new.
func (kind *Kind) UpdateAvailability(now time.Time) (isNews bool) {
	current, err := kind.Availability()
	switch {
	case current != Failing:
		kind.failingSince = time.Time{}
	case kind.failingSince.IsZero():
		kind.failingSince = now
	}
	if kind.Current == current || current == Failing && kind.Current == Available && now.Sub(kind.failingSince) < BriefOutage {
		return false
	}
	kind.Current, kind.Err = current, err
	return true
}

// Ensure watches a kind, if it is not watched yet.
func (watches *Kinds) Ensure(gvk schema.GroupVersionKind) {
	if watches.Known[gvk] != nil {
		return
	}
	sample := &unstructured.Unstructured{}
	sample.SetGroupVersionKind(gvk)
	kind := &Kind{GroupVersionKind: gvk, Optional: NewOptional(watches.Signal, sample, UnstructuredSource(watches.Client, gvk))}
	kind.Namespaced = true
	kind.stop = watches.Start(func(ctx context.Context) { kind.Run(ctx) })
	watches.Known[gvk] = kind
}

// OtherVersion returns another watched version of a kind.
func (watches *Kinds) OtherVersion(gvk schema.GroupVersionKind) (version schema.GroupVersionKind, isWatched bool) {
	for other, kind := range watches.Known {
		if other != gvk && other.GroupKind() == gvk.GroupKind() && kind.Current == Available {
			return other, true
		}
	}
	return version, false
}

// Stop ends the watch of a kind that no policy references any more.
func (watches *Kinds) Stop(gvk schema.GroupVersionKind) {
	watches.Known[gvk].stop()
	delete(watches.Known, gvk)
}
