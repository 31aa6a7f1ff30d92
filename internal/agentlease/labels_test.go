package agentlease

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/report"
)

// The agent and the controller share no code, so this test compares their labels.
func TestLabelMatchesTheLeasesOfAgents(t *testing.T) {
	if label != report.LeaseLabel || labelValue != report.LeaseLabelValue {
		t.Errorf("agents set %s=%s, but the controller selects %s=%s", report.LeaseLabel, report.LeaseLabelValue, label, labelValue)
	}
}
