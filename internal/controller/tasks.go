package controller

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
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxConcurrentTasks is how many errands are run at a time.
	maxConcurrentTasks = 24
	// maxInFlight is how long a write that takes a place may be on its way. An API
	// server works on a request for no longer than a minute; the rest is for the
	// network.
	maxInFlight = 2 * time.Minute
)

// taskKind is what an errand is for.
type taskKind int

const (
	createRemediation   taskKind = iota // make a remediation object, with the node locked
	deleteRemediation                   // delete one
	annotateRemediation                 // write an annotation on one
	takeLease                           // lock the node for longer
	releaseLease                        // let others have it
	clearConfirmation                   // take the annotation off the node that confirmed its health
	terminateClaim                      // mark the node's claim, and delete it
	cancelTermination                   // take the mark off a claim that is not to go
)

// task is one thing that is to be done about a bed.
type task struct {
	kind   taskKind
	rule   triage.RuleID
	reason triage.Reason

	node        *corev1.Node // as it is known; nil if it is gone
	policy      *policyRef   // whose judgement ends a treatment, as it is known; nil if it is gone
	object      remediation.Object
	create      *unstructured.Unstructured
	annotations map[string]*string
	lease       *coordinationv1.Lease // to be written, or deleted
	step        int

	claim *karpenter.NodeClaim // as it is known
	mark  ownership.Mark       // to be written, or taken back; none if it is there
	pool  string               // whose bound it counts in, empty for none
	since time.Time            // when it was decided
}

// taskResult is what became of an errand.
type taskResult struct {
	treatments *nodeTreatments
	task       *task
	result     treat.Result
	err        error

	fresh     *corev1.Node // the node as it is now, where it is not as it was known
	missing   bool         // there is no such node
	calledOff bool         // by the last look the treatment is not to begin any more
	object    *unstructured.Unstructured
	isCreated bool      // the object was made by this errand
	sentFirst time.Time // when the same was sent before and may arrive yet; zero for never
	version   string    // of what was written, where only that is known
	lease     *coordinationv1.Lease
	isLeased  bool // the lease is as it is now; nil if there is none

	claim     *karpenter.NodeClaim // as it is now, where that is known
	isGone    bool                 // there is no such claim any more
	isDeleted bool                 // the claim was deleted by this errand, which its finalizers may take a while over
}

// reconcileTreatments queues the bed of a node if there is something to do about it.
func (l *loop) reconcileTreatments(now time.Time, node string) {
	b := l.treatments[node]
	if b == nil || !l.loaded {
		return
	}
	if l.findReplacements(now, b); b.stage != idle {
		return
	}
	e, due := l.nextTask(now, b)
	if e == nil {
		l.sleepUntil(now, b, due)
		return
	}
	b.stage = queued
	l.taskQueue.push(b)
}

// ensureTreatments makes a bed for a node whose plan asks for one, and looks after those that
// have one.
func (l *loop) ensureTreatments(now time.Time, p *nodeState, plan triage.Plan) {
	concerns := l.namesTreatmentRule(plan.Release) || l.namesTreatmentRule(plan.CallOff) ||
		plan.Treatment != nil && l.isTreatmentRule(plan.Treatment.Rule) ||
		isConfirmed(p.node) && len(l.checks.known) > 0
	if !concerns && l.treatments[p.node.Name] == nil {
		return
	}
	l.treatmentsOf(p.node.Name)
	l.reconcileTreatments(now, p.node.Name)
}

// isTreatmentRule says whether what a rule asks for stands elsewhere than on the node, and is
// not left to another controller.
func (l *loop) isTreatmentRule(rule triage.RuleID) bool {
	return rule.Kind == triage.NodeHealthCheck && !l.checks.deferring || isRepair(rule)
}

// namesTreatmentRule says whether such a rule is among those that reasons are about.
func (l *loop) namesTreatmentRule(reasons []triage.Reason) bool {
	return slices.ContainsFunc(reasons, func(r triage.Reason) bool { return l.isTreatmentRule(r.Rule) })
}

func isConfirmed(node *corev1.Node) bool {
	_, confirmed := node.Annotations[remediation.ConfirmedAnnotation]
	return confirmed
}

// nextTask returns what is to be done about a bed now, or when there may be. What
// has failed before is passed over until it may be tried again.
func (l *loop) nextTask(now time.Time, b *nodeTreatments) (next *task, due time.Time) {
	mayRun := func(e *task) bool {
		if e == nil {
			return false
		}
		from := b.failures[e.kind].notBefore
		if e.kind == createRemediation && b.beginFrom.After(from) {
			from = b.beginFrom
		}
		if now.Before(from) {
			due = earliest(due, from)
			return false
		}
		return true
	}
	p := l.nodeStates[b.node]
	if e := l.removeOrphans(b, p); mayRun(e) {
		return e, time.Time{}
	}
	due = earliest(due, l.awaitOrphans(now, b, p))
	if p == nil {
		return nil, due // the lock goes with the node
	}
	plan, ok := l.core.Plan(b.node)
	if !ok {
		return nil, due
	}
	e, wait := l.nextTermination(now, b, p, plan)
	if mayRun(e) {
		return e, time.Time{}
	}
	due = earliest(due, wait)
	for _, reason := range plan.Release {
		if !l.usesRemediationObject(b, p, reason.Rule) {
			continue
		}
		e, wait := l.release(now, b, p, reason)
		if mayRun(e) {
			return e, time.Time{}
		}
		due = earliest(due, wait)
	}
	for _, reason := range plan.CallOff {
		if l.usesRemediationObject(b, p, reason.Rule) {
			due = earliest(due, l.releaseSlot(now, b, reason.Rule))
		}
	}
	if t := plan.Treatment; t != nil && l.usesRemediationObject(b, p, t.Rule) {
		if e := l.annotationTask(now, b, p, t); mayRun(e) {
			return e, time.Time{}
		}
		for _, o := range b.objectsOf(t.Rule) {
			if until := l.worksUntil(o, t); now.Before(until) {
				due = earliest(due, until)
			}
		}
		// What was confirmed was the health of an earlier day.
		if isConfirmed(p.node) && !l.isTreated(b, p) {
			if e := (&task{kind: clearConfirmation, node: p.node}); mayRun(e) {
				return e, time.Time{}
			}
		}
		if e := l.creationTask(now, b, p, t); mayRun(e) {
			return e, time.Time{}
		}
	} else if t == nil || !isRepair(t.Rule) {
		b.wanted = time.Time{}
	}
	e, wait = l.leaseTask(now, b, p, plan)
	if mayRun(e) {
		return e, time.Time{}
	}
	return nil, earliest(due, wait)
}

// removeOrphans ends what is left of a node that is gone, or that had another one's name.
// A remediator that means the node to go is waited for, and so is the page that names
// its departure: nothing else would be left to tell of it.
func (l *loop) removeOrphans(b *nodeTreatments, p *nodeState) *task {
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[key]
		if !l.isOurs(o.Object) || o.isEnding() || p != nil && o.IsOf(p.node) || o.DeletesNode && (!o.Succeeded && !o.Failed || l.isNotInLedger(o)) {
			continue
		}
		rule := ruleOf(o.Object)
		if c := l.policyOf(rule); c != nil && !c.isFollowed() {
			continue
		}
		e := &task{kind: deleteRemediation, rule: rule, object: o.Object, reason: triage.Reason{Code: triage.NodeGone, Rule: rule}}
		if p != nil {
			e.node = p.node
		}
		return e
	}
	return nil
}

// release takes back what a rule has begun on a node, and frees its place once
// nothing is there or on its way.
func (l *loop) release(now time.Time, b *nodeTreatments, p *nodeState, reason triage.Reason) (e *task, due time.Time) {
	ours := b.objectsOf(reason.Rule)
	for _, o := range ours {
		if !o.isEnding() && o.IsOf(p.node) {
			e := &task{kind: deleteRemediation, rule: reason.Rule, object: o.Object, reason: reason, node: p.node}
			e.policy = l.policyOf(reason.Rule)
			return e, time.Time{}
		}
	}
	if len(ours) > 0 {
		return nil, time.Time{} // the watch will tell
	}
	return nil, l.releaseSlot(now, b, reason.Rule)
}

// releaseSlot gives back the place of something that was decided and is not there. What
// takes a place that the ledger names is waited for, and the time is returned until
// when it may still arrive; what takes none is ended if it does.
func (l *loop) releaseSlot(now time.Time, b *nodeTreatments, rule triage.RuleID) (due time.Time) {
	if triage.RuleID(b.granted.Rule) == rule { // else that is another one's
		if until := l.inFlightUntil(now, b); !until.IsZero() {
			return until
		}
		b.releaseSlot()
	}
	b.wanted = time.Time{}
	l.core.Abandon(now, b.node, rule, 0)
	return time.Time{}
}

// annotationTask returns what is to be noted on an object of a treatment.
func (l *loop) annotationTask(now time.Time, b *nodeTreatments, p *nodeState, t *triage.PlannedTreatment) *task {
	c := l.policyOf(t.Rule)
	if c == nil {
		return nil
	}
	for _, o := range b.objectsOf(t.Rule) {
		step, _ := o.Step(c.ladder)
		isOver := step < t.Step || t.HealthySince.IsZero() && !now.Before(l.worksUntil(o, t))
		if notes := annotationsFor(o.Object, isOver, t, now); len(notes) > 0 && !o.isEnding() && o.IsOf(p.node) {
			return &task{kind: annotateRemediation, rule: t.Rule, object: o.Object, annotations: notes, reason: t.Reason, node: p.node}
		}
	}
	return nil
}

// creationTask returns what is missing of a treatment that is to be under way.
func (l *loop) creationTask(now time.Time, b *nodeTreatments, p *nodeState, t *triage.PlannedTreatment) *task {
	c := l.policyOf(t.Rule)
	if c == nil || t.Step >= len(c.ladder) {
		return nil
	}
	for _, o := range b.objectsOf(t.Rule) {
		if step, _ := o.Step(c.ladder); step == t.Step {
			return nil
		}
	}
	template := l.checks.template(c.ladder[t.Step])
	if template == nil {
		return nil
	}
	object, err := remediation.Make(template, p.node, c.owner)
	if err != nil { // which was looked for when the template came
		return nil
	}
	b.noteWanted(now, p)
	return &task{
		kind: createRemediation, rule: t.Rule, reason: asRemediation(t.Reason), node: p.node, create: object, step: t.Step,
		lease: nodelease.Take(b.lease, p.node, holder(c.owner), leaseDuration, now),
	}
}

// usesRemediationObject says whether what a rule asks for on a node is a remediation object: always
// if it is a health check's, and if there is no claim to be deleted.
func (l *loop) usesRemediationObject(b *nodeTreatments, p *nodeState, rule triage.RuleID) bool {
	switch {
	case rule.Kind == triage.NodeHealthCheck:
		return !l.checks.deferring
	case rule.Kind != triage.Repair:
		return false
	case len(b.objectsOf(rule)) > 0:
		return true
	}
	r := l.repairs.followed[rule]
	c, _ := l.nodeClaims.claimOf(p.node)
	return r != nil && len(r.ladder) > 0 && c == nil
}

// asRemediation is the reason of what is done by a remediation object, in these words. To the
// core every repair is a termination, because it keeps the node's place until it is
// replaced.
func asRemediation(is triage.Reason) triage.Reason {
	if is.Action == triage.Terminate {
		is.Action = triage.Remediate
	}
	return is
}

// annotationsFor returns what is to be written on an object of a treatment: that its time
// is up, and since when the node is healthy. Nil removes a note.
func annotationsFor(o remediation.Object, isOver bool, t *triage.PlannedTreatment, now time.Time) map[string]*string {
	notes := map[string]*string{}
	if isOver && !o.TimedOut && !o.Succeeded {
		notes[remediation.TimedOutAnnotation] = timestamp(now)
	}
	switch since := t.HealthySince.Truncate(time.Second); {
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

// ownObjects returns our objects that are about this very node.
func (l *loop) ownObjects(b *nodeTreatments, p *nodeState) []remediationObject {
	var ours []remediationObject
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if o := b.objects[key]; l.isOurs(o.Object) && o.IsOf(p.node) {
			ours = append(ours, o)
		}
	}
	return ours
}

func (l *loop) isTreated(b *nodeTreatments, p *nodeState) bool { return len(l.ownObjects(b, p)) > 0 }

// startTasks sends what is queued, as far as there are nurses.
func (l *loop) startTasks(ctx context.Context, now time.Time) {
	for tries := l.taskQueue.len(); tries > 0 && l.tasksRunning < maxConcurrentTasks; tries-- {
		b := l.taskQueue.pop()
		if e := l.nextStartable(now, b); e != nil {
			l.runTaskInBackground(ctx, now, b, e)
		}
	}
}

// nextStartable looks once more at what is to be done about a bed, and returns it if it may be
// now. What takes a place waits for the ledger first.
func (l *loop) nextStartable(now time.Time, b *nodeTreatments) *task {
	b.stage = idle
	e, due := l.nextTask(now, b)
	switch {
	case e == nil:
		l.sleepUntil(now, b, due)
	case e.takesSlot() && l.isOverAllowance(now, e):
		l.sleepUntil(now, b, earliest(due, l.releaseSlot(now, b, e.rule))) // who has waited longer goes first
	case e.takesSlot() && b.granted != e.ledgerEntry():
		b.stage = awaitingLedger
		l.ledger.queuedTreatments = append(l.ledger.queuedTreatments, b)
	default:
		return e
	}
	return nil
}

// sleepUntil leaves a bed alone until there may be something to do. What is no longer to
// be done, and could be, is no setback any more.
func (l *loop) sleepUntil(now time.Time, b *nodeTreatments, until time.Time) {
	maps.DeleteFunc(b.failures, func(_ taskKind, s taskFailure) bool {
		if now.Before(s.notBefore) {
			until = earliest(until, s.notBefore)
			return false
		}
		return true
	})
	b.due = until
	l.nextTreatmentDue = earliest(l.nextTreatmentDue, until)
	if b.isEmpty() && until.IsZero() {
		delete(l.treatments, b.node)
	}
}

// runDueTreatments looks at the beds whose time has come, and returns when the next one's
// will have.
func (l *loop) runDueTreatments(now time.Time) (due time.Time) {
	if l.nextTreatmentDue.IsZero() || now.Before(l.nextTreatmentDue) {
		return l.nextTreatmentDue
	}
	l.nextTreatmentDue = time.Time{}
	var woken []string
	for node, b := range l.treatments {
		switch {
		case b.due.IsZero():
		case now.Before(b.due):
			l.nextTreatmentDue = earliest(l.nextTreatmentDue, b.due)
		default:
			b.due = time.Time{}
			woken = append(woken, node)
		}
	}
	slices.Sort(woken)
	l.reobserve(now, woken...) // somebody's lock may have ended
	return l.nextTreatmentDue
}

// startTask notes that an errand is being run, and returns what its report begins with.
func (l *loop) startTask(now time.Time, b *nodeTreatments, e *task) *taskResult {
	r := &taskResult{treatments: b, task: e, sentFirst: b.sent}
	b.stage = inFlight
	l.tasksRunning++
	switch {
	case (e.kind == createRemediation || e.kind == terminateClaim) && b.granted.Object != "":
		b.sent = now
	case e.kind == deleteRemediation:
		b.deleting = e.object.UID
	}
	return r
}

func (l *loop) runTaskInBackground(ctx context.Context, now time.Time, b *nodeTreatments, e *task) {
	r := l.startTask(now, b, e)
	l.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		r.err = l.runTask(ctx, r)
		if r.result == treat.Made {
			r.result = treat.Classify(r.err)
		}
		l.taskResults <- r
	})
}

// runTask makes the writes of an errand. It is the only part of errands that is
// not run by the loop, and looks at nothing that is the loop's.
func (l *loop) runTask(ctx context.Context, r *taskResult) (err error) {
	e := r.task
	switch e.kind {
	case createRemediation:
		return l.runCreateRemediation(ctx, r)
	case deleteRemediation:
		if e.reason.Code == triage.NodeGone {
			if isFree, err := l.fetchNode(ctx, r); err != nil || !isFree {
				return err
			}
		}
		if err := l.fetchPolicy(ctx, r); err != nil {
			return err
		}
		if e.reason.Code == triage.NodeGone { // it may say by now that this was meant to be
			return l.write.DeleteRemediationAsKnown(ctx, e.object)
		}
		return l.write.DeleteRemediation(ctx, e.object)
	case annotateRemediation:
		r.version, err = l.write.AnnotateRemediation(ctx, e.object, e.annotations)
	case takeLease:
		err = l.obtainLease(ctx, r)
	case releaseLease:
		err = l.write.ReleaseLease(ctx, e.lease)
	case clearConfirmation:
		r.version, err = l.write.RemoveConfirmation(ctx, e.node)
	case terminateClaim:
		err = l.runTerminateClaim(ctx, r)
	case cancelTermination:
		err = l.runCancelTermination(ctx, r)
	}
	return err
}

// runCreateRemediation locks the node, looks at it once more, asks the loop once more, and makes the
// object. These are the last things before: whatever the lock had to wait for, the node
// may have recovered meanwhile, or the gate may have closed. Then it is unlocked again.
func (l *loop) runCreateRemediation(ctx context.Context, r *taskResult) error {
	e := r.task
	// Where there is no place for locks, nobody can hold one.
	if err := l.obtainLease(ctx, r); err != nil && !apierrors.IsNotFound(err) || r.result == treat.Stale {
		return err
	}
	if isStill, err := l.isAsKnown(ctx, r); err != nil || !isStill {
		return err
	}
	may, err := l.maySendStart(ctx, e)
	switch {
	case err != nil:
		r.result = treat.Busy // nothing was sent
		return err
	case !may:
		r.calledOff, r.result = true, treat.Stale
		return nil
	}
	r.object, err = l.write.CreateRemediation(ctx, e.create)
	r.isCreated = err == nil
	if apierrors.IsAlreadyExists(err) { // an answer was lost, or it is somebody else's
		r.object, err = l.write.FetchRemediation(ctx, remediation.Read(e.create))
	}
	return err
}

// isAsKnown says whether a node is in all that counts what it is known to be. If it
// is not, the report tells how, and the loop decides again. It is read only if it has
// another version, which a heartbeat may have given it: it is large.
func (l *loop) isAsKnown(ctx context.Context, r *taskResult) (isStill bool, err error) {
	known := r.task.node
	isStill, err = l.write.IsStill(ctx, known)
	if err == nil && !isStill {
		r.fresh, err = l.write.Fetch(ctx, known.Name)
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

// obtainLease writes a lease. If it has changed meanwhile, the report tells how.
func (l *loop) obtainLease(ctx context.Context, r *taskResult) (err error) {
	r.lease, err = l.write.ObtainLease(ctx, r.task.lease)
	if err == nil {
		r.isLeased = true
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return err
	}
	now, failed := l.write.FetchLease(ctx, r.task.node.Name)
	if failed != nil {
		return failed
	}
	if now == nil && r.task.lease.ResourceVersion == "" { // there is no namespace to make it in
		return err
	}
	r.lease, r.isLeased, r.result = now, true, treat.Stale // the loop decides again
	return nil
}

// fetchNode makes sure that the node is gone whose treatment is to be ended for
// that reason: the watch of nodes may be behind that of remediation objects.
func (l *loop) fetchNode(ctx context.Context, r *taskResult) (isGone bool, err error) {
	fresh, err := l.write.Fetch(ctx, r.treatments.node)
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

// fetchPolicy makes sure that the policy is the one by which a node is not sick.
// Whoever has lost the lead and does not know it yet may know of what the next one has
// made, and not yet of the edit that it was made for.
func (l *loop) fetchPolicy(ctx context.Context, r *taskResult) error {
	known := r.task.policy
	if known == nil {
		return nil
	}
	now, err := l.write.FetchOwner(ctx, known.owner)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case now.UID != known.owner.UID || now.Generation != known.generation:
		r.result = treat.Stale
		return fmt.Errorf("%s %s has changed meanwhile", known.owner.Kind, known.owner.Name)
	}
	return nil
}

var taskKindNames = [...]string{createRemediation: "begin", deleteRemediation: "end", annotateRemediation: "note", takeLease: "lock", releaseLease: "unlock", clearConfirmation: "unconfirm", terminateClaim: "terminate", cancelTermination: "spare"}

func (t taskKind) String() string { return taskKindNames[t] }

// resource is what a task writes, as metrics name it.
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

// failed says what could not be done.
func (t taskKind) failed() string {
	switch t {
	case createRemediation:
		return "could not be begun"
	case deleteRemediation:
		return "could not be ended"
	case annotateRemediation:
		return "could not be noted on"
	case terminateClaim:
		return "the NodeClaim could not be deleted"
	case cancelTermination:
		return "the NodeClaim could not be spared"
	default:
		return "the node's Lease could not be written"
	}
}
