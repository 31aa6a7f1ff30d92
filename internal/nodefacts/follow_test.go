package nodefacts_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// patience is the timeout of every wait: long enough for two busy cores.
const patience = 30 * time.Second

// TestFollow runs a store with its own watch, also through an outage of the API server, until
// its replica becomes the leader.
func TestFollow(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{Flags: testbed.Flags{APIServer: []string{"--shutdown-watch-termination-grace-period=1s"}}})
	source, err := nodewatch.New(cluster.AdminConfig())
	testkit.Must(t, err)
	nodes := kubernetes.NewForConfigOrDie(cluster.AdminConfig()).CoreV1().Nodes()
	if _, err := cluster.CreateNodes(t.Context(), testbed.Nodes{Count: 6, Prefix: "node"}); err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return fmt.Sprintf("node-%04d", i) }
	says := func(i int, status corev1.ConditionStatus) {
		t.Helper()
		testkit.Must(t, cluster.SetCondition(t.Context(), name(i), corev1.NodeCondition{Type: "Disk", Status: status, Reason: "TestSaysSo"}))
	}
	rule := triage.Rule{
		ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: "asked"},
		Stage:    policykind.StageTaint,
		When:     triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "example.com/asked", Effect: triage.NoSchedule}},
	}
	c := nodefacts.New()
	knows := func(count int, unhealthy ...string) {
		t.Helper()
		testkit.Eventually(t, "the store", func() error {
			got, err := c.Impact(rule)
			if err == nil && (got.Selected != count || !slices.Equal(got.First, unhealthy)) {
				err = fmt.Errorf("%v of %d nodes match, want %v of %d", got.First, got.Selected, unhealthy, count)
			}
			return err
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Watch(t.Context(), source, slog.New(slog.DiscardHandler))
	}()
	testkit.Eventually(t, "being ready", func() error {
		if !c.Ready() {
			return errors.New("it is not")
		}
		return nil
	})
	knows(6)
	says(1, corev1.ConditionTrue)
	says(3, corev1.ConditionTrue)
	knows(6, name(1), name(3))
	if !slices.Contains(c.Reported(), "Disk") || !slices.Contains(c.Reported(), "Ready") {
		t.Errorf("the reported conditions are %v", c.Reported())
	}
	says(1, corev1.ConditionFalse)
	testkit.Must(t, nodes.Delete(t.Context(), name(2), metav1.DeleteOptions{}))
	knows(5, name(3))

	testkit.Must(t, cluster.APIServer.Restart(t.Context()))
	says(4, corev1.ConditionTrue)
	knows(5, name(3), name(4))

	// The replica is the leader now. Its loop knows fewer nodes than the watch, which
	// cannot happen, but shows which one counts.
	c.Observe(triage.Node{Name: name(5), UID: "u", Conditions: []triage.Condition{{Type: "Disk", Status: triage.True}}})
	c.Takeover()
	c.Takeover()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the watch continues after Takeover")
	}
	says(6, corev1.ConditionTrue)
	knows(1, name(5))

	late := nodefacts.New()
	late.Takeover()
	late.Watch(t.Context(), source, slog.New(slog.DiscardHandler))
	if got, err := late.Impact(rule); err != nil || got.Selected != 0 || !late.Ready() {
		t.Errorf("a watch after Takeover adds %d nodes; ready: %t, %v", got.Selected, late.Ready(), err)
	}
}
