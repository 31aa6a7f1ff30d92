package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

var (
	us            = testbed.Author{User: "us", UserAgent: "autohealer-controller/v1", FieldManager: "autohealer-controller", Verb: "patch"}
	admin         = testbed.Author{User: "admin", UserAgent: "kubectl/v1", Verb: "patch"}
	remediator    = testbed.Author{User: "remediator", UserAgent: "remediator/v1", Verb: "patch"}
	peer          = testbed.Author{User: "peer", UserAgent: "manager/v1", Verb: "patch"}
	karpenter     = testbed.Author{User: "karpenter", UserAgent: "karpenter/v1", Verb: "patch"}
	kubelet       = testbed.Author{User: "kubelet", UserAgent: "kubelet/v1", Verb: "patch", Subresource: "status"}
	unknownAuthor = testbed.Author{User: testbed.UnknownUser, Reason: "the audit log ends here"}

	ledgerName = types.NamespacedName{Namespace: "autohealer-system", Name: "autohealer-ledger"}
	testConfig = Config{Us: User("us"), Ledger: ledgerName}

	healing     = schema.GroupVersion{Group: "remediator.example.com", Version: "v1"}
	checkConfig = Config{Us: User("us"), Ledger: ledgerName, Remediation: []schema.GroupVersionResource{
		healing.WithResource("rebootremediations"), healing.WithResource("rebootremediationtemplates"),
		healing.WithResource("replaceremediations"), healing.WithResource("replaceremediationtemplates"),
	}}
	repairCfg = Config{Us: User("us"), Ledger: ledgerName, Remediation: checkConfig.Remediation, Repairs: Repairs{ReadyTimeout: 10 * time.Minute}}
)

// kept are the objects of one kind.
type kept map[string]*unstructured.Unstructured

// story is a recording that a test writes. Every change takes ten milliseconds. The claim of
// node n1 is c-n1.
type story struct {
	tb      testing.TB
	now     time.Time
	version int
	nodes   map[string]*corev1.Node
	made    testbed.Recording

	sets, checks, pools, policies, claims, rails kept

	templates kept // by kind
	objects   kept // by kind and node
	leases    kept // by namespace and name

	entries     []grant // the entries of the ledger
	skipsLedger bool
	drafted     *unstructured.Unstructured
}

func newStory(tb testing.TB) *story {
	tb.Helper()
	return &story{
		tb: tb, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), version: 1000, nodes: map[string]*corev1.Node{},
		sets: kept{}, checks: kept{}, pools: kept{}, policies: kept{}, claims: kept{}, rails: kept{}, templates: kept{}, objects: kept{}, leases: kept{},
	}
}

// fiveNodes returns a story of five nodes and the set on deadlocks, which may evict two at
// once.
func fiveNodes(tb testing.TB) *story {
	tb.Helper()
	return newStory(tb).tell("node n1 n2 n3 n4 n5; set deadlock $deadlock; pass 1m")
}

// newCheckStory returns a story with the templates of two kinds.
func newCheckStory(tb testing.TB) *story {
	tb.Helper()
	return newStory(tb).tell(`template Reboot quick {"template":{"spec":{"size":42}}}; template Replace all {"template":{"size":43}}`)
}

// fiveWorkers returns a story with five nodes and a health check, which starts treatments
// while at most three nodes are unhealthy.
func fiveWorkers(tb testing.TB) *story {
	tb.Helper()
	return newCheckStory(tb).tell("node n1 n2 n3 n4 n5; healthCheck workers $workers; pass 1m")
}

// fiveClaims returns a story with a pool of five nodes, of which one may be in repair.
func fiveClaims(tb testing.TB) *story {
	tb.Helper()
	return newCheckStory(tb).tell("pool blue $badDisk; readyNodes blue n1 n2 n3 n4 n5; pass 1h")
}

// fivePlainNodes returns a story with five nodes without NodeClaims, of which one may be in
// repair.
func fivePlainNodes(tb testing.TB) *story {
	tb.Helper()
	return newCheckStory(tb).tell("policy rest $plainPolicy; node n1 n2 n3 n4 n5; pass 1h")
}

// pass advances the clock.
func (s *story) pass(d time.Duration) { s.now = s.now.Add(d) }

// record adds a change.
func (s *story) record(kind watch.EventType, gvr schema.GroupVersionResource, author testbed.Author, object *unstructured.Unstructured) {
	s.version++
	s.pass(10 * time.Millisecond)
	object = object.DeepCopy()
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.made = append(s.made, testbed.Change{
		Type: kind, GVR: gvr, Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		ResourceVersion: object.GetResourceVersion(), Object: object, Author: author, Time: s.now,
	})
}

func (s *story) recordNode(kind watch.EventType, author testbed.Author, node *corev1.Node) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		s.tb.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetAPIVersion("v1")
	object.SetKind("Node")
	s.record(kind, testbed.NodesResource, author, object)
	node.ResourceVersion = strconv.Itoa(s.version)
}

// node adds healthy nodes.
func (s *story) node(names ...string) {
	for _, name := range names {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)), Labels: map[string]string{"pool": "web"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: "Ready", Status: "True", LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second))},
			}},
		}
		s.nodes[name] = node
		s.recordNode(watch.Added, admin, node)
	}
}

// edit has an author change a node.
func (s *story) edit(author testbed.Author, name string, change func(*corev1.Node)) {
	node := s.nodes[name].DeepCopy()
	change(node)
	s.nodes[name] = node
	s.recordNode(watch.Modified, author, node)
}

func (s *story) deleteNode(author testbed.Author, name string) {
	s.recordNode(watch.Deleted, author, s.nodes[name])
	delete(s.nodes, name)
}

// condition sets a condition, for example Bad=Unknown or Bad=Unknown/AgentSilent. The
// timestamp is the whole second.
func (s *story) condition(name string, conditions ...string) { s.stamped(name, s.now, conditions...) }

func (s *story) stamped(name string, stamp time.Time, conditions ...string) {
	s.edit(kubelet, name, func(node *corev1.Node) {
		for _, c := range conditions {
			kind, status, _ := strings.Cut(c, "=")
			status, reason, _ := strings.Cut(status, "/")
			row := corev1.NodeCondition{
				Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason,
				LastTransitionTime: metav1.NewTime(stamp.Truncate(time.Second)),
			}
			at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == row.Type })
			switch {
			case status == "gone":
				node.Status.Conditions = slices.Delete(node.Status.Conditions, at, at+1)
			case at < 0:
				node.Status.Conditions = append(node.Status.Conditions, row)
			default:
				node.Status.Conditions[at] = row
			}
		}
	})
}

func (s *story) label(name, key, value string) {
	s.edit(admin, name, func(node *corev1.Node) { node.Labels[key] = value })
}

// foreign has another writer add a taint to a node, written as key:Effect.
func (s *story) foreign(name, text string) {
	s.edit(admin, name, func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: keyOf(text), Effect: effectOf(text), TimeAdded: new(metav1.NewTime(s.now.Add(-time.Hour).Truncate(time.Second)))})
	})
}

func (s *story) takeAway(author testbed.Author, name, text string) {
	s.edit(author, name, func(node *corev1.Node) { dropTaint(node, text) })
}

func dropTaint(node *corev1.Node, text string) {
	node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == keyOf(text) && t.Effect == effectOf(text) })
}

func keyOf(text string) string { return text[:strings.LastIndex(text, ":")] }

func effectOf(text string) corev1.TaintEffect {
	return corev1.TaintEffect(text[strings.LastIndex(text, ":")+1:])
}

// ---- objects

func resourceOf(kind string) schema.GroupVersionResource {
	return healing.WithResource(strings.ToLower(kind) + "s")
}

func fieldsOf(tb testing.TB, text string) map[string]any {
	tb.Helper()
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"X","spec":` + text + `}`)); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	fields, _ := object.Object["spec"].(map[string]any)
	return fields
}

func (s *story) fresh(gvk schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(gvk)
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)))
	object.SetCreationTimestamp(metav1.NewTime(s.now.Truncate(time.Second)))
	return object
}

// put creates an object, or changes its spec.
func (s *story) put(author testbed.Author, of kept, key string, gvr schema.GroupVersionResource, kind, namespace, name string, spec map[string]any) {
	object, change := of[key], watch.Modified
	if object == nil {
		object, change = s.fresh(gvr.GroupVersion().WithKind(kind), namespace, name), watch.Added
		of[key] = object
	}
	object.Object["spec"] = spec
	s.record(change, gvr, author, object)
}

func (s *story) drop(author testbed.Author, of kept, key string, gvr schema.GroupVersionResource) {
	s.record(watch.Deleted, gvr, author, of[key])
	delete(of, key)
}

// set writes a ConditionSet. The fields of its spec are JSON.
func (s *story) set(name, spec string) {
	s.put(admin, s.sets, name, SetsResource, "ConditionSet", "", name, fieldsOf(s.tb, spec))
}

func (s *story) deleteSet(author testbed.Author, name string) {
	s.drop(author, s.sets, name, SetsResource)
}

func (s *story) template(kind, name, spec string) {
	kind += "RemediationTemplate"
	s.put(admin, s.templates, kind, resourceOf(kind), kind, "healing", name, fieldsOf(s.tb, spec))
}

func (s *story) deleteTemplate(kind string) {
	s.drop(admin, s.templates, kind+"RemediationTemplate", resourceOf(kind+"RemediationTemplate"))
}

func (s *story) healthCheck(name, spec string) {
	s.put(admin, s.checks, name, ChecksResource, checkKind, "", name, fieldsOf(s.tb, spec))
}

func (s *story) deleteHealthCheck(author testbed.Author, name string) {
	s.drop(author, s.checks, name, ChecksResource)
}

func (s *story) writePool(author testbed.Author, name, spec string) {
	s.put(author, s.pools, name, PoolsResource, "NodePool", "", name, fieldsOf(s.tb, spec))
}

func (s *story) pool(name, spec string) { s.writePool(admin, name, spec) }

func (s *story) deletePool(author testbed.Author, name string) {
	s.drop(author, s.pools, name, PoolsResource)
}

func (s *story) writePolicy(author testbed.Author, name, spec string) {
	s.put(author, s.policies, name, PoliciesResource, policyKind, "", name, fieldsOf(s.tb, spec))
}

func (s *story) policy(name, spec string) { s.writePolicy(admin, name, spec) }

func (s *story) deletePolicy(author testbed.Author, name string) {
	s.drop(author, s.policies, name, PoliciesResource)
}

// writeAgain has us write an object of a kind without a change.
func (s *story) writeAgain(kind, name string) {
	switch kind {
	case "set":
		s.record(watch.Modified, SetsResource, us, s.sets[name])
	case "policy":
		s.record(watch.Modified, PoliciesResource, us, s.policies[name])
	case "lease":
		s.record(watch.Modified, testbed.LeasesResource, us, s.leases[name])
	case "claim":
		s.record(watch.Modified, ClaimsResource, us, s.claims[name])
	}
}

// ---- our writes

type form struct {
	Taints   []formTaint  `json:"taints,omitempty"`
	Memories []formMemory `json:"memories,omitempty"`
	Fence    string       `json:"fence,omitempty"`
}

type formTaint struct {
	Rule   string    `json:"rule"`
	Key    string    `json:"key"`
	Effect string    `json:"effect"`
	Added  time.Time `json:"added"`
}

type formMemory struct {
	Rule      string    `json:"rule"`
	Condition string    `json:"condition"`
	Since     time.Time `json:"since"`
}

func readForm(node *corev1.Node) form {
	var f form
	_ = json.Unmarshal([]byte(node.Annotations[recordAnnotation]), &f) // empty if missing
	return f
}

func writeForm(node *corev1.Node, f form) {
	text, _ := json.Marshal(f) // plain values
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[recordAnnotation] = string(text)
	if string(text) == "{}" {
		delete(node.Annotations, recordAnnotation)
	}
}

// act is a part of a write of ours.
type act func(node *corev1.Node, f *form)

// we make one write to a node. NoExecute goes into the ledger first.
func (s *story) we(name string, acts ...act) {
	probe := s.nodes[name].DeepCopy()
	before := carriedBy(probe)
	s.apply(probe, acts)
	var grants []grant
	for _, t := range carriedBy(probe) {
		had := slices.ContainsFunc(before, func(o formTaint) bool { return o.Rule == t.Rule && o.Effect == noExecute })
		if t.Effect == noExecute && !had {
			grants = append(grants, grant{t.Rule, name, string(probe.UID), s.nodes[name].ResourceVersion, ""})
		}
	}
	if len(grants) > 0 {
		s.enter(grants...)
	}
	s.weUnrecorded(name, acts...)
}

// weUnrecorded writes without the ledger.
func (s *story) weUnrecorded(name string, acts ...act) {
	s.edit(us, name, func(node *corev1.Node) { s.apply(node, acts) })
}

func (s *story) apply(node *corev1.Node, acts []act) {
	f := readForm(node)
	for _, a := range acts {
		a(node, &f)
	}
	writeForm(node, f)
}

// carriedBy returns the entries of a record whose taint is on the node.
func carriedBy(node *corev1.Node) []formTaint {
	return slices.DeleteFunc(readForm(node).Taints, func(t formTaint) bool {
		return !slices.ContainsFunc(node.Spec.Taints, t.is)
	})
}

func (t formTaint) is(taint corev1.Taint) bool {
	return taint.Key == t.Key && string(taint.Effect) == t.Effect && taint.Value == "" && taint.TimeAdded != nil && taint.TimeAdded.Time.Equal(t.Added)
}

func (s *story) enter(grants ...grant) {
	text, _ := json.Marshal(ledgerState{Grants: grants}) // plain values
	object := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"ledger": string(text)}}}
	object.SetNamespace(ledgerName.Namespace)
	object.SetName(ledgerName.Name)
	object.SetUID("uid-ledger")
	object.SetAPIVersion("v1")
	object.SetKind("ConfigMap")
	s.record(watch.Modified, ConfigMapsResource, us, object)
}

// place adds a taint of a set to a node and records it.
func (s *story) place(set, text string) act {
	added := s.now.Truncate(time.Second)
	return func(node *corev1.Node, f *form) {
		at := slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == keyOf(text) && t.Effect == effectOf(text) })
		if at < 0 {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: keyOf(text), Effect: effectOf(text), TimeAdded: new(metav1.NewTime(added))})
		} else { // shared
			added = node.Spec.Taints[at].TimeAdded.UTC()
		}
		f.Taints = append(f.Taints, formTaint{"ConditionSet/" + set, keyOf(text), string(effectOf(text)), added})
	}
}

// remove removes a taint of a set and its entry.
func (s *story) remove(set, text string) act {
	return func(node *corev1.Node, f *form) {
		f.Taints = slices.DeleteFunc(f.Taints, func(t formTaint) bool {
			return t.Rule == "ConditionSet/"+set && t.Key == keyOf(text) && t.Effect == string(effectOf(text))
		})
		if !slices.ContainsFunc(f.Taints, func(t formTaint) bool { return t.Key == keyOf(text) && t.Effect == string(effectOf(text)) }) {
			dropTaint(node, text)
		}
	}
}

func fence(token string) act { return func(_ *corev1.Node, f *form) { f.Fence = token } }

func remember(set, condition string, since time.Time) act {
	return func(_ *corev1.Node, f *form) {
		f.Memories = append(f.Memories, formMemory{"ConditionSet/" + set, condition, since.UTC()})
	}
}

func forget(_ *corev1.Node, f *form) { f.Memories = nil }

// ---- health checks

// writeStatus writes the status of a health check.
func (s *story) writeStatus(name, phase string, observed, healthy, treated int, conditions ...string) {
	rows := []any{}
	for _, c := range conditions {
		kind, status, _ := strings.Cut(c, "=")
		rows = append(rows, map[string]any{"type": kind, "status": status})
	}
	s.checks[name].Object["status"] = map[string]any{
		"phase": phase, "observedNodes": int64(observed), "healthyNodes": int64(healthy), "inTreatment": int64(treated), "conditions": rows,
	}
	s.record(watch.Modified, ChecksResource, us, s.checks[name])
}

// lease writes a Lease for ten minutes. An empty holder releases it.
func (s *story) lease(author testbed.Author, namespace, name, holder string) {
	key := namespace + "/" + name
	if holder == "" {
		s.drop(author, s.leases, key, testbed.LeasesResource)
		return
	}
	s.put(author, s.leases, key, testbed.LeasesResource, "Lease", namespace, name,
		map[string]any{"holderIdentity": holder, "leaseDurationSeconds": int64(600), "renewTime": s.now.UTC().Format(metav1.RFC3339Micro)})
}

// lock acquires the Lease of a node for a health check.
func (s *story) lock(node, check string) {
	s.lease(us, leaseNamespace, leasePrefix+node, holderPrefix+check)
}

func (s *story) unlock(node string) { s.lease(us, leaseNamespace, leasePrefix+node, "") }

// draft returns the object that is to be created for a node.
func (s *story) draft(node, check, kind string) *unstructured.Unstructured {
	template := s.templates[kind+"RemediationTemplate"]
	name, body := "gone", map[string]any{}
	if template != nil {
		name = template.GetName()
		body, _ = bodyOf(template)
	}
	object := s.fresh(healing.WithKind(kind+"Remediation"), "healing", node)
	object.Object["spec"] = copied(body)
	uid, checkUID := types.UID("uid-of-no-node"), types.UID("uid-of-no-check")
	labels := map[string]string{partOfLabel: partOf}
	if n := s.nodes[node]; n != nil {
		uid = n.UID
		if onControlPlane(n.Labels) {
			labels[treatedAsControlPlane] = ""
		}
	}
	if c := s.checks[check]; c != nil {
		checkUID = c.GetUID()
	}
	object.SetLabels(labels)
	object.SetAnnotations(map[string]string{nodeNameAnnotation: node, templateNameAnnotation: name, nodeUIDAnnotation: string(uid)})
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: checkAPIVersion, Kind: checkKind, Name: check, UID: checkUID, Controller: new(false)}})
	return object
}

// makes records that an author created an object.
func (s *story) makes(author testbed.Author, object *unstructured.Unstructured) {
	s.objects[object.GetKind()+" "+object.GetAnnotations()[nodeNameAnnotation]] = object
	s.record(watch.Added, resourceOf(object.GetKind()), author, object)
}

// remediate locks a node and creates an object for it, after changes.
func (s *story) remediate(node, check, kind string, changes ...func(*unstructured.Unstructured)) {
	s.lock(node, check)
	object := s.draft(node, check, kind)
	for _, change := range changes {
		change(object)
	}
	s.makes(us, object)
}

func (s *story) object(node, kind string) *unstructured.Unstructured {
	object := s.objects[kind+"Remediation "+node]
	if object == nil {
		s.tb.Fatalf("there is no %s for %s", kind, node)
	}
	return object
}

// changes has an author change an object.
func (s *story) changes(author testbed.Author, node, kind string, change func(*unstructured.Unstructured)) {
	object := s.object(node, kind)
	change(object)
	s.record(watch.Modified, resourceOf(object.GetKind()), author, object)
}

// annotate writes an annotation on an object of ours.
func (s *story) annotate(node, kind, annotation, value string) {
	s.changes(us, node, kind, func(o *unstructured.Unstructured) {
		annotations := maps.Clone(o.GetAnnotations())
		annotations[annotation] = value
		o.SetAnnotations(annotations)
	})
}

func (s *story) timesOut(node, kind string) {
	s.annotate(node, kind, timedOutAnnotation, s.now.UTC().Format(time.RFC3339))
}

// reports has the remediator set conditions, for example Succeeded=False.
func (s *story) reports(node, kind string, conditions ...string) {
	s.changes(remediator, node, kind, func(o *unstructured.Unstructured) {
		rows := []any{}
		for _, c := range conditions {
			name, status, _ := strings.Cut(c, "=")
			rows = append(rows, map[string]any{"type": name, "status": status})
		}
		o.Object["status"] = map[string]any{"conditions": rows}
	})
}

// deleteObject has an author delete an object at once.
func (s *story) deleteObject(author testbed.Author, node, kind string) {
	object := s.object(node, kind)
	s.record(watch.Deleted, resourceOf(object.GetKind()), author, object)
	delete(s.objects, object.GetKind()+" "+node)
}

// startsDeletion has an author delete an object that its remediator keeps.
func (s *story) startsDeletion(author testbed.Author, node, kind string) {
	s.changes(remediator, node, kind, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"remediator.example.com/hold"}) })
	s.changes(author, node, kind, func(o *unstructured.Unstructured) {
		o.SetDeletionTimestamp(new(metav1.NewTime(s.now.Truncate(time.Second))))
	})
}

// becomeUnhealthy makes nodes unhealthy, and waits until they are treated.
func (s *story) becomeUnhealthy(nodes ...string) {
	for _, n := range nodes {
		s.condition(n, "Ready=False")
	}
	s.pass(time.Minute)
}

// removedForGood has a node treated by a remediator that removes it permanently.
func (s *story) removedForGood(node string) {
	s.becomeUnhealthy(node)
	s.remediate(node, "workers", "Reboot")
	s.reports(node, "Reboot", "PermanentNodeDeletionExpected=True")
	s.pass(2 * DefaultLag)
	s.deleteNode(remediator, node)
}

func (s *story) confirm(author testbed.Author, node string, isSo bool) {
	s.edit(author, node, func(n *corev1.Node) {
		n.Annotations = maps.Clone(n.Annotations)
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[confirmedAnnotation] = "yes"
		if !isSo {
			delete(n.Annotations, confirmedAnnotation)
		}
	})
}

// ---- repairs

// changeTemplate has Karpenter record a changed template of a pool.
func (s *story) changeTemplate(name, template string) {
	annotated(map[string]string{templateAnnotation: template})(s.pools[name])
	s.record(watch.Modified, PoolsResource, karpenter, s.pools[name])
}

// claim adds a claim of a pool, with the provider ID of a node.
func (s *story) claim(pool, name, node string) {
	object := s.fresh(ClaimsResource.GroupVersion().WithKind("NodeClaim"), "", name)
	object.SetLabels(map[string]string{poolLabel: pool})
	if of := s.pools[pool]; of != nil && of.GetAnnotations()[templateAnnotation] != "" {
		object.SetAnnotations(map[string]string{templateAnnotation: of.GetAnnotations()[templateAnnotation]})
	}
	object.SetFinalizers([]string{"karpenter.sh/termination"})
	object.Object["spec"] = map[string]any{"startupTaints": []any{map[string]any{"key": "example.com/starting", "effect": "NoSchedule"}}}
	object.Object["status"] = map[string]any{"providerID": "kwok://" + node}
	s.claims[name] = object
	s.record(watch.Added, ClaimsResource, karpenter, object)
}

// startingNodes adds nodes with claims that have just started.
func (s *story) startingNodes(pool string, names ...string) {
	for _, name := range names {
		s.claim(pool, "c-"+name, name)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)), Labels: map[string]string{"pool": "web", poolLabel: pool},
				Annotations: map[string]string{}, CreationTimestamp: metav1.NewTime(s.now.Truncate(time.Second)),
			},
			Spec: corev1.NodeSpec{ProviderID: "kwok://" + name, Taints: []corev1.Taint{{Key: "example.com/starting", Effect: "NoSchedule"}}},
		}
		s.nodes[name] = node
		s.recordNode(watch.Added, karpenter, node)
	}
}

// readyNodes adds nodes with claims that are ready for work.
func (s *story) readyNodes(pool string, names ...string) {
	s.startingNodes(pool, names...)
	for _, name := range names {
		s.condition(name, "Ready=True")
		s.edit(karpenter, name, func(n *corev1.Node) {
			n.Spec.Taints = nil
			n.Labels[initializedLabel] = "true"
		})
		s.setClaimCondition("c-"+name, "Initialized=True")
	}
}

// changeClaim has an author change a claim.
func (s *story) changeClaim(author testbed.Author, name string, change func(*unstructured.Unstructured)) {
	object := s.claims[name].DeepCopy()
	change(object)
	s.claims[name] = object
	s.record(watch.Modified, ClaimsResource, author, object)
}

// setClaimCondition has Karpenter set a condition of a claim.
func (s *story) setClaimCondition(name, condition string) {
	s.changeClaim(karpenter, name, func(o *unstructured.Unstructured) { setCondition(o, condition) })
}

func setCondition(o *unstructured.Unstructured, condition string) {
	kind, status, _ := strings.Cut(condition, "=")
	list := []any{}
	for _, row := range rows(o, "status", "conditions") {
		if text(row, "type") != kind {
			list = append(list, any(row))
		}
	}
	o.Object["status"].(map[string]any)["conditions"] = append(list, map[string]any{"type": kind, "status": status, "reason": "Drifted"})
}

func annotated(annotations map[string]string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		all := map[string]string{}
		maps.Copy(all, o.GetAnnotations())
		for key, value := range annotations {
			all[key] = value
			if value == "" {
				delete(all, key)
			}
		}
		o.SetAnnotations(all)
		if len(all) == 0 {
			unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
		}
	}
}

func (s *story) markFor(node, rule string) string {
	uid := types.UID("uid-of-no-node")
	if n := s.nodes[node]; n != nil {
		uid = n.UID
	}
	text, _ := json.Marshal(map[string]any{"rule": rule, "node": node, "nodeUID": uid, "since": s.now.UTC()}) // plain values
	return string(text)
}

// marks marks the claim of a node as we do, with an optional deadline.
func (s *story) marks(node, rule string, deadline ...time.Time) {
	s.marksAs(us, node, rule, deadline...)
}

func (s *story) marksAs(author testbed.Author, node, rule string, deadline ...time.Time) {
	if n := s.nodes[node]; n != nil && !s.skipsLedger {
		s.entries = append(s.entries, grant{rule, node, string(n.UID), s.versionOf("c-" + node), claimInLedger + "c-" + node})
		s.enter(s.entries...)
	}
	written := map[string]string{markAnnotation: s.markFor(node, rule)}
	if len(deadline) > 0 {
		written[deadlineAnnotation] = deadline[0].UTC().Format(time.RFC3339)
	}
	s.changeClaim(author, "c-"+node, annotated(written))
}

// versionOf returns the last recorded version of a claim.
func (s *story) versionOf(claim string) string {
	for i := len(s.made) - 1; i >= 0; i-- {
		if c := s.made[i]; c.GVR == ClaimsResource && c.Name == claim {
			return c.ResourceVersion
		}
	}
	return ""
}

// deleteClaim starts the deletion of a claim.
func (s *story) deleteClaim(author testbed.Author, node string) {
	author.Verb = "delete"
	s.changeClaim(author, "c-"+node, func(o *unstructured.Unstructured) {
		o.SetDeletionTimestamp(new(metav1.NewTime(s.now.Truncate(time.Second))))
		o.SetDeletionGracePeriodSeconds(new(int64))
	})
}

// marksAndDeletes marks and deletes a claim by force.
func (s *story) marksAndDeletes(node, rule string) {
	s.marks(node, rule, s.now)
	s.deleteClaim(us, node)
}

// unmarks removes the mark again.
func (s *story) unmarks(node string) {
	s.changeClaim(us, "c-"+node, annotated(map[string]string{markAnnotation: "", deadlineAnnotation: ""}))
}

// finishDeletion has Karpenter finish the deletion of a claim.
func (s *story) finishDeletion(node string) {
	s.deleteNode(karpenter, node)
	s.deleteAtOnce(karpenter, node)
}

func (s *story) deleteAtOnce(author testbed.Author, node string) {
	s.record(watch.Deleted, ClaimsResource, author, s.claims["c-"+node])
	delete(s.claims, "c-"+node)
}

// breakDisks makes the disks of nodes bad for as long as the block tolerates.
func (s *story) breakDisks(names ...string) {
	for _, name := range names {
		s.condition(name, "Disk=True")
	}
	s.pass(time.Minute)
}

// repairs locks a node and creates an object for it that a policy owns.
func (s *story) repairs(node, policy string, changes ...func(*unstructured.Unstructured)) {
	owned := owner(func(o *metav1.OwnerReference) {
		o.APIVersion, o.Kind, o.Name = policyAPIVersion, policyKind, policy
		if p := s.policies[policy]; p != nil {
			o.UID = p.GetUID()
		}
	})
	s.remediate(node, "RepairPolicy/"+policy, "Reboot", append([]func(*unstructured.Unstructured){owned}, changes...)...)
}

// ---- judging

func (s *story) check(cfg Config) Report {
	report, err := Check(s.made, cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	return report
}

// hasNoViolation fails the test if the checker finds a violation.
func (s *story) hasNoViolation(cfg Config) Report {
	report := s.check(cfg)
	if len(report.Violations) > 0 {
		s.tb.Fatalf("%s\n%s", report, s)
	}
	return report
}

// caught fails the test unless the checker finds violations of this kind only.
func (s *story) caught(cfg Config, kind Kind) Report {
	report := s.check(cfg)
	kinds := map[Kind]bool{}
	for _, v := range report.Violations {
		kinds[v.Kind] = true
	}
	if got := slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, []Kind{kind}) {
		s.tb.Errorf("found %v, want %s alone: %s\n%s", got, kind, report, s)
	}
	return report
}

// String formats the story, one line for each change.
func (s *story) String() string { return Format(s.made) }
