package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RepairPolicy defines how long unhealthy nodes are tolerated before they are replaced. It is for
// NodePools without their own repair block, and for nodes without a NodePool. A block in the
// NodePool takes precedence.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels=app.kubernetes.io/part-of=autohealer
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=repairpolicies,scope=Cluster,shortName=rp,categories=autohealer
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=`.spec.nodePool`
// +kubebuilder:printcolumn:name=Mode,type=string,JSONPath=`.status.mode`,description="Enforce, Observe or Paused"
// +kubebuilder:printcolumn:name=Nodes,type=integer,JSONPath=`.status.nodes`,description="Nodes to which this policy applies"
// +kubebuilder:printcolumn:name=Unhealthy,type=integer,JSONPath=`.status.unhealthy`
// +kubebuilder:printcolumn:name=Repairing,type=integer,JSONPath=`.status.repairing`
// +kubebuilder:printcolumn:name=Held,type=integer,JSONPath=`.status.held`,description="Nodes that are due, and that something keeps from being repaired"
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name=Reason,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="What happens to the nodes, or why the policy is not followed"
// +kubebuilder:printcolumn:name=Conflict,type=string,JSONPath=`.status.conditions[?(@.type=="Conflict")].status`,priority=1,description="Whether other policies apply to some of its nodes"
// +kubebuilder:printcolumn:name=Next,type=string,JSONPath=`.status.unhealthyNodes[?(@.reason=="Pending")].eligibleAt`,priority=1,description="When the next of the unhealthy nodes is due"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type RepairPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec RepairPolicySpec `json:"spec"`
	// +optional
	Status RepairPolicyStatus `json:"status,omitempty"`
}

// RepairPolicySpec is the desired behavior of a RepairPolicy.
//
// +kubebuilder:validation:XValidation:rule="has(self.nodePool) != has(self.selector)",message="want either nodePool or selector: one of them, and not both",fieldPath=".nodePool"
// +kubebuilder:validation:XValidation:rule="!has(self.deleteStandaloneNodeClaims) || !self.deleteStandaloneNodeClaims || has(self.selector)",message="the NodeClaims of a NodePool are not standalone; want a selector",fieldPath=".deleteStandaloneNodeClaims"
type RepairPolicySpec struct {
	// NodePool is the name of the Karpenter NodePool whose nodes are repaired. It need not exist
	// yet. Set either this or selector.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodePool string `json:"nodePool,omitempty"`

	// Selector selects the nodes by label. An empty selector, {}, selects all nodes. A policy that
	// names the node's NodePool takes precedence over a policy that only selects the node. Set
	// either this or nodePool.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Mode says whether the policy acts. Observe evaluates the policy and reports in its status what
	// it would do. The policy starts no repair, and ends those that can still be ended. The default
	// is Enforce.
	//
	// +optional
	Mode PolicyMode `json:"mode,omitempty"`

	// Repair is the repair block. A NodePool may contain the same block as spec.repair.
	//
	// +required
	Repair RepairSpec `json:"repair"`

	// RemediationTemplate is the template for the remediation of nodes that cannot be replaced: they
	// have no NodeClaim, or their NodeClaim belongs to no NodePool. Its kind ends in Template. The
	// remediation has the kind without that suffix and is created in the namespace of the template.
	// Without a template these nodes are not repaired.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",message="want a kind that ends in Template, for example SelfNodeRemediationTemplate",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.indexOf('/') > 0",message="want a group and a version, for example self-node-remediation.medik8s.io/v1alpha1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="want the name of the template",fieldPath=".name"
	RemediationTemplate *corev1.ObjectReference `json:"remediationTemplate,omitempty"`

	// DeleteStandaloneNodeClaims also deletes NodeClaims that belong to no NodePool. Nothing
	// replaces their nodes. It needs a selector.
	//
	// +optional
	DeleteStandaloneNodeClaims bool `json:"deleteStandaloneNodeClaims,omitempty"`
}

// RepairPolicyStatus is the observed state of a RepairPolicy. Empty fields are written too, so that
// a patch removes all previous values.
type RepairPolicyStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Mode is Enforce, Observe (the policy repairs nothing) or Paused (by an annotation: no new repair
	// starts).
	//
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Nodes is how many nodes this policy applies to. A node counts only for the policy that takes
	// precedence.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Nodes int32 `json:"nodes"`

	// Unhealthy is how many of them have an unhealthy condition, for however short a time. A new node
	// that still has time to become Ready does not count.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Unhealthy int32 `json:"unhealthy"`

	// Repairing is how many of them are being repaired.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Repairing int32 `json:"repairing"`

	// Held is how many of them are due for repair but held back by a bound, a disruption budget or
	// a veto.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Held int32 `json:"held"`

	// MaxRepairing is how many nodes may currently be under repair at once, in all NodePools
	// together. It is absent if the policy applies to no node.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRepairing *int32 `json:"maxRepairing,omitempty"`

	// UnhealthyThreshold is how many nodes may currently be unhealthy while a new repair starts, as
	// spec.repair.unhealthyThreshold says, or the default. Every NodePool has its own threshold, and
	// this is their sum. It is absent if the policy applies to no node.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnhealthyThreshold *int32 `json:"unhealthyThreshold,omitempty"`

	// ReadyTimeout is how long a node may take to become Ready after its creation, as
	// spec.repair.readyTimeout says, or the default. It is absent if no ready timeout applies: the
	// policy names no existing NodePool, or the feature gate is off.
	//
	// +optional
	ReadyTimeout string `json:"readyTimeout,omitempty"`

	// Tolerations are the conditions that make a node unhealthy, and how long each is tolerated:
	// those of spec.repair, and the provider's with its recommendation or
	// defaultTolerationDuration. At most 64 are listed.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []ConditionRepair `json:"tolerations"`

	// UnhealthyNodes lists at most 20 of the unhealthy nodes, sorted by when they are due.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	UnhealthyNodes []UnhealthyNode `json:"unhealthyNodes"`

	// AcceptedSpec is the last version of the spec that was accepted. It stays
	// in effect while a newer version is invalid. It is a text in JSON, so that a patch replaces it
	// as a whole.
	//
	// +optional
	AcceptedSpec string `json:"acceptedSpec,omitempty"`

	// Conditions of the policy itself: Ready and Accepted (the policy is in effect), Conflict (another policy
	// takes precedence for some of its nodes).
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`
}

// UnhealthyNode is an unhealthy node that the policy governs.
type UnhealthyNode struct {
	// Name of the node.
	Name string `json:"name"`
	// Reason is a CamelCase word: Pending, Treating, CapFull and so on.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is the reason as a sentence, as in the Events.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// EligibleAt is when the node becomes due for repair, at the end of the condition's toleration.
	//
	// +optional
	EligibleAt *metav1.Time `json:"eligibleAt,omitempty"`
}

// Conflict is the condition that tells whether another policy takes precedence for some of the
// nodes of a policy.
const Conflict = "Conflict"

// SchemaLost is a condition of all policies while the CRD of NodePools lacks the schema of repair
// blocks. Blocks that take precedence over policies are then hidden, and their last valid versions
// stay in effect.
const SchemaLost = "SchemaLost"

// RepairPolicyList is a list of RepairPolicies.
//
// +kubebuilder:object:root=true
type RepairPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RepairPolicy `json:"items"`
}
