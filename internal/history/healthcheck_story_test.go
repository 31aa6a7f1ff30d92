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

	healing     = schema.GroupVersion{Group: "remediator.example.com", Version: "v1"}
	checkConfig = Config{Us: User("us"), Ledger: ledgerName, Remediation: []schema.GroupVersionResource{
		healing.WithResource("rebootremediations"), healing.WithResource("rebootremediationtemplates"),
		healing.WithResource("replaceremediations"), healing.WithResource("replaceremediationtemplates"),
	}}
)

// A health check for the default conditions after a minute, and a health check with two
// steps.
const (
	rebootRef  = `{"apiVersion":"remediator.example.com/v1","kind":"RebootRemediationTemplate","namespace":"healing","name":"quick"}`
	replaceRef = `{"apiVersion":"remediator.example.com/v1","kind":"ReplaceRemediationTemplate","namespace":"healing","name":"all"}`
	signs      = `"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"},{"type":"Ready","status":"Unknown","duration":"1m"}]`
	workers    = `{"remediationTemplate":` + rebootRef + `,` + signs + `}`
	twoSteps   = `{"escalatingRemediations":[{"order":2,"timeout":"10m","remediationTemplate":` + replaceRef + `},{"order":1,"timeout":"5m","remediationTemplate":` + rebootRef + `}],` + signs + `}`
)

// checkStory is a story with five nodes and the templates of two kinds. The health check on
// workers starts treatments while at most three nodes are unhealthy.
type checkStory struct {
	*story
	checks    map[string]*unstructured.Unstructured
	templates map[string]*unstructured.Unstructured // by kind
	objects   map[string]*unstructured.Unstructured // by kind and node
	leases    map[string]*unstructured.Unstructured // by namespace and name
}

func newCheckStory(tb testing.TB) *checkStory {
	tb.Helper()
	s := &checkStory{
		story: newStory(tb), checks: map[string]*unstructured.Unstructured{}, templates: map[string]*unstructured.Unstructured{},
		objects: map[string]*unstructured.Unstructured{}, leases: map[string]*unstructured.Unstructured{},
	}
	s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
	s.template("Replace", "all", `{"template":{"size":43}}`)
	return s
}

// fiveWorkers returns a story with five nodes and a health check.
func fiveWorkers(tb testing.TB) *checkStory {
	tb.Helper()
	s := newCheckStory(tb)
	s.node("n1", "n2", "n3", "n4", "n5")
	s.healthCheck("workers", workers)
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

func (s *checkStory) fresh(gvk schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(gvk)
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)))
	object.SetCreationTimestamp(metav1.NewTime(s.now.Truncate(time.Second)))
	return object
}

func (s *checkStory) template(kind, name, spec string) {
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

func (s *checkStory) deleteTemplate(kind string) {
	s.tb.Helper()
	s.record(watch.Deleted, resourceOf(kind+"RemediationTemplate"), admin, s.templates[kind+"RemediationTemplate"])
	delete(s.templates, kind+"RemediationTemplate")
}

// healthCheck writes a health check. The fields of its spec are JSON.
func (s *checkStory) healthCheck(name, spec string) {
	s.tb.Helper()
	object, change := s.checks[name], watch.Modified
	if object == nil {
		object, change = s.fresh(ChecksResource.GroupVersion().WithKind(checkKind), "", name), watch.Added
		s.checks[name] = object
	}
	object.Object["spec"] = fieldsOf(s.tb, spec)
	s.record(change, ChecksResource, admin, object)
}

func (s *checkStory) deleteHealthCheck(author testbed.Author, name string) {
	s.tb.Helper()
	s.record(watch.Deleted, ChecksResource, author, s.checks[name])
	delete(s.checks, name)
}

// writeStatus writes the status of a health check.
func (s *checkStory) writeStatus(name, phase string, observed, healthy, treated int, conditions ...string) {
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

// lease writes a Lease for ten minutes. An empty holder releases it.
func (s *checkStory) lease(author testbed.Author, namespace, name, holder string) {
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

// lock acquires the Lease of a node for a health check.
func (s *checkStory) lock(node, check string) {
	s.tb.Helper()
	s.lease(us, leaseNamespace, leasePrefix+node, holderPrefix+check)
}

func (s *checkStory) unlock(node string) {
	s.tb.Helper()
	s.lease(us, leaseNamespace, leasePrefix+node, "")
}

// draft returns the object that is to be created for a node.
func (s *checkStory) draft(node, check, kind string) *unstructured.Unstructured {
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

// makes records that an author created an object.
func (s *checkStory) makes(author testbed.Author, object *unstructured.Unstructured) {
	s.tb.Helper()
	s.objects[object.GetKind()+" "+object.GetAnnotations()[nodeNameAnnotation]] = object
	s.record(watch.Added, resourceOf(object.GetKind()), author, object)
}

// remediate locks a node and creates an object for it, after changes.
func (s *checkStory) remediate(node, check, kind string, changes ...func(*unstructured.Unstructured)) {
	s.tb.Helper()
	s.lock(node, check)
	object := s.draft(node, check, kind)
	for _, change := range changes {
		change(object)
	}
	s.makes(us, object)
}

func (s *checkStory) object(node, kind string) *unstructured.Unstructured {
	s.tb.Helper()
	object := s.objects[kind+"Remediation "+node]
	if object == nil {
		s.tb.Fatalf("there is no %s for %s", kind, node)
	}
	return object
}

// changes has an author change an object.
func (s *checkStory) changes(author testbed.Author, node, kind string, change func(*unstructured.Unstructured)) {
	s.tb.Helper()
	object := s.object(node, kind)
	change(object)
	s.record(watch.Modified, resourceOf(object.GetKind()), author, object)
}

// annotate writes an annotation on an object of ours.
func (s *checkStory) annotate(node, kind, annotation, value string) {
	s.tb.Helper()
	s.changes(us, node, kind, func(o *unstructured.Unstructured) {
		annotations := maps.Clone(o.GetAnnotations())
		annotations[annotation] = value
		o.SetAnnotations(annotations)
	})
}

func (s *checkStory) timesOut(node, kind string) {
	s.tb.Helper()
	s.annotate(node, kind, timedOutAnnotation, s.now.UTC().Format(time.RFC3339))
}

// reports has the remediator set conditions, for example Succeeded=False.
func (s *checkStory) reports(node, kind string, conditions ...string) {
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

// deletes has an author delete an object at once.
func (s *checkStory) deletes(author testbed.Author, node, kind string) {
	s.tb.Helper()
	object := s.object(node, kind)
	s.record(watch.Deleted, resourceOf(object.GetKind()), author, object)
	delete(s.objects, object.GetKind()+" "+node)
}

// startsDeletion has an author delete an object that its remediator keeps.
func (s *checkStory) startsDeletion(author testbed.Author, node, kind string) {
	s.tb.Helper()
	s.changes(remediator, node, kind, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"remediator.example.com/hold"}) })
	s.changes(author, node, kind, func(o *unstructured.Unstructured) {
		o.SetDeletionTimestamp(new(metav1.NewTime(s.now.Truncate(time.Second))))
	})
}

// becomeUnhealthy makes nodes unhealthy, and waits until they are treated.
func (s *checkStory) becomeUnhealthy(nodes ...string) {
	s.tb.Helper()
	for _, n := range nodes {
		s.condition(n, "Ready=False")
	}
	s.pass(time.Minute)
}

// removedForGood has a node treated by a remediator that removes it permanently.
func removedForGood(s *checkStory, node string) {
	s.tb.Helper()
	s.becomeUnhealthy(node)
	s.remediate(node, "workers", "Reboot")
	s.reports(node, "Reboot", "PermanentNodeDeletionExpected=True")
	s.pass(2 * DefaultLag)
	s.deleteNode(remediator, node)
}

func (s *checkStory) confirm(author testbed.Author, node string, isSo bool) {
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

func TestFormatPrintsOnlyTheNamedObjects(t *testing.T) {
	s := fiveWorkers(t)
	s.becomeUnhealthy("n1", "n2")
	for _, n := range []string{"n1", "n2"} {
		s.remediate(n, "workers", "Reboot")
	}
	s.edit(kubelet, "n1", func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }) // an irrelevant change
	s.timesOut("n1", "Reboot")
	s.reports("n1", "Reboot", "Succeeded=False", "PermanentNodeDeletionExpected=True")
	s.startsDeletion(us, "n1", "Reboot")
	text := Format(s.made, "n1", "workers")
	for _, want := range []string{
		`Ready=False/@12:01:00`, `Lease of "NodeHealthCheck-workers" renewed at`, `NodeHealthCheck {"remediationTemplate"`,
		`RebootRemediation of health check "workers" for node n1`, `spec={"size":42}`, "failed, replaces the node, timed out, is being deleted, kept by remediator.example.com/hold", "by remediator ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	if strings.Contains(text, " n2 ") {
		t.Error("the text has n2")
	}
	if got, want := strings.Count(text, "\n"), 8; got != want { // the check; the node twice; its Lease; its object four times
		t.Errorf("%d lines, want %d", got, want)
	}
	if t.Failed() {
		t.Log(text)
	}
}
