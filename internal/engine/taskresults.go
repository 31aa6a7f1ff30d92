package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// handleResult takes in the result of a task.
func (tr *taskRunner) handleResult(r *taskResult) {
	now, treatments, t := time.Now(), r.treatments, r.task
	tr.running--
	treatments.stage = idle
	tr.engine.cfg.Metrics.CountWrite(t.kind.resource(), r.result)
	if r.leaseKnown && r.lease == nil {
		treatments.lease = nil
	} else if r.leaseKnown {
		if _, isGone := treatments.deletedDuringTask[r.lease.UID]; !isGone {
			treatments.upsertLease(r.lease)
		}
	}
	if (t.kind == createRemediation || t.kind == terminateClaim) && r.result != treat.Made && r.result != treat.Unknown { // the write cannot succeed any more
		treatments.sentAt = r.previouslySentAt
	}
	if t.claim != nil {
		tr.engine.nodeClaims.takeResult(now, r)
	}
	if r.object != nil {
		tr.engine.remediations.handleCreated(now, r, remediation.Read(r.object))
	}
	treatments.deletedDuringTask = nil
	switch r.result {
	case treat.Made:
		delete(treatments.failures, t.kind)
		tr.done(now, r)
	case treat.Stale:
		tr.handleStale(now, r)
	case treat.Refused:
		tr.handleRefused(now, r)
	case treat.Busy, treat.Unknown:
		tr.retryLater(now, r)
	}
	tr.engine.reobserve(now, treatments.node)
	tr.engine.markTreatmentStatusesStale(now, treatments)
}

// handleCreated stores an object that the task created or found.
func (rm *remediations) handleCreated(now time.Time, r *taskResult, o remediation.Object) {
	treatments := r.treatments
	wasKnown, isGone := treatments.deletedDuringTask[o.UID] // the watch has reported its creation and deletion already
	if o.Node == treatments.node && !wasKnown {             // an object of another node belongs there
		rm.upsert(treatments, o)
		if isGone {
			rm.objectDeleted(now, treatments, refOf(o))
		}
	}
	if r.created {
		return
	}
	if o.Node != treatments.node || ruleOf(o) != r.task.rule {
		r.result, r.err = treat.Refused, errors.New(refOf(o).String()+" is there already, and was not made for this node and policy")
	} else if c := rm.policyOf(r.task.rule); c != nil {
		if step, _ := o.Step(c.ladder); step != r.task.step {
			r.result, r.err = treat.Refused, fmt.Errorf("%s is there already, and was made for step %d, not for step %d", refOf(o), step+1, r.task.step+1)
		}
	}
}

// done reports a finished task and stores its changes without waiting for the watch.
func (tr *taskRunner) done(now time.Time, r *taskResult) {
	treatments, t := r.treatments, r.task
	switch t.kind {
	case createRemediation:
		tr.engine.remediations.created(now, r)
	case deleteRemediation:
		tr.engine.remediations.deleted(now, r)
	case releaseLease:
		if treatments.lease != nil && treatments.lease.UID == t.lease.UID {
			treatments.lease = nil
		}
	case clearConfirmation:
		tr.engine.remediations.confirmationCleared(now, treatments, t, r.version)
	case annotateRemediation:
		tr.engine.remediations.annotated(treatments, t, r.version)
		if _, isOver := t.annotations[remediation.TimedOutAnnotation]; isOver {
			tr.engine.cfg.Metrics.countTreatment(t.rule, t.reason.Condition, "timed_out")
		}
		tr.engine.cfg.Logger.Info("remediation annotated", "node", treatments.node, "object", refOf(t.object).String(), "reason", t.reason.String())
	case terminateClaim:
		tr.engine.nodeClaims.terminated(now, r)
	case cancelTermination:
		tr.engine.nodeClaims.terminationCancelled(now, r)
	case takeLease:
	}
}

// confirmationCleared stores the node without the removed annotation.
func (rm *remediations) confirmationCleared(now time.Time, treatments *nodeTreatments, t *task, version string) {
	after := t.node.DeepCopy()
	after.ResourceVersion = version
	delete(after.Annotations, remediation.ConfirmedAnnotation)
	if state := rm.engine.nodeStates[treatments.node]; state != nil && older(state.Object, after) {
		rm.engine.core.Observe(now, rm.engine.upsertNode(after, now))
	}
}

// annotated stores the new annotations of an object.
func (rm *remediations) annotated(treatments *nodeTreatments, t *task, version string) {
	o, there := treatments.objects[refOf(t.object)]
	if !there || o.UID != t.object.UID || !olderVersion(o.ResourceVersion, version) {
		return
	}
	o.Object = o.Noted(t.annotations, version)
	treatments.objects[refOf(t.object)] = o
}

// created reports a started treatment.
func (rm *remediations) created(now time.Time, r *taskResult) {
	treatments, t := r.treatments, r.task
	if !r.created { // it existed: an earlier answer was lost
		return
	}
	treatments.refusalReported = reportedRefusal{}
	outcome := "begun"
	if t.step > 0 {
		outcome = "escalated"
	}
	rm.engine.cfg.Metrics.countTreatment(t.rule, t.reason.Condition, outcome)
	if !treatments.dueSince.IsZero() {
		rm.engine.cfg.Metrics.observeStart(t.rule, now.Sub(treatments.dueSince))
		treatments.dueSince = time.Time{}
	}
	object := refOf(remediation.Read(r.object)).String()
	rm.engine.cfg.Logger.Info("remediation begun", "node", treatments.node, "rule", t.rule.String(), "object", object, "reason", t.reason.String())
	rm.engine.publishEvent(t.rule, t.node, treat.RemediationCreated, t.reason, "made "+object)
}

// deleted reports a deleted object. A finalizer may still keep the object; the
// watch reports its end.
func (rm *remediations) deleted(now time.Time, r *taskResult) {
	treatments, t := r.treatments, r.task
	key := refOf(t.object)
	if o, there := treatments.objects[key]; there && o.UID == t.object.UID {
		o.deletedByUs = true
		treatments.objects[key] = o
	}
	outcome, isOver := deletionReasons[t.reason.Code]
	if !isOver {
		outcome = "called_off"
	}
	rm.engine.cfg.Metrics.countTreatment(t.rule, t.reason.Condition, outcome)
	if t.reason.Code == triage.Recovered {
		rm.engine.cfg.Metrics.observeRecovery(t.rule, now.Sub(t.object.Created))
	}
	if rm.policyOf(t.rule) == nil {
		rm.engine.Retire(now, t.rule)
	}
	rm.engine.cfg.Logger.Info("remediation ended", "node", treatments.node, "rule", t.rule.String(), "object", key.String(), "reason", t.reason.String())
	rm.engine.publishEvent(t.rule, t.node, treat.RemediationRemoved, t.reason, "deleted "+key.String())
}

// deletionReasons maps the reason for ending a treatment to its outcome in metrics.
var deletionReasons = map[triage.Code]string{
	triage.Recovered: "recovered", triage.Deselected: "deselected", triage.RuleGone: "check_gone", triage.NodeGone: "node_gone",
}

// handleStale handles a task that found an object changed.
func (tr *taskRunner) handleStale(now time.Time, r *taskResult) {
	switch state := tr.engine.nodeStates[r.treatments.node]; {
	case r.fresh != nil && state == nil:
		r.err = errors.New("the node exists, but the watch has not delivered it yet") // or the node is gone, if the loop knows more
		tr.retryLater(now, r)
	case r.missing || r.fresh != nil:
		tr.takeFreshNode(now, r)
	case r.claim != nil || r.claimGone || r.cancelled: // the loop knows now
	case r.leaseKnown && (r.lease == nil || r.lease.ResourceVersion != r.task.lease.ResourceVersion): // the loop knows now
	default: // the watch will report the change, or an admission webhook denied the write with a conflict
		if r.err == nil {
			r.err = errors.New("the API server answered with a conflict, but the node's Lease is unchanged")
		}
		tr.retryLater(now, r)
	}
}

// takeFreshNode stores a node that was read directly.
func (tr *taskRunner) takeFreshNode(now time.Time, r *taskResult) {
	state := tr.engine.nodeStates[r.treatments.node]
	switch {
	case state == nil:
	case r.missing && r.task.node != nil && state.Object.UID == r.task.node.UID:
		tr.engine.removeNode(now, state)
	case r.fresh != nil && older(state.Object, r.fresh):
		tr.engine.core.Observe(now, tr.engine.upsertNode(nodewatch.Trim(r.fresh), now))
	}
}

// taskFailed records a failure of the task. It returns the delay before the retry and
// whether the failure is new. Refusals have a counter of their own, because an API server
// that has just restarted rejects many requests for a moment.
func (treatments *nodeTreatments) taskFailed(now time.Time, r *taskResult) (wait time.Duration, isNews bool) {
	if treatments.failures == nil {
		treatments.failures = map[taskKind]taskFailure{}
	}
	s := treatments.failures[r.task.kind]
	isNews = s.Add(r.result, r.err)
	if r.result == treat.Refused {
		s.refusals++
		wait = growingDelay(s.refusals, firstRefusedRetry, lastRefusedRetry)
	} else {
		wait = RetryDelay(s.Tries)
	}
	s.notBefore = now.Add(wait)
	treatments.failures[r.task.kind] = s
	return wait, isNews
}

// retryLater delays the retry of a task, longer with every failure.
func (tr *taskRunner) retryLater(now time.Time, r *taskResult) {
	treatments := r.treatments
	wait, isNews := treatments.taskFailed(now, r)
	if isNews && tr.engine.retryLog.allows(now) {
		tr.engine.cfg.Logger.Warn("treatment delayed", "node", treatments.node, "task", r.task.kind.String(), "retryIn", wait.String(), "err", r.err)
	}
}

// handleRefused frees the slot of a treatment that the API server rejected, and reports
// the rejection. Other treatments continue.
func (tr *taskRunner) handleRefused(now time.Time, r *taskResult) {
	treatments, t := r.treatments, r.task
	wait, _ := treatments.taskFailed(now, r)
	isPlace := t.kind == createRemediation || t.kind == terminateClaim && !t.isMarked() && r.claim == nil
	if isPlace && tr.inFlightUntil(now, treatments).IsZero() { // otherwise an earlier write may still take the slot
		treatments.releaseSlot()
		tr.engine.core.Abandon(now, treatments.node, t.rule, wait)
	}
	message := fmt.Sprintf("%s: %v", t.kind.failureMessage(), r.err)
	if treatments.refusalReported.message == message && now.Sub(treatments.refusalReported.at) < ReportRefusalEvery {
		return
	}
	treatments.refusalReported = reportedRefusal{message, now}
	if tr.engine.refusalLog.allows(now) {
		tr.engine.cfg.Logger.Error("write refused", "node", treatments.node, "rule", t.rule.String(), "err", message)
	}
	what := treat.RemediationSkipped
	if t.claim != nil {
		what = treat.RepairBlocked
	}
	tr.engine.publishEvent(t.rule, t.node, what, t.reason, message)
}
