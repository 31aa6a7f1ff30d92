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

// requestTimeout is the timeout of one request.
const requestTimeout = 10 * time.Second

// Client reads and writes objects of the cluster for a Monitor. Reads bypass all caches.
type Client interface {
	// Lease reads a Lease. It returns nil if there is none.
	Lease(ctx context.Context, name string) (*coordinationv1.Lease, error)
	// Node reads a node with its managed fields. It returns nil if there is none.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// Apply sets the conditions of a silent agent to Unknown.
	Apply(ctx context.Context, s *treat.MarkUnknown) error
}

// NewClient returns a Client for the Leases in a namespace. c must not read from a cache.
func NewClient(c client.Client, namespace string) Client {
	return &apiClient{client: c, writer: treat.NewWriter(c), namespace: namespace}
}

type apiClient struct {
	client    client.Client
	writer    *treat.Writer
	namespace string
}

func (c *apiClient) Lease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Lease %s/%s: %w", c.namespace, name, err)
	}
	return lease, nil
}

func (c *apiClient) Node(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := c.writer.Fetch(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return node, err
}

func (c *apiClient) Apply(ctx context.Context, s *treat.MarkUnknown) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.writer.ApplyUnknown(ctx, s)
}
