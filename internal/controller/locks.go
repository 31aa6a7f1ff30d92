package controller

import (
	"time"

	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// leaseDuration is how long the controller takes a node's maintenance Lease at a
	// time.
	leaseDuration = 10 * time.Minute
	// maxWork is how long a remediator may work on a node without a timeout, so that
	// other holders get the Lease eventually.
	maxWork = 3 * leaseDuration
)

// leaseTask returns the next task for the node's Lease, or for the annotation that
// confirms its health. Without a task it returns when there may be one.
func (l *loop) leaseTask(now time.Time, b *nodeTreatments, p *nodeState, plan triage.Plan) (e *task, due time.Time) {
	if l.checks.deferring && !l.isTreated(b, p) {
		return nil, time.Time{} // the other controller handles the Lease
	}
	by, until, held := nodelease.Held(b.lease, now)
	if held && !nodelease.IsHealthCheck(by) {
		return nil, until.Add(time.Microsecond) // the holder may renew it; at exactly this time it is still held
	}
	if holder, until := l.wantsLease(now, b, p, plan.Treatment); now.Before(until) {
		if !nodelease.NeedsRenewal(b.lease, holder, leaseDuration, now) {
			return nil, earliest(nodelease.RenewAt(b.lease), until)
		}
		return &task{kind: takeLease, node: p.node, lease: nodelease.Take(b.lease, p.node, holder, leaseDuration, now)}, time.Time{}
	}
	switch isPlanned := plan.Treatment != nil && l.usesRemediationObject(b, p, plan.Treatment.Rule); {
	case isPlanned && !l.isTreated(b, p):
		return nil, time.Time{} // the Lease is taken with the treatment
	case b.granted.Object != "": // the treatment may still arrive
		return nil, time.Time{}
	case b.lease != nil && b.lease.Spec.HolderIdentity != nil && nodelease.IsHealthCheck(*b.lease.Spec.HolderIdentity):
		return &task{kind: releaseLease, node: p.node, lease: b.lease}, time.Time{}
	case !l.isTreated(b, p) && isConfirmed(p.node) && !l.namesTreatmentRule(plan.Findings):
		return &task{kind: clearConfirmation, node: p.node}, time.Time{}
	}
	return nil, time.Time{}
}

// wantsLease returns for which holder and until when to hold the Lease: while a
// remediator may work on the node. Before the Lease ends, the object is annotated as
// timed out. If that fails, the Lease is held for a while longer, but not forever.
func (l *loop) wantsLease(now time.Time, b *nodeTreatments, p *nodeState, t *triage.PlannedTreatment) (by string, until time.Time) {
	for _, o := range l.ownObjects(b, p) {
		works := l.worksUntil(o, t)
		if isTold := o.TimedOut || o.Succeeded || !isOf(t, o) || !t.HealthySince.IsZero(); !isTold && !now.Before(works) {
			works = o.Created.Add(l.timeoutOf(o) + 2*maxWork)
		}
		if works.After(until) {
			by, until = holder(o.Owner), works
		}
	}
	return by, until
}

// worksUntil returns until when a remediator may work on the node: until its timeout,
// even if the next step is delayed. If the node is healthy again and only a delay or a
// confirmation is left, it is maxWork after that.
func (l *loop) worksUntil(o remediationObject, t *triage.PlannedTreatment) time.Time {
	switch timeout := l.timeoutOf(o); {
	case isOf(t, o) && t.Reason.Code == triage.Exhausted:
		return time.Time{}
	case isOf(t, o) && !t.HealthySince.IsZero():
		return t.HealthySince.Add(maxWork)
	case timeout > 0:
		return o.Created.Add(timeout)
	default:
		return o.Created.Add(maxWork)
	}
}

// isOf reports whether the object belongs to the planned treatment.
func isOf(t *triage.PlannedTreatment, o remediationObject) bool {
	return t != nil && t.Rule == ruleOf(o.Object)
}

// timeoutOf returns the timeout of the object's step, zero for none.
func (l *loop) timeoutOf(o remediationObject) time.Duration {
	c := l.policyOf(ruleOf(o.Object))
	if c == nil {
		return 0
	}
	step, ok := o.Step(c.ladder)
	if !ok || step >= len(c.rule.Response.Ladder) {
		return 0
	}
	return c.rule.Response.Ladder[step].Timeout
}
