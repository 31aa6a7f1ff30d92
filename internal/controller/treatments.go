package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// nodeTreatments holds the treatments for one node name and their pending tasks. It
// outlives the node, because remediation objects do.
type nodeTreatments struct {
	node    string
	objects map[string]remediationObject // by kind, namespace and name
	lease   *coordinationv1.Lease        // the node's maintenance Lease; nil for none

	stage queueStage
	// deleting is the object whose deletion was sent last. The watch may report the
	// deletion before the answer arrives, or the answer may be lost.
	deleting types.UID
	// goneMeanwhile holds objects that were deleted while a task ran that may have
	// created them. The value says whether the object was known.
	goneMeanwhile map[types.UID]bool
	// granted is the ledger entry that holds the slot; asks is the entry requested in the
	// next snapshot. Their Object is empty for none.
	granted, asks ledger.Entry
	// sent is when the write that granted covers was last sent, if it may have succeeded
	// or may still succeed. It is zero for none.
	sent time.Time

	failures        map[taskKind]taskFailure
	losses          int             // deletions of objects by other components
	beginFrom       time.Time       // earliest next creation because of losses
	due             time.Time       // when to check again, zero for never
	wanted          time.Time       // since when a treatment is due
	refusalReported reportedRefusal // the last rejected write
}

// taskFailure records why a task failed and when to retry it. It does not block other
// kinds of tasks.
type taskFailure struct {
	writeFailure
	refusals  int
	notBefore time.Time
}

// remediationObject is a remediation object and what the controller did with it.
type remediationObject struct {
	remediation.Object
	ended    bool // this controller has deleted it; the watch may be behind
	reported bool // the core knows, or knew, that it removes the node
}

// isEnding reports whether the object is being deleted.
func (t remediationObject) isEnding() bool { return t.ended || t.Deleting }

// treatmentsOf returns the treatments of a node, created if necessary.
func (l *loop) treatmentsOf(node string) *nodeTreatments {
	b := l.treatments[node]
	if b == nil {
		b = &nodeTreatments{node: node, objects: map[string]remediationObject{}}
		l.treatments[node] = b
	}
	return b
}

// isEmpty reports whether there is nothing left to do or to remember.
func (b *nodeTreatments) isEmpty() bool {
	return b.stage == idle && len(b.objects) == 0 && b.lease == nil && b.granted.Object == "" && len(b.failures) == 0
}

// inFlightUntil returns until when a write that takes a slot may still succeed, zero if
// none may.
func (l *loop) inFlightUntil(now time.Time, b *nodeTreatments) (until time.Time) {
	if until = b.sent.Add(maxInFlight); b.granted.Object == "" || b.sent.IsZero() || !now.Before(until) {
		return time.Time{}
	}
	if name, is := claimNamed(b.granted.Object); is { // a claim write names a version and fails for any other
		if c := l.nodeClaims.byName[name]; c == nil || c.ResourceVersion != b.granted.ResourceVersion {
			return time.Time{}
		}
	}
	return until
}

// noteWanted records since when the treatment is due.
func (b *nodeTreatments) noteWanted(now time.Time, p *nodeState) {
	if b.wanted.IsZero() {
		b.wanted = p.seen
		if now.Sub(p.seen) > time.Second { // due by time, not by a change
			b.wanted = now
		}
	}
}

// objectGone records the deletion of an object that the running task may have created.
func (b *nodeTreatments) objectGone(object types.UID, isKnown bool) {
	if b.goneMeanwhile == nil {
		b.goneMeanwhile = map[types.UID]bool{}
	}
	b.goneMeanwhile[object] = isKnown
}

// releaseSlot clears the slot that the ledger names.
func (b *nodeTreatments) releaseSlot() { b.granted, b.sent = ledger.Entry{}, time.Time{} }

// objectsOf returns the objects of a rule, sorted by key.
func (b *nodeTreatments) objectsOf(rule triage.RuleID) []remediationObject {
	var ours []remediationObject
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if o := b.objects[key]; ruleOf(o.Object) == rule {
			ours = append(ours, o)
		}
	}
	return ours
}

func objectKey(o remediation.Object) string {
	return o.GroupKind().String() + " " + o.Namespace + "/" + o.Name
}

// takeObjects takes in changed remediation objects and node Leases.
func (l *loop) takeObjects(now time.Time) {
	touched := map[string]bool{}
	for of, k := range l.checks.watches.known {
		if isTemplates(of) {
			continue
		}
		letter := k.take()
		if other, isWatched := l.checks.watches.otherVersion(of); isWatched && letter.listVersion == notServedVersion {
			letter.listVersion = "" // the objects still exist and are watched in the other version
			l.changeVersion(of, other)
		}
		if letter.listVersion != "" {
			for _, b := range l.treatments {
				for key, o := range b.objects {
					// An object from our own write may be newer than the list.
					if _, there := letter.changes[o.Namespace+"/"+o.Name]; !there && o.GroupKind() == of.GroupKind() && !olderVersion(letter.listVersion, o.ResourceVersion) {
						l.objectDeleted(now, b, key)
						touched[b.node] = true
					}
				}
			}
		}
		for _, a := range letter.changes {
			o := remediation.Read(a.object)
			b := l.treatmentsOf(o.Node)
			touched[o.Node] = true
			if !a.gone {
				if home := l.treatmentsByObject[objectKey(o)]; home != nil && home != b {
					touched[home.node] = true
				}
				l.upsertObject(b, o)
				continue
			}
			known := b.objects[objectKey(o)].UID == o.UID
			if known {
				l.objectDeleted(now, b, objectKey(o))
			}
			if b.stage == inFlight {
				b.objectGone(o.UID, known)
			}
		}
	}
	l.takeLeases(touched)
	l.reobserve(now, slices.Sorted(maps.Keys(touched))...)
}

// changeVersion moves objects of a removed API version to another version of their kind.
func (l *loop) changeVersion(of, other schema.GroupVersionKind) {
	for _, b := range l.treatments {
		for key, o := range b.objects {
			if o.GroupVersionKind == of {
				o.GroupVersionKind = other
				b.objects[key] = o
			}
		}
	}
}

// takeLeases takes in changed node Leases and adds their nodes to touched.
func (l *loop) takeLeases(touched map[string]bool) {
	letter := l.leaseInbox.take()
	if letter.listVersion != "" {
		for name, b := range l.treatments {
			if _, there := letter.changes[nodelease.NameOf(name)]; !there && b.lease != nil && !olderVersion(letter.listVersion, b.lease.ResourceVersion) {
				b.lease = nil
				touched[name] = true
			}
		}
	}
	for _, a := range letter.changes {
		node, ok := nodelease.NodeOf(a.object.Name)
		if !ok {
			continue
		}
		b := l.treatmentsOf(node)
		touched[node] = true
		switch {
		case !a.gone:
			b.upsertLease(a.object)
		case b.lease != nil && b.lease.UID == a.object.UID:
			b.lease = nil
		}
	}
}

// upsertLease stores a Lease unless a newer version is known.
func (b *nodeTreatments) upsertLease(lease *coordinationv1.Lease) {
	if b.lease == nil || b.lease.UID != lease.UID || !olderVersion(lease.ResourceVersion, b.lease.ResourceVersion) {
		b.lease = lease
	}
}

// upsertObject stores an object unless a newer version is known. The answer to our own
// write may arrive before or after the watch event.
func (l *loop) upsertObject(b *nodeTreatments, o remediation.Object) {
	key := objectKey(o)
	if o.ControlPlane {
		l.orphans.add(b.node)
	}
	if key == b.granted.Object { // the write has arrived
		b.releaseSlot()
	}
	home := l.treatmentsByObject[key]
	if home == nil {
		home = b
	}
	before, isKnown := home.objects[key]
	isSame := isKnown && before.UID == o.UID
	if isSame && olderVersion(o.ResourceVersion, before.ResourceVersion) {
		return
	}
	delete(home.objects, key) // the object may name another node now
	l.treatmentsByObject[key] = b
	b.objects[key] = remediationObject{Object: o, ended: isSame && before.ended, reported: isSame && before.reported}
	if l.checks.watches.known[o.GroupVersionKind] == nil { // its template has been removed from the ladder
		l.checks.changed = true
	}
}

// objectDeleted records that an object is gone. If another component deleted it, that
// component may delete the next one too, so the next creation is delayed.
func (l *loop) objectDeleted(now time.Time, b *nodeTreatments, key string) {
	o := b.objects[key]
	delete(b.objects, key)
	delete(l.treatmentsByObject, key)
	rule := ruleOf(o.Object)
	if rule == (triage.RuleID{}) {
		return
	}
	l.restateCheck(now, rule)
	c := l.policyOf(rule)
	if o.ended || o.UID == b.deleting || !l.isOurs(o.Object) || c == nil || c.owner != o.Owner { // deleted together with its policy
		return
	}
	b.losses++
	b.beginFrom = now.Add(growing(b.losses, firstRefusedRetry, lastRefusedRetry))
	l.cfg.Metrics.treated(rule, "", "lost")
	l.cfg.Logger.Warn("remediation lost", "node", b.node, "rule", rule.String(), "object", key)
}

// reobserve passes the current facts of nodes to the core and reconciles their
// treatments. The core takes all nodes together, so that the longest-waiting node goes
// first instead of the first in the list.
func (l *loop) reobserve(now time.Time, nodes ...string) {
	if len(nodes) == 0 {
		return
	}
	facts := make([]triage.Node, 0, len(nodes))
	for _, node := range nodes {
		if p := l.nodeStates[node]; p != nil {
			known, _ := observe.Node(p.node) // an unreadable record has been reported
			l.addTreatmentFacts(now, p, &known)
			facts = append(facts, known)
		}
	}
	l.core.Observe(now, facts...)
	for _, node := range nodes {
		l.reconcileTreatments(now, node)
	}
}

// reobserveCheck calls reobserve for every node with an object of the health check.
func (l *loop) reobserveCheck(now time.Time, check string) {
	var concerned []string
	for _, name := range slices.Sorted(maps.Keys(l.treatments)) {
		if len(l.treatments[name].objectsOf(checkRule(check))) > 0 {
			concerned = append(concerned, name)
		}
	}
	l.reobserve(now, concerned...)
}

// addTreatmentFacts adds the facts that are not on the node object: its treatments and
// the vetoes against treating it.
func (l *loop) addTreatmentFacts(now time.Time, p *nodeState, facts *triage.Node) {
	defer l.noteReportedTreatments(p, facts)
	l.addClaimFacts(now, p, facts)
	l.addObjectFacts(p, facts)
	if l.checks.deferring {
		return
	}
	_, facts.Confirmed = p.node.Annotations[remediation.ConfirmedAnnotation]
	veto := func(words string) {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Kind: triage.NodeHealthCheck, Reason: words})
	}
	if p.node.Labels[remediation.ExcludeLabel] == remediation.ExcludeValue {
		veto("the node is labelled " + remediation.ExcludeLabel + "=" + remediation.ExcludeValue)
	}
	if facts.ControlPlane && l.checks.unreadable != "" {
		veto("nobody can tell whether another control-plane node is being treated: " + l.checks.unreadable)
	}
	if facts.ControlPlane && l.orphans.message != "" {
		veto("another control-plane node may be in treatment: " + l.orphans.message)
	}
	if b := l.treatments[p.node.Name]; b != nil {
		if by, until, held := nodelease.Held(b.lease, now); held && !nodelease.IsHealthCheck(by) {
			veto(fmt.Sprintf("%s holds the node's Lease until %s", by, until.UTC().Format(time.RFC3339)))
		}
	}
}

// addObjectFacts adds the remediation objects of a node. An object that is not a
// treatment of a followed rule vetoes all treatments, because another component works on
// the node.
func (l *loop) addObjectFacts(p *nodeState, facts *triage.Node) {
	b := l.treatments[p.node.Name]
	if b == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[key]
		c := l.policyOf(ruleOf(o.Object))
		switch {
		case !o.IsOf(p.node):
			l.vetoTreatments(facts, key+" is still there, for a node that had this name before")
		case o.Owner == remediation.Owner{}:
			l.vetoTreatments(facts, key+", which no health check has made, is there")
		case !l.isOurs(o.Object):
			l.vetoTreatments(facts, key+" is there, of a health check that another controller follows")
		case c != nil && !c.isFollowed():
			l.vetoTreatments(facts, key+" of health check "+o.Owner.Name+", which cannot be followed, is there")
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
