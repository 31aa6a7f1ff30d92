package remediation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// What a Work does.
const (
	CreateRemediation   = "create remediation"
	DeleteRemediation   = "delete remediation"
	AnnotateRemediation = "annotate remediation"
	TakeLease           = "take Lease"
	ReleaseLease        = "release Lease"
	ClearConfirmation   = "clear confirmation"
)

// Work is the work of a task for the remediation objects of a node: one of the
// constants above.
type Work struct {
	remediations *Treatment
	Does         string

	Object      remediation.Object         // to delete or annotate
	Create      *unstructured.Unstructured // to create while holding the node's Lease
	Annotations map[string]*string
	Lease       *coordinationv1.Lease // to write or delete
	Request     *remediation.Request  // the policy whose decision ends a treatment, as last seen; nil if gone

	// The results of Run.
	Current    *unstructured.Unstructured // the object that was created, or that existed already
	Existed    bool                       // the object existed already
	Version    string                     // the new version, if only that is known
	NewLease   *coordinationv1.Lease
	LeaseKnown bool // NewLease is current; nil means that it does not exist
}

// task returns a task for a node, which is nil if it is gone.
func (rm *Treatment) task(does string, node *corev1.Node, rule triage.RuleID, reason triage.Reason, work Work) *engine.Task {
	t := &engine.Task{Kind: does, Resource: "remediations", FailureEvent: treat.RemediationSkipped, Rule: rule, Reason: reason, Node: node}
	switch does {
	case CreateRemediation:
		t.Failure = "could not be begun"
	case DeleteRemediation:
		t.Failure = "could not be ended"
	case AnnotateRemediation:
		t.Failure = "could not be annotated"
	case TakeLease, ReleaseLease:
		t.Failure, t.Resource = "the node's Lease could not be written", "leases"
	case ClearConfirmation:
		t.Failure, t.Resource = "the annotation that confirms the node's health could not be removed", "nodes"
	}
	if t.Object = string(work.Object.UID); work.Create != nil { // it has no UID yet
		t.Object = refOf(remediation.Read(work.Create)).String()
	}
	work.remediations, work.Does = rm, does
	t.Work = &work
	return t
}

// wasAnnotationRefused reports whether the API server rejects annotations of an object. Then its
// remediator cannot be told to stop.
func wasAnnotationRefused(nodeTasks *engine.NodeTasks, o remediationObject) bool {
	return nodeTasks.WasRefused(AnnotateRemediation, string(o.UID))
}

// Owns reports true: users choose the kinds of remediation objects. The engine asks this
// treatment last.
func (*Treatment) Owns(ledger.ObjectRef) bool { return true }

// Concerns reports whether the plan of a node names a rule that treats nodes, or whether
// its health is confirmed.
func (rm *Treatment) Concerns(n *engine.Node, plan triage.Plan) bool {
	return rm.namesTreatmentRule(plan.Release) || rm.namesTreatmentRule(plan.Cancel) ||
		plan.Treatment != nil && rm.isTreatmentRule(plan.Treatment.Rule) ||
		isConfirmed(n.Object) && slices.ContainsFunc(rm.requesters, Requester.ReadsConfirmations)
}

// holder returns the holder identity for the Lease of a node that a rule treats.
func holder(rule triage.RuleID) string { return nodelease.HolderOf(rule.Name) }

func isConfirmed(node *corev1.Node) bool {
	_, confirmed := node.Annotations[remediation.ConfirmedAnnotation]
	return confirmed
}

// Tasks yields the tasks for the remediation objects and the Lease of a node.
func (rm *Treatment) Tasks(now time.Time, nodeTasks *engine.NodeTasks, state *engine.Node, plan triage.Plan) iter.Seq2[*engine.Task, time.Time] {
	return func(yield func(*engine.Task, time.Time) bool) {
		n := rm.nodes[nodeTasks.Node]
		for t := range rm.removeOrphans(now, nodeTasks, n, state) {
			if !yield(t, time.Time{}) {
				return
			}
		}
		if state == nil {
			return // the API server deletes the Lease with the node
		}
		for _, reason := range plan.Release {
			if !rm.treats(n, state, reason.Rule) {
				continue
			}
			for t, due := range rm.endTreatment(now, nodeTasks, n, state, reason) {
				if !yield(t, due) {
					return
				}
			}
		}
		for _, reason := range plan.Cancel {
			if rm.treats(n, state, reason.Rule) && !yield(nil, rm.host.ReleaseSlot(now, nodeTasks, reason.Rule)) {
				return
			}
		}
		if planned := plan.Treatment; planned != nil && rm.treats(n, state, planned.Rule) {
			for t, due := range rm.plannedTasks(now, nodeTasks, n, state, planned) {
				if !yield(t, due) {
					return
				}
			}
		}
		yield(rm.leaseTask(now, nodeTasks, n, state, plan))
	}
}

// plannedTasks yields the tasks of a planned treatment.
func (rm *Treatment) plannedTasks(now time.Time, nodeTasks *engine.NodeTasks, n *nodeObjects, state *engine.Node, planned *triage.PlannedTreatment) iter.Seq2[*engine.Task, time.Time] {
	return func(yield func(*engine.Task, time.Time) bool) {
		for t := range rm.annotationTasks(now, n, state, planned) {
			if !yield(t, time.Time{}) {
				return
			}
		}
		for _, o := range n.objectsOf(planned.Rule) {
			for _, due := range []time.Time{rm.mayWorkUntil(o, planned), o.Created.Add(remediation.OldAfter)} {
				if now.Before(due) && !yield(nil, due) {
					return
				}
			}
		}
		// The annotation confirmed the node's health before this treatment.
		if isConfirmed(state.Object) && !rm.isTreated(n, state) {
			if !yield(rm.task(ClearConfirmation, state.Object, triage.RuleID{}, triage.Reason{}, Work{}), time.Time{}) {
				return
			}
		}
		if t := rm.creationTask(now, nodeTasks, n, state, planned); t != nil {
			yield(t, time.Time{})
		}
	}
}

// removeOrphans yields tasks that delete the objects of a node that is gone or has been
// created again. An object that removes its node stays until the remediator has succeeded,
// as with medik8s, and the ledger names the node: otherwise no record of the removal would be
// left. If a new node has the name, the object of a failed removal goes, too: the new node may
// need an object of that name.
//
// A remediator that keeps its object with a finalizer is told to stop first.
// self-node-remediation otherwise waits for the node forever, or fences a new node of that
// name.
func (rm *Treatment) removeOrphans(now time.Time, nodeTasks *engine.NodeTasks, n *nodeObjects, state *engine.Node) iter.Seq[*engine.Task] {
	return func(yield func(*engine.Task) bool) {
		for _, key := range n.sortedObjects() {
			if t := rm.removeOrphan(now, nodeTasks, n.objects[key], state); t != nil && !yield(t) {
				return
			}
		}
	}
}

// removeOrphan returns the next task for an object if its node is gone, nil for none.
func (rm *Treatment) removeOrphan(now time.Time, nodeTasks *engine.NodeTasks, o remediationObject, state *engine.Node) *engine.Task {
	mustStop := len(o.Finalizers) > 0 && !o.TimedOut && !wasAnnotationRefused(nodeTasks, o)
	if !rm.isOurs(o) || o.isEnding() && !mustStop || state != nil && o.IsOf(state.Object) {
		return nil
	}
	hasFinished := o.Succeeded || o.Failed && state != nil
	if o.DeletesNode && (!hasFinished || rm.host.LedgerLacks(o.Node, o.hasRemoved)) {
		return nil
	}
	rule := o.rule
	if c := rm.request(rule); c != nil && !c.IsFollowed() {
		return nil
	}
	var node *corev1.Node
	if state != nil {
		node = state.Object
	}
	reason := triage.Reason{Code: triage.NodeGone, Rule: rule}
	if mustStop {
		return rm.task(AnnotateRemediation, node, rule, reason, Work{Object: o.Object, Annotations: map[string]*string{remediation.TimedOutAnnotation: new(remediation.Stamp(now))}})
	}
	return rm.task(DeleteRemediation, node, rule, reason, Work{Object: o.Object})
}

// endTreatment yields tasks that end what a rule has started on a node. It frees the slot once no
// object exists and no write is in flight.
func (rm *Treatment) endTreatment(now time.Time, nodeTasks *engine.NodeTasks, n *nodeObjects, state *engine.Node, reason triage.Reason) iter.Seq2[*engine.Task, time.Time] {
	return func(yield func(*engine.Task, time.Time) bool) {
		ours := n.objectsOf(reason.Rule)
		if len(ours) == 0 {
			yield(nil, rm.host.ReleaseSlot(now, nodeTasks, reason.Rule))
			return
		}
		for _, o := range ours {
			until := nodeTasks.InFlightUntil(now)
			switch {
			case o.isEnding() || !o.IsOf(state.Object): // the watch will report its deletion
				continue
			case !until.IsZero() && nodeTasks.Slot().Object == refOf(o.Object): // another attempt to create it may still arrive, and must find it there
				if !yield(nil, until) {
					return
				}
				continue
			}
			if !yield(rm.task(DeleteRemediation, state.Object, reason.Rule, reason, Work{Object: o.Object, Request: rm.request(reason.Rule)}), time.Time{}) {
				return
			}
		}
	}
}

// annotationTasks yields tasks that annotate the objects of the treatment.
func (rm *Treatment) annotationTasks(now time.Time, n *nodeObjects, state *engine.Node, planned *triage.PlannedTreatment) iter.Seq[*engine.Task] {
	return func(yield func(*engine.Task) bool) {
		c := rm.request(planned.Rule)
		if c == nil {
			return
		}
		for _, o := range n.objectsOf(planned.Rule) {
			step, _ := o.Step(c.Ladder)
			isOver := step < planned.Step || planned.HealthySince.IsZero() && !now.Before(rm.mayWorkUntil(o, planned))
			isKept := !o.isEnding() || isOver && len(o.Finalizers) > 0 // its remediator may still work
			notes := annotationsFor(o.Object, isOver, planned, now)
			if len(notes) == 0 || !isKept || !o.IsOf(state.Object) {
				continue
			}
			if !yield(rm.task(AnnotateRemediation, state.Object, planned.Rule, planned.Reason, Work{Object: o.Object, Annotations: notes})) {
				return
			}
		}
	}
}

// creationTask returns a task that creates the object of the treatment's current step,
// nil for none.
func (rm *Treatment) creationTask(now time.Time, nodeTasks *engine.NodeTasks, n *nodeObjects, state *engine.Node, planned *triage.PlannedTreatment) *engine.Task {
	c := rm.request(planned.Rule)
	if c == nil || planned.Step >= len(c.Ladder) {
		return nil
	}
	for _, o := range n.objectsOf(planned.Rule) {
		step, _ := o.Step(c.Ladder)
		// The remediator of an earlier step must know that its time is over. If its API allows
		// no patch, it cannot be told.
		isTold := o.TimedOut || o.Succeeded || o.isEnding() && len(o.Finalizers) == 0 || wasAnnotationRefused(nodeTasks, o)
		if step == planned.Step || step < planned.Step && !isTold {
			return nil
		}
	}
	template := rm.template(c.Ladder[planned.Step])
	if template == nil {
		return nil
	}
	object, err := remediation.Make(template, state.Object, c.Owner)
	if err != nil { // checked when the template was loaded
		return nil
	}
	nodeTasks.NoteDue(now, state)
	t := rm.task(CreateRemediation, state.Object, planned.Rule, planned.Reason, Work{
		Create: object, Lease: nodelease.Take(rm.leaseOf(nodeTasks.Node), state.Object, holder(planned.Rule), leaseDuration, now),
	})
	t.Step, t.Begins = planned.Step, true
	if n != nil {
		t.NotBefore = n.createNotBefore
	}
	// Under a gate alone a worker takes no slot: the name of its object makes a late write
	// harmless. Under the limits on all rules it takes a slot.
	if isPlane := remediation.IsControlPlane(state.Object); isPlane || c.TakesSlot || rm.host.Core().LimitsTreatments() {
		t.Slot = ledger.ObjectWrite{Slot: engine.SlotOf(planned.Rule, state.Object), Step: planned.Step, ControlPlane: isPlane, Object: refOf(remediation.Read(object))}
	}
	return t
}

// treats reports whether the rule treats the node with a remediation object.
func (rm *Treatment) treats(n *nodeObjects, state *engine.Node, rule triage.RuleID) bool {
	r := rm.requesterOf(rule)
	return r != nil && !r.IsDeferring() && (len(n.objectsOf(rule)) > 0 || r.MayRequest(state, rule))
}

// annotationsFor returns the annotations to write on an object of a treatment: that it is old,
// that its time is up, and since when the node is healthy. A nil value removes an annotation.
func annotationsFor(o remediation.Object, isOver bool, planned *triage.PlannedTreatment, now time.Time) map[string]*string {
	notes := map[string]*string{}
	if planned.HealthySince.IsZero() && !o.IsOld && !o.Created.IsZero() && !now.Before(o.Created.Add(remediation.OldAfter)) {
		notes[remediation.OldAnnotation] = new(remediation.OldValue)
	}
	if isOver && !o.TimedOut && !o.Succeeded {
		notes[remediation.TimedOutAnnotation] = new(remediation.Stamp(now))
	}
	switch since := planned.HealthySince.Truncate(time.Second); {
	case since.IsZero() && !o.HealthySince.IsZero():
		notes[remediation.HealthyDelayAnnotation] = nil
	case !since.IsZero() && !since.Equal(o.HealthySince):
		notes[remediation.HealthyDelayAnnotation] = new(remediation.Stamp(since))
	}
	return notes
}

// ownObjects returns this controller's objects for this node, not for an earlier node of
// its name.
func (rm *Treatment) ownObjects(n *nodeObjects, state *engine.Node) []remediationObject {
	var ours []remediationObject
	for _, key := range n.sortedObjects() {
		if o := n.objects[key]; rm.isOurs(o) && o.IsOf(state.Object) {
			ours = append(ours, o)
		}
	}
	return ours
}

func (rm *Treatment) isTreated(n *nodeObjects, state *engine.Node) bool {
	return len(rm.ownObjects(n, state)) > 0
}

// MayArrive reports true: the creation of an object names no version.
func (*Treatment) MayArrive(ledger.ObjectWrite) bool { return true }

// FreesSlot reports whether no object can still be created for a node that is gone.
func (*Treatment) FreesSlot(now time.Time, nodeTasks *engine.NodeTasks) (free bool, due time.Time) {
	due = nodeTasks.InFlightUntil(now)
	return due.IsZero(), due
}

// Restore resumes a creation that the previous leader may have sent. If it has succeeded,
// the object is known already.
func (rm *Treatment) Restore(now time.Time, nodeTasks *engine.NodeTasks, state *engine.Node) bool {
	e := nodeTasks.Slot()
	rule := triage.RuleID(e.Rule)
	if _, arrived := rm.getOrCreate(nodeTasks.Node).objects[e.Object]; arrived || rm.isDeferring(rule) {
		return false
	}
	if !nodeTasks.HasSlotFor(state) {
		rm.host.Logger().Info("treatment of a deleted node restored", "node", e.Node, "rule", rule.String(), "object", e.Object.String())
		return true
	}
	rm.host.Core().Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: now})
	rm.host.Logger().Info("treatment restored", "node", e.Node, "rule", rule.String(), "object", e.Object.String())
	return true
}

// Run makes the requests of the task.
func (w *Work) Run(ctx context.Context, r *engine.TaskResult) (err error) {
	write := w.remediations.host.Writer()
	switch w.Does {
	case CreateRemediation:
		return w.runCreate(ctx, r)
	case DeleteRemediation:
		return w.runDelete(ctx, r)
	case AnnotateRemediation:
		return w.runAnnotate(ctx, r)
	case TakeLease:
		err = w.obtainLease(ctx, r)
	case ReleaseLease: // a replica that lost the lead may see a Lease of the new leader, and not yet why it was taken
		if isStill, err := w.remediations.host.IsUnchanged(ctx, r); err != nil || !isStill {
			return err
		}
		err = write.ReleaseLease(ctx, w.Lease)
	case ClearConfirmation:
		w.Version, err = write.RemoveConfirmation(ctx, r.Task.Node)
	}
	return err
}

// Prepare takes the node's Lease before its remediation begins. While the task waits for the Lease, the
// node may recover or the gate may close; the engine checks both afterwards.
func (w *Work) Prepare(ctx context.Context, r *engine.TaskResult) (may bool, err error) {
	// Without the namespace for Leases, no other component can hold a Lease.
	if err := w.obtainLease(ctx, r); err != nil && !apierrors.IsNotFound(err) {
		return false, r.NotWritten(err)
	}
	return r.Outcome != treat.Stale, nil
}

// runCreate creates the object.
func (w *Work) runCreate(ctx context.Context, r *engine.TaskResult) (err error) {
	host := w.remediations.host
	w.Current, err = host.Writer().CreateRemediation(ctx, w.Create)
	if w.Existed = apierrors.IsAlreadyExists(err); w.Existed { // an answer was lost, or another component created it
		if w.Current, err = host.Writer().FetchRemediation(ctx, remediation.Read(w.Create)); err != nil {
			return r.NotWritten(err)
		}
	}
	return err
}

// runDelete deletes an object after it has checked that the reason still holds. A replica that lost
// the lead without noticing may see an object of the new leader, but not yet the change of the node
// or of the policy that caused it.
func (w *Work) runDelete(ctx context.Context, r *engine.TaskResult) error {
	if err := w.fetchPolicy(ctx, r); err != nil || r.Outcome == treat.Stale {
		return err
	}
	write := w.remediations.host.Writer()
	isOrphan := r.Task.Reason.Code == triage.NodeGone
	switch { // last, because a node changes more often than a policy
	case isOrphan:
		if isGone, err := w.fetchNode(ctx, r); err != nil || !isGone {
			return err
		}
	case r.Task.Node != nil:
		if isStill, err := w.remediations.host.IsUnchanged(ctx, r); err != nil || !isStill {
			return err
		}
	}
	if isOrphan { // the object may now say that it removes the node on purpose
		return write.DeleteRemediationAsKnown(ctx, w.Object)
	}
	return write.DeleteRemediation(ctx, w.Object)
}

// runAnnotate annotates an object. If the node is the reason, it checks that the node is gone.
func (w *Work) runAnnotate(ctx context.Context, r *engine.TaskResult) (err error) {
	if r.Task.Reason.Code == triage.NodeGone {
		if isGone, err := w.fetchNode(ctx, r); err != nil || !isGone {
			return err
		}
	}
	w.Version, err = w.remediations.host.Writer().AnnotateRemediation(ctx, w.Object, w.Annotations)
	return err
}

// obtainLease writes a Lease. If the Lease has changed, the task learns the current Lease.
func (w *Work) obtainLease(ctx context.Context, r *engine.TaskResult) (err error) {
	write := w.remediations.host.Writer()
	w.NewLease, err = write.ObtainLease(ctx, w.Lease)
	if err == nil {
		w.LeaseKnown = true
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, failed := write.FetchLease(ctx, r.Task.Node.Name)
	if failed != nil {
		return failed
	}
	if current == nil && w.Lease.ResourceVersion == "" { // the namespace for Leases does not exist
		return err
	}
	w.NewLease, w.LeaseKnown, r.Outcome = current, true, treat.Stale // the engine decides again
	return nil
}

// fetchNode checks that the node is gone before its treatment ends for that reason.
// The watch of nodes may be behind the watch of remediation objects.
func (w *Work) fetchNode(ctx context.Context, r *engine.TaskResult) (isGone bool, err error) {
	fresh, err := w.remediations.host.Writer().Fetch(ctx, r.NodeTasks.Node)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, r.NotWritten(err)
	case !w.Object.IsOf(fresh):
		return true, nil
	}
	r.Fresh, r.Outcome = fresh, treat.Stale
	return false, nil
}

// fetchPolicy checks that the policy is unchanged since it found the node healthy.
func (w *Work) fetchPolicy(ctx context.Context, r *engine.TaskResult) error {
	known := w.Request
	if known == nil {
		return nil
	}
	current, err := w.remediations.host.Writer().FetchOwner(ctx, known.Owner)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return r.NotWritten(err)
	case current.UID != known.Owner.UID || current.Generation != known.Generation:
		r.Outcome = treat.Stale
		return fmt.Errorf("%s %s has changed since the decision", known.Owner.Kind, known.Owner.Name)
	}
	return nil
}

// Done takes in the result of the task without waiting for the watch.
func (w *Work) Done(now time.Time, r *engine.TaskResult) {
	rm := w.remediations
	n := rm.getOrCreate(r.NodeTasks.Node)
	if w.LeaseKnown && w.NewLease == nil {
		n.lease = nil
	} else if w.LeaseKnown {
		if _, isGone := n.deletedDuringTask[w.NewLease.UID]; !isGone {
			n.upsertLease(w.NewLease)
		}
	}
	if w.LeaseKnown && r.Outcome == treat.Stale {
		r.Learned = r.Learned || w.NewLease == nil || w.NewLease.ResourceVersion != w.Lease.ResourceVersion
	}
	if w.Does == DeleteRemediation {
		n.deleting = w.Object.UID
	}
	if w.Current != nil {
		w.takeObject(now, r, n, remediation.Read(w.Current))
	}
	n.deletedDuringTask = nil
	if r.Outcome != treat.Made {
		return
	}
	switch w.Does {
	case DeleteRemediation:
		key := refOf(w.Object)
		if o, there := n.objects[key]; there && o.UID == w.Object.UID {
			o.deletedByUs = true
			n.objects[key] = o
		}
	case ReleaseLease:
		if n.lease != nil && n.lease.UID == w.Lease.UID {
			n.lease = nil
		}
	case ClearConfirmation:
		w.confirmationCleared(now, r)
	case AnnotateRemediation:
		w.annotated(r, n)
	}
}

// HasArrived says whether the objects of the node show that the object of the task was created or
// deleted. The treatment reports nothing about other tasks.
func (w *Work) HasArrived(time.Time) bool {
	switch w.Does {
	case CreateRemediation:
		created := remediation.Read(w.Create)
		n := w.remediations.byObject[refOf(created)]
		return n != nil && n.node == created.Node && n.objects[refOf(created)].Owner == created.Owner
	case DeleteRemediation:
		n := w.remediations.byObject[refOf(w.Object)]
		return n == nil || n.objects[refOf(w.Object)].UID != w.Object.UID || n.objects[refOf(w.Object)].isEnding()
	}
	return false
}

// takeObject stores an object that the task created or found.
func (w *Work) takeObject(now time.Time, r *engine.TaskResult, n *nodeObjects, o remediation.Object) {
	rm := w.remediations
	wasKnown, isGone := n.deletedDuringTask[o.UID] // the watch has reported its creation and deletion already
	if o.Node == n.node && !wasKnown {             // an object of another node belongs there
		rm.upsert(n, o)
		if isGone {
			rm.objectDeleted(now, n, refOf(o))
		}
	}
	if !w.Existed {
		return
	}
	if o.Node != n.node || rm.ruleOf(o) != r.Task.Rule {
		r.Outcome, r.Err = treat.Refused, errors.New(refOf(o).String()+" exists already, and was not created for this node and policy")
	} else if c := rm.request(r.Task.Rule); c != nil {
		if step, _ := o.Step(c.Ladder); step != r.Task.Step {
			r.Outcome, r.Err = treat.Refused, fmt.Errorf("%s exists already, and was created for step %d, not for step %d", refOf(o), step+1, r.Task.Step+1)
		}
	}
}

// confirmationCleared stores the node without the removed annotation.
func (w *Work) confirmationCleared(now time.Time, r *engine.TaskResult) {
	host := w.remediations.host
	after := r.Task.Node.DeepCopy()
	after.ResourceVersion = w.Version
	delete(after.Annotations, remediation.ConfirmedAnnotation)
	host.NodeRead(now, after)
}

// annotated stores the new annotations of an object.
func (w *Work) annotated(r *engine.TaskResult, n *nodeObjects) {
	host, t := w.remediations.host, r.Task
	key := refOf(w.Object)
	if o, there := n.objects[key]; there && o.UID == w.Object.UID && engine.OlderVersion(o.ResourceVersion, w.Version) {
		o.Object = o.Noted(w.Annotations, w.Version)
		n.objects[key] = o
	}
	counts := w.remediations.requesterOf(t.Rule)
	if _, isOver := w.Annotations[remediation.TimedOutAnnotation]; isOver && t.Reason.Code != triage.NodeGone {
		counts.CountRemediation(t.Rule, t.Reason.Condition, "timed_out")
	}
	if _, isOld := w.Annotations[remediation.OldAnnotation]; isOld {
		counts.ObserveObject(w.Object, remediation.ObjectIsOld)
		host.Logger().Warn("a remediation takes long: look at its remediator", "node", n.node, "object", key.String(), "after", remediation.OldAfter.String())
	}
	host.Logger().Info("remediation annotated", "node", n.node, "object", key.String(), "reason", t.Reason.String())
}
