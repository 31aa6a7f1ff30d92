package agentlease

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// listed encodes a list with the code of Kubernetes.
func listed(object runtime.Object, group schema.GroupVersion) []byte {
	codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), group)
	raw, err := runtime.Encode(codec, object)
	if err != nil {
		panic(err)
	}
	return raw
}

func leasesListed(version string, leases ...coordinationv1.Lease) []byte {
	return listed(&coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: leases}, coordinationv1.SchemeGroupVersion)
}

// trim keeps the fields that decode reads.
func trim(lease *coordinationv1.Lease) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: lease.Name, ResourceVersion: lease.ResourceVersion, OwnerReferences: lease.OwnerReferences},
		Spec:       lease.Spec,
	}
}

// realLease returns a Lease as the client of an agent writes it, with managedFields.
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

// answers is an API server that answers every request alike.
type answers func(*http.Request) (code int, body []byte)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := a(r)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {runtime.ContentTypeProtobuf}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

func sourceOf(tb testing.TB, server answers) *Source {
	tb.Helper()
	return testkit.Value(NewSource(&rest.Config{Host: "http://nowhere", Transport: server, QPS: -1}, "autohealer-system")).Must(tb)
}

func TestListAgreesWithTheKubernetesDecoder(t *testing.T) {
	reported, passed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "Node", "v1"}), rapid.String())
		var leases []coordinationv1.Lease
		for range rapid.IntRange(0, 5).Draw(t, "leases") {
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
			leases = append(leases, *lease)
		}
		body := leasesListed(text.Draw(t, "version of all"), leases...)
		every := &coordinationv1.LeaseList{}
		testkit.Must(t, runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, every))
		known := rapid.SampledFrom([]string{"", "a", "v1"}).Draw(t, "known version")
		var want, got []*coordinationv1.Lease
		for i := range every.Items {
			if every.Items[i].ResourceVersion != known {
				want = append(want, trim(&every.Items[i]))
			}
		}
		client := testkit.Value(NewSource(&rest.Config{Host: "http://nowhere", Transport: answers(func(*http.Request) (int, []byte) { return http.StatusOK, body })}, "x")).Must(t)
		names := map[string]bool{}
		version, err := client.List(context.Background(), "",
			func(name, version []byte) bool { names[string(name)] = true; return string(version) == known },
			func(lease *coordinationv1.Lease) { got = append(got, lease) })
		if err != nil || version != every.ResourceVersion {
			t.Fatalf("the list has version %q, want %q: %v", version, every.ResourceVersion, err)
		}
		testkit.Equal(t, "the Leases differ", want, got)
		for _, lease := range every.Items {
			testkit.Check(t, names[lease.Name], "known was not called for %q", lease.Name)
		}
		reported, passed = reported+len(got), passed+len(every.Items)-len(got)
	})
	t.Logf("%d Leases were heard, %d passed over", reported, passed)
	testkit.Check(t, reported != 0 && passed != 0, "this test looks at nothing")
}

func TestListRequest(t *testing.T) {
	var asked *http.Request
	source := sourceOf(t, func(r *http.Request) (int, []byte) { asked = r; return http.StatusOK, leasesListed("7") })
	for since, want := range map[string]string{
		"":  "labelSelector=app.kubernetes.io%2Fname%3Dautohealer-agent",
		"5": "labelSelector=app.kubernetes.io%2Fname%3Dautohealer-agent&resourceVersion=5&resourceVersionMatch=NotOlderThan",
	} {
		version, err := source.List(t.Context(), since, nil, nil)
		testkit.Require(t, err == nil && version == "7", "version %q, %v", version, err)
		if asked.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/autohealer-system/leases" || asked.URL.RawQuery != want {
			t.Errorf("the request is %s", asked.URL)
		}
	}
}

func TestInvalidListIsAnError(t *testing.T) {
	whole := leasesListed("7", *realLease("a", noon), *realLease("b", noon))
	for name, test := range map[string]struct {
		code int
		body []byte
		says string
	}{
		"truncated":              {http.StatusOK, whole[:len(whole)-300], "unexpected EOF"},
		"truncated in a Lease":   {http.StatusOK, whole[:len(whole)/2], "unexpected EOF"},
		"truncated at the start": {http.StatusOK, whole[:4], "unexpected EOF"},
		"empty":                  {http.StatusOK, nil, "unexpected EOF"},
		"another encoding":       {http.StatusOK, []byte(`{"kind":"LeaseList"}`), "malformed"},
		"another kind":           {http.StatusOK, listed(&corev1.PodList{}, corev1.SchemeGroupVersion), `"PodList"`},
		"a refusal":              {http.StatusForbidden, listed(&metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Message: "no"}, metav1.SchemeGroupVersion), "no"},
	} {
		t.Run(name, func(t *testing.T) {
			source := sourceOf(t, func(*http.Request) (int, []byte) { return test.code, test.body })
			_, err := source.List(t.Context(), "", func(_, _ []byte) bool { return true }, nil)
			if err == nil || !strings.Contains(err.Error(), test.says) || (test.code == http.StatusForbidden) != apierrors.IsForbidden(err) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	encoded := testkit.Value(realLease("n1", noon).Marshal()).Must(f)
	f.Add(encoded)
	f.Add(encoded[:len(encoded)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, message []byte) {
		_, _, _ = identify(message)
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
		testkit.Must(t, decode(canonical, got))
		testkit.Equal(t, "the Lease differs", trim(want), got)
		if name, version, err := identify(canonical); err != nil || string(name) != want.Name || string(version) != want.ResourceVersion {
			t.Errorf("it is %q at %q, want %q at %q: %v", name, version, want.Name, want.ResourceVersion, err)
		}
	})
}

// BenchmarkLook measures one list of the Leases of 10,000 agents, 0.6 KB each, from the bytes
// of the API server to the tracker, without the connection. One in four agents has renewed
// since the previous list, as in a real cluster of that size. It asserts that unchanged Leases
// cause no allocations.
func BenchmarkLook(b *testing.B) {
	const agents, part, looks = 10000, 4, 8
	leases := make([]coordinationv1.Lease, agents)
	for i := range leases {
		leases[i] = *realLease(fmt.Sprintf("node-%05d", i), noon)
	}
	var lists [looks][]byte // each is the previous list with a fourth of the Leases renewed
	for turn := range 2 * looks {
		for i := turn % part; i < agents; i += part {
			version := turn / part % 2
			leases[i].ResourceVersion, leases[i].Spec.RenewTime = strconv.Itoa(version), new(metav1.NewMicroTime(noon.Add(time.Duration(version))))
		}
		lists[turn%looks] = leasesListed("7", leases...)
	}
	turn := 0
	source := sourceOf(b, func(*http.Request) (int, []byte) { turn++; return http.StatusOK, lists[turn%looks] })
	monitor := newMonitor(b, source, nil)
	look := func() {
		testkit.Must(b, monitor.list(b.Context()))
	}
	for range looks {
		look()
	}
	if allocations := testing.AllocsPerRun(10, look); allocations > 18*agents/part {
		b.Errorf("a list takes %.0f allocations", allocations)
	}
	b.SetBytes(int64(len(lists[0])))
	for b.Loop() {
		look()
	}
}

// The agent and the controller share no code, so this test compares their labels.
func TestLabelMatchesTheLeasesOfAgents(t *testing.T) {
	if label != report.LeaseLabel || labelValue != report.LeaseLabelValue {
		t.Errorf("agents set %s=%s, but the controller selects %s=%s", report.LeaseLabel, report.LeaseLabelValue, label, labelValue)
	}
}
