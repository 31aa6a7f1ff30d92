package remediation

import (
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Report reports an object that the task has created or deleted.
func (w *Work) Report(now time.Time, r *engine.TaskResult) {
	switch {
	case w.Does == CreateRemediation && w.Existed && !r.IsRepeated: // an earlier leader has created it
	case w.Does == CreateRemediation:
		w.reportCreated(now, r)
	case w.Does == DeleteRemediation:
		w.reportDeleted(now, r)
	}
}

// reportCreated reports a started treatment.
func (w *Work) reportCreated(now time.Time, r *engine.TaskResult) {
	host, t := w.remediations.host, r.Task
	outcome := "begun"
	if t.Step > 0 {
		outcome = "escalated"
	}
	counts := w.remediations.requesterOf(t.Rule)
	counts.CountRemediation(t.Rule, t.Reason.Condition, outcome)
	if due := r.NodeTasks.MarkStarted(); !due.IsZero() {
		host.PolicyMetrics().ObserveStart(t.Rule, now.Sub(due))
	}
	object := refOf(remediation.Read(w.Create)).String()
	host.Logger().Info("remediation begun", "node", r.NodeTasks.Node, "rule", t.Rule.String(), "object", object, "reason", t.Reason.String())
	host.PublishEvent(t.Rule, t.Node, treat.RemediationCreated, t.Reason, "made "+object)
}

// reportDeleted reports a deleted object. A finalizer may still keep the object; the
// watch reports its end.
func (w *Work) reportDeleted(now time.Time, r *engine.TaskResult) {
	rm, t, object := w.remediations, r.Task, refOf(w.Object).String()
	outcome, isOver := deletionReasons[t.Reason.Code]
	if !isOver {
		outcome = "unwanted"
	}
	counts := rm.requesterOf(t.Rule)
	counts.CountRemediation(t.Rule, t.Reason.Condition, outcome)
	if t.Reason.Code == triage.Recovered {
		counts.ObserveRecovery(t.Rule, w.Object, now.Sub(w.Object.Created))
	}
	if rm.request(t.Rule) == nil {
		rm.host.Retire(now, t.Rule)
	}
	rm.host.Logger().Info("remediation ended", "node", r.NodeTasks.Node, "rule", t.Rule.String(), "object", object, "reason", t.Reason.String())
	rm.host.PublishEvent(t.Rule, t.Node, treat.RemediationRemoved, t.Reason, "deleted "+object)
}

// deletionReasons maps the reason for ending a treatment to its outcome in metrics.
var deletionReasons = map[triage.Code]string{
	triage.Recovered: "recovered", triage.Deselected: "deselected", triage.RuleGone: "check_gone", triage.NodeGone: "node_gone",
}
