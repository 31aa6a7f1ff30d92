package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestLastLook has a node recover while its lock is in flight. The node must not be
// remediated, and must be unlocked again.
func TestLastLook(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t, withManager)
	testkit.Must(t, remediator.Install(t.Context(), fixture.Cluster))
	w := fixture.scope(t, "look")
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	lock := func(r testbed.Request) bool {
		return testbed.On("create", "leases")(r) && r.Namespace == leaseNamespace
	}
	slow := proxy.Inject(lock, testbed.Hold(), 1)
	begun := proxy.Inject(testbed.On("create", "exampleremediations"), testbed.Delay(0), 0)
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	check := w.check("check")
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	testkit.Must(w.t, slow.Wait(t.Context(), 1))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	unlocked := proxy.Inject(testbed.On("delete", "leases"), testbed.Delay(0), 0)
	slow.Lift()
	testkit.Must(w.t, unlocked.Wait(t.Context(), 1))
	w.locked(nodes[0], "")
	if made := begun.Hits(); made > 0 {
		t.Errorf("%d remediations were created for a recovered node", made)
	}
	// The node that stays unhealthy is remediated.
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[1], "quick")
	w.locked(nodes[1], "NodeHealthCheck-"+check.Name)
}
