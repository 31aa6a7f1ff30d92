// Package ledger stores in a ConfigMap which disruptive writes the controller is about to
// make. The leader adds an entry for each such write, with the resource version of the
// object, before it sends the write. So a write without an entry is never in flight.
//
// A new leader first claims the ledger with an optimistic update. From then on the previous
// leader cannot add entries. The loss of a lease does not stop a request that was already
// sent, but the ledger tells the new leader which requests may be in flight. The ledger also
// lists deleted nodes that still occupy a slot, because no other object records them.
//
// The package does not decide which process leads.
package ledger

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/format"
)

const (
	// Name is the name of the ConfigMap that holds the ledger.
	Name = "autohealer-ledger"
	// dataKey is the key of the ledger in the data of the ConfigMap.
	dataKey = "ledger"
	// previousAnnotation is the version that a write replaces. It makes every write change the
	// ConfigMap. The API server makes no new version for a write that changes nothing, and then
	// an older write that got no answer could still arrive.
	previousAnnotation = "autohealer.resourcestack.com/previous-version"
)

var (
	// ErrDeposed says that another process has claimed the ledger. This process must stop
	// leading and start again.
	ErrDeposed = errors.New("this process no longer holds the ledger")
	// ErrUnreadable says that the content of the ConfigMap is not a ledger. The controller
	// does not overwrite it, because its holder cannot be read either.
	ErrUnreadable = errors.New("the ledger cannot be read")
)

// Ledger is the ledger, held by this process.
type Ledger struct {
	client client.Client
	holder string
	stored *corev1.ConfigMap
	// kept and unknown are entries and fields of a newer version.
	kept    []UnknownEntry
	unknown format.Unknown
}

// Claim claims the ledger for a holder and returns the entries of the previous holder. The
// holder name must be unique to this process.
func Claim(ctx context.Context, c client.Client, namespace, holder string) (*Ledger, []Entry, error) {
	l := &Ledger{client: c, holder: holder}
	for {
		previous, err := l.claim(ctx, namespace)
		if err == nil {
			return l, previous, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return nil, nil, fmt.Errorf("claiming the ledger %s/%s: %w", namespace, Name, err)
		}
	}
}

func (l *Ledger) claim(ctx context.Context, namespace string) ([]Entry, error) {
	found := &corev1.ConfigMap{}
	err := l.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: Name}, found)
	if apierrors.IsNotFound(err) {
		found = newConfigMap(namespace)
		l.setData(found, nil)
		l.stored = found
		return nil, l.client.Create(ctx, found)
	}
	if err != nil {
		return nil, err
	}
	before, err := read(found)
	if err != nil {
		return nil, fmt.Errorf("%w; stop every controller (kubectl scale --replicas=0), wait a minute for requests in flight, delete the ConfigMap and start the controllers again", err)
	}
	l.kept, l.unknown = before.kept, before.unknown
	l.setData(found, before.grants)
	l.stored = found
	return before.grants, l.client.Update(ctx, found)
}

// Kept returns the entries whose kind this version does not know. They stay in the ledger.
func (l *Ledger) Kept() []UnknownEntry { return l.kept }

// CountUnknown returns how many entries and fields of a ledger with these entries this
// version does not know.
func (l *Ledger) CountUnknown(entries []Entry) int {
	n := 0
	if l != nil { // nil in tests of the controller
		n = len(l.kept) + l.unknown.Len()
	}
	for _, e := range entries {
		n += e.record().Unknown.Len()
	}
	return n
}

// Write replaces the entries of the ledger. They must contain every write that may be in
// flight. After [ErrDeposed] nothing was written, and nothing will be. After any other error
// the ledger has either the new or the old entries, and Write may be called again.
func (l *Ledger) Write(ctx context.Context, entries []Entry) error {
	err := l.replace(ctx, entries)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// An earlier write may have succeeded although its response was lost.
		if err := l.refresh(ctx); err != nil {
			return err
		}
		err = l.replace(ctx, entries)
	}
	if err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	return nil
}

// replace overwrites the known version of the ledger. It creates a deleted ledger again,
// because only the holder knows its entries. If another process has claimed the ledger
// meanwhile, the ConfigMap exists and the creation fails.
func (l *Ledger) replace(ctx context.Context, entries []Entry) error {
	if l.stored.UID != "" {
		next := l.stored.DeepCopy()
		l.setData(next, entries)
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, previousAnnotation, l.stored.ResourceVersion)
		err := l.client.Update(ctx, next)
		if err == nil {
			l.stored = next
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	next := newConfigMap(l.stored.Namespace)
	l.setData(next, entries)
	err := l.client.Create(ctx, next)
	if err == nil {
		l.stored = next
	}
	return err
}

// refresh reads the ledger again and checks that this process still holds it. Kubernetes 1.30 answers
// an update of a deleted ConfigMap with a conflict: then nothing is stored.
func (l *Ledger) refresh(ctx context.Context) error {
	found := &corev1.ConfigMap{}
	err := l.client.Get(ctx, client.ObjectKeyFromObject(l.stored), found)
	if apierrors.IsNotFound(err) {
		l.stored = newConfigMap(l.stored.Namespace)
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the ledger: %w", err)
	}
	now, err := read(found)
	if err != nil {
		return fmt.Errorf("%w; delete the ConfigMap %s/%s; the controller creates it again with all of its entries", err, l.stored.Namespace, Name)
	}
	if now.holder != l.holder {
		return fmt.Errorf("%w: %s does", ErrDeposed, now.holder)
	}
	l.stored = found
	return nil
}

func newConfigMap(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: Name, Labels: map[string]string{"app.kubernetes.io/name": "autohealer"},
	}}
}

func (l *Ledger) setData(m *corev1.ConfigMap, entries []Entry) {
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[dataKey] = string(contents{l.holder, entries, l.kept, l.unknown}.encode())
}

func read(m *corev1.ConfigMap) (contents, error) {
	p, err := parse([]byte(m.Data[dataKey]))
	if err != nil {
		return contents{}, fmt.Errorf("%w: key %s: %w", ErrUnreadable, dataKey, err)
	}
	return p, nil
}
