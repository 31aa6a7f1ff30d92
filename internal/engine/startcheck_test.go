package engine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

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
		e := w.wantTask("a", createRemediation)
		asks := func() bool {
			answer := make(chan bool, 1)
			w.tasks.queueStartRequest(startRequest{node: "a", rule: e.Rule, step: e.Step, answer: answer})
			w.runRound()
			w.tasks.answerStartRequests()
			return <-answer
		}
		arrives := func(name string, sick corev1.ConditionStatus) {
			node := w.nodeStates[name].Object.DeepCopy()
			node.ResourceVersion = w.nextVersion()
			node.Status.Conditions[0].Status = sick
			must(t, w.nodeInbox.Update(node))
		}
		r := w.tasks.startTask(w.nodeStates["a"].observedAt, w.tasks.lanes["a"], e)
		if !asks() {
			t.Error("the gate is open, and the treatment may not begin")
		}
		for _, name := range []string{"b", "c", "d"} {
			arrives(name, corev1.ConditionTrue)
		}
		if asks() {
			t.Error("the gate is closed, and the treatment may begin")
		}
		r.Learned, r.Outcome = true, treat.Stale
		w.tasks.handleResult(r)
		w.runRound()
		if e, _ := w.next("a"); e != nil && e.Kind == createRemediation || w.finding("a") != triage.GateClosed {
			t.Errorf("next is %+v, because of %s", e, w.finding("a"))
		}
		if treatments := w.tasks.lanes["a"]; treatments != nil && len(treatments.failures) > 0 {
			t.Errorf("it is put off: %v", treatments.failures)
		}
		for _, name := range []string{"b", "c", "d"} {
			arrives(name, corev1.ConditionFalse)
		}
		w.runRound()
		w.wantTask("a", createRemediation)
	}, oneAtATime)
}
