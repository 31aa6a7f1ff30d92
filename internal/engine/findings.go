package engine

import (
	"context"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

// CounterRetention is how long counters of a deleted policy stay: a few times the usual
// scrape interval.
const CounterRetention = 15 * time.Minute

// Retire schedules the deletion of the counters of a deleted policy. Users look at the
// growth of counters, and every scraper has seen the last value by then. If a counter
// comes back because a taint was stuck on a node, it starts at zero.
func (l *Engine) Retire(now time.Time, rule triage.RuleID) {
	if l.retiredRules == nil {
		l.retiredRules = map[triage.RuleID]time.Time{}
	}
	l.retiredRules[rule] = now.Add(CounterRetention)
}

// Revive cancels Retire, because the policy exists again.
func (l *Engine) Revive(rule triage.RuleID) { delete(l.retiredRules, rule) }

// forgetRetired deletes counters that are due, and returns when the next ones are.
func (l *Engine) forgetRetired(now time.Time) (due time.Time) {
	for rule, at := range l.retiredRules {
		if now.Before(at) {
			due = times.Earliest(due, at)
			continue
		}
		l.forgetCounters(rule)
		delete(l.retiredRules, rule)
	}
	return due
}

// forgetCounters deletes the counters of a rule: those of its policy, or of the NodeWriter.
func (l *Engine) forgetCounters(rule triage.RuleID) {
	l.cfg.Metrics.Policies.forgetCounters(rule)
	for p := range implementing[CounterKeeper](l.policies) {
		if p.ForgetCounters(rule) {
			return
		}
	}
	l.nodeWriter.ForgetCounters(rule)
}

// findingsOf returns the findings of a rule by node, and the mark that the status of its
// policy is stale. Both are nil if the policy is gone.
func (l *Engine) findingsOf(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	for _, p := range l.policies {
		if nodes, stale = p.Findings(rule); stale != nil {
			return nodes, stale
		}
	}
	return nil, nil
}

// noteFindings stores the findings for a node with their policies.
func (l *Engine) noteFindings(now time.Time, state *Node, findings []triage.Reason) {
	if len(state.findings) == 0 && len(findings) == 0 {
		return
	}
	name := state.Object.Name
	for _, was := range state.findings {
		if nodes, stale := l.findingsOf(was.Rule); stale != nil && !slices.ContainsFunc(findings, func(is triage.Reason) bool { return is.Rule == was.Rule }) {
			delete(nodes, name)
			*stale = true
		}
	}
	for _, is := range findings {
		if nodes, stale := l.findingsOf(is.Rule); stale != nil && nodes[name] != is {
			nodes[name] = is
			*stale = true
		}
	}
	state.findings = findings
	l.statuses.Schedule(now)
}

// MarkStatusesStale marks the statuses of the node's policies as stale, because the node or
// a write to it has changed while the findings have not.
func (l *Engine) MarkStatusesStale(now time.Time, state *Node) {
	for _, finding := range state.findings {
		l.MarkStatusStale(now, finding.Rule)
	}
}

// MarkStatusStale marks the status of a rule's policy as stale.
func (l *Engine) MarkStatusStale(now time.Time, rule triage.RuleID) {
	if _, stale := l.findingsOf(rule); stale != nil {
		*stale = true
		l.statuses.Schedule(now)
	}
}

// writeStatuses updates the statuses, and returns when to check again.
func (l *Engine) writeStatuses(ctx context.Context, now time.Time) (due time.Time) {
	return l.statuses.Check(now, func() {
		for _, p := range l.policies {
			p.WriteStatuses(ctx, now)
		}
	})
}

// CurrentReason returns the current finding of the rule for the node, because the numbers
// in a stored reason may be outdated.
func (l *Engine) CurrentReason(node string, reason triage.Reason) triage.Reason {
	plan, _ := l.core.Plan(node)
	for _, finding := range plan.Findings {
		if finding.Rule == reason.Rule {
			return finding
		}
	}
	return reason
}
