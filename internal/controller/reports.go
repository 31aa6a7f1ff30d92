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

// heedErrand takes in what became of an errand.
func (l *loop) heedErrand(r *errandReport) {
	now, b, e := time.Now(), r.bed, r.errand
	l.nursing--
	b.stage = idle
	l.cfg.Metrics.wrote(e.task.resource(), r.fate)
	switch {
	case r.isLeased && r.lease == nil:
		b.lease = nil
	case r.isLeased:
		b.findLease(r.lease)
	}
	if (e.task == begin || e.task == terminate) && r.fate != treat.Made && r.fate != treat.Unsure { // which cannot arrive
		b.sent = r.sentFirst
	}
	if e.claim != nil {
		l.takeClaim(now, r)
	}
	if r.object != nil {
		l.takeMade(now, r, remediation.Read(r.object))
	}
	b.missed = nil
	switch r.fate {
	case treat.Made:
		delete(b.setbacks, e.task)
		l.done(now, r)
	case treat.Stale:
		l.outdated(now, r)
	case treat.Refused:
		l.denied(now, r)
	case treat.Busy, treat.Unsure:
		l.putOff(now, r)
	}
	l.attend(now, b.node)
	l.restateBed(now, b)
}

// takeMade takes over an object that was made, or was there already.
func (l *loop) takeMade(now time.Time, r *errandReport, o remediation.Object) {
	b := r.bed
	wasKnown, isGone := b.missed[o.UID] // the watch was faster, and told of its end too
	if o.Node == b.node && !wasKnown {  // others have a bed of their own
		l.findObject(b, o)
		if isGone {
			l.loseObject(now, b, objectKey(o))
		}
	}
	if r.isCreated {
		return
	}
	if o.Node != b.node || ruleOf(o) != r.errand.rule {
		r.fate, r.err = treat.Refused, errors.New(objectKey(o)+" is there already, and was not made for this node and policy")
	} else if c := l.careOf(r.errand.rule); c != nil {
		if step, _ := o.Step(c.ladder); step != r.errand.step {
			r.fate, r.err = treat.Refused, fmt.Errorf("%s is there already, and was made for step %d, not for step %d", objectKey(o), step+1, r.errand.step+1)
		}
	}
}

// done tells of an errand that was run, and takes over what it changed without
// waiting for a watch to tell.
func (l *loop) done(now time.Time, r *errandReport) {
	b, e := r.bed, r.errand
	switch e.task {
	case begin:
		l.begun(now, r)
	case end:
		l.ended(now, r)
	case unlock:
		if b.lease != nil && b.lease.UID == e.lease.UID {
			b.lease = nil
		}
	case unconfirm:
		l.unconfirmed(now, b, e, r.version)
	case note:
		l.noted(b, e, r.version)
		if _, isOver := e.notes[remediation.TimedOutAnnotation]; isOver {
			l.cfg.Metrics.treated(e.rule, e.reason.Condition, "timed_out")
		}
		l.cfg.Logger.Info("remediation noted", "node", b.node, "object", objectKey(e.object), "reason", e.reason.String())
	case terminate:
		l.terminated(now, r)
	case spare:
		l.spared(now, r)
	case lock:
	}
}

// unconfirmed takes over a node without the annotation that was taken off it.
func (l *loop) unconfirmed(now time.Time, b *bed, e *errand, version string) {
	after := e.node.DeepCopy()
	after.ResourceVersion = version
	delete(after.Annotations, remediation.ConfirmedAnnotation)
	if p := l.patients[b.node]; p != nil && older(p.node, after) {
		l.core.Observe(now, l.learn(after, now))
	}
}

// noted takes over what was written on an object.
func (l *loop) noted(b *bed, e *errand, version string) {
	o, there := b.objects[objectKey(e.object)]
	if !there || o.UID != e.object.UID || !olderVersion(o.ResourceVersion, version) {
		return
	}
	o.Object = o.Noted(e.notes, version)
	b.objects[objectKey(e.object)] = o
}

// begun tells of a treatment that has begun.
func (l *loop) begun(now time.Time, r *errandReport) {
	b, e := r.bed, r.errand
	if !r.isCreated { // it was there: an answer was lost
		return
	}
	b.complaint = complaint{}
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

// ended tells of an object that was deleted. If a finalizer keeps it, it is there
// still, and the watch will tell when it is not.
func (l *loop) ended(now time.Time, r *errandReport) {
	b, e := r.bed, r.errand
	key := objectKey(e.object)
	if o, there := b.objects[key]; there && o.UID == e.object.UID {
		o.ended = true
		b.objects[key] = o
	}
	outcome, isOver := endings[e.reason.Code]
	if !isOver {
		outcome = "called_off"
	}
	l.cfg.Metrics.treated(e.rule, e.reason.Condition, outcome)
	if e.reason.Code == triage.Recovered {
		l.cfg.Metrics.recoveredAfter(e.rule, now.Sub(e.object.Created))
	}
	if l.careOf(e.rule) == nil {
		l.retire(now, e.rule)
	}
	l.cfg.Logger.Info("remediation ended", "node", b.node, "rule", e.rule.String(), "object", key, "reason", e.reason.String())
	l.announceOf(e.rule, e.node, treat.RemediationRemoved, e.reason, "deleted "+key)
}

// endings are the outcomes of treatments, by why they were ended.
var endings = map[triage.Code]string{
	triage.Recovered: "recovered", triage.Deselected: "deselected", triage.RuleGone: "check_gone", triage.NodeGone: "node_gone",
}

// outdated takes over what has turned out to be otherwise than it was known.
func (l *loop) outdated(now time.Time, r *errandReport) {
	switch p := l.patients[r.bed.node]; {
	case r.fresh != nil && p == nil:
		r.err = errors.New("the node is there, and has not been seen yet") // or no longer, if that is known better
		l.putOff(now, r)
	case r.missing || r.fresh != nil:
		l.takeFresh(now, r)
	case r.claim != nil || r.isGone || r.isOff: // which is known now
	case r.isLeased && (r.lease == nil || r.lease.ResourceVersion != r.errand.lease.ResourceVersion): // which is known now
	default: // the watch will tell, or it is a refusal in disguise
		if r.err == nil {
			r.err = errors.New("the node's Lease is as it was, and the API server says that it has changed")
		}
		l.putOff(now, r)
	}
}

// takeFresh takes over a node that was read afresh.
func (l *loop) takeFresh(now time.Time, r *errandReport) {
	p := l.patients[r.bed.node]
	switch {
	case p == nil:
	case r.missing && r.errand.node != nil && p.node.UID == r.errand.node.UID:
		l.forget(now, p)
	case r.fresh != nil && older(p.node, r.fresh):
		l.core.Observe(now, l.learn(nodewatch.Trim(r.fresh), now))
	}
}

// setBack notes that an errand has failed once more, for how long it is put off, and
// whether that is news. Refusals are counted by themselves: an API server that has just
// come back refuses for a moment what it could not be asked before, many times over.
func (b *bed) setBack(now time.Time, r *errandReport) (wait time.Duration, isNews bool) {
	if b.setbacks == nil {
		b.setbacks = map[task]setback{}
	}
	s := b.setbacks[r.errand.task]
	isNews = s.meets(r.fate, r.err)
	if r.fate == treat.Refused {
		s.refusals++
		wait = growing(s.refusals, firstRefusedRetry, lastRefusedRetry)
	} else {
		wait = backOff(s.tries)
	}
	s.notBefore = now.Add(wait)
	b.setbacks[r.errand.task] = s
	return wait, isNews
}

// putOff has an errand tried again later, later with every failure.
func (l *loop) putOff(now time.Time, r *errandReport) {
	b := r.bed
	wait, isNews := b.setBack(now, r)
	if isNews && l.putOffs.names(now) {
		l.cfg.Logger.Warn("treatment put off", "node", b.node, "task", r.errand.task.String(), "retryIn", wait.String(), "err", r.err)
	}
}

// denied gives the place back of a treatment that the server does not let begin, and
// says so. The others go on.
func (l *loop) denied(now time.Time, r *errandReport) {
	b, e := r.bed, r.errand
	wait, _ := b.setBack(now, r)
	isPlace := e.task == begin || e.task == terminate && !e.isMarked() && r.claim == nil
	if isPlace && l.mayArrive(now, b).IsZero() { // else an earlier one may take the place yet
		b.giveBack()
		l.core.Abandon(now, b.node, e.rule, wait)
	}
	words := fmt.Sprintf("%s: %v", e.task.failed(), r.err)
	if b.complaint.words == words && now.Sub(b.complaint.at) < complainEvery {
		return
	}
	b.complaint = complaint{words, now}
	if l.refusals.names(now) {
		l.cfg.Logger.Error("write refused", "node", b.node, "rule", e.rule.String(), "err", words)
	}
	what := treat.RemediationSkipped
	if e.claim != nil {
		what = treat.RepairBlocked
	}
	l.announceOf(e.rule, e.node, what, e.reason, words)
}
