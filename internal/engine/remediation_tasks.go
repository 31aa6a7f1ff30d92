package engine

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

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// What a remediationTask does.
const (
	createRemediation   = "create remediation"
	deleteRemediation   = "delete remediation"
	annotateRemediation = "annotate remediation"
	takeLease           = "take Lease"
	releaseLease        = "release Lease"
	clearConfirmation   = "clear confirmation"
)

// remediationTask is the work of a task for the remediation objects of a node: one of the
// constants above.
type remediationTask struct {
	remediations *remediations
	does         string

	object      remediation.Object         // to delete or annotate
	create      *unstructured.Unstructured // to create while holding the node's Lease
	annotations map[string]*string
	lease       *coordinationv1.Lease // to write or delete
	policy      *remediation.Request  // the policy whose decision ends a treatment, as last seen; nil if gone

	// The results of Run.
	current    *unstructured.Unstructured // the object that was created, or that existed already
	created    bool                       // this task created the object
	version    string                     // the new version, if only that is known
	newLease   *coordinationv1.Lease
	leaseKnown bool // newLease is current; nil means that it does not exist
}

// task returns a task for a node, which is nil if it is gone.
func (rm *remediations) task(does string, node *corev1.Node, rule triage.RuleID, reason triage.Reason, work remediationTask) *Task {
	t := &Task{Kind: does, Resource: "remediations", FailureEvent: treat.RemediationSkipped, Rule: rule, Reason: reason, Node: node}
	switch does {
	case createRemediation:
		t.Failure = "could not be begun"
	case deleteRemediation:
		t.Failure = "could not be ended"
	case annotateRemediation:
		t.Failure = "could not be annotated"
	case takeLease, releaseLease:
		t.Failure, t.Resource = "the node's Lease could not be written", "leases"
	case clearConfirmation:
		t.Failure, t.Resource = "the annotation that confirms the node's health could not be removed", "nodes"
	}
	work.remediations, work.does = rm, does
	t.Work = &work
	return t
}

// Owns reports true: users choose the kinds of remediation objects. The engine asks this
// treatment last.
func (*remediations) Owns(ledger.ObjectRef) bool { return true }

// Concerns reports whether the plan of a node names a rule that treats nodes, or whether
// its health is confirmed.
func (rm *remediations) Concerns(n *Node, plan triage.Plan) bool {
	return rm.namesTreatmentRule(plan.Release) || rm.namesTreatmentRule(plan.CallOff) ||
		plan.Treatment != nil && rm.isTreatmentRule(plan.Treatment.Rule) ||
		isConfirmed(n.Object) && slices.ContainsFunc(rm.requesters, requester.ReadsConfirmations)
}

// holder returns the holder identity for the Lease of a node that a rule treats.
func holder(rule triage.RuleID) string { return nodelease.HolderOf(rule.Name) }

func isConfirmed(node *corev1.Node) bool {
	_, confirmed := node.Annotations[remediation.ConfirmedAnnotation]
	return confirmed
}

// Tasks yields the tasks for the remediation objects and the Lease of a node.
func (rm *remediations) Tasks(now time.Time, lane *Lane, state *Node, plan triage.Plan) iter.Seq2[*Task, time.Time] {
	return func(yield func(*Task, time.Time) bool) {
		n := rm.nodes[lane.Node]
		if t := rm.removeOrphans(n, state); t != nil && !yield(t, time.Time{}) || state == nil {
			return // the API server deletes the Lease with the node
		}
		for _, reason := range plan.Release {
			if rm.treats(n, state, reason.Rule) && !yield(rm.endTreatment(now, lane, n, state, reason)) {
				return
			}
		}
		for _, reason := range plan.CallOff {
			if rm.treats(n, state, reason.Rule) && !yield(nil, rm.engine.ReleaseSlot(now, lane, reason.Rule)) {
				return
			}
		}
		if planned := plan.Treatment; planned != nil && rm.treats(n, state, planned.Rule) {
			for t, due := range rm.plannedTasks(now, lane, n, state, planned) {
				if !yield(t, due) {
					return
				}
			}
		}
		yield(rm.leaseTask(now, lane, n, state, plan))
	}
}

// plannedTasks yields the tasks of a planned treatment.
func (rm *remediations) plannedTasks(now time.Time, lane *Lane, n *nodeObjects, state *Node, planned *triage.PlannedTreatment) iter.Seq2[*Task, time.Time] {
	return func(yield func(*Task, time.Time) bool) {
		if t := rm.annotationTask(now, n, state, planned); t != nil && !yield(t, time.Time{}) {
			return
		}
		for _, o := range n.objectsOf(planned.Rule) {
			if until := rm.mayWorkUntil(o, planned); now.Before(until) && !yield(nil, until) {
				return
			}
		}
		// The annotation confirmed the node's health before this treatment.
		if isConfirmed(state.Object) && !rm.isTreated(n, state) {
			if !yield(rm.task(clearConfirmation, state.Object, triage.RuleID{}, triage.Reason{}, remediationTask{}), time.Time{}) {
				return
			}
		}
		if t := rm.creationTask(now, lane, n, state, planned); t != nil {
			yield(t, time.Time{})
		}
	}
}

// removeOrphans returns a task that deletes an object of a node that is gone or has been
// created again. An object that removes its node stays until the remediator has finished
// and the ledger names the node: otherwise no record of the removal would be left.
func (rm *remediations) removeOrphans(n *nodeObjects, state *Node) *Task {
	for _, key := range n.sortedObjects() {
		o := n.objects[key]
		if !rm.isOurs(o) || o.isEnding() || state != nil && o.IsOf(state.Object) || o.DeletesNode && (!o.Succeeded && !o.Failed || rm.engine.LedgerLacks(o.Node, o.hasRemoved)) {
			continue
		}
		rule := o.rule
		if c := rm.request(rule); c != nil && !c.IsFollowed() {
			continue
		}
		var node *corev1.Node
		if state != nil {
			node = state.Object
		}
		return rm.task(deleteRemediation, node, rule, triage.Reason{Code: triage.NodeGone, Rule: rule}, remediationTask{object: o.Object})
	}
	return nil
}

// endTreatment ends what a rule has started on a node. It frees the slot once no object exists
// and no write is in flight.
func (rm *remediations) endTreatment(now time.Time, lane *Lane, n *nodeObjects, state *Node, reason triage.Reason) (t *Task, due time.Time) {
	ours := n.objectsOf(reason.Rule)
	for _, o := range ours {
		if !o.isEnding() && o.IsOf(state.Object) {
			return rm.task(deleteRemediation, state.Object, reason.Rule, reason, remediationTask{object: o.Object, policy: rm.request(reason.Rule)}), time.Time{}
		}
	}
	if len(ours) > 0 {
		return nil, time.Time{} // the watch will report their deletion
	}
	return nil, rm.engine.ReleaseSlot(now, lane, reason.Rule)
}

// annotationTask returns a task that annotates an object of the treatment, nil for none.
func (rm *remediations) annotationTask(now time.Time, n *nodeObjects, state *Node, planned *triage.PlannedTreatment) *Task {
	c := rm.request(planned.Rule)
	if c == nil {
		return nil
	}
	for _, o := range n.objectsOf(planned.Rule) {
		step, _ := o.Step(c.Ladder)
		isOver := step < planned.Step || planned.HealthySince.IsZero() && !now.Before(rm.mayWorkUntil(o, planned))
		if notes := annotationsFor(o.Object, isOver, planned, now); len(notes) > 0 && !o.isEnding() && o.IsOf(state.Object) {
			return rm.task(annotateRemediation, state.Object, planned.Rule, planned.Reason, remediationTask{object: o.Object, annotations: notes})
		}
	}
	return nil
}

// creationTask returns a task that creates the object of the treatment's current step,
// nil for none.
func (rm *remediations) creationTask(now time.Time, lane *Lane, n *nodeObjects, state *Node, planned *triage.PlannedTreatment) *Task {
	c := rm.request(planned.Rule)
	if c == nil || planned.Step >= len(c.Ladder) {
		return nil
	}
	for _, o := range n.objectsOf(planned.Rule) {
		if step, _ := o.Step(c.Ladder); step == planned.Step {
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
	lane.NoteDue(now, state)
	reason := planned.Reason
	if reason.Action == triage.Terminate { // the core counts a removed node until it is replaced, however it is removed
		reason.Action = triage.Remediate
	}
	t := rm.task(createRemediation, state.Object, planned.Rule, reason, remediationTask{
		create: object, lease: nodelease.Take(rm.leaseOf(lane.Node), state.Object, holder(planned.Rule), leaseDuration, now),
	})
	t.Step, t.Begins = planned.Step, true
	if n != nil {
		t.NotBefore = n.createNotBefore
	}
	// Under a gate a worker takes no slot: the name of its object makes a late write
	// harmless.
	if isPlane := remediation.IsControlPlane(state.Object); isPlane || c.TakesSlot {
		t.Slot = ledger.ObjectWrite{Slot: SlotOf(planned.Rule, state.Object), Step: planned.Step, ControlPlane: isPlane, Object: refOf(remediation.Read(object))}
	}
	return t
}

// treats reports whether the rule treats the node with a remediation object.
func (rm *remediations) treats(n *nodeObjects, state *Node, rule triage.RuleID) bool {
	r := rm.requesterOf(rule)
	return r != nil && !r.IsDeferring() && (len(n.objectsOf(rule)) > 0 || r.MayRequest(state, rule))
}

// annotationsFor returns the annotations to write on an object of a treatment: that its
// time is up, and since when the node is healthy. A nil value removes an annotation.
func annotationsFor(o remediation.Object, isOver bool, planned *triage.PlannedTreatment, now time.Time) map[string]*string {
	notes := map[string]*string{}
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
func (rm *remediations) ownObjects(n *nodeObjects, state *Node) []remediationObject {
	var ours []remediationObject
	for _, key := range n.sortedObjects() {
		if o := n.objects[key]; rm.isOurs(o) && o.IsOf(state.Object) {
			ours = append(ours, o)
		}
	}
	return ours
}

func (rm *remediations) isTreated(n *nodeObjects, state *Node) bool {
	return len(rm.ownObjects(n, state)) > 0
}

// MayArrive reports true: the creation of an object names no version.
func (*remediations) MayArrive(ledger.ObjectWrite) bool { return true }

// FreesSlot reports whether no object can still be created for a node that is gone.
func (*remediations) FreesSlot(now time.Time, lane *Lane) (free bool, due time.Time) {
	due = lane.InFlightUntil(now)
	return due.IsZero(), due
}

// Restore resumes a creation that the previous leader may have sent. If it has succeeded,
// the object is known already.
func (rm *remediations) Restore(now time.Time, lane *Lane, state *Node) bool {
	e := lane.Slot()
	rule := triage.RuleID(e.Rule)
	if _, arrived := rm.of(lane.Node).objects[e.Object]; arrived || rm.isDeferring(rule) {
		return false
	}
	if !lane.HasSlotFor(state) {
		rm.engine.Logger().Info("treatment of a deleted node restored", "node", e.Node, "rule", rule.String(), "object", e.Object.String())
		return true
	}
	rm.engine.Core().Resume(now, triage.Grant{Rule: rule, Node: e.Node, UID: e.UID, Step: e.Step, Since: now})
	rm.engine.Logger().Info("treatment restored", "node", e.Node, "rule", rule.String(), "object", e.Object.String())
	return true
}

// Run makes the requests of the task.
func (w *remediationTask) Run(ctx context.Context, r *Result) (err error) {
	write := w.remediations.engine.Writer()
	switch w.does {
	case createRemediation:
		return w.runCreate(ctx, r)
	case deleteRemediation:
		return w.runDelete(ctx, r)
	case annotateRemediation:
		w.version, err = write.AnnotateRemediation(ctx, w.object, w.annotations)
	case takeLease:
		err = w.obtainLease(ctx, r)
	case releaseLease:
		err = write.ReleaseLease(ctx, w.lease)
	case clearConfirmation:
		w.version, err = write.RemoveConfirmation(ctx, r.Task.Node)
	}
	return err
}

// runCreate takes the node's Lease, checks the node again, asks the loop
// again, and creates the object. While the task waited for the Lease, the node may have
// recovered or the gate may have closed. Then the task ends without creating the object.
func (w *remediationTask) runCreate(ctx context.Context, r *Result) error {
	engine := w.remediations.engine
	// Without the namespace for Leases, no other component can hold a Lease.
	if err := w.obtainLease(ctx, r); err != nil && !apierrors.IsNotFound(err) || r.Outcome == treat.Stale {
		return err
	}
	if isStill, err := engine.IsUnchanged(ctx, r); err != nil || !isStill {
		return err
	}
	may, err := engine.MayStillStart(ctx, r.Task)
	switch {
	case err != nil:
		r.Outcome = treat.Busy // nothing was sent
		return err
	case !may:
		r.Learned, r.Outcome = true, treat.Stale
		return nil
	}
	w.current, err = engine.Writer().CreateRemediation(ctx, w.create)
	w.created = err == nil
	if apierrors.IsAlreadyExists(err) { // an answer was lost, or another component created it
		w.current, err = engine.Writer().FetchRemediation(ctx, remediation.Read(w.create))
	}
	return err
}

// runDelete deletes an object after it has checked that the reason still holds.
func (w *remediationTask) runDelete(ctx context.Context, r *Result) error {
	write := w.remediations.engine.Writer()
	isOrphan := r.Task.Reason.Code == triage.NodeGone
	if isOrphan {
		if isGone, err := w.fetchNode(ctx, r); err != nil || !isGone {
			return err
		}
	}
	if err := w.fetchPolicy(ctx, r); err != nil {
		return err
	}
	if isOrphan { // the object may now say that it removes the node on purpose
		return write.DeleteRemediationAsKnown(ctx, w.object)
	}
	return write.DeleteRemediation(ctx, w.object)
}

// obtainLease writes a Lease. If the Lease has changed, the task learns the current Lease.
func (w *remediationTask) obtainLease(ctx context.Context, r *Result) (err error) {
	write := w.remediations.engine.Writer()
	w.newLease, err = write.ObtainLease(ctx, w.lease)
	if err == nil {
		w.leaseKnown = true
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return err
	}
	current, failed := write.FetchLease(ctx, r.Task.Node.Name)
	if failed != nil {
		return failed
	}
	if current == nil && w.lease.ResourceVersion == "" { // the namespace for Leases does not exist
		return err
	}
	w.newLease, w.leaseKnown, r.Outcome = current, true, treat.Stale // the loop decides again
	return nil
}

// fetchNode checks that the node is gone before its treatment is deleted for that reason.
// The watch of nodes may be behind the watch of remediation objects.
func (w *remediationTask) fetchNode(ctx context.Context, r *Result) (isGone bool, err error) {
	fresh, err := w.remediations.engine.Writer().Fetch(ctx, r.Lane.Node)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case !w.object.IsOf(fresh):
		return true, nil
	}
	r.Fresh, r.Outcome = fresh, treat.Stale
	return false, nil
}

// fetchPolicy checks that the policy is unchanged since it found the node healthy. A
// replica that lost the lead without noticing may see an object of the new leader but not
// yet the policy edit that caused it.
func (w *remediationTask) fetchPolicy(ctx context.Context, r *Result) error {
	known := w.policy
	if known == nil {
		return nil
	}
	current, err := w.remediations.engine.Writer().FetchOwner(ctx, known.Owner)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case current.UID != known.Owner.UID || current.Generation != known.Generation:
		r.Outcome = treat.Stale
		return fmt.Errorf("%s %s has changed since the decision", known.Owner.Kind, known.Owner.Name)
	}
	return nil
}

// Done takes in the result of the task without waiting for the watch.
func (w *remediationTask) Done(now time.Time, r *Result) {
	rm := w.remediations
	n := rm.of(r.Lane.Node)
	if w.leaseKnown && w.newLease == nil {
		n.lease = nil
	} else if w.leaseKnown {
		if _, isGone := n.deletedDuringTask[w.newLease.UID]; !isGone {
			n.upsertLease(w.newLease)
		}
	}
	if w.leaseKnown && r.Outcome == treat.Stale {
		r.Learned = r.Learned || w.newLease == nil || w.newLease.ResourceVersion != w.lease.ResourceVersion
	}
	if w.does == deleteRemediation {
		n.deleting = w.object.UID
	}
	if w.current != nil {
		w.takeObject(now, r, n, remediation.Read(w.current))
	}
	n.deletedDuringTask = nil
	if r.Outcome != treat.Made {
		return
	}
	switch w.does {
	case createRemediation:
		w.reportCreated(now, r)
	case deleteRemediation:
		w.reportDeleted(now, r, n)
	case releaseLease:
		if n.lease != nil && n.lease.UID == w.lease.UID {
			n.lease = nil
		}
	case clearConfirmation:
		w.confirmationCleared(now, r)
	case annotateRemediation:
		w.annotated(r, n)
	}
}

// takeObject stores an object that the task created or found.
func (w *remediationTask) takeObject(now time.Time, r *Result, n *nodeObjects, o remediation.Object) {
	rm := w.remediations
	wasKnown, isGone := n.deletedDuringTask[o.UID] // the watch has reported its creation and deletion already
	if o.Node == n.node && !wasKnown {             // an object of another node belongs there
		rm.upsert(n, o)
		if isGone {
			rm.objectDeleted(now, n, refOf(o))
		}
	}
	if w.created {
		return
	}
	if o.Node != n.node || rm.ruleOf(o) != r.Task.Rule {
		r.Outcome, r.Err = treat.Refused, errors.New(refOf(o).String()+" is there already, and was not made for this node and policy")
	} else if c := rm.request(r.Task.Rule); c != nil {
		if step, _ := o.Step(c.Ladder); step != r.Task.Step {
			r.Outcome, r.Err = treat.Refused, fmt.Errorf("%s is there already, and was made for step %d, not for step %d", refOf(o), step+1, r.Task.Step+1)
		}
	}
}

// confirmationCleared stores the node without the removed annotation.
func (w *remediationTask) confirmationCleared(now time.Time, r *Result) {
	engine := w.remediations.engine
	after := r.Task.Node.DeepCopy()
	after.ResourceVersion = w.version
	delete(after.Annotations, remediation.ConfirmedAnnotation)
	engine.NodeRead(now, after)
}

// annotated stores the new annotations of an object.
func (w *remediationTask) annotated(r *Result, n *nodeObjects) {
	engine, t := w.remediations.engine, r.Task
	key := refOf(w.object)
	if o, there := n.objects[key]; there && o.UID == w.object.UID && OlderVersion(o.ResourceVersion, w.version) {
		o.Object = o.Noted(w.annotations, w.version)
		n.objects[key] = o
	}
	if _, isOver := w.annotations[remediation.TimedOutAnnotation]; isOver {
		w.remediations.requesterOf(t.Rule).CountRemediation(t.Rule, t.Reason.Condition, "timed_out")
	}
	engine.Logger().Info("remediation annotated", "node", n.node, "object", key.String(), "reason", t.Reason.String())
}

// reportCreated reports a started treatment.
func (w *remediationTask) reportCreated(now time.Time, r *Result) {
	engine, t := w.remediations.engine, r.Task
	if !w.created { // it existed: an earlier answer was lost
		return
	}
	outcome := "begun"
	if t.Step > 0 {
		outcome = "escalated"
	}
	counts := w.remediations.requesterOf(t.Rule)
	counts.CountRemediation(t.Rule, t.Reason.Condition, outcome)
	if due := r.Lane.Begun(); !due.IsZero() {
		counts.ObserveStart(t.Rule, now.Sub(due))
	}
	object := refOf(remediation.Read(w.current)).String()
	engine.Logger().Info("remediation begun", "node", r.Lane.Node, "rule", t.Rule.String(), "object", object, "reason", t.Reason.String())
	engine.PublishEvent(t.Rule, t.Node, treat.RemediationCreated, t.Reason, "made "+object)
}

// reportDeleted reports a deleted object. A finalizer may still keep the object; the
// watch reports its end.
func (w *remediationTask) reportDeleted(now time.Time, r *Result, n *nodeObjects) {
	rm, t := w.remediations, r.Task
	key := refOf(w.object)
	if o, there := n.objects[key]; there && o.UID == w.object.UID {
		o.deletedByUs = true
		n.objects[key] = o
	}
	outcome, isOver := deletionReasons[t.Reason.Code]
	if !isOver {
		outcome = "called_off"
	}
	counts := rm.requesterOf(t.Rule)
	counts.CountRemediation(t.Rule, t.Reason.Condition, outcome)
	if t.Reason.Code == triage.Recovered {
		counts.ObserveRecovery(t.Rule, now.Sub(w.object.Created))
	}
	if rm.request(t.Rule) == nil {
		rm.engine.Retire(now, t.Rule)
	}
	rm.engine.Logger().Info("remediation ended", "node", n.node, "rule", t.Rule.String(), "object", key.String(), "reason", t.Reason.String())
	rm.engine.PublishEvent(t.Rule, t.Node, treat.RemediationRemoved, t.Reason, "deleted "+key.String())
}

// deletionReasons maps the reason for ending a treatment to its outcome in metrics.
var deletionReasons = map[triage.Code]string{
	triage.Recovered: "recovered", triage.Deselected: "deselected", triage.RuleGone: "check_gone", triage.NodeGone: "node_gone",
}
