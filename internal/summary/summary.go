// Package summary counts the nodes of a policy by state, and says in one sentence what the
// policy does with them and what it waits for. Statuses, printer columns and metrics use the
// same counts. The states of a policy do not overlap: every selected node has one.
package summary

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// Removed is the state of nodes that are deleted and not replaced yet. The other states are
// the names of codes.
const Removed = "Removed"

// Nodes counts the nodes of a policy. The zero value has none.
type Nodes struct {
	Selected int
	Removed  int // deleted and not replaced yet
	groups   map[triage.Code]*group
}

// group is the nodes with one code. The example is the node that is due first.
type group struct {
	count int
	node  string
	triage.Reason
}

// Add counts an unhealthy node.
func (n *Nodes) Add(node string, reason triage.Reason) {
	g := n.groups[reason.Code]
	if g == nil {
		if n.groups == nil {
			n.groups = map[triage.Code]*group{}
		}
		g = &group{}
		n.groups[reason.Code] = g
	}
	if g.count == 0 || cmp.Or(reason.Eligible.Compare(g.Eligible), cmp.Compare(node, g.node)) < 0 {
		g.node, g.Reason = node, reason
	}
	g.count++
}

// Merge adds the nodes of another rule of the same policy.
func (n *Nodes) Merge(other *Nodes) {
	n.Selected += other.Selected
	n.Removed += other.Removed
	for code, g := range other.groups {
		n.Add(g.node, g.Reason)
		n.groups[code].count += g.count - 1
	}
}

// Count returns how many nodes have one of the codes.
func (n *Nodes) Count(is func(triage.Code) bool) (count int) {
	for code, g := range n.groups {
		if is(code) {
			count += g.count
		}
	}
	return count
}

// States returns the number of nodes by state. States without nodes are missing, except
// Healthy.
func (n *Nodes) States() map[string]int {
	states := map[string]int{triage.Healthy.String(): max(0, n.Selected-n.Count(isSelected))}
	for code, g := range n.groups {
		states[code.String()] = g.count
	}
	if n.Removed > 0 {
		states[Removed] = n.Removed
	}
	return states
}

// isSelected says whether the policy selects the nodes with a code.
func isSelected(code triage.Code) bool {
	return code != triage.Deselected && code != triage.RuleGone && code != triage.NodeGone
}

// order is the order of the codes in a sentence: first what needs a user.
var order = []triage.Code{
	triage.Exhausted, triage.GivenUp, triage.GateClosed, triage.CoolingDown, triage.OnHold, triage.NodePaused, triage.OutsideWindow, triage.Vetoed, triage.CapFull, triage.NotAllowed,
	triage.MaxInTreatment, triage.MaxUnschedulable, triage.MaxInTopology, triage.LastNode, triage.Paced, triage.CorrelatedFailed, triage.ControlPlaneBusy,
	triage.Busy, triage.Retrying, triage.Treating, triage.FellBack, triage.Tainted, triage.Kept, triage.Superseded, triage.Recovering, triage.DryRun,
	triage.Recovered, triage.Deselected, triage.RuleGone, triage.NodeGone, triage.Pending, triage.Unclear, triage.Partial,
}

// Sentence says what the policy does with its nodes. The numbers in a stored reason may be
// outdated, and current returns the current reason of a node.
func (n *Nodes) Sentence(current func(node string, reason triage.Reason) triage.Reason) string {
	var parts []string
	for _, code := range order {
		if g := n.groups[code]; g != nil {
			if now := current(g.node, g.Reason); now.Code == code {
				g.Reason = now
			}
			parts = append(parts, g.text())
		}
	}
	if n.Removed > 0 {
		parts = append(parts, nodes(n.Removed)+" gone and not replaced yet")
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, "; ")
	case n.Selected == 0:
		return "no node is selected"
	case n.Selected == 1:
		return "1 node, healthy"
	}
	return fmt.Sprintf("%d nodes, all healthy", n.Selected)
}

// text describes the nodes of a group.
func (g *group) text() string {
	n := nodes(g.count)
	switch g.Code {
	case triage.Exhausted:
		if g.count == 1 {
			return n + ": all remediations tried, needs attention"
		}
		return n + ": all remediations tried, need attention"
	case triage.GateClosed:
		counted := triage.Counts{Recovering: g.Recovering, Departed: g.Departed}
		text := fmt.Sprintf("%d of %d nodes %s, at most %d allowed", g.Have, g.Of, counted.GateUnhealthyText(), g.Limit)
		if g.Other == "" {
			return text + ": no new remediation starts"
		}
		return fmt.Sprintf("%s held by %s: %s; continues when no more than %d are", n, g.Other, text, g.Limit)
	case triage.Treating:
		return n + " in treatment"
	case triage.Tainted:
		return n + " tainted"
	case triage.FellBack:
		return n + " with NoSchedule instead of NoExecute: " + cmp.Or(g.Other, fmt.Sprintf("at most %d of %d nodes may have NoExecute", g.Limit, g.Of))
	case triage.Kept:
		return n + " tainted while the policy cannot be read"
	case triage.Superseded:
		return n + " with a stronger taint of another set"
	case triage.Recovering:
		if g.Until.IsZero() {
			return n + " healthy again, waits for confirmation"
		}
		return n + " healthy again, in treatment until " + clock(g.Since, g.Until)
	case triage.DryRun:
		if g.Key != "" {
			return "dry run: " + n + " would be tainted"
		}
		return "dry run: " + n + " would be treated"
	case triage.Recovered, triage.Deselected, triage.RuleGone, triage.NodeGone:
		return n + " " + map[triage.Code]string{
			triage.Recovered: "healthy again", triage.Deselected: "no longer selected", triage.RuleGone: "of a deleted policy", triage.NodeGone: "gone",
		}[g.Code] + ", being released"
	case triage.Pending:
		if g.count == 1 {
			return n + " unhealthy, due " + clock(g.Since, g.Until)
		}
		return n + " unhealthy, the first due " + clock(g.Since, g.Until)
	case triage.Unclear:
		return fmt.Sprintf("%s unclear: %s is Unknown", n, g.Condition)
	case triage.Partial:
		return n + " with some of the conditions"
	}
	reason := g.Reason
	reason.Condition = "" // the obstacle alone
	obstacle := strings.TrimPrefix(reason.Sentence(), "waits: ")
	if g.count == 1 {
		return n + " due: " + obstacle
	}
	return fmt.Sprintf("%s due; %s: %s", n, g.node, obstacle)
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// clock formats a time for a table. The date is left out if the wait is shorter than a day.
func clock(from, until time.Time) string {
	if until.Sub(from) < 24*time.Hour {
		return until.UTC().Format(time.TimeOnly)
	}
	return until.UTC().Format(time.RFC3339)
}
