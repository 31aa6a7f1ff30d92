package controller

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
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The controller terminates a node with two writes: it marks the NodeClaim and then
// deletes exactly the marked version. Before that the ledger names the claim, until the
// slot of the deleted node is free or has an entry of its own. So the ledger or the mark
// always tells the next leader.

// nextTermination returns the next task for the claim of a node, or when there may be
// one.
func (l *loop) nextTermination(now time.Time, b *nodeTreatments, p *nodeState, plan triage.Plan) (e *task, due time.Time) {
	c, _ := l.nodeClaims.claimOf(p.node)
	if c != nil && c.mark != nil && c.mark.NodeUID != p.node.UID && !c.isEnding() { // the mark was for an earlier node with this claim
		rule := triage.RuleID(c.mark.Rule)
		return &task{kind: cancelTermination, rule: rule, reason: triage.Reason{Code: triage.NodeGone, Rule: rule}, node: p.node, claim: c.NodeClaim, mark: *c.mark}, time.Time{}
	}
	for _, reason := range plan.Release {
		switch rule := reason.Rule; {
		case !isRepair(rule) || len(b.objectsOf(rule)) > 0:
		case c != nil && c.isMarkedBy(rule, p.node) && c.isEnding(): // a deletion cannot be cancelled
		case p.isOutlivingClaim(now) && triage.RuleID(p.outlivedClaim.mark.Rule) == rule: // the claim is deleted already
			due = earliest(due, p.outlivedClaim.until)
		case c != nil && c.isMarkedBy(rule, p.node):
			return &task{kind: cancelTermination, rule: rule, reason: reason, node: p.node, claim: c.NodeClaim, mark: *c.mark}, time.Time{}
		default:
			due = earliest(due, l.releaseSlot(now, b, rule))
		}
	}
	t := plan.Treatment
	if t != nil && isRepair(t.Rule) && c == nil && p.isOutlivingClaim(now) {
		due = earliest(due, p.outlivedClaim.until)
	}
	if t == nil || !isRepair(t.Rule) || c == nil || c.isEnding() {
		return nil, due
	}
	r := l.repairs.followed[t.Rule]
	if r == nil || c.mark != nil && !c.isMarkedBy(t.Rule, p.node) {
		return nil, due
	}
	if c.mark != nil {
		if words := l.vetoOnTermination(now, p, c, r); words != "" {
			reason := triage.Reason{Code: triage.Vetoed, Rule: t.Rule, Other: words}
			return &task{kind: cancelTermination, rule: t.Rule, reason: reason, node: p.node, claim: c.NodeClaim, mark: *c.mark}, time.Time{}
		}
	}
	b.noteWanted(now, p)
	e = &task{kind: terminateClaim, rule: t.Rule, reason: t.Reason, node: p.node, claim: c.NodeClaim, pool: r.rule.Bound.Pool, step: t.Step, since: t.Since}
	if c.mark == nil {
		e.mark = markFor(e, r.spec, now)
	}
	return e, due
}

// vetoOnTermination returns why a marked claim must not be deleted, empty if it may. The
// mark may be old if its deletion was not sent or failed, and much may have changed
// since. The core does not check again, because for the core the termination is running.
func (l *loop) vetoOnTermination(now time.Time, p *nodeState, c *nodeClaim, r *repairRule) string {
	switch {
	case p.rulesSeen != "":
		return p.rulesSeen
	case r.rule.Hold != "":
		return r.rule.Hold
	case l.isOverBound(r.rule.ID):
		return "more nodes are in repair than may be now"
	case r.pool == "":
		return ""
	}
	count := l.countWithout(r.pool, c)
	if allowed, _ := l.disruptionAllowance(now, r.rule.ID, r.pool, &count); allowed != nil && allowed.Places < 1 {
		return allowed.Words
	}
	return ""
}

// markFor returns the mark for a claim before its deletion. Forceful termination does not
// wait for pods. Otherwise Karpenter drains the node, at most as long as the policy says.
// An earlier deadline stays.
func markFor(e *task, spec *v1alpha1.RepairSpec, now time.Time) ownership.Mark {
	mark := ownership.Mark{Rule: ownership.Rule(e.rule), Node: e.node.Name, NodeUID: e.node.UID, Since: e.since.UTC()}
	var deadline time.Time
	switch {
	case modeOf(spec) == v1alpha1.Forceful:
		deadline = now
	case spec.TerminationGracePeriod != "":
		if grace, err := time.ParseDuration(spec.TerminationGracePeriod); err == nil { // it was validated
			deadline = now.Add(grace)
		}
	}
	before := e.claim.Annotations[karpenter.TerminationTimestampAnnotation]
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
func (e *task) isMarked() bool { return e.mark.Node == "" }

// runTerminateClaim checks the node again, marks its claim, and deletes it. Both writes
// carry the claim's version, so a concurrent change of the claim is seen first.
func (l *loop) runTerminateClaim(ctx context.Context, r *taskResult) error {
	e := r.task
	if isStill, err := l.isAsKnown(ctx, r); err != nil || !isStill {
		return err
	}
	claim := e.claim
	if !e.isMarked() {
		marked, err := l.write.MarkClaim(ctx, claim, e.mark)
		if err != nil {
			return l.fetchClaim(ctx, r, claim, err)
		}
		claim, r.claim = marked, marked
	}
	if err := l.write.DeleteClaim(ctx, claim); err != nil {
		return l.fetchClaim(ctx, r, claim, err)
	}
	r.isDeleted = true
	return nil
}

// runCancelTermination removes the mark from a claim.
func (l *loop) runCancelTermination(ctx context.Context, r *taskResult) error {
	spared, err := l.write.SpareClaim(ctx, r.task.claim, r.task.mark)
	if err != nil {
		return l.fetchClaim(ctx, r, r.task.claim, err)
	}
	r.claim = spared
	return nil
}

// fetchClaim reads a claim that has changed, so that the loop can decide again. If the
// claim is unchanged, the write was rejected for another reason.
func (l *loop) fetchClaim(ctx context.Context, r *taskResult, sent *karpenter.NodeClaim, err error) error {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	now, failed := l.write.FetchClaim(ctx, r.task.claim.Name)
	if failed != nil {
		return failed
	}
	if now != nil && now.UID == sent.UID && now.ResourceVersion == sent.ResourceVersion { // some admission webhooks deny with a conflict
		r.result = treat.Refused
		return err
	}
	r.claim, r.isGone, r.result = now, now == nil, treat.Stale
	return nil
}

// takeClaim stores a claim that a task has written or read.
func (l *loop) takeClaim(now time.Time, r *taskResult) {
	meant := func() *nodeClaim {
		if c := l.nodeClaims.byName[r.task.claim.Name]; c != nil && c.UID == r.task.claim.UID {
			return c
		}
		return nil // gone already
	}
	switch c := meant(); {
	case c != nil && r.claim != nil:
		l.upsertClaim(now, r.claim)
	case c != nil && r.isGone:
		l.claimDeleted(now, c)
	}
	if c := meant(); c != nil && r.isDeleted {
		c.ended = true
		l.recountDirty(c)
	}
	l.reobserveDirty(now)
}

// isOverAllowance checks, before a slot is taken for good, whether too many nodes are out
// of service now. A bound or a budget may have been lowered, or another component may
// have started a disruption.
func (l *loop) isOverAllowance(now time.Time, e *task) bool {
	if l.isOverBound(e.rule) {
		return true
	}
	r := l.repairs.followed[e.rule]
	if r == nil || r.pool == "" {
		return false
	}
	count := l.countWithout(r.pool, l.nodeClaims.byName[e.claim.Name])
	allowed, _ := l.allowance(now, e.rule, r.pool, &count)
	return allowed != nil && allowed.Places < 1
}

// countWithout returns the counts of a pool as if the claim were in service.
func (l *loop) countWithout(pool string, c *nodeClaim) poolCounts {
	count := *l.repairs.countOf(pool)
	if c != nil {
		count.disrupted -= c.counts.disrupted
		count.going -= c.counts.going
		count.trying -= c.counts.trying
	}
	return count
}

// restoreTermination resumes a termination that the previous leader may have started. Its
// mark can succeed only while the claim has the version in the ledger. An unmarked claim
// of another version is safe. So is a claim whose node is known to be gone.
func (l *loop) restoreTermination(now time.Time, p *nodeState, b *nodeTreatments, name string) {
	e := b.granted
	rule := triage.RuleID(e.Rule)
	c := l.nodeClaims.byName[name]
	_, isNamed := l.ledger.replacements.inLedger[newReplacement(e)]
	if c != nil && c.mark == nil && c.ResourceVersion != e.ResourceVersion || isNamed && !b.hasSlotFor(p) {
		b.releaseSlot()
		return
	}
	l.ledger.treatmentsWithSlots = append(l.ledger.treatmentsWithSlots, b)
	if c == nil { // the claim is deleted, and its node should follow if it exists
		l.noteOutlived(now, markOf(e))
		l.reobserveDirty(now)
	}
	grant := triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: e.Since, ControlPlane: e.ControlPlane, Deletes: true, Pool: e.Pool}
	if !b.hasSlotFor(p) {
		grant.Gone = now // the time is unknown
	}
	l.core.Resume(now, grant)
	l.cfg.Logger.Info("termination inherited", "node", e.Node, "rule", rule.String(), "nodeClaim", name, "gone", !grant.Gone.IsZero())
}

// A node counts as a launch failure when its claim is marked because of the ready timeout
// and was made from the pool's current template. The ledger counts a planned one already,
// so the next leader knows it whether or not the mark succeeds.

// countLaunchFailure counts a node that is replaced because of the ready timeout, or
// removes it from the count.
func (l *loop) countLaunchFailure(now time.Time, c *nodeClaim, was *ownership.Mark) {
	isTimeout := func(mark *ownership.Mark) bool { return mark != nil && mark.Rule.Kind == triage.ReadyTimeout }
	if !l.loaded || isTimeout(was) == isTimeout(c.mark) || !l.isLaunchFailure(c) { // restored from the ledger
		return
	}
	count := l.repairs.countOf(c.pool())
	count.dirty = true
	if isTimeout(was) {
		count.failures.failed = max(0, count.failures.failed-1)
		return
	}
	count.failures = launchFailures{count.failures.failed + 1, now.UTC().Truncate(time.Second), l.templateOf(c.pool())}
	if count.isHeld() {
		l.reportPoolHeld(c.pool(), count)
	}
}

// isBefore reports whether a ledger entry names a launch failure whose claim is not
// marked yet.
func (l *loop) isBefore(e ledger.Entry) bool {
	name, is := claimNamed(e.Object)
	c := l.nodeClaims.byName[name]
	return is && e.Rule.Kind == triage.ReadyTimeout && c != nil && c.mark == nil && l.isLaunchFailure(c)
}

// launchFailuresBefore counts, by pool, the entries whose claim is not marked yet.
func (l *loop) launchFailuresBefore(entries []ledger.Entry) map[string]int {
	before := map[string]int{}
	for _, e := range entries {
		if l.isBefore(e) {
			before[e.Rule.Name]++
		}
	}
	return before
}

// withLaunchFailure returns an entry and, if it is a launch failure, the entry that
// counts it for its pool.
func (l *loop) withLaunchFailure(now time.Time, e ledger.Entry) []ledger.Entry {
	if !l.isBefore(e) {
		return []ledger.Entry{e}
	}
	return []ledger.Entry{e, {Rule: e.Rule, Tries: math.MaxInt32, Since: now.UTC(), Template: l.templateOf(e.Rule.Name)}}
}

// restoreLaunchFailures resumes the launch failures of a pool.
func (l *loop) restoreLaunchFailures(e ledger.Entry) {
	pool := e.Rule.Name
	for _, other := range l.ledger.restored {
		if other.Rule == e.Rule && l.isBefore(other) {
			e.Tries--
		}
	}
	count := l.repairs.countOf(pool)
	count.failures, count.dirty = launchFailures{e.Tries, e.Since, e.Template}, true
	l.noteTemplate(pool) // the template may have changed
	l.recountPool(pool)  // a node may have become Ready
}

// launchFailureEntries returns the ledger entries for pools with launch failures,
// including the ones that the snapshot allows to start.
func (l *loop) launchFailureEntries(now time.Time, begun []ledger.Entry) (entries []ledger.Entry) {
	before := l.launchFailuresBefore(begun)
	for _, name := range slices.Sorted(maps.Keys(l.repairs.counts)) {
		t := l.repairs.counts[name].failures
		if before[name] > 0 {
			t = launchFailures{t.failed + before[name], now.UTC().Truncate(time.Second), l.templateOf(name)}
		}
		if t.failed > 0 {
			entries = append(entries, ledger.Entry{Rule: ownership.Rule(timeoutRule(name)), Tries: t.failed, Since: t.last, Template: t.template})
		}
	}
	return entries
}
