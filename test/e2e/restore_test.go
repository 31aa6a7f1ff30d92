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
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestARestoredStore restores etcd from a backup. An old watch would deliver nothing until
// the store reaches its version again. So the controller exits, is restarted like by the
// kubelet, and sees the current nodes.
func TestARestoredStore(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t, func(cfg *testbed.Config) { cfg.Record, cfg.RecordIn = nil, nil }) // the recorder follows versions itself
	w := fixture.scope(t, "restored")
	nodes := w.createNodes(healthyNodes(10))
	w.createSet("set", evict(almostHalf))
	// An outage that costs the controller its lease would end it, too. This outage is
	// shorter.
	controller := w.start(install.Options{Args: []string{alone}})
	w.makeUnhealthy(nodes[:1])
	w.counts(w.key("set"), 1, 0)
	restore := testkit.Value(w.Backup(t.Context())).Must(w.t)

	// The store does not reach this version again during the test.
	many := make([]string, 500)
	testkit.Must(w.t, w.everywhere(many, func(ctx context.Context, i int, _ string) error {
		status := corev1.ConditionFalse
		if i%2 == 0 {
			status = corev1.ConditionTrue
		}
		return w.SetCondition(ctx, nodes[9], corev1.NodeCondition{Type: "Other", Status: status, Reason: fmt.Sprintf("R%d", i)})
	}))
	w.makeUnhealthy(nodes[1:2])
	w.counts(w.key("set"), 2, 0)

	controller.Expect()
	testkit.Must(w.t, restore(t.Context()))
	began := time.Now()
	w.makeUnhealthy(nodes[2:4]) // while the controller cannot see it
	select {
	case <-controller.Ended():
	case <-time.After(maxWait):
		t.Fatalf("the controller has not exited after %s\n%s", maxWait, w.LogTail())
	}
	t.Logf("the controller exited %s after the API server was ready", time.Since(began).Round(time.Millisecond))
	if log, err := controller.Log(); err != nil || !strings.Contains(log, "was restored from a backup") {
		t.Errorf("the log does not say why (%v):\n%s", err, w.LogTail())
	}
	testkit.Must(w.t, controller.Restart(t.Context()))
	// The second node became unhealthy after the backup, and is healthy again.
	w.counts(w.key("set"), 3, 0)
	t.Logf("all nodes were tainted %s after the API server was ready", time.Since(began).Round(time.Millisecond))
}
