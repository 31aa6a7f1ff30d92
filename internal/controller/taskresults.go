package controller

import (
	"errors"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// handleTaskResult takes in the result of a task.
func (l *loop) handleTaskResult(r *taskResult) {
	now, b, e := time.Now(), r.treatments, r.task
	l.tasksRunning--
	b.stage = idle
	l.cfg.Metrics.wrote(e.kind.resource(), r.result)
	switch {
	case r.isLeased && r.lease == nil:
		b.lease = nil
	case r.isLeased:
		b.upsertLease(r.lease)
	}
	if (e.kind == createRemediation || e.kind == terminateClaim) && r.result != treat.Made && r.result != treat.Unknown { // the write cannot succeed any more
		b.sent = r.sentFirst
	}
	if e.claim != nil {
		l.takeClaim(now, r)
	}
	if r.object != nil {
		l.handleCreated(now, r, remediation.Read(r.object))
	}
	b.goneMeanwhile = nil
	switch r.result {
	case treat.Made:
		delete(b.failures, e.kind)
		l.taskDone(now, r)
	case treat.Stale:
		l.handleStale(now, r)
	case treat.Refused:
		l.handleRefused(now, r)
	case treat.Busy, treat.Unknown:
		l.retryTaskLater(now, r)
	}
	l.reobserve(now, b.node)
	l.restateTreatments(now, b)
}

// handleCreated stores an object that the task created or found.
func (l *loop) handleCreated(now time.Time, r *taskResult, o remediation.Object) {
	b := r.treatments
	wasKnown, isGone := b.goneMeanwhile[o.UID] // the watch has reported its creation and deletion already
	if o.Node == b.node && !wasKnown {         // an object of another node belongs there
		l.upsertObject(b, o)
		if isGone {
			l.objectDeleted(now, b, objectKey(o))
		}
	}
	if r.isCreated {
		return
	}
	if o.Node != b.node || ruleOf(o) != r.task.rule {
		r.result, r.err = treat.Refused, errors.New(objectKey(o)+" is there already, and was not made for this node and policy")
	} else if c := l.policyOf(r.task.rule); c != nil {
		if step, _ := o.Step(c.ladder); step != r.task.step {
			r.result, r.err = treat.Refused, fmt.Errorf("%s is there already, and was made for step %d, not for step %d", objectKey(o), step+1, r.task.step+1)
		}
	}
}

// taskDone reports a finished task and stores its changes without waiting for the watch.
func (l *loop) taskDone(now time.Time, r *taskResult) {
	b, e := r.treatments, r.task
	switch e.kind {
	case createRemediation:
		l.remediationCreated(now, r)
	case deleteRemediation:
		l.remediationDeleted(now, r)
	case releaseLease:
		if b.lease != nil && b.lease.UID == e.lease.UID {
			b.lease = nil
		}
	case clearConfirmation:
		l.confirmationCleared(now, b, e, r.version)
	case annotateRemediation:
		l.annotated(b, e, r.version)
		if _, isOver := e.annotations[remediation.TimedOutAnnotation]; isOver {
			l.cfg.Metrics.treated(e.rule, e.reason.Condition, "timed_out")
		}
		l.cfg.Logger.Info("remediation noted", "node", b.node, "object", objectKey(e.object), "reason", e.reason.String())
	case terminateClaim:
		l.terminated(now, r)
	case cancelTermination:
		l.terminationCancelled(now, r)
	case takeLease:
	}
}

// confirmationCleared stores the node without the removed annotation.
func (l *loop) confirmationCleared(now time.Time, b *nodeTreatments, e *task, version string) {
	after := e.node.DeepCopy()
	after.ResourceVersion = version
	delete(after.Annotations, remediation.ConfirmedAnnotation)
	if p := l.nodeStates[b.node]; p != nil && older(p.node, after) {
		l.core.Observe(now, l.upsertNode(after, now))
	}
}

// annotated stores the new annotations of an object.
func (l *loop) annotated(b *nodeTreatments, e *task, version string) {
	o, there := b.objects[objectKey(e.object)]
	if !there || o.UID != e.object.UID || !olderVersion(o.ResourceVersion, version) {
		return
	}
	o.Object = o.Noted(e.annotations, version)
	b.objects[objectKey(e.object)] = o
}

// remediationCreated reports a started treatment.
func (l *loop) remediationCreated(now time.Time, r *taskResult) {
	b, e := r.treatments, r.task
	if !r.isCreated { // it existed: an earlier answer was lost
		return
	}
	b.refusalReported = reportedRefusal{}
	outcome := "begun"
	if e.step > 0 {
		outcome = "escalated"
	}
	l.cfg.Metrics.treated(e.rule, e.reason.Condition, outcome)
	if !b.wanted.IsZero() {
		l.cfg.Metrics.begunAfter(e.rule, now.Sub(b.wanted))
		b.wanted = time.Time{}
	}
	object := objectKey(remediation.Read(r.object))
	l.cfg.Logger.Info("remediation begun", "node", b.node, "rule", e.rule.String(), "object", object, "reason", e.reason.String())
	l.announceOf(e.rule, e.node, treat.RemediationCreated, e.reason, "made "+object)
}

// remediationDeleted reports a deleted object. A finalizer may still keep the object; the
// watch reports its end.
func (l *loop) remediationDeleted(now time.Time, r *taskResult) {
	b, e := r.treatments, r.task
	key := objectKey(e.object)
	if o, there := b.objects[key]; there && o.UID == e.object.UID {
		o.ended = true
		b.objects[key] = o
	}
	outcome, isOver := deletionReasons[e.reason.Code]
	if !isOver {
		outcome = "called_off"
	}
	l.cfg.Metrics.treated(e.rule, e.reason.Condition, outcome)
	if e.reason.Code == triage.Recovered {
		l.cfg.Metrics.recoveredAfter(e.rule, now.Sub(e.object.Created))
	}
	if l.policyOf(e.rule) == nil {
		l.retire(now, e.rule)
	}
	l.cfg.Logger.Info("remediation ended", "node", b.node, "rule", e.rule.String(), "object", key, "reason", e.reason.String())
	l.announceOf(e.rule, e.node, treat.RemediationRemoved, e.reason, "deleted "+key)
}

// deletionReasons maps the reason for ending a treatment to its outcome in metrics.
var deletionReasons = map[triage.Code]string{
	triage.Recovered: "recovered", triage.Deselected: "deselected", triage.RuleGone: "check_gone", triage.NodeGone: "node_gone",
}

// handleStale handles a task that found an object changed.
func (l *loop) handleStale(now time.Time, r *taskResult) {
	switch p := l.nodeStates[r.treatments.node]; {
	case r.fresh != nil && p == nil:
		r.err = errors.New("the node is there, and has not been seen yet") // or the node is gone, if the loop knows more
		l.retryTaskLater(now, r)
	case r.missing || r.fresh != nil:
		l.takeFreshNode(now, r)
	case r.claim != nil || r.isGone || r.calledOff: // the loop knows now
	case r.isLeased && (r.lease == nil || r.lease.ResourceVersion != r.task.lease.ResourceVersion): // the loop knows now
	default: // the watch will report the change, or an admission webhook denied the write with a conflict
		if r.err == nil {
			r.err = errors.New("the node's Lease is as it was, and the API server says that it has changed")
		}
		l.retryTaskLater(now, r)
	}
}

// takeFreshNode stores a node that was read directly.
func (l *loop) takeFreshNode(now time.Time, r *taskResult) {
	p := l.nodeStates[r.treatments.node]
	switch {
	case p == nil:
	case r.missing && r.task.node != nil && p.node.UID == r.task.node.UID:
		l.removeNode(now, p)
	case r.fresh != nil && older(p.node, r.fresh):
		l.core.Observe(now, l.upsertNode(nodewatch.Trim(r.fresh), now))
	}
}

// taskFailed records a failure of the task. It returns the delay before the retry and
// whether the failure is new. Refusals have a counter of their own, because an API server
// that has just restarted rejects many requests for a moment.
func (b *nodeTreatments) taskFailed(now time.Time, r *taskResult) (wait time.Duration, isNews bool) {
	if b.failures == nil {
		b.failures = map[taskKind]taskFailure{}
	}
	s := b.failures[r.task.kind]
	isNews = s.add(r.result, r.err)
	if r.result == treat.Refused {
		s.refusals++
		wait = growing(s.refusals, firstRefusedRetry, lastRefusedRetry)
	} else {
		wait = backOff(s.tries)
	}
	s.notBefore = now.Add(wait)
	b.failures[r.task.kind] = s
	return wait, isNews
}

// retryTaskLater delays the retry of a task, longer with every failure.
func (l *loop) retryTaskLater(now time.Time, r *taskResult) {
	b := r.treatments
	wait, isNews := b.taskFailed(now, r)
	if isNews && l.retryLog.allows(now) {
		l.cfg.Logger.Warn("treatment put off", "node", b.node, "task", r.task.kind.String(), "retryIn", wait.String(), "err", r.err)
	}
}

// handleRefused frees the slot of a treatment that the API server rejected, and reports
// the rejection. Other treatments continue.
func (l *loop) handleRefused(now time.Time, r *taskResult) {
	b, e := r.treatments, r.task
	wait, _ := b.taskFailed(now, r)
	isPlace := e.kind == createRemediation || e.kind == terminateClaim && !e.isMarked() && r.claim == nil
	if isPlace && l.inFlightUntil(now, b).IsZero() { // otherwise an earlier write may still take the slot
		b.releaseSlot()
		l.core.Abandon(now, b.node, e.rule, wait)
	}
	words := fmt.Sprintf("%s: %v", e.kind.failed(), r.err)
	if b.refusalReported.words == words && now.Sub(b.refusalReported.at) < reportRefusalEvery {
		return
	}
	b.refusalReported = reportedRefusal{words, now}
	if l.refusalLog.allows(now) {
		l.cfg.Logger.Error("write refused", "node", b.node, "rule", e.rule.String(), "err", words)
	}
	what := treat.RemediationSkipped
	if e.claim != nil {
		what = treat.RepairBlocked
	}
	l.announceOf(e.rule, e.node, what, e.reason, words)
}
