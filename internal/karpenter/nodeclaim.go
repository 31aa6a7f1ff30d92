package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// NodeClaim is Karpenter's request for one machine. Deleting it ends the machine
// and its Node.
type NodeClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeClaimSpec   `json:"spec,omitempty"`
	Status NodeClaimStatus `json:"status,omitempty"`
}

// NodeClaimSpec is what is used of a claim's spec. It never changes.
type NodeClaimSpec struct {
	// StartupTaints are on the node until somebody has made it ready for work.
	StartupTaints []corev1.Taint `json:"startupTaints,omitempty"`
	// TerminationGracePeriod is how long Karpenter waits for the node's pods, as
	// text; empty means for ever.
	TerminationGracePeriod string `json:"terminationGracePeriod,omitempty"`
}

// NodeClaimStatus is what is used of a claim's status.
type NodeClaimStatus struct {
	// ProviderID is that of the node's spec; empty until there is a machine.
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

// Is says whether the claim's condition of a type is True.
func (c *NodeClaim) Is(kind string) bool {
	row := c.Condition(kind)
	return row != nil && row.Status == metav1.ConditionTrue
}

// Disrupted says whether Karpenter has the claim in hand already, and in a few
// words what it does: deletes it, is about to, or restarts its machine. There is
// nothing left to do for anybody else.
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

// deepCopies copies a slice row by row. An empty one stays what it was, for empty
// and absent are not the same everywhere.
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
