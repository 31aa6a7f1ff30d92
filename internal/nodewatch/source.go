package nodewatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// longestSilence is how long nothing may come until the watch is begun anew: the
// connection may be dead although nobody has said so, because some load balancer
// has lost its backend. HTTP/2 would have asked with a ping. Where no node says
// anything for so long, in a cluster of a handful, it costs a request.
const longestSilence = 90 * time.Second

// Source is where a reflector gets nodes from. It has one watch at a time.
type Source struct {
	client  rest.Interface
	silence time.Duration

	mu      sync.Mutex
	decoder *decoder // of the last watch, for the one that goes on from there
}

// New returns a source with a connection of its own, over HTTP/1.1: HTTP/2 asks
// for more of a stream frame by frame, which costs a seventh of all that a steady
// cluster does, and would share the connection with the writes.
func New(config *rest.Config) (*Source, error) {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client to watch nodes with: %w", err)
	}
	return &Source{client: client, silence: longestSilence}, nil
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

// WatchWithContext returns a stream of nodes, trimmed. Those that it sends must
// not be changed. The stream ends when the server ends it, and when nothing has
// come for so long that the connection may be dead.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	ctx, cancel := context.WithCancel(ctx)
	body, err := s.client.Get().Resource("nodes").VersionedParams(&options, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch").Stream(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	st := &stream{body: body, results: make(chan watch.Event), cancel: cancel, silence: s.silence}
	known := s.takeDecoder(options)
	go func() {
		defer close(st.results) // after the decoder is there for who goes on
		defer s.giveDecoder(known)
		st.run(ctx, known)
	}()
	return st, nil
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
