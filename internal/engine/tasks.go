package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxConcurrentTasks limits concurrent tasks.
	maxConcurrentTasks = 24
	// maxInFlight is how long a write that takes a slot may still succeed after it was
	// sent. The API server works on a request for at most a minute; the rest is for the
	// network.
	maxInFlight = 2 * time.Minute
)

// taskRunner holds the treatments of all nodes and runs their tasks.
type taskRunner struct {
	engine            *Engine
	treatments        map[string]*nodeTreatments
	nextDue           time.Time              // when to check treatments next, zero for never
	queue             queue[*nodeTreatments] // nodes with a pending task
	running           int
	results           chan *taskResult
	startRequests     chan startRequest // asks whether a treatment may still start; nil while the loop is not running
	openStartRequests []startRequest    // answered after the round
}

// taskKind is the kind of a task.
type taskKind int

const (
	createRemediation   taskKind = iota // create a remediation object while holding the node's Lease
	deleteRemediation                   // delete a remediation object
	annotateRemediation                 // annotate a remediation object
	takeLease                           // renew the node's Lease
	releaseLease                        // delete the node's Lease
	clearConfirmation                   // remove the annotation that confirms the node's health
	terminateClaim                      // mark the node's NodeClaim and delete it
	cancelTermination                   // remove the mark from a NodeClaim
)

// task is a write, or sequence of writes, for the treatments of a node.
type task struct {
	kind   taskKind
	rule   triage.RuleID
	reason triage.Reason

	node        *corev1.Node // as last seen; nil if gone
	policy      *policyRef   // the policy whose decision ends a treatment, as last seen; nil if gone
	object      remediation.Object
	create      *unstructured.Unstructured
	annotations map[string]*string
	lease       *coordinationv1.Lease // to write or delete
	step        int

	claim *karpenter.NodeClaim // as last seen
	mark  ownership.Mark       // to write or remove; empty if the claim has it
	pool  string               // the NodePool whose bound counts the task, empty for none
	since time.Time            // when it was decided
}

// taskResult is the result of a task.
type taskResult struct {
	treatments *nodeTreatments
	task       *task
	result     treat.Result
	err        error

	fresh            *corev1.Node // the current node, if it differs from the known one
	missing          bool         // the node does not exist
	cancelled        bool         // the final check found that the treatment must not start
	object           *unstructured.Unstructured
	created          bool      // this task created the object
	previouslySentAt time.Time // when the same write was sent before and may still succeed; zero for never
	version          string    // the new version, if only that is known
	lease            *coordinationv1.Lease
	leaseKnown       bool // lease is current; nil means that it does not exist

	claim        *karpenter.NodeClaim // the current claim, if known
	claimGone    bool                 // the claim does not exist any more
	claimDeleted bool                 // this task deleted the claim; finalizers may delay its end
}

// reconcile queues a node if it has a task to run.
func (tr *taskRunner) reconcile(now time.Time, node string) {
	treatments := tr.treatments[node]
	if treatments == nil || !tr.engine.loaded {
		return
	}
	if tr.engine.remediations.findReplacements(now, treatments); treatments.stage != idle {
		return
	}
	t, due := tr.next(now, treatments)
	if t == nil {
		tr.sleepUntil(now, treatments, due)
		return
	}
	treatments.stage = queued
	tr.queue.push(treatments)
}

// ensure adds treatments for a node if its plan asks for them, and reconciles
// existing ones.
func (tr *taskRunner) ensure(now time.Time, state *Node, plan triage.Plan) {
	needsTreatments := tr.namesTreatmentRule(plan.Release) || tr.namesTreatmentRule(plan.CallOff) ||
		plan.Treatment != nil && tr.isTreatmentRule(plan.Treatment.Rule) ||
		isConfirmed(state.Object) && len(tr.engine.checks.known) > 0
	if !needsTreatments && tr.treatments[state.Object.Name] == nil {
		return
	}
	tr.of(state.Object.Name)
	tr.reconcile(now, state.Object.Name)
}

// isTreatmentRule reports whether the rule's response is a treatment (not a taint) that
// this controller carries out.
func (tr *taskRunner) isTreatmentRule(rule triage.RuleID) bool {
	return rule.Kind == triage.NodeHealthCheck && !tr.engine.checks.deferring || isRepair(rule)
}

// namesTreatmentRule reports whether one of the reasons is about a treatment rule.
func (tr *taskRunner) namesTreatmentRule(reasons []triage.Reason) bool {
	return slices.ContainsFunc(reasons, func(r triage.Reason) bool { return tr.isTreatmentRule(r.Rule) })
}

func isConfirmed(node *corev1.Node) bool {
	_, confirmed := node.Annotations[remediation.ConfirmedAnnotation]
	return confirmed
}

// next returns the task to run now, or when there may be a task. It skips failed tasks
// until their retry is due.
func (tr *taskRunner) next(now time.Time, treatments *nodeTreatments) (next *task, due time.Time) {
	mayRun := func(t *task) bool {
		if t == nil {
			return false
		}
		from := treatments.failures[t.kind].notBefore
		if t.kind == createRemediation && treatments.createNotBefore.After(from) {
			from = treatments.createNotBefore
		}
		if now.Before(from) {
			due = times.Earliest(due, from)
			return false
		}
		return true
	}
	state := tr.engine.nodeStates[treatments.node]
	if t := tr.engine.remediations.removeOrphans(treatments, state); mayRun(t) {
		return t, time.Time{}
	}
	due = times.Earliest(due, tr.engine.remediations.awaitOrphans(now, treatments, state))
	if state == nil {
		return nil, due // the API server deletes the Lease with the node
	}
	plan, ok := tr.engine.core.Plan(treatments.node)
	if !ok {
		return nil, due
	}
	t, wait := tr.engine.nodeClaims.nextTermination(now, treatments, state, plan)
	if mayRun(t) {
		return t, time.Time{}
	}
	due = times.Earliest(due, wait)
	for _, reason := range plan.Release {
		if !tr.engine.remediations.treats(treatments, state, reason.Rule) {
			continue
		}
		t, wait := tr.engine.remediations.endTreatment(now, treatments, state, reason)
		if mayRun(t) {
			return t, time.Time{}
		}
		due = times.Earliest(due, wait)
	}
	for _, reason := range plan.CallOff {
		if tr.engine.remediations.treats(treatments, state, reason.Rule) {
			due = times.Earliest(due, tr.releaseSlot(now, treatments, reason.Rule))
		}
	}
	if planned := plan.Treatment; planned != nil && tr.engine.remediations.treats(treatments, state, planned.Rule) {
		if t := tr.engine.remediations.annotationTask(now, treatments, state, planned); mayRun(t) {
			return t, time.Time{}
		}
		for _, o := range treatments.objectsOf(planned.Rule) {
			if until := tr.engine.remediations.mayWorkUntil(o, planned); now.Before(until) {
				due = times.Earliest(due, until)
			}
		}
		// The annotation confirmed the node's health before this treatment.
		if isConfirmed(state.Object) && !tr.engine.remediations.isTreated(treatments, state) {
			if t := (&task{kind: clearConfirmation, node: state.Object}); mayRun(t) {
				return t, time.Time{}
			}
		}
		if t := tr.engine.remediations.creationTask(now, treatments, state, planned); mayRun(t) {
			return t, time.Time{}
		}
	} else if planned == nil || !isRepair(planned.Rule) {
		treatments.dueSince = time.Time{}
	}
	t, wait = tr.engine.remediations.leaseTask(now, treatments, state, plan)
	if mayRun(t) {
		return t, time.Time{}
	}
	return nil, times.Earliest(due, wait)
}

// removeOrphans returns a task that deletes an object of a node that is gone or has been
// created again. An object that removes its node stays until the remediator has finished
// and the ledger names the node: otherwise no record of the removal would be left.
func (rm *remediations) removeOrphans(treatments *nodeTreatments, state *Node) *task {
	for _, key := range treatments.sortedObjects() {
		o := treatments.objects[key]
		if !rm.isOurs(o.Object) || o.isEnding() || state != nil && o.IsOf(state.Object) || o.DeletesNode && (!o.Succeeded && !o.Failed || rm.engine.ledger.lacks(o.Node, o.hasRemoved)) {
			continue
		}
		rule := ruleOf(o.Object)
		if c := rm.policyOf(rule); c != nil && !c.isFollowed() {
			continue
		}
		t := &task{kind: deleteRemediation, rule: rule, object: o.Object, reason: triage.Reason{Code: triage.NodeGone, Rule: rule}}
		if state != nil {
			t.node = state.Object
		}
		return t
	}
	return nil
}

// endTreatment ends what a rule has started on a node. It frees the slot once no object exists
// and no write is in flight.
func (rm *remediations) endTreatment(now time.Time, treatments *nodeTreatments, state *Node, reason triage.Reason) (t *task, due time.Time) {
	ours := treatments.objectsOf(reason.Rule)
	for _, o := range ours {
		if !o.isEnding() && o.IsOf(state.Object) {
			t := &task{kind: deleteRemediation, rule: reason.Rule, object: o.Object, reason: reason, node: state.Object}
			t.policy = rm.policyOf(reason.Rule)
			return t, time.Time{}
		}
	}
	if len(ours) > 0 {
		return nil, time.Time{} // the watch will report their deletion
	}
	return nil, rm.engine.tasks.releaseSlot(now, treatments, reason.Rule)
}

// releaseSlot frees the slot of a treatment that was planned and does not exist. If a
// write for the slot may still succeed, it returns until when and frees nothing. A
// treatment without a slot is deleted if it arrives later.
func (tr *taskRunner) releaseSlot(now time.Time, treatments *nodeTreatments, rule triage.RuleID) (due time.Time) {
	if triage.RuleID(treatments.granted.Rule) == rule { // otherwise the slot belongs to another rule
		if until := tr.inFlightUntil(now, treatments); !until.IsZero() {
			return until
		}
		treatments.releaseSlot()
	}
	treatments.dueSince = time.Time{}
	tr.engine.core.Abandon(now, treatments.node, rule, 0)
	return time.Time{}
}

// annotationTask returns a task that annotates an object of the treatment, nil for none.
func (rm *remediations) annotationTask(now time.Time, treatments *nodeTreatments, state *Node, planned *triage.PlannedTreatment) *task {
	c := rm.policyOf(planned.Rule)
	if c == nil {
		return nil
	}
	for _, o := range treatments.objectsOf(planned.Rule) {
		step, _ := o.Step(c.ladder)
		isOver := step < planned.Step || planned.HealthySince.IsZero() && !now.Before(rm.mayWorkUntil(o, planned))
		if notes := annotationsFor(o.Object, isOver, planned, now); len(notes) > 0 && !o.isEnding() && o.IsOf(state.Object) {
			return &task{kind: annotateRemediation, rule: planned.Rule, object: o.Object, annotations: notes, reason: planned.Reason, node: state.Object}
		}
	}
	return nil
}

// creationTask returns a task that creates the object of the treatment's current step,
// nil for none.
func (rm *remediations) creationTask(now time.Time, treatments *nodeTreatments, state *Node, planned *triage.PlannedTreatment) *task {
	c := rm.policyOf(planned.Rule)
	if c == nil || planned.Step >= len(c.ladder) {
		return nil
	}
	for _, o := range treatments.objectsOf(planned.Rule) {
		if step, _ := o.Step(c.ladder); step == planned.Step {
			return nil
		}
	}
	template := rm.engine.checks.template(c.ladder[planned.Step])
	if template == nil {
		return nil
	}
	object, err := remediation.Make(template, state.Object, c.owner)
	if err != nil { // checked when the template was loaded
		return nil
	}
	treatments.noteDue(now, state)
	return &task{
		kind: createRemediation, rule: planned.Rule, reason: asRemediation(planned.Reason), node: state.Object, create: object, step: planned.Step,
		lease: nodelease.Take(treatments.lease, state.Object, holder(c.owner), leaseDuration, now),
	}
}

// treats reports whether the rule treats the node with a remediation
// object. Health checks always do. Repair rules do so if the node has no NodeClaim to
// delete.
func (rm *remediations) treats(treatments *nodeTreatments, state *Node, rule triage.RuleID) bool {
	switch {
	case rule.Kind == triage.NodeHealthCheck:
		return !rm.engine.checks.deferring
	case rule.Kind != triage.Repair:
		return false
	case len(treatments.objectsOf(rule)) > 0:
		return true
	}
	r := rm.engine.repairs.followed[rule]
	c, _ := rm.engine.nodeClaims.claimOf(state.Object)
	return r != nil && len(r.ladder) > 0 && c == nil
}

// asRemediation changes the action in a reason from terminating to remediating. The core
// treats every repair as a termination, because the node keeps its slot until it is
// replaced.
func asRemediation(is triage.Reason) triage.Reason {
	if is.Action == triage.Terminate {
		is.Action = triage.Remediate
	}
	return is
}

// annotationsFor returns the annotations to write on an object of a treatment: that its
// time is up, and since when the node is healthy. A nil value removes an annotation.
func annotationsFor(o remediation.Object, isOver bool, planned *triage.PlannedTreatment, now time.Time) map[string]*string {
	notes := map[string]*string{}
	if isOver && !o.TimedOut && !o.Succeeded {
		notes[remediation.TimedOutAnnotation] = timestamp(now)
	}
	switch since := planned.HealthySince.Truncate(time.Second); {
	case since.IsZero() && !o.HealthySince.IsZero():
		notes[remediation.HealthyDelayAnnotation] = nil
	case !since.IsZero() && !since.Equal(o.HealthySince):
		notes[remediation.HealthyDelayAnnotation] = timestamp(since)
	}
	return notes
}

func timestamp(t time.Time) *string {
	text := remediation.Stamp(t)
	return &text
}

// ownObjects returns this controller's objects for this node, not for an earlier node of
// its name.
func (rm *remediations) ownObjects(treatments *nodeTreatments, state *Node) []remediationObject {
	var ours []remediationObject
	for _, key := range treatments.sortedObjects() {
		if o := treatments.objects[key]; rm.isOurs(o.Object) && o.IsOf(state.Object) {
			ours = append(ours, o)
		}
	}
	return ours
}

func (rm *remediations) isTreated(treatments *nodeTreatments, state *Node) bool {
	return len(rm.ownObjects(treatments, state)) > 0
}

// start starts queued tasks, up to maxConcurrentTasks.
func (tr *taskRunner) start(ctx context.Context, now time.Time) {
	for tries := tr.queue.len(); tries > 0 && tr.running < maxConcurrentTasks; tries-- {
		treatments := tr.queue.pop()
		if e := tr.nextStartable(now, treatments); e != nil {
			tr.runInBackground(ctx, now, treatments, e)
		}
	}
}

// nextStartable returns the next task of a node if it may run now. A task that takes a
// slot first waits until the ledger stores the slot.
func (tr *taskRunner) nextStartable(now time.Time, treatments *nodeTreatments) *task {
	treatments.stage = idle
	t, due := tr.next(now, treatments)
	switch {
	case t == nil:
		tr.sleepUntil(now, treatments, due)
	case t.takesSlot() && tr.engine.repairs.isOverAllowance(now, t):
		tr.sleepUntil(now, treatments, times.Earliest(due, tr.releaseSlot(now, treatments, t.rule))) // nodes that have waited longer go first
	case t.takesSlot() && treatments.granted != t.ledgerEntry():
		treatments.stage = awaitingLedger
		tr.engine.ledger.queuedTreatments = append(tr.engine.ledger.queuedTreatments, treatments)
	default:
		return t
	}
	return nil
}

// sleepUntil leaves treatments alone until the given time. It forgets failures of tasks
// that could be retried now and are not needed any more.
func (tr *taskRunner) sleepUntil(now time.Time, treatments *nodeTreatments, until time.Time) {
	maps.DeleteFunc(treatments.failures, func(_ taskKind, s taskFailure) bool {
		if now.Before(s.notBefore) {
			until = times.Earliest(until, s.notBefore)
			return false
		}
		return true
	})
	treatments.due = until
	tr.nextDue = times.Earliest(tr.nextDue, until)
	if treatments.isEmpty() && until.IsZero() {
		delete(tr.treatments, treatments.node)
	}
}

// runDue checks the treatments that are due, and returns when the next ones
// are.
func (tr *taskRunner) runDue(now time.Time) (due time.Time) {
	if tr.nextDue.IsZero() || now.Before(tr.nextDue) {
		return tr.nextDue
	}
	tr.nextDue = time.Time{}
	var woken []string
	for node, treatments := range tr.treatments {
		switch {
		case treatments.due.IsZero():
		case now.Before(treatments.due):
			tr.nextDue = times.Earliest(tr.nextDue, treatments.due)
		default:
			treatments.due = time.Time{}
			woken = append(woken, node)
		}
	}
	slices.Sort(woken)
	tr.engine.reobserve(now, woken...) // another holder's Lease may have expired
	return tr.nextDue
}

// startTask marks a task as running and returns its result to fill in.
func (tr *taskRunner) startTask(now time.Time, treatments *nodeTreatments, t *task) *taskResult {
	r := &taskResult{treatments: treatments, task: t, previouslySentAt: treatments.sentAt}
	treatments.stage = inFlight
	tr.running++
	switch {
	case (t.kind == createRemediation || t.kind == terminateClaim) && treatments.hasSlot():
		treatments.sentAt = now
	case t.kind == deleteRemediation:
		treatments.deleting = t.object.UID
	}
	return r
}

func (tr *taskRunner) runInBackground(ctx context.Context, now time.Time, treatments *nodeTreatments, t *task) {
	r := tr.startTask(now, treatments, t)
	tr.engine.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
		defer cancel()
		r.err = tr.run(ctx, r)
		if r.result == treat.Made {
			r.result = treat.Classify(r.err)
		}
		tr.results <- r
	})
}

// run makes the writes of a task. It runs outside the loop's goroutine and must not
// access the loop's state.
func (tr *taskRunner) run(ctx context.Context, r *taskResult) (err error) {
	t := r.task
	switch t.kind {
	case createRemediation:
		return tr.engine.remediations.runCreate(ctx, r)
	case deleteRemediation:
		if t.reason.Code == triage.NodeGone {
			if isFree, err := tr.engine.remediations.fetchNode(ctx, r); err != nil || !isFree {
				return err
			}
		}
		if err := tr.engine.remediations.fetchPolicy(ctx, r); err != nil {
			return err
		}
		if t.reason.Code == triage.NodeGone { // the object may now say that it removes the node on purpose
			return tr.engine.write.DeleteRemediationAsKnown(ctx, t.object)
		}
		return tr.engine.write.DeleteRemediation(ctx, t.object)
	case annotateRemediation:
		r.version, err = tr.engine.write.AnnotateRemediation(ctx, t.object, t.annotations)
	case takeLease:
		err = tr.engine.remediations.obtainLease(ctx, r)
	case releaseLease:
		err = tr.engine.write.ReleaseLease(ctx, t.lease)
	case clearConfirmation:
		r.version, err = tr.engine.write.RemoveConfirmation(ctx, t.node)
	case terminateClaim:
		err = tr.runTerminateClaim(ctx, r)
	case cancelTermination:
		err = tr.runCancelTermination(ctx, r)
	}
	return err
}

// runCreate takes the node's Lease, checks the node again, asks the loop
// again, and creates the object. While the task waited for the Lease, the node may have
// recovered or the gate may have closed. Then the task ends without creating the object.
func (rm *remediations) runCreate(ctx context.Context, r *taskResult) error {
	t := r.task
	// Without the namespace for Leases, no other component can hold a Lease.
	if err := rm.obtainLease(ctx, r); err != nil && !apierrors.IsNotFound(err) || r.result == treat.Stale {
		return err
	}
	if isStill, err := rm.engine.tasks.isAsKnown(ctx, r); err != nil || !isStill {
		return err
	}
	may, err := rm.engine.tasks.mayStillStart(ctx, t)
	switch {
	case err != nil:
		r.result = treat.Busy // nothing was sent
		return err
	case !may:
		r.cancelled, r.result = true, treat.Stale
		return nil
	}
	r.object, err = rm.engine.write.CreateRemediation(ctx, t.create)
	r.created = err == nil
	if apierrors.IsAlreadyExists(err) { // an answer was lost, or another component created it
		r.object, err = rm.engine.write.FetchRemediation(ctx, remediation.Read(t.create))
	}
	return err
}

// isAsKnown reports whether the node is unchanged in everything that matters. If it has
// changed, the result holds the current node, and the loop decides again. The full node
// is large, so it is read only if its version differs, for example after a heartbeat.
func (tr *taskRunner) isAsKnown(ctx context.Context, r *taskResult) (isStill bool, err error) {
	known := r.task.node
	isStill, err = tr.engine.write.IsStill(ctx, known)
	if err == nil && !isStill {
		r.fresh, err = tr.engine.write.Fetch(ctx, known.Name)
	}
	switch {
	case apierrors.IsNotFound(err):
		r.missing, r.result = true, treat.Stale
		return false, nil
	case err != nil || isStill:
		return isStill, err
	case r.fresh.UID == known.UID && nodewatch.Same(nodewatch.Trim(r.fresh), known):
		r.fresh = nil
		return true, nil
	}
	r.result = treat.Stale
	return false, nil
}

// obtainLease writes a Lease. If the Lease has changed, the result holds the current Lease.
func (rm *remediations) obtainLease(ctx context.Context, r *taskResult) (err error) {
	r.lease, err = rm.engine.write.ObtainLease(ctx, r.task.lease)
	if err == nil {
		r.leaseKnown = true
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, failed := rm.engine.write.FetchLease(ctx, r.task.node.Name)
	if failed != nil {
		return failed
	}
	if current == nil && r.task.lease.ResourceVersion == "" { // the namespace for Leases does not exist
		return err
	}
	r.lease, r.leaseKnown, r.result = current, true, treat.Stale // the loop decides again
	return nil
}

// fetchNode checks that the node is gone before its treatment is deleted for that reason.
// The watch of nodes may be behind the watch of remediation objects.
func (rm *remediations) fetchNode(ctx context.Context, r *taskResult) (isGone bool, err error) {
	fresh, err := rm.engine.write.Fetch(ctx, r.treatments.node)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case !r.task.object.IsOf(fresh):
		return true, nil
	}
	r.fresh, r.result = fresh, treat.Stale
	return false, nil
}

// fetchPolicy checks that the policy is unchanged since it found the node healthy. A
// replica that lost the lead without noticing may see an object of the new leader but not
// yet the policy edit that caused it.
func (rm *remediations) fetchPolicy(ctx context.Context, r *taskResult) error {
	known := r.task.policy
	if known == nil {
		return nil
	}
	current, err := rm.engine.write.FetchOwner(ctx, known.owner)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case current.UID != known.owner.UID || current.Generation != known.generation:
		r.result = treat.Stale
		return fmt.Errorf("%s %s has changed since the decision", known.owner.Kind, known.owner.Name)
	}
	return nil
}

var taskKindNames = [...]string{createRemediation: "begin", deleteRemediation: "end", annotateRemediation: "note", takeLease: "lock", releaseLease: "unlock", clearConfirmation: "unconfirm", terminateClaim: "terminate", cancelTermination: "spare"}

func (t taskKind) String() string { return taskKindNames[t] }

// resource returns the resource that the task writes, as metrics name it.
func (t taskKind) resource() string {
	switch t {
	case takeLease, releaseLease:
		return "leases"
	case clearConfirmation:
		return "nodes"
	case terminateClaim, cancelTermination:
		return "nodeclaims"
	default:
		return "remediations"
	}
}

// failureMessage returns a phrase for Events that says what failed.
func (t taskKind) failureMessage() string {
	switch t {
	case createRemediation:
		return "could not be begun"
	case deleteRemediation:
		return "could not be ended"
	case annotateRemediation:
		return "could not be annotated"
	case terminateClaim:
		return "the NodeClaim could not be deleted"
	case cancelTermination:
		return "the mark on the NodeClaim could not be removed"
	default:
		return "the node's Lease could not be written"
	}
}
