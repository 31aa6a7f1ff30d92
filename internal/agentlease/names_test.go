package agentlease

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/report"
)

// Agents share no code with who listens to them.
func TestTheLeasesOfAgentsAreFoundByTheirLabel(t *testing.T) {
	if label != report.LeaseLabel || labelValue != report.LeaseLabelValue {
		t.Errorf("they have %s=%s, and those with %s=%s are looked for", report.LeaseLabel, report.LeaseLabelValue, label, labelValue)
	}
}
