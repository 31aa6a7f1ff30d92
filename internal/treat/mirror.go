package treat

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// Mirror identifies an object that shows a policy that another object contains.
type Mirror struct {
	Kind, Name string
	// Source is the kind of the object that contains the policy. Owner is that object, nil if it
	// cannot own a cluster-scoped object.
	Source string
	Owner  *metav1.OwnerReference
}

func (m Mirror) String() string { return m.Kind + " " + m.Name }

func (m Mirror) typeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: m.Kind}
}

// patchOf returns a patch that fails if the object is not a mirror.
func (m Mirror) patchOf(operations ...map[string]any) (client.Patch, error) {
	label := "/metadata/labels/" + strings.ReplaceAll(v1alpha1.MirrorLabel, "/", "~1")
	patch, err := json.Marshal(append([]map[string]any{{"op": "test", "path": label, "value": m.Source}}, operations...))
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", m, err)
	}
	return client.RawPatch(types.JSONPatchType, patch), nil
}

func add(path string, value any) map[string]any {
	return map[string]any{"op": "add", "path": path, "value": value}
}

// MirrorSpec creates a mirror or replaces its spec. It fails if another client has created an
// object with this name.
func (w *Writer) MirrorSpec(ctx context.Context, m Mirror, spec any) error {
	metadata := metav1.ObjectMeta{Name: m.Name, Labels: map[string]string{v1alpha1.MirrorLabel: m.Source}}
	operations := []map[string]any{add("/spec", spec)}
	if m.Owner != nil {
		metadata.OwnerReferences = []metav1.OwnerReference{*m.Owner}
		operations = append(operations, add("/metadata/ownerReferences", metadata.OwnerReferences))
	}
	patch, err := m.patchOf(operations...)
	if err != nil {
		return err
	}
	err = w.client.Patch(ctx, &metav1.PartialObjectMetadata{TypeMeta: m.typeMeta(), ObjectMeta: metav1.ObjectMeta{Name: m.Name}}, patch, client.FieldOwner(FieldManager))
	if apierrors.IsNotFound(err) {
		err = w.createMirror(ctx, m, metadata, spec)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", m, err)
	}
	return nil
}

func (w *Writer) createMirror(ctx context.Context, m Mirror, metadata metav1.ObjectMeta, spec any) error {
	text, err := json.Marshal(map[string]any{"apiVersion": m.typeMeta().APIVersion, "kind": m.Kind, "metadata": metadata, "spec": spec})
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return err
	}
	return w.client.Create(ctx, object, client.FieldOwner(FieldManager))
}

// MirrorStatus replaces the status of a mirror and returns its new resourceVersion.
func (w *Writer) MirrorStatus(ctx context.Context, m Mirror, status any) (resourceVersion string, err error) {
	patch, err := m.patchOf(add("/status", status))
	if err != nil {
		return "", err
	}
	answer := &metav1.PartialObjectMetadata{TypeMeta: m.typeMeta(), ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	if err := w.client.Status().Patch(ctx, answer, patch, client.FieldOwner(FieldManager)); err != nil {
		return "", fmt.Errorf("writing the status of %s: %w", m, err)
	}
	return answer.ResourceVersion, nil
}

// DeleteMirror deletes this mirror. A missing mirror is no error.
func (w *Writer) DeleteMirror(ctx context.Context, m Mirror, uid types.UID) error {
	object := &metav1.PartialObjectMetadata{TypeMeta: m.typeMeta(), ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	if err := w.client.Delete(ctx, object, client.Preconditions{UID: &uid}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s: %w", m, err)
	}
	return nil
}
