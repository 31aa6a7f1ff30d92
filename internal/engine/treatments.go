package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// remediations holds the remediation objects and the maintenance Leases of nodes.
type remediations struct {
	engine   *Engine
	leases   *watch.Optional[*coordinationv1.Lease] // of nodes
	byObject map[ledger.ObjectRef]*nodeTreatments
	orphans  orphanedRemediations
}

// nodeTreatments holds the treatments for one node name and their pending tasks. It
// outlives the node, because remediation objects do.
type nodeTreatments struct {
	node    string
	objects map[ledger.ObjectRef]remediationObject
	lease   *coordinationv1.Lease // the node's maintenance Lease; nil for none

	stage queueStage
	// deleting is the object whose deletion was sent last. The watch may report the
	// deletion before the answer arrives, or the answer may be lost.
	deleting types.UID
	// deletedDuringTask holds objects and Leases that were deleted while a task ran that
	// may have written them. The value says whether the object was known.
	deletedDuringTask map[types.UID]bool
	// granted is the ledger entry that holds the slot; requested is the entry requested in the
	// next snapshot. They are zero for none.
	granted, requested ledger.ObjectWrite
	// sentAt is when the write that granted covers was last sent, if it may have succeeded
	// or may still succeed. It is zero for none.
	sentAt time.Time

	failures        map[taskKind]taskFailure
	losses          int             // deletions of objects by other components
	createNotBefore time.Time       // earliest next creation because of losses
	due             time.Time       // when to check again, zero for never
	dueSince        time.Time       // since when a treatment is due
	refusalReported reportedRefusal // the last rejected write
}

// taskFailure records why a task failed and when to retry it. It does not block other
// kinds of tasks.
type taskFailure struct {
	Failure
	refusals  int
	notBefore time.Time
}

// remediationObject is a remediation object and what the controller did with it.
type remediationObject struct {
	remediation.Object
	deletedByUs    bool // this controller has deleted it; the watch may be behind
	reportedToCore bool // the core knows, or knew, that it removes the node
}

// isEnding reports whether the object is being deleted.
func (t remediationObject) isEnding() bool { return t.deletedByUs || t.Deleting }

// of returns the treatments of a node, created if necessary.
func (tr *taskRunner) of(node string) *nodeTreatments {
	treatments := tr.treatments[node]
	if treatments == nil {
		treatments = &nodeTreatments{node: node, objects: map[ledger.ObjectRef]remediationObject{}}
		tr.treatments[node] = treatments
	}
	return treatments
}

// isEmpty reports whether there is nothing left to do or to remember.
func (treatments *nodeTreatments) isEmpty() bool {
	return treatments.stage == idle && len(treatments.objects) == 0 && treatments.lease == nil && !treatments.hasSlot() && len(treatments.failures) == 0
}

// inFlightUntil returns until when a write that takes a slot may still succeed, zero if
// none may.
func (tr *taskRunner) inFlightUntil(now time.Time, treatments *nodeTreatments) (until time.Time) {
	if until = treatments.sentAt.Add(maxInFlight); !treatments.hasSlot() || treatments.sentAt.IsZero() || !now.Before(until) {
		return time.Time{}
	}
	if isClaim(treatments.granted.Object) { // a claim write names a version and fails for any other
		if c := tr.engine.nodeClaims.byName[treatments.granted.Object.Name]; c == nil || c.ResourceVersion != treatments.granted.ResourceVersion {
			return time.Time{}
		}
	}
	return until
}

// noteDue records since when the treatment is due.
func (treatments *nodeTreatments) noteDue(now time.Time, state *Node) {
	if treatments.dueSince.IsZero() {
		treatments.dueSince = state.observedAt
		if now.Sub(state.observedAt) > time.Second { // due by time, not by a change
			treatments.dueSince = now
		}
	}
}

// noteDeletedDuringTask records the deletion of an object that the running task may have created.
func (treatments *nodeTreatments) noteDeletedDuringTask(object types.UID, isKnown bool) {
	if treatments.deletedDuringTask == nil {
		treatments.deletedDuringTask = map[types.UID]bool{}
	}
	treatments.deletedDuringTask[object] = isKnown
}

// releaseSlot clears the slot that the ledger names.
func (treatments *nodeTreatments) releaseSlot() {
	treatments.granted, treatments.sentAt = ledger.ObjectWrite{}, time.Time{}
}

// hasSlot reports whether the ledger names a slot of the treatments.
func (treatments *nodeTreatments) hasSlot() bool { return treatments.granted != ledger.ObjectWrite{} }

// sortedObjects returns the references of the objects in a fixed order.
func (treatments *nodeTreatments) sortedObjects() []ledger.ObjectRef {
	return slices.SortedFunc(maps.Keys(treatments.objects), func(a, b ledger.ObjectRef) int { return strings.Compare(a.String(), b.String()) })
}

// objectsOf returns the objects of a rule in a fixed order.
func (treatments *nodeTreatments) objectsOf(rule triage.RuleID) []remediationObject {
	var ours []remediationObject
	for _, key := range treatments.sortedObjects() {
		if o := treatments.objects[key]; ruleOf(o.Object) == rule {
			ours = append(ours, o)
		}
	}
	return ours
}

// refOf returns the reference of a remediation object.
func refOf(o remediation.Object) ledger.ObjectRef {
	return ledger.ObjectRef{GroupKind: o.GroupKind(), Namespace: o.Namespace, Name: o.Name}
}

// take takes in changed remediation objects and node Leases.
func (rm *remediations) take(now time.Time) {
	touched := map[string]bool{}
	for gvk, kind := range rm.engine.checks.watches.Known {
		if isTemplates(gvk) {
			continue
		}
		batch := kind.Take()
		if other, isWatched := rm.engine.checks.watches.OtherVersion(gvk); isWatched && batch.ListVersion == watch.NotServedVersion {
			batch.ListVersion = "" // the objects still exist and are watched in the other version
			rm.changeVersion(gvk, other)
		}
		if batch.ListVersion != "" {
			for _, treatments := range rm.engine.tasks.treatments {
				for key, o := range treatments.objects {
					// An object from our own write may be newer than the list.
					if _, there := batch.Changes[o.Namespace+"/"+o.Name]; !there && o.GroupKind() == gvk.GroupKind() && !olderVersion(batch.ListVersion, o.ResourceVersion) {
						rm.objectDeleted(now, treatments, key)
						touched[treatments.node] = true
					}
				}
			}
		}
		for _, change := range batch.Changes {
			o := remediation.Read(change.Object)
			treatments := rm.engine.tasks.of(o.Node)
			touched[o.Node] = true
			if !change.Gone {
				if owner := rm.byObject[refOf(o)]; owner != nil && owner != treatments {
					touched[owner.node] = true
				}
				rm.upsert(treatments, o)
				continue
			}
			known := treatments.objects[refOf(o)].UID == o.UID
			if known {
				rm.objectDeleted(now, treatments, refOf(o))
			}
			if treatments.stage == inFlight {
				treatments.noteDeletedDuringTask(o.UID, known)
			}
		}
	}
	rm.takeLeases(touched)
	rm.engine.reobserve(now, slices.Sorted(maps.Keys(touched))...)
}

// changeVersion moves objects of a removed API version to another version of their kind.
func (rm *remediations) changeVersion(gvk, other schema.GroupVersionKind) {
	for _, treatments := range rm.engine.tasks.treatments {
		for key, o := range treatments.objects {
			if o.GroupVersionKind == gvk {
				o.GroupVersionKind = other
				treatments.objects[key] = o
			}
		}
	}
}

// takeLeases takes in changed node Leases and adds their nodes to touched.
func (rm *remediations) takeLeases(touched map[string]bool) {
	batch := rm.leases.Take()
	if batch.ListVersion != "" {
		for name, treatments := range rm.engine.tasks.treatments {
			if _, there := batch.Changes[nodelease.NameOf(name)]; !there && treatments.lease != nil && !olderVersion(batch.ListVersion, treatments.lease.ResourceVersion) {
				treatments.lease = nil
				touched[name] = true
			}
		}
	}
	for _, change := range batch.Changes {
		node, ok := nodelease.NodeOf(change.Object.Name)
		if !ok {
			continue
		}
		treatments := rm.engine.tasks.of(node)
		touched[node] = true
		switch {
		case !change.Gone:
			treatments.upsertLease(change.Object)
		case treatments.lease != nil && treatments.lease.UID == change.Object.UID:
			treatments.lease = nil
		}
		if change.Gone && treatments.stage == inFlight {
			treatments.noteDeletedDuringTask(change.Object.UID, true)
		}
	}
}

// upsertLease stores a Lease unless a newer version is known.
func (treatments *nodeTreatments) upsertLease(lease *coordinationv1.Lease) {
	if treatments.lease == nil || treatments.lease.UID != lease.UID || !olderVersion(lease.ResourceVersion, treatments.lease.ResourceVersion) {
		treatments.lease = lease
	}
}

// upsert stores an object unless a newer version is known. The answer to our own
// write may arrive before or after the watch event.
func (rm *remediations) upsert(treatments *nodeTreatments, o remediation.Object) {
	key := refOf(o)
	if o.ControlPlane {
		rm.orphans.add(treatments.node)
	}
	if key == treatments.granted.Object { // the write has arrived
		treatments.releaseSlot()
	}
	owner := rm.byObject[key]
	if owner == nil {
		owner = treatments
	}
	before, isKnown := owner.objects[key]
	isSame := isKnown && before.UID == o.UID
	if isSame && olderVersion(o.ResourceVersion, before.ResourceVersion) {
		return
	}
	delete(owner.objects, key) // the object may name another node now
	rm.byObject[key] = treatments
	treatments.objects[key] = remediationObject{Object: o, deletedByUs: isSame && before.deletedByUs, reportedToCore: isSame && before.reportedToCore}
	if rm.engine.checks.watches.Known[o.GroupVersionKind] == nil { // its template has been removed from the ladder
		rm.engine.checks.changed = true
	}
}

// objectDeleted records that an object is gone. If another component deleted it, that
// component may delete the next object too, so the next creation is delayed.
func (rm *remediations) objectDeleted(now time.Time, treatments *nodeTreatments, ref ledger.ObjectRef) {
	o := treatments.objects[ref]
	delete(treatments.objects, ref)
	delete(rm.byObject, ref)
	rule := ruleOf(o.Object)
	if rule == (triage.RuleID{}) {
		return
	}
	rm.engine.checks.markStatusStale(now, rule)
	c := rm.policyOf(rule)
	if o.deletedByUs || o.UID == treatments.deleting || !rm.isOurs(o.Object) || c == nil || c.owner != o.Owner { // deleted together with its policy
		return
	}
	treatments.losses++
	treatments.createNotBefore = now.Add(growingDelay(treatments.losses, firstRefusedRetry, lastRefusedRetry))
	rm.engine.cfg.Metrics.countTreatment(rule, "", "lost")
	rm.engine.cfg.Logger.Warn("remediation lost", "node", treatments.node, "rule", rule.String(), "object", ref.String())
}

// reobserve passes the current facts of nodes to the core and reconciles their
// treatments. The core takes all nodes together, so that the longest-waiting node goes
// first instead of the first in the list.
func (l *Engine) reobserve(now time.Time, nodes ...string) {
	if len(nodes) == 0 {
		return
	}
	facts := make([]triage.Node, 0, len(nodes))
	for _, node := range nodes {
		if state := l.nodeStates[node]; state != nil {
			known, _ := observe.Node(state.Object) // an unreadable record has been reported
			l.addTreatmentFacts(now, state, &known)
			facts = append(facts, known)
		}
	}
	l.core.Observe(now, facts...)
	for _, node := range nodes {
		l.tasks.reconcile(now, node)
	}
}

// reobserveCheck calls reobserve for every node with an object of the health check.
func (rm *remediations) reobserveCheck(now time.Time, check string) {
	var affected []string
	for _, name := range slices.Sorted(maps.Keys(rm.engine.tasks.treatments)) {
		if len(rm.engine.tasks.treatments[name].objectsOf(checkRule(check))) > 0 {
			affected = append(affected, name)
		}
	}
	rm.engine.reobserve(now, affected...)
}

// addTreatmentFacts adds the facts that are not on the node object: its treatments and
// the vetoes against treating it.
func (l *Engine) addTreatmentFacts(now time.Time, state *Node, facts *triage.Node) {
	defer l.remediations.noteReportedTreatments(state, facts)
	l.nodeClaims.addFacts(now, state, facts)
	l.remediations.addObjectFacts(state, facts)
	if l.checks.deferring {
		return
	}
	_, facts.Confirmed = state.Object.Annotations[remediation.ConfirmedAnnotation]
	veto := func(message string) {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Kind: triage.NodeHealthCheck, Reason: message})
	}
	if state.Object.Labels[remediation.ExcludeLabel] == remediation.ExcludeValue {
		veto("the node is labelled " + remediation.ExcludeLabel + "=" + remediation.ExcludeValue)
	}
	if facts.ControlPlane && l.checks.unreadable != "" {
		veto("cannot determine whether another control-plane node is under remediation: " + l.checks.unreadable)
	}
	if facts.ControlPlane && l.remediations.orphans.message != "" {
		veto("another control-plane node may be in treatment: " + l.remediations.orphans.message)
	}
	if treatments := l.tasks.treatments[state.Object.Name]; treatments != nil {
		if by, until, held := nodelease.Held(treatments.lease, now); held && !nodelease.IsHealthCheck(by) {
			veto(fmt.Sprintf("%s holds the node's Lease until %s", by, until.UTC().Format(time.RFC3339)))
		}
	}
}

// addObjectFacts adds the remediation objects of a node. An object that is not a
// treatment of a followed rule vetoes all treatments, because another component works on
// the node.
func (rm *remediations) addObjectFacts(state *Node, facts *triage.Node) {
	treatments := rm.engine.tasks.treatments[state.Object.Name]
	if treatments == nil {
		return
	}
	for _, key := range treatments.sortedObjects() {
		o := treatments.objects[key]
		c := rm.policyOf(ruleOf(o.Object))
		switch {
		case !o.IsOf(state.Object):
			rm.engine.vetoTreatments(facts, key.String()+" is still there, for a node that had this name before")
		case o.Owner == remediation.Owner{}:
			rm.engine.vetoTreatments(facts, key.String()+", which no health check has made, is there")
		case !rm.isOurs(o.Object):
			rm.engine.vetoTreatments(facts, key.String()+" is there, of a health check that another controller follows")
		case c != nil && !c.isFollowed():
			rm.engine.vetoTreatments(facts, key.String()+" of health check "+o.Owner.Name+", which cannot be followed, is there")
		default:
			step := 0
			if c != nil {
				step, _ = o.Step(c.ladder)
			}
			since := o.Created
			if o.Deleting { // an object that is being deleted gets its full time again
				since = o.DeletedAt
			}
			facts.Treatments = append(facts.Treatments, triage.Treatment{
				Rule: ruleOf(o.Object), Step: step, Since: since, Failed: o.Failed, Deletes: o.DeletesNode, HealthySince: o.HealthySince,
			})
		}
	}
}
