package main

import (
	"strconv"
	"testing"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestProblemsOfDaemons(t *testing.T) {
	p := newProblems()
	p.count(finding.Report{
		Conditions: []finding.Condition{{Type: "DiskBadBlock", Status: catalog.True}, {Type: "FanBroken", Status: catalog.Unknown}},
		Events: []finding.Event{
			{Severity: finding.Warn, Reason: "SlowDisk"},
			{Severity: finding.Info, Reason: "DiskReplaced"},
			{Severity: finding.Warn, Reason: "BadBlocks", Condition: "DiskBadBlock"},
			{Severity: finding.Warn, Reason: "Silent", Condition: "FanBroken"}, // nothing is found
		},
	})
	testkit.Equal(t, "the problems", map[string]uint64{"SlowDisk": 1, "BadBlocks": 1}, p.sum())
	for i := range 2 * maxReported {
		p.count(finding.Report{Events: []finding.Event{{Severity: finding.Warn, Reason: "R" + strconv.Itoa(i)}}})
	}
	sum := p.sum()
	testkit.Check(t, len(sum) == maxReported+1 && sum[otherReason] == maxReported+2, "%d reasons, %d problems for other ones", len(sum), sum[otherReason])
}
