package observe_test

import (
	"testing"
	"time"
	_ "time/tzdata" // the test does not depend on the time zones of the system

	autohealerv1alpha1 "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// annotated is a health check with the templates quick and slow, and these annotations.
func annotated(windows, urgent string) *v1alpha1.NodeHealthCheck {
	c := check(func(s *v1alpha1.NodeHealthCheckSpec) {
		s.EscalatingRemediations[0].RemediationTemplate.Name, s.EscalatingRemediations[1].RemediationTemplate.Name = "quick", "slow"
	})
	c.Annotations = map[string]string{}
	for key, text := range map[string]string{autohealerv1alpha1.WindowsAnnotation: windows, autohealerv1alpha1.UrgentAnnotation: urgent} {
		if text != "" {
			c.Annotations[key] = text
		}
	}
	return c
}

// A health check has windows in annotations, because its spec is that of medik8s.
func TestNodeHealthCheckWithWindows(t *testing.T) {
	const windows = "0 22 * * 1-5 for 4h in Europe/Berlin; 0 0 * * 6 for 48h"
	rule := testkit.Value(observe.NodeHealthCheck(annotated(windows, " slow "))).Must(t)
	testkit.Same(t, rule.Window.String(), windows, "the windows")
	if open, until := rule.Window.Open(time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC)); open || !until.Equal(time.Date(2026, 11, 18, 21, 0, 0, 0, time.UTC)) {
		t.Errorf("open is %t until %s", open, until)
	}
	urgent := map[bool]int{}
	for _, step := range rule.Response.Ladder {
		urgent[step.Urgent]++
	}
	testkit.Equal(t, "urgent steps", map[bool]int{true: 1, false: 1}, urgent)

	const windowsPath, urgentPath = "metadata.annotations[autohealer.resourcestack.com/windows]", "metadata.annotations[autohealer.resourcestack.com/urgent]"
	for _, test := range []struct{ windows, urgent, field, value, says string }{
		{"every night", "", windowsPath, "every night", `for example "0 22 * * 1-5 for 4h in Europe/Berlin"`},
		{"0 0 * * * for 1h; 0 0 30 2 * for 4h", "", windowsPath + "[1].schedule", "0 0 30 2 *", "never comes"},
		{"0 0 * * * for 1h in Bielefeld", "", windowsPath + "[0].timeZone", "Bielefeld", "UTC or Europe/Berlin"},
		{"0 0 * * * for 0s", "", windowsPath + "[0].duration", "0s", "more than zero"},
		{windows, "slow, fast", urgentPath, "fast", "separated by commas: quick, slow"},
	} {
		rule, err := observe.NodeHealthCheck(annotated(test.windows, test.urgent))
		refuses(t, rule, err, test.field, test.value, test.says)
	}
}
