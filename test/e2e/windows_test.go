package e2e

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// halfADay returns a schedule whose next hit is in about half a day, and that hit.
func halfADay() (schedule string, hit time.Time) {
	hit = time.Now().UTC().Truncate(time.Hour).Add(12 * time.Hour)
	return fmt.Sprintf("0 %d * * *", hit.Hour()), hit
}

// testWindow closes the window of a set. Nodes get NoSchedule until an edit opens the window.
func testWindow(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	schedule, opens := halfADay()
	w.createSet("night", evict(everyone), func(s *v1alpha1.ConditionSetSpec) {
		s.Windows = []v1alpha1.Window{{Schedule: schedule, Duration: "1h"}}
	})
	w.makeUnhealthy(nodes[:2])
	w.counts(w.key("night"), 0, 2)
	why := fmt.Sprintf("instead of NoExecute: outside the window %s for 1h, continues at %s", schedule, opens.Format(time.RFC3339))
	w.hasStatus("night", saysOf(nodes[0], "FellBack", why))
	w.hasStatus("night", hasCondition(v1alpha1.HeldBack, metav1.ConditionTrue, "FellBack", why))
	w.editSet("night", func(s *v1alpha1.ConditionSetSpec) {
		s.Windows = append(s.Windows, v1alpha1.Window{Schedule: "* * * * *", TimeZone: "Europe/Berlin", Duration: "1h"})
	})
	w.counts(w.key("night"), 2, 0)
	// A window that closes removes no taint.
	w.editSet("night", func(s *v1alpha1.ConditionSetSpec) { s.Windows = s.Windows[:1] })
	w.hasStatus("night", isFollowed) // the controller receives sets and nodes independently of each other
	w.setCondition(nodes[2], "Unhealthy", corev1.ConditionTrue)
	w.counts(w.key("night"), 2, 1)
	w.editSet("night", func(s *v1alpha1.ConditionSetSpec) { s.Windows = nil })
	w.counts(w.key("night"), 3, 0)
}

// testCheckWindow closes the window of a health check by an annotation.
func testCheckWindow(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 5})
	schedule, opens := halfADay()
	w.check("check")
	annotate := func(windows string) {
		check := &remediationv1alpha1.NodeHealthCheck{}
		w.update("check", check, func() { metav1.SetMetaDataAnnotation(&check.ObjectMeta, v1alpha1.WindowsAnnotation, windows) })
	}
	annotate(schedule + " for 1h in UTC")
	w.hasCheckStatus("check", counted(5, 5, 0))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[0], "OutsideWindow", "outside the window "+schedule+" for 1h, continues at "+opens.Format(time.RFC3339)), counted(5, 4, 0))
	testkit.Must(w.t, w.triesNow(nodes[0]))
	// An invalid annotation changes nothing.
	annotate("at night")
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled, "metadata.annotations[autohealer.resourcestack.com/windows]", "the last accepted version stays in force"), condition(remediationv1alpha1.Ready, metav1.ConditionFalse, "Invalid"), row(nodes[0], "OutsideWindow"))
	testkit.Must(w.t, w.triesNow(nodes[0]))
	annotate("* * * * * for 1h")
	w.tries(nodes[0], "quick")
}

// testCheckSwitches changes the annotations of a health check while a node is unhealthy.
func testCheckSwitches(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	schedule, _ := halfADay()
	closed := schedule + " for 1h in UTC"
	check := w.healthCheck("check", onSign("Unhealthy=True", "0s"))
	check.Annotations = map[string]string{v1alpha1.ModeAnnotation: "Observe"}
	testkit.Must(w.t, w.api.Create(w.t.Context(), check))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	for _, is := range []struct {
		annotations  map[string]string
		mode, reason string
		words        string
	}{
		{check.Annotations, "Observe", "DryRun", "dry run"},
		{map[string]string{v1alpha1.ModeAnnotation: "Watch"}, "Enforce", "OnHold", `"Watch": want Enforce or Observe`},
		{map[string]string{v1alpha1.WindowsAnnotation: closed}, "Enforce", "OutsideWindow", schedule},
		{map[string]string{v1alpha1.WindowsAnnotation: closed, v1alpha1.UrgentAnnotation: w.name + "-quick"}, "Enforce", "Treating", ""},
	} {
		w.update("check", check, func() { check.Annotations = is.annotations })
		w.hasCheckStatus("check", row(nodes[0], is.reason, is.words), func(s remediationv1alpha1.NodeHealthCheckStatus) error {
			if s.Mode != is.mode {
				return fmt.Errorf("the mode is %s, not %s", s.Mode, is.mode)
			}
			return nil
		})
		if is.reason != "Treating" {
			testkit.Must(w.t, w.triesNow(nodes[0]))
		}
	}
	w.tries(nodes[0], "quick")
}
