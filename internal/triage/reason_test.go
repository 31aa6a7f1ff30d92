package triage_test

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Users know policies, taints and treatments. The word "rule" is internal to the core.
func TestReasonsSpeakOfPolicies(t *testing.T) {
	for code, want := range map[triage.Code]string{
		triage.Deselected: "Kind/a: the policy no longer selects this node, ",
		triage.RuleGone:   "Kind/a: the policy no longer exists, ",
		triage.Recovered:  "Kind/a: the node has recovered, ",
		triage.NodeGone:   "Kind/a: the node is gone, ",
	} {
		for taint, want := range map[bool]string{true: want + "the taint is removed", false: want + "the treatment ends"} {
			reason := triage.Reason{Code: code, Rule: triage.RuleID{Kind: "Kind", Name: "a"}, Taint: taint}
			if got := reason.String(); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		}
	}
}

// The reason for an Unknown condition repeats the reason that its reporter gave.
func TestUnclearSaysWhyAConditionIsUnknown(t *testing.T) {
	const rest = ", which this policy does not match: existing responses stay, nothing new starts"
	for told, want := range map[string]string{
		"":                           "ConditionSet/a: Disk is Unknown" + rest,
		"NodeStatusUnknown":          "ConditionSet/a: Disk is Unknown (NodeStatusUnknown)" + rest,
		triage.AgentSilent:           "ConditionSet/a: Disk is Unknown (AgentSilent: the node's agent has stopped reporting)" + rest,
		strings.Repeat("page", 9999): "ConditionSet/a: Disk is Unknown" + rest,
	} {
		reason := triage.Reason{Code: triage.Unclear, Rule: triage.RuleID{Kind: policykind.ConditionSet, Name: "a"}, Condition: "Disk", Other: told}
		if got := reason.String(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
