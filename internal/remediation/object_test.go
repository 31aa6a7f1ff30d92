package remediation_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// ofPeer is an object that medik8s' own controller created, with a remediator's answer.
const ofPeer = `{
  "apiVersion": "self-node-remediation.medik8s.io/v1alpha1",
  "kind": "SelfNodeRemediation",
  "metadata": {
    "namespace": "openshift-workload-availability",
    "name": "worker-1-x7k2p",
    "uid": "object-uid",
    "resourceVersion": "12",
    "creationTimestamp": "2026-11-15T12:00:00Z",
    "deletionTimestamp": "2026-11-15T12:30:00Z",
    "finalizers": ["self-node-remediation.medik8s.io/snr-finalizer"],
    "labels": {"app.kubernetes.io/part-of": "node-healthcheck-controller", "remediation.medik8s.io/isControlPlaneNode": ""},
    "annotations": {
      "remediation.medik8s.io/node-name": "worker-1",
      "remediation.medik8s.io/template-name": "reboot",
      "remediation.medik8s.io/nhc-timed-out": "2026-11-15T12:10:00Z",
      "remediation.medik8s.io/healthy-delay": "2026-11-15T13:20:00+01:00"
    },
    "ownerReferences": [
      {"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "name": "m", "uid": "machine-uid"},
      {"apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "name": "workers", "uid": "check-uid", "controller": false}
    ]
  },
  "spec": {"remediationStrategy": "Automatic"},
  "status": {"conditions": [
    {"type": "Processing", "status": "True"},
    {"type": "Succeeded", "status": "False", "reason": "remediationTimedOut"},
    {"type": "PermanentNodeDeletionExpected", "status": "True"}
  ]}
}`

func decode(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	testkit.Must(t, u.UnmarshalJSON([]byte(text)))
	return u
}

func TestReadAnObjectOfThePeer(t *testing.T) {
	at := func(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }
	want := remediation.Object{
		GroupVersionKind: schema.GroupVersionKind{Group: "self-node-remediation.medik8s.io", Version: "v1alpha1", Kind: "SelfNodeRemediation"},
		Namespace:        "openshift-workload-availability", Name: "worker-1-x7k2p", UID: "object-uid", ResourceVersion: "12",
		Owner: check, Node: "worker-1", Template: "reboot", ControlPlane: true,
		Created: at(0), Deleting: true, DeletedAt: at(30), Finalizers: []string{"self-node-remediation.medik8s.io/snr-finalizer"},
		Failed: true, DeletesNode: true, TimedOut: true, TimedOutAt: at(10), HealthySince: at(20),
	}
	testkit.Equal(t, "read", want, remediation.Read(decode(t, ofPeer)))
}

func TestReadWhatWasMade(t *testing.T) {
	node := worker()
	node.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	made, err := remediation.Make(templateWith(simple(), remediation.MultipleTemplatesAnnotation), node, check)
	testkit.Must(t, err)
	got := remediation.Read(made)
	want := remediation.Object{
		GroupVersionKind: reboot.ObjectKind(), Namespace: "default", Name: made.GetName(),
		Owner: check, Node: "worker-1", NodeUID: "node-uid", Template: "quick", ControlPlane: true,
	}
	testkit.Equal(t, "read", want, got)
	if step, ok := got.Step([]remediation.Template{reboot}); step != 0 || !ok {
		t.Errorf("it belongs to step %d, %v", step, ok)
	}
	testkit.Check(t, got.IsOf(node), "it is not of the node that it was made for")
}

func TestReadOwner(t *testing.T) {
	for _, test := range []struct{ name, owner, want string }{
		{"a health check", `{"apiVersion":"remediation.medik8s.io/v1alpha1","kind":"NodeHealthCheck","name":"c","uid":"u"}`, "c"},
		{"a health check of a later version", `{"apiVersion":"remediation.medik8s.io/v1","kind":"NodeHealthCheck","name":"c","uid":"u"}`, "c"},
		{"a repair policy", `{"apiVersion":"autohealer.resourcestack.com/v1alpha1","kind":"RepairPolicy","name":"c","uid":"u"}`, "c"},
		{"a set", `{"apiVersion":"autohealer.resourcestack.com/v1alpha1","kind":"ConditionSet","name":"c","uid":"u"}`, ""},
		{"a health check of another API group", `{"apiVersion":"example.com/v1alpha1","kind":"NodeHealthCheck","name":"c","uid":"u"}`, ""},
		{"a MachineHealthCheck", `{"apiVersion":"machine.openshift.io/v1beta1","kind":"MachineHealthCheck","name":"c","uid":"u"}`, ""},
		{"another kind of the group", `{"apiVersion":"remediation.medik8s.io/v1alpha1","kind":"Other","name":"c","uid":"u"}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := remediation.Read(decode(t, `{"apiVersion":"example.com/v1","kind":"K","metadata":{"name":"n","ownerReferences":[`+test.owner+`]}}`))
			if object.Owner.Name != test.want || (object.Owner.UID != "") != (test.want != "") {
				t.Errorf("the owner is %+v, want %q", object.Owner, test.want)
			}
		})
	}
}

func TestReadAnswers(t *testing.T) {
	type answers struct{ Succeeded, Failed, DeletesNode bool }
	for _, test := range []struct {
		status string
		want   answers
	}{
		{`{}`, answers{}},
		{`null`, answers{}},
		{`"done"`, answers{}},
		{`{"conditions":null}`, answers{}},
		{`{"conditions":{"type":"Succeeded","status":"True"}}`, answers{}},
		{`{"conditions":[null, 1, "Succeeded", ["Succeeded"], {"type":["Succeeded"],"status":"True"}]}`, answers{}},
		{`{"conditions":[{"type":"Succeeded"}]}`, answers{}},
		{`{"conditions":[{"type":"Succeeded","status":false}]}`, answers{}},
		{`{"conditions":[{"type":"Succeeded","status":"false"}]}`, answers{}},
		{`{"conditions":[{"type":"Succeeded","status":"Unknown"}]}`, answers{}},
		{`{"conditions":[{"type":"Processing","status":"True"}]}`, answers{}},
		{`{"conditions":[{"type":"Succeeded","status":"True"}]}`, answers{Succeeded: true}},
		{`{"conditions":[{"type":"Succeeded","status":"False"}]}`, answers{Failed: true}},
		{`{"conditions":[{"type":"Succeeded","status":"False"},{"type":"Succeeded","status":"True"}]}`, answers{Failed: true}},
		{`{"conditions":[7,{"type":"PermanentNodeDeletionExpected","status":"True"}]}`, answers{DeletesNode: true}},
		{`{"conditions":[{"type":"PermanentNodeDeletionExpected","status":"False"}]}`, answers{}},
	} {
		object := remediation.Read(decode(t, `{"apiVersion":"example.com/v1","kind":"K","metadata":{"name":"n"},"status":`+test.status+`}`))
		if got := (answers{object.Succeeded, object.Failed, object.DeletesNode}); got != test.want {
			t.Errorf("status %s is read as %+v, want %+v", test.status, got, test.want)
		}
	}
}

func TestReadNotesThatCannotBeRead(t *testing.T) {
	object := remediation.Read(decode(t, `{"apiVersion":"example.com/v1","kind":"K","metadata":{"name":"n","annotations":{
		"remediation.medik8s.io/nhc-timed-out":"yes","remediation.medik8s.io/healthy-delay":"5m"}}}`))
	if !object.TimedOut || !object.TimedOutAt.IsZero() {
		t.Errorf("timed out: %v at %v; the remediator stops whatever the annotation says", object.TimedOut, object.TimedOutAt)
	}
	testkit.Check(t, object.HealthySince.IsZero(), "healthy since %v", object.HealthySince)
	testkit.Check(t, object.Node == "n", "the node is %q: without an annotation it is named as the object", object.Node)
}

func TestStampIsReadAgain(t *testing.T) {
	object := &unstructured.Unstructured{}
	object.SetAnnotations(map[string]string{remediation.HealthyDelayAnnotation: remediation.Stamp(noon.In(time.FixedZone("", -7200)))})
	if got := remediation.Read(object).HealthySince; !got.Equal(noon) {
		t.Errorf("%v was noted and %v is read", noon, got)
	}
}

func TestIsOf(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "new", CreationTimestamp: metav1.NewTime(noon.Add(300 * time.Millisecond))}}
	for _, test := range []struct {
		name   string
		object remediation.Object
		want   bool
	}{
		{"the node that was noted", remediation.Object{Node: "worker-1", NodeUID: "new", Created: noon.Add(time.Minute)}, true},
		{"the node that was noted, whatever the clocks say", remediation.Object{Node: "worker-1", NodeUID: "new", Created: noon.Add(-time.Minute)}, true},
		{"an earlier node of that name", remediation.Object{Node: "worker-1", NodeUID: "old", Created: noon.Add(time.Minute)}, false},
		{"another node", remediation.Object{Node: "worker-2", NodeUID: "new", Created: noon.Add(time.Minute)}, false},
		{"no UID, and the object is younger", remediation.Object{Node: "worker-1", Created: noon.Add(time.Second)}, true},
		{"no UID, and both are of one second", remediation.Object{Node: "worker-1", Created: noon}, true},
		{"no UID, and the object is older", remediation.Object{Node: "worker-1", Created: noon.Add(-time.Second)}, false},
		{"no UID, of another node", remediation.Object{Node: "worker-2", Created: noon.Add(time.Second)}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.object.IsOf(node); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func TestStep(t *testing.T) {
	template := func(kind, namespace, name string) remediation.Template {
		return remediation.Template{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: kind + "Template"}, Namespace: namespace, Name: name}
	}
	ladder := []remediation.Template{
		template("Reboot", "a", "quick"), template("Reboot", "a", "slow"), template("Reboot", "b", "slow"), template("Replace", "a", "slow"),
	}
	for _, test := range []struct {
		name                                          string
		group, version, kind, namespace, templateName string
		want                                          int // -1: none
	}{
		{"kind and template", "example.com", "v1", "Reboot", "a", "slow", 1},
		{"the template of that name in the object's namespace", "example.com", "v1", "Reboot", "b", "slow", 2},
		{"the template of that name for the object's kind", "example.com", "v1", "Replace", "a", "slow", 3},
		{"whatever the version", "example.com", "v2", "Replace", "a", "slow", 3},
		{"no template is known: the first of the kind", "example.com", "v1", "Reboot", "a", "", 0},
		{"no template is known: the first of the kind in the namespace", "example.com", "v1", "Reboot", "b", "", 2},
		{"an object without a namespace", "example.com", "v1", "Reboot", "", "slow", 1},
		{"another template", "example.com", "v1", "Reboot", "a", "other", -1},
		{"another namespace", "example.com", "v1", "Replace", "b", "slow", -1},
		{"another kind", "example.com", "v1", "Other", "a", "slow", -1},
		{"another group", "example.org", "v1", "Reboot", "a", "slow", -1},
		{"the template itself", "example.com", "v1", "RebootTemplate", "a", "slow", -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := remediation.Object{
				GroupVersionKind: schema.GroupVersionKind{Group: test.group, Version: test.version, Kind: test.kind},
				Namespace:        test.namespace, Template: test.templateName,
			}
			got, ok := object.Step(ladder)
			if ok != (test.want >= 0) || ok && got != test.want {
				t.Errorf("step %d, %v, want %d", got, ok, test.want)
			}
		})
	}
}

// FuzzRead reads any JSON value in the place of any part of an object.
func FuzzRead(f *testing.F) {
	f.Add([]byte(ofPeer))
	f.Add([]byte(`{"metadata":{"annotations":[],"labels":7,"finalizers":"x","ownerReferences":[1,{"kind":["NodeHealthCheck"]}],"creationTimestamp":true,"deletionTimestamp":{}},"status":{"conditions":[{"type":{},"status":[]}]}}`))
	f.Add([]byte(`{"apiVersion":"a/b/c","kind":7,"metadata":"x","status":[]}`))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "node-uid", CreationTimestamp: metav1.NewTime(noon)}}
	f.Fuzz(func(t *testing.T, text []byte) {
		var object map[string]any
		if json.Unmarshal(text, &object) != nil {
			return
		}
		read := remediation.Read(&unstructured.Unstructured{Object: object})
		testkit.Check(t, !read.Succeeded || !read.Failed, "it has both succeeded and failed: %+v", read)
		testkit.Check(t, read.Node != "" || read.Name == "", "it is of no node: %+v", read)
		testkit.Check(t, read.TimedOut || read.TimedOutAt.IsZero(), "it has not timed out, at %v", read.TimedOutAt)
		read.IsOf(node)
		read.Step([]remediation.Template{reboot})
	})
}
