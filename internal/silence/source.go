package silence

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/wire"
)

// gather is for how long renewals may gather: they count in minutes.
const gather = time.Second

// Source is where the Leases of agents come from, decoded no further than they are
// used: 10,000 agents renew 83 a second.
type Source struct {
	client    rest.Interface
	namespace string
	log       *slog.Logger
}

// NewSource returns one of the Leases in a namespace, with a connection of its own.
func NewSource(config *rest.Config, namespace string, log *slog.Logger) (*Source, error) {
	client, err := wire.Client(config, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Source{client: client, namespace: namespace, log: log}, nil
}

// request is one for Leases, and options it with what restricts it to those of agents.
func (s *Source) request(options metav1.ListOptions) (*rest.Request, metav1.ListOptions) {
	options.LabelSelector = labels.Set{label: labelValue}.String()
	return s.client.Get().Namespace(s.namespace).Resource("leases"), options
}

// ListWithContext returns a page of Leases.
func (s *Source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	request, options := s.request(options)
	page := &coordinationv1.LeaseList{}
	if err := request.VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(page); err != nil {
		return nil, err
	}
	for i := range page.Items {
		page.Items[i] = *trim(&page.Items[i])
	}
	return page, nil
}

// trim keeps what Read reads, and the version.
func trim(lease *coordinationv1.Lease) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: lease.Name, ResourceVersion: lease.ResourceVersion, OwnerReferences: lease.OwnerReferences},
		Spec:       lease.Spec,
	}
}

// WatchWithContext returns a stream of Leases.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	request, options := s.request(options)
	return wire.Watch(ctx, request, options, wire.Reader{What: "the Leases of agents", Decode: s.decode, Gather: gather})
}

// decode reads an event, and tells of one that cannot be read: to a reflector that is a
// watch which has ended.
func (s *Source) decode(frame []byte) (watch.Event, error) {
	event, err := decodeEvent(frame)
	if err != nil {
		s.log.Error("lease of an agent unreadable", "err", err)
	}
	return event, err
}

// decodeEvent reads one.
func decodeEvent(frame []byte) (event watch.Event, err error) {
	brought, err := wire.Open(frame)
	event.Type = brought.Type
	if err != nil {
		return event, err
	}
	if status, is, err := brought.Status(); is {
		event.Object = status
		return event, err
	}
	lease := &coordinationv1.Lease{}
	event.Object = lease
	switch {
	case string(brought.Kind) != "Lease":
		err = fmt.Errorf("it brought a %q", brought.Kind)
	case event.Type == watch.Bookmark: // has nothing but a version and word of what it stands for
		err = lease.Unmarshal(brought.Object)
	default:
		err = decode(brought.Object, lease)
	}
	return event, err
}

// The numbers of the fields that are read, as Kubernetes' .proto files have them.
const (
	leaseMeta, leaseSpec = 1, 2 // coordination/v1 Lease
	metaName             = 1    // meta/v1 ObjectMeta
	metaVersion          = 6
	metaOwners           = 13
)

// decode reads what trim keeps. Most of a Lease is word of who wrote which field.
func decode(message []byte, lease *coordinationv1.Lease) error {
	err := wire.Fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case leaseMeta:
			return wire.Fields(value, func(number protowire.Number, value []byte) error { return decodeMeta(number, value, lease) })
		case leaseSpec:
			return lease.Spec.Unmarshal(value)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("lease %q: %w", lease.Name, err)
	}
	return nil
}

func decodeMeta(number protowire.Number, value []byte, lease *coordinationv1.Lease) error {
	switch number {
	case metaName:
		lease.Name = string(value)
	case metaVersion:
		lease.ResourceVersion = string(value)
	case metaOwners:
		owner := metav1.OwnerReference{}
		if err := owner.Unmarshal(value); err != nil {
			return err
		}
		lease.OwnerReferences = append(lease.OwnerReferences, owner)
	}
	return nil
}
