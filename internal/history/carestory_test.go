package history

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

var (
	remediator = testbed.Author{User: "remediator", UserAgent: "remediator/v1", Verb: "patch"}
	peer       = testbed.Author{User: "peer", UserAgent: "manager/v1", Verb: "patch"}

	healing = schema.GroupVersion{Group: "remediator.example.com", Version: "v1"}
	careCfg = Config{Us: User("us"), Ledger: ledgerName, Remediation: []schema.GroupVersionResource{
		healing.WithResource("rebootremediations"), healing.WithResource("rebootremediationtemplates"),
		healing.WithResource("replaceremediations"), healing.WithResource("replaceremediationtemplates"),
	}}
)

// A check for the usual signs after a minute, and one that tries two things.
const (
	rebootRef  = `{"apiVersion":"remediator.example.com/v1","kind":"RebootRemediationTemplate","namespace":"healing","name":"quick"}`
	replaceRef = `{"apiVersion":"remediator.example.com/v1","kind":"ReplaceRemediationTemplate","namespace":"healing","name":"all"}`
	signs      = `"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"},{"type":"Ready","status":"Unknown","duration":"1m"}]`
	workers    = `{"remediationTemplate":` + rebootRef + `,` + signs + `}`
	ladder     = `{"escalatingRemediations":[{"order":2,"timeout":"10m","remediationTemplate":` + replaceRef + `},{"order":1,"timeout":"5m","remediationTemplate":` + rebootRef + `}],` + signs + `}`
)

// hospital is a story with five nodes, of which three may be sick for the health check
// on workers to begin anything, and the templates of two kinds.
type hospital struct {
	*story
	checks    map[string]*unstructured.Unstructured
	templates map[string]*unstructured.Unstructured // by kind
	objects   map[string]*unstructured.Unstructured // by kind and node
	leases    map[string]*unstructured.Unstructured // by namespace and name
}

func newHospital(tb testing.TB) *hospital {
	tb.Helper()
	s := &hospital{
		story: newStory(tb), checks: map[string]*unstructured.Unstructured{}, templates: map[string]*unstructured.Unstructured{},
		objects: map[string]*unstructured.Unstructured{}, leases: map[string]*unstructured.Unstructured{},
	}
	s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
	s.template("Replace", "all", `{"template":{"size":43}}`)
	return s
}

// ill returns a hospital with five nodes and a health check.
func ill(tb testing.TB) *hospital {
	tb.Helper()
	s := newHospital(tb)
	s.node("n1", "n2", "n3", "n4", "n5")
	s.checkup("workers", workers)
	s.pass(time.Minute)
	return s
}

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

func (s *hospital) fresh(gvk schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(gvk)
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)))
	object.SetCreationTimestamp(metav1.NewTime(s.now.Truncate(time.Second)))
	return object
}

func (s *hospital) template(kind, name, spec string) {
	s.tb.Helper()
	kind += "RemediationTemplate"
	object, change := s.templates[kind], watch.Modified
	if object == nil {
		object, change = s.fresh(healing.WithKind(kind), "healing", name), watch.Added
		s.templates[kind] = object
	}
	object.Object["spec"] = fieldsOf(s.tb, spec)
	s.record(change, resourceOf(kind), admin, object)
}

func (s *hospital) dropTemplate(kind string) {
	s.tb.Helper()
	s.record(watch.Deleted, resourceOf(kind+"RemediationTemplate"), admin, s.templates[kind+"RemediationTemplate"])
	delete(s.templates, kind+"RemediationTemplate")
}

// checkup writes a health check, or changes it: the fields of its spec as JSON.
func (s *hospital) checkup(name, spec string) {
	s.tb.Helper()
	object, change := s.checks[name], watch.Modified
	if object == nil {
		object, change = s.fresh(ChecksResource.GroupVersion().WithKind(checkKind), "", name), watch.Added
		s.checks[name] = object
	}
	object.Object["spec"] = fieldsOf(s.tb, spec)
	s.record(change, ChecksResource, admin, object)
}

func (s *hospital) dropCheckup(author testbed.Author, name string) {
	s.tb.Helper()
	s.record(watch.Deleted, ChecksResource, author, s.checks[name])
	delete(s.checks, name)
}

// tells writes the status of a health check.
func (s *hospital) tells(name, phase string, observed, healthy, treated int, conditions ...string) {
	s.tb.Helper()
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

// lease writes a Lease for ten minutes; a holder of "" gives it back.
func (s *hospital) lease(author testbed.Author, namespace, name, holder string) {
	s.tb.Helper()
	key := namespace + "/" + name
	object, change := s.leases[key], watch.Modified
	if object == nil {
		object, change = s.fresh(testbed.LeasesResource.GroupVersion().WithKind("Lease"), namespace, name), watch.Added
		s.leases[key] = object
	}
	if holder == "" {
		s.record(watch.Deleted, testbed.LeasesResource, author, object)
		delete(s.leases, key)
		return
	}
	object.Object["spec"] = map[string]any{"holderIdentity": holder, "leaseDurationSeconds": int64(600), "renewTime": s.now.UTC().Format(metav1.RFC3339Micro)}
	s.record(change, testbed.LeasesResource, author, object)
}

// lock takes the Lease of a node for a health check.
func (s *hospital) lock(node, check string) {
	s.tb.Helper()
	s.lease(us, leaseNamespace, leasePrefix+node, holderPrefix+check)
}

func (s *hospital) unlock(node string) {
	s.tb.Helper()
	s.lease(us, leaseNamespace, leasePrefix+node, "")
}

// draft returns the object that is to be made for a node.
func (s *hospital) draft(node, check, kind string) *unstructured.Unstructured {
	s.tb.Helper()
	template := s.templates[kind+"RemediationTemplate"]
	name, body := "gone", map[string]any{}
	if template != nil {
		name = template.GetName()
		body, _ = bodyOf(template)
	}
	object := s.fresh(healing.WithKind(kind+"Remediation"), "healing", node)
	object.Object["spec"] = copied(body)
	uid, checkUID := types.UID("uid-of-nobody"), types.UID("uid-of-no-check")
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

// makes records that somebody has made an object.
func (s *hospital) makes(author testbed.Author, object *unstructured.Unstructured) {
	s.tb.Helper()
	s.objects[object.GetKind()+" "+object.GetAnnotations()[nodeNameAnnotation]] = object
	s.record(watch.Added, resourceOf(object.GetKind()), author, object)
}

// remediate locks a node and makes an object for it, after changes.
func (s *hospital) remediate(node, check, kind string, changes ...func(*unstructured.Unstructured)) {
	s.tb.Helper()
	s.lock(node, check)
	object := s.draft(node, check, kind)
	for _, change := range changes {
		change(object)
	}
	s.makes(us, object)
}

func (s *hospital) object(node, kind string) *unstructured.Unstructured {
	s.tb.Helper()
	object := s.objects[kind+"Remediation "+node]
	if object == nil {
		s.tb.Fatalf("there is no %s for %s", kind, node)
	}
	return object
}

// changes has somebody change an object.
func (s *hospital) changes(author testbed.Author, node, kind string, change func(*unstructured.Unstructured)) {
	s.tb.Helper()
	object := s.object(node, kind)
	change(object)
	s.record(watch.Modified, resourceOf(object.GetKind()), author, object)
}

// annotate writes an annotation on an object of ours.
func (s *hospital) annotate(node, kind, annotation, value string) {
	s.tb.Helper()
	s.changes(us, node, kind, func(o *unstructured.Unstructured) {
		annotations := maps.Clone(o.GetAnnotations())
		annotations[annotation] = value
		o.SetAnnotations(annotations)
	})
}

func (s *hospital) timeIsUp(node, kind string) {
	s.tb.Helper()
	s.annotate(node, kind, timedOutAnnotation, s.now.UTC().Format(time.RFC3339))
}

// answers is the remediator's word, such as Succeeded=False.
func (s *hospital) answers(node, kind string, conditions ...string) {
	s.tb.Helper()
	s.changes(remediator, node, kind, func(o *unstructured.Unstructured) {
		rows := []any{}
		for _, c := range conditions {
			name, status, _ := strings.Cut(c, "=")
			rows = append(rows, map[string]any{"type": name, "status": status})
		}
		o.Object["status"] = map[string]any{"conditions": rows}
	})
}

// ends has somebody delete an object at once.
func (s *hospital) ends(author testbed.Author, node, kind string) {
	s.tb.Helper()
	object := s.object(node, kind)
	s.record(watch.Deleted, resourceOf(object.GetKind()), author, object)
	delete(s.objects, object.GetKind()+" "+node)
}

// condemns has somebody delete an object that its remediator keeps.
func (s *hospital) condemns(author testbed.Author, node, kind string) {
	s.tb.Helper()
	s.changes(remediator, node, kind, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"remediator.example.com/hold"}) })
	s.changes(author, node, kind, func(o *unstructured.Unstructured) {
		o.SetDeletionTimestamp(new(metav1.NewTime(s.now.Truncate(time.Second))))
	})
}

// fallIll makes nodes sick, and lets the time pass after which they are treated.
func (s *hospital) fallIll(nodes ...string) {
	s.tb.Helper()
	for _, n := range nodes {
		s.condition(n, "Ready=False")
	}
	s.pass(time.Minute)
}

// takenAway has a node treated by a remediator that takes it away for good.
func takenAway(s *hospital, node string) {
	s.tb.Helper()
	s.fallIll(node)
	s.remediate(node, "workers", "Reboot")
	s.answers(node, "Reboot", "PermanentNodeDeletionExpected=True")
	s.pass(2 * DefaultLag)
	s.deleteNode(remediator, node)
}

func (s *hospital) confirm(author testbed.Author, node string, isSo bool) {
	s.tb.Helper()
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

// with returns a spec with more fields.
func with(spec, fields string) string { return strings.TrimSuffix(spec, "}") + "," + fields + "}" }

func TestTellTellsOfWhomItIsAsked(t *testing.T) {
	s := ill(t)
	s.fallIll("n1", "n2")
	for _, n := range []string{"n1", "n2"} {
		s.remediate(n, "workers", "Reboot")
	}
	s.edit(kubelet, "n1", func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }) // says nothing
	s.timeIsUp("n1", "Reboot")
	s.answers("n1", "Reboot", "Succeeded=False", "PermanentNodeDeletionExpected=True")
	s.condemns(us, "n1", "Reboot")
	told := Tell(s.made, "n1", "workers")
	for _, want := range []string{
		`Ready=False/@12:01:00`, `Lease of "NodeHealthCheck-workers" renewed at`, `NodeHealthCheck {"remediationTemplate"`,
		`RebootRemediation of health check "workers" for node n1`, `spec={"size":42}`, "failed, replaces the node, timed out, is being deleted, kept by remediator.example.com/hold", "by remediator ",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	if strings.Contains(told, " n2 ") {
		t.Error("it tells of n2")
	}
	if got, want := strings.Count(told, "\n"), 8; got != want { // the check; the node twice; its Lease; its object four times
		t.Errorf("%d lines, want %d", got, want)
	}
	if t.Failed() {
		t.Log(told)
	}
}
