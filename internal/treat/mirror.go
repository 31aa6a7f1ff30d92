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

// isMirror fails a patch if the object is not a mirror.
func (m Mirror) isMirror() operation {
	return test("/metadata/labels/"+strings.ReplaceAll(v1alpha1.MirrorLabel, "/", "~1"), m.Source)
}

// MirrorSpec creates a mirror or replaces its spec. It fails if another client has created an
// object with this name.
func (w *Writer) MirrorSpec(ctx context.Context, m Mirror, spec any) error {
	metadata := metav1.ObjectMeta{Name: m.Name, Labels: map[string]string{v1alpha1.MirrorLabel: m.Source}}
	operations := []operation{m.isMirror(), add("/spec", spec)}
	if m.Owner != nil {
		metadata.OwnerReferences = []metav1.OwnerReference{*m.Owner}
		operations = append(operations, add("/metadata/ownerReferences", metadata.OwnerReferences))
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", m, err)
	}
	object := &metav1.PartialObjectMetadata{TypeMeta: m.typeMeta(), ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	err = w.client.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(FieldManager))
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
	return w.patchStatus(ctx, m.typeMeta(), m.Name, m.isMirror(), add("/status", status))
}

// DeleteMirror deletes this mirror. A missing mirror is no error.
func (w *Writer) DeleteMirror(ctx context.Context, m Mirror, uid types.UID) error {
	object := &metav1.PartialObjectMetadata{TypeMeta: m.typeMeta(), ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	if err := w.client.Delete(ctx, object, client.Preconditions{UID: &uid}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s: %w", m, err)
	}
	return nil
}
