package remediation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Treatment treats nodes with remediation objects. It holds the objects, their templates,
// and the maintenance Leases of nodes. It implements [engine.Treatment].
type Treatment struct {
	host       engine.TreatmentHost
	requesters []Requester
	watches    *watch.Kinds // of the kinds that policies reference
	templates  map[remediation.Template]*unstructured.Unstructured
	leases     *watch.Optional[*coordinationv1.Lease] // of nodes
	nodes      map[string]*nodeObjects
	byObject   map[ledger.ObjectRef]*nodeObjects
	orphans    orphanedRemediations
	// unreadable is why the remediation objects are not all known, empty if they are.
	unreadable string
	// referencesChanged says that the watched kinds may have to change.
	referencesChanged bool
}

// NewLeases returns an inbox that reads the maintenance Leases of nodes from the API server.
func NewLeases(c client.WithWatch, signal chan<- struct{}) *watch.Optional[*coordinationv1.Lease] {
	return watch.NewOptional(signal, &coordinationv1.Lease{}, watch.Source(c, func() client.ObjectList { return &coordinationv1.LeaseList{} }, client.InNamespace(nodelease.Namespace)))
}

// New returns the treatment without objects. watches says how to watch the kinds that
// policies reference.
func New(host engine.TreatmentHost, leases *watch.Optional[*coordinationv1.Lease], watches *watch.Kinds) *Treatment {
	watches.Known = map[schema.GroupVersionKind]*watch.Kind{}
	return &Treatment{
		host: host, leases: leases, watches: watches, templates: map[remediation.Template]*unstructured.Unstructured{},
		nodes: map[string]*nodeObjects{}, byObject: map[ledger.ObjectRef]*nodeObjects{},
	}
}

// Serve tells which policies request remediations.
func (rm *Treatment) Serve(requesters ...Requester) { rm.requesters = requesters }

// nodeObjects holds the remediation objects and the Lease of one node name.
type nodeObjects struct {
	node    string
	objects map[ledger.ObjectRef]remediationObject
	lease   *coordinationv1.Lease // the node's maintenance Lease; nil for none

	// deleting is the object whose deletion was sent last. The watch may report the
	// deletion after an answer that was lost.
	deleting types.UID
	// deletedDuringTask holds objects and Leases that were deleted while a task ran that
	// may have written them. The value says whether the object was known.
	deletedDuringTask map[types.UID]bool
	losses            int       // deletions of objects by other components
	createNotBefore   time.Time // earliest next creation because of losses
}

// remediationObject is a remediation object and what the controller did with it.
type remediationObject struct {
	remediation.Object
	rule           triage.RuleID // that the object was created for, zero if it is not ours
	deletedByUs    bool          // this controller has deleted it; the watch may be behind
	reportedToCore bool          // the core knows, or knew, that it removes the node
}

// isEnding reports whether the object is being deleted.
func (t remediationObject) isEnding() bool { return t.deletedByUs || t.Deleting }

// getOrCreate returns the objects of a node name, created if necessary together with its tasks.
func (rm *Treatment) getOrCreate(node string) *nodeObjects {
	n := rm.nodes[node]
	if n == nil {
		n = &nodeObjects{node: node, objects: map[ledger.ObjectRef]remediationObject{}}
		rm.nodes[node] = n
	}
	rm.host.NodeTasks(node)
	return n
}

// leaseOf returns the maintenance Lease of a node, nil for none.
func (rm *Treatment) leaseOf(node string) *coordinationv1.Lease {
	if n := rm.nodes[node]; n != nil {
		return n.lease
	}
	return nil
}

// Forget drops what is known about a node name without objects and Lease.
func (rm *Treatment) Forget(node string) bool {
	if n := rm.nodes[node]; n != nil && (len(n.objects) > 0 || n.lease != nil) {
		return false
	}
	delete(rm.nodes, node)
	return true
}

// noteDeletedDuringTask records the deletion of an object that the running task may have created.
func (rm *Treatment) noteDeletedDuringTask(n *nodeObjects, object types.UID, isKnown bool) {
	if rm.runningTask(n) == nil {
		return
	}
	if n.deletedDuringTask == nil {
		n.deletedDuringTask = map[types.UID]bool{}
	}
	n.deletedDuringTask[object] = isKnown
}

// runningTask returns what the running task of a node does with remediation objects, nil
// for nothing.
func (rm *Treatment) runningTask(n *nodeObjects) *Work {
	if t := rm.host.NodeTasks(n.node).Running(); t != nil {
		work, _ := t.Work.(*Work)
		return work
	}
	return nil
}

// sortedObjects returns the references of the objects in a fixed order.
func (n *nodeObjects) sortedObjects() []ledger.ObjectRef {
	if n == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(n.objects), func(a, b ledger.ObjectRef) int { return strings.Compare(a.String(), b.String()) })
}

// objectsOf returns the objects of a rule in a fixed order.
func (n *nodeObjects) objectsOf(rule triage.RuleID) []remediationObject {
	var ours []remediationObject
	for _, key := range n.sortedObjects() {
		if o := n.objects[key]; o.rule == rule {
			ours = append(ours, o)
		}
	}
	return ours
}

// HasObjects reports whether a rule has a remediation object for the node.
func (rm *Treatment) HasObjects(node string, rule triage.RuleID) bool {
	return len(rm.nodes[node].objectsOf(rule)) > 0
}

// ObjectsOf returns the remediation objects of a rule by node.
func (rm *Treatment) ObjectsOf(rule triage.RuleID) map[string][]remediation.Object {
	objects := map[string][]remediation.Object{}
	for name, n := range rm.nodes {
		for _, o := range n.objectsOf(rule) {
			objects[name] = append(objects[name], o.Object)
		}
	}
	return objects
}

// Rules returns the rules that have a remediation object for the node.
func (rm *Treatment) Rules(node string) (rules []triage.RuleID) {
	if n := rm.nodes[node]; n != nil {
		for _, o := range n.objects {
			rules = append(rules, o.rule)
		}
	}
	return rules
}

// Problems says what delays the remediation of a node.
func (rm *Treatment) Problems(node string) (problems []string) {
	n := rm.nodes[node]
	for _, key := range n.sortedObjects() {
		if o := n.objects[key]; o.Deleting && len(o.Finalizers) > 0 {
			problems = append(problems, key.String()+" is being deleted, and kept by "+strings.Join(o.Finalizers, ", "))
		}
	}
	if n != nil && !n.createNotBefore.IsZero() && len(n.objects) == 0 {
		problems = append(problems, "another component deleted its remediation object; Autohealer creates it again at "+n.createNotBefore.UTC().Format(time.RFC3339))
	}
	return problems
}

// refOf returns the reference of a remediation object.
func refOf(o remediation.Object) ledger.ObjectRef {
	return ledger.ObjectRef{GroupKind: o.GroupKind(), Namespace: o.Namespace, Name: o.Name}
}

// Watch watches the Leases of nodes. The watches of kinds start as policies reference them.
func (rm *Treatment) Watch(ctx context.Context) { rm.leases.Run(ctx) }

// Ready reports whether the Leases and all objects of the referenced kinds are loaded.
func (rm *Treatment) Ready(now time.Time) bool {
	rm.takeKinds(now)
	return rm.leases.IsLoaded(now) && rm.areKindsRead(now)
}

// NodeChanged does nothing: objects name their node.
func (*Treatment) NodeChanged(_, _ *corev1.Node) {}

// Take takes in changed templates, remediation objects and node Leases.
func (rm *Treatment) Take(now time.Time) {
	rm.takeKinds(now)
	touched := map[string]bool{}
	for gvk, kind := range rm.watches.Known {
		if isTemplates(gvk) {
			continue
		}
		batch := kind.Take()
		if other, isWatched := rm.watches.OtherVersion(gvk); isWatched && batch.ListVersion == watch.NotServedVersion {
			batch.ListVersion = "" // the objects still exist and are watched in the other version
			rm.changeVersion(gvk, other)
		}
		if batch.ListVersion != "" {
			for _, n := range rm.nodes {
				for key, o := range n.objects {
					// An object from our own write may be newer than the list.
					if _, there := batch.Changes[o.Namespace+"/"+o.Name]; !there && o.GroupKind() == gvk.GroupKind() && !engine.OlderVersion(batch.ListVersion, o.ResourceVersion) {
						rm.objectDeleted(now, n, key)
						touched[n.node] = true
					}
				}
			}
		}
		for _, change := range batch.Changes {
			o := remediation.Read(change.Object)
			n := rm.getOrCreate(o.Node)
			touched[o.Node] = true
			if !change.Gone {
				if owner := rm.byObject[refOf(o)]; owner != nil && owner != n {
					touched[owner.node] = true
				}
				rm.upsert(n, o)
				continue
			}
			known := n.objects[refOf(o)].UID == o.UID
			if known {
				rm.objectDeleted(now, n, refOf(o))
			}
			rm.noteDeletedDuringTask(n, o.UID, known)
		}
	}
	rm.takeLeases(touched)
	rm.host.Reobserve(now, slices.Sorted(maps.Keys(touched))...)
}

// changeVersion moves objects of a removed API version to another version of their kind.
func (rm *Treatment) changeVersion(gvk, other schema.GroupVersionKind) {
	for _, n := range rm.nodes {
		for key, o := range n.objects {
			if o.GroupVersionKind == gvk {
				o.GroupVersionKind = other
				n.objects[key] = o
			}
		}
	}
}

// takeLeases takes in changed node Leases and adds their nodes to touched.
func (rm *Treatment) takeLeases(touched map[string]bool) {
	batch := rm.leases.Take()
	if batch.ListVersion != "" {
		for name, n := range rm.nodes {
			if _, there := batch.Changes[nodelease.NameOf(name)]; !there && n.lease != nil && !engine.OlderVersion(batch.ListVersion, n.lease.ResourceVersion) {
				n.lease = nil
				touched[name] = true
			}
		}
	}
	for _, change := range batch.Changes {
		node, ok := nodelease.NodeOf(change.Object.Name)
		if !ok {
			continue
		}
		n := rm.getOrCreate(node)
		touched[node] = true
		switch {
		case !change.Gone:
			n.upsertLease(change.Object)
		case n.lease != nil && n.lease.UID == change.Object.UID:
			n.lease = nil
		}
		if change.Gone {
			rm.noteDeletedDuringTask(n, change.Object.UID, true)
		}
	}
}

// upsertLease stores a Lease unless a newer version is known.
func (n *nodeObjects) upsertLease(lease *coordinationv1.Lease) {
	if n.lease == nil || n.lease.UID != lease.UID || !engine.OlderVersion(lease.ResourceVersion, n.lease.ResourceVersion) {
		n.lease = lease
	}
}

// upsert stores an object unless a newer version is known. The answer to our own
// write may arrive before or after the watch event.
func (rm *Treatment) upsert(n *nodeObjects, o remediation.Object) {
	key := refOf(o)
	if o.ControlPlane {
		rm.orphans.add(n.node)
	}
	if nodeTasks := rm.host.NodeTasks(n.node); key == nodeTasks.Slot().Object { // the write has arrived
		nodeTasks.Release()
	}
	owner := rm.byObject[key]
	if owner == nil {
		owner = n
	}
	before, isKnown := owner.objects[key]
	isSame := isKnown && before.UID == o.UID
	if isSame && engine.OlderVersion(o.ResourceVersion, before.ResourceVersion) {
		return
	}
	delete(owner.objects, key) // the object may name another node now
	rm.byObject[key] = n
	rule := rm.ruleOf(o)
	if r := rm.requesterOf(rule); r != nil {
		r.ObserveObject(o, remediation.ObjectExists)
	}
	n.objects[key] = remediationObject{Object: o, rule: rule, deletedByUs: isSame && before.deletedByUs, reportedToCore: isSame && before.reportedToCore}
	if rm.watches.Known[o.GroupVersionKind] == nil { // its template has been removed from the ladder
		rm.referencesChanged = true
	}
}

// objectDeleted records that an object is gone. If another component deleted it, that
// component may delete the next object too, so the next creation is delayed.
func (rm *Treatment) objectDeleted(now time.Time, n *nodeObjects, ref ledger.ObjectRef) {
	o := n.objects[ref]
	delete(n.objects, ref)
	delete(rm.byObject, ref)
	rule := o.rule
	if rule == (triage.RuleID{}) {
		return
	}
	rm.host.MarkStatusStale(now, rule)
	if r := rm.requesterOf(rule); r != nil {
		r.ObserveObject(o.Object, remediation.ObjectIsGone)
	}
	work := rm.runningTask(n)
	isOurs := o.deletedByUs || o.UID == n.deleting || work != nil && work.Does == DeleteRemediation && work.Object.UID == o.UID
	if c := rm.request(rule); isOurs || !rm.isOurs(o) || c == nil || c.Owner != o.Owner { // deleted together with its policy
		return
	}
	n.losses++
	n.createNotBefore = now.Add(rm.host.RefusalDelay(n.losses))
	rm.requesterOf(rule).CountRemediation(rule, "", "lost")
	rm.host.Logger().Warn("remediation lost", "node", n.node, "rule", rule.String(), "object", ref.String())
}

// ReobserveRule reobserves every node with an object of the rule.
func (rm *Treatment) ReobserveRule(now time.Time, rule triage.RuleID) {
	var affected []string
	for _, name := range slices.Sorted(maps.Keys(rm.nodes)) {
		if len(rm.nodes[name].objectsOf(rule)) > 0 {
			affected = append(affected, name)
		}
	}
	rm.host.Reobserve(now, affected...)
}

// AddFacts adds the remediation objects of a node. Together with the facts of other
// treatments they tell which objects remove the node.
func (rm *Treatment) AddFacts(_ time.Time, state *engine.Node, facts *triage.Node) {
	rm.addObjectFacts(state, facts)
	rm.noteReportedTreatments(state, facts)
}

// ControlPlaneProblem returns the first reason why control-plane nodes must wait, empty for
// none.
func (rm *Treatment) ControlPlaneProblem() string {
	switch {
	case rm.unreadable != "":
		return "cannot determine whether another control-plane node is under remediation: " + rm.unreadable
	case rm.orphans.message != "":
		return "another control-plane node may be in treatment: " + rm.orphans.message
	}
	return ""
}

// addObjectFacts adds the remediation objects of a node. An object that is not a
// treatment of a followed rule vetoes all treatments, because another component works on
// the node.
func (rm *Treatment) addObjectFacts(state *engine.Node, facts *triage.Node) {
	n := rm.nodes[state.Object.Name]
	veto := func(message string) { facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: message}) }
	for _, key := range n.sortedObjects() {
		o := n.objects[key]
		c := rm.request(o.rule)
		switch {
		case !o.IsOf(state.Object):
			veto(key.String() + " still exists, for an earlier node of this name")
		case o.Owner == remediation.Owner{}:
			veto(key.String() + " exists, and no health check owns it")
		case !rm.isOurs(o):
			veto(key.String() + " exists, and belongs to a health check that another controller follows")
		case c != nil && !c.IsFollowed():
			veto(key.String() + " of health check " + o.Owner.Name + " exists, and that health check cannot be followed")
		default:
			step := 0
			if c != nil {
				step, _ = o.Step(c.Ladder)
			}
			since := o.Created
			if o.Deleting { // an object that is being deleted gets its full time again
				since = o.DeletedAt
			}
			facts.Treatments = append(facts.Treatments, triage.Treatment{
				Rule: o.rule, Step: step, Since: since, Failed: o.Failed, Deletes: o.DeletesNode, HealthySince: o.HealthySince,
			})
		}
	}
}

// ForeignLease says which other component holds the node's Lease, empty for none.
func (rm *Treatment) ForeignLease(now time.Time, node string) string {
	by, until, held := nodelease.Held(rm.leaseOf(node), now)
	if !held || nodelease.IsHealthCheck(by) {
		return ""
	}
	return fmt.Sprintf("%s holds the node's Lease until %s", by, until.UTC().Format(time.RFC3339))
}
