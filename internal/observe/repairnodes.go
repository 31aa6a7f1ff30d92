package observe

import (
	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/triage"
)

// RepairNodes returns the nodes that a RepairPolicy selects. Another policy, or the block of
// their NodePool, may take precedence. The error is a *[triage.FieldError] with the path of
// the field in the object.
func RepairNodes(policy *v1alpha1.RepairPolicy) (triage.Selector, error) {
	spec := policy.Spec
	switch {
	case spec.NodePool != "" && spec.Selector != nil:
		return triage.Selector{}, shortenValue(&triage.FieldError{Field: "spec.nodePool", Value: spec.NodePool, Problem: "give either nodePool or selector, not both"})
	case spec.NodePool == "" && spec.Selector == nil:
		return triage.Selector{}, &triage.FieldError{Field: "spec.nodePool", Problem: "want the name of a NodePool, or a selector of nodes in its place; selector: {} means all nodes"}
	case spec.NodePool != "":
		who, err := PoolNodes(spec.NodePool)
		return who, shortenValue(err)
	}
	who, err := nodeSelector(spec.Selector)
	return who, shortenValue(err)
}

// PoolNodes returns the nodes of a NodePool. The error is as for [RepairNodes].
func PoolNodes(pool string) (triage.Selector, error) {
	who, err := triage.NewSelector(triage.Requirement{Key: karpenter.NodePoolLabel, Op: triage.In, Values: []string{pool}})
	if err != nil {
		return triage.Selector{}, &triage.FieldError{Field: "spec.nodePool", Value: pool, Problem: "want the name of a NodePool, for example default"}
	}
	return who, nil
}
