package treat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// GetTemplate reads a template from the API server.
func (w *Writer) GetTemplate(ctx context.Context, t remediation.Template) (*unstructured.Unstructured, error) {
	template := &unstructured.Unstructured{}
	template.SetGroupVersionKind(t.GroupVersionKind)
	namespaced, err := w.client.IsObjectNamespaced(template)
	if err == nil && namespaced && t.Namespace == "" {
		err = errors.New("the reference has no namespace, but templates of this kind are in one")
	}
	if err == nil {
		err = w.client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Name}, template)
	}
	if err != nil {
		return nil, fmt.Errorf("reading template %s: %w", t, err)
	}
	return template, nil
}

// CreateRemediation creates a remediation object and returns it as stored. If an object of
// this name exists, from an earlier attempt or from another owner, the error is Stale. The
// caller then has to read that object.
func (w *Writer) CreateRemediation(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	created := object.DeepCopy()
	if err := w.client.Create(ctx, created, client.FieldOwner(FieldManager)); err != nil {
		return nil, fmt.Errorf("creating %s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
	}
	return created, nil
}

// DeleteRemediation deletes the object with this UID, regardless of changes by its
// remediator. A missing object is no error. Finalizers may keep the object for a while.
func (w *Writer) DeleteRemediation(ctx context.Context, o remediation.Object) error {
	return w.deleteRemediation(ctx, o, client.Preconditions{UID: &o.UID})
}

// DeleteRemediationAsKnown deletes the object only if its resourceVersion is unchanged, so
// that it sees a change that asks to keep the object.
func (w *Writer) DeleteRemediationAsKnown(ctx context.Context, o remediation.Object) error {
	return w.deleteRemediation(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
}

func (w *Writer) deleteRemediation(ctx context.Context, o remediation.Object, only client.Preconditions) error {
	// A metadata-only object cannot decode the answer for an object that finalizers keep.
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(o.GroupVersionKind)
	object.SetNamespace(o.Namespace)
	object.SetName(o.Name)
	err := w.client.Delete(ctx, object, only)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
	}
	return nil
}

// AnnotateRemediation sets annotations on this version of the object, removes those with
// a nil value, and returns the new resourceVersion.
func (w *Writer) AnnotateRemediation(ctx context.Context, o remediation.Object, set map[string]*string) (resourceVersion string, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.UID, "resourceVersion": o.ResourceVersion, "annotations": set,
	}})
	if err != nil {
		return "", fmt.Errorf("encoding the annotations of %s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	answer.SetGroupVersionKind(o.GroupVersionKind)
	if err := w.client.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return "", fmt.Errorf("annotating %s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
	}
	return answer.ResourceVersion, nil
}

// RemoveConfirmation removes the user's confirmation that the node is healthy from this
// version of the node. A confirmation applies only once.
func (w *Writer) RemoveConfirmation(ctx context.Context, node *corev1.Node) (resourceVersion string, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion,
		"annotations": map[string]any{remediation.ConfirmedAnnotation: nil},
	}})
	if err != nil {
		return "", fmt.Errorf("encoding the change of node %s: %w", node.Name, err)
	}
	answer := &metav1.PartialObjectMetadata{TypeMeta: nodeKind, ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := w.client.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return "", fmt.Errorf("removing the confirmation from node %s: %w", node.Name, err)
	}
	return answer.ResourceVersion, nil
}

// RecordAttempts writes the annotation with the attempts of a node. It takes effect only if the node
// still has this version.
func (w *Writer) RecordAttempts(ctx context.Context, node *corev1.Node, version, record string) (resourceVersion string, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": version, "annotations": map[string]any{attempts.Annotation: record},
	}})
	if err != nil {
		return "", fmt.Errorf("encoding the change of node %s: %w", node.Name, err)
	}
	answer := &metav1.PartialObjectMetadata{TypeMeta: nodeKind, ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := w.client.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return "", fmt.Errorf("recording an attempt on node %s: %w", node.Name, err)
	}
	return answer.ResourceVersion, nil
}

// FetchLease reads the Lease of a node from the API server; nil if there is none.
func (w *Writer) FetchLease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := w.client.Get(ctx, client.ObjectKey{Namespace: nodelease.Namespace, Name: nodelease.NameOf(node)}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the Lease of node %s: %w", node, err)
	}
	return lease, nil
}

// ObtainLease writes a Lease that nodelease.Take returned, and returns it as stored. It
// takes effect only if the Lease still does not exist or still has that version.
func (w *Writer) ObtainLease(ctx context.Context, taken *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	stored := taken.DeepCopy()
	var err error
	if taken.ResourceVersion == "" {
		err = w.client.Create(ctx, stored, client.FieldOwner(FieldManager))
	} else {
		err = w.client.Update(ctx, stored, client.FieldOwner(FieldManager))
	}
	if err != nil {
		return nil, fmt.Errorf("obtaining Lease %s/%s: %w", taken.Namespace, taken.Name, err)
	}
	return stored, nil
}

// ReleaseLease deletes this version of a Lease. It fails if another holder has taken the
// Lease since. A missing Lease is no error.
func (w *Writer) ReleaseLease(ctx context.Context, lease *coordinationv1.Lease) error {
	err := w.client.Delete(ctx, lease.DeepCopy(), client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("releasing Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

// FetchRemediation reads a remediation object from the API server.
func (w *Writer) FetchRemediation(ctx context.Context, o remediation.Object) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(o.GroupVersionKind)
	if err := w.client.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: o.Name}, object); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
	}
	return object, nil
}

// FetchOwner reads the metadata of a policy that owns remediations from the API server.
func (w *Writer) FetchOwner(ctx context.Context, owner remediation.Owner) (*metav1.PartialObjectMetadata, error) {
	policy := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: owner.APIVersion(), Kind: owner.Kind}}
	if err := w.client.Get(ctx, client.ObjectKey{Name: owner.Name}, policy); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", owner.Kind, owner.Name, err)
	}
	return policy, nil
}

// HealthCheckConditions sets conditions in the status of a NodeHealthCheck, and the reason unless it is
// empty, and changes nothing else. It is for health checks whose status another controller writes, so
// it uses no field that medik8s' CRD lacks. It returns the new resourceVersion.
func (w *Writer) HealthCheckConditions(ctx context.Context, check, reason string, conditions ...metav1.Condition) (resourceVersion string, err error) {
	status := map[string]any{"conditions": conditions}
	if reason != "" {
		status["reason"] = reason
	}
	patch, err := json.Marshal(map[string]any{
		"apiVersion": remediation.CheckAPIVersion, "kind": remediation.CheckKind, "metadata": map[string]any{"name": check}, "status": status,
	})
	if err != nil {
		return "", fmt.Errorf("encoding the conditions of NodeHealthCheck %s: %w", check, err)
	}
	answer := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: remediation.CheckAPIVersion, Kind: remediation.CheckKind},
		ObjectMeta: metav1.ObjectMeta{Name: check},
	}
	err = w.client.Status().Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, patch), client.FieldOwner(FieldManager), client.ForceOwnership)
	if err != nil {
		return "", fmt.Errorf("writing the conditions of NodeHealthCheck %s: %w", check, err)
	}
	return answer.ResourceVersion, nil
}
