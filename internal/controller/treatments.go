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

// nodeTreatments is where the node of a name is treated: what there is of treatments, and what
// is being done about them. It outlives the node, for remediation objects do.
type nodeTreatments struct {
	node    string
	objects map[string]remediationObject // by kind, namespace and name
	lease   *coordinationv1.Lease        // nil if nobody locks the node

	stage queueStage
	// deleting is the object whose deletion was last sent. The watch may tell that it is
	// gone before the answer comes, or the answer may be lost.
	deleting types.UID
	// goneMeanwhile are objects that went while an errand was being run, which may have
	// made them, and whether they were known.
	goneMeanwhile map[types.UID]bool
	// granted is what the ledger names, which takes a place; asks is what its next
	// page will. They name no object where there is none.
	granted, asks ledger.Entry
	// sent is when something was last sent that the ledger names and that may have
	// been made, or may be yet; zero if there is no such thing.
	sent time.Time

	failures        map[taskKind]taskFailure // by what was to be done
	losses          int                      // how often an object went that nobody here has ended
	beginFrom       time.Time                // when the next may be made, for that reason
	due             time.Time                // when to look again, zero for never
	wanted          time.Time                // since when a treatment is due
	refusalReported reportedRefusal          // of the last write that was refused
}

// taskFailure is why something was not done, and when it may be tried again. It keeps
// nobody from doing something else.
type taskFailure struct {
	writeFailure
	refusals  int
	notBefore time.Time
}

// remediationObject is a remediation object.
type remediationObject struct {
	remediation.Object
	ended    bool // somebody here has deleted it, whatever the watch says
	reported bool // the core knows, or knew, that it takes the node away
}

// isEnding says whether the object is on its way out.
func (t remediationObject) isEnding() bool { return t.ended || t.Deleting }

// treatmentsOf returns the bed of a node, made if there is none.
func (l *loop) treatmentsOf(node string) *nodeTreatments {
	b := l.treatments[node]
	if b == nil {
		b = &nodeTreatments{node: node, objects: map[string]remediationObject{}}
		l.treatments[node] = b
	}
	return b
}

// isEmpty says whether nothing is left to be done or known.
func (b *nodeTreatments) isEmpty() bool {
	return b.stage == idle && len(b.objects) == 0 && b.lease == nil && b.granted.Object == "" && len(b.failures) == 0
}

// inFlightUntil says until when something may be made yet that takes a place, zero if
// nothing may.
func (l *loop) inFlightUntil(now time.Time, b *nodeTreatments) (until time.Time) {
	if until = b.sent.Add(maxInFlight); b.granted.Object == "" || b.sent.IsZero() || !now.Before(until) {
		return time.Time{}
	}
	if name, is := claimNamed(b.granted.Object); is { // which names a version, and is made of no other
		if c := l.nodeClaims.byName[name]; c == nil || c.ResourceVersion != b.granted.ResourceVersion {
			return time.Time{}
		}
	}
	return until
}

// noteWanted notes since when something is to be done.
func (b *nodeTreatments) noteWanted(now time.Time, p *nodeState) {
	if b.wanted.IsZero() {
		b.wanted = p.seen
		if now.Sub(p.seen) > time.Second { // time alone made it due
			b.wanted = now
		}
	}
}

// objectGone notes that an object is gone that the errand may tell of which is being run.
func (b *nodeTreatments) objectGone(object types.UID, isKnown bool) {
	if b.goneMeanwhile == nil {
		b.goneMeanwhile = map[types.UID]bool{}
	}
	b.goneMeanwhile[object] = isKnown
}

// releaseSlot gives up the place that the ledger names.
func (b *nodeTreatments) releaseSlot() { b.granted, b.sent = ledger.Entry{}, time.Time{} }

// objectsOf returns the objects of a rule, in the order of their keys.
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

// takeObjects takes in the remediation objects and the locks that have changed.
func (l *loop) takeObjects(now time.Time) {
	touched := map[string]bool{}
	for of, k := range l.checks.watches.known {
		if isTemplates(of) {
			continue
		}
		letter := k.take()
		if other, isWatched := l.checks.watches.otherVersion(of); isWatched && letter.listVersion == notServedVersion {
			letter.listVersion = "" // all of them are there still, and watched
			l.changeVersion(of, other)
		}
		if letter.listVersion != "" {
			for _, b := range l.treatments {
				for key, o := range b.objects {
					// One that was made here may be younger than the list.
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

// changeVersion has objects of a version of their kind that is gone read as of another.
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

// takeLeases takes in the locks that have changed, and notes whose.
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

// upsertLease takes over a lock as it is now, unless it is known better.
func (b *nodeTreatments) upsertLease(lease *coordinationv1.Lease) {
	if b.lease == nil || b.lease.UID != lease.UID || !olderVersion(lease.ResourceVersion, b.lease.ResourceVersion) {
		b.lease = lease
	}
}

// upsertObject takes over an object as it is now, unless it is known better: our own
// write may tell of it before the watch does, or after.
func (l *loop) upsertObject(b *nodeTreatments, o remediation.Object) {
	key := objectKey(o)
	if o.ControlPlane {
		l.orphans.add(b.node)
	}
	if key == b.granted.Object { // it has arrived
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
	delete(home.objects, key) // somebody may have changed whom it is about
	l.treatmentsByObject[key] = b
	b.objects[key] = remediationObject{Object: o, ended: isSame && before.ended, reported: isSame && before.reported}
	if l.checks.watches.known[o.GroupVersionKind] == nil { // it was taken out of the ladder meanwhile
		l.checks.changed = true
	}
}

// objectDeleted notes that an object is gone. If nobody here has ended it, whoever did
// may do the same with the next one, which is therefore not made at once.
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
	if o.ended || o.UID == b.deleting || !l.isOurs(o.Object) || c == nil || c.owner != o.Owner { // it went with its policy
		return
	}
	b.losses++
	b.beginFrom = now.Add(growing(b.losses, firstRefusedRetry, lastRefusedRetry))
	l.cfg.Metrics.treated(rule, "", "lost")
	l.cfg.Logger.Warn("remediation lost", "node", b.node, "rule", rule.String(), "object", key)
}

// reobserve tells the core what is known of some nodes now, and looks what is to be done.
// They are told together, so that those who have waited longest go first, and not
// those who are told of first.
func (l *loop) reobserve(now time.Time, nodes ...string) {
	if len(nodes) == 0 {
		return
	}
	facts := make([]triage.Node, 0, len(nodes))
	for _, node := range nodes {
		if p := l.nodeStates[node]; p != nil {
			known, _ := observe.Node(p.node) // what cannot be read has been told
			l.addTreatmentFacts(now, p, &known)
			facts = append(facts, known)
		}
	}
	l.core.Observe(now, facts...)
	for _, node := range nodes {
		l.reconcileTreatments(now, node)
	}
}

// reobserveCheck does so for every node that has something of a health check.
func (l *loop) reobserveCheck(now time.Time, check string) {
	var concerned []string
	for _, name := range slices.Sorted(maps.Keys(l.treatments)) {
		if len(l.treatments[name].objectsOf(checkRule(check))) > 0 {
			concerned = append(concerned, name)
		}
	}
	l.reobserve(now, concerned...)
}

// addTreatmentFacts adds to the facts about a node what stands elsewhere than on the node:
// its treatments, and what speaks against treating it.
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

// addObjectFacts adds the remediation objects that there are for a node. Whatever is not
// known to be the treatment of a rule that is followed has everybody else wait: somebody
// is at work on the node.
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
			if o.Deleting { // what is ending is given its time once more
				since = o.DeletedAt
			}
			facts.Treatments = append(facts.Treatments, triage.Treatment{
				Rule: ruleOf(o.Object), Step: step, Since: since, Failed: o.Failed, Deletes: o.DeletesNode, HealthySince: o.HealthySince,
			})
		}
	}
}
