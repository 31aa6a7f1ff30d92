package treat

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
)

// MarkClaim writes the termination mark on this version of a claim, together with the
// mark's deadline if it has one. It returns the claim as stored.
func (w *Writer) MarkClaim(ctx context.Context, claim *karpenter.NodeClaim, mark ownership.Mark) (*karpenter.NodeClaim, error) {
	annotations := map[string]any{ownership.MarkAnnotation: mark.Encode()}
	if mark.Deadline != "" {
		annotations[karpenter.TerminationTimestampAnnotation] = mark.Deadline
	}
	return w.annotateClaim(ctx, claim, annotations, "marking")
}

// SetDeadline sets the time at which the pods of this version of a claim have no time left.
func (w *Writer) SetDeadline(ctx context.Context, claim *karpenter.NodeClaim, deadline string) (*karpenter.NodeClaim, error) {
	return w.annotateClaim(ctx, claim, map[string]any{karpenter.TerminationTimestampAnnotation: deadline}, "setting the deadline of")
}

// UnmarkClaim removes the mark from this version of a claim, and the deadline if it is still
// the mark's. A deletion that requires an older version then fails.
func (w *Writer) UnmarkClaim(ctx context.Context, claim *karpenter.NodeClaim, mark ownership.Mark) (*karpenter.NodeClaim, error) {
	annotations := map[string]any{ownership.MarkAnnotation: nil}
	if mark.Deadline != "" && claim.Annotations[karpenter.TerminationTimestampAnnotation] == mark.Deadline {
		annotations[karpenter.TerminationTimestampAnnotation] = nil
		if mark.Before != "" {
			annotations[karpenter.TerminationTimestampAnnotation] = mark.Before
		}
	}
	return w.annotateClaim(ctx, claim, annotations, "removing the mark of")
}

func (w *Writer) annotateClaim(ctx context.Context, claim *karpenter.NodeClaim, annotations map[string]any, doing string) (*karpenter.NodeClaim, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return nil, fmt.Errorf("encoding the annotations of NodeClaim %s: %w", claim.Name, err)
	}
	stored := &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}}
	if err := w.client.Patch(ctx, stored, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return nil, fmt.Errorf("%s NodeClaim %s: %w", doing, claim.Name, err)
	}
	return stored, nil
}

// DeleteClaim deletes this version of a claim. A missing claim is no error.
func (w *Writer) DeleteClaim(ctx context.Context, claim *karpenter.NodeClaim) error {
	only := client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}
	err := w.client.Delete(ctx, &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}}, only)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting NodeClaim %s: %w", claim.Name, err)
	}
	return nil
}

// FetchClaim reads a claim from the API server; nil if there is none.
func (w *Writer) FetchClaim(ctx context.Context, name string) (*karpenter.NodeClaim, error) {
	claim := &karpenter.NodeClaim{}
	err := w.client.Get(ctx, client.ObjectKey{Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading NodeClaim %s: %w", name, err)
	}
	return claim, nil
}

// Deadline formats a time as Karpenter reads it from a claim.
func Deadline(t time.Time) string { return t.UTC().Format(time.RFC3339) }
