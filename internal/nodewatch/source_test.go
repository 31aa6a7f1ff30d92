package nodewatch_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// limit is the timeout of every wait: long enough for two busy cores.
const limit = 30 * time.Second

// TestSource compares the results on a real API server with those of other clients.
func TestSource(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	source := testkit.Value(nodewatch.New(cluster.AdminConfig())).Must(t)
	nodes := kubernetes.NewForConfigOrDie(cluster.AdminConfig()).CoreV1().Nodes()
	testkit.Value(cluster.CreateNodes(t.Context(), testbed.RealNodes(5))).Must(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	whole := testkit.Value(nodes.List(ctx, metav1.ListOptions{})).Must(t)
	for i := range whole.Items {
		whole.Items[i] = *nodewatch.Trim(&whole.Items[i])
	}

	t.Run("lists in pages", func(t *testing.T) {
		var got []corev1.Node
		options := metav1.ListOptions{Limit: 2}
		for pages := 1; ; pages++ {
			page := testkit.Value(source.ListWithContext(ctx, options)).Must(t)
			list := page.(*corev1.NodeList)
			got = append(got, list.Items...)
			if options.Continue = list.Continue; options.Continue == "" {
				testkit.Same(t, pages, 3, "pages of 2 for 5 nodes")
				break
			}
		}
		testkit.NoDiff(t, cmp.Diff(whole.Items, got), "the list")
	})

	t.Run("streams existing nodes and then changes", func(t *testing.T) {
		initial := true
		options := metav1.ListOptions{SendInitialEvents: &initial, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
		ours := testkit.Value(source.WatchWithContext(ctx, options)).Must(t)
		defer ours.Stop()
		theirs := testkit.Value(nodes.Watch(ctx, options)).Must(t)
		defer theirs.Stop()
		patch := func(body string, subresources ...string) {
			testkit.Value(nodes.Patch(ctx, "node-0003", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)).Must(t)
		}
		patch(`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"2030-01-01T00:00:00Z"}]}}`, "status")
		patch(`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Unhealthy","lastTransitionTime":"2030-01-01T00:00:00Z"}]}}`, "status")
		patch(`{"metadata":{"annotations":{"` + ownership.Annotation + `":"note","other":"x"},"labels":{"a":"b"}},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`)
		testkit.Must(t, nodes.Delete(ctx, "node-0003", metav1.DeleteOptions{}))
		var bookmarks int
		next := func(from watch.Interface) watch.Event {
			for {
				select {
				case event := <-from.ResultChan():
					if event.Type == watch.Bookmark {
						bookmarks++
						if event.Object.(*corev1.Node).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
							continue // the number of periodic bookmarks may differ
						}
					}
					return event
				case <-ctx.Done():
					t.Fatal(ctx.Err())
				}
			}
		}
		for range 5 + 1 + 4 {
			want, got := next(theirs), next(ours)
			if want.Type != watch.Bookmark {
				want.Object = nodewatch.Trim(want.Object.(*corev1.Node))
			} else if at := got.Object.(*corev1.Node); at.ResourceVersion != "" { // each stream has the version of its own start
				want.Object.(*corev1.Node).ResourceVersion = at.ResourceVersion
			}
			testkit.NoDiff(t, cmp.Diff(want, got), "the event")
		}
		testkit.Check(t, bookmarks >= 2, "no bookmark marks the end of the existing nodes")
		ours.Stop()
		for range ours.ResultChan() { // until it is closed
		}
	})

	t.Run("continues a watch with the decoder of the previous one", func(t *testing.T) {
		beat := func(from watch.Interface) *corev1.Node {
			now := metav1.Now().UTC().Format(time.RFC3339)
			body := `{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"` + now + `","message":"` + rand.Text() + `"}]}}`
			testkit.Value(nodes.Patch(ctx, "node-0001", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")).Must(t)
			for event := range from.ResultChan() {
				if node, ok := event.Object.(*corev1.Node); ok && event.Type == watch.Modified && node.Name == "node-0001" {
					return node
				}
			}
			t.Fatal("the watch has ended")
			return nil
		}
		options := metav1.ListOptions{ResourceVersion: whole.ResourceVersion, AllowWatchBookmarks: true}
		first := testkit.Value(source.WatchWithContext(ctx, options)).Must(t)
		before := beat(first)
		first.Stop()
		for range first.ResultChan() { // until it is closed
		}
		options.ResourceVersion = before.ResourceVersion
		second := testkit.Value(source.WatchWithContext(ctx, options)).Must(t)
		defer second.Stop()
		if after := beat(second); &after.Status.Conditions[0] != &before.Status.Conditions[0] {
			t.Error("a heartbeat in the next watch was decoded as a change")
		}
	})

	t.Run("closes an idle connection", func(t *testing.T) {
		shortIdle := testkit.Value(nodewatch.New(cluster.AdminConfig())).Must(t)
		shortIdle.SetIdleTimeout(100 * time.Millisecond)
		stream := testkit.Value(shortIdle.WatchWithContext(ctx, metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: whole.ResourceVersion})).Must(t)
		defer stream.Stop()
		for {
			select {
			case event, open := <-stream.ResultChan():
				if !open {
					return
				}
				testkit.Check(t, event.Type != watch.Error, "it ends with %v, so no reflector could continue", event.Object)
			case <-ctx.Done():
				t.Fatal("it still waits")
			}
		}
	})

	t.Run("returns the same errors as other clients", func(t *testing.T) {
		odd := metav1.ListOptions{ResourceVersion: "nonsense"}
		_, want := nodes.Watch(ctx, odd)
		_, got := source.WatchWithContext(ctx, odd)
		testkit.Check(t, want != nil && got != nil && got.Error() == want.Error(), "an invalid version: %v, want %v", got, want)
		anonymous := cluster.AdminConfig()
		anonymous.BearerToken = "nonsense"
		unauthorized := testkit.Value(nodewatch.New(anonymous)).Must(t)
		_, err := unauthorized.WatchWithContext(ctx, metav1.ListOptions{})
		testkit.Check(t, apierrors.IsUnauthorized(err), "an unauthorized watch: %v", err)
		if _, err := unauthorized.ListWithContext(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("an unauthorized list: %v", err)
		}
	})
}
