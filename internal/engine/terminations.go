package engine

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The controller terminates a node with two writes: it marks the NodeClaim and then
// deletes exactly the marked version. Before that the ledger names the claim, until the
// slot of the deleted node is free or has an entry of its own. So the ledger or the mark
// always tells the next leader.

// nextTermination returns the next task for the claim of a node, or when there may be
// one.
func (nc *nodeClaims) nextTermination(now time.Time, treatments *nodeTreatments, state *Node, plan triage.Plan) (t *task, due time.Time) {
	c, _ := nc.claimOf(state.Object)
	if c != nil && c.mark != nil && c.mark.NodeUID != state.Object.UID && !c.isEnding() { // the mark was for an earlier node with this claim
		rule := triage.RuleID(c.mark.Rule)
		return &task{kind: cancelTermination, rule: rule, reason: triage.Reason{Code: triage.NodeGone, Rule: rule}, node: state.Object, claim: c.NodeClaim, mark: *c.mark}, time.Time{}
	}
	for _, reason := range plan.Release {
		switch rule := reason.Rule; {
		case !isRepair(rule) || len(treatments.objectsOf(rule)) > 0:
		case c != nil && c.isMarkedBy(rule, state.Object) && c.isEnding(): // a deletion cannot be cancelled
		case state.isOutlivingClaim(now) && triage.RuleID(state.outlivedClaim.mark.Rule) == rule: // the claim is deleted already
			due = times.Earliest(due, state.outlivedClaim.until)
		case c != nil && c.isMarkedBy(rule, state.Object):
			return &task{kind: cancelTermination, rule: rule, reason: reason, node: state.Object, claim: c.NodeClaim, mark: *c.mark}, time.Time{}
		default:
			due = times.Earliest(due, nc.engine.tasks.releaseSlot(now, treatments, rule))
		}
	}
	planned := plan.Treatment
	if planned != nil && isRepair(planned.Rule) && c == nil && state.isOutlivingClaim(now) {
		due = times.Earliest(due, state.outlivedClaim.until)
	}
	if planned == nil || !isRepair(planned.Rule) || c == nil || c.isEnding() {
		return nil, due
	}
	followed := nc.engine.repairs.followed[planned.Rule]
	if followed == nil || c.mark != nil && !c.isMarkedBy(planned.Rule, state.Object) {
		return nil, due
	}
	if c.mark != nil {
		if message := nc.vetoOnTermination(now, state, c, followed); message != "" {
			reason := triage.Reason{Code: triage.Vetoed, Rule: planned.Rule, Other: message}
			return &task{kind: cancelTermination, rule: planned.Rule, reason: reason, node: state.Object, claim: c.NodeClaim, mark: *c.mark}, time.Time{}
		}
	}
	treatments.noteDue(now, state)
	t = &task{kind: terminateClaim, rule: planned.Rule, reason: planned.Reason, node: state.Object, claim: c.NodeClaim, pool: followed.rule.Bound.Pool, step: planned.Step, since: planned.Since}
	if c.mark == nil {
		t.mark = markFor(t, followed.spec, now)
	}
	return t, due
}

// vetoOnTermination returns why a marked claim must not be deleted, empty if it may. The
// mark may be old if its deletion was not sent or failed, and much may have changed
// since. The core does not check again, because for the core the termination is running.
func (nc *nodeClaims) vetoOnTermination(now time.Time, state *Node, c *nodeClaim, r *repairRule) string {
	switch {
	case state.terminationVeto != "":
		return state.terminationVeto
	case r.rule.Hold != "":
		return r.rule.Hold
	case nc.engine.isOverBound(r.rule.ID):
		return "more nodes are in repair than the bound allows now"
	case r.pool == "":
		return ""
	}
	count := nc.engine.repairs.countsWithout(r.pool, c)
	if allowed, _ := nc.engine.repairs.disruptionAllowance(now, r.rule.ID, r.pool, &count); allowed != nil && allowed.Places < 1 {
		return allowed.Words
	}
	return ""
}

// markFor returns the mark for a claim before its deletion. Forceful termination does not
// wait for pods. Otherwise Karpenter drains the node, at most as long as the policy says.
// An earlier deadline stays.
func markFor(t *task, spec *v1alpha1.RepairSpec, now time.Time) ownership.Mark {
	mark := ownership.Mark{Rule: ownership.Rule(t.rule), Node: t.node.Name, NodeUID: t.node.UID, Since: t.since.UTC()}
	var deadline time.Time
	switch {
	case modeOf(spec) == v1alpha1.Forceful:
		deadline = now
	case spec.TerminationGracePeriod != "":
		if grace, err := time.ParseDuration(spec.TerminationGracePeriod); err == nil { // it was validated
			deadline = now.Add(grace)
		}
	}
	before := t.claim.Annotations[karpenter.TerminationTimestampAnnotation]
	if at, err := time.Parse(time.RFC3339, before); deadline.IsZero() || err == nil && !deadline.Before(at) {
		return mark
	}
	mark.Deadline, mark.Before = treat.Deadline(deadline), before
	return mark
}

// modeOf returns how nodes are terminated.
func modeOf(spec *v1alpha1.RepairSpec) v1alpha1.Termination {
	if spec == nil || spec.Termination == "" {
		return v1alpha1.Forceful
	}
	return spec.Termination
}

// isMarked reports whether the claim of the task has its mark already.
func (t *task) isMarked() bool { return t.mark.Node == "" }

// runTerminateClaim checks the node again, marks its claim, and deletes it. Both writes
// carry the claim's version, so a concurrent change of the claim is seen first.
func (tr *taskRunner) runTerminateClaim(ctx context.Context, r *taskResult) error {
	t := r.task
	if isStill, err := tr.isAsKnown(ctx, r); err != nil || !isStill {
		return err
	}
	claim := t.claim
	if !t.isMarked() {
		marked, err := tr.engine.write.MarkClaim(ctx, claim, t.mark)
		if err != nil {
			return tr.fetchClaim(ctx, r, claim, err)
		}
		claim, r.claim = marked, marked
	}
	if err := tr.engine.write.DeleteClaim(ctx, claim); err != nil {
		return tr.fetchClaim(ctx, r, claim, err)
	}
	r.claimDeleted = true
	return nil
}

// runCancelTermination removes the mark from a claim.
func (tr *taskRunner) runCancelTermination(ctx context.Context, r *taskResult) error {
	updated, err := tr.engine.write.UnmarkClaim(ctx, r.task.claim, r.task.mark)
	if err != nil {
		return tr.fetchClaim(ctx, r, r.task.claim, err)
	}
	r.claim = updated
	return nil
}

// fetchClaim reads a claim that has changed, so that the loop can decide again. If the
// claim is unchanged, the write was rejected for another reason.
func (tr *taskRunner) fetchClaim(ctx context.Context, r *taskResult, sent *karpenter.NodeClaim, err error) error {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, failed := tr.engine.write.FetchClaim(ctx, r.task.claim.Name)
	if failed != nil {
		return failed
	}
	if current != nil && current.UID == sent.UID && current.ResourceVersion == sent.ResourceVersion { // some admission webhooks deny with a conflict
		r.result = treat.Refused
		return err
	}
	r.claim, r.claimGone, r.result = current, current == nil, treat.Stale
	return nil
}

// takeResult stores a claim that a task has written or read.
func (nc *nodeClaims) takeResult(now time.Time, r *taskResult) {
	current := func() *nodeClaim {
		if c := nc.byName[r.task.claim.Name]; c != nil && c.UID == r.task.claim.UID {
			return c
		}
		return nil // gone already
	}
	switch c := current(); {
	case c != nil && r.claim != nil:
		nc.upsert(now, r.claim)
	case c != nil && r.claimGone:
		nc.claimDeleted(now, c)
	}
	if c := current(); c != nil && r.claimDeleted {
		c.deletedByUs = true
		nc.engine.repairs.recountClaim(c)
	}
	nc.reobserveDirty(now)
}

// isOverAllowance checks, before a slot is taken for good, whether too many nodes are out
// of service now. A bound or a budget may have been lowered, or another component may
// have started a disruption.
func (r *repairs) isOverAllowance(now time.Time, t *task) bool {
	if r.engine.isOverBound(t.rule) {
		return true
	}
	followed := r.followed[t.rule]
	if followed == nil || followed.pool == "" {
		return false
	}
	count := r.countsWithout(followed.pool, r.engine.nodeClaims.byName[t.claim.Name])
	allowed, _ := r.allowance(now, t.rule, followed.pool, &count)
	return allowed != nil && allowed.Places < 1
}

// countsWithout returns the counts of a pool as if the claim were in service.
func (r *repairs) countsWithout(pool string, c *nodeClaim) poolCounts {
	count := *r.countsOf(pool)
	if c != nil {
		count.disrupted -= c.counts.disrupted
		count.terminating -= c.counts.terminating
		count.pendingFailures -= c.counts.pendingFailures
	}
	return count
}

// restoreTermination resumes a termination that the previous leader may have started. Its
// mark can succeed only while the claim has the version in the ledger. An unmarked claim
// of another version is safe. So is a claim whose node is known to be gone.
func (nc *nodeClaims) restoreTermination(now time.Time, state *Node, treatments *nodeTreatments) {
	e := treatments.granted
	rule := triage.RuleID(e.Rule)
	c := nc.byName[e.Object.Name]
	_, isNamed := nc.engine.ledger.replacements.inLedger[e.Slot]
	if c != nil && c.mark == nil && c.ResourceVersion != e.ResourceVersion || isNamed && !treatments.hasSlotFor(state) {
		treatments.releaseSlot()
		return
	}
	nc.engine.ledger.treatmentsWithSlots = append(nc.engine.ledger.treatmentsWithSlots, treatments)
	if c == nil { // the claim is deleted, and its node should follow if it exists
		nc.noteOutlived(now, markOf(e))
		nc.reobserveDirty(now)
	}
	grant := triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: e.Since, ControlPlane: e.ControlPlane, Deletes: true, Pool: e.Pool}
	if !treatments.hasSlotFor(state) {
		grant.Gone = now // the time is unknown
	}
	nc.engine.core.Resume(now, grant)
	nc.engine.cfg.Logger.Info("termination restored", "node", e.Node, "rule", rule.String(), "nodeClaim", e.Object.Name, "gone", !grant.Gone.IsZero())
}

// A node counts as a launch failure when its claim is marked because of the ready timeout
// and was made from the pool's current template. The ledger counts a planned launch failure already,
// so the next leader knows it whether or not the mark succeeds.

// countLaunchFailure counts a node that is replaced because of the ready timeout, or
// removes it from the count.
func (r *repairs) countLaunchFailure(now time.Time, c *nodeClaim, was *ownership.Mark) {
	isTimeout := func(mark *ownership.Mark) bool { return mark != nil && mark.Rule.Kind == triage.ReadyTimeout }
	if !r.engine.loaded || isTimeout(was) == isTimeout(c.mark) || !r.usesCurrentTemplate(c) { // restored from the ledger
		return
	}
	count := r.countsOf(c.pool())
	count.dirty = true
	if isTimeout(was) {
		count.failures.failed = max(0, count.failures.failed-1)
		return
	}
	count.failures = launchFailures{count.failures.failed + 1, now.UTC().Truncate(time.Second), r.templateOf(c.pool())}
	if count.isHeld() {
		r.reportPoolHeld(c.pool(), count)
	}
}

// isPendingLaunchFailure reports whether a ledger entry names a launch failure whose claim is not
// marked yet.
func (r *repairs) isPendingLaunchFailure(e ledger.ObjectWrite) bool {
	c := r.engine.nodeClaims.byName[e.Object.Name]
	return isClaim(e.Object) && e.Rule.Kind == triage.ReadyTimeout && c != nil && c.mark == nil && r.usesCurrentTemplate(c)
}

// pendingLaunchFailures counts, by pool, the entries whose claim is not marked yet.
func (r *repairs) pendingLaunchFailures(entries []ledger.Entry) map[string]int {
	before := map[string]int{}
	for _, e := range entries {
		if e, is := e.(ledger.ObjectWrite); is && r.isPendingLaunchFailure(e) {
			before[e.Rule.Name]++
		}
	}
	return before
}

// withLaunchFailureEntry returns an entry and, if it is a launch failure, the entry that
// counts it for its pool.
func (r *repairs) withLaunchFailureEntry(now time.Time, e ledger.ObjectWrite) []ledger.Entry {
	if !r.isPendingLaunchFailure(e) {
		return []ledger.Entry{e}
	}
	return []ledger.Entry{e, ledger.LaunchFailures{Rule: e.Rule, Failed: math.MaxInt32, Last: now.UTC(), Template: r.templateOf(e.Rule.Name)}}
}

// restoreLaunchFailures resumes the launch failures of a pool.
func (r *repairs) restoreLaunchFailures(e ledger.LaunchFailures) {
	pool := e.Rule.Name
	for _, other := range r.engine.ledger.restored {
		if begun, is := other.(ledger.ObjectWrite); is && begun.Rule == e.Rule && r.isPendingLaunchFailure(begun) {
			e.Failed--
		}
	}
	count := r.countsOf(pool)
	count.failures, count.dirty = launchFailures{e.Failed, e.Last, e.Template}, true
	r.checkTemplateChange(pool) // the template may have changed
	r.recountPool(pool)         // a node may have become Ready
}

// launchFailureEntries returns the ledger entries for pools with launch failures,
// including the ones that the snapshot allows to start.
func (r *repairs) launchFailureEntries(now time.Time, begun []ledger.Entry) (entries []ledger.Entry) {
	before := r.pendingLaunchFailures(begun)
	for _, name := range slices.Sorted(maps.Keys(r.counts)) {
		t := r.counts[name].failures
		if before[name] > 0 {
			t = launchFailures{t.failed + before[name], now.UTC().Truncate(time.Second), r.templateOf(name)}
		}
		if t.failed > 0 {
			entries = append(entries, ledger.LaunchFailures{Rule: ownership.Rule(timeoutRule(name)), Failed: t.failed, Last: t.last, Template: t.template})
		}
	}
	return entries
}
