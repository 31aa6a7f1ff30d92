package nodewatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// frame encodes an event with the code of Kubernetes.
func frame(kind watch.EventType, object runtime.Object) []byte {
	codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)
	if _, ok := object.(*metav1.Status); ok {
		object.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("Status"))
	}
	raw, err := runtime.Encode(codec, object)
	if err != nil {
		panic(err)
	}
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	encoded, err := event.Marshal()
	if err != nil {
		panic(err)
	}
	return encoded
}

// drawNode returns a node in which every decoded field may be present or not, among fields
// that are not decoded.
func drawNode(t *rapid.T) *corev1.Node {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "b", "Ready", "True", "\x00\xff", strings.Repeat("long ", 100)}), rapid.String())
	stamp := rapid.Custom(func(t *rapid.T) metav1.Time {
		if seconds := rapid.Int64Range(-1, 1<<33).Draw(t, "seconds"); seconds >= 0 {
			return metav1.Unix(seconds, 0)
		}
		return metav1.Time{}
	})
	words := rapid.MapOfN(text, text, 0, 4)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:              rapid.SampledFrom([]string{"node-1", "node-2"}).Draw(t, "name"),
		GenerateName:      text.Draw(t, "generateName"),
		UID:               types.UID(rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "uid")),
		ResourceVersion:   rapid.StringMatching("[1-9][0-9]{0,3}").Draw(t, "version"),
		CreationTimestamp: stamp.Draw(t, "created"),
		Labels:            words.Draw(t, "labels"),
		Annotations:       words.Draw(t, "annotations"),
	}}
	if rapid.Bool().Draw(t, "deleting") {
		node.DeletionTimestamp = new(stamp.Draw(t, "deleted"))
	}
	if rapid.Bool().Draw(t, "noted") {
		if node.Annotations == nil {
			node.Annotations = map[string]string{}
		}
		node.Annotations[ownership.Annotation] = text.Draw(t, "note")
		if rapid.Bool().Draw(t, "isConfirmed") {
			node.Annotations[remediation.ConfirmedAnnotation] = text.Draw(t, "confirmed")
		}
	}
	if rapid.Bool().Draw(t, "managed") {
		node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: text.Draw(t, "manager"), FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)}}
	}
	node.Spec.ProviderID = text.Draw(t, "providerID")
	node.Spec.PodCIDR, node.Spec.Unschedulable = text.Draw(t, "cidr"), rapid.Bool().Draw(t, "unschedulable")
	for range rapid.IntRange(0, 3).Draw(t, "taints") {
		taint := corev1.Taint{Key: text.Draw(t, "key"), Value: text.Draw(t, "value"), Effect: corev1.TaintEffect(text.Draw(t, "effect"))}
		if rapid.Bool().Draw(t, "timed") {
			added := stamp.Draw(t, "added")
			taint.TimeAdded = &added
		}
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	for range rapid.IntRange(0, 4).Draw(t, "conditions") {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(text.Draw(t, "type")), Status: corev1.ConditionStatus(text.Draw(t, "status")),
			Reason: text.Draw(t, "reason"), Message: text.Draw(t, "message"),
			LastHeartbeatTime: stamp.Draw(t, "heartbeat"), LastTransitionTime: stamp.Draw(t, "transition"),
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "images") {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{text.Draw(t, "image")}, SizeBytes: 1})
	}
	node.Status.NodeInfo.KernelVersion, node.Status.NodeInfo.OSImage = text.Draw(t, "kernel"), text.Draw(t, "os")
	return node
}

// edit changes one field of a node, and returns whether it is decoded.
func edit(t *rapid.T, node *corev1.Node) (counts bool) {
	at := func(length int) int { return rapid.IntRange(0, length-1).Draw(t, "which") }
	node.ResourceVersion = rapid.StringMatching("[1-9][0-9]{0,3}").Draw(t, "newVersion")
	switch rapid.IntRange(0, 15).Draw(t, "edit") {
	case 0:
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].LastHeartbeatTime = metav1.Unix(1<<32, 0)
		}
	case 1:
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{"new"}})
	case 2:
		node.Annotations = map[string]string{ownership.Annotation: "another"}
		return true
	case 11:
		node.Annotations = map[string]string{remediation.ConfirmedAnnotation: "another"}
		return true
	case 12:
		node.Spec.ProviderID += "+"
		return true
	case 14:
		node.Spec.Unschedulable = !node.Spec.Unschedulable
		return true
	case 15:
		node.Status.NodeInfo.OSImage += "+"
		return true
	case 13:
		node.DeletionTimestamp = new(metav1.Unix(1<<34, 0))
		return true
	case 3:
		node.UID += "+"
		return true
	case 4:
		node.Labels = map[string]string{"a-label": "that is new"}
		return true
	case 5:
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "another"})
		return true
	case 6:
		if n := len(node.Spec.Taints); n > 0 {
			node.Spec.Taints[at(n)].Value += "+"
			return true
		}
	case 7:
		if n := len(node.Status.Conditions); n > 0 {
			node.Status.Conditions[at(n)].Status += "+"
			return true
		}
	case 8:
		if n := len(node.Status.Conditions); n > 0 {
			node.Status.Conditions[at(n)].Reason += "+"
			return true
		}
	case 9:
		if n := len(node.Status.Conditions); n > 0 {
			node.Status.Conditions[at(n)].LastTransitionTime = metav1.Unix(1<<34, 0)
			return true
		}
	case 10:
		if n := len(node.Status.Conditions); n > 0 {
			node.Status.Conditions = node.Status.Conditions[:n-1]
			return true
		}
	}
	return false
}

// through decodes a node with the code of Kubernetes, and trims it.
func through(t testkit.TB, node *corev1.Node) *corev1.Node {
	encoded := testkit.Value(node.Marshal()).Must(t)
	whole := &corev1.Node{}
	testkit.Must(t, whole.Unmarshal(encoded))
	return Trim(whole)
}

// TestDecoderAgreesWithKubernetes decodes the changes of two nodes, and compares the result
// with the code of Kubernetes.
func TestDecoderAgreesWithKubernetes(t *testing.T) {
	var beats, changes, deletions int
	rapid.Check(t, func(t *rapid.T) {
		decode := newDecoder()
		lives := map[string]*corev1.Node{}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			node := drawNode(t)
			kind := watch.Added
			if known := lives[node.Name]; known != nil {
				node, kind = known.DeepCopy(), watch.Modified
				if edit(t, node) {
					changes++
				} else {
					beats++
				}
				if rapid.IntRange(0, 5).Draw(t, "last") == 0 {
					kind = watch.Deleted
					deletions++
				}
			}
			lives[node.Name] = node
			if kind == watch.Deleted {
				delete(lives, node.Name)
			}
			encoded := frame(kind, node)
			event := testkit.Value(decode.event(encoded)).Must(t)
			for i := range encoded { // the next event uses the same buffer
				encoded[i] = 0xff
			}
			testkit.MustBeSame(t, event.Type, kind, "the type of the event")
			diff := cmp.Diff(through(t, node), event.Object)
			testkit.Require(t, diff == "", "the node differs (-want +got):\n%s", diff)
		}
		testkit.MustBeSame(t, len(decode.known), len(lives), "known nodes of the decoder")
	})
	t.Logf("%d heartbeats, %d changes, %d deletions", beats, changes, deletions)
	testkit.Check(t, beats != 0 && changes != 0 && deletions != 0, "the random cases did not cover all events")
}

func TestHeartbeatsShareTheirContent(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "1", Labels: map[string]string{"l": "v"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}},
	}
	decode := newDecoder()
	next := func(kind watch.EventType) *corev1.Node {
		event := testkit.Value(decode.event(frame(kind, node))).Must(t)
		return event.Object.(*corev1.Node)
	}
	first := next(watch.Added)
	node.ResourceVersion, node.Status.Conditions[0].LastHeartbeatTime = "2", metav1.Now()
	second := next(watch.Modified)
	testkit.Check(t, first.ResourceVersion == "1" && second.ResourceVersion == "2" && &first.Status.Conditions[0] == &second.Status.Conditions[0],
		"the second version does not share the content of the first, or has its resourceVersion")
	node.Status.Conditions[0].Status = "False"
	if third := next(watch.Modified); third.Status.Conditions[0].Status != "False" || first.Status.Conditions[0].Status != "True" {
		t.Error("a change is missed, or modifies the earlier version")
	}
}

func TestDecodesEventsWithoutANode(t *testing.T) {
	decode := newDecoder()
	bookmark := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	event, err := decode.event(frame(watch.Bookmark, bookmark))
	testkit.Require(t, err == nil && event.Type == watch.Bookmark, "%v %v", event, err)
	got := event.Object.(*corev1.Node)
	testkit.Check(t, got.ResourceVersion == "9" && got.Annotations[metav1.InitialEventsAnnotationKey] == "true", "the bookmark became %+v", got.ObjectMeta)
	gone := &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410, Message: "too old"}
	event, err = decode.event(frame(watch.Error, gone))
	testkit.Require(t, err == nil && event.Type == watch.Error, "%v %v", event, err)
	status := event.Object.(*metav1.Status)
	testkit.Check(t, status.Code == 410 && status.Message == "too old", "the error became %+v", status)
	_, err = decode.event(frame(watch.Added, &corev1.Pod{}))
	testkit.Check(t, err != nil && strings.Contains(err.Error(), `"Pod"`), "a pod was decoded as a node, or the error does not name it: %v", err)
}

func TestTruncatedEventIsAnError(t *testing.T) {
	whole := frame(watch.Added, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"l": "v"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}},
	})
	for cut := range whole {
		event, err := newDecoder().event(whole[:cut])
		testkit.Check(t, err != nil, "%d of %d bytes became %+v", cut, len(whole), event)
	}
}

// FuzzEvent decodes any bytes. If the code of Kubernetes can decode them, the results must be
// equal.
func FuzzEvent(f *testing.F) {
	stamp := metav1.Unix(1700000000, 0)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "1", CreationTimestamp: stamp, Labels: map[string]string{"l": "v"}, Annotations: map[string]string{ownership.Annotation: "note", "other": "x"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute", TimeAdded: &stamp}}, PodCIDR: "10.0.0.0/24"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "r", Message: "m", LastHeartbeatTime: stamp, LastTransitionTime: stamp}}},
	}
	encoded := testkit.Value(node.Marshal()).Must(f)
	f.Add(encoded)
	f.Add(encoded[:len(encoded)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, message []byte) {
		_, _ = newDecoder().event(message)
		got, err := newDecoder().node(message, false)
		whole := &corev1.Node{}
		if whole.Unmarshal(message) != nil {
			return
		}
		if err == nil {
			testkit.NoDiff(t, cmp.Diff(Trim(whole), got), "the node")
		}
		canonical, err := whole.Marshal()
		if err != nil {
			return
		}
		got = testkit.Value(newDecoder().node(canonical, false)).Must(t)
		testkit.NoDiff(t, cmp.Diff(through(t, whole), got), "the node")
	})
}

// BenchmarkHeartbeat decodes one unchanged event of a node of 15 KB (50 images, 10 conditions,
// 20 labels), with this package and with the code of Kubernetes. It asserts the allocations:
// the version and the object, and nothing that grows with the node.
func BenchmarkHeartbeat(b *testing.B) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u", ResourceVersion: "123456", Labels: map[string]string{}}}
	for i := range 20 {
		node.Labels[fmt.Sprintf("example.com/label-%02d", i)] = fmt.Sprintf("value-%02d", i)
	}
	for i := range 10 {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("Condition%d", i)), Status: "False", Reason: "AllIsWell", Message: strings.Repeat("all is well ", 5),
			LastHeartbeatTime: metav1.NewTime(time.Unix(1700000000, 0)), LastTransitionTime: metav1.NewTime(time.Unix(1700000000, 0)),
		})
	}
	for i := range 50 {
		name := fmt.Sprintf("registry.example.com/team/image-%02d", i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{name + "@sha256:" + strings.Repeat("0123456789abcdef", 4), name + ":v1"}, SizeBytes: 123456789})
	}
	encoded := frame(watch.Modified, node)
	b.Run("reader=nodewatch", func(b *testing.B) {
		b.SetBytes(int64(len(encoded)))
		decode := newDecoder()
		read := func() {
			testkit.Value(decode.event(encoded)).Must(b)
		}
		read()
		allocations := testing.AllocsPerRun(100, read)
		testkit.Check(b, allocations <= 2, "a heartbeat takes %.0f allocations, want a version and a node", allocations)
		for b.Loop() {
			read()
		}
	})
	b.Run("reader=kubernetes", func(b *testing.B) {
		b.SetBytes(int64(len(encoded)))
		codec := scheme.Codecs.UniversalDeserializer()
		for b.Loop() {
			event := metav1.WatchEvent{}
			testkit.Must(b, event.Unmarshal(encoded))
			_, _, err := codec.Decode(event.Object.Raw, nil, nil)
			testkit.Must(b, err)
		}
	})
}
