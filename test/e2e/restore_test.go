package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// TestARestoredStore puts etcd back to a backup. A watch from before would tell nothing
// until the store has as many versions again, so the controller ends, is started again
// as the kubelet does, and sees what has become of the nodes.
func TestARestoredStore(t *testing.T) {
	t.Parallel()
	world := newFixture(t, func(cfg *testbed.Config) { cfg.Record, cfg.RecordIn = nil, nil }) // which follows versions itself
	w := world.scope(t, "restored")
	nodes := w.createNodes(healthyNodes(10))
	w.createSet("set", evict(almostHalf))
	// An outage that costs it the lease would end it as well: this one is too short.
	controller := w.start(install.Options{Args: []string{alone}})
	w.fallSick(nodes[:1])
	w.counts(w.key("set"), 1, 0)
	restore, err := w.Backup(t.Context())
	w.must(err)

	// So many versions that nobody reaches them again while this test runs.
	many := make([]string, 500)
	w.must(w.everywhere(many, func(ctx context.Context, i int, _ string) error {
		status := corev1.ConditionFalse
		if i%2 == 0 {
			status = corev1.ConditionTrue
		}
		return w.SetCondition(ctx, nodes[9], corev1.NodeCondition{Type: "Other", Status: status, Reason: fmt.Sprintf("R%d", i)})
	}))
	w.fallSick(nodes[1:2])
	w.counts(w.key("set"), 2, 0)

	controller.Expect()
	w.must(restore(t.Context()))
	began := time.Now()
	w.fallSick(nodes[2:4]) // while the controller knows of nothing
	select {
	case <-controller.Ended():
	case <-time.After(patience):
		t.Fatalf("the controller has not ended after %s\n%s", patience, w.logTail())
	}
	t.Logf("the controller ended %s after the API server was ready", time.Since(began).Round(time.Millisecond))
	if log, err := controller.Log(); err != nil || !strings.Contains(log, "was restored from a backup") {
		t.Errorf("the log does not say why (%v):\n%s", err, w.logTail())
	}
	w.must(controller.Restart(t.Context()))
	// The second one had fallen sick after the backup, and is well again.
	w.counts(w.key("set"), 3, 0)
	t.Logf("all nodes were tainted %s after the API server was ready", time.Since(began).Round(time.Millisecond))
}
