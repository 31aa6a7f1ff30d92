package watch

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// An API server that has restarted cannot continue a watch from an older version, so the objects are
// listed again. Kubernetes 1.30, 1.31 and 1.33 list them in pages, like this API server. The objects
// of the old version would be listed until the API server compacts etcd, every five minutes.
func TestRunSeesChangesAfterARestartOfTheAPIServer(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{Flags: testbed.Flags{APIServer: []string{"--feature-gates=WatchList=false"}}})
	api := testkit.Value(client.NewWithWatch(cluster.AdminConfig(), client.Options{})).Must(t)
	box := NewInbox[*corev1.Node](make(chan struct{}, 1), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, &corev1.Node{}, Source(api, func() client.ObjectList { return &corev1.NodeList{} }), box, slog.New(slog.DiscardHandler))
	}()
	defer func() { cancel(); <-ended }()
	create := func(name string) {
		t.Helper()
		testkit.Must(t, api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	arrives := func(name string) {
		t.Helper()
		testkit.Wait{Limit: 2 * time.Minute}.Eventually(t, name, func() error {
			if _, found := box.Take().Changes[name]; !found {
				return errors.New("it is not in the inbox")
			}
			return nil
		})
	}
	create("before")
	arrives("before")
	testkit.Must(t, cluster.APIServer.Stop(t.Context()))
	testkit.Must(t, cluster.APIServer.Restart(t.Context()))
	create("after")
	arrives("after")
}

func TestBackoffGrowsToItsCap(t *testing.T) {
	backoff := Backoff()
	for try := range 20 {
		wait := backoff.Step()
		if least := min(200*time.Millisecond<<try, 10*time.Second); wait < least || wait > least*3/2 {
			t.Errorf("wait %d is %s, want between %s and 1.5 times that", try, wait, least)
		}
	}
	if first := Backoff().Step(); first > time.Second {
		t.Errorf("a second backoff starts with %s: it shares state with the first", first)
	}
}
