package main

import (
	"context"
	"log/slog"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/admission"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/policy/repair"
	"github.com/resourcestack/autohealer/internal/treat"
)

// repairWebhooks returns the webhooks of RepairPolicies and of the repair blocks of NodePools.
// They list both kinds for each request: the objects are few, needed only when a user writes
// one, and their CRDs may be installed or removed at any time.
func repairWebhooks(direct client.Client, nodes admission.SurveySource, statements repair.StatementSource, timeoutsOff bool, counts *admission.Metrics, log *slog.Logger) ([]admission.Kind, error) {
	cfg := admission.RepairConfig{
		Nodes:      nodes,
		Statements: func() dialect.Statements { latest, _ := statements.Latest(); return *latest }, ReadyTimeoutsOff: timeoutsOff,
		Policies: func(ctx context.Context) ([]*v1alpha1.RepairPolicy, error) {
			var list v1alpha1.RepairPolicyList
			if err := direct.List(ctx, &list); err != nil && !meta.IsNoMatchError(err) {
				return nil, err
			}
			return pointers(slices.DeleteFunc(list.Items, func(p v1alpha1.RepairPolicy) bool { return mirror.Is(&p) })), nil
		},
		Pools: func(ctx context.Context) ([]*karpenter.NodePool, error) {
			var list karpenter.NodePoolList
			switch err := direct.List(ctx, &list); {
			case meta.IsNoMatchError(err):
				return []*karpenter.NodePool{}, nil // Karpenter is not installed
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

// pointers returns pointers to the items. The result is never nil.
func pointers[T any](items []T) []*T {
	list := make([]*T, len(items))
	for i := range items {
		list[i] = &items[i]
	}
	return list
}
