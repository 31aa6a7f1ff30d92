// Package mirror shows policies that are part of other objects as objects of their own: the
// repair block of a NodePool as a RepairPolicy, and a set in a ConfigMap as a ConditionSet. So
// kubectl lists every policy in force with the same status. The controller writes mirrors and
// never follows them, and it does not touch an object of a user that has the name of a mirror.
package mirror

import (
	"context"
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Is reports whether an object is a mirror.
func Is(object metav1.Object) bool {
	_, is := object.GetLabels()[v1alpha1.MirrorLabel]
	return is
}

// Mirrors are the mirrors of one kind. The goroutine that owns the [status.Writer] calls all
// methods.
type Mirrors[Spec, Status any] struct {
	writer         *treat.Writer
	kind, resource string // of a mirror
	source         string // the kind of the objects that contain the policies
	byName         map[string]*Mirror[Spec, Status]
}

// New returns mirrors of a kind, none of which is known. source is the kind of the objects that
// contain the policies.
func New[Spec, Status any](writer *treat.Writer, kind, resource, source string) *Mirrors[Spec, Status] {
	return &Mirrors[Spec, Status]{writer: writer, kind: kind, resource: resource, source: source, byName: map[string]*Mirror[Spec, Status]{}}
}

// Mirror is one mirror, whether it exists or not.
type Mirror[Spec, Status any] struct {
	uid        types.UID // empty if the watch has not delivered it
	generation int64
	content    status.Status[*Content[Spec, Status]] // nil if it does not exist
}

// Content is what a mirror says.
type Content[Spec, Status any] struct {
	Spec   Spec
	Status Status
}

// Generation returns the last known generation, 0 for none.
func (m *Mirror[Spec, Status]) Generation() int64 { return m.generation }

// Stored returns the status as the API server stores it, as far as known.
func (m *Mirror[Spec, Status]) Stored() (stored Status) {
	if m.content.Stored != nil {
		stored = m.content.Stored.Status
	}
	return stored
}

func (m *Mirror[Spec, Status]) exists() bool { return m.uid != "" || m.content.Stored != nil }

// Apply takes in the changes of a kind. It keeps the mirrors among them, and calls upsert for the
// policies of users. It calls remove for every name that no policy of a user has any more. known
// yields the names of the policies of users.
func Apply[T client.Object, Spec, Status any](ms *Mirrors[Spec, Status], batch watch.Batch[T], known iter.Seq[string], remove func(name string), upsert func(T), content func(T) (Spec, Status)) {
	names := slices.Collect(known)
	for name, m := range ms.byName {
		if m.exists() {
			names = append(names, name)
		}
	}
	batch.Apply(slices.Values(names),
		func(name string) {
			ms.Remove(name)
			remove(name)
		},
		func(object T) {
			if !Is(object) {
				ms.Remove(object.GetName())
				upsert(object)
				return
			}
			remove(object.GetName())
			spec, stored := content(object)
			ms.Observe(object, spec, stored)
		})
}

// Observe stores what a watch delivered. The next Write corrects the spec and the status if another
// client has changed them.
func (ms *Mirrors[Spec, Status]) Observe(object metav1.Object, spec Spec, stored Status) {
	if object.GetLabels()[v1alpha1.MirrorLabel] != ms.source { // of an unknown writer
		return
	}
	m := ms.Get(object.GetName())
	m.content.Observe(object, &Content[Spec, Status]{spec, stored})
	m.uid, m.generation, m.content.Stale = object.GetUID(), object.GetGeneration(), true
}

// Remove records that no mirror has this name. The next Write writes it again if it is wanted.
func (ms *Mirrors[Spec, Status]) Remove(name string) {
	delete(ms.byName, name) // so that the answer to a write in flight changes nothing
}

// Get returns the mirror with a name, which may not exist.
func (ms *Mirrors[Spec, Status]) Get(name string) *Mirror[Spec, Status] {
	m := ms.byName[name]
	if m == nil {
		m = &Mirror[Spec, Status]{}
		m.content.Stale = true
		ms.byName[name] = m
	}
	return m
}

// Wanted is a mirror that should exist.
type Wanted[Spec, Status any] struct {
	Owner   *metav1.OwnerReference // nil for none
	IsStale bool                   // its content may have changed since the last Write
	Content func(*Mirror[Spec, Status]) *Content[Spec, Status]
}

// Write writes the wanted mirrors that have changed, and deletes the others.
func (ms *Mirrors[Spec, Status]) Write(ctx context.Context, now time.Time, statuses *status.Writer, wanted map[string]Wanted[Spec, Status]) {
	for name := range wanted {
		ms.Get(name)
	}
	for name, m := range ms.byName {
		w, isWanted := wanted[name]
		switch {
		case !isWanted && !m.exists():
			delete(ms.byName, name)
			continue
		case !isWanted && m.uid == "": // the watch will deliver it
			continue
		}
		if m.content.Stale = m.content.Stale || w.IsStale || !isWanted; m.content.Stale {
			ms.write(ctx, now, statuses, name, m, w)
		}
	}
}

func (ms *Mirrors[Spec, Status]) write(ctx context.Context, now time.Time, statuses *status.Writer, name string, m *Mirror[Spec, Status], w Wanted[Spec, Status]) {
	object := treat.Mirror{Kind: ms.kind, Name: name, Source: ms.source, Owner: w.Owner}
	uid, before := m.uid, m.content.Stored
	m.content.Update(ctx, now, statuses, status.Write[*Content[Spec, Status]]{
		Resource: ms.resource, Kind: "mirror", Name: name,
		Status: func() *Content[Spec, Status] {
			if w.Content == nil {
				return nil
			}
			return w.Content(m)
		},
		Send: func(ctx context.Context, _ string, next *Content[Spec, Status]) (version string, err error) {
			switch {
			case next == nil:
				return "", ms.writer.DeleteMirror(ctx, object, uid)
			case before == nil || !equality.Semantic.DeepEqual(before.Spec, next.Spec):
				if err := ms.writer.MirrorSpec(ctx, object, next.Spec); err != nil {
					return "", err
				}
			}
			return ms.writer.MirrorStatus(ctx, object, next.Status)
		},
	})
}
