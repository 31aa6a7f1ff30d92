package e2e

import (
	"errors"
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestQuietHealthChecks runs its parts in sequence. Activity in another scope would make
// the controller look at all health checks, and would hide a missing wakeup.
func TestQuietHealthChecks(t *testing.T) {
	t.Parallel()
	w := newFixture(t, withManager)
	testkit.Must(t, remediator.Install(t.Context(), w.Cluster))
	proxy := testkit.Value(w.Proxy()).Must(t)
	controller := w.scope(t, "all").start(install.Options{Through: proxy, Args: []string{alone}})
	for _, part := range []part{
		{"a storm ends without another event", "storm", testStormCooldown},
		{"medik8s' own controller starts and stops", "medik8s", testDeferring},
		{"the response to a deletion is lost", "ends", func(w *scope) { testUnansweredEnd(w, proxy, controller) }},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			part.test(subscope)
			subscope.deleteCheck()
		})
	}
}

// testDeferring has medik8s' own controller lead for a while.
func testDeferring(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 4})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	object := w.tries(nodes[0], "quick")
	w.hasCheckStatus("check", counted(4, 3, 1))

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "e1f13584.medik8s.io"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("operator-1"), LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro())},
	}
	testkit.Must(w.t, w.api.Create(w.t.Context(), lease))
	w.hasCheckStatus("check", condition(remediationv1alpha1.StandingBack, metav1.ConditionTrue, "operator-1 holds Lease default/e1f13584.medik8s.io"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.createSet("set") // which medik8s does not know
	w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
		if s.Selected != 4 || s.Matched != 1 {
			return fmt.Errorf("%d selected, %d matched", s.Selected, s.Matched)
		}
		return nil
	})
	if err := errors.Join(w.triesNow(nodes[0], "quick"), w.triesNow(nodes[1])); err != nil {
		w.t.Errorf("it meddles: %v", err)
	}

	testkit.Must(w.t, w.api.Delete(w.t.Context(), lease))
	w.tries(nodes[0])
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseRemediating), counted(4, 3, 1), row(nodes[1], "Treating"), func(s remediationv1alpha1.NodeHealthCheckStatus) error {
		if meta.FindStatusCondition(s.Conditions, remediationv1alpha1.StandingBack) != nil {
			return errors.New("the status says that the controller defers")
		}
		return nil
	})
	if now := w.tries(nodes[1], "quick"); now.GetUID() == object.GetUID() {
		w.t.Error("the remediation changed")
	}
	w.deleteSet("set")
}

// testUnansweredEnd loses the response to every deletion of a remediation, so that the
// watch reports the deletion first. The controller must still know that it deleted the
// object itself, and must not delay the next one as after a deletion by another client.
func testUnansweredEnd(w *scope, proxy *testbed.Proxy, controller *install.Controller) {
	cut := proxy.Inject(testbed.On("delete", "exampleremediations"), testbed.CutResponse(), 0)
	defer cut.Lift()
	w.template("quick")
	node := w.createNodes(testbed.Nodes{Count: 4})[0]
	check := w.check("check")
	const rounds = 3
	for range rounds {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
		w.tries(node, "quick")
		w.setCondition(node, "Unhealthy", corev1.ConditionFalse)
		w.tries(node)
		w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(4, 4, 0))
	}
	if cut.Hits() < rounds {
		w.t.Errorf("%d responses were lost: the test proves nothing", cut.Hits())
	}
	if lost := value(w.t, w.scrape(controller), `autohealer_remediations_total{outcome="lost",policy="`+check.Name+`",policy_kind="NodeHealthCheck"}`); lost != 0 {
		w.t.Errorf("%v remediations are counted as lost, but the controller deleted them", lost)
	}
}
