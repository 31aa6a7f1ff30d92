package agentlease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/treat"
)

// requestTimeout is how long one request may take.
const requestTimeout = 10 * time.Second

// Client are what a keeper touches the cluster with. Nothing that they read comes from
// a cache.
type Client interface {
	// Lease reads a Lease, nil if there is none.
	Lease(ctx context.Context, name string) (*coordinationv1.Lease, error)
	// Node reads a node with its managed fields, nil if there is none.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// Apply writes.
	Apply(ctx context.Context, s *treat.MarkUnknown) error
}

// NewClient returns those of a client, which must not read from a cache, for the Leases
// in a namespace.
func NewClient(c client.Client, namespace string) Client {
	return &hands{client: c, writer: treat.NewWriter(c), namespace: namespace}
}

type hands struct {
	client    client.Client
	writer    *treat.Writer
	namespace string
}

func (h *hands) Lease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	err := h.client.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: name}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Lease %s/%s: %w", h.namespace, name, err)
	}
	return lease, nil
}

func (h *hands) Node(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := h.writer.Fetch(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return node, err
}

func (h *hands) Apply(ctx context.Context, s *treat.MarkUnknown) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return h.writer.ApplySilence(ctx, s)
}
