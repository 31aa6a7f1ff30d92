package engine

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// The controller terminates a node with two writes: it marks the NodeClaim and then
// deletes exactly the marked version. Before that the ledger names the claim, until the
// slot of the deleted node is free or has an entry of its own. So the ledger or the mark
// always tells the next leader.

// What a claimTask does.
const (
	terminateClaim    = "terminate NodeClaim"
	cancelTermination = "cancel termination"
)

// claimTask is the work of a task for the NodeClaim of a node: to mark the claim and
// delete it, or to remove the mark.
type claimTask struct {
	claims *nodeClaims
	does   string
	claim  *karpenter.NodeClaim // as last seen
	mark   ownership.Mark       // to write or remove; empty if the claim has it

	// The results of Run.
	current *karpenter.NodeClaim // the current claim, if known
	gone    bool                 // the claim does not exist any more
	deleted bool                 // this task deleted the claim; finalizers may delay its end
}

// Owns reports whether the object is a NodeClaim.
func (*nodeClaims) Owns(object ledger.ObjectRef) bool { return isClaim(object) }

// Concerns reports whether the plan of a node names a rule that terminates nodes.
func (*nodeClaims) Concerns(_ *Node, plan triage.Plan) bool {
	return plan.Treatment != nil && isRepair(plan.Treatment.Rule) ||
		slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return isRepair(r.Rule) })
}

// Watch watches the claims.
func (nc *nodeClaims) Watch(ctx context.Context) { nc.inbox.Run(ctx) }

// Ready reports whether the claims are loaded, or are not served.
func (nc *nodeClaims) Ready(time.Time) bool {
	claims, _ := nc.inbox.Availability()
	return claims != watch.NotAnswered
}

// Take reobserves nodes whose facts have changed because another node has. The policy
// takes in the claims before the nodes.
func (nc *nodeClaims) Take(now time.Time) { nc.reobserveDirty(now) }

// Check does nothing.
func (*nodeClaims) Check(time.Time) {}

// Update does nothing: the facts of a node tell the core everything.
func (*nodeClaims) Update(time.Time, string) {}

// Rules returns no rules: the findings of the node name them.
func (*nodeClaims) Rules(string) []triage.RuleID { return nil }

// Problems returns nothing: the engine reports failed writes.
func (*nodeClaims) Problems(string) []string { return nil }

// Forget has nothing to drop.
func (*nodeClaims) Forget(string) bool { return true }

// MayArrive reports whether the claim has the version that the write names.
func (nc *nodeClaims) MayArrive(slot ledger.ObjectWrite) bool {
	c := nc.byName[slot.Object.Name]
	return c != nil && c.ResourceVersion == slot.ResourceVersion
}

// FreesSlot reports whether the ledger names the node that went with its claim, so that
// the entry of the claim is not needed any more.
func (nc *nodeClaims) FreesSlot(_ time.Time, lane *Lane) (free bool, due time.Time) {
	slot := lane.Slot().Slot
	return !nc.engine.LedgerLacks(slot.Node, func(kept ledger.Slot) bool { return kept == slot }), time.Time{}
}

// Tasks yields the next task for the claim of a node.
func (nc *nodeClaims) Tasks(now time.Time, lane *Lane, state *Node, plan triage.Plan) iter.Seq2[*Task, time.Time] {
	return func(yield func(*Task, time.Time) bool) {
		if state != nil {
			yield(nc.nextTask(now, lane, state, plan))
		}
	}
}

// cancellation returns a task that removes the mark from a claim.
func (nc *nodeClaims) cancellation(state *Node, c *nodeClaim, reason triage.Reason) *Task {
	return &Task{
		Kind: cancelTermination, Resource: "nodeclaims", Failure: "the mark on the NodeClaim could not be removed", FailureEvent: treat.RepairBlocked,
		Rule: reason.Rule, Reason: reason, Node: state.Object,
		Work: &claimTask{claims: nc, does: cancelTermination, claim: c.NodeClaim, mark: *c.mark},
	}
}

// termination returns a task that marks a claim, unless it is marked, and deletes it.
func (nc *nodeClaims) termination(now time.Time, state *Node, c *nodeClaim, followed *repairRule, planned *triage.PlannedTreatment) *Task {
	work := &claimTask{claims: nc, does: terminateClaim, claim: c.NodeClaim}
	t := &Task{
		Kind: terminateClaim, Resource: "nodeclaims", Failure: "the NodeClaim could not be deleted", FailureEvent: treat.RepairBlocked,
		Rule: planned.Rule, Reason: planned.Reason, Step: planned.Step, Node: state.Object, Begins: true, Work: work,
	}
	if c.mark == nil {
		work.mark = markFor(state.Object, c.NodeClaim, planned, followed.spec, now)
		t.Slot = ledger.ObjectWrite{
			Slot: SlotOf(planned.Rule, state.Object), Step: planned.Step, ControlPlane: remediation.IsControlPlane(state.Object),
			Object: claimRef(c.Name), ResourceVersion: c.ResourceVersion, Since: planned.Since.UTC(), Pool: followed.rule.Bound.Pool,
		}
	}
	return t
}

// nextTask returns the next task for the claim of a node, or when there may be one.
func (nc *nodeClaims) nextTask(now time.Time, lane *Lane, state *Node, plan triage.Plan) (t *Task, due time.Time) {
	c, _ := nc.claimOf(state.Object)
	outlived := nc.outlivedBy(now, state)
	if c != nil && c.mark != nil && c.mark.NodeUID != state.Object.UID && !c.isEnding() { // the mark was for an earlier node with this claim
		return nc.cancellation(state, c, triage.Reason{Code: triage.NodeGone, Rule: triage.RuleID(c.mark.Rule)}), time.Time{}
	}
	for _, reason := range plan.Release {
		switch rule := reason.Rule; {
		case !isRepair(rule) || len(nc.engine.remediations.nodes[lane.Node].objectsOf(rule)) > 0:
		case c != nil && c.isMarkedBy(rule, state.Object) && c.isEnding(): // a deletion cannot be cancelled
		case outlived != nil && triage.RuleID(outlived.mark.Rule) == rule: // the claim is deleted already
			due = times.Earliest(due, outlived.until)
		case c != nil && c.isMarkedBy(rule, state.Object):
			return nc.cancellation(state, c, reason), time.Time{}
		default:
			due = times.Earliest(due, nc.engine.ReleaseSlot(now, lane, rule))
		}
	}
	planned := plan.Treatment
	if planned != nil && isRepair(planned.Rule) && c == nil && outlived != nil {
		due = times.Earliest(due, outlived.until)
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
			return nc.cancellation(state, c, triage.Reason{Code: triage.Vetoed, Rule: planned.Rule, Other: message}), time.Time{}
		}
	}
	lane.NoteDue(now, state)
	return nc.termination(now, state, c, followed, planned), due
}

// vetoOnTermination returns why a marked claim must not be deleted, empty if it may. The
// mark may be old if its deletion was not sent or failed, and much may have changed
// since. The core does not check again, because for the core the termination is running.
func (nc *nodeClaims) vetoOnTermination(now time.Time, state *Node, c *nodeClaim, r *repairRule) string {
	switch {
	case nc.of(state).veto != "":
		return nc.of(state).veto
	case r.rule.Hold != "":
		return r.rule.Hold
	case nc.engine.IsOverBound(r.rule.ID):
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
func markFor(node *corev1.Node, claim *karpenter.NodeClaim, planned *triage.PlannedTreatment, spec *v1alpha1.RepairSpec, now time.Time) ownership.Mark {
	mark := ownership.Mark{Rule: ownership.Rule(planned.Rule), Node: node.Name, NodeUID: node.UID, Since: planned.Since.UTC()}
	var deadline time.Time
	switch {
	case modeOf(spec) == v1alpha1.Forceful:
		deadline = now
	case spec.TerminationGracePeriod != "":
		if grace, err := time.ParseDuration(spec.TerminationGracePeriod); err == nil { // it was validated
			deadline = now.Add(grace)
		}
	}
	before := claim.Annotations[karpenter.TerminationTimestampAnnotation]
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
func (w *claimTask) isMarked() bool { return w.mark.Node == "" }

// Run makes the requests of the task.
func (w *claimTask) Run(ctx context.Context, r *Result) error {
	if w.does == terminateClaim {
		return w.runTerminate(ctx, r)
	}
	updated, err := w.claims.engine.Writer().UnmarkClaim(ctx, w.claim, w.mark)
	if err != nil {
		return w.fetchClaim(ctx, r, w.claim, err)
	}
	w.current = updated
	return nil
}

// runTerminate checks the node again, marks its claim, and deletes it. Both writes
// carry the claim's version, so a concurrent change of the claim is seen first.
func (w *claimTask) runTerminate(ctx context.Context, r *Result) error {
	engine := w.claims.engine
	if isStill, err := engine.IsUnchanged(ctx, r); err != nil || !isStill {
		return err
	}
	claim := w.claim
	if !w.isMarked() {
		marked, err := engine.Writer().MarkClaim(ctx, claim, w.mark)
		if err != nil {
			return w.fetchClaim(ctx, r, claim, err)
		}
		claim, w.current = marked, marked
	}
	if err := engine.Writer().DeleteClaim(ctx, claim); err != nil {
		return w.fetchClaim(ctx, r, claim, err)
	}
	w.deleted = true
	return nil
}

// fetchClaim reads a claim that has changed, so that the loop can decide again. If the
// claim is unchanged, the write was rejected for another reason.
func (w *claimTask) fetchClaim(ctx context.Context, r *Result, sent *karpenter.NodeClaim, err error) error {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, failed := w.claims.engine.Writer().FetchClaim(ctx, w.claim.Name)
	if failed != nil {
		return failed
	}
	if current != nil && current.UID == sent.UID && current.ResourceVersion == sent.ResourceVersion { // some admission webhooks deny with a conflict
		r.Outcome = treat.Refused
		return err
	}
	w.current, w.gone, r.Outcome = current, current == nil, treat.Stale
	return nil
}

// Done stores the claim that the task has written or read, and reports what it did.
func (w *claimTask) Done(now time.Time, r *Result) {
	nc := w.claims
	known := func() *nodeClaim {
		if c := nc.byName[w.claim.Name]; c != nil && c.UID == w.claim.UID {
			return c
		}
		return nil // gone already
	}
	switch c := known(); {
	case c != nil && w.current != nil:
		nc.upsert(now, w.current)
	case c != nil && w.gone:
		nc.claimDeleted(now, c)
	}
	if c := known(); c != nil && w.deleted {
		c.deletedByUs = true
		nc.engine.repairs.recountClaim(c)
	}
	nc.reobserveDirty(now)
	r.Begun = w.isMarked() || w.current != nil
	r.Learned = w.current != nil || w.gone
	switch {
	case r.Outcome != treat.Made:
	case w.does == terminateClaim:
		w.reportTerminated(now, r)
	default:
		w.reportCancelled(now, r)
	}
}

// MayBegin checks, before a slot is taken for good, that not too many nodes of the pool
// are out of service now. A budget may have been lowered, or another component may
// have started a disruption.
func (r *repairs) MayBegin(now time.Time, rule triage.RuleID, node *corev1.Node) bool {
	followed := r.followed[rule]
	if followed == nil || followed.pool == "" {
		return true
	}
	c, _ := r.engine.nodeClaims.claimOf(node)
	count := r.countsWithout(followed.pool, c)
	allowed, _ := r.allowance(now, rule, followed.pool, &count)
	return allowed == nil || allowed.Places > 0
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

// Restore resumes a termination that the previous leader may have started. Its
// mark can succeed only while the claim has the version in the ledger. An unmarked claim
// of another version is safe. So is a claim whose node is known to be gone.
func (nc *nodeClaims) Restore(now time.Time, lane *Lane, state *Node) bool {
	e := lane.Slot()
	rule := triage.RuleID(e.Rule)
	c := nc.byName[e.Object.Name]
	isNamed := nc.engine.LedgerNames(e.Slot)
	if c != nil && c.mark == nil && c.ResourceVersion != e.ResourceVersion || isNamed && !lane.HasSlotFor(state) {
		return false
	}
	if c == nil { // the claim is deleted, and its node should follow if it exists
		nc.noteOutlived(now, markOf(e))
		nc.reobserveDirty(now)
	}
	grant := triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: e.Since, ControlPlane: e.ControlPlane, Deletes: true, Pool: e.Pool}
	if !lane.HasSlotFor(state) {
		grant.Gone = now // the time is unknown
	}
	nc.engine.Core().Resume(now, grant)
	nc.engine.Logger().Info("termination restored", "node", e.Node, "rule", rule.String(), "nodeClaim", e.Object.Name, "gone", !grant.Gone.IsZero())
	return true
}

// A node counts as a launch failure when its claim is marked because of the ready timeout
// and was made from the pool's current template. The ledger counts a planned launch failure already,
// so the next leader knows it whether or not the mark succeeds.

// countLaunchFailure counts a node that is replaced because of the ready timeout, or
// removes it from the count.
func (r *repairs) countLaunchFailure(now time.Time, c *nodeClaim, was *ownership.Mark) {
	isTimeout := func(mark *ownership.Mark) bool { return mark != nil && mark.Rule.Kind == policykind.ReadyTimeout }
	if !r.engine.IsLoaded() || isTimeout(was) == isTimeout(c.mark) || !r.usesCurrentTemplate(c) { // restored from the ledger
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
	return isClaim(e.Object) && e.Rule.Kind == policykind.ReadyTimeout && c != nil && c.mark == nil && r.usesCurrentTemplate(c)
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

// EntriesFor returns, for each entry that is a launch failure, the largest entry that counts
// it for its pool.
func (r *repairs) EntriesFor(now time.Time, added []ledger.Entry) (entries []ledger.Entry) {
	for _, e := range added {
		if e, is := e.(ledger.ObjectWrite); is && r.isPendingLaunchFailure(e) {
			entries = append(entries, ledger.LaunchFailures{Rule: e.Rule, Failed: math.MaxInt32, Last: now.UTC(), Template: r.templateOf(e.Rule.Name)})
		}
	}
	return entries
}

// RestoreEntries resumes the launch failures of all pools.
func (r *repairs) RestoreEntries(restored []ledger.Entry) {
	pending := r.pendingLaunchFailures(restored)
	for _, e := range restored {
		e, is := e.(ledger.LaunchFailures)
		if !is {
			continue
		}
		pool := e.Rule.Name
		count := r.countsOf(pool)
		count.failures, count.dirty = launchFailures{e.Failed - pending[pool], e.Last, e.Template}, true
		r.checkTemplateChange(pool) // the template may have changed
		r.recountPool(pool)         // a node may have become Ready
	}
}

// HasEnded reports whether the stored snapshot counts more launch failures than there are.
func (r *repairs) HasEnded(stored []ledger.Entry) bool {
	pending := r.pendingLaunchFailures(stored)
	return slices.ContainsFunc(stored, func(e ledger.Entry) bool {
		failures, is := e.(ledger.LaunchFailures)
		if !is {
			return false
		}
		count := r.counts[failures.Rule.Name]
		return count == nil || failures.Failed > count.failures.failed+pending[failures.Rule.Name]
	})
}

// Entries returns the ledger entries for pools with launch failures,
// including the ones that the snapshot allows to start.
func (r *repairs) Entries(now time.Time, begun []ledger.Entry) (entries []ledger.Entry) {
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
