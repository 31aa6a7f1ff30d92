package remediation

import (
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/times"
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
// confirms its health. Without a task it returns when there may be a task.
func (rm *Treatment) leaseTask(now time.Time, nodeTasks *engine.NodeTasks, n *nodeObjects, state *engine.Node, plan triage.Plan) (t *engine.Task, due time.Time) {
	if slices.ContainsFunc(rm.requesters, Requester.IsDeferring) && !rm.isTreated(n, state) {
		return nil, time.Time{} // the other controller handles the Lease
	}
	lease := rm.leaseOf(nodeTasks.Node)
	by, until, held := nodelease.Held(lease, now)
	if held && !nodelease.IsHealthCheck(by) {
		return nil, until.Add(time.Microsecond) // the holder may renew it; at exactly this time it is still held
	}
	if holder, until := rm.wantedLease(now, n, state, plan.Treatment); now.Before(until) {
		if !nodelease.NeedsRenewal(lease, holder, leaseDuration, now) {
			return nil, times.Earliest(nodelease.RenewAt(lease), until)
		}
		return rm.task(TakeLease, state.Object, triage.RuleID{}, triage.Reason{}, Work{Lease: nodelease.Take(lease, state.Object, holder, leaseDuration, now)}), time.Time{}
	}
	switch isPlanned := plan.Treatment != nil && rm.treats(n, state, plan.Treatment.Rule); {
	case isPlanned && !rm.isTreated(n, state):
		return nil, time.Time{} // the Lease is taken with the treatment
	case nodeTasks.HasSlot(): // the treatment may still arrive
		return nil, time.Time{}
	case lease != nil && lease.Spec.HolderIdentity != nil && nodelease.IsHealthCheck(*lease.Spec.HolderIdentity):
		return rm.task(ReleaseLease, state.Object, triage.RuleID{}, triage.Reason{}, Work{Lease: lease}), time.Time{}
	case !rm.isTreated(n, state) && isConfirmed(state.Object) && !rm.namesTreatmentRule(plan.Findings):
		return rm.task(ClearConfirmation, state.Object, triage.RuleID{}, triage.Reason{}, Work{}), time.Time{}
	}
	return nil, time.Time{}
}

// wantedLease returns for which holder and until when to hold the Lease: while a
// remediator may work on the node. Before the Lease ends, the object is annotated as
// timed out. If that fails, the Lease is held for a while longer, but not forever.
func (rm *Treatment) wantedLease(now time.Time, n *nodeObjects, state *engine.Node, planned *triage.PlannedTreatment) (by string, until time.Time) {
	for _, o := range rm.ownObjects(n, state) {
		works := rm.mayWorkUntil(o, planned)
		if isReported := o.TimedOut || o.Succeeded || !isPartOf(planned, o) || !planned.HealthySince.IsZero(); !isReported && !now.Before(works) {
			works = o.Created.Add(rm.timeoutOf(o) + 2*maxWork)
		}
		if works.After(until) {
			by, until = holder(o.rule), works
		}
	}
	return by, until
}

// mayWorkUntil returns until when a remediator may work on the node: until its timeout,
// even if the next step is delayed. If the node is healthy again and only a delay or a
// confirmation is left, it is maxWork after that.
func (rm *Treatment) mayWorkUntil(o remediationObject, planned *triage.PlannedTreatment) time.Time {
	switch timeout := rm.timeoutOf(o); {
	case isPartOf(planned, o) && planned.Reason.Code == triage.Exhausted:
		return time.Time{}
	case isPartOf(planned, o) && !planned.HealthySince.IsZero():
		return planned.HealthySince.Add(maxWork)
	case timeout > 0:
		return o.Created.Add(timeout)
	default:
		return o.Created.Add(maxWork)
	}
}

// isPartOf reports whether the object belongs to the planned treatment.
func isPartOf(planned *triage.PlannedTreatment, o remediationObject) bool {
	return planned != nil && planned.Rule == o.rule
}

// timeoutOf returns the timeout of the object's step, zero for none.
func (rm *Treatment) timeoutOf(o remediationObject) time.Duration {
	c := rm.request(o.rule)
	if c == nil {
		return 0
	}
	step, ok := o.Step(c.Ladder)
	if !ok || step >= len(c.Rule.Response.Ladder) {
		return 0
	}
	return c.Rule.Response.Ladder[step].Timeout
}
