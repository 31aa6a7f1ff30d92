package triage_test

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/triage"
)

// Users know sets and health checks. The word "rule" is internal to the core.
func TestReasonsUseTheNamesOfPolicies(t *testing.T) {
	for kind, want := range map[triage.Kind]struct{ deselected, gone, recovered, unclear string }{
		triage.ConditionSet: {
			"ConditionSet/a: the set no longer selects this node, the taint is taken back",
			"ConditionSet/a: there is no such set any more, the taint is taken back",
			"ConditionSet/a: the node has recovered, the taint is taken back",
			"ConditionSet/a: Disk is Unknown in a way that this set does not ask for: what stands stays, nothing starts",
		},
		triage.NodeHealthCheck: {
			"NodeHealthCheck/a: the health check no longer selects this node, the treatment is taken back",
			"NodeHealthCheck/a: there is no such health check any more, the treatment is taken back",
			"NodeHealthCheck/a: the node has recovered, the treatment is taken back",
			"NodeHealthCheck/a: Disk is Unknown in a way that this health check does not ask for: what stands stays, nothing starts",
		},
		triage.Repair: {
			"Repair/a: the repair policy no longer selects this node, the treatment is taken back",
			"Repair/a: there is no such repair policy any more, the treatment is taken back",
			"Repair/a: the node has recovered, the treatment is taken back",
			"Repair/a: Disk is Unknown in a way that this repair policy does not ask for: what stands stays, nothing starts",
		},
		triage.ReadyTimeout: {
			"ReadyTimeout/a: the ready timeout no longer selects this node, the treatment is taken back",
			"ReadyTimeout/a: there is no such ready timeout any more, the treatment is taken back",
			"ReadyTimeout/a: the node has recovered, the treatment is taken back",
			"ReadyTimeout/a: Disk is Unknown in a way that this ready timeout does not ask for: what stands stays, nothing starts",
		},
	} {
		for code, want := range map[triage.Code]string{
			triage.Deselected: want.deselected, triage.RuleGone: want.gone, triage.Recovered: want.recovered, triage.Unclear: want.unclear,
		} {
			reason := triage.Reason{Code: code, Rule: triage.RuleID{Kind: kind, Name: "a"}}
			if code == triage.Unclear {
				reason.Condition = "Disk"
			}
			if got := reason.String(); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		}
	}
}

// The reason for an Unknown condition repeats the reason that its reporter gave.
func TestUnclearSaysWhyAConditionIsUnknown(t *testing.T) {
	const rest = " in a way that this set does not ask for: what stands stays, nothing starts"
	for told, want := range map[string]string{
		"":                           "ConditionSet/a: Disk is Unknown" + rest,
		"NodeStatusUnknown":          "ConditionSet/a: Disk is Unknown (NodeStatusUnknown)" + rest,
		triage.AgentSilent:           "ConditionSet/a: Disk is Unknown (AgentSilent: the node's agent has stopped reporting)" + rest,
		strings.Repeat("page", 9999): "ConditionSet/a: Disk is Unknown" + rest,
	} {
		reason := triage.Reason{Code: triage.Unclear, Rule: triage.RuleID{Kind: triage.ConditionSet, Name: "a"}, Condition: "Disk", Other: told}
		if got := reason.String(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
