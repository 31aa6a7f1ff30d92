package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// NodePool is what Karpenter makes NodeClaims of.
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodePoolSpec `json:"spec,omitempty"`
}

// NodePoolSpec is what is used of a pool's spec.
type NodePoolSpec struct {
	// Repair is the block that this system adds to the schema of NodePools; nil if
	// the pool has none. One that cannot be read says so in itself.
	Repair     *v1alpha1.RepairSpec `json:"repair,omitempty"`
	Disruption Disruption           `json:"disruption,omitempty"`
	Template   NodeTemplate         `json:"template,omitempty"`
	// Replicas is how many nodes a pool of a fixed size has; nil for one that grows
	// with its pods.
	Replicas *int64 `json:"replicas,omitempty"`
}

// Disruption is how many of a pool's nodes may be taken out of service at once.
type Disruption struct {
	// Budgets that are absent are not those of an empty list: the one stands for
	// Karpenter's default, the other bounds nothing.
	Budgets []Budget `json:"budgets,omitzero"`
}

// Budget is one bound on disruption.
type Budget struct {
	// Reasons are those that the budget is for. Absent means all, an empty list
	// none.
	Reasons []string `json:"reasons,omitzero"`
	// Nodes is a number such as 5 or a share such as 10%.
	Nodes string `json:"nodes"`
	// Schedule is when the budget begins to hold, in the words of cron and in UTC,
	// and Duration for how long. Without both it always holds.
	Schedule *string `json:"schedule,omitempty"`
	Duration string  `json:"duration,omitempty"`

	// Unreadable says why the budget cannot be read, if so. Nothing else is set
	// then.
	Unreadable string `json:"-"`
}

// NodeTemplate is what a pool's claims are made of.
type NodeTemplate struct {
	Spec NodeTemplateSpec `json:"spec,omitempty"`
}

// NodeTemplateSpec is what is used of a template's spec.
type NodeTemplateSpec struct {
	StartupTaints []corev1.Taint `json:"startupTaints,omitempty"`
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
