package nodeclaim

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
)

// Report reports what the task has done.
func (w *Work) Report(now time.Time, r *engine.TaskResult) {
	switch w.Does {
	case TerminateClaim:
		w.reportTerminated(now, r)
	case ForceTermination:
		w.reportForced(now, r)
	default:
		w.reportCancelled(now, r)
	}
}

// reportTerminated reports a deleted claim.
func (w *Work) reportTerminated(now time.Time, r *engine.TaskResult) {
	nc, t := w.claims, r.Task
	how, _ := nc.policy.Termination(t.Rule)
	waited := time.Duration(-1)
	if due := r.NodeTasks.MarkStarted(); !due.IsZero() {
		waited = now.Sub(due)
	}
	claim := &nodeClaim{NodeClaim: w.Claim}
	nc.policy.Terminated(now, claim, t, "terminated", waited)
	what, message := treat.NodeRepaired, fmt.Sprintf("NodeClaim %s %s", w.Claim.Name, terminationMessage[how.Mode])
	// An earlier deadline on the claim stays.
	if deadline := cmp.Or(w.Mark.Deadline, w.Claim.Annotations[karpenter.TerminationTimestampAnnotation]); deadline != "" && how.Mode == v1alpha1.Graceful {
		message += ", and those that are left at " + deadline + " are ended by force"
	}
	if !how.IsReadyTimeout {
		message = "Deleting " + message
	} else {
		what = treat.ReadyTimeoutRecovery
		message = fmt.Sprintf("Node failed to become ready within %v, triggering recovery: deleting %s%s", how.ReadyTimeout, message, startupTaintsMessage(karpenter.StartupTaints(t.Node, w.Claim)))
	}
	nc.host.Logger().Info("node terminated", "node", r.NodeTasks.Node, "nodeClaim", w.Claim.Name, "nodePool", claim.Pool(), "mode", string(how.Mode), "reason", t.Reason.String())
	nc.host.PublishEvent(t.Rule, t.Node, what, t.Reason, message, claim.Reference())
}

// reportForced reports a claim whose drain was ended.
func (w *Work) reportForced(now time.Time, r *engine.TaskResult) {
	nc, t, claim := w.claims, r.Task, &nodeClaim{NodeClaim: w.Claim}
	nc.policy.Terminated(now, claim, t, "forced", -1)
	nc.host.Logger().Info("drain ended by force", "node", r.NodeTasks.Node, "nodeClaim", w.Claim.Name, "reason", t.Reason.String())
	why := "termination was changed to Forceful"
	if w.isOfOthers(t) {
		why = "its node is unhealthy and the policy terminates by force; another client has deleted it"
	}
	nc.host.PublishEvent(t.Rule, t.Node, treat.NodeRepaired, t.Reason, "Ending the drain of NodeClaim "+w.Claim.Name+" by force, because "+why, claim.Reference())
}

// startupTaintsMessage names the startup taints that are left. Once the node is gone, users cannot
// look up which daemon did not remove its taint.
func startupTaintsMessage(taints []corev1.Taint) string {
	if len(taints) == 0 {
		return ""
	}
	var keys []string
	for _, taint := range taints {
		keys = append(keys, taint.Key)
	}
	return "; still on it: " + strings.Join(keys, ", ")
}

var terminationMessage = map[v1alpha1.Termination]string{
	v1alpha1.Forceful: "by force, without draining its pods",
	v1alpha1.Graceful: "gracefully, its pods are drained first",
}

// reportCancelled reports a claim whose mark was removed.
func (w *Work) reportCancelled(now time.Time, r *engine.TaskResult) {
	nc, t, claim := w.claims, r.Task, &nodeClaim{NodeClaim: w.Claim}
	nc.policy.Terminated(now, claim, t, "cancelled", -1)
	nc.host.Logger().Info("termination cancelled", "node", r.NodeTasks.Node, "nodeClaim", w.Claim.Name, "reason", t.Reason.String())
	nc.host.PublishEvent(t.Rule, t.Node, treat.TerminationCancelled, t.Reason, "NodeClaim "+w.Claim.Name+" is not deleted: its termination was cancelled", claim.Reference())
}
