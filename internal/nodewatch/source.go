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

// Source is where a reflector gets nodes from. It has one watch at a time.
type Source struct {
	client  rest.Interface
	silence time.Duration

	seen atomic.Uint64 // the newest version that a watch has told

	mu      sync.Mutex
	decoder *decoder // of the last watch, for the one that goes on from there
}

// New returns a source with a connection of its own.
func New(config *rest.Config) (*Source, error) {
	client, err := protowatch.Client(config, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Source{client: client, silence: protowatch.IdleTimeout}, nil
}

// ListWithContext returns a page of nodes, trimmed.
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

// Version returns the resource version of the store of nodes, as it is now. It costs the
// metadata of one node.
func (s *Source) Version(ctx context.Context) (string, error) {
	body, err := s.client.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{Limit: 1}, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Stream(ctx)
	if err != nil {
		return "", err
	}
	defer body.Close()
	return protowatch.List(body, "PartialObjectMetadataList", func([]byte) error { return nil })
}

// WatchWithContext returns a stream of nodes, trimmed. Those that it sends must
// not be changed. The stream ends when the server ends it, and when nothing has
// come for so long that the connection may be dead.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	known := s.takeDecoder(options)
	giveBack := func() { s.giveDecoder(known) }
	decode := func(frame []byte) (watch.Event, error) {
		event, err := known.event(frame)
		if err == nil {
			s.see(event)
		}
		return event, err
	}
	stream, err := protowatch.Watch(ctx, s.client.Get().Resource("nodes"), options, protowatch.Reader{Resource: "nodes", Decode: decode, Ended: giveBack, IdleTimeout: s.silence})
	if err != nil {
		giveBack()
		return nil, err
	}
	return stream, nil
}

// see notes the version of an event.
func (s *Source) see(event watch.Event) {
	node, ok := event.Object.(*corev1.Node)
	if !ok {
		return
	}
	if version, err := strconv.ParseUint(node.ResourceVersion, 10, 64); err == nil && version > s.seen.Load() {
		s.seen.Store(version) // a source has one watch at a time
	}
}

// Seen returns the newest version that a watch has told, empty if none has.
func (s *Source) Seen() string {
	if seen := s.seen.Load(); seen > 0 {
		return strconv.FormatUint(seen, 10)
	}
	return ""
}

// takeDecoder returns the one that knows what the last watch has told, if this one
// goes on from there: the server ends every watch after some minutes, and most
// heartbeats would be the first of a node that a new one sees.
func (s *Source) takeDecoder(options metav1.ListOptions) *decoder {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.decoder
	s.decoder = nil
	beginsAnew := options.SendInitialEvents != nil && *options.SendInitialEvents || options.ResourceVersion == "" || options.ResourceVersion == "0"
	if last == nil || beginsAnew {
		return newDecoder()
	}
	return last
}

func (s *Source) giveDecoder(d *decoder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decoder = d
}
