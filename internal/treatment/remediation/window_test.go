package remediation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A remediation waits for the window of its health check. A task that is about to create the object
// when the window closes does not create it. The windows are in an annotation, and a change of it
// does not change the generation.
func TestARemediationWaitsForItsWindow(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("a", corev1.ConditionTrue)
		w.WantNoTask("a")
		if is := w.reason("a"); is.Code != triage.OutsideWindow || !strings.HasSuffix(is.Sentence(), "outside the window 0 1 * * * for 1h, continues at 2000-01-01T01:00:00Z") {
			t.Errorf("the reason is %s", is)
		}
		enginetest.Pass(time.Hour)
		w.runRound()
		e := w.WantTask("a", CreateRemediation)
		r := w.Start(time.Now(), "a", e)
		enginetest.Pass(time.Hour - time.Nanosecond)
		testkit.Check(t, w.MayStart(t.Context(), e), "the window is open, and the remediation may not begin")
		enginetest.Pass(time.Nanosecond)
		testkit.Check(t, !w.MayStart(t.Context(), e), "the window is closed, and the remediation may begin")
		r.Learned, r.Outcome = true, treat.Stale
		w.Finish(r)
		w.runRound()
		testkit.Same(t, w.finding("a"), triage.OutsideWindow, "the reason after the window has closed")

		edited := w.check.DeepCopy()
		edited.Annotations = nil
		w.brings(edited)
		w.WantTask("a", CreateRemediation)
	}, func(c *remediationv1alpha1.NodeHealthCheck) {
		c.Annotations = map[string]string{v1alpha1.WindowsAnnotation: "0 1 * * * for 1h"}
	})
}
