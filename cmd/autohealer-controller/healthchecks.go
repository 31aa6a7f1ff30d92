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

// nodeCensus is what the webhooks know of the nodes.
type nodeCensus interface {
	admission.Census
	admission.Surveyor
}

// healthChecks returns what answers for NodeHealthChecks. Templates and remediations
// are read afresh: they are of any kind, few, and looked at only when somebody writes.
func healthChecks(mgr manager.Manager, direct client.Client, census admission.Surveyor, counts *admission.Metrics, log *slog.Logger) (*admission.HealthChecks, error) {
	// The health checks are read ahead of the first question, if their CRD is there.
	// Otherwise the question does it.
	if err := mgr.Add(onEveryReplica(func(ctx context.Context) error {
		if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.NodeHealthCheck{}); err != nil && ctx.Err() == nil {
			log.Warn("health checks not read", "err", err)
		}
		return nil
	})); err != nil {
		return nil, err
	}
	return admission.NewHealthChecks(admission.HealthCheckConfig{
		Census: census,
		Checks: func(ctx context.Context) ([]*v1alpha1.NodeHealthCheck, error) {
			var list v1alpha1.NodeHealthCheckList
			// Nobody writes to what vet gets, so nothing is copied for it.
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
