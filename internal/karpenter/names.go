package karpenter

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of everything here.
var GroupVersion = schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}

// AddToScheme makes a scheme know the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &NodeClaim{}, &NodeClaimList{}, &NodePool{}, &NodePoolList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// The labels that Karpenter sets.
const (
	// NodePoolLabel is the pool of a Node or a NodeClaim.
	NodePoolLabel = "karpenter.sh/nodepool"
	// CapacityTypeLabel is spot, on-demand or reserved, on both.
	CapacityTypeLabel = "karpenter.sh/capacity-type"
	// RegisteredLabel is "true" on a Node that has got the labels and taints of
	// its claim.
	RegisteredLabel = "karpenter.sh/registered"
	// InitializedLabel is "true" on a Node that once was ready for work. It stays.
	InitializedLabel = "karpenter.sh/initialized"
)

// The annotations that Karpenter reads.
const (
	// TerminationTimestampAnnotation on a NodeClaim is when, in RFC 3339, Karpenter
	// stops waiting for the node's pods.
	TerminationTimestampAnnotation = "karpenter.sh/nodeclaim-termination-timestamp"
	// HashAnnotation on a NodePool changes with the template of its nodes. On a NodeClaim
	// it is the hash of the template that the claim was made from.
	HashAnnotation = "karpenter.sh/nodepool-hash"
	// DoNotRepairAnnotation keeps a node from repair if it is "true".
	DoNotRepairAnnotation = "karpenter.sh/do-not-repair"
)

// OurDoNotRepairAnnotation keeps a node from repair by this system, unless it is
// "false".
const OurDoNotRepairAnnotation = "autohealer.resourcestack.com/do-not-repair"

// TerminationFinalizer is on Nodes and NodeClaims until their machine is gone.
const TerminationFinalizer = "karpenter.sh/termination"

// UnregisteredTaint is the key of the taint that a node comes with, and that
// Karpenter takes off when the node has the startup taints of its claim.
const UnregisteredTaint = "karpenter.sh/unregistered"

// The conditions of a NodeClaim that are read here.
const (
	// Initialized is True once the node was ready for work, and stays so.
	Initialized = "Initialized"
	// DisruptionReason is True from when Karpenter has chosen the claim for
	// deletion, which may be minutes before it deletes it: the replacement comes
	// first. Its reason is why, such as Unhealthy.
	DisruptionReason = "DisruptionReason"
	// Rebooting is True while Karpenter's own repair restarts the machine.
	Rebooting = "Rebooting"
	// InstanceTerminating is True once the cloud has been told to end the machine.
	InstanceTerminating = "InstanceTerminating"
)

// Unhealthy is the reason of Karpenter's own repair, in its budgets and in the
// condition DisruptionReason.
const Unhealthy = "Unhealthy"

// DoNotRepair says by which annotation somebody forbids repair, if one does.
// Karpenter takes only the exact word "true"; with ours every other word than
// "false" counts, so that nobody's veto is lost by a slip.
func DoNotRepair(annotations map[string]string) (by string, is bool) {
	if annotations[DoNotRepairAnnotation] == "true" {
		return DoNotRepairAnnotation, true
	}
	if value, there := annotations[OurDoNotRepairAnnotation]; there && value != "false" {
		return OurDoNotRepairAnnotation, true
	}
	return "", false
}
