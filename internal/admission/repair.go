package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	repairPolicyPath = "/validate-autohealer-resourcestack-com-v1alpha1-repairpolicy"
	nodePoolPath     = "/validate-karpenter-sh-v1-nodepool"
)

// RepairConfig configures the validation of RepairPolicies and of the repair blocks of
// NodePools.
type RepairConfig struct {
	Nodes SurveySource
	// Statements are the conditions that the providers call unhealthy.
	Statements func() dialect.Statements
	// ReadyTimeoutsOff says that the controller does not apply ready timeouts.
	ReadyTimeoutsOff bool
	// Policies returns the RepairPolicies. No policy is rejected because of others, so an
	// error only causes a warning.
	Policies func(context.Context) ([]*v1alpha1.RepairPolicy, error)
	// Pools returns the NodePools, none in a cluster without Karpenter. An error only causes a
	// warning.
	Pools func(context.Context) ([]*karpenter.NodePool, error)
	// Template reads a template.
	Template func(context.Context, remediation.Template) (*unstructured.Unstructured, error)
	Metrics  *Metrics
	Logger   *slog.Logger
}

// Validate returns all missing fields.
func (c RepairConfig) Validate() error {
	return required.Fields{
		"Nodes": c.Nodes == nil, "Statements": c.Statements == nil, "Policies": c.Policies == nil, "Pools": c.Pools == nil,
		"Template": c.Template == nil, "Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check()
}

// repairs reads the other policies and pools. unread has a warning for each failed read.
func (c RepairConfig) repairs(ctx context.Context, known bool) (found validate.Repairs, unread []validate.Problem) {
	found.Statements, found.ReadyTimeoutsOff = c.Statements(), c.ReadyTimeoutsOff
	var err error
	if found.Policies, err = c.Policies(ctx); err != nil {
		unread = append(unread, validate.Problem{Text: fmt.Sprintf("the RepairPolicies could not be read (%v), so conflicts with them cannot be detected", err)})
	}
	if found.Pools, err = c.Pools(ctx); err != nil {
		unread = append(unread, validate.Problem{Text: fmt.Sprintf("the NodePools could not be read (%v), so conflicts with their repair blocks cannot be detected", err)})
	}
	if known {
		found.Reported = append([]string{}, c.Nodes.Reported()...) // nil would mean unknown
		found.Survey = c.Nodes.Survey
	}
	return found, unread
}

// RepairPolicies validates RepairPolicies.
type RepairPolicies struct {
	handler[v1alpha1.RepairPolicy]
	cfg RepairConfig
}

// NewRepairPolicies returns the handler for RepairPolicies.
func NewRepairPolicies(cfg RepairConfig) (*RepairPolicies, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of RepairPolicies: %w", err)
	}
	k := &RepairPolicies{cfg: cfg}
	k.handler = handler[v1alpha1.RepairPolicy]{
		path: repairPolicyPath, resource: "repairpolicies", object: "repairpolicy",
		validator: k, same: sameSpec, sizes: sizesOfPolicy, metrics: cfg.Metrics, logger: cfg.Logger,
	}
	return k, nil
}

func sizesOfPolicy(policy *v1alpha1.RepairPolicy) []size {
	return []size{{"spec.repair.policies", len(policy.Spec.Repair.Policies), 64}, selectorSize("spec.selector", policy.Spec.Selector)}
}

// Ready returns why the handler cannot validate yet.
func (k *RepairPolicies) Ready() error {
	if !k.cfg.Nodes.Ready() {
		return errors.New("the nodes are not known yet")
	}
	return nil
}

// deleted allows every deletion and warns of the remediations that are deleted too.
func (k *RepairPolicies) deleted(_ context.Context, stored *v1alpha1.RepairPolicy) admission.Response {
	if stored.Status.Repairing == 0 || stored.Spec.RemediationTemplate == nil {
		return admission.Allowed("")
	}
	return admission.Allowed("").WithWarnings(fmt.Sprintf("this policy is repairing %s: what was made from its template goes with it", nodes(stored.Status.Repairing)))
}

// changed validates a policy that is new or has a new spec. A disabled policy repairs
// nothing, so it does not wait until the nodes are known.
func (k *RepairPolicies) changed(ctx context.Context, policy, stored *v1alpha1.RepairPolicy, _ bool) admission.Response {
	off := policy.Spec.Repair.Enabled != nil && !*policy.Spec.Repair.Enabled
	known := off && k.cfg.Nodes.Ready() || !off && waitUntil(ctx, k.cfg.Nodes.Ready)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	others, unread := k.cfg.repairs(ctx, known)
	others.Policies = slices.DeleteFunc(slices.Clone(others.Policies), func(p *v1alpha1.RepairPolicy) bool { return p.Name == policy.Name })
	verdict := validate.RepairPolicy(validate.RepairCase{
		Policy: policy, Stored: stored, Repairs: others,
		Template: func(template remediation.Template) (*unstructured.Unstructured, error) {
			return k.cfg.Template(ctx, template)
		},
	})
	verdict.Warnings = append(verdict.Warnings, unread...)
	answer := responseOf(verdict)
	if answer.Allowed && !known && !off {
		return notReady("the controller has just started and does not know the nodes yet, so it cannot determine the impact of this policy")
	}
	return answer
}

// NodePools validates the repair blocks of NodePools, and ignores their other fields.
type NodePools struct {
	handler[karpenter.NodePool]
	cfg RepairConfig
}

// NewNodePools returns the handler for NodePools.
func NewNodePools(cfg RepairConfig) (*NodePools, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of NodePools: %w", err)
	}
	k := &NodePools{cfg: cfg}
	k.handler = handler[karpenter.NodePool]{
		path: nodePoolPath, resource: "nodepools", object: "nodepool",
		validator: k, same: sameBlock, sizes: sizesOfPool, metrics: cfg.Metrics, logger: cfg.Logger,
	}
	return k, nil
}

func sizesOfPool(pool *karpenter.NodePool) []size {
	if pool.Spec.Repair == nil {
		return nil
	}
	return []size{{"spec.repair.policies", len(pool.Spec.Repair.Policies), 64}}
}

// Ready always returns nil: the pools belong to Karpenter, and their writers must not wait
// for this controller.
func (k *NodePools) Ready() error { return nil }

// deleted allows every deletion.
func (k *NodePools) deleted(context.Context, *karpenter.NodePool) admission.Response {
	return admission.Allowed("")
}

// changed validates a pool that is new or has a new repair block, with the available data.
func (k *NodePools) changed(ctx context.Context, pool, stored *karpenter.NodePool, _ bool) admission.Response {
	if pool.Spec.Repair == nil && (stored == nil || stored.Spec.Repair == nil) {
		return admission.Allowed("")
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	others, unread := k.cfg.repairs(ctx, k.cfg.Nodes.Ready())
	verdict := validate.NodePool(validate.NodePoolCase{Pool: pool, Stored: stored, Repairs: others})
	if pool.Spec.Repair != nil {
		verdict.Warnings = append(verdict.Warnings, unread...)
	}
	return responseOf(verdict)
}

// sameBlock reports whether the repair blocks of two NodePools are equal as JSON.
func sameBlock(a, b []byte) bool { return sameAt[block](a, b) }

// block is the validated part of a NodePool.
type block struct {
	Spec struct {
		Repair any `json:"repair"`
	} `json:"spec"`
}
