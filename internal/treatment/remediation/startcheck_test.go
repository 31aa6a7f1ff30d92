package remediation

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The loop answers with the newest watch events, even if no round has taken them in yet.
func TestTheFinalCheckUsesTheNewestFacts(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		for _, name := range []string{"b", "c", "d"} {
			w.node(name, corev1.ConditionFalse)
		}
		w.node("a", corev1.ConditionTrue)
		e := w.WantTask("a", CreateRemediation)
		asks := func() bool { return w.MayStart(t.Context(), e) }
		arrives := func(name string, sick corev1.ConditionStatus) {
			node := w.Node(name).Object.DeepCopy()
			node.ResourceVersion = w.nextVersion()
			node.Status.Conditions[0].Status = sick
			testkit.Must(t, w.NodeInbox().Update(node))
		}
		r := w.Start(time.Now(), "a", e)
		testkit.Check(t, asks(), "the gate is open, and the treatment may not begin")
		for _, name := range []string{"b", "c", "d"} {
			arrives(name, corev1.ConditionTrue)
		}
		testkit.Check(t, !asks(), "the gate is closed, and the treatment may begin")
		r.Learned, r.Outcome = true, treat.Stale
		w.Finish(r)
		w.runRound()
		if e, _ := w.Next("a"); e != nil && e.Kind == CreateRemediation || w.finding("a") != triage.GateClosed {
			t.Errorf("next is %+v, because of %s", e, w.finding("a"))
		}
		if message := w.Explain("a", ""); message != "" {
			t.Errorf("it is put off: %s", message)
		}
		for _, name := range []string{"b", "c", "d"} {
			arrives(name, corev1.ConditionFalse)
		}
		w.runRound()
		w.WantTask("a", CreateRemediation)
	}, oneAtATime)
}
