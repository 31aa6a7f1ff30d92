package treat

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/remediation"
)

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

// HealthCheckCondition sets one condition in the status of a NodeHealthCheck and changes
// nothing else. It is for health checks whose status another controller writes. It returns
// the new resourceVersion.
func (w *Writer) HealthCheckCondition(ctx context.Context, check string, condition metav1.Condition) (resourceVersion string, err error) {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": remediation.CheckAPIVersion, "kind": remediation.CheckKind, "metadata": map[string]any{"name": check},
		"status": map[string]any{"conditions": []metav1.Condition{condition}},
	})
	if err != nil {
		return "", fmt.Errorf("encoding a condition of NodeHealthCheck %s: %w", check, err)
	}
	answer := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: remediation.CheckAPIVersion, Kind: remediation.CheckKind},
		ObjectMeta: metav1.ObjectMeta{Name: check},
	}
	err = w.client.Status().Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, patch), client.FieldOwner(FieldManager), client.ForceOwnership)
	if err != nil {
		return "", fmt.Errorf("writing a condition of NodeHealthCheck %s: %w", check, err)
	}
	return answer.ResourceVersion, nil
}
