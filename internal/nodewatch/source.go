package nodewatch

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/protowatch"
)

// Source lists and watches nodes for a reflector. It has one watch at a time.
type Source struct {
	client      rest.Interface
	idleTimeout time.Duration

	seen atomic.Uint64 // the newest resourceVersion in a watch

	mu      sync.Mutex
	decoder *decoder // of the last watch, for the watch that continues it
}

// New returns a source with its own connection.
func New(config *rest.Config) (*Source, error) {
	client, err := protowatch.Client(config, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Source{client: client, idleTimeout: protowatch.IdleTimeout}, nil
}

// ListWithContext returns a page of trimmed nodes.
func (s *Source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	page := &corev1.NodeList{}
	if err := s.client.Get().Resource("nodes").VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(page); err != nil {
		return nil, err
	}
	for i := range page.Items {
		page.Items[i] = *Trim(&page.Items[i])
	}
	return page, nil
}

// Version returns the current resourceVersion of the store of nodes. It requests the metadata
// of one node.
func (s *Source) Version(ctx context.Context) (string, error) {
	body, err := s.client.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{Limit: 1}, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Stream(ctx)
	if err != nil {
		return "", err
	}
	defer body.Close()
	return protowatch.List(body, "PartialObjectMetadataList", func([]byte) error { return nil })
}

// WatchWithContext returns a watch of trimmed nodes, which must not be changed. The watch ends
// when the server ends it, and when it is idle for so long that the connection may be dead.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	known := s.takeDecoder(options)
	giveBack := func() { s.returnDecoder(known) }
	decode := func(frame []byte) (watch.Event, error) {
		event, err := known.event(frame)
		if err == nil {
			s.recordVersion(event)
		}
		return event, err
	}
	stream, err := protowatch.Watch(ctx, s.client.Get().Resource("nodes"), options, protowatch.Reader{Resource: "nodes", Decode: decode, Ended: giveBack, IdleTimeout: s.idleTimeout})
	if err != nil {
		giveBack()
		return nil, err
	}
	return stream, nil
}

// recordVersion records the resourceVersion of an event.
func (s *Source) recordVersion(event watch.Event) {
	node, ok := event.Object.(*corev1.Node)
	if !ok {
		return
	}
	if version, err := strconv.ParseUint(node.ResourceVersion, 10, 64); err == nil && version > s.seen.Load() {
		s.seen.Store(version) // safe, because a source has one watch at a time
	}
}

// Seen returns the newest resourceVersion in a watch, or an empty string.
func (s *Source) Seen() string {
	if seen := s.seen.Load(); seen > 0 {
		return strconv.FormatUint(seen, 10)
	}
	return ""
}

// takeDecoder returns the decoder of the last watch, if the new watch continues it. The server
// ends every watch after some minutes. A new decoder would treat the next heartbeat of every
// node as a change.
func (s *Source) takeDecoder(options metav1.ListOptions) *decoder {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.decoder
	s.decoder = nil
	fromStart := options.SendInitialEvents != nil && *options.SendInitialEvents || options.ResourceVersion == "" || options.ResourceVersion == "0"
	if last == nil || fromStart {
		return newDecoder()
	}
	return last
}

func (s *Source) returnDecoder(d *decoder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decoder = d
}
