package controller

import (
	"time"

	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// leaseDuration is for how long a node is locked at a time against other tools
	// of maintenance.
	leaseDuration = 10 * time.Minute
	// maxWork is for how long a remediator may work on a node where no timeout
	// says it: who waits for such a node must have it at some time.
	maxWork = 3 * leaseDuration
)

// leaseTask returns what is to be done about the lock on a node, and about the
// annotation by which somebody has confirmed its health, or when there may be.
func (l *loop) leaseTask(now time.Time, b *nodeTreatments, p *nodeState, plan triage.Plan) (e *task, due time.Time) {
	if l.checks.deferring && !l.isTreated(b, p) {
		return nil, time.Time{} // who locks it for a health check is another controller
	}
	by, until, held := nodelease.Held(b.lease, now)
	if held && !nodelease.IsHealthCheck(by) {
		return nil, until.Add(time.Microsecond) // which may be put off; at that very time it is held still
	}
	if holder, until := l.wantsLease(now, b, p, plan.Treatment); now.Before(until) {
		if !nodelease.NeedsRenewal(b.lease, holder, leaseDuration, now) {
			return nil, earliest(nodelease.RenewAt(b.lease), until)
		}
		return &task{kind: takeLease, node: p.node, lease: nodelease.Take(b.lease, p.node, holder, leaseDuration, now)}, time.Time{}
	}
	switch isPlanned := plan.Treatment != nil && l.usesRemediationObject(b, p, plan.Treatment.Rule); {
	case isPlanned && !l.isTreated(b, p):
		return nil, time.Time{} // it is locked with the treatment
	case b.granted.Object != "": // it may still arrive
		return nil, time.Time{}
	case b.lease != nil && b.lease.Spec.HolderIdentity != nil && nodelease.IsHealthCheck(*b.lease.Spec.HolderIdentity):
		return &task{kind: releaseLease, node: p.node, lease: b.lease}, time.Time{}
	case !l.isTreated(b, p) && isConfirmed(p.node) && !l.namesTreatmentRule(plan.Findings):
		return &task{kind: clearConfirmation, node: p.node}, time.Time{}
	}
	return nil, time.Time{}
}

// wantsLease says for whom a node is to be locked, and until when: while something of
// a health check is there that may be at work. Whose time is up is told so first. Where
// that cannot be, it is locked for a while longer, and not for ever.
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

// worksUntil says until when a remediator may be at work on the node: until its
// timeout, also if what comes next is held back; and when the node is healthy again
// and only a delay or somebody's word is waited for, for no longer than if there was
// no timeout.
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

// isOf says whether a treatment is planned, and the object is one of it.
func isOf(t *triage.PlannedTreatment, o remediationObject) bool {
	return t != nil && t.Rule == ruleOf(o.Object)
}

// timeoutOf returns the timeout of the step that an object is of, zero for none.
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
