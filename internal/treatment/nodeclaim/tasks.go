package nodeclaim

import (
	"context"
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The controller terminates a node with two writes: it marks the NodeClaim and then
// deletes exactly the marked version. Before that the ledger names the claim, until the
// slot of the deleted node is free or has an entry of its own. So the ledger or the mark
// always tells the next leader.

// What a Work does.
const (
	TerminateClaim    = "terminate NodeClaim"
	CancelTermination = "cancel termination"
	ForceTermination  = "force termination"
)

// Work is the work of a task for the NodeClaim of a node: to mark the claim and
// delete it, to remove the mark, or to end the drain of a deleted claim.
type Work struct {
	claims *Treatment
	Does   string
	Claim  *karpenter.NodeClaim // as last seen
	Mark   ownership.Mark       // to write or remove; empty if the claim has it
	// Deadline is when the pods of the claim have no time left, to end a drain.
	Deadline string

	// The results of Run.
	Current      *karpenter.NodeClaim // the current claim, if known
	Gone         bool                 // the claim does not exist any more
	DeletionSent bool                 // the API server may have received the deletion
	Deleted      bool                 // this task deleted the claim; finalizers may delay its end

	isProtected bool // a pod protects the node
}

// Terminator is a policy that decides which nodes are terminated, and counts machines.
type Terminator interface {
	// Requests reports whether a rule is of this policy, even if the rule is not followed.
	Requests(rule triage.RuleID) bool
	// Terminates reports whether a rule terminates the machine of a node.
	Terminates(node string, rule triage.RuleID) bool
	// Termination returns how a rule terminates machines, and whether the rule is followed.
	Termination(rule triage.RuleID) (how machine.Termination, isFollowed bool)
	// VetoTermination returns why a marked machine must not be deleted, empty if it may.
	VetoTermination(now time.Time, n *engine.Node, m machine.Machine, rule triage.RuleID) string
	// VetoForcing returns why the drain of a machine that is being deleted must not be ended by
	// force, empty if it may.
	VetoForcing(n *engine.Node, m machine.Machine, rule triage.RuleID) string
	// CountsUnder returns the rule that counts a final termination of a node. The rule of its
	// mark may be gone.
	CountsUnder(n *engine.Node, rule triage.RuleID) triage.RuleID
	// HasPool reports whether a pool exists.
	HasPool(name string) bool
	// MachineChanged tells about a new or changed machine, and its mark before the change.
	MachineChanged(now time.Time, m machine.Machine, was *ownership.Mark)
	// MachineRemoved tells that a machine is gone, or that its pool is about to change.
	MachineRemoved(m machine.Machine)
	// Terminated counts what became of a termination. waited is how long it was due before
	// it began, negative if unknown.
	Terminated(now time.Time, m machine.Machine, t *engine.Task, outcome string, waited time.Duration)
}

// Owns reports whether the object is a NodeClaim.
func (*Treatment) Owns(object ledger.ObjectRef) bool { return isClaim(object) }

// Concerns reports whether the plan of a node names a rule that terminates nodes, or ends the drain
// of its claim.
func (nc *Treatment) Concerns(n *engine.Node, plan triage.Plan) bool {
	if c, _ := nc.claimOf(n.Object); nc.drainOfOthers(n, c, plan) != nil {
		return true
	}
	return plan.Treatment != nil && nc.policy.Terminates(n.Object.Name, plan.Treatment.Rule) ||
		slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return nc.policy.Terminates(n.Object.Name, r.Rule) })
}

// Watch watches the claims.
func (nc *Treatment) Watch(ctx context.Context) { nc.inbox.Run(ctx) }

// Ready reports whether the claims are loaded, or are not served.
func (nc *Treatment) Ready(now time.Time) bool { return nc.inbox.IsLoaded(now) }

// Take reobserves nodes whose facts have changed because another node has. The policy
// takes in the claims before the engine takes in the nodes.
func (nc *Treatment) Take(now time.Time) { nc.reobserveDirty(now) }

// Check does nothing.
func (*Treatment) Check(time.Time) {}

// Update does nothing: the facts of a node tell the core everything.
func (*Treatment) Update(time.Time, string) {}

// Rules returns no rules: the findings of the node name them.
func (*Treatment) Rules(string) []triage.RuleID { return nil }

// Problems returns nothing: the engine reports failed writes.
func (*Treatment) Problems(string) []string { return nil }

// Forget has nothing to drop.
func (*Treatment) Forget(string) bool { return true }

// MayArrive reports whether the claim has the version that the write names.
func (nc *Treatment) MayArrive(slot ledger.ObjectWrite) bool {
	c := nc.byName[slot.Object.Name]
	return c != nil && c.ResourceVersion == slot.ResourceVersion
}

// FreesSlot reports whether the ledger names the node that went with its claim, so that
// the entry of the claim is not needed any more.
func (nc *Treatment) FreesSlot(_ time.Time, nodeTasks *engine.NodeTasks) (free bool, due time.Time) {
	slot := nodeTasks.Slot().Slot
	return !nc.host.LedgerLacks(slot.Node, func(kept ledger.Slot) bool { return kept == slot }), time.Time{}
}

// Tasks yields the next task for the claim of a node.
func (nc *Treatment) Tasks(now time.Time, nodeTasks *engine.NodeTasks, state *engine.Node, plan triage.Plan) iter.Seq2[*engine.Task, time.Time] {
	return func(yield func(*engine.Task, time.Time) bool) {
		if state != nil {
			yield(nc.nextTask(now, nodeTasks, state, plan))
		}
	}
}

// cancellation returns a task that removes the mark from a claim.
func (nc *Treatment) cancellation(state *engine.Node, c *nodeClaim, reason triage.Reason) *engine.Task {
	return &engine.Task{
		Kind: CancelTermination, Resource: "nodeclaims", Failure: "the mark on the NodeClaim could not be removed", FailureEvent: treat.RepairBlocked,
		Rule: reason.Rule, Reason: reason, Node: state.Object,
		Work: &Work{claims: nc, Does: CancelTermination, Claim: c.NodeClaim, Mark: *c.mark},
	}
}

// termination returns a task that marks a claim, unless it is marked, and deletes it.
func (nc *Treatment) termination(now time.Time, state *engine.Node, c *nodeClaim, how machine.Termination, planned *triage.PlannedTreatment) *engine.Task {
	work := &Work{claims: nc, Does: TerminateClaim, Claim: c.NodeClaim}
	t := &engine.Task{
		Kind: TerminateClaim, Resource: "nodeclaims", Failure: "the NodeClaim could not be deleted", FailureEvent: treat.RepairBlocked,
		Rule: planned.Rule, Reason: planned.Reason, Step: planned.Step, Node: state.Object, Begins: true, HasBegun: c.mark != nil, Work: work,
	}
	if c.mark == nil {
		work.Mark = markFor(state.Object, c.NodeClaim, planned, how, now)
		t.Slot = ledger.ObjectWrite{
			Slot: engine.SlotOf(planned.Rule, state.Object), Step: planned.Step, ControlPlane: remediation.IsControlPlane(state.Object),
			Object: claimRef(c.Name), ResourceVersion: c.ResourceVersion, Since: planned.Since.UTC(), Pool: how.BoundPool, Topology: nc.host.Core().Topology(state.Object.Name),
		}
	}
	return t
}

// forcing returns a task that ends the drain of a claim that is being deleted.
func (nc *Treatment) forcing(now time.Time, state *engine.Node, c *nodeClaim, reason triage.Reason) *engine.Task {
	return &engine.Task{
		Kind: ForceTermination, Resource: "nodeclaims", Failure: "the drain of the NodeClaim could not be ended", FailureEvent: treat.RepairBlocked,
		Rule: reason.Rule, Reason: reason, Node: state.Object,
		Work: &Work{claims: nc, Does: ForceTermination, Claim: c.NodeClaim, Deadline: treat.Deadline(now)},
	}
}

// drainOfOthers returns why the node of a claim is due for termination while another client
// deletes the claim, nil if that is not so.
func (nc *Treatment) drainOfOthers(state *engine.Node, c *nodeClaim, plan triage.Plan) *triage.Reason {
	if c == nil || c.mark != nil || !c.IsEnding() {
		return nil
	}
	for i := range plan.Findings { // a claim in deletion is a veto, which the core looks for when the node is due
		if is := &plan.Findings[i]; is.Code == triage.Vetoed && nc.policy.Terminates(state.Object.Name, is.Rule) {
			return is
		}
	}
	return nil
}

// endDrainOfOthers returns a task that ends the drain of a claim that another client deletes, if
// the policy terminates nodes by force, or when to look again: the policy, its bound and vetoes may
// change meanwhile. It waits until no write of an earlier leader can succeed any more, because the
// ledger does not name these writes.
func (nc *Treatment) endDrainOfOthers(now time.Time, state *engine.Node, c *nodeClaim, reason *triage.Reason) (t *engine.Task, due time.Time) {
	if c.isForced(now) {
		return nil, time.Time{}
	}
	if from := nc.listedAt.Add(engine.MaxInFlight); now.Before(from) {
		return nil, from
	}
	how, isFollowed := nc.policy.Termination(reason.Rule)
	switch mayForce := isFollowed && how.Mode == v1alpha1.Forceful && nc.policy.VetoForcing(state, c, reason.Rule) == ""; {
	case mayForce && now.Before(c.protectedUntil):
	case mayForce:
		nc.noteForced(now, c, now)
		return nc.forcing(now, state, c, *reason), time.Time{}
	case !c.forcedAt.IsZero() && !now.Before(c.forcedAt.Add(engine.MaxInFlight)): // the write was not made
		nc.noteForced(now, c, time.Time{})
	}
	return nil, now.Add(forceAgain)
}

// noteForced counts a claim as forced, or no longer.
func (nc *Treatment) noteForced(now time.Time, c *nodeClaim, at time.Time) {
	c.forcedAt = at
	nc.policy.MachineChanged(now, c, c.mark)
}

// isOfOthers reports whether another client deletes the claim of a task that ends a drain.
func (*Work) isOfOthers(t *engine.Task) bool { return t.Reason.Code == triage.Vetoed }

// forceAgain is the pause before another attempt to end a drain.
const forceAgain = 10 * time.Second

// nextTask returns the next task for the claim of a node, or when there may be one.
func (nc *Treatment) nextTask(now time.Time, nodeTasks *engine.NodeTasks, state *engine.Node, plan triage.Plan) (t *engine.Task, due time.Time) {
	c, _ := nc.claimOf(state.Object)
	outlived := nc.outlivedBy(now, state)
	if c != nil && c.mark != nil && c.mark.NodeUID != state.Object.UID && !c.IsEnding() { // the mark was for an earlier node with this claim
		return nc.cancellation(state, c, triage.Reason{Code: triage.NodeGone, Rule: triage.RuleID(c.mark.Rule)}), time.Time{}
	}
	for _, reason := range plan.Release {
		switch rule := reason.Rule; {
		case !nc.policy.Terminates(nodeTasks.Node, rule):
		case c != nil && c.isMarkedBy(rule, state.Object) && c.IsEnding(): // a deletion cannot be cancelled
		case outlived != nil && triage.RuleID(outlived.mark.Rule) == rule: // the claim is deleted already
			due = times.Earliest(due, outlived.until)
		case c != nil && c.isMarkedBy(rule, state.Object):
			return nc.cancellation(state, c, reason), time.Time{}
		default:
			due = times.Earliest(due, nc.host.ReleaseSlot(now, nodeTasks, rule))
		}
	}
	if reason := nc.drainOfOthers(state, c, plan); reason != nil {
		t, again := nc.endDrainOfOthers(now, state, c, reason)
		return t, times.Earliest(due, again)
	}
	planned := plan.Treatment
	if planned == nil || !nc.policy.Terminates(nodeTasks.Node, planned.Rule) {
		return nil, due
	}
	if c == nil && outlived != nil {
		due = times.Earliest(due, outlived.until)
	}
	if c == nil {
		return nil, due
	}
	how, isFollowed := nc.policy.Termination(planned.Rule)
	if !isFollowed || c.mark != nil && !c.isMarkedBy(planned.Rule, state.Object) {
		return nil, due
	}
	if c.IsEnding() {
		// Its policy was changed meanwhile.
		switch mayForce := c.mark != nil && how.Mode == v1alpha1.Forceful && !c.isForced(now); {
		case mayForce && nc.policy.VetoForcing(state, c, planned.Rule) == "":
			return nc.forcing(now, state, c, planned.Reason), due
		case mayForce: // a window may open
			due = times.Earliest(due, now.Add(forceAgain))
		}
		return nil, due
	}
	if c.mark != nil { // the mark may be old, and for the core the termination is running
		if message := nc.policy.VetoTermination(now, state, c, planned.Rule); message != "" {
			return nc.cancellation(state, c, triage.Reason{Code: triage.Vetoed, Rule: planned.Rule, Other: message}), time.Time{}
		}
	}
	nodeTasks.NoteDue(now, state)
	return nc.termination(now, state, c, how, planned), due
}

// markFor returns the mark for a claim before its deletion. Forceful termination does not
// wait for pods. Otherwise Karpenter drains the node, at most as long as the policy says.
// An earlier deadline stays.
func markFor(node *corev1.Node, claim *karpenter.NodeClaim, planned *triage.PlannedTreatment, how machine.Termination, now time.Time) ownership.Mark {
	mark := ownership.Mark{Rule: ownership.Rule(planned.Rule), Node: node.Name, NodeUID: node.UID, Since: planned.Since.UTC()}
	var deadline time.Time
	switch {
	case how.Mode == v1alpha1.Forceful:
		deadline = now
	case how.GracePeriod != nil:
		deadline = now.Add(*how.GracePeriod)
	}
	before := claim.Annotations[karpenter.TerminationTimestampAnnotation]
	if at, err := time.Parse(time.RFC3339, before); deadline.IsZero() || err == nil && !deadline.Before(at) {
		return mark
	}
	mark.Deadline, mark.Before = treat.Deadline(deadline), before
	return mark
}

// IsMarked reports whether the claim of the task has its mark already.
func (w *Work) IsMarked() bool { return w.Mark.Node == "" }

// Run makes the requests of the task.
func (w *Work) Run(ctx context.Context, r *engine.TaskResult) error {
	switch w.Does {
	case TerminateClaim:
		return w.runTerminate(ctx, r)
	case ForceTermination:
		return w.runForce(ctx, r)
	}
	return w.runCancel(ctx, r)
}

// runCancel checks the node again, and removes the mark. A replica that lost the lead without noticing
// may see a mark of the new leader, but not yet the change of the node that caused it.
func (w *Work) runCancel(ctx context.Context, r *engine.TaskResult) error {
	if isStill, err := w.claims.host.IsUnchanged(ctx, r); err != nil || !isStill {
		return err
	}
	updated, err := w.claims.host.Writer().UnmarkClaim(ctx, w.Claim, w.Mark)
	if err != nil {
		return w.fetchClaim(ctx, r, w.Claim, err)
	}
	w.Current = updated
	return nil
}

// runTerminate marks the claim, and deletes it. Both writes of the claim carry its version, so a
// concurrent change of the claim is seen first.
func (w *Work) runTerminate(ctx context.Context, r *engine.TaskResult) error {
	host := w.claims.host
	claim := w.Claim
	if !w.IsMarked() {
		marked, err := host.Writer().MarkClaim(ctx, claim, w.Mark)
		if err != nil {
			return w.fetchClaim(ctx, r, claim, err)
		}
		claim, w.Current = marked, marked
	}
	w.DeletionSent = true
	if err := host.Writer().DeleteClaim(ctx, claim); err != nil {
		return w.fetchClaim(ctx, r, claim, err)
	}
	w.Deleted = true
	return nil
}

// runForce checks the node again, and sets the deadline of its claim. If another client deletes the
// claim, that is the first step of a treatment, so it checks the pods too.
func (w *Work) runForce(ctx context.Context, r *engine.TaskResult) (err error) {
	host := w.claims.host
	if w.isOfOthers(r.Task) {
		if w.isProtected, err = host.IsProtected(ctx, r); err != nil || w.isProtected {
			return err
		}
	}
	if isStill, err := host.IsUnchanged(ctx, r); err != nil || !isStill {
		return err
	}
	updated, err := host.Writer().SetDeadline(ctx, w.Claim, w.Deadline)
	if err != nil {
		return w.fetchClaim(ctx, r, w.Claim, err)
	}
	w.Current = updated
	return nil
}

// fetchClaim reads a claim that has changed, so that the engine can decide again. If the
// claim is unchanged, the write was rejected for another reason.
func (w *Work) fetchClaim(ctx context.Context, r *engine.TaskResult, sent *karpenter.NodeClaim, err error) error {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, failed := w.claims.host.Writer().FetchClaim(ctx, w.Claim.Name)
	if failed != nil {
		return r.NotWritten(failed)
	}
	if current != nil && current.UID == sent.UID && current.ResourceVersion == sent.ResourceVersion { // some admission webhooks deny with a conflict
		r.Outcome = treat.Refused
		return err
	}
	w.Current, w.Gone, r.Outcome = current, current == nil, treat.Stale
	return nil
}

// Done stores the claim that the task has written or read.
func (w *Work) Done(now time.Time, r *engine.TaskResult) {
	nc := w.claims
	switch c := w.known(); {
	case c != nil && w.Current != nil:
		nc.upsert(now, w.Current)
	case c != nil && w.Gone:
		nc.claimDeleted(now, c)
	}
	switch c := w.known(); {
	case c != nil && w.Deleted:
		c.deletedByUs = true
		nc.policy.MachineChanged(now, c, c.mark)
	case c != nil && w.Does == ForceTermination && r.Outcome != treat.Made && r.Outcome != treat.Unknown: // it cannot succeed any more
		if w.isProtected {
			c.protectedUntil = now.Add(forceAgain)
		}
		nc.noteForced(now, c, time.Time{})
	}
	nc.reobserveDirty(now)
	r.Begun = w.IsMarked() || w.Current != nil
	r.Learned = r.Learned || w.Current != nil || w.Gone
}

// known returns the claim of the task as the treatment knows it, nil if it is gone.
func (w *Work) known() *nodeClaim {
	if c := w.claims.byName[w.Claim.Name]; c != nil && c.UID == w.Claim.UID {
		return c
	}
	return nil
}

// HasArrived says whether the claim shows what the task wrote.
func (w *Work) HasArrived(now time.Time) bool {
	switch c := w.known(); {
	case w.Does == TerminateClaim: // without a mark the termination was cancelled
		return w.DeletionSent && (c == nil || c.mark != nil && c.IsEnding())
	case c == nil:
		return false
	case w.Does == ForceTermination: // the deadline of a grace period can be near, too
		return c.isForced(now) && c.Annotations[karpenter.TerminationTimestampAnnotation] != w.Claim.Annotations[karpenter.TerminationTimestampAnnotation]
	default:
		return c.mark == nil
	}
}

// Restore resumes a termination that the previous leader may have started. Its
// mark can succeed only while the claim has the version in the ledger. An unmarked claim
// of another version is safe. So is a claim whose node is known to be gone.
func (nc *Treatment) Restore(now time.Time, nodeTasks *engine.NodeTasks, state *engine.Node) bool {
	e := nodeTasks.Slot()
	rule := triage.RuleID(e.Rule)
	c := nc.byName[e.Object.Name]
	isNamed := nc.host.LedgerNames(e.Slot)
	if c != nil && c.mark == nil && c.ResourceVersion != e.ResourceVersion || isNamed && !nodeTasks.HasSlotFor(state) {
		return false
	}
	if c == nil { // the claim is deleted, and its node should follow if it exists
		nc.noteOutlived(now, markOf(e))
		nc.reobserveDirty(now)
	}
	grant := triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: e.Since, ControlPlane: e.ControlPlane, Deletes: true, Pool: e.Pool, Topology: e.Topology}
	if !nodeTasks.HasSlotFor(state) {
		grant.Gone = now // the time is unknown
	}
	nc.host.Core().Resume(now, grant)
	nc.host.Logger().Info("termination restored", "node", e.Node, "rule", rule.String(), "nodeClaim", e.Object.Name, "gone", !grant.Gone.IsZero())
	return true
}
