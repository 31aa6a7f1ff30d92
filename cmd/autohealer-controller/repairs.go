package main

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/admission"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
)

// repairs returns what answers for RepairPolicies and for the repair blocks of
// NodePools. What else there is of both is read afresh: they are few, are looked at
// only when somebody writes one, and their CRDs may come and go.
func repairs(direct client.Client, census admission.Surveyor, statements []dialect.RepairStatement, counts *admission.Metrics, log *slog.Logger) ([]admission.Kind, error) {
	cfg := admission.RepairConfig{
		Census:     census,
		Statements: statements,
		Policies: func(ctx context.Context) ([]*v1alpha1.RepairPolicy, error) {
			var list v1alpha1.RepairPolicyList
			if err := direct.List(ctx, &list); err != nil && !meta.IsNoMatchError(err) {
				return nil, err
			}
			return pointers(list.Items), nil
		},
		Pools: func(ctx context.Context) ([]*karpenter.NodePool, error) {
			var list karpenter.NodePoolList
			switch err := direct.List(ctx, &list); {
			case meta.IsNoMatchError(err):
				return nil, nil // there is no Karpenter
			case err != nil:
				return nil, err
			}
			return pointers(list.Items), nil
		},
		Template: treat.NewWriter(direct).GetTemplate,
		Metrics:  counts,
		Logger:   log,
	}
	policies, err := admission.NewRepairPolicies(cfg)
	if err != nil {
		return nil, err
	}
	pools, err := admission.NewNodePools(cfg)
	if err != nil {
		return nil, err
	}
	return []admission.Kind{policies, pools}, nil
}

// pointers points to the items of a list, and is not nil if there are none.
func pointers[T any](items []T) []*T {
	list := make([]*T, len(items))
	for i := range items {
		list[i] = &items[i]
	}
	return list
}
