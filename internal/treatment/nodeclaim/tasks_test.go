package nodeclaim

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The mark sets the deadline that Karpenter reads.
func TestTheDeadlineOfATermination(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	forceful := machine.Termination{Mode: v1alpha1.Forceful}
	graceful := machine.Termination{Mode: v1alpha1.Graceful}
	bounded := machine.Termination{Mode: v1alpha1.Graceful, GracePeriod: new(5 * time.Minute)}
	atOnce := machine.Termination{Mode: v1alpha1.Graceful, GracePeriod: new(time.Duration(0))}
	for name, test := range map[string]struct {
		how              machine.Termination
		stands           string
		deadline, before string
	}{
		"by force":                            {forceful, "", "2026-01-02T03:04:05Z", ""},
		"gracefully":                          {graceful, "", "", ""},
		"gracefully, for a while":             {bounded, "", "2026-01-02T03:09:05Z", ""},
		"gracefully, for no time":             {atOnce, "", "2026-01-02T03:04:05Z", ""},
		"a later one is tightened":            {bounded, "2026-01-02T04:00:00Z", "2026-01-02T03:09:05Z", "2026-01-02T04:00:00Z"},
		"an earlier one stays":                {bounded, "2026-01-02T03:05:00Z", "", ""},
		"one that cannot be read is no other": {bounded, "soon", "2026-01-02T03:09:05Z", "soon"},
		"gracefully, with one that stands":    {graceful, "2026-01-02T03:05:00Z", "", ""},
	} {
		c := &karpenter.NodeClaim{}
		if test.stands != "" {
			c.Annotations = map[string]string{karpenter.TerminationTimestampAnnotation: test.stands}
		}
		planned := &triage.PlannedTreatment{Rule: triage.RuleID{Kind: policykind.Repair, Name: "NodePool/default"}, Since: now.Add(-time.Second)}
		mark := markFor(enginetest.Named("a", "1"), c, planned, test.how, now)
		if mark.Deadline != test.deadline || mark.Before != test.before || !mark.Since.Equal(planned.Since) || mark.Node != "a" {
			t.Errorf("%s: the mark is %+v", name, mark)
		}
	}
}
