package explore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// firstVersion is the first resourceVersion. All versions have six digits, so that the hash
// of a state finds them in texts.
const firstVersion = 100_000

// objectKey identifies an object.
type objectKey struct{ kind, namespace, name string }

// String returns the kind and the name.
func (k objectKey) String() string { return k.kind + " " + k.name }

// change is a committed write. before is nil for a creation, after is nil for a deletion.
type change struct {
	key           objectKey
	before, after client.Object
	deleted       client.Object // as the watch delivers a deletion
}

// model is the API server: it stores objects, compares versions and UIDs, and tells about
// every committed write. Stored objects are never changed, only replaced.
type model struct {
	objects   map[objectKey]client.Object
	version   int
	owners    []objectKey       // of each version, from firstVersion on
	ordinals  []int             // of each version, among those of its object
	latest    map[objectKey]int // ordinal of the latest version
	created   map[objectKey]int // creations, which number the UIDs
	committed func(change)
}

func newModel(committed func(change)) *model {
	return &model{
		objects: map[objectKey]client.Object{}, version: firstVersion, owners: []objectKey{{}}, ordinals: []int{0},
		latest: map[objectKey]int{}, created: map[objectKey]int{}, committed: committed,
	}
}

// kindOf returns the kind of an object.
func kindOf(object client.Object) string {
	switch object.(type) {
	case *corev1.Node:
		return "Node"
	case *corev1.ConfigMap:
		return "ConfigMap"
	case *coordinationv1.Lease:
		return "Lease"
	}
	return object.GetObjectKind().GroupVersionKind().Kind
}

func keyOf(object client.Object) objectKey {
	return objectKey{kindOf(object), object.GetNamespace(), object.GetName()}
}

// resource returns the resource of a kind, as error messages name it.
func (k objectKey) resource() schema.GroupResource { return schema.GroupResource{Resource: k.kind} }

// get returns an object. The caller must not change it.
func (m *model) get(key objectKey) (client.Object, error) {
	if object := m.objects[key]; object != nil {
		return object, nil
	}
	return nil, apierrors.NewNotFound(key.resource(), key.name)
}

// create stores a new object.
func (m *model) create(object client.Object) (client.Object, error) {
	key := keyOf(object)
	if m.objects[key] != nil {
		return nil, apierrors.NewAlreadyExists(key.resource(), key.name)
	}
	m.created[key]++
	created := copyOf(object)
	created.SetUID(types.UID(key.kind + "-" + key.name + "-" + strconv.Itoa(m.created[key])))
	created.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	created.SetGeneration(generationOf(key, 1))
	m.commit(key, nil, created)
	return created, nil
}

// generationOf returns the generation of an object. Only some kinds have one.
func generationOf(key objectKey, generation int64) int64 {
	switch key.kind {
	case "Node", "ConfigMap", "Lease":
		return 0
	}
	return generation
}

// update replaces an object if its version and UID are as given. An empty version or UID
// matches any, except that Leases and custom resources need a version.
func (m *model) update(object client.Object) (client.Object, error) {
	key := keyOf(object)
	before, err := m.get(key)
	switch {
	case err != nil && key.kind == "Lease" && object.GetUID() != "":
		return nil, conflict(key, "the UID differs")
	case err != nil && key.kind == "Lease": // an update creates a Lease
		return m.create(object)
	case err != nil:
		return nil, err
	}
	if uid := object.GetUID(); uid != "" && uid != before.GetUID() {
		return nil, conflict(key, "the UID differs")
	}
	if object.GetResourceVersion() == "" && key.kind != "Node" && key.kind != "ConfigMap" {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: key.kind}, key.name, nil)
	}
	return m.replace(key, before, copyOf(object))
}

// mergePatch applies a JSON merge patch. A version or UID in the patch is a precondition.
func (m *model) mergePatch(key objectKey, patch []byte) (client.Object, error) {
	before, err := m.get(key)
	if err != nil {
		return nil, err
	}
	if after := patchMetadata(before, patch); after != nil {
		return m.replace(key, before, after)
	}
	text, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", key, err)
	}
	patched, err := jsonpatch.MergePatch(text, patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	after, _ := reflect.New(reflect.TypeOf(before).Elem()).Interface().(client.Object)
	if err := json.Unmarshal(patched, after); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return m.replace(key, before, after)
}

// patchMetadata applies a patch that changes annotations and taints only. It returns nil for
// every other patch. Almost all patches of the controller are of this form, and the general
// way takes a fifth of the time of a search.
func patchMetadata(before client.Object, patch []byte) client.Object {
	var body struct {
		Metadata struct {
			UID             types.UID          `json:"uid"`
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Taints json.RawMessage `json:"taints"` // null removes all
		} `json:"spec"`
	}
	decoder := json.NewDecoder(bytes.NewReader(patch))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&body) != nil {
		return nil
	}
	after := copyOf(before)
	if body.Spec.Taints != nil {
		node, is := after.(*corev1.Node)
		if !is {
			return nil
		}
		node.Spec.Taints = nil
		if json.Unmarshal(body.Spec.Taints, &node.Spec.Taints) != nil {
			return nil
		}
	}
	annotations := after.GetAnnotations()
	for key, value := range body.Metadata.Annotations {
		if value == nil {
			delete(annotations, key)
			continue
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = *value
	}
	after.SetAnnotations(annotations)
	after.SetUID(body.Metadata.UID)
	after.SetResourceVersion(body.Metadata.ResourceVersion)
	return after
}

// replace checks the preconditions and stores the next version. A write that changes nothing
// makes no version.
func (m *model) replace(key objectKey, before, after client.Object) (client.Object, error) {
	if version := after.GetResourceVersion(); version != "" && version != before.GetResourceVersion() {
		return nil, conflict(key, "the object has been modified")
	}
	if uid := after.GetUID(); uid != "" && uid != before.GetUID() { // a patch has no precondition on the UID
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: key.kind}, key.name, nil)
	}
	after.SetUID(before.GetUID())
	after.SetCreationTimestamp(before.GetCreationTimestamp())
	after.SetDeletionTimestamp(before.GetDeletionTimestamp())
	after.SetGeneration(before.GetGeneration())
	after.SetResourceVersion(before.GetResourceVersion())
	if equality.Semantic.DeepEqual(before, after) {
		return before, nil
	}
	if key.kind == guardrailsKind { // other specs do not change
		after.SetGeneration(before.GetGeneration() + 1)
	}
	if before.GetDeletionTimestamp() != nil && len(after.GetFinalizers()) == 0 {
		m.remove(key, before)
		return after, nil
	}
	m.commit(key, before, after)
	return after, nil
}

func conflict(key objectKey, why string) error {
	return apierrors.NewConflict(key.resource(), key.name, fmt.Errorf("precondition failed: %s", why))
}

// delete deletes an object if its version and UID are as given; nil matches any. An object
// with finalizers stays until they are gone.
func (m *model) delete(key objectKey, only client.Preconditions) (client.Object, error) {
	before, err := m.get(key)
	if err != nil {
		return nil, err
	}
	if only.UID != nil && *only.UID != before.GetUID() {
		return nil, conflict(key, "the UID differs")
	}
	if only.ResourceVersion != nil && *only.ResourceVersion != before.GetResourceVersion() {
		return nil, conflict(key, "the object has been modified")
	}
	switch {
	case len(before.GetFinalizers()) == 0:
		m.remove(key, before)
	case before.GetDeletionTimestamp() == nil:
		after := copyOf(before)
		after.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Truncate(time.Second))))
		m.commit(key, before, after)
	}
	return before, nil
}

// remove removes an object. The watch delivers its last content with the version of the
// deletion.
func (m *model) remove(key objectKey, before client.Object) {
	deleted := copyOf(before)
	m.nextVersion(key, deleted)
	delete(m.objects, key)
	m.committed(change{key: key, before: before, deleted: deleted})
}

// commit stores the next version of an object.
func (m *model) commit(key objectKey, before, after client.Object) {
	m.nextVersion(key, after)
	m.objects[key] = after
	m.committed(change{key: key, before: before, after: after})
}

func (m *model) nextVersion(key objectKey, object client.Object) {
	m.version++
	m.latest[key]++
	m.owners, m.ordinals = append(m.owners, key), append(m.ordinals, m.latest[key])
	object.SetResourceVersion(strconv.Itoa(m.version))
}

// age returns the object of a version, and how many newer versions the object has. States
// that differ only in the order of independent writes have the same ages.
func (m *model) age(version int) (key objectKey, newer int) {
	at := version - firstVersion
	key = m.owners[at]
	return key, m.latest[key] - m.ordinals[at]
}

// list returns the objects of a kind, by name.
func (m *model) list(kind string) (objects []client.Object) {
	for key, object := range m.objects {
		if key.kind == kind {
			objects = append(objects, object)
		}
	}
	sortByName(objects)
	return objects
}

// copyOf returns a copy that shares nothing with the object.
func copyOf(object client.Object) client.Object {
	if u, is := object.(*unstructured.Unstructured); is {
		return u.DeepCopy()
	}
	copied, _ := object.DeepCopyObject().(client.Object)
	return copied
}
