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
	"github.com/resourcestack/autohealer/internal/record"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// nurses is how many errands are run at a time.
	nurses = 24
	// longestWay is how long a write that takes a place may be on its way. An API
	// server works on a request for no longer than a minute; the rest is for the
	// network.
	longestWay = 2 * time.Minute
)

// task is what an errand is for.
type task int

const (
	begin     task = iota // make a remediation object, with the node locked
	end                   // delete one
	note                  // write an annotation on one
	lock                  // lock the node for longer
	unlock                // let others have it
	unconfirm             // take the annotation off the node that confirmed its health
	terminate             // mark the node's claim, and delete it
	spare                 // take the mark off a claim that is not to go
)

// errand is one thing that is to be done about a bed.
type errand struct {
	task   task
	rule   triage.RuleID
	reason triage.Reason

	node   *corev1.Node // as it is known; nil if it is gone
	care   *care        // whose judgement ends a treatment, as it is known; nil if it is gone
	object remediation.Object
	create *unstructured.Unstructured
	notes  map[string]*string
	lease  *coordinationv1.Lease // to be written, or deleted
	step   int

	claim *karpenter.NodeClaim // as it is known
	mark  record.Mark          // to be written, or taken back; none if it is there
	pool  string               // whose bound it counts in, empty for none
	since time.Time            // when it was decided
}

// errandReport is what became of an errand.
type errandReport struct {
	bed    *bed
	errand *errand
	fate   treat.Fate
	err    error

	fresh     *corev1.Node // the node as it is now, where it is not as it was known
	missing   bool         // there is no such node
	isOff     bool         // by the last look the treatment is not to begin any more
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

// tend queues the bed of a node if there is something to do about it.
func (l *loop) tend(now time.Time, node string) {
	b := l.beds[node]
	if b == nil || !l.loaded {
		return
	}
	if l.findDepartures(now, b); b.stage != idle {
		return
	}
	e, due := l.nextErrand(now, b)
	if e == nil {
		l.rest(now, b, due)
		return
	}
	b.stage = queued
	l.errands.push(b)
}

// admit makes a bed for a node whose plan asks for one, and looks after those that
// have one.
func (l *loop) admit(now time.Time, p *patient, plan triage.Plan) {
	concerns := l.speaksOf(plan.Release) || l.speaksOf(plan.CallOff) ||
		plan.Treatment != nil && l.isCare(plan.Treatment.Rule) ||
		isConfirmed(p.node) && len(l.checks.known) > 0
	if !concerns && l.beds[p.node.Name] == nil {
		return
	}
	l.bedOf(p.node.Name)
	l.tend(now, p.node.Name)
}

// isCare says whether what a rule asks for stands elsewhere than on the node, and is
// not left to another controller.
func (l *loop) isCare(rule triage.RuleID) bool {
	return rule.Kind == triage.NodeHealthCheck && !l.checks.isBack || isRepair(rule)
}

// speaksOf says whether such a rule is among those that reasons are about.
func (l *loop) speaksOf(reasons []triage.Reason) bool {
	return slices.ContainsFunc(reasons, func(r triage.Reason) bool { return l.isCare(r.Rule) })
}

func isConfirmed(node *corev1.Node) bool {
	_, confirmed := node.Annotations[remediation.ConfirmedAnnotation]
	return confirmed
}

// nextErrand returns what is to be done about a bed now, or when there may be. What
// has failed before is passed over until it may be tried again.
func (l *loop) nextErrand(now time.Time, b *bed) (next *errand, due time.Time) {
	mayRun := func(e *errand) bool {
		if e == nil {
			return false
		}
		from := b.setbacks[e.task].notBefore
		if e.task == begin && b.beginFrom.After(from) {
			from = b.beginFrom
		}
		if now.Before(from) {
			due = earliest(due, from)
			return false
		}
		return true
	}
	p := l.patients[b.node]
	if e := l.clearOut(b, p); mayRun(e) {
		return e, time.Time{}
	}
	due = earliest(due, l.awaitRemains(now, b, p))
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
		if !l.isByObject(b, p, reason.Rule) {
			continue
		}
		e, wait := l.release(now, b, p, reason)
		if mayRun(e) {
			return e, time.Time{}
		}
		due = earliest(due, wait)
	}
	for _, reason := range plan.CallOff {
		if l.isByObject(b, p, reason.Rule) {
			due = earliest(due, l.vacate(now, b, reason.Rule))
		}
	}
	if t := plan.Treatment; t != nil && l.isByObject(b, p, t.Rule) {
		if e := l.noteFor(now, b, p, t); mayRun(e) {
			return e, time.Time{}
		}
		for _, o := range b.of(t.Rule) {
			if until := l.worksUntil(o, t); now.Before(until) {
				due = earliest(due, until)
			}
		}
		// What was confirmed was the health of an earlier day.
		if isConfirmed(p.node) && !l.isTreated(b, p) {
			if e := (&errand{task: unconfirm, node: p.node}); mayRun(e) {
				return e, time.Time{}
			}
		}
		if e := l.beginning(now, b, p, t); mayRun(e) {
			return e, time.Time{}
		}
	} else if t == nil || !isRepair(t.Rule) {
		b.wanted = time.Time{}
	}
	e, wait = l.lockOrUnlock(now, b, p, plan)
	if mayRun(e) {
		return e, time.Time{}
	}
	return nil, earliest(due, wait)
}

// clearOut ends what is left of a node that is gone, or that had another one's name.
// A remediator that means the node to go is waited for, and so is the page that names
// its departure: nothing else would be left to tell of it.
func (l *loop) clearOut(b *bed, p *patient) *errand {
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[key]
		if !l.isOurs(o.Object) || o.isEnding() || p != nil && o.IsOf(p.node) || o.DeletesNode && (!o.Succeeded && !o.Failed || l.isUnnamed(o)) {
			continue
		}
		rule := ruleOf(o.Object)
		if c := l.careOf(rule); c != nil && !c.isFollowed() {
			continue
		}
		e := &errand{task: end, rule: rule, object: o.Object, reason: triage.Reason{Code: triage.NodeGone, Rule: rule}}
		if p != nil {
			e.node = p.node
		}
		return e
	}
	return nil
}

// release takes back what a rule has begun on a node, and frees its place once
// nothing is there or on its way.
func (l *loop) release(now time.Time, b *bed, p *patient, reason triage.Reason) (e *errand, due time.Time) {
	ours := b.of(reason.Rule)
	for _, o := range ours {
		if !o.isEnding() && o.IsOf(p.node) {
			e := &errand{task: end, rule: reason.Rule, object: o.Object, reason: reason, node: p.node}
			e.care = l.careOf(reason.Rule)
			return e, time.Time{}
		}
	}
	if len(ours) > 0 {
		return nil, time.Time{} // the watch will tell
	}
	return nil, l.vacate(now, b, reason.Rule)
}

// vacate gives back the place of something that was decided and is not there. What
// takes a place that the ledger names is waited for, and the time is returned until
// when it may still arrive; what takes none is ended if it does.
func (l *loop) vacate(now time.Time, b *bed, rule triage.RuleID) (due time.Time) {
	if triage.RuleID(b.granted.Rule) == rule { // else that is another one's
		if until := l.mayArrive(now, b); !until.IsZero() {
			return until
		}
		b.giveBack()
	}
	b.wanted = time.Time{}
	l.core.Abandon(now, b.node, rule, 0)
	return time.Time{}
}

// noteFor returns what is to be noted on an object of a treatment.
func (l *loop) noteFor(now time.Time, b *bed, p *patient, t *triage.PlannedTreatment) *errand {
	c := l.careOf(t.Rule)
	if c == nil {
		return nil
	}
	for _, o := range b.of(t.Rule) {
		step, _ := o.Step(c.ladder)
		isOver := step < t.Step || t.HealthySince.IsZero() && !now.Before(l.worksUntil(o, t))
		if notes := notesFor(o.Object, isOver, t, now); len(notes) > 0 && !o.isEnding() && o.IsOf(p.node) {
			return &errand{task: note, rule: t.Rule, object: o.Object, notes: notes, reason: t.Reason, node: p.node}
		}
	}
	return nil
}

// beginning returns what is missing of a treatment that is to be under way.
func (l *loop) beginning(now time.Time, b *bed, p *patient, t *triage.PlannedTreatment) *errand {
	c := l.careOf(t.Rule)
	if c == nil || t.Step >= len(c.ladder) {
		return nil
	}
	for _, o := range b.of(t.Rule) {
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
	b.want(now, p)
	return &errand{
		task: begin, rule: t.Rule, reason: byObject(t.Reason), node: p.node, create: object, step: t.Step,
		lease: nodelease.Take(b.lease, p.node, holder(c.owner), leaseDuration, now),
	}
}

// isByObject says whether what a rule asks for on a node is a remediation object: always
// if it is a health check's, and if there is no claim to be deleted.
func (l *loop) isByObject(b *bed, p *patient, rule triage.RuleID) bool {
	switch {
	case rule.Kind == triage.NodeHealthCheck:
		return !l.checks.isBack
	case rule.Kind != triage.Repair:
		return false
	case len(b.of(rule)) > 0:
		return true
	}
	r := l.repairs.followed[rule]
	c, _ := l.machines.claimOf(p.node)
	return r != nil && len(r.ladder) > 0 && c == nil
}

// byObject is the reason of what is done by a remediation object, in these words. To the
// core every repair is a termination, because it keeps the node's place until it is
// replaced.
func byObject(is triage.Reason) triage.Reason {
	if is.Action == triage.Terminate {
		is.Action = triage.Remediate
	}
	return is
}

// notesFor returns what is to be written on an object of a treatment: that its time
// is up, and since when the node is healthy. Nil removes a note.
func notesFor(o remediation.Object, isOver bool, t *triage.PlannedTreatment, now time.Time) map[string]*string {
	notes := map[string]*string{}
	if isOver && !o.TimedOut && !o.Succeeded {
		notes[remediation.TimedOutAnnotation] = stampOf(now)
	}
	switch since := t.HealthySince.Truncate(time.Second); {
	case since.IsZero() && !o.HealthySince.IsZero():
		notes[remediation.HealthyDelayAnnotation] = nil
	case !since.IsZero() && !since.Equal(o.HealthySince):
		notes[remediation.HealthyDelayAnnotation] = stampOf(since)
	}
	return notes
}

func stampOf(t time.Time) *string {
	text := remediation.Stamp(t)
	return &text
}

// ofNode returns our objects that are about this very node.
func (l *loop) ofNode(b *bed, p *patient) []treatment {
	var ours []treatment
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if o := b.objects[key]; l.isOurs(o.Object) && o.IsOf(p.node) {
			ours = append(ours, o)
		}
	}
	return ours
}

func (l *loop) isTreated(b *bed, p *patient) bool { return len(l.ofNode(b, p)) > 0 }

// dispatchErrands sends what is queued, as far as there are nurses.
func (l *loop) dispatchErrands(ctx context.Context, now time.Time) {
	for tries := l.errands.len(); tries > 0 && l.nursing < nurses; tries-- {
		b := l.errands.pop()
		if e := l.mayGo(now, b); e != nil {
			l.sendErrand(ctx, now, b, e)
		}
	}
}

// mayGo looks once more at what is to be done about a bed, and returns it if it may be
// now. What takes a place waits for the ledger first.
func (l *loop) mayGo(now time.Time, b *bed) *errand {
	b.stage = idle
	e, due := l.nextErrand(now, b)
	switch {
	case e == nil:
		l.rest(now, b, due)
	case e.takesPlace() && l.isOverAllowance(now, e):
		l.rest(now, b, earliest(due, l.vacate(now, b, e.rule))) // who has waited longer goes first
	case e.takesPlace() && b.granted != e.entry():
		b.stage = entered
		l.pages.beginning = append(l.pages.beginning, b)
	default:
		return e
	}
	return nil
}

// rest leaves a bed alone until there may be something to do. What is no longer to
// be done, and could be, is no setback any more.
func (l *loop) rest(now time.Time, b *bed, until time.Time) {
	maps.DeleteFunc(b.setbacks, func(_ task, s setback) bool {
		if now.Before(s.notBefore) {
			until = earliest(until, s.notBefore)
			return false
		}
		return true
	})
	b.alarm = until
	l.bedAlarm = earliest(l.bedAlarm, until)
	if b.isEmpty() && until.IsZero() {
		delete(l.beds, b.node)
	}
}

// wakeBeds looks at the beds whose time has come, and returns when the next one's
// will have.
func (l *loop) wakeBeds(now time.Time) (due time.Time) {
	if l.bedAlarm.IsZero() || now.Before(l.bedAlarm) {
		return l.bedAlarm
	}
	l.bedAlarm = time.Time{}
	var woken []string
	for node, b := range l.beds {
		switch {
		case b.alarm.IsZero():
		case now.Before(b.alarm):
			l.bedAlarm = earliest(l.bedAlarm, b.alarm)
		default:
			b.alarm = time.Time{}
			woken = append(woken, node)
		}
	}
	slices.Sort(woken)
	l.attend(now, woken...) // somebody's lock may have ended
	return l.bedAlarm
}

// setOut notes that an errand is being run, and returns what its report begins with.
func (l *loop) setOut(now time.Time, b *bed, e *errand) *errandReport {
	r := &errandReport{bed: b, errand: e, sentFirst: b.sent}
	b.stage = written
	l.nursing++
	switch {
	case (e.task == begin || e.task == terminate) && b.granted.Object != "":
		b.sent = now
	case e.task == end:
		b.ending = e.object.UID
	}
	return r
}

func (l *loop) sendErrand(ctx context.Context, now time.Time, b *bed, e *errand) {
	r := l.setOut(now, b, e)
	l.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		r.err = l.runErrand(ctx, r)
		if r.fate == treat.Made {
			r.fate = treat.FateOf(r.err)
		}
		l.reports <- r
	})
}

// runErrand makes the writes of an errand. It is the only part of errands that is
// not run by the loop, and looks at nothing that is the loop's.
func (l *loop) runErrand(ctx context.Context, r *errandReport) (err error) {
	e := r.errand
	switch e.task {
	case begin:
		return l.runBegin(ctx, r)
	case end:
		if e.reason.Code == triage.NodeGone {
			if isFree, err := l.lookForNode(ctx, r); err != nil || !isFree {
				return err
			}
		}
		if err := l.lookAtPolicy(ctx, r); err != nil {
			return err
		}
		if e.reason.Code == triage.NodeGone { // it may say by now that this was meant to be
			return l.write.DeleteRemediationAsKnown(ctx, e.object)
		}
		return l.write.DeleteRemediation(ctx, e.object)
	case note:
		r.version, err = l.write.AnnotateRemediation(ctx, e.object, e.notes)
	case lock:
		err = l.obtainLease(ctx, r)
	case unlock:
		err = l.write.ReleaseLease(ctx, e.lease)
	case unconfirm:
		r.version, err = l.write.RemoveConfirmation(ctx, e.node)
	case terminate:
		err = l.runTerminate(ctx, r)
	case spare:
		err = l.runSpare(ctx, r)
	}
	return err
}

// runBegin locks the node, looks at it once more, asks the loop once more, and makes the
// object. These are the last things before: whatever the lock had to wait for, the node
// may have recovered meanwhile, or the gate may have closed. Then it is unlocked again.
func (l *loop) runBegin(ctx context.Context, r *errandReport) error {
	e := r.errand
	// Where there is no place for locks, nobody can hold one.
	if err := l.obtainLease(ctx, r); err != nil && !apierrors.IsNotFound(err) || r.fate == treat.Stale {
		return err
	}
	if isStill, err := l.isAsKnown(ctx, r); err != nil || !isStill {
		return err
	}
	may, err := l.mayBegin(ctx, e)
	switch {
	case err != nil:
		r.fate = treat.Busy // nothing was sent
		return err
	case !may:
		r.isOff, r.fate = true, treat.Stale
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
func (l *loop) isAsKnown(ctx context.Context, r *errandReport) (isStill bool, err error) {
	known := r.errand.node
	isStill, err = l.write.IsStill(ctx, known)
	if err == nil && !isStill {
		r.fresh, err = l.write.Fetch(ctx, known.Name)
	}
	switch {
	case apierrors.IsNotFound(err):
		r.missing, r.fate = true, treat.Stale
		return false, nil
	case err != nil || isStill:
		return isStill, err
	case r.fresh.UID == known.UID && nodewatch.Same(nodewatch.Trim(r.fresh), known):
		r.fresh = nil
		return true, nil
	}
	r.fate = treat.Stale
	return false, nil
}

// obtainLease writes a lease. If it has changed meanwhile, the report tells how.
func (l *loop) obtainLease(ctx context.Context, r *errandReport) (err error) {
	r.lease, err = l.write.ObtainLease(ctx, r.errand.lease)
	if err == nil {
		r.isLeased = true
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return err
	}
	now, failed := l.write.FetchLease(ctx, r.errand.node.Name)
	if failed != nil {
		return failed
	}
	if now == nil && r.errand.lease.ResourceVersion == "" { // there is no namespace to make it in
		return err
	}
	r.lease, r.isLeased, r.fate = now, true, treat.Stale // the loop decides again
	return nil
}

// lookForNode makes sure that the node is gone whose treatment is to be ended for
// that reason: the watch of nodes may be behind that of remediation objects.
func (l *loop) lookForNode(ctx context.Context, r *errandReport) (isGone bool, err error) {
	fresh, err := l.write.Fetch(ctx, r.bed.node)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case !r.errand.object.IsOf(fresh):
		return true, nil
	}
	r.fresh, r.fate = fresh, treat.Stale
	return false, nil
}

// lookAtPolicy makes sure that the policy is the one by which a node is not sick.
// Whoever has lost the lead and does not know it yet may know of what the next one has
// made, and not yet of the edit that it was made for.
func (l *loop) lookAtPolicy(ctx context.Context, r *errandReport) error {
	known := r.errand.care
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
		r.fate = treat.Stale
		return fmt.Errorf("%s %s has changed meanwhile", known.owner.Kind, known.owner.Name)
	}
	return nil
}

var taskNames = [...]string{begin: "begin", end: "end", note: "note", lock: "lock", unlock: "unlock", unconfirm: "unconfirm", terminate: "terminate", spare: "spare"}

func (t task) String() string { return taskNames[t] }

// resource is what a task writes, as metrics name it.
func (t task) resource() string {
	switch t {
	case lock, unlock:
		return "leases"
	case unconfirm:
		return "nodes"
	case terminate, spare:
		return "nodeclaims"
	default:
		return "remediations"
	}
}

// failed says what could not be done.
func (t task) failed() string {
	switch t {
	case begin:
		return "could not be begun"
	case end:
		return "could not be ended"
	case note:
		return "could not be noted on"
	case terminate:
		return "the NodeClaim could not be deleted"
	case spare:
		return "the NodeClaim could not be spared"
	default:
		return "the node's Lease could not be written"
	}
}
