package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// NodeClaim is Karpenter's request for one machine. Its deletion terminates the machine
// and deletes the Node.
type NodeClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeClaimSpec   `json:"spec,omitempty"`
	Status NodeClaimStatus `json:"status,omitempty"`
}

// NodeClaimSpec has the used fields of a claim's spec, which is immutable.
type NodeClaimSpec struct {
	// StartupTaints are on the node until another component has initialized it.
	StartupTaints []corev1.Taint `json:"startupTaints,omitempty"`
	// TerminationGracePeriod is how long Karpenter waits for the node's pods, as text;
	// empty means for ever.
	TerminationGracePeriod string `json:"terminationGracePeriod,omitempty"`
}

// NodeClaimStatus has the used fields of a claim's status.
type NodeClaimStatus struct {
	// ProviderID equals that of the Node's spec; empty until the machine exists.
	ProviderID string `json:"providerID,omitempty"`
	// NodeName is empty until the node is registered.
	NodeName   string             `json:"nodeName,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeClaimList is a list of claims.
type NodeClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeClaim `json:"items"`
}

// Condition returns the claim's condition of a type, or nil.
func (c *NodeClaim) Condition(kind string) *metav1.Condition {
	i := slices.IndexFunc(c.Status.Conditions, func(row metav1.Condition) bool { return row.Type == kind })
	if i < 0 {
		return nil
	}
	return &c.Status.Conditions[i]
}

// Is reports whether the claim's condition of a type is True.
func (c *NodeClaim) Is(kind string) bool {
	row := c.Condition(kind)
	return row != nil && row.Status == metav1.ConditionTrue
}

// Disrupted reports whether Karpenter is already disrupting the claim, and how: it deletes
// the claim, is about to, or reboots the machine. Autohealer then does nothing.
func (c *NodeClaim) Disrupted() (how string, is bool) {
	switch {
	case !c.DeletionTimestamp.IsZero():
		return "is being deleted", true
	case c.Is(InstanceTerminating):
		return "has its machine terminated", true
	case c.Is(Rebooting):
		return "is being rebooted by Karpenter", true
	case c.Is(DisruptionReason):
		return "is about to be deleted by Karpenter: " + c.Condition(DisruptionReason).Reason, true
	}
	return "", false
}

// DeepCopyObject implements runtime.Object.
func (c *NodeClaim) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopy returns a claim that shares nothing with c.
func (c *NodeClaim) DeepCopy() *NodeClaim { return deepCopy(c, (*NodeClaim).DeepCopyInto) }

// DeepCopyInto makes out a claim that shares nothing with c.
func (c *NodeClaim) DeepCopyInto(out *NodeClaim) {
	*out = *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.StartupTaints = deepCopies(c.Spec.StartupTaints, (*corev1.Taint).DeepCopyInto)
	out.Status.Conditions = deepCopies(c.Status.Conditions, (*metav1.Condition).DeepCopyInto)
}

// DeepCopyObject implements runtime.Object.
func (l *NodeClaimList) DeepCopyObject() runtime.Object { return l.DeepCopy() }

// DeepCopy returns a list that shares nothing with l.
func (l *NodeClaimList) DeepCopy() *NodeClaimList { return deepCopy(l, (*NodeClaimList).DeepCopyInto) }

// DeepCopyInto makes out a list that shares nothing with l.
func (l *NodeClaimList) DeepCopyInto(out *NodeClaimList) {
	*out = *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = deepCopies(l.Items, (*NodeClaim).DeepCopyInto)
}

func deepCopy[T any](in *T, into func(in, out *T)) *T {
	if in == nil {
		return nil
	}
	var out T
	into(in, &out)
	return &out
}

// deepCopies copies a slice element by element. An empty slice stays empty and nil stays
// nil, because some fields distinguish them.
func deepCopies[T any](rows []T, into func(in, out *T)) []T {
	if rows == nil {
		return nil
	}
	copied := make([]T, len(rows))
	for i := range rows {
		into(&rows[i], &copied[i])
	}
	return copied
}
