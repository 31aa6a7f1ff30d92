package scale

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// watchObjects calls a function for all objects of a resource and their changes through an
// informer, until the end of the benchmark. It returns after the existing objects.
func watchObjects(b *testing.B, d *fixture, resource schema.GroupVersionResource, show cache.ResourceEventHandlerFuncs) {
	b.Helper()
	api := testkit.Value(metadata.NewForConfig(d.cluster.AdminConfig())).Must(b)
	informer := metadatainformer.NewFilteredMetadataInformer(api, resource, metav1.NamespaceAll, 0, nil, nil).Informer()
	handler := testkit.Value(informer.AddEventHandler(show)).Must(b)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var looking sync.WaitGroup
	looking.Go(func() { informer.RunWithContext(ctx) })
	b.Cleanup(func() {
		cancel()
		looking.Wait()
	})
	if !cache.WaitForCacheSync(b.Context().Done(), handler.HasSynced) {
		b.Fatal(b.Context().Err())
	}
}

// awaitCount waits until a count is right.
func awaitCount(ctx context.Context, what string, count func() int, isRight func(int) bool) error {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !isRight(count()) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; there are %d", what, ctx.Err(), count())
		}
	}
	return nil
}

// metricsOf returns the API server's metrics.
func metricsOf(b *testing.B, server kubernetes.Interface) measured {
	b.Helper()
	text := testkit.Value(server.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())).Must(b)
	return testkit.Value(parse(bytes.NewReader(text))).Must(b)
}
