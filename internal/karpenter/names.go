package karpenter

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all types.
var GroupVersion = schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &NodeClaim{}, &NodeClaimList{}, &NodePool{}, &NodePoolList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Labels that Karpenter sets.
const (
	// NodePoolLabel is the pool of a Node or a NodeClaim.
	NodePoolLabel = "karpenter.sh/nodepool"
	// CapacityTypeLabel is spot, on-demand or reserved, on Nodes and NodeClaims.
	CapacityTypeLabel = "karpenter.sh/capacity-type"
	// InitializedLabel is "true" on a Node that was initialized once. It is permanent.
	InitializedLabel = "karpenter.sh/initialized"
)

// Annotations that Karpenter reads.
const (
	// TerminationTimestampAnnotation on a NodeClaim is the time, in RFC 3339, at which
	// Karpenter stops waiting for the node's pods.
	TerminationTimestampAnnotation = "karpenter.sh/nodeclaim-termination-timestamp"
	// HashAnnotation on a NodePool changes with its node template. On a NodeClaim it is
	// the hash of the template that the claim was created from.
	HashAnnotation = "karpenter.sh/nodepool-hash"
	// DoNotRepairAnnotation with the value "true" excludes a node from repair.
	DoNotRepairAnnotation = "karpenter.sh/do-not-repair"
)

// OurDoNotRepairAnnotation with any value but "false" excludes a node from repair by
// Autohealer.
const OurDoNotRepairAnnotation = "autohealer.resourcestack.com/do-not-repair"

// TerminationFinalizer is on Nodes and NodeClaims until the machine is terminated.
const TerminationFinalizer = "karpenter.sh/termination"

// UnregisteredTaint is the key of the taint that a new node has. Karpenter removes it when
// it has set the startup taints of the claim.
const UnregisteredTaint = "karpenter.sh/unregistered"

// Conditions of a NodeClaim that Autohealer reads.
const (
	// Initialized becomes True when the node is initialized, and stays True.
	Initialized = "Initialized"
	// DisruptionReason is True when Karpenter has chosen the claim for deletion. The
	// deletion may follow minutes later, after the replacement is ready. The condition's
	// reason says why, for example Unhealthy.
	DisruptionReason = "DisruptionReason"
	// Rebooting is True while Karpenter's own repair reboots the machine.
	Rebooting = "Rebooting"
	// InstanceTerminating is True once the cloud was told to terminate the machine.
	InstanceTerminating = "InstanceTerminating"
)

// Unhealthy is the reason of Karpenter's own repair, in budgets and in the condition
// DisruptionReason.
const Unhealthy = "Unhealthy"

// DoNotRepair returns the annotation that excludes an object from repair, if there is one.
// Karpenter accepts only the exact value "true". For Autohealer's annotation every value
// except "false" counts, so that a typing error does not lose the veto.
func DoNotRepair(annotations map[string]string) (by string, is bool) {
	if annotations[DoNotRepairAnnotation] == "true" {
		return DoNotRepairAnnotation, true
	}
	if value, there := annotations[OurDoNotRepairAnnotation]; there && value != "false" {
		return OurDoNotRepairAnnotation, true
	}
	return "", false
}
