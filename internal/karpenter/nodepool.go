package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// NodePool is the template from which Karpenter creates NodeClaims.
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodePoolSpec `json:"spec,omitempty"`
}

// NodePoolSpec has the used fields of a pool's spec.
type NodePoolSpec struct {
	// Repair is the block that Autohealer adds to the NodePool schema; nil if the pool has
	// none. An unreadable block has Unreadable set.
	Repair     *v1alpha1.RepairSpec `json:"repair,omitempty"`
	Disruption Disruption           `json:"disruption,omitempty"`
	Template   NodeTemplate         `json:"template,omitempty"`
	// Replicas is the number of nodes of a static pool; nil for a pool that scales with
	// its pods.
	Replicas *int64 `json:"replicas,omitempty"`
}

// Disruption limits how many nodes of a pool are disrupted at once.
type Disruption struct {
	// Budgets distinguishes nil from empty: nil means Karpenter's default, an empty list
	// means no limit.
	Budgets []Budget `json:"budgets,omitzero"`
}

// Budget is one limit on disruption.
type Budget struct {
	// Reasons are the reasons that the budget applies to. Nil means all, an empty list
	// none.
	Reasons []string `json:"reasons,omitzero"`
	// Nodes is a number like 5 or a percentage like 10%.
	Nodes string `json:"nodes"`
	// Schedule is a cron expression in UTC for when the budget becomes active, and
	// Duration how long it stays active. Without both it is always active.
	Schedule *string `json:"schedule,omitempty"`
	Duration string  `json:"duration,omitempty"`

	// Unreadable says why the budget cannot be read. All other fields are then empty.
	Unreadable string `json:"-"`
}

// NodeTemplate is the template of a pool's claims.
type NodeTemplate struct {
	Spec NodeTemplateSpec `json:"spec,omitempty"`
}

// NodeTemplateSpec has the used fields of a template's spec.
type NodeTemplateSpec struct {
	NodeClassRef  NodeClassRef   `json:"nodeClassRef,omitzero"`
	StartupTaints []corev1.Taint `json:"startupTaints,omitempty"`
}

// NodeClassRef refers to the node class of a pool. Its API group tells the cloud.
type NodeClassRef struct {
	Group string `json:"group,omitempty"`
}

// NodePoolList is a list of pools.
type NodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodePool `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (p *NodePool) DeepCopyObject() runtime.Object { return p.DeepCopy() }

// DeepCopy returns a pool that shares nothing with p.
func (p *NodePool) DeepCopy() *NodePool { return deepCopy(p, (*NodePool).DeepCopyInto) }

// DeepCopyInto makes out a pool that shares nothing with p.
func (p *NodePool) DeepCopyInto(out *NodePool) {
	*out = *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Repair = p.Spec.Repair.DeepCopy()
	out.Spec.Disruption.Budgets = deepCopies(p.Spec.Disruption.Budgets, (*Budget).deepCopyInto)
	out.Spec.Template.Spec.StartupTaints = deepCopies(p.Spec.Template.Spec.StartupTaints, (*corev1.Taint).DeepCopyInto)
	if p.Spec.Replicas != nil {
		out.Spec.Replicas = new(*p.Spec.Replicas)
	}
}

func (b *Budget) deepCopyInto(out *Budget) {
	*out = *b
	out.Reasons = slices.Clone(b.Reasons)
	if b.Schedule != nil {
		out.Schedule = new(*b.Schedule)
	}
}

// DeepCopyObject implements runtime.Object.
func (l *NodePoolList) DeepCopyObject() runtime.Object { return l.DeepCopy() }

// DeepCopy returns a list that shares nothing with l.
func (l *NodePoolList) DeepCopy() *NodePoolList { return deepCopy(l, (*NodePoolList).DeepCopyInto) }

// DeepCopyInto makes out a list that shares nothing with l.
func (l *NodePoolList) DeepCopyInto(out *NodePoolList) {
	*out = *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = deepCopies(l.Items, (*NodePool).DeepCopyInto)
}
