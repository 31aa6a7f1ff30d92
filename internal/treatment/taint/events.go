package taint

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// reportArrived reports the change whose answer never came, if a newer version of the node has it.
func (wr *nodeWrite) reportArrived(now time.Time) {
	changes, node := wr.unanswered, wr.node.Object
	if len(changes) == 0 || changes[0].Node.ResourceVersion == node.ResourceVersion {
		return // none, or one may still arrive
	}
	wr.unanswered = nil
	if i := slices.IndexFunc(changes, func(c *treat.Change) bool { return c.IsOn(node) }); i >= 0 {
		wr.reportChange(now, changes[i])
	}
}

// reportChange publishes Events, logs and metrics for a change.
func (wr *nodeWrite) reportChange(now time.Time, change *treat.Change) {
	host, metrics, node := wr.writer.host, wr.writer.metrics, wr.node.Object
	reported := map[triage.RuleID]bool{}
	for _, placed := range change.Placed {
		reported[placed.Rule] = true
		if placed.Reason.Code != triage.FellBack { // the refused taint may have been the stronger one
			delete(wr.reportedRefusals, placed.Rule)
		}
		policy := policykind.PolicyOf(placed.Rule)
		metrics.placed.WithLabelValues(policy.Kind, policy.Name, placed.Effect.String()).Inc()
		if !wr.dueSince.IsZero() {
			host.PolicyMetrics().ObserveStart(placed.Rule, now.Sub(wr.dueSince))
		}
		host.Logger().Info("taint placed", "node", node.Name, "key", placed.Key, "effect", placed.Effect.String(), "reason", placed.Reason.String())
		event := treat.Event{Node: node, Policy: host.About(placed.Rule, node).Policy, Reason: placed.Reason}
		if slices.Contains(change.Again, placed.Rule) {
			event.Message = "another client had removed the taint, and it is placed again"
		}
		host.Event(event)
	}
	wr.dueSince = time.Time{}
	for _, removed := range change.Removed {
		if !reported[removed.Rule] {
			delete(wr.reportedRefusals, removed.Rule)
		}
		policy := policykind.PolicyOf(removed.Rule)
		metrics.removed.WithLabelValues(policy.Kind, policy.Name, removed.Effect.String()).Inc()
		about := host.About(removed.Rule, node)
		if about.Policy == nil {
			host.Retire(now, removed.Rule)
		}
		host.Logger().Info("taint removed", "node", node.Name, "key", removed.Key, "effect", removed.Effect.String(), "reason", removed.Reason.String())
		if reported[removed.Rule] {
			continue // replaced by another taint, reported above
		}
		event := treat.Event{Node: node, Policy: about.Policy, Reason: removed.Reason}
		if about.Problem != "" {
			event.EventReason, event.Failure = treat.NotAccepted, "its taint is removed, because "+about.Problem
		}
		host.Event(event)
	}
}

// reportRefusal reports a write that the API server rejected, once while the reason is
// the same.
func (wr *nodeWrite) reportRefusal(now time.Time, reason triage.Reason, rule triage.RuleID, message string) {
	last := wr.reportedRefusals[rule]
	if !last.IsNews(now, message) {
		return
	}
	if wr.reportedRefusals == nil {
		wr.reportedRefusals = map[triage.RuleID]engine.ReportedRefusal{}
	}
	wr.reportedRefusals[rule] = last
	host, node := wr.writer.host, wr.node.Object
	if host.LogsRefusal(now) {
		host.Logger().Error("write refused", "node", node.Name, "rule", rule.String(), "err", message)
	}
	host.Event(treat.Event{Node: node, Policy: host.About(rule, node).Policy, Reason: reason, Failure: message})
}
