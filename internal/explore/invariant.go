package explore

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
)

// Violation is a broken promise.
type Violation struct {
	Invariant string
	Message   string
}

// invariant must hold after every write. check returns what is wrong, empty for nothing. r is
// nil for a change of another component. A rail that is added to the core gets a line here.
type invariant struct {
	name  string
	check func(c *cluster, r *request, ch change) string
}

var invariants = []invariant{
	{"the cap of NoExecute taints is kept", checkCap},
	{"one control-plane node at a time", checkControlPlane},
	{"all policies together treat no more nodes than allowed", checkInTreatment},
	{"all policies together close no more nodes than allowed", checkUnschedulable},
	{"each zone has no more nodes in treatment than allowed", checkZone},
	{"the last open node is neither treated nor closed", checkLast},
	{"a paused node gets no taint", checkPausedTaint},
	{"attempts stay on the node", checkRecord},
	{"the ledger names a write before it takes a slot", checkLedger},
	{"only what Autohealer made is changed", checkOwn},
}

// sendRule must hold when a replica sends a write.
type sendRule struct {
	name  string
	check func(c *cluster, r *request) string
}

var sendRules = []sendRule{
	{"a write carries its preconditions", checkPreconditions},
	{"a remediation starts after a look at the node", checkLook},
	{"a remediation starts while the gate is open", checkGate},
	{"a remediation starts while its window is open", checkWindow},
	{"a remediation starts only if its node is not paused", checkPausedNode},
	{"a remediation starts only if no user has cordoned the node", checkCordon},
	{"an attempt is recorded before it starts", checkAttempt},
	{"a node is not treated more often than allowed", checkAttempts},
	{"no more remediations start within a period than allowed", checkPace},
	{"nothing starts in mode Paused or Observe", checkMode},
	{"nothing disruptive starts where nodes failed together", checkTogether},
}

// quietRule must hold when nothing happens any more.
type quietRule struct {
	name  string
	check func(c *cluster) string
}

var quietRules = []quietRule{
	{"a replica runs", checkRuns},
	{"the taints are those that the conditions ask for", checkTaints},
	{"the remediations are those that the conditions ask for", checkRemediations},
	{"no slot is left in the ledger", checkLedgerIsEmpty},
	{"no pause is left whose time has passed", checkPauses},
	{"the Lease of a node exists while its remediation may work", checkLeases},
}

// takesSlot returns the key of the taint with which a change takes a slot, empty for none.
func (c *cluster) takesSlot(ch change) (set Set, takes bool) {
	after, is := ch.after.(*corev1.Node)
	if !is {
		return set, false
	}
	before, _ := ch.before.(*corev1.Node)
	for _, set := range c.scenario.Sets {
		if hasTaint(after, set.key(), "") && (before == nil || !hasTaint(before, set.key(), "")) {
			return set, true
		}
	}
	return set, false
}

// nodes returns all nodes.
func (c *cluster) nodes() (nodes []*corev1.Node) {
	for _, n := range c.scenario.Nodes {
		if node, is := c.model.objects[objectKey{kind: "Node", name: n.Name}].(*corev1.Node); is {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// checkCap counts the nodes with the NoExecute taint of a set.
func checkCap(c *cluster, _ *request, ch change) string {
	set, takes := c.takesSlot(ch)
	if !takes {
		return ""
	}
	var have []string
	for _, node := range c.nodes() {
		if hasTaint(node, set.key(), "") {
			have = append(have, node.Name)
		}
	}
	if most := naive.Allows(&naive.Limit{Number: set.Max}, len(c.scenario.Nodes)); len(have) > most {
		return fmt.Sprintf("%s has NoExecute on %s, and at most %d may have it", set.Name, strings.Join(have, ", "), most)
	}
	return ""
}

// checkControlPlane counts the control-plane nodes with a remediation object.
func checkControlPlane(c *cluster, _ *request, ch change) string {
	if ch.key.kind != rebootKind.Kind || ch.after == nil || ch.before != nil {
		return ""
	}
	var treated []string
	for _, n := range c.scenario.Nodes {
		if n.ControlPlane && c.model.objects[rebootOf(n.Name)] != nil {
			treated = append(treated, n.Name)
		}
	}
	if len(treated) > 1 {
		return "remediations exist for " + strings.Join(treated, " and ")
	}
	return ""
}

// inTreatment returns the nodes with a remediation object or a NoExecute taint of a set.
func (c *cluster) inTreatment() (names []string) {
	for _, node := range c.nodes() {
		isTainted := func(s Set) bool { return hasTaint(node, s.key(), "") }
		if c.model.objects[rebootOf(node.Name)] != nil || slices.ContainsFunc(c.scenario.Sets, isTainted) {
			names = append(names, node.Name)
		}
	}
	return names
}

// closed returns the nodes with a taint of a set.
func (c *cluster) closed() (names []string) {
	for _, node := range c.nodes() {
		if slices.ContainsFunc(c.scenario.Sets, func(s Set) bool { return len(effectsOf(node, s)) > 0 }) {
			names = append(names, node.Name)
		}
	}
	return names
}

// isFull reports whether a limit on all rules is reached; 0 is no limit.
func isFull(names []string, limit int) bool { return limit > 0 && len(names) >= limit }

// checkInTreatment counts the nodes in treatment after a write of a replica.
func checkInTreatment(c *cluster, r *request, ch change) string {
	if treated := c.inTreatment(); r != nil && ch.after != nil && c.scenario.Rails.InTreatment > 0 && len(treated) > c.scenario.Rails.InTreatment {
		return fmt.Sprintf("%s are in treatment, and at most %d may be", strings.Join(treated, ", "), c.scenario.Rails.InTreatment)
	}
	return ""
}

// checkUnschedulable counts the nodes that are closed after a write of a replica.
func checkUnschedulable(c *cluster, r *request, ch change) string {
	if closed := c.closed(); r != nil && ch.after != nil && c.scenario.Rails.Unschedulable > 0 && len(closed) > c.scenario.Rails.Unschedulable {
		return fmt.Sprintf("%s are closed to new pods, and at most %d may be", strings.Join(closed, ", "), c.scenario.Rails.Unschedulable)
	}
	return ""
}

// storedEntry is an entry of the ledger as it is stored.
type storedEntry struct {
	Rule            []int  `json:"rule"`
	Node            string `json:"node"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Object          string `json:"object"`
}

// ledgerEntries returns the stored entries and the names of their rules.
func (c *cluster) ledgerEntries() (rules []string, entries []storedEntry) {
	stored, is := c.model.objects[objectKey{"ConfigMap", ledgerNamespace, ledger.Name}].(*corev1.ConfigMap)
	if !is {
		return nil, nil
	}
	var content struct {
		Rules  []string      `json:"rules"`
		Grants []storedEntry `json:"grants"`
	}
	if err := json.Unmarshal([]byte(stored.Data["ledger"]), &content); err != nil {
		panic(err)
	}
	return content.Rules, content.Grants
}

// isNamed reports whether the stored ledger names a write for a rule and a node.
func (c *cluster) isNamed(kind, name string, node client.Object, is func(storedEntry) bool) bool {
	rules, entries := c.ledgerEntries()
	return slices.ContainsFunc(entries, func(e storedEntry) bool {
		return e.Node == node.GetName() && e.UID == string(node.GetUID()) && is(e) &&
			slices.ContainsFunc(e.Rule, func(at int) bool { return rules[at] == kind+"/"+name })
	})
}

// checkLedger checks that the ledger names a write that takes a slot when it arrives.
func checkLedger(c *cluster, r *request, ch change) string {
	if r == nil {
		return ""
	}
	if set, takes := c.takesSlot(ch); takes {
		named := func(e storedEntry) bool { return e.ResourceVersion == ch.before.GetResourceVersion() }
		if !c.isNamed(string(policykind.ConditionSet), set.Name, ch.before, named) {
			return fmt.Sprintf("%s takes a slot of %s with version %s of %s, and the ledger does not name it", r.replica.name, set.Name, ch.before.GetResourceVersion(), ch.key.name)
		}
	}
	if ch.key.kind != rebootKind.Kind || ch.after == nil || ch.before != nil {
		return ""
	}
	at := slices.IndexFunc(c.scenario.Nodes, func(n Node) bool { return n.Name == ch.key.name && n.ControlPlane })
	if at < 0 {
		return ""
	}
	owner := ch.after.GetOwnerReferences()[0].Name
	treated := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: ch.key.name, UID: nodeUIDOf(ch.after)}}
	if !c.isNamed(string(policykind.NodeHealthCheck), owner, treated, func(e storedEntry) bool { return strings.HasSuffix(e.Object, "/"+ch.key.name) }) {
		return fmt.Sprintf("%s creates a remediation of control-plane node %s, and the ledger does not name it", r.replica.name, ch.key.name)
	}
	return ""
}

// checkOwn checks that a replica changes only its own taints, its annotation, its objects, its
// Leases and the ledger.
func checkOwn(_ *cluster, r *request, ch change) string {
	if r == nil {
		return ""
	}
	switch ch.key.kind {
	case "ConfigMap", "Lease", rebootKind.Kind:
		return ""
	case "Node":
	default:
		return r.replica.name + " writes " + ch.key.String()
	}
	before, _ := ch.before.(*corev1.Node)
	after, _ := ch.after.(*corev1.Node)
	if before == nil || after == nil {
		return r.replica.name + " creates or deletes node " + ch.key.name
	}
	strip := func(n *corev1.Node) *corev1.Node {
		n = n.DeepCopy()
		n.ResourceVersion = ""
		delete(n.Annotations, ownership.Annotation)
		delete(n.Annotations, attempts.Annotation)
		if until := pausedUntil(n); !time.Now().Before(until) {
			delete(n.Annotations, nodepause.Annotation)
		}
		if len(n.Annotations) == 0 {
			n.Annotations = nil
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Value == "" && strings.HasPrefix(t.Key, "example.com/") })
		if len(n.Spec.Taints) == 0 {
			n.Spec.Taints = nil
		}
		return n
	}
	if !equality.Semantic.DeepEqual(strip(before), strip(after)) {
		return r.replica.name + " changes what another component made on node " + ch.key.name
	}
	return ""
}

// checkPreconditions checks that a write names the version or the UID of its object.
func checkPreconditions(_ *cluster, r *request) string {
	version, uid := "", ""
	switch r.verb {
	case "creates":
		return ""
	case "updates":
		version, uid = r.object.GetResourceVersion(), string(r.object.GetUID())
	case "patches":
		var body struct {
			Metadata struct{ UID, ResourceVersion string } `json:"metadata"`
		}
		if err := json.Unmarshal(r.patch, &body); err != nil {
			return err.Error()
		}
		version, uid = body.Metadata.ResourceVersion, body.Metadata.UID
	case "deletes":
		if r.only.UID != nil {
			uid = string(*r.only.UID)
		}
		version = "any" // an object may change while it is deleted
	}
	if version == "" || uid == "" {
		return r.label + " without a precondition"
	}
	return ""
}

// isTrue reports whether a node has a condition in status True.
func isTrue(node *corev1.Node, condition string) bool {
	rows := map[corev1.ConditionStatus]naive.Status{corev1.ConditionTrue: naive.True, corev1.ConditionFalse: naive.False, corev1.ConditionUnknown: naive.Unknown}
	for _, c := range node.Status.Conditions {
		if string(c.Type) == condition {
			verdict, _ := naive.Group([]naive.Signal{{Condition: condition, Status: naive.True}}, naive.Condition{Status: rows[c.Status]})
			return verdict == naive.Holds
		}
	}
	return false
}

// checkOf returns the health check that owns a remediation object.
func (c *cluster) checkOf(object client.Object) Check {
	at := slices.IndexFunc(c.scenario.Checks, func(check Check) bool { return check.Name == object.GetOwnerReferences()[0].Name })
	return c.scenario.Checks[at]
}

// startsRemediation returns the health check of a request that creates a remediation object.
func (c *cluster) startsRemediation(r *request) (check Check, starts bool) {
	if r.verb != "creates" || r.key.kind != rebootKind.Kind {
		return check, false
	}
	return c.checkOf(r.object), true
}

// checkLook checks that a replica has read the node before it creates a remediation object,
// and that the node is unhealthy. A read is answered at once, so nothing changes between the
// read and the request.
func checkLook(c *cluster, r *request) string {
	check, starts := c.startsRemediation(r)
	if !starts {
		return ""
	}
	key := objectKey{kind: "Node", name: r.key.name}
	hasRead := r.replica.reads[key]
	delete(r.replica.reads, key)
	node, _ := c.model.objects[key].(*corev1.Node)
	switch {
	case !hasRead:
		return r.label + " without a look at the node"
	case node == nil || node.UID != nodeUIDOf(r.object):
		return r.label + " for a node that is gone"
	case !isTrue(node, check.Condition):
		return r.label + ", and the node is healthy"
	}
	return ""
}

// checkGate checks the gate when a replica that has received every change creates a
// remediation object.
func checkGate(c *cluster, r *request) string {
	check, starts := c.startsRemediation(r)
	if !starts || c.model.objects[r.key] != nil { // the object exists: an earlier answer was lost
		return ""
	}
	if !c.hasEverything(r.replica) {
		return ""
	}
	count := map[string]bool{}
	for _, node := range c.nodes() {
		object := c.model.objects[rebootOf(node.Name)]
		isTreated := object != nil && object.GetOwnerReferences()[0].Name == check.Name && nodeUIDOf(object) == node.UID
		if isTrue(node, check.Condition) || isTreated {
			count[node.Name] = true
		}
	}
	if most := naive.Allows(&naive.Limit{Number: check.MaxUnhealthy}, len(c.scenario.Nodes)); len(count) > most {
		return fmt.Sprintf("%s, and %s are unhealthy or in treatment, of which %s allows %d", r.label, strings.Join(slices.Sorted(maps.Keys(count)), ", "), check.Name, most)
	}
	return ""
}
