package testbed

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// The API server stores built-in resources as protobuf, with a magic prefix and an envelope
// that names the type, and custom resources as JSON.
var protobufMagic = []byte("k8s\x00")

// matchResource returns the recorded resource of a stored object.
func matchResource(resources []schema.GroupVersionResource, key, value []byte) (schema.GroupVersionResource, bool) {
	kind, ok := storedKind(value)
	if !ok { // not an object: the API server also keeps counters and allocations in etcd
		return schema.GroupVersionResource{}, false
	}
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	for _, resource := range resources {
		if resource.Group != kind.Group {
			continue
		}
		// The plural of a built-in kind is regular. The plural of a custom kind may not be,
		// but is in the key.
		if resource.Resource == plural.Resource || strings.Contains(string(key), "/"+resource.Group+"/"+resource.Resource+"/") {
			return resource, true
		}
	}
	return schema.GroupVersionResource{}, false
}

func storedKind(value []byte) (schema.GroupVersionKind, bool) {
	var kind metav1.TypeMeta
	if encoded, ok := bytes.CutPrefix(value, protobufMagic); ok {
		var envelope runtime.Unknown
		if envelope.Unmarshal(encoded) != nil {
			return schema.GroupVersionKind{}, false
		}
		kind.APIVersion, kind.Kind = envelope.APIVersion, envelope.Kind
	} else if json.Unmarshal(value, &kind) != nil {
		return schema.GroupVersionKind{}, false
	}
	return kind.GroupVersionKind(), kind.Kind != ""
}

// decodeStored returns an object at a revision. The revision is not stored with it.
func decodeStored(value []byte, revision int64) (*unstructured.Unstructured, error) {
	object, err := decode(value)
	if err != nil {
		return nil, err
	}
	object.SetResourceVersion(strconv.FormatInt(revision, 10))
	return object, nil
}

func decode(value []byte) (*unstructured.Unstructured, error) {
	if !bytes.HasPrefix(value, protobufMagic) {
		object := new(unstructured.Unstructured)
		return object, object.UnmarshalJSON(value)
	}
	typed, kind, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(*kind)
	return object, nil
}
