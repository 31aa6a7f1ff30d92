package protowatch

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Client returns one with a connection of its own, over HTTP/1.1: HTTP/2 asks for
// more of a stream frame by frame, which costs a seventh of all that a steady cluster
// does, and would share the connection with the writes.
func Client(config *rest.Config, group schema.GroupVersion) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	config.GroupVersion, config.APIPath = &group, "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client to watch %s with: %w", group, err)
	}
	return client, nil
}

// Watch begins a watch of what a request is for. The stream ends when the server ends
// it, and when nothing has come for so long that the connection may be dead.
func Watch(ctx context.Context, request *rest.Request, options metav1.ListOptions, reader Reader) (watch.Interface, error) {
	options.Watch = true
	ctx, cancel := context.WithCancel(ctx)
	body, err := request.VersionedParams(&options, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch").Stream(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	if reader.IdleTimeout == 0 {
		reader.IdleTimeout = IdleTimeout
	}
	st := &stream{body: body, results: make(chan watch.Event), cancel: cancel, Reader: reader}
	go func() {
		defer close(st.results)
		if reader.Ended != nil {
			defer reader.Ended() // before anybody can go on from there
		}
		st.run(ctx)
	}()
	return st, nil
}
