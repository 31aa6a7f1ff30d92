package nodewatch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Source is where a reflector gets nodes from.
type Source struct {
	client rest.Interface
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
	return &Source{client: client}, nil
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
// not be changed.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	ctx, cancel := context.WithCancel(ctx)
	body, err := s.client.Get().Resource("nodes").VersionedParams(&options, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch").Stream(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	st := &stream{body: body, results: make(chan watch.Event), cancel: cancel}
	go st.run(ctx)
	return st, nil
}
