// Package ledger keeps in the API server which disruptive writes are about to be
// made. It promises that a write which its page does not name is not on its way:
// whoever leads names every such write, with the version of the object that it
// will change, before it sends it; and a successor first takes the page over,
// by compare-and-swap, which ends the predecessor's right to name any more. A
// lost lease cannot call back a request that has left; the page tells the
// successor which those may be. It tells it, too, which nodes have gone that keep their
// place, since nothing else is left of them. It refuses to judge who ought to lead.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ownership"
)

const (
	// Name is the name of the ConfigMap that holds the page.
	Name = "autohealer-ledger"
	// pageKey is the key of its data.
	pageKey = "ledger"
)

var (
	// ErrDeposed says that the page is no longer this holder's: somebody else has
	// taken it over. Who leads must begin anew.
	ErrDeposed = errors.New("this process no longer holds the ledger")
	// ErrUnreadable says that the page is not one that this system wrote. Nobody
	// writes over it: whose it is cannot be read either.
	ErrUnreadable = errors.New("the ledger cannot be read")
)

// Entry is a write that takes a place under a rule's bound and may be on its way, or a
// node that was taken away and keeps its place.
type Entry struct {
	Rule ownership.Rule `json:"rule"`
	Node string         `json:"node"`
	UID  string         `json:"uid"`
	// ResourceVersion is the version of the node that the write carries as its
	// precondition. Once the node has another, the write has been made or never
	// will be. It is empty if the write makes an object.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Object names what the write makes, and Step which step of the rule that is. No
	// precondition can be given for it: it may be made until it is too old to be.
	Object string `json:"object,omitempty"`
	Step   int    `json:"step,omitempty"`
	// Gone is when the node went that keeps its place until it is replaced, by the
	// clock of whoever saw it, and zero for a write. Since is when what took it away
	// began: its replacement is younger than that.
	Gone  time.Time `json:"gone,omitzero"`
	Since time.Time `json:"since,omitzero"`
	// ControlPlane says that the node that has gone was one of the control plane.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// Pool is the one whose bound the place counts in, if the rule shares it with others.
	// Should the rule be gone, too, nothing else tells.
	Pool string `json:"pool,omitempty"`
	// Tries, when not zero, is how often in a row a node of the pool that the rule names
	// was replaced because it had not become ready, and Since when the last one was. Such
	// an entry names no node.
	Tries int `json:"tries,omitempty"`
	// Template is what the nodes of that pool were made of then, as a hash. With another
	// one the tries count no more.
	Template string `json:"template,omitempty"`
	// Replaced says that it keeps its place no more, and is named only because what
	// took it away is still there.
	Replaced bool `json:"replaced,omitempty"`
	// Unknown are fields that this version does not know.
	Unknown format.Unknown `json:"-"`
}

// Ledger is the page, held by this process.
type Ledger struct {
	client client.Client
	holder string
	stored *corev1.ConfigMap
	// kept and unknown are what a newer version has left on the page.
	kept    []Entry
	unknown format.Unknown
}

// Claim takes the ledger over for a holder, whose name must be unique to this
// process, and returns what the one before had named.
func Claim(ctx context.Context, c client.Client, namespace, holder string) (*Ledger, []Entry, error) {
	l := &Ledger{client: c, holder: holder}
	for {
		inherited, err := l.claim(ctx, namespace)
		if err == nil {
			return l, inherited, nil
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
		found = blank(namespace)
		l.put(found, nil)
		l.stored = found
		return nil, l.client.Create(ctx, found)
	}
	if err != nil {
		return nil, err
	}
	before, err := read(found)
	if err != nil {
		return nil, fmt.Errorf("%w; stop every controller (kubectl scale --replicas=0), wait a minute for what they have sent, delete the ConfigMap and start them again", err)
	}
	l.kept, l.unknown = before.kept, before.unknown
	l.put(found, before.grants)
	l.stored = found
	return before.grants, l.client.Update(ctx, found)
}

// Kept returns the entries of the page that this version does not know the kind of. They
// stay there.
func (l *Ledger) Kept() []Entry { return l.kept }

// CountUnknown returns how many entries and fields this version does not know, of a page
// with these entries.
func (l *Ledger) CountUnknown(entries []Entry) int {
	n := 0
	if l != nil { // as in tests of what is written there
		n = len(l.kept) + l.unknown.Len()
	}
	for _, e := range entries {
		n += e.Unknown.Len()
	}
	return n
}

// Write makes these the entries of the page; they must name all that may be on
// their way. With ErrDeposed nothing was written and nothing ever will be; after
// any other error the page holds these entries or those before, and Write may be
// tried again.
func (l *Ledger) Write(ctx context.Context, entries []Entry) error {
	err := l.replace(ctx, entries)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// An earlier write of ours may have been made although its answer was lost.
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

// replace stores the page over the one that is known. One that was deleted is
// made again: who holds it is the only one who knows what it named, and another
// who has claimed it meanwhile has made one too.
func (l *Ledger) replace(ctx context.Context, entries []Entry) error {
	next := l.stored.DeepCopy()
	l.put(next, entries)
	err := l.client.Update(ctx, next)
	if apierrors.IsNotFound(err) {
		next = blank(l.stored.Namespace)
		l.put(next, entries)
		err = l.client.Create(ctx, next)
	}
	if err == nil {
		l.stored = next
	}
	return err
}

// refresh reads the page again, which must be ours still.
func (l *Ledger) refresh(ctx context.Context) error {
	found := &corev1.ConfigMap{}
	if err := l.client.Get(ctx, client.ObjectKeyFromObject(l.stored), found); err != nil {
		return fmt.Errorf("reading the ledger: %w", err)
	}
	now, err := read(found)
	if err != nil {
		return fmt.Errorf("%w; delete the ConfigMap %s/%s, and the controller makes it again with all that it has named there", err, l.stored.Namespace, Name)
	}
	if now.holder != l.holder {
		return fmt.Errorf("%w: %s does", ErrDeposed, now.holder)
	}
	l.stored = found
	return nil
}

func blank(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: Name, Labels: map[string]string{"app.kubernetes.io/name": "autohealer"},
	}}
}

func (l *Ledger) put(m *corev1.ConfigMap, entries []Entry) {
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[pageKey] = string(page{l.holder, entries, l.kept, l.unknown}.text())
}

func read(m *corev1.ConfigMap) (page, error) {
	p, err := parse([]byte(m.Data[pageKey]))
	if err != nil {
		return page{}, fmt.Errorf("%w: key %s: %w", ErrUnreadable, pageKey, err)
	}
	return p, nil
}
