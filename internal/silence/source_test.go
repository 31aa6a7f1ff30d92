package silence

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"
)

// frame writes an event as the API server does, with its own code.
func frame(kind watch.EventType, object runtime.Object, group schema.GroupVersion) []byte {
	codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), group)
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

func leaseFrame(kind watch.EventType, lease *coordinationv1.Lease) []byte {
	return frame(kind, lease, coordinationv1.SchemeGroupVersion)
}

// realLease is one as an agent's client writes it, with word of who wrote what.
func realLease(node string, renewed time.Time) *coordinationv1.Lease {
	fields := `{"f:metadata":{"f:labels":{"f:app.kubernetes.io/name":{}},"f:ownerReferences":{"k:{\"uid\":\"0d0c8f1b-51a8-4d7a-8b65-0b3d1cf2b3a4\"}":{}}},"f:spec":{"f:holderIdentity":{},"f:leaseDurationSeconds":{},"f:renewTime":{}}}`
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "autohealer-system", Name: namePrefix + node, UID: "9a0cf6d2-1b44-4e4b-9c87-6a6f4bb1f3aa", ResourceVersion: "123456789",
			CreationTimestamp: metav1.NewTime(noon), Labels: map[string]string{label: labelValue},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "0d0c8f1b-51a8-4d7a-8b65-0b3d1cf2b3a4"}},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "autohealer-agent", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "coordination.k8s.io/v1",
				Time: new(metav1.NewTime(noon)), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
			}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("autohealer-agent-x7k2p"), LeaseDurationSeconds: new(int32(360)), RenewTime: new(metav1.NewMicroTime(renewed))},
	}
}

func TestSaysOfALeaseWhatEveryClientSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "Node", "v1"}), rapid.String())
		lease := realLease(text.Draw(t, "node"), noon)
		lease.ResourceVersion = text.Draw(t, "version")
		if rapid.Bool().Draw(t, "bare") {
			lease.Spec, lease.OwnerReferences, lease.ManagedFields = coordinationv1.LeaseSpec{}, nil, nil
		}
		for range rapid.IntRange(0, 2).Draw(t, "owners") {
			lease.OwnerReferences = append(lease.OwnerReferences, metav1.OwnerReference{
				Kind: text.Draw(t, "kind"), APIVersion: text.Draw(t, "group"), Name: text.Draw(t, "owner"), UID: types.UID(text.Draw(t, "uid")),
			})
		}
		kind := rapid.SampledFrom([]watch.EventType{watch.Added, watch.Modified, watch.Deleted}).Draw(t, "event")
		event, err := decodeEvent(leaseFrame(kind, lease))
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := lease.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		want := &coordinationv1.Lease{}
		if err := want.Unmarshal(encoded); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(watch.Event{Type: kind, Object: trim(want)}, event); diff != "" {
			t.Errorf("the event is another (-want +got):\n%s", diff)
		}
	})
}

func TestReadsWhatIsNoLease(t *testing.T) {
	mark := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	event, err := decodeEvent(leaseFrame(watch.Bookmark, mark))
	if err != nil {
		t.Fatal(err)
	}
	if got := event.Object.(*coordinationv1.Lease); got.Annotations[metav1.InitialEventsAnnotationKey] != "true" || got.ResourceVersion != "7" {
		t.Errorf("the bookmark became %+v: nobody knows when all Leases are there", got)
	}
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: 410, Message: "too old"}
	if event, err = decodeEvent(frame(watch.Error, gone, metav1.SchemeGroupVersion)); err != nil {
		t.Fatal(err)
	}
	if got, ok := event.Object.(*metav1.Status); !ok || got.Code != 410 {
		t.Errorf("the error became %+v", event)
	}
	if _, err = decodeEvent(frame(watch.Added, &corev1.Pod{}, corev1.SchemeGroupVersion)); err == nil || !strings.Contains(err.Error(), `"Pod"`) {
		t.Errorf("a pod was taken for a Lease, or not named: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	encoded, err := realLease("n1", noon).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Add(encoded[:len(encoded)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, message []byte) {
		_, _ = decodeEvent(message)
		_ = decode(message, &coordinationv1.Lease{})
		whole := &coordinationv1.Lease{}
		if whole.Unmarshal(message) != nil {
			return
		}
		canonical, err := whole.Marshal()
		if err != nil {
			return
		}
		want, got := &coordinationv1.Lease{}, &coordinationv1.Lease{}
		if err := want.Unmarshal(canonical); err != nil {
			return
		}
		if err := decode(canonical, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(trim(want), got); diff != "" {
			t.Errorf("the Lease is another (-want +got):\n%s", diff)
		}
	})
}

// answers is an API server that answers every request with the same stream.
type answers func(*http.Request) io.Reader

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf;stream=watch"}}, Body: io.NopCloser(a(r)), Request: r}, nil
}

// BenchmarkRenewal takes in one renewal of one of 10,000 agents, a Lease of 0.6 KB as
// the API server sends it, from the bytes of the stream to the roll: frame, event,
// Lease, channel, roll and counts. The connection is not in it.
func BenchmarkRenewal(b *testing.B) {
	const agents = 10000
	var stream []byte
	for i := range agents {
		event := leaseFrame(watch.Modified, realLease(fmt.Sprintf("node-%05d", i), noon.Add(time.Duration(i)*time.Microsecond)))
		stream = append(binary.BigEndian.AppendUint32(stream, uint32(len(event))), event...)
	}
	config := &rest.Config{Host: "http://nowhere", Transport: answers(func(*http.Request) io.Reader { return &endless{stream: stream} })}
	source, err := NewSource(config, "autohealer-system", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	keeper := newKeeper(b, source, nil)
	events, err := source.WatchWithContext(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	store := &desk{keeper}
	take := func() {
		if err := store.Update((<-events.ResultChan()).Object); err != nil {
			b.Fatal(err)
		}
	}
	take()
	allocations := testing.AllocsPerRun(1000, take)
	if allocations > 14 {
		b.Errorf("a renewal takes %.0f allocations", allocations)
	}
	b.SetBytes(int64(len(stream) / agents))
	for b.Loop() {
		take()
	}
}

// endless is a stream that begins anew where it ends.
type endless struct {
	stream []byte
	at     int
}

func (e *endless) Read(to []byte) (int, error) {
	if e.at == len(e.stream) {
		e.at = 0
	}
	n := copy(to, e.stream[e.at:])
	e.at += n
	return n, nil
}
