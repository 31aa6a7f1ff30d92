package protowatch

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
)

// encoded encodes a list with the code of Kubernetes.
func encoded(tb rapid.TB, list *corev1.ConfigMapList) []byte {
	codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)
	raw, err := runtime.Encode(codec, list)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// names reads a list, and returns the names of its items.
func names(from io.Reader) (names []string, version string, err error) {
	version, err = List(from, "ConfigMapList", func(item []byte) error {
		object := &corev1.ConfigMap{}
		if err := object.Unmarshal(item); err != nil {
			return err
		}
		names = append(names, object.Name)
		return nil
	})
	return names, version, err
}

func TestListReadsItemsFromAnyReader(t *testing.T) {
	items := 0
	rapid.Check(t, func(t *rapid.T) {
		list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: rapid.String().Draw(t, "version"), RemainingItemCount: new(rapid.Int64().Draw(t, "remain"))}}
		var want []string
		for i := range rapid.IntRange(0, 20).Draw(t, "items") {
			want = append(want, strconv.Itoa(i))
			// Some items are larger than one read from the connection.
			text := strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 127, 128, 70000}).Draw(t, "size"))
			list.Items = append(list.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: want[i]}, Data: map[string]string{"text": text}})
		}
		whole := encoded(t, list)
		for _, from := range []io.Reader{bytes.NewReader(whole), iotest.HalfReader(bytes.NewReader(whole)), iotest.DataErrReader(bytes.NewReader(whole))} {
			got, version, err := names(from)
			if err != nil || version != list.ResourceVersion || !slices.Equal(got, want) {
				t.Fatalf("%q, version %q, %v; want %q, version %q", got, version, err, want, list.ResourceVersion)
			}
		}
		items += len(want)
	})
	t.Logf("%d items were read", items)
	if items == 0 {
		t.Error("the random lists are too small")
	}
}

func TestTruncatedListIsAnError(t *testing.T) {
	whole := encoded(t, &corev1.ConfigMapList{Items: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}})
	end := bytes.LastIndexByte(whole, 'b') + 1
	for length := range end {
		if _, _, err := names(bytes.NewReader(whole[:length])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d of %d bytes: %v", length, len(whole), err)
		}
	}
}

func TestInvalidListIsAnError(t *testing.T) {
	for name, test := range map[string]struct{ body, says string }{
		"another encoding":       {`{"kind":"ConfigMapList"}`, "malformed"},
		"another kind":           {"k8s\x00\x0a\x05\x12\x03Pod\x12\x00", `it is a "Pod"`},
		"no kind":                {"k8s\x00\x12\x00", `it is a ""`},
		"a number":               {"k8s\x00\x08\x01", "malformed"},
		"an item beyond its end": {"k8s\x00\x0a\x0f\x12\x0dConfigMapList\x12\x03\x12\x05abcde", "malformed"},
		"a size without end":     {"k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "overflows"},
		"an item of any size":    {"k8s\x00\x0a\x0f\x12\x0dConfigMapList\x12\xff\xff\xff\x0f\x12\xff\xff\xff\x0e", "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := names(strings.NewReader(test.body)); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, want one with %q", err, test.says)
			}
		})
	}
}

func FuzzList(f *testing.F) {
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	raw := encoded(f, list)
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _, _ = names(bytes.NewReader(body))
		want := &corev1.ConfigMapList{}
		if runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, want) != nil {
			return
		}
		got, version, err := names(bytes.NewReader(encoded(t, want)))
		if err != nil || version != want.ResourceVersion || len(got) != len(want.Items) {
			t.Fatalf("%q at %q, %v; want %d at %q", got, version, err, len(want.Items), want.ResourceVersion)
		}
		for i := range got {
			if got[i] != want.Items[i].Name {
				t.Errorf("item %d is %q, want %q", i, got[i], want.Items[i].Name)
			}
		}
	})
}
