package main

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/admission"
	"github.com/resourcestack/autohealer/internal/treat"
)

// nodeFacts answers the webhooks' questions about nodes.
type nodeFacts interface {
	admission.ImpactSource
	admission.SurveySource
}

// healthChecks returns the webhook of NodeHealthChecks. It reads templates and remediations
// from the API server for each request: they are few, of any kind, and needed only when a
// user writes a health check.
func healthChecks(mgr manager.Manager, direct client.Client, nodes admission.SurveySource, counts *admission.Metrics, log *slog.Logger) (*admission.HealthChecks, error) {
	// Start the informer before the first request. If the CRD is missing, the first request
	// starts it.
	if err := mgr.Add(onEveryReplica(func(ctx context.Context) error {
		if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.NodeHealthCheck{}); err != nil && ctx.Err() == nil {
			log.Warn("listing NodeHealthChecks failed; the webhook lists them on its first request", "err", err)
		}
		return nil
	})); err != nil {
		return nil, err
	}
	return admission.NewHealthChecks(admission.HealthCheckConfig{
		Nodes: nodes,
		Checks: func(ctx context.Context) ([]*v1alpha1.NodeHealthCheck, error) {
			var list v1alpha1.NodeHealthCheckList
			// Validation does not modify the objects, so the cache need not copy them.
			if err := mgr.GetCache().List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
				return nil, err
			}
			checks := make([]*v1alpha1.NodeHealthCheck, len(list.Items))
			for i := range list.Items {
				checks[i] = &list.Items[i]
			}
			return checks, nil
		},
		Template: treat.NewWriter(direct).GetTemplate,
		Remediation: func(ctx context.Context, ref corev1.ObjectReference) (metav1.Object, error) {
			object := &metav1.PartialObjectMetadata{}
			object.SetGroupVersionKind(ref.GroupVersionKind())
			return object, direct.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, object)
		},
		Metrics: counts,
		Logger:  log,
	})
}
