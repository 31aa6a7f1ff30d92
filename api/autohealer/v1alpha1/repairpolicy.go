package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RepairPolicy says how long sick nodes are tolerated before they are replaced.
// It is for pools whose NodePool does not carry a repair block of its own, and
// for nodes that belong to no NodePool. Where a NodePool has a block, that one
// holds.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=repairpolicies,scope=Cluster,shortName=rp,categories=autohealer
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=`.spec.nodePool`
// +kubebuilder:printcolumn:name=Nodes,type=integer,JSONPath=`.status.nodes`,description="Nodes that this policy governs"
// +kubebuilder:printcolumn:name=Sick,type=integer,JSONPath=`.status.sick`
// +kubebuilder:printcolumn:name=Repairing,type=integer,JSONPath=`.status.repairing`
// +kubebuilder:printcolumn:name=Held,type=integer,JSONPath=`.status.held`,description="Nodes that are due, and that something keeps from being repaired"
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name=Conflict,type=string,JSONPath=`.status.conditions[?(@.type=="Conflict")].status`,priority=1,description="Whether others go first for some of its nodes"
// +kubebuilder:printcolumn:name=Next,type=string,JSONPath=`.status.sickNodes[?(@.reason=="Pending")].eligibleAt`,priority=1,description="When the next of the sick nodes is due"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type RepairPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec RepairPolicySpec `json:"spec"`
	// +optional
	Status RepairPolicyStatus `json:"status,omitempty"`
}

// RepairPolicySpec is what a user asks for.
//
// +kubebuilder:validation:XValidation:rule="has(self.nodePool) != has(self.selector)",message="want either nodePool or selector: one of them, and not both",fieldPath=".nodePool"
type RepairPolicySpec struct {
	// NodePool is the name of the Karpenter NodePool whose nodes are meant. It
	// need not be there yet. Give this or selector.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodePool string `json:"nodePool,omitempty"`

	// Selector chooses the nodes by their labels; an empty one, {}, means all
	// nodes. A policy that names the node's NodePool goes before one that only
	// selects it. Give this or nodePool.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Repair is the same block that a NodePool may have as its spec.repair.
	//
	// +required
	Repair RepairSpec `json:"repair"`

	// RemediationTemplate names the template of what is made for a node that
	// has no machine which could be replaced, and so for every node without a
	// NodeClaim. Its kind ends in Template; what is made is of the kind without
	// that word, in the namespace of the template. Without it such nodes are
	// left as they are.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",message="want a kind that ends in Template, such as SelfNodeRemediationTemplate",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.indexOf('/') > 0",message="want a group and a version, such as self-node-remediation.medik8s.io/v1alpha1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="want the name of the template",fieldPath=".name"
	RemediationTemplate *corev1.ObjectReference `json:"remediationTemplate,omitempty"`
}

// RepairPolicyStatus is what has come of a policy. A field that is empty is
// written all the same, so that a status which is patched in leaves nothing of
// the one before.
type RepairPolicyStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Nodes is how many nodes this policy governs. A node that another policy
	// governs is counted there alone.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Nodes int32 `json:"nodes"`

	// Sick is how many of them show a sign of sickness, for however short a time. A
	// new node that has time left to become ready does not.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Sick int32 `json:"sick"`

	// Repairing is how many of them are being repaired.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Repairing int32 `json:"repairing"`

	// Held is how many of them are due, while something keeps them from being
	// repaired: a bound, a disruption budget, a veto.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Held int32 `json:"held"`

	// SickNodes tells of the nodes that are sick, those that are due first at
	// the front, and no more than 20.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	SickNodes []SickNode `json:"sickNodes"`

	// Conditions of the policy itself: Accepted says whether it is followed,
	// Conflict whether another policy governs some of the nodes that it asks for.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`
}

// SickNode is one node that a policy has something to say about.
type SickNode struct {
	// Name of the node.
	Name string `json:"name"`
	// Reason in a word: Pending, Treating, CapFull and so on.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is the same reason in a sentence, as the Events tell it.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// EligibleAt is from when the node may be repaired: the condition has then
	// stood for as long as it is tolerated.
	//
	// +optional
	EligibleAt *metav1.Time `json:"eligibleAt,omitempty"`
}

// Conflict is the condition that says whether another policy governs some of
// the nodes that a policy asks for.
const Conflict = "Conflict"

// SchemaLost is the condition, on every policy while it holds, that says that the
// schema of repair blocks is gone from the CRD of NodePools: the blocks that policies
// give way to are hidden, and the last good ones are in force.
const SchemaLost = "SchemaLost"

// RepairPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type RepairPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RepairPolicy `json:"items"`
}
