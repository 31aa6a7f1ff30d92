package finding_test

import (
	"testing"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestChanged(t *testing.T) {
	for _, test := range []struct {
		before, now catalog.Status
		want        finding.Severity
	}{
		{catalog.False, catalog.True, finding.Warn},
		{catalog.Unknown, catalog.True, finding.Warn},
		{"", catalog.True, finding.Warn},
		{catalog.True, catalog.True, finding.Warn}, // for another reason
		{catalog.False, catalog.Unknown, finding.Warn},
		{catalog.True, catalog.Unknown, finding.Info},
		{catalog.Unknown, catalog.Unknown, finding.Info},
		{"", catalog.Unknown, finding.Info}, // the agent starts
		{catalog.True, catalog.False, finding.Info},
		{catalog.Unknown, catalog.False, finding.Info},
	} {
		c := finding.Condition{Type: "KernelDeadlock", Status: test.now, Reason: "TaskHung", Message: "it hangs"}
		testkit.Equal(t, "from "+string(test.before)+" to "+string(test.now), finding.Event{
			ID: "1", Severity: test.want, Time: at(2), Reason: "TaskHung", Condition: "KernelDeadlock",
			Message: "Node condition KernelDeadlock is now: " + string(test.now) + `, reason: TaskHung, message: "it hangs"`,
		}, c.Changed("1", test.before, at(2)))
	}
}
