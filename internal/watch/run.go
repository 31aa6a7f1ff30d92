package watch

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects to list per request if the API server cannot stream them.
const pageSize = 250

// Run lists and watches objects of a kind into a store until ctx ends. It resumes a watch
// that ends, and lists again if the API server no longer has the version.
func Run(ctx context.Context, kind client.Object, source cache.ListerWatcherWithContext, store cache.ReflectorStore, log *slog.Logger) {
	logger := logr.FromSlogHandler(log.Handler())
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			// Without a match the API server lists in pages the objects of exactly this version. If that is
			// the version from which a watch could not continue, the next watch could not continue either.
			if options.Limit > 0 && options.ResourceVersion != "" && options.ResourceVersion != "0" && options.ResourceVersionMatch == "" {
				options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
			}
			return source.ListWithContext(ctx, options)
		},
		WatchFuncWithContext: source.WatchWithContext,
	}
	reflector := cache.NewReflectorWithOptions(list, kind, store, cache.ReflectorOptions{Logger: &logger, Backoff: Backoff()})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(logr.NewContext(ctx, logger)) // it logs failures through the context
}

// Backoff returns the waits between attempts to start a watch. All watches of the controller
// use it. The waits are short enough not to miss a storm, and long enough not to overload an
// API server that has just started.
func Backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}
}

// fresh returns a source that never lists from a cache of the API server.
func fresh(source cache.ListerWatcherWithContext) cache.ListerWatcherWithContext {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				options.ResourceVersion, options.ResourceVersionMatch = "", ""
			}
			return source.ListWithContext(ctx, options)
		},
		WatchFuncWithContext: source.WatchWithContext,
	}
}

// UnstructuredSource lists and watches the objects of a kind.
func UnstructuredSource(c client.WithWatch, gvk schema.GroupVersionKind) cache.ListerWatcherWithContext {
	list := func() *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		return list
	}
	return Source(c, func() client.ObjectList { return list() })
}

// Source lists and watches the objects of a list type, restricted by the options.
func Source(c client.WithWatch, list func() client.ObjectList, restrict ...client.ListOption) cache.ListerWatcherWithContext {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			page := list()
			options := client.ListOptions{Raw: &raw, Limit: raw.Limit, Continue: raw.Continue}
			return page, c.List(ctx, page, options.ApplyOptions(restrict))
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			options := client.ListOptions{Raw: &raw}
			return c.Watch(ctx, list(), options.ApplyOptions(restrict))
		},
	}
}
